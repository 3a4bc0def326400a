#!/bin/sh
# Runs the program with its secrets, which are files of hexadecimal digits. `migrate` connects to the server directly;
# workers connect to the pooler, and to the server for what needs a session.
set -eu
direct="postgresql://postgres:$(cat /run/secrets/owner.password)@postgres:5432/firsttoken"
if [ "$1" = migrate ]; then
    export DATABASE_URL="$direct"
else
    app=$(cat /run/secrets/app.password)
    export DATABASE_URL="postgresql://firsttoken_app:$app@pgbouncer:6432/firsttoken"
    export FIRSTTOKEN_DATABASE_DIRECT_URL="$direct"
    FIRSTTOKEN_SECRET=$(cat /run/secrets/secret)
    export FIRSTTOKEN_SECRET
fi
exec firsttoken "$@"
