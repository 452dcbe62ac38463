# What every command in a container finds; read by entrypoint.sh and health.sh, which say in `here` where they lie.
PATH=$(dirname "${here:?}")/venv/bin:$PATH
export PATH
case ${DAGSTER_POSTGRES_URL:-} in
    # A URL without a driver means another one than the one that is installed.
    postgresql://*) export DAGSTER_POSTGRES_URL="postgresql+psycopg2://${DAGSTER_POSTGRES_URL#postgresql://}" ;;
esac
