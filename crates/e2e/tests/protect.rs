//! What is not protected is outside of transactions: its changes are plain, at once, never taken
//! back and never a conflict.  With second processes: a plain program and a second run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use systx_e2e::cases::Guarded;
use systx_e2e::lab::{chmod, guard_mounts};
use systx_e2e::open::Open;
use systx_e2e::room::Room;
use systx_e2e::run::{Limits, Running, finish};
use systx_e2e::shared::ANN;
use systx_e2e::{CONFLICT, Fs, Lab, lab, room, skip, users};

/// Marks something of the lab.
#[track_caller]
fn off(lab: &Lab, path: &str) {
    lab.do_systx(["protect", "off", path]).ok();
}

/// Whether something of the lab is protected, as it is told.
#[track_caller]
fn is_protected(lab: &Lab, path: &str) -> bool {
    let told = lab.do_systx(["protect", "--json", path]).ok().json();
    told["protection"]["protected"].as_bool().unwrap_or_else(|| panic!("{told}"))
}

fn seed(lab: &Lab) {
    lab.native(
        "mkdir -p work/cache work/src; echo 0 > work/cache/a; : > work/log; echo 0 > work/src/f",
    )
    .ok();
}

/// A plain program and two runs write to what is not protected at the same time.
fn shared_by_runs_and_programs(fs: Fs) {
    let lab = lab!(fs);
    seed(&lab);
    off(&lab, "work/cache");
    off(&lab, "work/log");
    let (mut one, mut two) = (lab.shell(&["--retries=0"]), lab.shell(&["--retries=0"]));
    // Whoever lists its directory has not met it.
    for run in [&mut one, &mut two] {
        run.eval("ls -l work work/cache > /dev/null; stat work/cache work/log; cat work/log");
    }
    one.eval("echo 1 > work/cache/a; mkdir work/cache/made; echo of-one >> work/log");
    assert_eq!(lab.read("work/cache/a"), "1\n");
    assert_eq!(two.eval("cat work/cache/a work/log; ls work/cache"), "1\nof-one\na\nmade\n");
    lab.native("echo 2 > work/cache/a; echo plain >> work/log; rmdir work/cache/made").ok();
    for run in [&mut one, &mut two] {
        let seen = run.eval("cat work/cache/a work/log; ls work/cache");
        assert_eq!(seen, "2\nof-one\nplain\na\n");
    }
    two.eval("echo of-two >> work/log; chmod 700 work/cache; mv work/cache/a work/cache/b");
    one.eval("echo 1 > work/src/one; cat work/cache/b; ls -l work > /dev/null");
    two.eval("echo 1 > work/src/two");
    assert!(!lab.has("work/src/one") && !lab.has("work/src/two"), "these are protected");
    // One is dropped, the other committed.
    one.exit(3).expect(3);
    let end = two.exit(0).ok();
    assert!(end.err.contains("1 added"), "nothing else was the transaction's: {end}");
    assert!(!lab.has("work/src/one") && lab.has("work/src/two"));
    assert_eq!(lab.read("work/cache/b") + &lab.read("work/log"), "2\nof-one\nplain\nof-two\n");
    let id = &lab.logged_ids()[0];
    let shown = lab.do_systx(["show", id]).ok().out;
    assert!(shown.contains("work/src/two") && !shown.contains("cache"), "{shown}");
    // Nor is it taken back.
    lab.do_systx(["undo"]).ok();
    assert!(!lab.has("work/src/two") && lab.read("work/cache/b") == "2\n");
    // From now on it is again.
    lab.do_systx(["protect", "on", "work/cache"]).ok();
    lab.run(&[], "echo 3 > work/cache/b; echo more >> work/log; exit 3").expect(3);
    assert_eq!(lab.read("work/cache/b"), "2\n");
    assert!(lab.read("work/log").ends_with("more\n"));
}

#[test]
fn runs_and_programs_share_it_on_ext4() {
    shared_by_runs_and_programs(Fs::Ext4);
}

#[test]
fn runs_and_programs_share_it_on_btrfs() {
    shared_by_runs_and_programs(Fs::Btrfs);
}

#[test]
fn runs_and_programs_share_it_on_xfs() {
    shared_by_runs_and_programs(Fs::Xfs);
}

#[test]
fn runs_and_programs_share_it_on_tmpfs() {
    shared_by_runs_and_programs(Fs::Tmpfs);
}

