#!/bin/sh
# The passwords that pgbouncer knows, in its own memory file system.
set -eu
umask 077
printf '"firsttoken_app" "%s"\n' "$(cat /run/secrets/app.password)" >/tmp/users
exec pgbouncer /etc/pgbouncer/pgbouncer.ini
