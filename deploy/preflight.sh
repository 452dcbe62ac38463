#!/bin/sh
# Checks what must be on the machine before setup: Python 3.11-3.13 with venv, and Java 17 or 21.
# Prints the interpreter to use on standard output; names what is missing or wrong, with the cure, on standard error.
set -u
fail=0
complain() {
    printf '%s\n  fix: %s\n' "$1" "$2" >&2
    fail=1
}

python=""
found=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    case "$version" in
        3.11 | 3.12 | 3.13)
            python=$candidate
            break
            ;;
        *) found="${found:+$found, }$candidate is $version" ;;
    esac
done
if [ -z "$python" ]; then
    complain "No Python 3.11, 3.12 or 3.13 was found${found:+ ($found)}." \
        "Install one (on Debian 12: apt-get install python3 python3-venv), or name it: make setup PYTHON=/path/to/python3.11"
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    complain "$python has no venv module." "Install it (on Debian: apt-get install python3-venv)"
fi

java=java
[ -n "${JAVA_HOME:-}" ] && java="$JAVA_HOME/bin/java"
if ! command -v "$java" >/dev/null 2>&1; then
    if [ -n "${JAVA_HOME:-}" ]; then
        complain "JAVA_HOME is $JAVA_HOME, but there is no bin/java in it." "Set it to a Java 17 or 21, or unset it"
    else
        complain "No Java was found." "Install Java 17 or 21 (on Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    fi
else
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    case "$version" in
        17 | 21) ;;
        *) complain "$java is ${version:-of an unknown version}, but Spark needs 17 or 21." \
            "Install Java 17 or 21 and set JAVA_HOME to it" ;;
    esac
fi
[ "$fail" -eq 0 ] && printf '%s\n' "$python"
exit "$fail"
