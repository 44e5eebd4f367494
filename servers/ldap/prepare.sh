# What ./test, ./demo and bench/ldap share: stock slapd, the clients, and the plugin.  To be sourced
# by bash.

ldap_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../prepare.sh
. "$ldap_here/../prepare.sh"

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

# install_ldap: what is missing, without a database and without starting a server.  Says why not.
install_ldap() {
    command -v debconf-set-selections >/dev/null && [ -n "$(missing_for_ldap)" ] &&
        [ "$(id -u)" = 0 ] &&
        echo "slapd slapd/no_configuration boolean true" | debconf-set-selections
    install_packages missing_for_ldap
}

# build_ldap PROFILE: systx, libsystx and the plugin, all into $SYSTX_BUILT.
build_ldap() {
    build_systx "$1" && make -s -C "$ldap_here" BUILT="$SYSTX_BUILT"
}
