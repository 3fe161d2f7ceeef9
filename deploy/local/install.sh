#!/usr/bin/env bash
# Installs the Debian packages named as arguments, those that are missing:
#
#   deploy/local/install.sh redis-server
#
# A server package is only wanted for its program: tests and `make run` start
# their own instance on their own port. So the service that the package brings is
# neither started now nor at the next boot.
set -euo pipefail

say() { printf 'install: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

[ $# -gt 0 ] || fail "which package? For example: $0 redis-server"

missing=()
for package in "$@"; do
    # Servers are named like their package; the program may also come from elsewhere.
    if command -v "$package" >/dev/null; then continue; fi
    if dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii'; then continue; fi
    missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || fail "missing: ${missing[*]}. This is not a Debian or Ubuntu (no apt-get):
  install it with the package manager of this system and run this again."

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "missing: ${missing[*]}. As root run: apt-get install ${missing[*]}"
    as_root=(sudo)
    say "sudo is used, and may ask for your password"
fi
root() { ${as_root[@]+"${as_root[@]}"} "$@"; }

# The scripts of a package ask this program before they start its service; 101 says no.
# One that is here already is somebody's own decision and stays.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'root rm -f "$policy"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null
    root chmod 755 "$policy"
fi

get() { root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends "${missing[@]}" >&2; }
say "installing ${missing[*]} with apt-get"
if ! get; then
    say "that failed; fetching the package lists and trying again"
    root apt-get update >&2
    get || fail "apt-get could not install ${missing[*]}; the reason is above"
fi

if command -v systemctl >/dev/null; then
    for package in "${missing[@]}"; do
        for unit in $(dpkg -L "$package" | sed -n 's|.*/systemd/system/\([^/@]*\.service\)$|\1|p'); do
            root systemctl disable --quiet "$unit" 2>/dev/null || true
            # Only where systemd runs, and only if the policy above was not ours.
            if [ -d /run/systemd/system ]; then root systemctl stop "$unit" || true; fi
            say "$unit is installed, but not started and not enabled"
        done
    done
fi