#[test]
fn runs_and_programs_share_it_on_a_volume() {
    shared_by_runs_and_programs(Fs::Volume);
}

#[test]
fn runs_and_programs_share_it_on_an_overlay() {
    shared_by_runs_and_programs(Fs::Overlay);
}

/// Which conflict a run would have without it.
#[test]
fn what_is_protected_beside_it_is_a_conflict_as_ever() {
    let lab = lab!();
    seed(&lab);
    off(&lab, "work/cache");
    let mut run = lab.shell(&["--retries=0"]);
    run.eval("cat work/src/f work/cache/a; echo 1 > work/cache/a");
    lab.native("echo 9 > work/src/f; echo 9 > work/cache/a").ok();
    run.begin_exit(0);
    let end = run.finished().expect(CONFLICT);
    assert!(end.err.contains("work/src/f") && !end.err.contains("cache"), "{end}");
    assert_eq!(lab.read("work/cache/a"), "9\n");
}

#[test]
fn a_transaction_with_a_path_shows_the_original() {
    let lab = lab!();
    seed(&lab);
    off(&lab, "work/cache");
    off(&lab, "work/log");
    for end in ["abort", "commit"] {
        let open = Open::begin(&lab, "work", &[]);
        open.sh(&format!("ls -lR . > /dev/null; echo {end} > cache/{end}; echo {end} >> log")).ok();
        open.sh(&format!("echo {end} > src/{end}")).ok();
        assert_eq!(lab.read(format!("work/cache/{end}")), format!("{end}\n"));
        assert!(lab.read("work/log").ends_with(&format!("{end}\n")));
        assert!(!lab.has(format!("work/src/{end}")));
        // A plain program, and a run, at the same time.
        lab.native("echo plain > work/cache/a; chmod 750 work/cache; echo plain >> work/log").ok();
        assert_eq!(open.sh("cat cache/a; tail -n 1 log").ok().out, "plain\nplain\n");
        lab.run(&["--retries=0"], "echo run > work/cache/a; exit 3").expect(3);
        assert_eq!(open.sh("cat cache/a").ok().out, "run\n");
        // A visit has it, too.
        let visit = ["enter", &open.id, "--", "sh", "-c", "echo visit >> log; cat cache/a"];
        assert_eq!(lab.do_systx(visit).ok().out, "run\n");
        assert!(lab.read("work/log").ends_with("visit\n"));
        open.systx(end).ok();
        assert!(!open.path.exists());
        assert_eq!(lab.has(format!("work/src/{end}")), end == "commit");
        assert_eq!(lab.read(format!("work/cache/{end}")), format!("{end}\n"));
    }
    let refused = lab.do_systx(["begin", "work/cache"]).expect(1);
    assert!(refused.err.contains("protect on") && refused.err.contains("work/cache"), "{refused}");
    // What is mounted in the original, or comes to be, stays when the view goes.
    let mount = "mkdir -p work/cache/m; mount -t tmpfs none work/cache/m; touch work/cache/m/there";
    lab.native("mount --make-shared $PWD").ok();
    let open = Open::begin(&lab, "work", &[]);
    lab.native(mount).ok();
    open.systx("abort").ok();
    assert!(lab.has("work/cache/m/there"));
    lab.native("umount work/cache/m; mount --make-private $PWD").ok();
}

/// Marks in marks, and beside them by name; read-only transactions, which leave what they do there.
#[test]
fn marks_may_lie_in_each_other() {
    let lab = lab!();
    lab.native("mkdir -p d/c/deep d/c-x d/e; touch d/c/f").ok();
    for path in ["d/c/deep", "d/c-x", "d/c", "d/c/f"] {
        off(&lab, path);
    }
    // In one that holds already there is nothing to mark.
    let listed = |lab: &Lab| lab.do_systx(["protect"]).ok().out.lines().count();
    assert_eq!(listed(&lab), 3);
    let write = "for d in c c/deep c-x e; do echo $0 > $d/$0; done; echo $0 >> c/f";
    let there = |who: &str| ["c", "c/deep", "c-x", "e"].map(|d| lab.has(format!("d/{d}/{who}")));
    let open = Open::begin(&lab, "d", &[]);
    open.sh(&write.replace("$0", "open")).ok();
    assert_eq!(there("open"), [true, true, true, false]);
    open.systx("abort").ok();
    lab.run(&["--read-only"], &format!("cd d; {}", write.replace("$0", "reader"))).ok();
    assert_eq!(there("reader"), [true, true, true, false]);
    // The inner one is still marked when the outer one is not.
    lab.do_systx(["protect", "on", "d/c"]).ok();
    assert!(is_protected(&lab, "d/c/f") && !is_protected(&lab, "d/c/deep"));
    lab.run(&[], &format!("cd d; {}; exit 3", write.replace("$0", "run"))).expect(3);
    assert_eq!(there("run"), [false, true, true, false]);
}

