#!/bin/sh
# Install what some tests need beside Python packages, where this is root on Debian or Ubuntu; elsewhere say what is missing:
# the tests that need it are skipped and say so, too.
set -eu
cd "$(dirname "$0")/.."
missing=
for pair in chromium:chromium promtool:prometheus haproxy:haproxy ip:iproute2 curl:curl wrk:wrk ab:apache2-utils; do # program:package
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0
without() { echo "note: some tests will be skipped without:$missing" >&2; exit 0; }
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || without
echo "Installing for the tests:$missing"
mkdir -p .slotwise
install() { RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } # starts nothing
{ install || { apt-get update -qq && install; }; } >.slotwise/test-tools.log 2>&1 </dev/null || without
