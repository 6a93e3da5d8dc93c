#!/usr/bin/env bash
# The locks beside this script, from pyproject.toml: deploy/locks/remake.sh UV [--upgrade]. `make lock` runs it.
# One for each set that something of ours installs: serve.txt (the image), qnn.txt (the image with EXTRAS=qnn),
# compile.txt (`make serve`), dev.txt (`make test`, CI), uv.txt (what installs the others), for Python 3.11 and newer on
# every system. The extra `ray` has none, for nothing that serves installs it; `hub` has none:
# nothing of ours installs it, and its client wants an older tqdm than the newest tokenizers takes.
set -euo pipefail
uv="$1"
shift
cd "$(dirname "$0")/../.."
locks=deploy/locks

# lock NAME SOURCE...: versions that still fit stay, unless --upgrade is given.
lock() {
  local name="$1"
  shift
  "$uv" pip compile --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
    --excludes "$locks/left_out.txt" --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
    --quiet --output-file "$locks/$name.txt" "$@"
}

lock uv "$locks/uv.in" "$@"
lock dev pyproject.toml "$locks/build.in" "$locks/torch.in" --extra dev "$@"
# The others take their versions from it.
lock serve pyproject.toml --constraints "$locks/dev.txt"
lock qnn pyproject.toml --extra qnn --constraints "$locks/dev.txt"
lock compile pyproject.toml "$locks/build.in" --extra compile --constraints "$locks/dev.txt"
