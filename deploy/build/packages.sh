#!/bin/sh
# Installs what a stage of the image needs of the distribution. Usage: packages.sh build|run; APT_OPTIONS=--simulate only shows it.
set -eu
case ${1:-} in
    # Java: the build fetches and warms what a JVM reads. procps: Spark's scripts ask ps.
    build | run) packages="openjdk-17-jre-headless procps" ;;
    *)
        printf 'usage: packages.sh build|run\n' >&2
        exit 2
        ;;
esac
export DEBIAN_FRONTEND=noninteractive
[ -n "${APT_OPTIONS:-}" ] || apt-get update -qq
# Debian keeps only the newest version of a package, so a pinned one breaks the build on the next security fix.
# shellcheck disable=SC2086
apt-get install -y -qq --no-install-recommends ${APT_OPTIONS:-} $packages
[ -n "${APT_OPTIONS:-}" ] || rm -rf /var/lib/apt/lists/*
