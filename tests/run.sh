#!/usr/bin/env bash
# Sets up .venv and runs every check: lint, types, tests. Arguments go to pytest (tests/run.sh tests/outer -k diloco).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tools/set_up.sh"
source "$ROOT/tools/set_up_kernels.sh"
cd "$ROOT"
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

if [ $# -eq 0 ]; then
    echo "== ruff"
    "$VENV/bin/ruff" check .
    "$VENV/bin/ruff" format --check .
    echo "== mypy"
    "$VENV/bin/mypy"
    echo "== pytest"
fi
exec "$VENV/bin/python" -m pytest "$@"
