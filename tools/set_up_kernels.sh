#!/usr/bin/env bash
# Puts Triton into .triton/VERSION at the top of the checkout, for the tests of the kernels; does nothing when that was
# done already. Sourced by tests/run.sh after set_up.sh. Not into .venv: torch for CPUs does without, and two versions
# are tested. --no-deps and --target, so that nothing else of theirs comes along.
set -euo pipefail

# What torch 2.13 pins, and the oldest that is supported, which stumbles over numpy 2.4 and later.
TRITON_PINNED=3.7.1
TRITON_OLDEST=3.6.0

install_triton() {
    local folder=$ROOT/.triton/$1
    shift
    [ -f "$folder/complete" ] && return
    echo "set-up: installing $1 into ${folder#"$ROOT"/}"
    rm -rf "$folder"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$@" \
        2>"$ROOT/.triton/pip.log" || { cat "$ROOT/.triton/pip.log" >&2; fail "pip could not install $* (above)."; }
    touch "$folder/complete"
}

mkdir -p "$ROOT/.triton"
exec 9>"$ROOT/.triton/lock"
flock 9
install_triton "$TRITON_PINNED" "triton==$TRITON_PINNED"
install_triton "$TRITON_OLDEST" "triton==$TRITON_OLDEST" "numpy<2.4"
exec 9>&-
