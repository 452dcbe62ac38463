#!/bin/sh
# What a container of Tidemark does: code-server, webserver, daemon, spark-master, spark-worker, or any command (tidemark …).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/environment.sh"
: "${DAGSTER_HOME:?names no folder; give the container a volume that Dagster may write to}"
mkdir -p "$DAGSTER_HOME"
if [ ! -f "$DAGSTER_HOME/dagster.yaml" ]; then
    # With a database, runs and events are kept there; a command alone may do without.
    if [ -n "${DAGSTER_POSTGRES_URL:-}" ]; then config=$here/dagster.yaml; else config=$(dirname "$here")/app/dagster.yaml; fi
    cat "$config" >"$DAGSTER_HOME/dagster.yaml.$$"
    mv "$DAGSTER_HOME/dagster.yaml.$$" "$DAGSTER_HOME/dagster.yaml"
fi
# Not the folder that it starts in: what lies there may be called as our packages are.
app=$(dirname "$here")/app
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
