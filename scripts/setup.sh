#!/usr/bin/env bash
# Makes the virtual environment $VENV with $PYTHON and installs the checkout into it, with the extra named by $1
# (base is none). Run again, it only adds what is missing.
set -euo pipefail
extra=${1:?the name of an extra, or base}
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

fail() { printf 'taskmap set-up: %s\n' "$@" >&2; exit 1; }

command -v "$PYTHON" >/dev/null || fail "no '$PYTHON' was found. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "'$PYTHON' is $("$PYTHON" --version 2>&1), but taskmap needs Python 3.10 or newer. Name another: make PYTHON=python3.12"

if [ -n "${TASKMAP_CC:-}" ]; then
    command -v "${TASKMAP_CC%% *}" >/dev/null || fail "TASKMAP_CC names '$TASKMAP_CC', which was not found. Set it to a C compiler, or unset it."
else
    compiler=
    for candidate in ${CC:+"${CC%% *}"} cc gcc clang; do
        command -v "$candidate" >/dev/null && compiler=$candidate && break
    done
    [ -n "$compiler" ] || fail "no C compiler was found (looked for \$TASKMAP_CC, \$CC, cc, gcc, clang). taskmap compiles its kernels with one." \
        "Install it, for example: apt-get install gcc   (or: dnf install gcc)"
fi

if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "making the virtual environment $VENV"
    "$PYTHON" -m venv "$VENV" || fail "'$PYTHON -m venv' failed. On Debian and Ubuntu it needs: apt-get install python3-venv"
fi
target=.
[ "$extra" = base ] || target=".[$extra]"
echo "installing taskmap ($extra); PyTorch is large, so the first time takes some minutes"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --constraint requirements/dev.txt --editable "$target"
