#!/bin/sh
# Runs the tour of README.md as a reader would type it: every fenced `sh` block whose first line is `# tour`, in one shell,
# in order, with `surehook` on PATH. Home and data are fresh folders that are removed; what the tour started is ended.
# The tour can rely on: the checkout as working folder at the start, $HOME, $SUREHOOK_DATA, git with a name and an address.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/scripts/prepare.sh"
time_limit_s=300

prepare
cd "$root"
cargo build --locked --quiet --package surehook
bin=$(target_dir)/debug
# Not below a private folder: as root, PostgreSQL runs under an account of its own and must get there.
scratch=$(mktemp -d "/var/tmp/surehook-tour.XXXXXX")
chmod 755 "$scratch"
mkdir "$scratch/home"

session=
# A tour runs in a session of its own, so that all it started can be found and ended, also what it left behind on purpose.
end_session() {
    [ -n "$session" ] || return 0
    for signal in TERM KILL; do
        tries=0
        pkill -"$signal" -s "$session" 2>/dev/null || return 0
        while pgrep -s "$session" >/dev/null 2>&1 && [ "$tries" -lt 30 ]; do
            tries=$((tries + 1))
            sleep 1
        done
    done
}
trap 'end_session; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

awk '
    /^```sh[ \t]*$/ { inside = 1; first = 1; next }
    /^```/          { inside = 0; tour = 0; next }
    inside && first { first = 0; tour = ($0 == "# tour"); next }
    inside && tour  { print }
' README.md >"$scratch/tour.sh"
if ! grep -q . "$scratch/tour.sh"; then
    say "README.md has no tour: no fenced sh block begins with the line '# tour'"
    exit 1
fi

# rustup and cargo keep their things in the real home, for a tour that builds.
export CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}"
export HOME="$scratch/home" SUREHOOK_DATA="$scratch/data"
unset XDG_DATA_HOME XDG_CONFIG_HOME SUREHOOK_DATABASE_URL
PATH="$bin:$PATH"
export PATH
git config --global user.name "A Reader"
git config --global user.email reader@example.com
git config --global init.defaultBranch main

setsid timeout --foreground "$time_limit_s" sh -eux "$scratch/tour.sh" </dev/null &
session=$!
status=0
wait "$session" || status=$?
[ "$status" != 124 ] || say "the tour took longer than $time_limit_s s"
[ "$status" = 0 ] || say "the tour ended with exit code $status; the last command above is where it stopped"
exit "$status"
