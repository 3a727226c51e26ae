#!/bin/sh
# What only a GPU can tell: `make gpu` runs it.
#
#     benches/gpu.sh [DEVICE] [OUT] [STEP …]      steps: suite models stages (all)
#
# suite   measures operators and fits a cost model to them: OUT/suite.csv (taken up again where it was left),
#         OUT/cost-model.yaml, OUT/fit.svg, OUT/fit.txt
# models  measures whole models in two types, and prints predicted beside measured: OUT/whole/*.csv, OUT/models.txt
# stages  splits them in two, compares the stages with the whole on the device, and runs them: OUT/stages.txt
#
# It builds nothing and needs no network, so it also runs where there is but a GPU and a Python with torch, torchvision,
# timm and transformers. Take along the two programs that `make gpu` builds, and say where they are:
#
#     COMMAND=./model-analyze WHOLE=./whole PYTHON=python3 benches/gpu.sh cuda:0 out/gpu suite
#
#     MINUTES  for the operators (6)          DTYPES  of the operators (float32,tf32,bfloat16)
#     EACH     minutes a whole model (0.3)    MODELS  of fixtures/whole_models.py, those that are measured
#     TRACES   folder of their traces (out/whole)
set -eu
cd "$(dirname "$0")/.."
device=${1:-cuda:0}
out=${2:-out/gpu}
[ $# -gt 2 ] && shift 2 || set -- suite models stages
for step in "$@"; do
    case $step in
    suite | models | stages) ;;
    *) echo "unknown step $step; known are suite, models, stages" >&2 && exit 2 ;;
    esac
done
: "${COMMAND:=target/release/model-analyze}" "${WHOLE:=target/release/examples/whole}" "${PYTHON:=python3}"
: "${MINUTES:=6}" "${EACH:=0.3}" "${TRACES:=out/whole}"
: "${MODELS:=resnet18_b6 resnet50_b3 vgg16_b3 unet_b3 gpt2_b12 gpt2_small_b1 bert_b12 bert_base_b1 vit_b_16_b3}"
# A processor has no TF32, and one thread tells most of it.
case $device in
cpu) threads="--threads 1" DTYPES=${DTYPES:-float32,bfloat16} ;;
*) threads="" DTYPES=${DTYPES:-float32,tf32,bfloat16} ;;
esac
# The program was linked with the libtorch of where it was built; here this one counts.
library=$("$PYTHON" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent / "lib")' 2>/dev/null) || {
    echo "$PYTHON has no torch; name one that has: PYTHON=.venv/bin/python $0" >&2
    exit 2
}
export LD_LIBRARY_PATH="$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"

# shellcheck disable=SC2086
suite() {
    "$COMMAND" profile --suite --device "$device" --minutes "$MINUTES" --dtype "$DTYPES" $threads -o "$out/suite.csv"
    "$COMMAND" fit "$out/suite.csv" -o "$out/cost-model.yaml" --plot "$out/fit.svg" >"$out/fit.txt"
    cat "$out/fit.txt"
}

# shellcheck disable=SC2086
models() {
    for dtype in float32 bfloat16; do
        "$PYTHON" -W ignore fixtures/whole_models.py trace "$TRACES" --dtype $dtype --models $MODELS
        "$PYTHON" -W ignore fixtures/whole_models.py measure "$COMMAND" "$TRACES" "$out/whole" \
            --dtype $dtype --models $MODELS --device "$device" --minutes "$EACH"
    done
    "$WHOLE" "$out/suite.csv" "$TRACES" "$out/whole" >"$out/models.txt"
    cat "$out/models.txt"
}

# One model's fault is shown and does not end the others.
stages() {
    name=$(sed -n 's/^device: *//p' "$out/cost-model.yaml" | tr -d "'")
    for model in $MODELS; do
        echo "-- $model"
        "$COMMAND" split "$TRACES/$model.pt" --devices "2x$name" --stages 2 --cost-model "$out/cost-model.yaml" \
            --force -o "$out/stages" &&
            "$COMMAND" verify "$out/stages" --device "$device" --tolerance 1e-4 &&
            "$COMMAND" run "$out/stages" --device "$device" --device "$device" || echo "   FAILED"
    done >"$out/stages.txt" 2>&1
    rm -rf "$out/stages"
    cat "$out/stages.txt"
}

for step in "$@"; do
    "$step"
done
