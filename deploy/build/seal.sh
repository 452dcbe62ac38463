#!/bin/sh
# Leaves of an installation only what runs, and nothing of it that anybody may write. Usage: seal.sh PREFIX
set -eu
[ -f "${1:?usage: seal.sh PREFIX}/.tidemark" ] || {
    printf '%s: is no installation of Tidemark\n  fix: Run install.sh first\n' "$1" >&2
    exit 2
}
# Byte code is written now, at run time nobody may; that of libraries came with them.
"$1/venv/bin/python" -m compileall -q "$1/app"
# The program is imported once more before the seal, so that a part that was left out stops the build.
(cd / && DAGSTER_DISABLE_TELEMETRY=1 "$1/venv/bin/python" -c "import pipeline_assets.definitions; pipeline_assets.definitions.defs")
chmod -R a-w,a+rX "$1"
