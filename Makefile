# `make test` is all the set-up there is: it makes .venv, builds and runs every test.
PYTHON ?= python3

.PHONY: test lint wheel notebook site without-peers demo bench bench-read bench-plan bench-cost bench-published bench-multi bench-memory bench-language bench-gpu bench-simulate bench-schedules bench-offload \
	bench-emit bench-stages bench-split bench-executed bench-dtensor gpu oracle exports-load tp-plans zoo-stages zoo-shards zoo-two-way zoo-priority zoo-hybrid zoo-host-optimizer zoo-stragglers zoo-training zoo-killed zoo-without-flush bands finer-cuts properties fuzz sanitize deny fixtures zoo hostile \
	cost-model cost-model-gpu instructions bench-shipped pictures programs

# Says last how many tests passed, failed, and did nothing for want of something.
test: .venv/ready
	.ci/test

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	ln -sfn $$(cd .venv && ls -d lib/python*/site-packages/torch) .venv/libtorch
	touch $@

# Tests that are others without torch; the rest of them is linted with it.
PARTED = $(patsubst tests/%.rs,--test %,$(shell grep -L '^...cfg(feature = "torch")' `grep -l 'feature = "torch"' tests/*.rs`))

lint: .venv/ready
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --features torch -- -D warnings
	cargo clippy --lib --bins $(PARTED) -- -D warnings
	cargo clippy --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# The command without other planners says what it lacks; `make lint` holds that it builds.
without-peers:
	cargo test --no-default-features --test without_peers

# The wheel of this machine, in target/wheels, tried in a bare environment.
wheel:
	.ci/wheel

# The notebook of the documents, run by Jupyter itself with torch and the command of this checkout; the result, pictures and
# all, lies in out/notebook. (The suite runs its cells without Jupyter.)
notebook: .venv/ready
	cargo build --release --quiet
	mkdir -p out/notebook
	test -x out/notebook/venv/bin/python || $(PYTHON) -m venv out/notebook/venv
	out/notebook/venv/bin/pip install --quiet --disable-pip-version-check nbclient==0.11.0 ipykernel==7.4.0 nbformat==5.11.1
	PYTHONPATH="$$(pwd)/python:$$(cd .venv && pwd)/$$(cd .venv && ls -d lib/python*/site-packages)" \
	MODEL_ANALYZE="$$(pwd)/target/release/model-analyze" out/notebook/venv/bin/python python/run_notebook.py docs/notebook.ipynb out/notebook

# Exports, read and run by the frameworks themselves, in an environment of their own: torchtitan splits, Megatron Core parses,
# DeepSpeed trains a step of each model in processes, vLLM and SGLang deal out layers, Ray starts train.py. Some fifteen minutes.
exports-load: .venv/ready
	cargo build --quiet
	test -x target/exports-venv/bin/python || $(PYTHON) -m venv target/exports-venv
	echo "$$(cd .venv && pwd -P)/$$(cd .venv && ls -d lib/python*/site-packages)" > "$$(ls -d target/exports-venv/lib/python*/site-packages)/repository.pth"
	target/exports-venv/bin/pip install --quiet --disable-pip-version-check torchtitan==0.3.0 megatron-core==0.16.1 deepspeed==0.19.8 "ray[train]==2.60.0" ninja
	ls target/exports-venv/wheels/sglang-* > /dev/null 2>&1 || target/exports-venv/bin/pip download --quiet --disable-pip-version-check --no-deps -d target/exports-venv/wheels vllm==0.33.0 sglang==0.5.23
	mkdir -p out/exports
	target/exports-venv/bin/python -W ignore tests/oracle/exports.py target/debug/model-analyze out/exports --installed

# How often weights are cut as the tensor-parallel plans of transformers' own configurations cut them.
tp-plans: .venv/ready
	cargo build --quiet
	mkdir -p out/tp-plans
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore benches/tp_plans.py target/debug/model-analyze out/tp-plans

# The documentation as a site, in out/site. Where mdBook is not installed, it is built into target/mdbook first.
site:
	command -v mdbook >/dev/null || test -x target/mdbook/bin/mdbook || cargo install mdbook --locked --root target/mdbook
	PATH="$$PATH:$$(pwd)/target/mdbook/bin" mdbook build

