//! A transaction is a directory also for ordinary users, where there is fusermount3.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use systx_e2e::lab::{USER, find_program, guard_mounts};
use systx_e2e::open::{Open, OrCanceled};
use systx_e2e::run::{Limits, eventually, finish};
use systx_e2e::{CONFLICT, Lab, Tree, lab, skip};

#[test]
fn an_ordinary_user_without_fusermount3_is_told_what_to_do() {
    let lab = lab!().as_user();
    lab.native("mkdir d").ok();
    // A PATH with nothing but what starts systx here.
    let path = lab.outside().join("few");
    fs::create_dir(&path).unwrap();
    let setpriv = find_program("setpriv").expect("the lab's user is made by it");
    std::os::unix::fs::symlink(setpriv, path.join("setpriv")).unwrap();
    let mut command = lab.systx(["begin", "d"]);
    command.env("PATH", &path);
    let refused = finish(command, Limits::default(), &lab).expect(1);
    for text in ["no fusermount3", "package fuse3", "systx run --on-exit=keep", "systx enter"] {
        assert!(refused.err.contains(text), "{text}: {refused}");
    }
    assert!(lab.open_ids().is_empty(), "nothing is left");
    assert_eq!(fs::read_dir(views(&lab)).unwrap().count(), 0, "nothing is left");
}

/// Where the lab's daemon has its views.
fn views(lab: &Lab) -> PathBuf {
    lab.root().with_file_name("run").join("views")
}

macro_rules! user_lab {
    () => {
        match lab!().as_known_user() {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

#[test]
fn an_ordinary_user_works_below_a_path() {
    let lab = user_lab!();
    for transport in ["auto", "dev"] {
        lab.native("rm -rf d; mkdir -p d/sub; echo old > d/old; echo move > d/sub/move").ok();
        let before = Tree::capture(lab.path("d"));
        let open = Open::begin(&lab, "d", &["--transport", transport]);
        assert_eq!(open.path.parent(), Some(&*views(&lab)), "the documented form");
        let work = "set -e; echo more >> old; echo n > new; chmod 600 new; mv sub/move moved; rmdir sub; mkdir -p a/b; \
                    ln new hard; ln -s new link; seq 10000 | sort -rn > a/b/numbers; cat old";
        assert_eq!(open.sh(work).ok().out, "old\nmore\n");
        before.assert_same(&Tree::capture(lab.path("d")), "before the commit nothing shows");
        let listed = open.listed();
        assert_eq!(listed["view"], open.path.to_str().unwrap(), "{listed}");
        // Paths of the view are understood as they are given and as they really are.
        let shown = open.sh(&format!(
            "$SYSTX diff {id} --name-only $PWD/new; $SYSTX diff {id} --name-only $(pwd -P)/new; \
             $SYSTX diff {id} --name-only new",
            id = open.id
        ));
        let new = format!("{}\n", lab.path("d/new").display());
        assert_eq!(shown.ok().out, new.repeat(3));
        let entered = lab.do_systx(["enter", &open.id, "--", "cat", "moved"]).ok();
        assert_eq!(entered.out, "move\n");
        // A part; then the rest, with a descriptor from before.
        let old = open.path.join("old");
        lab.do_systx(["commit", &open.id, old.to_str().unwrap()]).ok();
        assert_eq!(lab.read("d/old"), "old\nmore\n");
        assert!(!lab.has("d/new"));
        let held = format!(
            "exec 9<>old; $SYSTX commit {}; cat <&9; echo held >&9; cat {}",
            open.id,
            lab.path("d/old").display()
        );
        assert_eq!(open.sh(&held).ok().out, "old\nmore\nold\nmore\nheld\n");
        assert_eq!((lab.read("d/new").as_str(), lab.read("d/moved").as_str()), ("n\n", "move\n"));
        assert_eq!(fs::metadata(lab.path("d/a/b/numbers")).unwrap().uid(), lab.uid());
        lab.do_systx(["undo", &open.id]).ok();
        assert!(!lab.has("d/new") && lab.has("d/sub/move"));
        let open = Open::begin(&lab, "d", &["--transport", transport]);
        open.sh("echo x > x; rm -r sub").ok();
        open.systx("abort").ok();
        assert!(!lab.has("d/x") && lab.has("d/sub/move"));
        assert_eq!(fs::read_dir(views(&lab)).unwrap().count(), 0, "all are gone");
        eventually("the mounts are gone", || guard_mounts(&views(&lab)).is_empty());
    }
    // Of the whole volume; and who loses is told.
    let whole = Open::begin(&lab, "", &[]);
    let rival = Open::begin(&lab, "d", &[]);
    whole.sh("cat d/old; echo whole > d/old").ok();
    assert_eq!(rival.sh("cat old").ok_or_canceled(), None);
    rival.systx("commit").expect(CONFLICT);
    rival.systx("abort").ok();
    whole.systx("commit").ok();
    assert_eq!(lab.read("d/old"), "whole\n");
}

#[test]
fn nobody_else_enters_an_ordinary_users_view() {
    let lab = user_lab!();
    lab.native("mkdir -m 777 d; echo x > d/x; chmod 666 d/x").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("cat x").ok();
    let run = lab.root().with_file_name("run");
    // Also if the user opens the directories above it.
    lab.native(&format!("chmod 755 {} {}", run.display(), views(&lab).display())).ok();
    for what in ["ls", "stat", "cat"] {
        let mut command = std::process::Command::new("setpriv");
        let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
        let script = format!("{what} {}/x", open.path.display());
        command.args(ids).args(["--clear-groups", "--", "sh", "-c", &script]);
        assert_ne!(finish(command, Limits::default(), &lab).code, 0, "{what}");
    }
    lab.native(&format!("chmod 700 {} {}", run.display(), views(&lab).display())).ok();
    open.systx("abort").ok();
}

#[test]
fn an_ordinary_users_killed_daemon_leaves_no_view_behind() {
    let lab = user_lab!();
    lab.native("mkdir d").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo x > x").ok();
    assert_eq!(guard_mounts(&views(&lab)).len(), 1);
    lab.kill_daemon();
    let dead = format!("! ls {}/", open.path.display());
    lab.native(&dead).ok();
    let whole = views(&lab).join(format!(".{}", open.id));
    let told = lab.do_systx(["doctor"]);
    assert!(told.out.contains(&format!("nobody serves {}", whole.display())), "{told}");
    assert!(told.out.contains("fusermount3 -u"), "{told}");
    let again = Open::begin(&lab, "d", &[]);
    assert!(open.path.symlink_metadata().is_err(), "cleared away");
    let mounts = guard_mounts(&views(&lab));
    assert_eq!(mounts, [views(&lab).join(format!(".{}", again.id))], "only the new one");
    again.sh("test ! -e x; echo y > y").ok();
    again.systx("commit").ok();
    assert!(lab.has("d/y") && !lab.has("d/x"));
}