#[test]
fn several_daemons_of_a_user_see_it_and_no_store_lies_in_it() {
    let lab = lab!(Fs::Ext4);
    lab.native("mkdir cache other data; touch data/f").ok();
    let state = lab.outside().join("state");
    fs::create_dir(&state).expect("ours");
    let by = |daemon: &str, args: &[&str]| {
        let dir = lab.outside().join(daemon);
        fs::create_dir_all(&dir).expect("ours");
        chmod(&dir, 0o700);
        let mut command = lab.systx(args);
        command.env("SYSTX_STATE_DIR", &state).env("SYSTX_RUNTIME_DIR", &dir);
        finish(command, Limits::default(), &lab)
    };
    let script = ["run", "--", "sh", "-c", "echo 1 > cache/x; echo 1 > data/x; exit 3"];
    // Both are there before anything is marked.
    for daemon in ["one", "two"] {
        by(daemon, &script).expect(3);
        assert!(!lab.has("cache/x"));
    }
    by("one", &["protect", "off", "cache"]).ok();
    by("two", &script).expect(3);
    assert!(lab.has("cache/x") && !lab.has("data/x"));
    by("two", &["protect", "on", "cache"]).ok();
    assert!(by("one", &["protect", "cache"]).ok().out.ends_with("cache: protected\n"));
    by("one", &["protect", "off", "other"]).ok();
    let store = ["run", "--store", "other/store", "--", "touch", "data/made"];
    let refused = by("two", &store).expect(125);
    assert!(refused.err.contains("systx protect on") && !lab.has("data/made"), "{refused}");
}

#[test]
fn a_kept_transaction_goes_on_as_it_began() {
    let lab = lab!();
    seed(&lab);
    lab.run(&["--on-exit=keep"], "echo kept > work/src/f; echo kept > work/cache/a").ok();
    let before = lab.open_ids().remove(0);
    let told = lab.do_systx(["protect", "off", "work/cache"]).ok();
    assert!(told.err.contains("go on as they began"), "{told}");
    lab.run(&["--on-exit=keep"], "echo 2 > work/src/g; echo 2 > work/cache/b").ok();
    let after = lab.open_ids().into_iter().find(|id| *id != before).expect("two are kept");
    assert!(lab.has("work/cache/b") && !lab.has("work/src/g"));
    // Who visits finds what it began with.
    let visit =
        |id: &str, script: &str| lab.do_systx(["enter", id, "--", "sh", "-c", script]).ok().out;
    assert_eq!(visit(&before, "cat work/cache/a; echo in > work/cache/in"), "kept\n");
    assert_eq!(visit(&after, "cat work/cache/a; echo in2 > work/cache/in2"), "0\n");
    assert!(!lab.has("work/cache/in") && lab.has("work/cache/in2"));
    let status = lab.do_systx(["status", &after]).ok().out;
    assert!(status.contains("unprotected: ") && status.contains("work/cache"), "{status}");
    lab.do_systx(["abort", &after]).ok();
    assert!(lab.has("work/cache/b") && !lab.has("work/src/g"));
    lab.do_systx(["commit", &before]).ok();
    assert_eq!(lab.read("work/cache/a") + &lab.read("work/cache/in"), "kept\nin\n");
}

