# Sourced by ./run and ./test (plain sh): finds what building and running needs, and puts it on PATH.
# The caller has set $root, the folder of the checkout. Touches nothing if all is there. If something is missing, it is
# installed where that is safe to do (root, with apt-get); everywhere else the command to type is printed, and that is all.

postgres_at_least=15

say() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

have() {
    command -v "$1" >/dev/null 2>&1
}

# Succeeds if the folder $1 holds a PostgreSQL server that is new enough.
is_postgres_bin() {
    [ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
    # "postgres (PostgreSQL) 15.18 (Debian …)", "… 17beta1": the digits in front are the major version.
    major=$("$1/postgres" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
    [ "${major:-0}" -ge "$postgres_at_least" ]
}

# Prints the folder of the PostgreSQL programs. Debian keeps them off PATH, so its folders are looked at too.
postgres_bin() {
    if have pg_config && is_postgres_bin "$(pg_config --bindir)"; then
        pg_config --bindir
        return 0
    fi
    for dir in "$(dirname "$(command -v postgres || echo /none/postgres)")" /usr/lib/postgresql/*/bin /usr/pgsql-*/bin \
        /usr/local/pgsql/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin; do
        if is_postgres_bin "$dir"; then
            printf '%s\n' "$dir"
            return 0
        fi
    done
    return 1
}

# Prints what is missing, as words of $packages_of.
missing_parts() {
    have git || echo git
    have cc || have gcc || have clang || echo compiler
    postgres_bin >/dev/null || echo postgresql
}

packages_of() {
    for part in "$@"; do
        case $part in
        git) echo git ;;
        compiler) echo gcc libc6-dev ;;
        postgresql) echo postgresql ;;
        esac
    done
}

# Installs with apt-get. PostgreSQL's programs are wanted, not a server that runs beside ours: Debian's packages make and
# start a cluster unless createcluster.conf says otherwise before the server package comes.
install_with_apt() {
    say "installing with apt-get: $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    case " $* " in
    *" postgresql "*)
        # This package brings the file, and must be there before the one that reads it.
        apt-get install -y -qq --no-install-recommends postgresql-common >&2
        clusters=/etc/postgresql-common/createcluster.conf
        if ! grep -qs '^ *create_main_cluster' "$clusters"; then
            say "telling postgresql-common not to create a cluster ($clusters)"
            mkdir -p "${clusters%/*}"
            echo 'create_main_cluster = false' >>"$clusters"
        fi
        ;;
    esac
    apt-get install -y -qq --no-install-recommends "$@" >&2
}

# What to type, for the people who have to do it themselves.
explain_missing() {
    say "missing: $*"
    # Word splitting is wanted: these are lists of plain words.
    # shellcheck disable=SC2046
    set -- $(packages_of "$@")
    if have apt-get; then
        say "type:  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
    elif have dnf; then
        say "type:  sudo dnf install -y $(echo "$*" | sed 's/libc6-dev/glibc-devel/; s/postgresql/postgresql-server/')"
    elif have pacman; then
        say "type:  sudo pacman -S --needed $(echo "$*" | sed 's/libc6-dev//')"
    elif have apk; then
        say "type:  sudo apk add $(echo "$*" | sed 's/libc6-dev/musl-dev/; s/postgresql/postgresql16/')"
    elif have brew; then
        say "type:  brew install git postgresql@17; a compiler comes with xcode-select --install"
    else
        say "install git, a C compiler and PostgreSQL $postgres_at_least or newer (its server programs), then start this again"
    fi
    case " $* " in
    *" postgresql "*)
        say "needed is PostgreSQL $postgres_at_least or newer; if your system has only an older one, see https://www.postgresql.org/download/"
        ;;
    esac
}

find_cargo() {
    have cargo || PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"
    have cargo && return 0
    say "missing: cargo, the build tool of Rust"
    say "type:  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"
    return 1
}

prepare() {
    # Cargo is never installed here: it belongs to the user, not to the system.
    find_cargo || exit 1
    parts=$(missing_parts)
    # Word splitting is wanted here too.
    # shellcheck disable=SC2046,SC2086
    if [ -n "$parts" ] && have apt-get && [ "$(id -u)" = 0 ]; then
        install_with_apt $(packages_of $parts) || say "apt-get did not get through"
        hash -r
        parts=$(missing_parts)
    fi
    if [ -n "$parts" ]; then
        # shellcheck disable=SC2086
        explain_missing $parts
        exit 1
    fi
    PATH="$PATH:$(postgres_bin)"
    # A checkout that belongs to somebody else can still be built, beside it.
    if [ -z "${CARGO_TARGET_DIR:-}" ] && [ ! -w "$root/target" ] && { [ -e "$root/target" ] || [ ! -w "$root" ]; }; then
        CARGO_TARGET_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/surehook/target"
        export CARGO_TARGET_DIR
        say "this checkout is not yours to write: building in $CARGO_TARGET_DIR"
    fi
    export PATH
}

# Debian keeps it where only root's PATH looks.
have_pgbouncer() {
    have pgbouncer || [ -x /usr/sbin/pgbouncer ]
}

# What some tests need beside that: an SSH server, gitolite, promtool and pgbouncer. Without them these tests say that they were not run.
prepare_tests() {
    set --
    { [ -x /usr/sbin/sshd ] && have ssh; } || set -- openssh-server openssh-client
    have gitolite || set -- "$@" gitolite3
    have promtool || set -- "$@" prometheus
    have_pgbouncer || set -- "$@" pgbouncer
    [ $# -gt 0 ] || return 0
    if have apt-get && [ "$(id -u)" = 0 ]; then
        # The tests start servers of their own: none of the system's is to come up because of them. Debian asks this file.
        policy=/usr/sbin/policy-rc.d
        ours=
        if [ ! -e "$policy" ]; then
            ours=yes
            printf '#!/bin/sh\nexit 101\n' >"$policy"
            chmod 755 "$policy"
        fi
        install_with_apt "$@" || say "apt-get did not get through"
        [ -z "$ours" ] || rm -f "$policy"
        hash -r
    fi
    { [ -x /usr/sbin/sshd ] && have ssh && have gitolite && have promtool && have_pgbouncer; } && return 0
    say "tests over SSH, with gitolite, with promtool and with pgbouncer will not be run where these are missing: $*"
    if have apt-get; then
        say "type:  sudo apt-get install -y --no-install-recommends openssh-server openssh-client gitolite3 prometheus pgbouncer"
        say "       (their servers are not needed:  sudo systemctl disable --now ssh prometheus pgbouncer)"
    else
        say "install OpenSSH's server and client, gitolite 3, Prometheus' promtool, and pgbouncer"
    fi
}

# Prints the folder that cargo builds into, wherever its settings put it. Call it from the checkout.
target_dir() {
    cargo metadata --no-deps --format-version 1 --locked | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}
