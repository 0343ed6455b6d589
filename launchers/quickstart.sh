#!/usr/bin/env bash
# From plain text to a trained model over islands, on this machine: sets up .venv, then builds data from the Python
# standard library, trains, evaluates, exports and samples. Results: runs/quickstart/summary.json.
# Arguments are settings for the run (launchers/quickstart.sh rounds=4); --fresh starts over.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../tools/set_up.sh"
cd "$ROOT"
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
exec "$VENV/bin/loco" quickstart "$@"
