//! Stores: which count, and what one that counts can bring about.

use super::world::{self, BOB, MALLORY, as_user, mode};
use std::fs;
use std::path::Path;
use systx_e2e::room::Room;
use systx_e2e::{Tree, room};

/// Every file below a directory, with its bytes and its permissions.
fn picture(dir: &Path) -> Vec<String> {
    let mut all = vec![format!("{:o}", mode(dir))];
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("root may").flatten() {
            let path = entry.path();
            if path.is_dir() {
                all.push(format!("{path:?} {:o}", mode(&path)));
                dirs.push(path);
            } else {
                let bytes = fs::read(&path).expect("root may");
                all.push(format!("{path:?} {:o} {bytes:?}", mode(&path)));
            }
        }
    }
    all.sort();
    all
}

/// A commit over `a` and `b` that waits to be installed on both: a file on `a`, and on `b` a
/// set-user-id program of root's.
fn prepared(room: &Room) {
    let work = "echo x > made; cp /bin/true ../b/evil; chmod 4755 ../b/evil";
    room.sh(&format!("cd a && $S run -- sh -c '{work}'")).ok();
    room.kill_daemon();
    for which in ["a", "b"] {
        world::rewind(&room.path(&format!("{which}/.systx")));
    }
    room.sh("rm a/made b/evil").ok();
}

/// Root does something, somewhere; no program of root's comes of it.
fn nothing_comes_of_it(room: &Room, store: &str) {
    let before = picture(&room.path(store));
    let said = room.sh("cd m && $S run -- true").ok();
    for script in ["$S recover --all", "cd b && $S run -- true", "cd a && $S run -- true"] {
        room.sh(script);
    }
    assert!(!room.path("b/evil").exists(), "{said}");
    assert!(picture(&room.path(store)) == before, "{store} is touched: {said}");
}

#[test]
fn a_medium_does_not_make_root_open_a_store_that_it_names() {
    let room = room!();
    prepared(&room);
    // Root's directory, to which all may write, and in it a store that a user has made.
    let copy = "mkdir -m 1777 b/spools && cp -r b/.systx/. b/spools && chmod 1777 b/spools";
    room.sh(&format!("{copy} && chown -R {MALLORY} b/spools/* && rm -r b/.systx")).ok();
    for store in ["a/.systx", "b/spools"] {
        world::rename_in_record(&room.path(store), "/b/.systx", "/b/spools");
    }
    nothing_comes_of_it(&room, "b/spools");
}

#[test]
fn a_store_in_a_directory_that_all_may_write_to_does_not_count() {
    let room = room!();
    prepared(&room);
    room.sh(&format!("chown -R {MALLORY} b/.systx/* && chmod 1777 b/.systx")).ok();
    nothing_comes_of_it(&room, "b/.systx");
    // Nor one that is root's throughout, but could be exchanged.
    room.sh("chown -R 0 b/.systx && chmod -R go-w b/.systx && chmod 777 b").ok();
    nothing_comes_of_it(&room, "b/.systx");
    // With that mended it is what it seems.
    room.sh("chmod 755 b && cd m && $S run -- true").ok();
    assert_eq!(mode(&room.path("b/evil")), 0o4755);
}

#[test]
fn a_link_is_no_store() {
    let room = room!();
    prepared(&room);
    room.sh("mv b/.systx b/real && ln -s real b/.systx").ok();
    nothing_comes_of_it(&room, "b/real");
}

#[test]
fn what_another_machine_has_committed_is_installed_when_somebody_says_so() {
    let room = room!();
    let elsewhere = "export SYSTX_STATE_DIR=/run/elsewhere";
    room.sh(&format!("{elsewhere}; cd a && $S run -- sh -c 'echo x > made'")).ok();
    room.kill_daemon();
    world::rewind(&room.path("a/.systx"));
    room.sh("rm a/made").ok();
    let said = room.sh("cd m && $S run -- true").ok();
    assert!(said.contains("read-only") && said.contains("systx recover -C"), "{said}");
    let said = room.sh("cd a && $S run -- true").failed();
    assert!(said.contains("systx recover -C"), "{said}");
    let said = room.sh("$S recover --all").failed();
    assert!(said.contains("another machine"), "{said}");
    assert!(!room.path("a/made").exists(), "{said}");
    room.sh("$S recover -C a").ok();
    assert!(room.path("a/made").exists());
    // From then on it is this machine's, also for another daemon.
    room.kill_daemon();
    world::rewind(&room.path("a/.systx"));
    room.sh("rm a/made; cd m && $S run -- true").ok();
    assert!(room.path("a/made").exists());
}

