#!/bin/sh
# Starts the Dagster webserver and daemon together, for this machine alone; when one stops, so does the other.
# READ_ONLY=1: the webserver alone, on which nobody can start or change anything.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
DAGSTER_HOME=${DAGSTER_HOME:-$PWD/data/dagster_home}
export DAGSTER_HOME
# Runs and logs are nobody else's to read, unless somebody made the folder so.
[ -d "$DAGSTER_HOME" ] || { mkdir -p "$DAGSTER_HOME" && chmod 700 "$DAGSTER_HOME"; }
[ -f "$DAGSTER_HOME/dagster.yaml" ] || cp dagster.yaml "$DAGSTER_HOME/dagster.yaml"
port=${PORT:-3000}
if [ -n "${READ_ONLY:-}" ]; then
    printf 'Dagster, to look at only: http://127.0.0.1:%s (Ctrl-C stops it)\n' "$port"
    exec "$bin/dagster-webserver" -w workspace.yaml -h 127.0.0.1 -p "$port" --read-only
fi
# A pool is not enforced on its first dequeue unless it exists already.
"$bin/dagster" instance concurrency set tidemark_load 1 >/dev/null
"$bin/dagster-daemon" run -w workspace.yaml &
daemon=$!
"$bin/dagster-webserver" -w workspace.yaml -h 127.0.0.1 -p "$port" &
webserver=$!
stop() {
    trap - INT TERM EXIT
    kill "$daemon" "$webserver" 2>/dev/null || true
    wait
}
trap 'stop; exit 0' INT TERM
trap stop EXIT
printf 'Dagster: http://127.0.0.1:%s/locations/tidemark/asset-groups/events (Ctrl-C stops it)\n' "$port"
while kill -0 "$daemon" 2>/dev/null && kill -0 "$webserver" 2>/dev/null; do sleep 1; done
printf 'The webserver or the daemon stopped; see its last lines above.\n' >&2
exit 1
