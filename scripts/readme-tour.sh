#!/bin/sh
# Runs the tour of README.md as a reader would: all fenced blocks that begin with `# tour`, in one shell, on scratch data.
# Usage: scripts/readme-tour.sh, with surehook on the PATH.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
SUREHOOK_DATA=$(mktemp -d /var/tmp/surehook-tour-XXXXXX)
export SUREHOOK_DATA
# PostgreSQL runs under another account where we are root, and must be able to pass the folder.
chmod 755 "$SUREHOOK_DATA"
script=$(mktemp)
trap 'rm -rf "$SUREHOOK_DATA" "$script"' EXIT
awk '/^```sh$/ { inside = 1; first = 1; next }
     /^```/    { inside = 0; wanted = 0; next }
     inside && first { first = 0; wanted = ($0 == "# tour") }
     inside && wanted { print }' "$root/README.md" > "$script"
[ -s "$script" ] || { echo "README.md has no tour" >&2; exit 1; }
timeout 300 sh -eu "$script"