# Traces a U-Net, splits it for two processors, and trains the stages under torchrun with two processes: losses, and at
# the end a step beside its prediction.
demo: .venv/ready
	cargo build --release --quiet
	mkdir -p out
	target/release/model-analyze trace fixtures/models/unet.py:UNet --arg width=32 --train --input 2x3x96x96 --python .venv/bin/python -o out/unet.pt
	target/release/model-analyze split out/unet.pt --devices 2xcpu --stages 2 --strategy 1f1b --force -o out/demo
	cd out/demo && OMP_NUM_THREADS=1 ../../.venv/bin/torchrun --standalone --nproc-per-node 2 train.py --steps 10

# -- figures --

# Every ratio that the documents name.
bench: bench-read bench-plan bench-cost bench-shipped bench-published bench-language bench-simulate bench-schedules bench-emit bench-stages bench-split

# Reading archives beside torch.jit.load, and a large archive beside a small one.
bench-read: .venv/ready
	cargo build --release -p model-analyze-tracer --example read
	.venv/bin/python benches/read.py

# Our planner's CPU seconds beside those of other planners.
bench-plan:
	cargo run --release -p model-analyze-peers --example bench_plan

# Each processor that was profiled, and whole models as measured on it.
WHOLE = set -e; for cpu in epyc epyc-zen3 epyc-zen5 xeon; do echo "-- $$cpu"; \
	cargo run --release --quiet -p model-analyze-cost-model --example whole -- \
	fixtures/profiles/cpu-$$cpu-1-thread.csv out/whole fixtures/profiles/whole-$$cpu; done

# Errors on public timings, beside the targets (needs ../shared/data), then whole models on a CPU core beside what was
# measured, and what autograd keeps of them (needs their traces: fixtures/whole_models.py trace out/whole).
bench-cost: .venv/ready
	cargo build --release --quiet
	$(PYTHON) fixtures/bench_cost.py target/release/model-analyze ../shared/data/costmodel
	$(WHOLE)
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/whole_models.py memory target/release/model-analyze out/whole

# Whole models on GPUs that nobody profiled, by the data sheet: predicted beside what others timed, and the plain roofline.
# (The first run traces 285 models without their weights, some 12 minutes.)
bench-published: .venv/ready
	cargo build --release --quiet -p model-analyze-cost-model --example published
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/published.py out/published
	target/release/examples/published fixtures/published/timm.csv out/published
	@echo "-- models that nothing was set by"
	target/release/examples/published fixtures/published/timm-aside.csv out/published

# Training over several cards, in published layouts (needs ../shared/data; the first run traces models of up to 405 billion parameters, an hour).
bench-multi: .venv/ready
	cargo build --release --quiet
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/published_multi.py target/release/model-analyze ../shared/data/published out/multi

# Does it fit? Predicted beside what others ran or could not run (needs ../shared/data; the first run traces ten models).
bench-memory: .venv/ready
	cargo build --release --quiet
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/published_memory.py target/release/model-analyze ../shared/data/published out/memory

# Language models on A100 and H100 beside published throughput (needs ../shared/data and the traces of bench-memory).
bench-language: bench-memory
	.venv/bin/python fixtures/published_language.py target/release/model-analyze ../shared/data/published out/memory

# Bytes and instructions of kernels that instructions bound, for cost-model/src/instructions.rs, from operators on an H100 and an H200.
instructions: .venv/ready
	.venv/bin/python fixtures/instructions.py

