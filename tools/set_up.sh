#!/usr/bin/env bash
# Makes .venv at the top of the checkout and installs the project into it; does nothing when that was done already.
# Sourced by launchers/quickstart.sh and tests/run.sh. PYTHON names another interpreter (3.10-3.13).
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

fail() {
    echo "set-up: $1" >&2
    exit 5
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no Python 3.10-3.13 found (tried: ${PYTHON:-python3, python3.13 ... python3.10}).
  to do: install one, or name it: PYTHON=/path/to/python3.11 $0"
}

# The stamp names everything that decides what is installed, and where: a moved checkout has a broken .venv.
stamp() {
    { cat "$ROOT/setup.py" "$ROOT/pyproject.toml" "$ROOT/tools/constraints.txt"; echo "$VENV ${PYTHON:-}"; } | sha256sum
}

install() {
    local python
    python=$(find_python)
    echo "set-up: installing into .venv with $("$python" --version) (a minute or two; only once)"
    rm -rf "$VENV"
    "$python" -m venv "$VENV" 2>/dev/null || fail "$python has no venv module.
  to do: apt-get install python3-venv python3-dev"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$ROOT/tools/constraints.txt" --editable "$ROOT[dev]" 2>"$VENV/pip.log" || {
        grep -v '^WARNING' "$VENV/pip.log" >&2 || true
        fail "pip could not install the dependencies (above)."
    }
    stamp >"$VENV/stamp"
}

# Two commands started at once would install over each other.
exec 9>"$ROOT/.venv.lock"
flock 9
if [ ! -f "$VENV/stamp" ] || [ "$(cat "$VENV/stamp")" != "$(stamp)" ]; then
    install
fi
exec 9>&-
