//! Where a daemon is found: nobody can keep others from theirs, or pose as it.

use super::world::{self, BOB, MALLORY, as_user};
use systx_e2e::room::Room;
use systx_e2e::{room, skip};

/// No directory of their own but `/tmp`, for anybody.
const NOTHING: &str = "unset SYSTX_RUNTIME_DIR XDG_RUNTIME_DIR; export HOME=/nonexistent";

fn with_tmp(room: &Room) {
    world::prepare(room);
    room.sh("mount -t tmpfs -o mode=1777 systx-e2e /tmp").ok();
}

#[test]
fn names_that_others_have_taken_are_passed_over() {
    let room = room!();
    with_tmp(&room);
    let squat = format!(
        "mkdir -m 777 /tmp/systx-{MALLORY} /tmp/systx-{MALLORY}-0; touch /tmp/systx-{MALLORY}-1; \
         ln -s /run/{BOB} /tmp/systx-{MALLORY}-2; mkdir -m 777 /tmp/systx-0"
    );
    as_user(&room, BOB, &squat).ok();
    let pids: Vec<String> = (0..2)
        .map(|_| as_user(&room, MALLORY, &format!("{NOTHING}; $S list && $S doctor --json")).text)
        .collect();
    let own = format!("find /tmp -maxdepth 1 -uid {MALLORY} -name 'systx-{MALLORY}-*' | wc -l");
    assert_eq!(room.sh(&own).ok().lines().last(), Some("1"), "one place: {pids:?}");
    as_user(&room, MALLORY, &format!("{NOTHING}; $S list")).ok();
}

#[test]
fn who_is_root_only_in_a_user_namespace_is_in_nobodys_way() {
    let room = room!();
    with_tmp(&room);
    if as_user(&room, MALLORY, "unshare -r true").code != Some(0) {
        skip!("ordinary users may not make user namespaces here");
    }
    for uid in [MALLORY, BOB, MALLORY] {
        as_user(&room, uid, &format!("{NOTHING}; unshare -r $S list")).ok();
        as_user(&room, uid, &format!("{NOTHING}; $S list")).ok();
    }
    room.sh(&format!("{NOTHING}; /run/systx list")).ok();
}

#[test]
fn a_place_of_somebody_elses_is_not_connected_to() {
    let room = room!();
    with_tmp(&room);
    // A daemon of Bob's, whose directory he has opened to all.
    room.sh(&format!("chown {BOB}:{BOB} a")).ok();
    as_user(&room, BOB, "cd a && $S run -- true").ok();
    room.sh(&format!("chmod 777 /run/{BOB}; chmod 666 /run/{BOB}/*.sock")).ok();
    let said = as_user(&room, MALLORY, &format!("SYSTX_RUNTIME_DIR=/run/{BOB} $S list")).failed();
    assert!(said.contains("belongs to uid"), "{said}");
}