#[test]
fn a_directory_that_is_named_as_a_store_is_changed_only_if_it_is_ones_own() {
    let room = room!();
    let make = "mkdir -m 1777 a/shared && mkdir -m 700 a/real a/full && ln -s real a/link && \
                echo x > a/full/letter && mkdir -m 755 a/theirs";
    room.sh(&format!("{make} && chown {BOB}:{BOB} a/theirs")).ok();
    for place in ["shared", "link", "full", "theirs", "theirs/new", "shared/../real"] {
        let before = picture(&room.path("a"));
        let script = format!("cd a && $S run --store $D/a/{place} -- sh -c 'echo x > made'");
        let said = room.sh(&script).failed();
        assert!(picture(&room.path("a")) == before, "{place}: {said}");
    }
    let own = "mkdir -m 755 a/own && cd a && $S run --store $D/a/own -- sh -c 'echo x > made'";
    room.sh(own).ok();
    assert_eq!(mode(&room.path("a/own")), 0o700);
}

#[test]
fn what_a_medium_lists_is_not_carried_out() {
    let room = room!();
    let fake = "mkdir -p m/bin /run/systemd/system && chmod 755 m/bin && \
                printf '#!/bin/sh\\necho \"$@\" >> /run/called\\n' > m/bin/systemctl && \
                chmod 755 m/bin/systemctl";
    room.sh(&format!("{fake}; cd a && $S run -- sh -c 'echo x > made'")).ok();
    let id = room.latest();
    let list = format!("a/.systx/o/{:0>16}", id);
    room.sh(&format!(
        "mkdir -p -m 700 a/.systx/o; for state in due new; do \
         echo '[[\"systemctl\",\"restart\",\"evil\"]]' > {list}.$state; done; \
         chmod 600 a/.systx/o/*"
    ))
    .ok();
    room.kill_daemon();
    let path = "export PATH=$D/m/bin:$PATH; cd a";
    let said = room.sh(&format!("{path}; $S services")).ok();
    assert!(said.contains("nothing waits"), "{said}");
    room.sh(&format!("{path}; $S services --run {id}")).failed();
    assert!(!room.path("/run/called").exists());
    // What this machine has noted itself is.
    let run = "$S run --services=ask -- sh -c 'echo y > made; systemctl restart good'";
    room.sh(&format!("{path}; {run}")).ok();
    room.kill_daemon();
    let id = room.latest();
    room.sh(&format!("{path}; $S services --run {id}")).ok();
    let called = fs::read_to_string(room.path("/run/called")).expect("it was called");
    assert_eq!(called, "restart good\n");
}

#[test]
fn a_users_store_is_left_to_that_user() {
    let room = room!();
    world::prepare(&room);
    room.sh(&format!("chown {MALLORY}:{MALLORY} a")).ok();
    as_user(&room, MALLORY, "cd a && $S run -- sh -c 'echo x > made' && ls -d .systx").ok();
    // Its checkpoint comes after the answer.
    room.kill_daemon();
    let tree = Tree::capture(room.path("a"));
    let store = room.path("a/.systx");
    let before = picture(&store);
    room.sh("$S recover --all");
    let said = room.sh("cd a && $S recover").failed();
    assert!(said.contains("belongs to user"), "{said}");
    room.sh("cd m && $S run -- true").ok();
    assert!(picture(&store) == before);
    assert!(tree.differences(&Tree::capture(room.path("a"))).is_empty());
}
