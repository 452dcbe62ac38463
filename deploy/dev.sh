#!/bin/sh
# Starts the Dagster webserver and daemon together; when one stops, so does the other.
set -eu
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin
DAGSTER_HOME=${DAGSTER_HOME:-$PWD/data/dagster_home}
export DAGSTER_HOME
mkdir -p "$DAGSTER_HOME"
[ -f "$DAGSTER_HOME/dagster.yaml" ] || cp dagster.yaml "$DAGSTER_HOME/dagster.yaml"
# A pool is not enforced on its first dequeue unless it exists already.
"$bin/dagster" instance concurrency set tidemark_load 1 >/dev/null
port=${PORT:-3000}
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
