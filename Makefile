# What can be done here. Every target says what it needs and gets it.

BROKER ?= in-memory
BROKERS := in-memory redis

# End-to-end tests wait more than they work.
TEST_THREADS := 4

.DEFAULT_GOAL := help
.PHONY: help run test soak fuzz lint doc bench bench-smoke bench-gate bench-build clean-run need-cargo need-broker

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  BROKER is one of: $(BROKERS) (default: in-memory)"

run: need-cargo need-broker ## show the main job on real input, then keep running [BROKER=redis]
	@$(if $(filter redis,$(BROKER)),deploy/local/install.sh redis-server &&) \
	DAPRD="$$(deploy/local/find-daprd.sh)" && export DAPRD && \
	exec cargo run --example local -- --broker $(BROKER)

test: need-cargo ## all tests, against a real sidecar, Redis and PostgreSQL
	@deploy/local/install.sh redis-server postgresql openssl
	@DAPRD="$$(deploy/local/find-daprd.sh)" && export DAPRD && \
	export RUST_TEST_THREADS="$${RUST_TEST_THREADS:-$(TEST_THREADS)}" && \
	cargo test --features failpoints && \
	for broker in $(BROKERS); do cargo run --example local -- --broker "$$broker" --once || exit 1; done

soak: need-cargo ## all tests and the long ones: minutes of absence, a million histories, the tables of the README, and everything in bulk
	@deploy/local/install.sh redis-server postgresql openssl
	@DAPRD="$$(deploy/local/find-daprd.sh)" && export DAPRD && \
	cargo test --features failpoints,soak -- --nocapture && \
	BACKSTOP_ORDERS_BULK=on cargo test --features failpoints --test e2e -- --nocapture

fuzz: need-cargo ## a minute of fuzzing for each target; needs a nightly compiler
	fuzz/run.sh 60

lint: need-cargo ## formatting and clippy, warnings are errors
	cargo fmt --check
	cargo clippy --all-targets -- -D warnings

doc: need-cargo ## the documentation, broken links are errors
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps

bench: bench-build ## measure against the peers, about half an hour [ARGS='--list'; bench/README.md]
	@DAPRD="$$(deploy/local/find-daprd.sh)" && export DAPRD && \
	exec cargo run --manifest-path bench/Cargo.toml --release --locked --quiet --bin run -- $(ARGS)

bench-smoke: bench-build ## every cell of the benchmark once and short, about ten minutes
	@DAPRD="$$(deploy/local/find-daprd.sh)" && export DAPRD && \
	exec cargo run --manifest-path bench/Cargo.toml --release --locked --quiet --bin run -- --smoke $(ARGS)

bench-gate: need-cargo ## fail when an event costs more CPU than it may; most of the time is compiling
	@deploy/local/install.sh gcc postgresql
	@bench/build.sh gate
	@cd bench && exec cargo run --profile gate --locked --quiet --bin run -- --gate

bench-build: need-cargo
	@deploy/local/install.sh gcc redis-server postgresql nodejs npm
	@bench/build.sh

clean-run: ## forget what `make run` kept: its database and logs
	rm -rf .run

need-cargo:
	@command -v cargo >/dev/null || { \
		echo "There is no cargo here. Install Rust (https://rustup.rs) and run this again;"; \
		echo "the right version then comes by itself (rust-toolchain.toml)."; \
		exit 1; } >&2

need-broker:
	@case " $(BROKERS) " in *" $(BROKER) "*) ;; *) \
		echo "BROKER=$(BROKER) is not known. It is one of: $(BROKERS)" >&2; exit 1;; esac
