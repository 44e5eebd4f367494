# What ./demo and ./test share: installing what is missing.  To be sourced by bash.

# The toolchain that Cargo.toml asks for.
wanted_rust() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml
}

# have_rust: there is a cargo, and it is new enough.
have_rust() {
    local have
    have=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ -n "$have" ] && [ "$(printf '%s\n' "$(wanted_rust)" "$have" | sort -V | head -n 1)" = "$(wanted_rust)" ]
}

# install PACKAGE...: with apt, as root or through sudo.
install() {
    local as=()
    [ "$(id -u)" = 0 ] || as=(sudo)
    if ! command -v apt-get >/dev/null || { [ ${#as[@]} -gt 0 ] && ! command -v sudo >/dev/null; }; then
        echo "missing, and cannot be installed from here: $*" >&2
        return 1
    fi
    echo "installing: $*"
    local said package left=0
    # The package lists of a fresh machine are empty.
    said=$(apt install "$@" 2>&1) && return
    said=$(apt update 2>&1) || echo "the package lists cannot be had: $(tail -n 1 <<<"$said")" >&2
    said=$(apt install "$@" 2>&1) && return
    # One that cannot be had is no reason to do without the others.
    for package; do
        said=$(apt install "$package" 2>&1) && continue
        echo "cannot be installed: $package: $(tail -n 1 <<<"$said")" >&2
        left=1
    done
    return $left
}

# apt install|update ...: for `install`, whose `as` is how to become root.  A mirror that does not answer is given up; another
# program that is installing something is waited for.
apt() {
    local what=$1
    shift
    [ "$what" = update ] || set -- --no-install-recommends "$@"
    timeout 900 "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "$what" -qq -y -o Acquire::Retries=3 \
        -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30 -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

# need PROGRAM PACKAGE: remembers the package if the program is missing.
missing=()
need() {
    command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing+=("$2")
}

install_missing() {
    [ ${#missing[@]} -eq 0 ] && return
    install "${missing[@]}"
}

prepare_build() {
    need cc gcc
    have_rust || need rustup rustup
    install_missing || return 1
    missing=()
    if ! have_rust && command -v rustup >/dev/null; then
        rustup -q default stable || return 1
    fi
    if ! have_rust; then
        echo "Rust $(wanted_rust) or later is needed (Debian's package rustup installs it)" >&2
        return 1
    fi
}

# FUSE over io_uring is off by default in the kernel; systx works without, slower.
switch_on_io_uring() {
    local switch=/sys/module/fuse/parameters/enable_uring
    [ "$(cat $switch 2>/dev/null)" = N ] || return 0
    if [ "$(id -u)" = 0 ] && echo Y 2>/dev/null >$switch; then
        echo "FUSE over io_uring switched on until the next start of this machine"
    else
        echo "FUSE over io_uring is off ($switch): /dev/fuse is used instead"
    fi
}

# Distributions let everybody open it (by a rule of udev); where no udev runs, only root may.
open_fuse_to_users() {
    [ -c /dev/fuse ] && [ "$(stat -c %a /dev/fuse)" != 666 ] || return 0
    if [ "$(id -u)" = 0 ] && chmod 666 /dev/fuse; then
        echo "/dev/fuse made readable and writable for all users, as usual"
    fi
}

# What scripts/power-cut emulates a machine with; the kernel it unpacks itself.
need_machine() {
    need qemu-system-x86_64 qemu-system-x86
    need busybox busybox-static
    need mkfs.ext4 e2fsprogs
    need xz xz-utils
}

prepare_tests() {
    prepare_build || return 1
    need make make
    need git git
    need python3 python3
    need mkfs.ext4 e2fsprogs
    need mkfs.xfs xfsprogs
    need mkfs.btrfs btrfs-progs
    need setfattr attr
    need setfacl acl
    need setcap libcap2-bin
    need fusermount3 fuse3
    need script bsdutils
    need stress-ng stress-ng
    need fio fio
    need dbench dbench
    need rsync rsync
    need sqlite3 sqlite3
    [ -d /usr/lib/postgresql ] || missing+=(postgresql)
    /usr/bin/python3 -c 'import lmdb' 2>/dev/null || missing+=(python3-lmdb)
    need npm npm
    need pkg-config pkg-config
    need xz xz-utils
    [ ! -e /etc/debian_version ] || need debootstrap debootstrap
    /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
    if [ -n "${SYSTX_LONG:-}" ]; then # nano from source, power cuts
        need dpkg-source dpkg-dev
        need_machine
        [ -e /usr/include/ncurses.h ] || missing+=(libncurses-dev)
    fi
    # Without one of them some tests are skipped; that is no reason not to run the others.
    install_missing || echo "some tests will be skipped"
    switch_on_io_uring
    open_fuse_to_users
    if [ "$(id -u)" != 0 ]; then
        echo "not root: the end-to-end suites, which mount disposable file systems, will be skipped"
    fi
}
