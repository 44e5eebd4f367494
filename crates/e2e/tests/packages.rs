//! Debian's packages with their maintainer scripts, in a Debian root of its own: a run gives what a
//! native installation gives, or nothing.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use systx_e2e::lab::find_program;
use systx_e2e::twin::Twin;
use systx_e2e::{Fs, Lab, Tree, cache, skip};

/// Fetched with the root, so that the tests need no network.
const PACKAGES: &str = "nano openssh-client ucf";

/// With `SYSTX_LONG`: a service with its users, and byte code.
const MORE: &str = "python3-venv nginx-light";

/// A minimal Debian with the packages' archives.
fn debian() -> Result<std::path::PathBuf, String> {
    if find_program("debootstrap").is_none() {
        return Err("no debootstrap".into());
    }
    cache::get("debian-root-1", |dir| {
        cache::shell(
            dir,
            &format!(
                "s=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null || true); \
                 uri=$(echo \"$s\" | sed -n 's/^URIs: *//p; s/^deb *\\(\\[[^]]*\\] *\\)\\?\\([^ ]*\\) .*/\\2/p' | head -n 1); \
                 unshare --mount debootstrap --variant=minbase $(. /etc/os-release; echo $VERSION_CODENAME) root $uri >&2; \
                 cp /etc/resolv.conf root/etc/; \
                 chroot root apt-get -qq update; \
                 chroot root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends --download-only {PACKAGES} {MORE}; \
                 tar cf root.tar -C root .; rm -rf root"
            ),
        )
    })
}

fn apt(packages: &str) -> String {
    format!(
        "DEBIAN_FRONTEND=noninteractive LC_ALL=C chroot r apt-get -qq -y --no-install-recommends --no-download install {packages}"
    )
}

/// Logs, and caches with times in them.
fn varies(path: &Path) -> bool {
    ["r/var/log", "r/var/cache", "r/run", "r/tmp"].iter().any(|p| path.starts_with(p))
        || path.ends_with("aux-cache")
}

macro_rules! debian {
    () => {
        match (Lab::sized(Fs::default_for_suites(), 4096), debian()) {
            (Ok(lab), Ok(root)) => {
                (lab, format!("mkdir r; tar x -C r -f {}", root.join("root.tar").display()))
            }
            (Err(why), _) | (_, Err(why)) => skip!("{why}"),
        }
    };
}

#[test]
fn apt_installs_what_it_installs_natively_and_undo_takes_it_back() {
    let (lab, unpack) = debian!();
    let mut packages = PACKAGES.to_owned();
    if std::env::var_os("SYSTX_LONG").is_some() {
        packages = format!("{PACKAGES} {MORE}");
    }
    Twin::new(&lab)
        .limit(600)
        .ignore(varies)
        .undone()
        .check(&unpack, &format!("{} >&2; chroot r dpkg --audit", apt(&packages)));
}

#[test]
fn an_installation_that_is_dropped_or_fails_leaves_no_trace_and_undo_keeps_later_work() {
    let (lab, unpack) = debian!();
    lab.native(&unpack).ok();
    // A newer nano whose script fails after it has changed what others own.
    let broken = "mkdir -p bad/DEBIAN bad/bin; cp r/bin/true bad/bin/nano; \
         printf 'Package: nano\\nVersion: 99\\nArchitecture: all\\nMaintainer: N <n@example.org>\\nDescription: broken\\n' > bad/DEBIAN/control; \
         printf '#!/bin/sh\\necho x >> /etc/passwd\\nuseradd -r broken\\nrm -rf /usr/share/nano\\nexit 1\\n' > bad/DEBIAN/postinst; \
         chmod 755 bad/DEBIAN/postinst; dpkg-deb --root-owner-group -b bad r/bad.deb >/dev/null; rm -r bad";
    lab.native(broken).ok();
    let before = Tree::capture(lab.root());
    lab.run(&["--on-exit=abort"], &apt("openssh-client")).ok();
    before.assert_same(&Tree::capture(lab.root()), "a dropped installation");
    lab.run(&[], &apt("nano")).ok();
    let with_nano = Tree::capture(lab.root());
    assert!(before.differences(&with_nano).len() > 50);
    let done = lab.run(&[], &apt("/bad.deb"));
    assert_ne!(done.code, 0);
    with_nano.assert_same(&Tree::capture(lab.root()), "a failed upgrade");
    lab.write("r/etc/motd", "later work\n");
    lab.do_systx(["undo", "--root", lab.root().to_str().unwrap()]).ok();
    let after = Tree::capture(lab.root());
    assert_eq!(lab.read("r/etc/motd"), "later work\n");
    let but = |tree: Tree| tree.without(|p| varies(p) || p.ends_with("motd"));
    but(before).assert_same(&but(after), "an installation that was undone");
}
