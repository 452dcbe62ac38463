#!/bin/sh
# Whether what a container does answers. Usage: health.sh code-server|webserver|daemon|spark-master|spark-worker; exits 0 or 1.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
. "$here/environment.sh"
answers() {
    python -c 'import sys, urllib.request as r; sys.exit(r.urlopen(sys.argv[1], timeout=5).status != 200)' "$1" || exit 1
}
case ${1:-code-server} in
    code-server) dagster api grpc-health-check -p "${CODE_SERVER_PORT:-4000}" >/dev/null || exit 1 ;;
    webserver) answers "http://127.0.0.1:${WEBSERVER_PORT:-3000}/server_info" ;;
    daemon) dagster-daemon liveness-check >/dev/null || exit 1 ;;
    spark-master) answers http://127.0.0.1:8080/ ;;
    spark-worker) answers http://127.0.0.1:8081/ ;;
    *)
        printf '%s: has no check of its health\n' "$1" >&2
        exit 1
        ;;
esac
