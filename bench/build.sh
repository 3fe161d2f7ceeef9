#!/usr/bin/env bash
# Builds everything that is measured, and what measures it:
#
#   bench/build.sh         everything, for measuring
#   bench/build.sh gate    what the gate needs, quickly
#
# Our programs go to bench/target/release (or under CARGO_TARGET_DIR), the peers' to bench/peers/bin;
# the gate's to target/gate and peers/bin/gate. A peer that cannot be built is told and left out: its
# cells are then void.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

say() { printf 'bench: %s\n' "$*" >&2; }

bin=$PWD/peers/bin

if [ "${1:-}" = gate ]; then
    mkdir -p "$bin/gate"
    cargo build --profile gate --locked --bin run --bin load --bin consumer
    # Without cgo: the gate has no SQLite, and compiling that takes a minute.
    cd peers/go-pgx
    CGO_ENABLED=0 GOWORK=off go build -mod=readonly -o "$bin/gate/go-pgx" .
    exit
fi

mkdir -p "$bin"
cargo build --release --locked --bins

if (cd peers/rust-sqlx && cargo build --release --locked --target-dir "${CARGO_TARGET_DIR:-target}/rust-sqlx"); then
    cp -f "$(cd peers/rust-sqlx && realpath "${CARGO_TARGET_DIR:-target}/rust-sqlx")/release/rust-sqlx" "$bin/"
else
    say "the peer rust-sqlx was not built"
fi

if command -v go >/dev/null; then
    # cgo, so that its SQLite calls the C library's fsync, as everybody's does.
    (cd peers/go-pgx && CGO_ENABLED=1 GOWORK=off go build -mod=readonly -o "$bin/go-pgx" .) ||
        say "the peer go-pgx was not built"
else
    say "there is no Go: the peer go-pgx was not built"
fi

if command -v npm >/dev/null; then
    (cd peers/node-pg && npm ci --omit=dev --no-audit --no-fund >&2) ||
        say "the peer node-pg was not installed"
else
    say "there is no npm: the peer node-pg was not installed"
fi
