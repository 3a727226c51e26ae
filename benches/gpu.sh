#!/bin/sh
# What only a GPU can tell: `make gpu` runs it.
#
#     benches/gpu.sh [DEVICE] [OUT] [STEP …]      steps: facts suite models stages train offload compare, which are the default, blocks ranks
#
# facts    what the catalogue's figures rest on: rates, attention, copies, Adam, the host: OUT/facts.json
# suite    measures operators and fits a cost model to them: OUT/suite.csv (taken up again where it was left),
#          OUT/cost-model.yaml, OUT/fit.svg, OUT/fit.txt
# models   measures training steps of whole models as their owners run them, and peak memory: OUT/models.jsonl
# stages   splits models in two, compares the stages with the whole on the device, and runs them: OUT/stages.txt
# train    trains stages by train.py in one process and under NCCL, beside the same on the processor: OUT/train.txt
# offload  activations on the host in four modes: OUT/offload.json
# compare  predicted beside measured, by the fitted cost model and by what ships for CARD: OUT/compare.txt
# blocks   measures models block by block: OUT/whole/*.csv, OUT/blocks.txt
# ranks    trains in two to eight ranks under NCCL, which share the one GPU, by the cases of tests/oracle: OUT/ranks.txt
#
# It builds nothing and needs no network, so it also runs where there is but a GPU and a Python with torch, torchvision,
# timm and transformers. Take along the two programs that `make gpu` builds (model-analyze and model-analyze-torch, in one folder), and say
# where they are:
#
#     COMMAND=./model-analyze PYTHON=python3 benches/gpu.sh cuda:0 out/gpu facts suite models
#
#     MINUTES  for the operators (10)         DTYPES  of the operators (those of the card)
#     SECONDS_OF_MODELS  after which no model is begun (240)
#     CARD     its name in the catalogue (asked of the cost model)
#     EACH     minutes a whole model (0.3)    MODELS  of fixtures/whole_models.py, for stages and blocks
#     TRACES   folder of their traces (out/whole)
#     SECONDS_OF_RANKS  after which no case is begun (300)
set -eu
cd "$(dirname "$0")/.."
device=${1:-cuda:0}
out=${2:-out/gpu}
[ $# -gt 2 ] && shift 2 || set -- facts suite models stages train offload compare
for step in "$@"; do
    case $step in
    facts | suite | models | stages | train | offload | compare | blocks | ranks) ;;
    *) echo "unknown step $step; known are facts suite models stages train offload compare blocks ranks" >&2 && exit 2 ;;
    esac
done
: "${COMMAND:=target/release/model-analyze}" "${WHOLE:=target/release/examples/whole}" "${PYTHON:=python3}"
: "${SECONDS_OF_RANKS:=300}" "${MINUTES:=10}" "${EACH:=0.3}" "${TRACES:=out/whole}" "${SECONDS_OF_MODELS:=240}"
: "${MODELS:=resnet18_b6 resnet50_b3 vgg16_b3 unet_b3 gpt2_b12 gpt2_small_b1 bert_b12 bert_base_b1 vit_b_16_b3}"
# One thread of a processor tells most of it.
case $device in
cpu) threads="--threads 1" ;;
*) threads="" ;;
esac
# The program was linked with the libtorch of where it was built; here this one counts.
library=$("$PYTHON" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent / "lib")' 2>/dev/null) || {
    echo "$PYTHON has no torch; name one that has: PYTHON=.venv/bin/python $0" >&2
    exit 2
}
export LD_LIBRARY_PATH="$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
case $COMMAND in */*) COMMAND=$(realpath "$COMMAND") ;; esac
case $PYTHON in */*) PYTHON=$(cd "$(dirname "$PYTHON")" && pwd)/$(basename "$PYTHON") ;; esac
mkdir -p "$out"

facts() {
    "$PYTHON" -W ignore benches/gpu_facts.py --device "$device" --out "$out/facts.json"
}

# shellcheck disable=SC2086
suite() {
    "$COMMAND" profile --suite --device "$device" --minutes "$MINUTES" ${DTYPES:+--dtype "$DTYPES"} $threads -o "$out/suite.csv"
    "$COMMAND" fit "$out/suite.csv" -o "$out/cost-model.yaml" --plot "$out/fit.svg" >"$out/fit.txt"
    cat "$out/fit.txt"
}

