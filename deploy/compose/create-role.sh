#!/bin/sh
# Runs once, when the server initializes its data: creates the role that workers log in as, with its password. Where it
# is missing, migrations create it without a password.
set -eu
psql --set ON_ERROR_STOP=1 --username postgres --dbname firsttoken --set password="$(cat /run/secrets/app.password)" <<'SQL'
create role firsttoken_app login nosuperuser nobypassrls nocreatedb nocreaterole password :'password';
SQL
