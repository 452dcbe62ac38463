#!/bin/sh
# Loads a day of its own into a folder that it removes: proof that the installation works, and classes that a JVM starts faster with.
# Usage: warm.sh PREFIX
set -eu
[ -f "${1:?usage: warm.sh PREFIX}/.tidemark" ] || {
    printf '%s: is no installation of Tidemark\n  fix: Run install.sh first\n' "$1" >&2
    exit 2
}
cd "$1/app"
PATH=$1/venv/bin:$PATH "$1/venv/bin/python" -m resources.spark.jars classes
test -s .jars/classes.jsa
