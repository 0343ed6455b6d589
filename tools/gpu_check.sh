#!/usr/bin/env bash
# Checks what only CUDA can show, on one GPU, in some minutes: ZeRO in bf16 under NCCL, resume, fused optimizers, two
# islands that share the GPU, NCCL between islands (with two GPUs), the kernels; then measures the kernels, whose rows
# are appended to kernels/benchmarks/results.csv.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/set_up.sh"
cd "$ROOT"
if ! "$VENV/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    fail "torch finds no GPU here.
  to do: run this on a machine with an NVIDIA GPU and its driver; CUDA_VISIBLE_DEVICES may hide it"
fi
export TOKENIZERS_PARALLELISM=false
"$VENV/bin/python" -m pytest tests/gpu tests/kernels -v \
    --ignore tests/kernels/test_triton.py --ignore tests/kernels/test_mutations.py
"$VENV/bin/python" kernels/benchmarks
