#!/bin/sh
# Installs hexserve from this folder for the user who runs it: deploy/install.sh [--npu]. It needs uv, or Python 3.11 to
# 3.13 with venv, and no root. Packages are the locked ones, checked against their hashes. Repeated, it updates.
set -eu

fail() { echo "error: $*" >&2; exit 1; }

project=$(cd "$(dirname "$0")/.." && pwd)
place="${XDG_DATA_HOME:-$HOME/.local/share}/hexserve/env"
bin="$HOME/.local/bin"
npu=""
case "$#:${1:-}" in
  0:) ;;
  1:--npu) npu=yes ;;
  *) fail "deploy/install.sh takes --npu and nothing else" ;;
esac

fits() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

if command -v uv >/dev/null 2>&1; then
  uv venv --quiet --clear --python ">=3.11,<3.14" "$place"
  # Models of packages are fetched by pip too. Debian has ensurepip in a package of its own.
  "$place/bin/python" -m ensurepip --default-pip >/dev/null 2>&1 \
    || uv pip install --quiet --python "$place/bin/python" pip
else
  python=""
  for name in python3.12 python3.13 python3.11 python3 python; do
    if command -v "$name" >/dev/null 2>&1 && fits "$name"; then python="$name"; break; fi
  done
  [ -n "$python" ] || fail "neither uv nor Python 3.11 to 3.13 was found: install one of them and run this again"
  "$python" -m venv --clear "$place" || fail "$python cannot make environments: install its venv package"
fi

echo "installing into $place, about a minute"
install() { "$place/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install --require-hashes -r "$project/deploy/locks/compile.txt"
[ -z "$npu" ] || install --require-hashes -r "$project/deploy/locks/qnn.txt"
install --no-build-isolation --no-deps "$project"

mkdir -p "$bin"
ln -sf "$place/bin/hexserve" "$bin/hexserve"
"$bin/hexserve" --version
case ":$PATH:" in
  *":$bin:"*) echo "Try: hexserve run smollm2" ;;
  *) echo "Try: $bin/hexserve run smollm2 (add $bin to PATH to leave the folder out)" ;;
esac
