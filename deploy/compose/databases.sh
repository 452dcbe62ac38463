#!/bin/sh
# Makes databases and roles by deploy/policies/, where they are not there yet, and sets the roles' passwords.
# Reads PGHOST, PGUSER and PGPASSWORD of an administrator, CATALOG_PASSWORD, DAGSTER_PASSWORD; POLICIES names another folder.
set -eu
policies=${POLICIES:-/policies}

is_there() {
    [ "$(psql -X -d postgres -tAc "SELECT 1 FROM $1 WHERE $2 = '$3'")" = 1 ]
}

# Usage: make NAME FILE VARIABLE. The role is made in one transaction with its rights, so one that is there has them.
make() {
    is_there pg_database datname "$1" || createdb "$1"
    is_there pg_roles rolname "$1" || psql -X -q -v ON_ERROR_STOP=1 --single-transaction -d "$1" -f "$policies/$2"
    # The password comes from the environment, and stands on no command line.
    printf '\\getenv password %s\nALTER ROLE %s PASSWORD :%s;\n' "$3" "$1" "'password'" |
        psql -X -q -v ON_ERROR_STOP=1 -d "$1" -f -
}

: "${CATALOG_PASSWORD:?is not set}" "${DAGSTER_PASSWORD:?is not set}"
make tidemark postgresql.sql CATALOG_PASSWORD
make dagster postgresql-dagster.sql DAGSTER_PASSWORD
