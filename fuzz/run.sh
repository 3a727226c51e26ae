#!/bin/sh
# Runs fuzz targets, a few side by side: run.sh SECONDS JOBS TARGET...
# A finding stops its target, lands in fuzz/artifacts/TARGET and makes the whole fail.
set -eu
cd "$(dirname "$0")"
seconds=$1 jobs=$2
shift 2
printf '%s\n' "$@" | xargs -P "$jobs" -I{} sh -c '
    target={}
    mkdir -p corpus/$target artifacts/$target
    dictionary=
    [ -f dictionaries/$target.dict ] && dictionary=-dict=dictionaries/$target.dict
    nice -n 19 target/x86_64-unknown-linux-gnu/release/$target corpus/$target \
        -artifact_prefix=artifacts/$target/ -max_total_time='"$seconds"' -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 $dictionary >artifacts/$target.log 2>&1 \
        && echo "$target: no finding in '"$seconds"' s" \
        || { echo "$target: see fuzz/artifacts/$target.log"; exit 255; }
'
