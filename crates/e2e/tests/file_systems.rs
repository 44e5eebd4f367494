//! One transaction over several file systems: ext4, xfs and a tmpfs. What a crash in its commit
//! leaves is looked at in `joint_crash`.

use std::io::Read;
use std::process::Stdio;
use systx_e2e::lab::find_program;
use systx_e2e::room::Room;
use systx_e2e::{Tree, room, skip};

/// Changes all three.
const WORK: &str = "mv a/file b/moved; echo new > b/file; echo new > m/file; mkdir a/made; echo n > a/made/n; \
    rm b/dir/k; chmod 700 m/dir";

fn after(room: &Room) -> [Tree; 3] {
    room.sh(&format!("cp -a a b m /run/ && cd /run && {WORK}")).ok();
    let there = ["a", "b", "m"].map(|which| Tree::capture(room.path(&format!("/run/{which}"))));
    room.sh("rm -rf /run/a /run/b /run/m").ok();
    there
}

#[track_caller]
fn assert_same(found: &[Tree; 3], wanted: &[Tree; 3], what: &str) {
    for ((found, wanted), which) in found.iter().zip(wanted).zip(["a", "b", "m"]) {
        wanted.assert_same(found, &format!("{which}: {what}"));
    }
}

#[test]
fn a_run_over_three_file_systems_is_committed_undone_and_redone_as_one() {
    let room = room!();
    let (before, after) = (room.trees(), after(&room));
    let said = room.sh(&format!("cd a && $S run -- sh -c 'cd ..; {WORK}'")).ok();
    assert!(said.contains("committed"), "{said}");
    assert_same(&room.trees(), &after, "committed");
    let id = room.latest();
    for dir in ["a", "b", "m"] {
        let shown = room.sh(&format!("cd {dir} && $S show {id}")).ok();
        for path in ["a/made", "b/moved", "m/file"] {
            assert!(shown.contains(path), "{shown}");
        }
    }
    // From any of them.
    room.sh(&format!("cd b && $S undo {id}")).ok();
    assert_same(&room.trees(), &before, "undone");
    room.sh("cd m && $S redo").ok();
    assert_same(&room.trees(), &after, "redone");
}

#[test]
fn what_is_not_committed_leaves_no_trace_on_any() {
    let room = room!();
    let before = room.trees();
    room.sh(&format!("cd a && $S run -- sh -c 'cd ..; {WORK}; exit 3'")).failed();
    assert_same(&room.trees(), &before, "failed");
    let said = room.sh(&format!("cd m && $S run --on-exit keep -- sh -c 'cd ..; {WORK}'")).ok();
    assert_same(&room.trees(), &before, &said);
    let diff = room.sh("cd a && id=$($S list --json | grep -o '\"id\": *\"[0-9a-f]*\"' | head -1 | cut -d'\"' -f4); \
        $S diff $id; $S commit $id $D/a/made $D/b/moved; $S enter $id -- cat $D/b/moved $D/m/file; $S abort $id");
    for part in ["a/made", "b/moved", "m/file", "several file systems", "old", "new"] {
        assert!(diff.text.contains(part), "{}", diff.text);
    }
    assert_same(&room.trees(), &before, "dropped");
    // Two of which one loses.
    let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file; echo x > ../m/x; \
        nsenter -t '$PPID' -m true; echo outside > /proc/'$$'/root'$D'/b/file; cat ../b/file >> ../m/x'");
    let text = said.failed();
    assert!(text.contains("b/file") && text.contains("conflict"), "{text}");
    assert_eq!(room.sh("ls m").ok(), room.sh("ls m").ok());
    assert!(!room.sh("ls m").ok().contains('x'), "{text}");
}

/// Whatever the file system: a snapshot that is not of one moment says all that made it so.
#[test]
fn a_read_only_run_that_has_lost_names_what_changed_on_every_file_system() {
    let room = room!();
    let said = room.sh("cd a && $S run --read-only -- sh -c 'cat file ../b/file ../m/file; \
         for x in a b m; do echo outside > /proc/'$$'/root'$D'/$x/file; done'; echo code $?");
    let text = said.ok();
    assert!(text.contains("code 75"), "{text}");
    for path in ["a/file", "b/file", "m/file"] {
        assert!(text.contains(&format!("/{path}")), "{path} is not named: {text}");
    }
}

