#!/usr/bin/env bash
# Runs every fuzz target for a while: fuzz/run.sh SECONDS [SEED]
#
# Starts from the inputs kept in fuzz/corpus/ and leaves them alone; what it finds on the way is
# kept in fuzz/grown/, and an input that fails in fuzz/artifacts/. The same seed on the same grown
# inputs tries the same things.
set -euo pipefail

TOOLCHAIN="${FUZZ_TOOLCHAIN:-nightly}"
# Long enough for every rule about lengths, short enough for thousands of inputs a second.
INPUT_BYTES_MAX=4096
# One input may take this long.
INPUT_SECONDS_MAX=10

fail() {
  printf 'fuzz: %s\n' "$@" >&2
  exit 1
}

seconds="${1:-}"
seed="${2:-$((RANDOM * 32768 + RANDOM + 1))}"
[[ "$seconds" =~ ^[1-9][0-9]*$ ]] || fail "for how many seconds a target? fuzz/run.sh SECONDS [SEED]"
[[ "$seed" =~ ^[1-9][0-9]*$ ]] || fail "a seed is a whole number above 0, not '$seed'"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v rustup >/dev/null ||
  fail "there is no rustup, which brings the $TOOLCHAIN compiler. Install it: https://rustup.rs"
rustup run "$TOOLCHAIN" rustc --version >/dev/null 2>&1 ||
  fail "there is no $TOOLCHAIN compiler. Install it: rustup toolchain install $TOOLCHAIN --profile minimal"
if ! cargo fuzz --version >/dev/null 2>&1; then
  echo "fuzz: cargo-fuzz is missing; installing it with: cargo install --locked cargo-fuzz"
  cargo install --locked cargo-fuzz
fi

dictionary_of() {
  case "$1" in
    configuration) echo fuzz/dictionaries/configuration ;;
    *) echo fuzz/dictionaries/event ;;
  esac
}

for target in envelope batch configuration; do
  echo "fuzz: $target for $seconds s, seed $seed"
  mkdir -p "fuzz/grown/$target"
  # Without the address sanitizer: none of the code tried here is unsafe, and without it more
  # inputs are tried.
  cargo "+$TOOLCHAIN" fuzz run --sanitizer none "$target" "fuzz/grown/$target" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -seed="$seed" -max_len="$INPUT_BYTES_MAX" \
    -timeout="$INPUT_SECONDS_MAX" -dict="$(dictionary_of "$target")" -verbosity=0 -print_final_stats=1 ||
    fail "$target failed with seed $seed; the input is in fuzz/artifacts/$target"
done
