#!/usr/bin/env bash
# Installs the real clients that `make test-clients` runs, from PyPI and npm, under .cache/clients (or $FERRULE_CACHE/clients).
# Safe to repeat: what is there already is kept. A client that cannot be had is skipped by the tests, with its reason.
# FERRULE_CLIENTS="python python-0.75 langchain node" picks some of them.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
dir=${FERRULE_CACHE:-$root/.cache}/clients
mkdir -p "$dir"

venv() {  # NAME REQUIREMENT...
    local target=$dir/$1
    shift
    [ -e "$target/.done" ] && return
    rm -rf "$target" && python3 -m venv "$target" && "$target/bin/pip" install -q "$@" && touch "$target/.done"
}

node_packages() {
    local target=$dir/node
    cmp -s "$root/tests/clients/programs/node/package.json" "$target/.done" && return
    rm -rf "$target" && mkdir -p "$target" && cp "$root/tests/clients/programs/node/package.json" "$target/" &&
        (cd "$target" && npm install --no-audit --no-fund --no-update-notifier --loglevel=error) && cp "$target/package.json" "$target/.done"
}

for client in ${FERRULE_CLIENTS:-python python-0.75 langchain node}; do
    case $client in
        python) venv python anthropic==2.14.0 openai==3.57.0 ;;
        python-0.75) venv python-0.75 anthropic==0.75.0 ;;
        langchain) venv langchain langchain-anthropic==1.7.10 ;;
        node) node_packages ;;
        *) false ;;
    esac || echo "$client: not installed" >&2
done
exit 0