/// View 0 serves it, to all: what programs have there is the same file.
#[test]
fn in_a_guarded_directory_nobody_loses_over_it() {
    let lab = lab!();
    seed(&lab);
    lab.guard("work");
    off(&lab, "work/cache");
    off(&lab, "work/log");
    let open = Open::begin(&lab, "work", &[]);
    let mut run = lab.shell(&["--retries=0"]);
    run.eval("ls -l work work/cache; echo run > work/cache/a; echo run > work/src/run");
    open.sh("ls -l . cache; cat cache/a; echo open > cache/b; echo open > src/open").ok();
    lab.native(
        "cat work/cache/*; echo plain > work/cache/a; chmod 711 work/cache; echo x > work/log",
    )
    .ok();
    lab.native("mv work/cache/b work/cache/c; touch work/cache/b; chmod 600 work/log").ok();
    assert_eq!(run.eval("cat work/cache/a; ls work/cache; cat work/log"), "plain\na\nb\nc\nx\n");
    assert_eq!(open.sh("cat cache/a cache/c log").ok().out, "plain\nopen\nx\n");
    run.exit(0).ok();
    open.systx("commit").ok();
    assert_eq!(lab.read("work/src/run") + &lab.read("work/src/open"), "run\nopen\n");
    if lab.fs != Fs::Volume {
        lab.kill_and_come_back();
        assert!(!is_protected(&lab, "work/cache") && !guard_mounts(&lab.root()).is_empty());
        lab.run(&["--retries=0"], "echo 2 > work/cache/a; exit 3").expect(3);
        assert_eq!(lab.read("work/cache/a"), "2\n");
    }
    lab.unguard("work");
    assert!(!is_protected(&lab, "work/cache/a"));
}

#[test]
fn it_is_told_what_is_protected_and_why() {
    let lab = lab!();
    seed(&lab);
    assert!(is_protected(&lab, "work/cache"));
    let told = lab.do_systx(["protect", "off", "work/cache"]).ok();
    assert!(told.err.contains("work/cache: not protected"), "{told}");
    // What is done already is fine.
    off(&lab, "work/cache");
    off(&lab, "work/cache/a");
    let told = lab.do_systx(["protect", "work/cache/a"]).ok().out;
    let (file, dir) = (lab.path("work/cache/a"), lab.path("work/cache"));
    assert_eq!(told, format!("{}: not protected, as {}\n", file.display(), dir.display()));
    lab.native("mkdir work/cache/made").ok();
    let json = lab.do_systx(["protect", "--json", "work/cache/made"]).ok().json();
    assert_eq!(json["protection"]["mark"], dir.to_str().expect("UTF-8"), "{json}");
    assert_eq!(lab.do_systx(["protect"]).ok().out, format!("{}: not protected\n", dir.display()));
    let config = lab.do_systx(["config"]).ok().out;
    assert!(config.contains("unprotected  "), "{config}");
    // Not by itself.
    let refused = lab.do_systx(["protect", "on", "work/cache/a"]).expect(1);
    let hint = format!("systx protect on {}", dir.display());
    assert!(refused.err.contains(&hint), "{refused}");
    assert!(!is_protected(&lab, "work/cache/a"));
    lab.do_systx(["protect", "on", "work/cache"]).ok();
    lab.do_systx(["protect", "on", "work/cache"]).ok();
    assert!(is_protected(&lab, "work/cache/a"));
    assert_eq!(lab.do_systx(["protect"]).ok().out, "");
    for wrong in [&["protect", "on"][..], &["protect", "maybe", "work"], &["protect", "off"]] {
        lab.do_systx(wrong).expect(2);
    }
    lab.do_systx(["protect", "absent"]).expect(1).says("absent");
}

