#!/bin/sh
# Creates the missing secrets of deploy/compose.yaml. Containers read them as other users, so every user may read the
# files, and the folder keeps everyone else on this machine out.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)/secrets
mkdir -p "$folder"
chmod 700 "$folder"
for name in owner.password app.password engines.token secret grafana.password; do
    [ -s "$folder/$name" ] || openssl rand -hex 32 >"$folder/$name"
done
# For an operator's API key, see docs/scale.md: Prometheus cannot scrape workers without one.
[ -e "$folder/metrics.key" ] || : >"$folder/metrics.key"
chmod 644 "$folder"/*
