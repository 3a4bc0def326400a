#!/bin/sh
# Prints the path of haproxy, for the tests of deploy/haproxy.cfg. If there is none, root installs Debian's package.
set -eu
PATH="$PATH:/usr/sbin:/usr/local/sbin"

command -v haproxy && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing HAProxy for the load balancer tests" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # The service of the package is not used: each test starts its own.
    if { apt-get update && apt-get install -y --no-install-recommends haproxy; } >"$log" 2>&1; then
        rm -f "$log"
        command -v haproxy && exit 0
    else
        tail -n 5 "$log" >&2
    fi
fi

echo "The load balancer tests need HAProxy. Debian: apt-get install haproxy; macOS: brew install haproxy." >&2
exit 1
