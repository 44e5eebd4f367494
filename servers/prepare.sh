# What the tests, demos and benchmarks of all servers share.  To be sourced by bash.

servers_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
servers_top=$(dirname "$servers_here")

# apt_quickly SECONDS ARGUMENTS...: gives a mirror up that does not answer.
apt_quickly() {
    local limit=$1
    shift
    timeout "$limit" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
        -o Acquire::Retries=0 -o Acquire::http::Timeout=5 -o Acquire::https::Timeout=5 \
        -o DPkg::Lock::Timeout=60 "$@" </dev/null 2>&1
}

# install_packages MISSING: of what the command MISSING prints, without starting a server.  Says why
# not.
install_packages() {
    local missing=$1 packages said policy=/usr/sbin/policy-rc.d made=no
    packages=$($missing)
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
    # shellcheck disable=SC2086
    said=$(apt_quickly 300 --no-download install $packages)
    local code=$?
    [ $made = no ] || rm -f $policy
    if [ $code != 0 ]; then
        echo "cannot be installed: $packages: $(tail -n 1 <<<"$said")"
    elif [ -n "$($missing)" ]; then
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

# build_systx PROFILE: systx and libsystx, both into one directory, which is $SYSTX_BUILT then.
build_systx() {
    local how=()
    [ "$1" = debug ] || how=(--release)
    (cd "$servers_top" && cargo build -q "${how[@]}" -p systx --bin systx &&
        cargo build -q "${how[@]}" -p libsystx --lib) || return 1
    SYSTX_BUILT=$(cd "${CARGO_TARGET_DIR:-$servers_top/target}/$1" && pwd)
    export SYSTX_BUILT
    ln -sfn libsystx.so "$SYSTX_BUILT/libsystx.so.0"
}
