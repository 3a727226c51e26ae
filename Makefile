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

# Errors on public timings, beside the targets; needs ../shared/data.
.PHONY: bench-cost
bench-cost:
	cargo build --release --quiet
	$(PYTHON) fixtures/bench_cost.py target/release/model-analyze ../shared/data/costmodel
