#!/bin/sh
# Makes the secrets of deploy/compose.yaml that are not there yet. Containers read them as other users: the folder keeps
# everybody else on this machine out.
set -eu
folder=$(cd "$(dirname "$0")" && pwd)/secrets
mkdir -p "$folder"
chmod 700 "$folder"
for name in owner.password app.password engines.token secret grafana.password; do
    [ -s "$folder/$name" ] || openssl rand -hex 32 >"$folder/$name"
done
# An API key of an operator, see docs/scale.md; Prometheus reads no worker without one.
[ -e "$folder/metrics.key" ] || : >"$folder/metrics.key"
chmod 644 "$folder"/*