models() {
    "$PYTHON" -W ignore fixtures/gpu_models.py measure --device "$device" --seconds "$SECONDS_OF_MODELS" "$out/models.jsonl"
}

compare() {
    card=$(named)
    for by in "--cost-model $out/cost-model.yaml" ""; do
        echo "-- $card ${by:-as it ships}"
        # shellcheck disable=SC2086
        "$PYTHON" -W ignore fixtures/gpu_models.py compare "$COMMAND" "$out/models.jsonl" "$TRACES" --device "$card" $by
    done >"$out/compare.txt" 2>&1 || echo "   FAILED"
    cat "$out/compare.txt"
}

# The device as the catalogue or the cost model has it.
named() {
    [ -n "${CARD:-}" ] && echo "$CARD" && return
    sed -n 's/^device: *//p' "$out/cost-model.yaml" | tr -d "'"
}

# shellcheck disable=SC2086
blocks() {
    for dtype in float32 bfloat16; do
        "$PYTHON" -W ignore fixtures/whole_models.py trace "$TRACES" --dtype $dtype --models $MODELS
        "$PYTHON" -W ignore fixtures/whole_models.py measure "$COMMAND" "$TRACES" "$out/whole" \
            --dtype $dtype --models $MODELS --device "$device" --minutes "$EACH"
    done
    "$WHOLE" "$out/suite.csv" "$TRACES" "$out/whole" >"$out/blocks.txt"
    cat "$out/blocks.txt"
}

# One model's fault is shown and does not end the others.
# shellcheck disable=SC2086
stages() {
    card=$(named)
    "$PYTHON" -W ignore fixtures/whole_models.py trace "$TRACES" --models $MODELS
    for model in $MODELS; do
        echo "-- $model"
        "$COMMAND" split "$TRACES/$model.pt" --devices "2x$card" --stages 2 --force -o "$out/stages" >"$out/split.txt" 2>&1 &&
            "$COMMAND" verify "$out/stages" --device "$device" --tolerance 1e-4 --python "$PYTHON" &&
            "$COMMAND" run "$out/stages" --device "$device" --device "$device" || echo "   FAILED"
        tail -n 3 "$out/split.txt"
    done >"$out/stages.txt" 2>&1
    rm -rf "$out/stages"
    cat "$out/stages.txt"
}

# Losses must agree between the device and the processor, in one process, and with one rank of its own under NCCL.
train() {
    card=$(named)
    {
        "$COMMAND" trace tests/oracle/step_memory.py:build --arg model=llama --input 2x128:int64 --train --python "$PYTHON" \
            --no-check -o "$out/llama.pt"
        "$COMMAND" trace tests/oracle/step_memory.py:build --arg model=resnet50 --input 4x3x128x128 --train --python "$PYTHON" \
            --no-check -o "$out/resnet50.pt"
        for model in llama resnet50; do
            for stages in 1 2; do
                "$COMMAND" split "$out/$model.pt" --devices "${stages}x$card" --stages "$stages" --micro-batches 4 --targets python --force \
                    -o "$out/trained" >"$out/split.txt" 2>&1 || tail -n 5 "$out/split.txt"
                for how in "--single --device cpu" "--single --device ${device%%:*}" "--device ${device%%:*}" \
                    "--single --device ${device%%:*} --dtype bf16"; do
                    # Two ranks want two cards: then a clear word is what is looked for.
                    echo "-- $model, stages: $stages, train.py $how"
                    (cd "$out/trained" && timeout 90 "$PYTHON" train.py $how --steps 4 2>&1 | tail -n 12)
                done
            done
        done
    } >"$out/train.txt" 2>&1
    rm -rf "$out/trained" "$out/llama.pt" "$out/resnet50.pt"
    cat "$out/train.txt"
}

offload() {
    "$PYTHON" -W ignore "${OFFLOAD:-benches/offload.py}" --device "$device" --out "$out/offload.json"
}

ranks() {
    "$PYTHON" benches/gpu_ranks.py "$COMMAND" "$out/ranks" --device "${device%%:*}" --seconds "$SECONDS_OF_RANKS" | tee "$out/ranks.txt"
}

for step in "$@"; do
    "$step"
done
