# What ./test, ./demo and bench/replicate share.  To be sourced by bash.

replicate_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../ldap/prepare.sh
. "$replicate_here/../ldap/prepare.sh"

# build_replicate PROFILE: systx, libsystx and systx-replicate, all into $SYSTX_BUILT.  Where slapd
# is, its plugin, too.
build_replicate() {
    local how=()
    [ "$1" = debug ] || how=(--release)
    build_systx "$1" && (cd "$replicate_here" &&
        cargo build -q --locked "${how[@]}" --target-dir "$(dirname "$SYSTX_BUILT")") || return 1
    [ -n "$(missing_for_ldap)" ] || make -s -C "$replicate_here/../ldap" BUILT="$SYSTX_BUILT"
}
