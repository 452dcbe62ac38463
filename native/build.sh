#!/bin/sh
# Builds the scanner and puts it where the Python of a virtual environment looks for it. Usage: build.sh ENVIRONMENT
# Everything gives the same without it, only slower, so what fails here is said in one line and stops nothing.
set -u
[ "$#" -eq 1 ] || {
    printf 'usage: build.sh ENVIRONMENT\n' >&2
    exit 2
}
source=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$source/target}
without() {
    printf 'No native scanner: %s. Lines are parsed by Python, with the same result.\n' "$1"
    exit 0
}
command -v cargo >/dev/null 2>&1 || without "there is no cargo"
errors=$(cargo build --quiet --release --offline --locked --manifest-path "$source/Cargo.toml" --target-dir "$target" 2>&1) ||
    without "cargo build failed ($(printf "%s" "$errors" | head -n 1))"
for library in "$target"/release/libtidemark_native.so "$target"/release/libtidemark_native.dylib; do
    [ -f "$library" ] || continue
    folder=$1/lib/tidemark
    # Renamed into its place, because a process may have the former file mapped.
    mkdir -p "$folder" && cp "$library" "$folder/.new.$$" && mv -f "$folder/.new.$$" "$folder/$(basename "$library")" && exit 0
    without "$folder cannot be written"
done
without "cargo built no library that Python loads here"
