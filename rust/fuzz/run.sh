#!/usr/bin/env bash
# Fuzzes each target (or those named) for SECONDS, with the coverage that libFuzzer wants, on the stable compiler.
# Usage: rust/fuzz/run.sh SECONDS [TARGET...]      A crash leaves its input in artifacts/TARGET and the script fails.
set -euo pipefail
cd "$(dirname "$0")"
seconds=${1:?seconds per target}
shift
targets=("$@")
[ $# -gt 0 ] || targets=(http1 stream scanner_vs_serde reply response_reader)

host=$(rustc -vV | sed -n 's/^host: //p')
coverage="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
coverage+=" -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
RUSTFLAGS="$coverage" cargo build --release --quiet --target "$host" "${targets[@]/#/--bin=}"

./seed.sh
for target in "${targets[@]}"; do
    mkdir -p "artifacts/$target"
    echo "fuzz $target for $seconds s"
    if ! "target/$host/release/$target" "corpus/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -artifact_prefix="artifacts/$target/" -print_final_stats=1 >"artifacts/$target.log" 2>&1; then
        tail -n 40 "artifacts/$target.log"
        exit 1
    fi
    grep -E 'number_of_executed|peak_rss' "artifacts/$target.log"
done
