#!/bin/sh
# Writes the passwords that pgbouncer accepts to its tmpfs, then starts it.
set -eu
umask 077
printf '"firsttoken_app" "%s"\n' "$(cat /run/secrets/app.password)" >/tmp/users
exec pgbouncer /etc/pgbouncer/pgbouncer.ini
