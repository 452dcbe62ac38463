#!/bin/sh
# Installs Tidemark into a folder of its own: the locked packages, the program, the verified jars, the entry points.
# Usage: install.sh PREFIX. PYTHON names the interpreter; UV names a uv that installs in place of pip, by the same sums;
# JARS names a folder of jars that are fetched already, and verified like any other.
set -eu
[ "$#" -eq 1 ] || {
    printf 'usage: install.sh PREFIX\n' >&2
    exit 2
}
prefix=$1
source=$(cd "$(dirname "$0")/../.." && pwd)
case $prefix in
    /*) ;;
    *)
        printf '%s: is no absolute path\n  fix: Name the folder from / on; the programs in it keep its name\n' "$prefix" >&2
        exit 2
        ;;
esac
if [ -e "$prefix" ] && [ -n "$(ls -A "$prefix")" ] && [ ! -f "$prefix/.tidemark" ]; then
    printf '%s: holds files, and none says that Tidemark was installed there\n  fix: Name an empty folder\n' "$prefix" >&2
    exit 2
fi
python=$(sh "$source/deploy/preflight.sh")
mkdir -p "$prefix/app" "$prefix/bin"
touch "$prefix/.tidemark"

for part in pipeline_assets resources sample_export pyproject.toml README.md LICENSE dagster.yaml; do
    rm -rf "${prefix:?}/app/$part"
    # Files of a new deployment are links in a clone, to what does not come along.
    cp -RL "$source/$part" "$prefix/app/$part"
done
for part in entrypoint.sh health.sh environment.sh dagster.yaml workspace.yaml; do
    cp "$source/deploy/container/$part" "$prefix/bin/$part"
done
chmod 0755 "$prefix/bin/entrypoint.sh" "$prefix/bin/health.sh"

if [ -n "${UV:-}" ]; then
    [ -x "$prefix/venv/bin/python" ] || "$UV" venv --quiet --python "$python" "$prefix/venv"
    export VIRTUAL_ENV="$prefix/venv" UV_COMPILE_BYTECODE="${UV_COMPILE_BYTECODE:-1}"
    install() { "$UV" pip install --quiet --link-mode copy --no-deps "$@"; }
else
    [ -x "$prefix/venv/bin/python" ] || "$python" -m venv "$prefix/venv"
    install() { "$prefix/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps "$@"; }
fi
install --require-hashes -r "$source/deploy/build/requirements.lock"
install --no-build-isolation -e "$prefix/app"

mkdir -p "$prefix/app/.jars"
if [ -n "${JARS:-}" ]; then cp "$JARS"/*.jar "$prefix/app/.jars/"; fi
(cd "$prefix/app" && "$prefix/venv/bin/python" -m resources.spark.jars)
