# What ./test, ./demo and bench/ldap share: stock slapd, the clients, and the plugin.  To be sourced
# by bash.

ldap_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ldap_top=$(cd "$ldap_here/../.." && pwd)

# missing_for_ldap: the packages that are not there.
missing_for_ldap() {
    [ -x /usr/sbin/slapd ] || echo slapd
    command -v ldapadd >/dev/null || echo ldap-utils
    [ -e /usr/include/slapi-plugin.h ] || echo slapi-dev
    [ -e /usr/include/ldap.h ] || echo libldap-dev
    /usr/bin/python3 -c 'import ldap' 2>/dev/null || echo python3-ldap
    command -v setpriv >/dev/null || echo util-linux
    command -v cc >/dev/null || echo gcc
    command -v make >/dev/null || echo make
}

# apt_quickly SECONDS ARGUMENTS...: gives a mirror up that does not answer.
apt_quickly() {
    local limit=$1
    shift
    timeout "$limit" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
        -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 \
        -o DPkg::Lock::Timeout=60 "$@" </dev/null 2>&1
}

# install_ldap: what is missing, without a database and without starting a server.  Says why not.
install_ldap() {
    local packages said policy=/usr/sbin/policy-rc.d made=no
    packages=$(missing_for_ldap)
    [ -n "$packages" ] || return 0
    packages=${packages//$'\n'/ }
    [ "$(id -u)" = 0 ] || { echo "missing, and only root can install: $packages"; return 1; }
    command -v apt-get >/dev/null || { echo "missing, and there is no apt: $packages"; return 1; }
    # All of it is fetched before any of it is installed.
    # shellcheck disable=SC2086
    if ! said=$(apt_quickly 60 --download-only install $packages); then
        apt_quickly 60 update >/dev/null
        # shellcheck disable=SC2086
        said=$(apt_quickly 60 --download-only install $packages) ||
            { echo "cannot be had: $packages: $(tail -n 1 <<<"$said")"; return 1; }
    fi
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=yes
    fi
    command -v debconf-set-selections >/dev/null &&
        echo "slapd slapd/no_configuration boolean true" | debconf-set-selections
    # shellcheck disable=SC2086
    said=$(apt_quickly 300 --no-download install $packages)
    local code=$?
    [ $made = no ] || rm -f $policy
    if [ $code != 0 ]; then
        echo "cannot be installed: $packages: $(tail -n 1 <<<"$said")"
    elif [ -n "$(missing_for_ldap)" ]; then
        echo "installed, and not all there: $packages"
        code=1
    fi
    return $code
}

# in_a_box COMMAND...: with namespaces of its own, so that no process and no mount is left of it,
# however it ends.
in_a_box() {
    unshare --mount --propagation private --pid --fork --kill-child --mount-proc "$@"
}

# build_ldap PROFILE: systx, libsystx and the plugin, all into one directory, which is $SYSTX_BUILT
# then.
build_ldap() {
    local how=()
    [ "$1" = debug ] || how=(--release)
    (cd "$ldap_top" && cargo build -q "${how[@]}" -p systx --bin systx &&
        cargo build -q "${how[@]}" -p libsystx --lib) || return 1
    SYSTX_BUILT=$(cd "${CARGO_TARGET_DIR:-$ldap_top/target}/$1" && pwd)
    export SYSTX_BUILT
    ln -sfn libsystx.so "$SYSTX_BUILT/libsystx.so.0"
    make -s -C "$ldap_here" BUILT="$SYSTX_BUILT"
}