#[test]
fn what_cannot_be_left_unprotected_is_refused_by_name() {
    let lab = lab!();
    seed(&lab);
    lab.native("ln -s cache work/link; mkfifo work/fifo; mkdir work/m; mount -t tmpfs none work/m")
        .ok();
    lab.run(&[], "echo 1 > work/src/f").ok();
    let open = Open::begin(&lab, "work/src", &[]);
    let inside = open.path.join("f").to_str().expect("UTF-8").to_owned();
    let root = lab.root().to_str().expect("UTF-8").to_owned();
    let cases = [
        ("/", "/ is always protected"),
        ("work/link", "symbolic link"),
        ("work/fifo", "neither a directory nor a regular file"),
        ("work/m", "mount point"),
        (root.as_str(), "mount point"),
        ("work/absent", "nothing at"),
        ("/proc/self", "/proc"),
        (inside.as_str(), "open transaction"),
    ];
    for (path, why) in cases {
        let refused = lab.do_systx(["protect", "off", path]).expect(1);
        assert!(refused.err.contains(why), "{path}: {refused}");
    }
    open.systx("abort").ok();
    lab.native("umount work/m").ok();
    for (path, in_it) in
        [(lab.path(".systx"), "d"), (lab.outside().with_file_name("run"), "ledger")]
    {
        // A volume has no directory for its store.
        for path in [path.clone(), path.join(in_it)].iter().filter(|path| path.exists()) {
            let path = path.to_str().expect("UTF-8");
            let refused = lab.do_systx(["protect", "off", path]).expect(1);
            assert!(refused.err.contains("systx's own files"), "{path}: {refused}");
        }
    }
    assert_eq!(lab.do_systx(["protect"]).ok().out, "");
    // In a run nothing of this can be changed.
    let binary = lab.binary().display().to_string();
    lab.run(&[], &format!("! {binary} protect off work/cache")).ok();
    assert!(is_protected(&lab, "work/cache"));
    // There would be nothing to guard.
    off(&lab, "work/src");
    if lab.fs != Fs::Volume {
        let refused = lab.do_systx(["mount", "work/src"]).expect(1);
        assert!(refused.err.contains("protect on"), "{refused}");
        // Nor is anything left out where somebody else decides.
        let certified = ["mount", "--certifier", "/run/nobody", "work"];
        let refused = lab.do_systx(certified).expect(1);
        assert!(
            refused.err.contains("protect on") && refused.err.contains("work/src"),
            "{refused}"
        );
        lab.do_systx(["protect", "on", "work/src"]).ok();
        lab.do_systx(certified).ok();
        let refused = lab.do_systx(["protect", "off", "work/src"]).expect(1);
        assert!(refused.err.contains("certifier") && is_protected(&lab, "work/src"), "{refused}");
        let refused = lab.do_systx(["protect", "off", "work"]).expect(1);
        assert!(refused.err.contains("mount point"), "{refused}");
        lab.native("mkdir -p outer/inner").ok();
        lab.do_systx(["mount", "outer/inner"]).ok();
        let refused = lab.do_systx(["protect", "off", "outer"]).expect(1);
        assert!(refused.err.contains("outer/inner, which is guarded"), "{refused}");
        lab.do_systx(["umount", "outer/inner"]).ok();
        lab.do_systx(["umount", "work"]).ok();
    }
}

#[test]
fn nothing_leads_over_the_border_in_one_step() {
    let lab = lab!();
    seed(&lab);
    off(&lab, "work/cache");
    let mut run = lab.shell(&[]);
    let rename = "python3 -c 'import os,sys; os.rename(*sys.argv[1:])'";
    let cases = [
        ("ln work/src/f work/cache/f", "ross-device"),
        ("ln work/cache/a work/src/a", "ross-device"),
        (&*format!("{rename} work/src/f work/cache/f"), "ross-device"),
        ("rmdir work/cache", "busy"),
        (&*format!("{rename} work/cache work/other"), "busy"),
    ];
    for (script, why) in cases {
        let (said, code) = run.try_eval(script).expect("the run lives");
        assert!(code != 0 && said.contains(why), "{script}: {said}");
    }
    // A copy is two changes, of which one is the transaction's.
    run.eval("mv work/src/f work/cache/moved; mv work/cache/a work/src/moved");
    assert!(lab.has("work/cache/moved") && !lab.has("work/cache/a"), "at once");
    assert!(lab.has("work/src/f") && !lab.has("work/src/moved"), "not yet");
    run.exit(3).expect(3);
    assert!(lab.has("work/src/f") && lab.has("work/cache/moved") && !lab.has("work/src/moved"));
    // By its name outside a file is protected, whatever other names it has.
    lab.native("ln work/src/f work/cache/f").ok();
    let mut run = lab.shell(&["--retries=0"]);
    assert_eq!(run.eval("cat work/src/f"), "0\n");
    lab.native("echo 2 > work/cache/f").ok();
    run.begin_exit(0);
    // Nothing was changed in it; but it did not see one state.
    let end = run.finished().expect(CONFLICT);
    assert!(end.err.contains("work/src/f"), "{end}");
}

