#!/bin/sh
# Prints the path of Chromium, for the tests of the web pages. If there is none, root installs Debian's package.
set -eu

find_browser() {
    for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable chrome; do
        command -v "$name" && return 0
    done
    return 1
}

find_browser && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Chromium for the web page tests" >&2
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    install="apt-get install -y --no-install-recommends fonts-dejavu-core"
    if { apt-get update && { $install chromium-headless-shell || $install chromium; }; } >"$log" 2>&1; then
        rm -f "$log"
        find_browser && exit 0
    else
        tail -n 5 "$log" >&2
    fi
fi

echo "The web page tests need Chromium on PATH. Debian: apt-get install chromium; macOS: brew install chromium;" >&2
echo "or link any Chrome as chromium in a folder on PATH." >&2
exit 1
