# What every command in a container finds; read by entrypoint.sh and health.sh, which say in `here` where they lie.
PATH=$(dirname "${here:?}")/venv/bin:$PATH
export PATH
case ${DAGSTER_POSTGRES_URL:-} in
    # A URL without a driver means another one than the one that is installed.
    postgresql://*) export DAGSTER_POSTGRES_URL="postgresql+psycopg2://${DAGSTER_POSTGRES_URL#postgresql://}" ;;
esac
# Kubernetes says so in every pod where a service of such a name is: an address, which is no port.
case ${CODE_SERVER_PORT:-} in *://*) export CODE_SERVER_PORT=4000 ;; esac
case ${WEBSERVER_PORT:-} in *://*) unset WEBSERVER_PORT ;; esac
case ${SPARK_MASTER_PORT:-} in *://*) unset SPARK_MASTER_PORT ;; esac
case ${SPARK_WORKER_PORT:-} in *://*) unset SPARK_WORKER_PORT ;; esac
