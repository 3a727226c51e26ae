# `make test` is all the set-up there is: it makes .venv, builds and runs every test.
PYTHON ?= python3

.PHONY: test bench demo lint
test: .venv/ready
	cargo test --workspace

.venv/ready: requirements.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Predicted step times beside those of PyTorch's pipelining runtime with sleeping stages.
.PHONY: bench-schedules
bench-schedules: .venv/ready
	cargo build --release --package model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/lowering.py --command target/release/model-analyze
	OMP_NUM_THREADS=1 .venv/bin/python tests/executed/schedules.py --command target/release/model-analyze
