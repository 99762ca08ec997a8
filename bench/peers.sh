#!/usr/bin/env bash
# Installs the proxies that `make bench` compares with, each in its own venv under .cache/peers (or $FERRULE_CACHE/peers).
# Only package registries are used. A peer that cannot be had is reported by the benchmark as not installed.
# FERRULE_PEERS="litellm vllm" picks some of them.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
dir=${FERRULE_CACHE:-$root/.cache}/peers
mkdir -p "$dir"

venv() {  # NAME REQUIREMENT...
    local target=$dir/$1
    shift
    [ -e "$target/.done" ] && return
    rm -rf "$target" && python3 -m venv "$target" && "$target/bin/pip" install -q "$@" && touch "$target/.done"
}

install_litellm() { venv litellm 'litellm[proxy]==1.108.0'; }
install_sglang() { venv sglang sglang-router==0.3.2; }
install_vllm() { venv vllm vllm-router==0.1.17; }
install_tokenizers() { venv tokenizers tiktoken==0.14.0 tokenizers==0.23.3; }

for peer in ${FERRULE_PEERS:-litellm sglang vllm tokenizers}; do
    "install_$peer" || echo "$peer: not installed" >&2
done
exit 0
