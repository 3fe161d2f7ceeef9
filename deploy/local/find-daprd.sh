#!/usr/bin/env bash
# Prints the path of a daprd on stdout; everything else goes to stderr.
#
#   DAPRD=$(deploy/local/find-daprd.sh)
#
# The first of these that exists: $DAPRD, ~/.dapr/bin/daprd (made by `dapr init`),
# daprd on PATH, a build of deploy/local/daprd in the cache. If there is none,
# that build is made, once.
set -euo pipefail

say() { printf 'find-daprd: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

module=$(cd "$(dirname "${BASH_SOURCE[0]}")/daprd" && pwd)
# go.mod is the one place that says which version.
version=$(sed -n 's/^[[:space:]]*github\.com\/dapr\/dapr v\([0-9.]*\).*/\1/p' "$module/go.mod")

found() {
    local its_version
    its_version=$("$1" --version 2>/dev/null | tail -n 1) || fail "$1 does not run (tried: $1 --version)"
    if [ "$its_version" = "$version" ]; then
        say "using $1 (version $its_version)"
    else
        say "using $1 (version $its_version; the component files were tried with $version)"
    fi
    printf '%s\n' "$1"
    exit 0
}

if [ -n "${DAPRD:-}" ]; then
    # Chosen on purpose: never replaced by another one in silence.
    path=$(command -v -- "$DAPRD") || fail "DAPRD=$DAPRD is not an executable file. Correct it or unset it."
    found "$path"
fi
if [ -x "$HOME/.dapr/bin/daprd" ]; then found "$HOME/.dapr/bin/daprd"; fi
if path=$(command -v daprd); then found "$path"; fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/backstop
# The key covers the sources, so that a changed module is built again.
key=$(cat "$module/main.go" "$module/go.mod" "$module/go.sum" | cksum | cut -d ' ' -f 1)
binary=$cache/daprd-$version-$key
if [ -x "$binary" ]; then found "$binary"; fi

command -v go >/dev/null || fail "there is no daprd here and no Go to build one.
  Do one of these:
    install Go $(sed -n 's/^go //p' "$module/go.mod") or later (https://go.dev/doc/install) and run this again
    install the Dapr CLI and run: dapr init --slim
    set DAPRD to the path of a daprd that you have"

mkdir -p "$cache"
# Two callers build once: the second waits and finds the first one's result.
# Where there is no flock both build, which costs time only: the rename is atomic.
if command -v flock >/dev/null; then
    exec 9>"$cache/daprd.lock"
    if ! flock --nonblock 9; then
        say "another build is running, waiting for it"
        flock 9
    fi
    if [ -x "$binary" ]; then found "$binary"; fi
    rm -f "$cache"/daprd-*.part.* # left by a build that was killed
fi

part=$binary.part.$$
trap 'rm -f "$part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
say "no daprd found: building $version from $module, once."
say "This takes about 5 minutes on 2 cores, plus the download of its modules; the result is kept in $cache"
start=$SECONDS
# GOWORK and -mod: nothing around the module or in the environment changes what is built.
# 9>&-: the lock ends with this script, whatever go leaves running.
(
    cd "$module"
    CGO_ENABLED=0 GOWORK=off go build -mod=readonly -buildvcs=false -trimpath \
        -ldflags "-s -w \
            -X github.com/dapr/dapr/pkg/buildinfo.version=$version \
            -X github.com/dapr/kit/logger.DaprVersion=$version" \
        -o "$part" . 9>&- >&2
) || fail "the build failed after $((SECONDS - start)) s; the reason is above. It needs Go $(sed -n 's/^go //p' "$module/go.mod") or later and a way to fetch Go modules."
mv -f "$part" "$binary"
say "built in $((SECONDS - start)) s"
found "$binary"
