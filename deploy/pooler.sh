#!/bin/sh
# Prints the path of pgbouncer, for the tests of the database. If there is none, root installs Debian's package.
set -eu
PATH="$PATH:/usr/sbin:/usr/local/sbin"

command -v pgbouncer && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing pgbouncer for the database tests" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # The service of the package is not used: each test starts its own.
    if { apt-get update && apt-get install -y --no-install-recommends pgbouncer; } >"$log" 2>&1; then
        rm -f "$log"
        command -v pgbouncer && exit 0
    else
        tail -n 5 "$log" >&2
    fi
fi

echo "The database tests need pgbouncer. Debian: apt-get install pgbouncer; macOS: brew install pgbouncer." >&2
exit 1
