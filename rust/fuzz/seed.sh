#!/usr/bin/env bash
# Fills the corpora from the golden transcripts. Files are named by their content's digest, as libFuzzer names its own.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p corpus/{http1,stream,scanner_vs_serde,reply,response_reader}

put() { # TARGET PREFIX: the prefix, then standard input, into the corpus
    { printf '%b' "$2"; cat; } >corpus/new
    mv corpus/new "corpus/$1/$(sha1sum <corpus/new | cut -c1-40)"
}

response() { # FILE as one chunk
    printf 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n' "$(stat -c %s "$1")"
    cat "$1"
    printf '\r\n0\r\n\r\n'
}

for stream in ../../tests/transcripts/*/upstream.sse; do
    # The first bytes are the switches and the size of the deltas.
    put stream '\x00\x07' <"$stream"
    put stream '\x10\x01' <"$stream"
    response "$stream" | put http1 '\x05'
    response "$stream" | put response_reader '\x00\x05'
    response "$stream" | put response_reader '\x01\x05'
    sed -n 's/^data: {/{/p' "$stream" | while IFS= read -r data; do
        printf '%s' "$data" | put scanner_vs_serde ''
        # A whole reply is nearly a chunk.
        printf '%s' "${data//\"delta\"/\"message\"}" | put reply '\x00'
    done
done
