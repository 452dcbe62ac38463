#!/bin/sh
# What a container of Tidemark does: code-server, webserver, daemon, spark-master, spark-worker, or any command (tidemark …).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/environment.sh"
: "${DAGSTER_HOME:?names no folder; give the container a volume that Dagster may write to}"
mkdir -p "$DAGSTER_HOME"
# Not the folder that it starts in: what lies there may be called as our packages are.
app=$(dirname "$here")/app
instance=$DAGSTER_HOME/dagster.yaml
mark='# Written by the container at its start. Take this line away, and the file is yours and stays as it is.'
is_ours() {
    [ ! -e "$instance" ] || [ "$(head -n 1 "$instance")" = "$mark" ] || cmp -s "$instance" "$app/dagster.yaml"
}
write_instance() {
    # Containers that share the folder have processes of the same number.
    written=$(mktemp "$DAGSTER_HOME/.dagster.yaml.XXXXXX")
    { printf '%s\n' "$mark" && cat "$1"; } >"$written"
    mv "$written" "$instance"
}
# With a database, runs and events are kept there; a command alone may do without.
if [ -n "${DAGSTER_POSTGRES_URL:-}" ]; then
    if is_ours; then
        if [ -e "$instance" ] && ! grep -q '^storage:' "$instance"; then
            printf '%s: runs and events are kept in PostgreSQL from now on; earlier ones stay in %s\n' "$instance" "$DAGSTER_HOME" >&2
        fi
        write_instance "$here/dagster.yaml"
    elif ! grep -q DAGSTER_POSTGRES_URL "$instance"; then
        printf '%s: does not name DAGSTER_POSTGRES_URL, which is set\n' "$instance" >&2
        printf '  fix: Name it there as %s does, or unset it where runs and events are kept elsewhere\n' "$here/dagster.yaml" >&2
        exit 2
    fi
elif [ ! -e "$instance" ]; then
    write_instance "$app/dagster.yaml"
fi
bind=${BIND_ADDRESS:-0.0.0.0}
case ${1:-code-server} in
    code-server)
        exec dagster code-server start -h "$bind" -p "${CODE_SERVER_PORT:-4000}" -m pipeline_assets.definitions -a defs -d "$app"
        ;;
    webserver)
        exec dagster-webserver -w "$here/workspace.yaml" -h "$bind" -p "${WEBSERVER_PORT:-3000}"
        ;;
    daemon)
        # A pool is not enforced on its first dequeue unless it exists already.
        dagster instance concurrency set tidemark_load 1
        exec dagster-daemon run -w "$here/workspace.yaml"
        ;;
    spark-master)
        exec spark-class org.apache.spark.deploy.master.Master --host "$(hostname)" --port 7077 --webui-port 8080
        ;;
    spark-worker)
        exec spark-class org.apache.spark.deploy.worker.Worker --webui-port 8081 --work-dir /tmp/spark-work \
            "${SPARK_MASTER_URL:?names no master: spark://host:7077}"
        ;;
    *) exec "$@" ;;
esac