# The curves that ship for GPUs beside rows that were kept aside: shapes of known models, in another session (needs ../shared/data).
bench-shipped:
	$(PYTHON) fixtures/gpu_profiles.py ../shared/data/costmodel out/gpu-models models
	cargo run --release --quiet -p model-analyze-cost-model --example rows -- out/gpu-models/*.csv

# Whole models that were measured on an H200 and an H100, predicted by what ships; none of them was fitted.
bench-gpu: .venv/ready
	cargo build --release --quiet
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/gpu_models.py compare target/release/model-analyze \
	fixtures/profiles/whole-h200/models.jsonl out/gpu-models-traces --device h200
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/gpu_models.py compare target/release/model-analyze \
	fixtures/profiles/whole-h100/models.jsonl out/gpu-models-traces --device h100

GPU ?= cuda:0
# What only a GPU can tell, in some twenty minutes: its rates, its operators as a cost model, whole models with their peak
# memory, stages and train.py on it, and predicted beside measured. benches/gpu.sh says what may be set, which steps rehearse
# on a processor, and how to go to a machine that cannot build.
gpu: .venv/ready
	cargo build --release --features torch
	cargo build --release -p model-analyze-cost-model --example whole
	PYTHON=.venv/bin/python benches/gpu.sh $(GPU) out/gpu

# Steps of four models with activations on the device and in host memory, in four modes (DEVICE=cuda:0 …).
bench-offload: .venv/ready
	.venv/bin/python benches/offload.py $(if $(DEVICE),--device $(DEVICE)) --out out/offload.json

# The simulator's speed and memory beside what they must reach, then beside torch's own lowering of schedules.
bench-simulate: .venv/ready
	cargo run --release --quiet --package model-analyze-simulator --example speed
	cargo build --release --package model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/lowering.py --command target/release/model-analyze

# Predicted step times beside those of PyTorch's pipelining runtime and of DDP, whose stages and links sleep.
bench-schedules: .venv/ready
	cargo build --release --package model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/schedules.py --command target/release/model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/data_parallel.py --command target/release/model-analyze

# Seconds and memory of writing stages, beside copying the same bytes.
bench-emit: .venv/ready
	cargo build --release
	.venv/bin/python benches/emit.py

# Forward and backward of stages, as Python and under tch, beside the eager model cut by hand.
bench-stages: .venv/ready
	cargo build --release
	cargo build --release -p model-analyze-libtorch --features torch --example stage
	.venv/bin/python -W ignore benches/stages.py

# Our plans beside splits by hand, predicted and executed by two processes; and the seconds of `split` itself.
bench-split: .venv/ready
	cargo build --release
	.venv/bin/python benches/split.py

# Plans in the order that they are predicted and executed in, by a profile of this machine that is measured here. Half an hour.
bench-executed: .venv/ready
	cargo build --release --features torch
	mkdir -p out/bench-split
	target/release/model-analyze profile --suite --threads 1 --minutes 5 -o out/bench-split/neighbour.csv & \
	target/release/model-analyze profile --suite --threads 1 --minutes 5 -o out/bench-split/profile.csv; wait
	target/release/model-analyze fit out/bench-split/profile.csv -o out/bench-split/machine.yaml
	.venv/bin/python benches/executed.py --cost-model out/bench-split/machine.yaml

# Processor time of a step that two processes share: stages as `split` writes them, beside `parallelize_module`.
bench-dtensor: .venv/ready
	cargo build
	mkdir -p out/dtensor
	.venv/bin/python -W ignore benches/dtensor.py target/debug/model-analyze out/dtensor

# -- checks beyond the suite --

# Shapes, parameters, FLOPs and kept memory against PyTorch: the zoo, then models that nothing here was made for, then sizes of
# single operators on torch's own samples; exports beside traces; memory of a training step against torch's tracker.
oracle: .venv/ready
	cargo build
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/oracle.py check target/debug/model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/oracle.py check target/debug/model-analyze wider
	mkdir -p out/oracle
	.venv/bin/python -W ignore tests/oracle/operators.py --samples 40 target/debug/model-analyze out/oracle
	mkdir -p out/oracle/exported
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/exported.py target/debug/model-analyze out/oracle/exported --all
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/step_memory.py target/debug/model-analyze out/step-memory

# Every model of the zoo in 2, 3 and 4 stages, both forms, eval and training mode, against the whole model.
zoo-stages: .venv/ready
	cargo build --release
	.venv/bin/python tests/oracle/zoo_stages.py target/release/model-analyze out/zoo-stages

# Models of torchvision, and a large image, in 2, 3 and 4 bands, each beside the whole.
bands: .venv/ready
	cargo build --release
	mkdir -p out/bands
	.venv/bin/python -W ignore tests/oracle/bands.py target/release/model-analyze out/bands --large --degrees 2,3,4

# Every model of the zoo on two and four devices that share its layers, against the whole model; then all cases of training so.
zoo-shards: .venv/ready
	cargo build --release
	mkdir -p out/zoo-shards
	.venv/bin/python -W ignore tests/oracle/sharded.py target/release/model-analyze out/zoo-shards --all --degrees 2,4
	.venv/bin/python -W ignore tests/oracle/shard_training.py target/release/model-analyze out/zoo-shards --all
	.venv/bin/python -W ignore tests/oracle/outside.py target/release/model-analyze out/zoo-shards
	.venv/bin/python -W ignore tests/oracle/operator_splits.py target/release/model-analyze out/zoo-shards/operators

# Slices of gradients by priority, beside a plain loop and buckets; with a slow link beside their simulation.
zoo-priority: .venv/ready
	cargo build
	rm -rf out/zoo-priority && mkdir -p out/zoo-priority
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/priority.py target/debug/model-analyze out/zoo-priority --all

# Replicas that share out in groups, beside a plain loop; what ranks keep beside what was simulated.
zoo-hybrid: .venv/ready
	cargo build
	rm -rf out/zoo-hybrid && mkdir -p out/zoo-hybrid
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/hybrid.py target/debug/model-analyze out/zoo-hybrid --all

# The optimizer's state on the host, beside runs without, bit by bit.
zoo-host-optimizer: .venv/ready
	cargo build
	rm -rf out/zoo-host-optimizer && mkdir -p out/zoo-host-optimizer
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/host_optimizer.py target/debug/model-analyze out/zoo-host-optimizer --all

# Schedules, replicas, resuming and validation in more sizes than the suite tries.
zoo-training: .venv/ready
	cargo build
	for script in torchrun trainer runs offload schedules; do rm -rf out/zoo-training/$$script && mkdir -p out/zoo-training/$$script && \
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/$$script.py target/debug/model-analyze out/zoo-training/$$script --all || exit 1; done

# PipeDream and 2BW, with unequal replicas, too, beside a loop with the same stale gradients.
zoo-without-flush: .venv/ready
	cargo build
	rm -rf out/zoo-without-flush && mkdir -p out/zoo-without-flush
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/without_flush.py target/debug/model-analyze out/zoo-without-flush --all

# Ranks that are slow, and ranks that hang: who is named.
zoo-stragglers: .venv/ready
	cargo build
	rm -rf out/zoo-stragglers && mkdir -p out/zoo-stragglers
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/stragglers.py target/debug/model-analyze out/zoo-stragglers --all

# A rank is killed at 20 random moments of a job that may restart: parameters at the end are those of a job left alone, bit by bit.
zoo-killed: .venv/ready
	cargo build
	rm -rf out/zoo-killed && mkdir -p out/zoo-killed
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/killed.py target/debug/model-analyze out/zoo-killed --all

# Two copies of a model in opposite directions on 1 to 4 ranks, beside a plain loop; sleeping stages beside their simulation.
zoo-two-way: .venv/ready
	cargo build
	rm -rf out/zoo-two-way && mkdir -p out/zoo-two-way
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/two_way.py target/debug/model-analyze out/zoo-two-way --all

# Plans of outside models and of the committed traces against cuts at any of their operators, in two and three stages.
finer-cuts: .venv/ready
	cargo build --release
	mkdir -p out/finer-cuts
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore tests/oracle/finer_cuts.py target/release/model-analyze out/finer-cuts --fixtures

PLAN_CASES ?= 10000
# The planner's property tests on many more random models and clusters than the suite takes.
properties:
	PLAN_CASES=$(PLAN_CASES) cargo test --release -p model-analyze-partitioner -p model-analyze-peers --lib

FUZZ_TARGETS ?= archive record pickle code ir yaml profile schedule workload
FUZZ_SECONDS ?= 600
FUZZ_JOBS ?= 2
# Fuzzes what reads files, ten minutes a target: `make fuzz FUZZ_TARGETS="ir code" FUZZ_SECONDS=60`.
fuzz:
	$(PYTHON) fuzz/seeds.py
	cargo +nightly fuzz build
	fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_JOBS) $(FUZZ_TARGETS)

# Tests that map files, copy weights out of them and read hostile ones, under the address sanitizer (a nightly compiler).
sanitize:
	RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0:hard_rss_limit_mb=1500 cargo +nightly test \
		--target x86_64-unknown-linux-gnu --target-dir target/sanitize --no-fail-fast \
		--test hostile --test wrong_input --test emit --test graph --test inspect --test places

# Licences, bans and sources of all dependencies, then known vulnerabilities where their list can be fetched.
deny:
	cargo deny --version >/dev/null 2>&1 || cargo install cargo-deny --locked
	cargo deny --all-features check licenses bans sources
	@if cargo deny --all-features fetch db >/dev/null 2>&1; then cargo deny --all-features check advisories; \
	else echo "advisories were NOT checked: their list cannot be fetched here"; fi

# -- what is made and committed, and what tests like to have --

# The committed traces and dumps, made again; `git diff` shows what changed. (torch.jit.script follows a set's order.)
fixtures: .venv/ready
	PYTHONHASHSEED=0 OMP_NUM_THREADS=1 .venv/bin/python fixtures/zoo.py fixtures
	.venv/bin/python fixtures/seeded.py
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/exported.py
	cargo build --release
	OMP_NUM_THREADS=1 .venv/bin/python -W ignore fixtures/large.py target/release/model-analyze

# Every model of the zoo, traced into out/zoo (2 GB).
zoo: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python fixtures/zoo.py trace --ir out/zoo

# The corpus of hostile files, made again; `git diff` shows what changed.
hostile:
	$(PYTHON) fixtures/hostile.py

# The cost model that ships for `cpu`, fitted again; then whole models beside it, given their traces in out/whole.
cost-model:
	cargo build --release
	target/release/model-analyze fit fixtures/profiles/cpu-epyc-1-thread.csv -o cost-model/src/shipped/cpu-epyc-zen4-1t.yaml
	target/release/model-analyze fit fixtures/profiles/cpu-epyc-zen3-1-thread.csv -o cost-model/src/shipped/cpu-epyc-zen3-1t.yaml
	target/release/model-analyze fit fixtures/profiles/cpu-epyc-zen5-1-thread.csv -o cost-model/src/shipped/cpu-epyc-zen5-1t.yaml
	target/release/model-analyze fit fixtures/profiles/cpu-xeon-1-thread.csv -o cost-model/src/shipped/cpu-xeon-amx-1t.yaml
	$(WHOLE)

# The cost models that ship for GPUs, fitted again to public timings (needs ../shared/data); fixtures/profiles/README.md says
# whose they are. Then the curves beside rows that were kept aside.
GPUS = p100-pcie-16gb v100-pcie-32gb p4 t4 a100-pcie-40gb a100-pcie-80gb a100-sxm4-80gb a40 l4 h100-sxm5-80gb h200-sxm-141gb
cost-model-gpu:
	cargo build --release
	$(PYTHON) fixtures/gpu_profiles.py ../shared/data/costmodel out/gpu-profiles
	set -e; for card in $(GPUS); do echo "-- $$card"; target/release/model-analyze fit \
	$$(ls out/gpu-profiles/$$card.csv fixtures/profiles/$$card.csv 2>/dev/null) -o cost-model/src/shipped/$$card.yaml; done
	$(MAKE) bench-shipped

# The pictures of the documents, drawn again from committed traces.
pictures:
	cargo build --release --quiet
	target/release/model-analyze graph fixtures/traces/unet_small.pt --depth 1 -o docs/pictures/unet_small.svg
	target/release/model-analyze graph fixtures/traces/unet_small.pt --depth 1 --direction LR --plan fixtures/plans/kept/version_1_unet_small.yaml -o docs/pictures/unet_small-stages.svg
	target/release/model-analyze graph fixtures/traces/amoebanet_6_small.pt --depth 1 --color cost -o docs/pictures/amoebanet_6_small.svg
	target/release/model-analyze graph fixtures/traces/lstm_seq2seq_small.pt --depth 1 --color memory -o docs/pictures/lstm_seq2seq_small.svg
	target/release/model-analyze graph fixtures/large/llama-3.2-3b.pt --depth 3 -o docs/pictures/llama-3.2-3b.svg
	target/release/model-analyze simulate --schedule 1f1b --ranks 4 --micro-batches 8 --timeline docs/pictures/1f1b.svg
	target/release/model-analyze simulate --schedule zbv --ranks 4 --micro-batches 8 --timeline docs/pictures/zbv.svg
	cd docs && mkdir -p pictures/measured && ../target/release/model-analyze fit ../fixtures/profiles/sweep-h100.csv --plot pictures/measured/sweep-h100.svg

# Programs of the system that some tests use, and skip without: Chromium shows the report, Graphviz
# serves `graph --renderer dot`.
programs:
	apt-get install -y --no-install-recommends chromium graphviz
