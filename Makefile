# `make test` is all the set-up there is: it makes .venv, builds and runs every test.
PYTHON ?= python3

.PHONY: test bench demo lint
test: .venv/ready
	cargo test --workspace

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	ln -sfn $$(cd .venv && ls -d lib/python*/site-packages/torch) .venv/libtorch
	touch $@

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

.PHONY: fixtures zoo
# The committed traces and dumps, made again; `git diff` shows what changed.
fixtures: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python fixtures/zoo.py fixtures

# Every model of the zoo, traced into out/zoo (2 GB).
zoo: .venv/ready
	OMP_NUM_THREADS=1 .venv/bin/python fixtures/zoo.py trace --ir out/zoo

.PHONY: pictures
# The pictures of the documents, drawn again from committed traces.
pictures:
	mkdir -p fixtures/pictures
	cargo run --release --quiet -- graph fixtures/traces/unet_small.pt --depth 1 -o fixtures/pictures/unet_small.svg
	cargo run --release --quiet -- graph fixtures/traces/amoebanet_6_small.pt --depth 1 --color cost -o fixtures/pictures/amoebanet_6_small.svg
# Predicted step times beside those of PyTorch's pipelining runtime with sleeping stages.
.PHONY: bench-schedules
bench-schedules: .venv/ready
	cargo build --release --package model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/schedules.py --command target/release/model-analyze
