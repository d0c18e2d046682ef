#!/usr/bin/env bash
# peers.sh CAPTURES [OPTION..]: runs peers.py in an environment of its own.
#
# The environment is made once, in $OPENWORK_CACHE (default: openwork under
# ${XDG_CACHE_HOME:-$HOME/.cache}), and holds torch and the paper's package by
# name. That package's licence (CC BY-NC 4.0) permits running it here; no line of
# it is part of this project.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${OPENWORK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/openwork}
venv=$cache/peers
if [ ! -e "$venv/ready" ]; then
  mkdir -p "$cache"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check torch safetensors numpy packaging sparsekit==0.1.5 >&2
  # The package imports triton even where it runs on a CPU only.
  "$venv/bin/python" -c 'import triton' 2>/dev/null || "$venv/bin/pip" install -q triton >&2
  touch "$venv/ready"
fi
exec "$venv/bin/python" "$here/peers.py" "$@"