#[test]
fn several_file_systems_look_as_on_the_host() {
    let room = room!();
    let script = "[ $(stat -c %d a b m / | sort -u | wc -l) = 4 ] && echo four; \
        ln a/file b/hard 2>&1; find . -xdev -name file; df --output=target a b m; \
        find a -xdev | sort; mkdir b/nested; rmdir b 2>&1; touch /etc/systx-e2e 2>&1";
    let native = room.sh(script).text.replace("./", "");
    room.sh("rmdir b/nested").ok();
    let inside = room.sh(&format!("cd m && $S run -q -- sh -c 'cd ..; {script}'"));
    let seen = inside.text.clone();
    for line in native.lines().skip(2).filter(|l| !l.contains(".systx")) {
        assert!(
            seen.contains(line.trim_end_matches(": Device or resource busy")),
            "{line}\n{seen}"
        );
    }
    assert!(seen.contains("four") && seen.contains("cross-device"), "{seen}");
    // What a run does not cover is named and refused, as before.
    assert!(seen.contains("Read-only file system"), "{seen}");
    // Restricted to the file system of the working directory.
    let one = room.sh("cd a && SYSTX_ONE_FILE_SYSTEM=1 $S run -- sh -c 'echo x > ../b/x'").failed();
    assert!(one.contains("Read-only file system"), "{one}");
}

#[test]
fn the_configuration_names_the_file_systems_that_it_is_about() {
    let room = room!();
    let at =
        |which: &str| room.sh(&format!("echo $D/{which}")).ok().lines().last().unwrap().to_owned();
    let (a, b, m) = (at("a"), at("b"), at("m"));
    for (dir, first, further) in [("a", &a, [&b, &m]), ("b/dir", &b, [&a, &m])] {
        let text = room.sh(&format!("$S config -C {dir}")).ok();
        assert!(text.contains(&format!("\nfile system: {first}, of {}\n", at(dir))), "{text}");
        let line = text.lines().find_map(|l| l.strip_prefix("further ones of a run: ")).unwrap();
        let named: Vec<&str> = line.split(", ").collect();
        assert!(further.iter().all(|f| named.contains(&f.as_str())), "{text}");
        assert!(!named.contains(&first.as_str()), "{text}");
    }
    // What a run does not touch it does not name.
    let one = room.sh("SYSTX_ONE_FILE_SYSTEM=1 $S config -C a").ok();
    assert!(!one.contains("further"), "{one}");
}

/// A commit there waits in the kernel, and nobody else: no store is made before.
#[test]
fn a_run_does_not_wait_for_a_frozen_file_system_that_it_does_not_write_to() {
    let room = room!();
    if find_program("fsfreeze").is_none() {
        skip!("there is no fsfreeze(8)");
    }
    let frozen = room.freeze("b");
    let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file > made; echo m > ../m/made'").ok();
    assert!(!said.contains("read-only"), "{said}");
    assert_eq!(room.sh("cat a/made m/made").ok().lines().skip(1).collect::<Vec<_>>(), ["old", "m"]);
    let mut writer = room.command("cd m && exec $S run -- sh -c 'echo begun; echo x > ../b/other'");
    let mut writer = writer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut begun = [0; 6];
    writer.stdout.take().unwrap().read_exact(&mut begun).unwrap();
    let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file > made'").ok();
    assert!(!said.contains("read-only"), "{said}");
    drop(frozen);
    assert!(writer.wait().unwrap().success());
    assert_eq!(room.sh("cat b/other").ok().lines().last(), Some("x"));
    room.sh("cd a && $S run -- sh -c 'echo x > ../b/file; echo x > file'").ok();
    assert_eq!(room.sh("cat a/file b/file").ok().lines().skip(1).collect::<Vec<_>>(), ["x", "x"]);
    room.sh("cd a && $S undo").ok();
    assert!(room.sh("cat b/file").ok().ends_with("old\n"));
}

/// A store that is there is opened, and read, without a write.
#[test]
fn a_frozen_file_system_with_a_store_is_covered_like_any_other() {
    let room = room!();
    if find_program("fsfreeze").is_none() {
        skip!("there is no fsfreeze(8)");
    }
    room.sh("cd a && $S run -- sh -c 'echo x > ../b/file; echo x > file'").ok();
    for new_daemon in [false, true] {
        room.until_closed("b");
        if new_daemon {
            room.kill_daemon();
        }
        let frozen = room.freeze("b");
        let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file > made'").ok();
        assert!(!said.contains("read-only"), "{said}");
        // What is dropped was never written.
        let said =
            room.sh("cd a && $S run -- sh -c 'echo y > ../b/file; cat ../b/file; false'").failed();
        assert!(said.contains("y\n") && said.contains("nothing committed"), "{said}");
        // The end of what was staged there may wait; nobody else does.
        let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file > made'").ok();
        assert!(!said.contains("read-only"), "{said}");
        drop(frozen);
    }
}