#[test]
fn the_mark_is_of_what_was_marked() {
    let lab = lab!();
    seed(&lab);
    off(&lab, "work/cache");
    off(&lab, "work/log");
    lab.native("mv work/cache work/moved; mv work/log work/log.1; echo new > work/log").ok();
    for path in ["work/moved", "work/log", "work/log.1"] {
        assert!(is_protected(&lab, path), "{path}");
    }
    lab.native("mkdir work/cache").ok();
    assert!(is_protected(&lab, "work/cache"));
    let told = lab.do_systx(["protect"]).ok().out;
    assert_eq!(told.matches("not there any more").count(), 2, "{told}");
    lab.run(&[], "echo 1 > work/cache/x; echo 1 > work/log; echo 1 > work/moved/a; exit 3")
        .expect(3);
    assert!(!lab.has("work/cache/x") && lab.read("work/log") == "new\n");
    assert_eq!(lab.read("work/moved/a"), "0\n");
    // It comes back, with its mark; and what is there now can have one of its own.
    lab.native("rmdir work/cache; mv work/moved work/cache").ok();
    assert!(!is_protected(&lab, "work/cache"));
    off(&lab, "work/log");
    lab.run(&[], "echo 1 > work/cache/x; echo 1 > work/log; exit 3").expect(3);
    assert!(lab.has("work/cache/x") && lab.read("work/log") == "1\n");
    // A directory around it that a transaction moves takes it along, without the mark.
    lab.run(&[], "mv work elsewhere; echo 2 > elsewhere/cache/x").ok();
    assert_eq!(lab.read("elsewhere/cache/x"), "2\n");
    assert!(is_protected(&lab, "elsewhere/cache"));
}

#[test]
fn what_was_committed_before_can_be_taken_back_unless_it_was_changed_since() {
    let lab = lab!();
    seed(&lab);
    lab.run(&[], "echo 1 > work/cache/a; echo 1 > work/cache/b; echo 1 > work/src/f").ok();
    let id = lab.logged_ids().remove(0);
    off(&lab, "work/cache");
    assert!(lab.do_systx(["diff", &id]).ok().out.contains("work/cache/a"));
    lab.do_systx(["undo", &id]).ok();
    assert!(lab.read("work/cache/a") == "0\n" && !lab.has("work/cache/b"));
    lab.do_systx(["redo"]).ok();
    assert_eq!(lab.read("work/cache/a") + &lab.read("work/src/f"), "1\n1\n");
    lab.run(&[], "echo 2 > work/cache/a; exit 3").expect(3);
    lab.do_systx(["recover"]).ok();
    assert_eq!(lab.read("work/cache/a"), "2\n");
    let refused = lab.do_systx(["undo"]).expect(1);
    assert!(refused.err.contains("work/cache/a"), "{refused}");
    assert_eq!(lab.read("work/cache/a"), "2\n");
}

#[test]
fn a_daemon_that_is_killed_leaves_a_list_that_holds() {
    let lab = lab!(Fs::Tmpfs);
    let mut marked: Vec<String> = Vec::new();
    for round in 0..12 {
        let dir = format!("d{round}");
        fs::create_dir(lab.path(&dir)).expect("the lab is writable");
        // It is there, and does nothing else.
        lab.do_systx(["list"]).ok();
        let running = Running::start(lab.systx(["protect", "off", &dir]), Limits::default());
        for _ in 0..(round * 40_000) {
            std::hint::spin_loop();
        }
        lab.kill_daemon();
        let end = running.finish(&lab);
        if end.code == 0 {
            marked.push(dir);
        }
        let told = lab.do_systx(["protect"]).ok();
        assert!(!told.err.contains("not used"), "{told}");
        for dir in &marked {
            assert!(told.out.contains(&format!("/{dir}: not protected\n")), "{told}");
        }
    }
    // One that comes to be while another one has marked something sees it, too.
    let dir = lab.path("d0").to_str().expect("UTF-8").to_owned();
    off(&lab, &dir);
    lab.kill_daemon();
    lab.run(&[], "echo 1 > d0/x; exit 3").expect(3);
    assert!(lab.has("d0/x"));
}

