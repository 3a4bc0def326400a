#!/bin/sh
# Runs once, when the server makes its data: the role by which workers log in, with its password. Migrations make one
# without a password where it is not there.
set -eu
psql --set ON_ERROR_STOP=1 --username postgres --dbname firsttoken --set password="$(cat /run/secrets/app.password)" <<'SQL'
create role firsttoken_app login nosuperuser nobypassrls nocreatedb nocreaterole password :'password';
SQL
