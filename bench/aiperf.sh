#!/usr/bin/env bash
# The same kind of load as bench/load.py by aiperf, for people who know that tool: multi-turn sessions on /v1/messages, streamed.
# It installs aiperf from PyPI into .cache/aiperf and needs no other network: prompts are measured by a tokenizer that is trained here,
# since aiperf's own would be downloaded; what was sent and what came back is counted by the server.
#
#   bench/aiperf.sh [URL] [MODEL] [more aiperf flags]        e.g.  bench/aiperf.sh http://127.0.0.1:8080 sim --concurrency 32
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
venv=${FERRULE_CACHE:-$root/.cache}/aiperf
url=${1:-http://127.0.0.1:8080}
model=${2:-sim}
shift $(($# < 2 ? $# : 2))

if [ ! -x "$venv/bin/aiperf" ]; then
    python3 -m venv "$venv" && "$venv/bin/pip" install -q aiperf==0.13.0
fi
if [ ! -e "$venv/tokenizer/tokenizer.json" ]; then
    "$venv/bin/python" "$root/tests/engines/model/build.py" "$venv/tokenizer" 131072
fi
export DO_NOT_TRACK=1
artifacts=$(mktemp -d "${TMPDIR:-/tmp}/ferrule-aiperf-XXXXXX")
exec "$venv/bin/aiperf" profile --url "$url" --model "$model" --endpoint-type messages --streaming --tokenizer "$venv/tokenizer" \
    --conversation-num 16 --conversation-turn-mean 4 --isl 500 --osl 64 --concurrency 8 --session-header x-claude-code-session-id \
    --random-seed 1 --artifact-dir "$artifacts" --ui simple --no-gpu-telemetry --no-server-metrics --use-server-token-count "$@"