#[test]
fn a_list_that_is_damaged_protects_everything_and_says_so() {
    let lab = lab!(Fs::Tmpfs);
    seed(&lab);
    off(&lab, "work/cache");
    let list = lab.outside().with_file_name("run").join("ledger/unprotected");
    let list = if list.exists() { list } else { panic!("no list at {}", list.display()) };
    let good = fs::read(&list).expect("it is readable");
    for bad in [&good[..good.len() / 2], b"", b"{\"version\":9,\"marks\":[]}"] {
        fs::write(&list, bad).expect("it is writable");
        let end = lab.run(&[], "echo 1 > work/cache/a; exit 3").expect(3);
        assert!(end.err.contains("ledger/unprotected is not used"), "{end}");
        assert_eq!(lab.read("work/cache/a"), "0\n");
        let refused = lab.do_systx(["protect", "off", "work/src"]).expect(1);
        assert!(refused.err.contains("rm ") && refused.err.contains("unprotected"), "{refused}");
    }
    fs::write(&list, good).expect("it is writable");
    assert!(!is_protected(&lab, "work/cache"));
}

#[test]
fn a_user_marks_what_is_the_users() {
    let lab = match Lab::on(Fs::Ext4).and_then(Lab::as_known_user) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    seed(&lab);
    let roots = lab.path("roots");
    fs::create_dir(&roots).expect("root may");
    assert_ne!(fs::metadata(&roots).expect("made").uid(), lab.uid());
    let refused = lab.do_systx(["protect", "off", "roots"]).expect(1);
    assert!(refused.err.contains("only its owner"), "{refused}");
    off(&lab, "work/cache");
    let mut run = lab.shell(&["--retries=0"]);
    run.eval("ls -l work > /dev/null; echo 1 > work/cache/a; echo 1 > work/src/f");
    lab.native("echo 2 > work/cache/a").ok();
    assert_eq!(run.eval("cat work/cache/a"), "2\n");
    run.exit(3).expect(3);
    assert_eq!(lab.read("work/cache/a") + &lab.read("work/src/f"), "2\n0\n");
    // fusermount3 would have to mount it.
    let refused = lab.do_systx(["begin", "work"]).expect(1);
    let path = lab.path("work/cache").display().to_string();
    assert!(refused.err.contains(&format!("systx protect on {path}")), "{refused}");
    Open::begin(&lab, "work/src", &[]).systx("abort").ok();
}

/// Other users' views are in the list of mounts, which everybody may read.
#[test]
fn guests_are_told_that_they_cannot_have_it() {
    let s = users!();
    if s.lab.fs == Fs::Volume {
        skip!("a directory of a volume is not guarded by itself");
    }
    s.lab.native(&format!("mkdir -p g/ann/cache g/ann/src; chown -R {ANN} g/ann")).ok();
    s.lab.do_systx(["mount", "g"]).ok();
    off(&s.lab, "g/ann/cache");
    let said = s.refused(ANN, "exec $SYSTX begin g/ann");
    let hint = format!("systx protect on {}", s.lab.path("g/ann/cache").display());
    assert!(said.contains(&hint), "{said}");
    let (id, _) = s.begin(ANN, "g/ann/src");
    s.sh(ANN, &format!("exec $SYSTX abort {id}")).ok();
    let said = s.refused(ANN, "exec $SYSTX protect off g/ann/src");
    assert!(said.contains("root can mark it"), "{said}");
    s.lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn a_thread_is_told_that_it_cannot_have_it() {
    let lab = lab!(Fs::Ext4);
    let guarded = Guarded::new(&lab, env!("CARGO_BIN_EXE_systx-e2e-threads"));
    lab.native("mkdir guarded/cache guarded/other").ok();
    off(&lab, "guarded/cache");
    let refused = || finish(guarded.program("abort", 0), Limits::default(), &lab);
    let said = refused();
    assert!(said.code != 0 && said.err.contains("not supported"), "{said}");
    lab.do_systx(["protect", "on", "guarded/cache"]).ok();
    guarded.case("abort", 0);
}

/// The mark is on another file system than the one that the run works on.
#[test]
fn a_run_over_several_file_systems_leaves_it_out_on_each() {
    let room: Room = room!();
    room.sh(
        "mkdir a/cache b/cache m/cache; cd a; for d in a b m; do $S protect off $D/$d/cache; done",
    )
    .ok();
    let script = "for d in a b m; do echo 1 > $D/$d/cache/x; echo 1 > $D/$d/y; done; exit 3";
    room.sh(&format!("cd a; $S run -- sh -c '{script}'")).failed();
    room.sh("cat a/cache/x b/cache/x m/cache/x; ! cat a/y; ! cat b/y; ! cat m/y").ok();
}
