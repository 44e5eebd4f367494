# What ./test, ./demo and bench/dovecot share: stock Dovecot, and what is preloaded.  To be sourced
# by bash.

dovecot_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../prepare.sh
. "$dovecot_here/../prepare.sh"

# missing_for_dovecot: the packages that are not there.
missing_for_dovecot() {
    [ -x /usr/sbin/dovecot ] || echo dovecot-core
    [ -x /usr/lib/dovecot/imap ] || echo dovecot-imapd
    command -v cc >/dev/null || echo gcc
    command -v make >/dev/null || echo make
}

# install_dovecot: what is missing, without starting a server, now or at a boot.  Says why not.
install_dovecot() {
    local fresh=no
    [ -x /usr/sbin/dovecot ] || fresh=yes
    install_packages missing_for_dovecot || return 1
    if [ $fresh = yes ] && command -v systemctl >/dev/null; then
        systemctl disable dovecot.service dovecot.socket >/dev/null 2>&1
    fi
    local version
    version=$(dovecot --version 2>/dev/null)
    case $version in
    2.3.*) return 0 ;;
    *) echo "made for Dovecot 2.3, and this is ${version:-none}"; return 1 ;;
    esac
}

# build_dovecot PROFILE: systx, libsystx and what is preloaded, all into $SYSTX_BUILT.
build_dovecot() {
    build_systx "$1" && make -s -C "$dovecot_here" BUILT="$SYSTX_BUILT" all without
}
