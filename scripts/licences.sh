#!/bin/sh
# Checks that every crate we depend on can be had under a licence that deny.toml allows. A small stand-in for cargo-deny:
# of "A OR B" one must be allowed, of "A AND B" both; brackets as in "(A OR B) AND C" are understood one level deep.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
cd "$root"
cargo tree --locked --workspace --all-features --edges normal,build --prefix none --format '{p}	{l}' | sort -u |
    awk -F '\t' '
        function known(name) { gsub(/^[ (]+|[ )]+$/, "", name); return name in allowed }
        function one_of(text,   words, n, i) {
            n = split(text, words, / OR |\//)
            for (i = 1; i <= n; i++) if (known(words[i])) return 1
            return 0
        }
        function fine(text,   parts, n, i) {
            # "A OR B AND C" without brackets binds AND first, so one side of the OR is enough to be found there.
            if (text !~ /\(/ && text ~ / OR /) {
                n = split(text, parts, / OR /)
                for (i = 1; i <= n; i++) if (fine(parts[i])) return 1
                return 0
            }
            n = split(text, parts, / AND /)
            for (i = 1; i <= n; i++) if (!one_of(parts[i])) return 0
            return 1
        }
        FNR == NR {
            if (/^allow = \[/) listing = 1
            line = $0
            while (listing && match(line, /"[^"]*"/)) {
                allowed[substr(line, RSTART + 1, RLENGTH - 2)] = 1
                line = substr(line, RSTART + RLENGTH)
            }
            if (/\]/) listing = 0
            next
        }
        NF > 0 {
            sub(/ \(\*\)$/, "", $2)
            seen++
            if ($2 == "" || !fine($2)) { print $1 ": " ($2 == "" ? "no licence is named" : $2); bad++ }
        }
        END {
            if (!seen) { print "cargo tree named no crates"; exit 1 }
            print seen " crates, " bad + 0 " with a licence that deny.toml does not allow"
            exit bad > 0
        }
    ' deny.toml -
