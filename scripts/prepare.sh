# Sourced by ./run and ./test: finds what a build and a run need, installs what is missing where it may (Debian, Ubuntu, as
# root), else says what to type. Sets nothing but PATH; touches nothing outside of the system's packages.

say() { printf '%s\n' "$*" >&2; }

have_postgres() {
    for bin in "$(command -v postgres 2>/dev/null)" "$(pg_config --bindir 2>/dev/null)/postgres" /usr/lib/postgresql/*/bin/postgres; do
        [ -x "$bin" ] || continue
        version=$("$bin" --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
        # The tools that make and look at a cluster must lie beside it.
        [ "${version:-0}" -ge 15 ] && [ -x "$(dirname "$bin")/initdb" ] && return 0
    done
    return 1
}

# The newest server package that this release of Debian or Ubuntu has.
postgres_package() {
    apt-cache --names-only search '^postgresql-[0-9]+$' 2>/dev/null | sed 's/ .*//; s/postgresql-//' | sort -n | tail -n 1 | sed 's/^/postgresql-/'
}

install_packages() {
    say "installing: $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >&2
}

# Debian's PostgreSQL makes and starts a cluster of its own when it is installed; surehook runs its own, so it is told not to.
install_postgres() {
    install_packages postgresql-common
    mkdir -p /etc/postgresql-common
    if grep -qs '^create_main_cluster' /etc/postgresql-common/createcluster.conf; then
        : # Somebody has decided this already.
    else
        echo 'create_main_cluster = false' >> /etc/postgresql-common/createcluster.conf
    fi
    install_packages "$(postgres_package)"
}

prepare() {
    PATH="$PATH:${HOME:-/root}/.cargo/bin"
    export PATH
    missing=
    command -v cc > /dev/null || missing="$missing gcc libc6-dev"
    command -v git > /dev/null || missing="$missing git"
    command -v curl > /dev/null || missing="$missing curl"
    postgres_missing=
    have_postgres || postgres_missing=yes
    if [ -n "$missing$postgres_missing" ]; then
        if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
            say "something is missing; apt-get will install it"
            apt-get update -qq >&2 || true
            # shellcheck disable=SC2086 # a list of packages
            [ -z "$missing" ] || install_packages $missing
            [ -z "$postgres_missing" ] || install_postgres
        else
            say "missing:$missing${postgres_missing:+ PostgreSQL 15 or later (the server: Debian and Ubuntu have it as postgresql-15 or later)}"
            say "install it with, as root:"
            say "    apt-get install --no-install-recommends$missing${postgres_missing:+ postgresql}"
            exit 1
        fi
    fi
    if ! command -v cargo > /dev/null; then
        say "missing: a Rust toolchain. Install rustup (Debian, Ubuntu: apt-get install rustup; or https://rustup.rs), then:"
        say "    rustup toolchain install $(sed -n 's/^channel = "\(.*\)"/\1/p' "$root/rust-toolchain.toml")"
        exit 1
    fi
}
