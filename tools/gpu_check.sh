#!/usr/bin/env bash
# Checks what only CUDA can show, on one GPU, in under five minutes: ZeRO in bf16 under NCCL, resume, fused optimizers,
# two islands that share the GPU, NCCL between islands (with two GPUs), the operations of the outer step.
# Measured rows go to runs/gpu_check.jsonl, or to the file named by the first argument.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
rows=$(realpath -m "${1:-$ROOT/runs/gpu_check.jsonl}")
cd "$ROOT"
if ! "$VENV/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    fail "torch finds no GPU here.
  to do: run this on a machine with an NVIDIA GPU and its driver; CUDA_VISIBLE_DEVICES may hide it"
fi
mkdir -p "$(dirname "$rows")"
export LOCO_GPU_CHECK_ROWS=$rows TOKENIZERS_PARALLELISM=false
"$VENV/bin/python" -m pytest tests/gpu -v
echo "rows: $rows"
