#!/bin/sh
# Makes buckets, and the user whose keys Tidemark has, with the rights of deploy/policies/. Reads MC_HOST_here (an administrator's),
# OBJECTS_USER, OBJECTS_PASSWORD; POLICIES names another folder. Needs nothing but a shell and mc.
set -eu
policies=${POLICIES:-/policies}

# Usage: replaced TEXT OLD NEW
replaced() {
    rest=$1 made=
    while :; do
        case $rest in
            *"$2"*) made=$made${rest%%"$2"*}$3 rest=${rest#*"$2"} ;;
            *) break ;;
        esac
    done
    printf '%s' "$made$rest"
}

# The files name the places of a company: here landing/exports, and warehouse/tidemark.
policy() {
    while IFS= read -r line || [ -n "$line" ]; do
        line=$(replaced "$line" company-exports landing)
        line=$(replaced "$line" analytics/ exports/)
        printf '%s\n' "$(replaced "$line" company-lake warehouse)"
    done <"$policies/s3-$1.json"
}

# Usage: allow WORK
allow() {
    file=${TMPDIR:-/tmp}/s3-$1.json
    policy "$1" >"$file"
    mc admin policy create here "tidemark-$1" "$file"
    # One that is attached already is refused by some versions.
    mc admin policy attach here "tidemark-$1" --user "$OBJECTS_USER" || case $(mc admin user info here "$OBJECTS_USER") in
        *"tidemark-$1"*) ;;
        *) exit 1 ;;
    esac
}

mc mb --ignore-existing here/landing here/warehouse
# Both keys by the pipe: what is on a command line is read by others.
printf '%s\n%s\n' "${OBJECTS_USER:?is not set}" "${OBJECTS_PASSWORD:?is not set}" | mc admin user add here
allow load
allow recover
