//! Runs on an overlay file system, the root of most containers: what lies in a lower layer is
//! changed, removed, undone, and a daemon is killed in the middle of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;
use systx_e2e::random::Random;
use systx_e2e::run::{HANG, wait_readable};
use systx_e2e::stop::Stop;
use systx_e2e::{Fs, Lab, Tree, lab, skip};

/// As root mounts them, and as who is root only in a user namespace.
const KINDS: [&str; 2] = ["", ",userxattr"];
const CONFLICT: i32 = 75;

macro_rules! overlaid {
    ($options:expr, $script:expr) => {
        match Lab::overlaid($options, $script) {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

/// The lower layer.
const LOWER: &str = "mkdir -p dir/sub tree/deep/er empty opaque/a mode odd; echo old > file; echo log > log; echo r > replaced; \
    echo t > truncated; echo m > moved; echo g > gone; echo k > dir/k; echo s > dir/sub/s; ln -s file link; ln -s x tree/link; \
    for i in 1 2 3; do echo $i > tree/deep/er/$i; done; echo top > tree/top; mkfifo tree/fifo odd/fifo; echo o > opaque/a/o; \
    mkdir opaque/b; head -c 300000 /dev/zero > large; echo x > tree/xattr; echo w > was_file; mkdir was_dir; echo i > was_dir/i; \
    ln -s a odd/symlink; echo c > dir/carried; chmod 4755 mode; chown 7:8 mode";

/// What programs do.
const WORK: &str = "echo new > made; echo more >> log; echo again > replaced.new; mv replaced.new replaced; : > truncated; \
    mv moved dir/moved; rm gone; chmod 600 dir/k; chown 5:6 file; touch -d @1000 file; ln -sfn there link; ln file second; \
    printf X | dd of=large bs=1 seek=9000 conv=notrunc 2>/dev/null; head -c 400000 /dev/zero | tr '\\0' s > staged; \
    mv dir/carried .; rm -r tree; rmdir empty; rm -r opaque; mkdir opaque; echo n > opaque/n; mkdir -p new/deep; \
    echo d > new/deep/d; head -c 400000 /dev/zero | tr '\\0' z > new/deep/staged; rm was_file; mkdir was_file; echo f > was_file/f; \
    rm -r was_dir; echo d > was_dir; mv odd/symlink odd/renamed; mv odd/fifo .; chmod 700 mode; mv dir/sub sub";

/// With attributes that no program of every system sets.
fn with_attributes(lab: &Lab) {
    for (name, key) in [("large", "user.one"), ("dir", "user.two")] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(lab.layer("lower").join(name), key, b"value", flags).unwrap();
    }
}

/// What is in the upper layer, but for the store.
fn copied_up(lab: &Lab) -> Vec<String> {
    let names = fs::read_dir(lab.layer("upper")).unwrap().map(|e| e.unwrap().file_name());
    names.map(|n| n.into_string().unwrap()).filter(|n| n != ".systx").collect()
}

#[test]
fn what_programs_do_to_a_lower_layer_is_committed_undone_and_redone() {
    for kind in KINDS {
        let (native, lab) = (overlaid!(kind, LOWER), overlaid!(kind, LOWER));
        for lab in [&native, &lab] {
            with_attributes(lab);
        }
        native.native(WORK).ok();
        let (before, after) = (lab.tree(), native.tree());
        assert!(before.differences(&after).len() > 30);
        lab.run(&[], WORK).ok().says("committed");
        after.assert_same(&lab.tree(), &format!("committed{kind}"));
        for _ in 0..2 {
            lab.do_systx(["undo"]).ok();
            before.assert_same(&lab.tree(), &format!("undone{kind}"));
            lab.do_systx(["redo"]).ok();
            after.assert_same(&lab.tree(), &format!("redone{kind}"));
        }
        // Other commits on what was brought back, and on what was made.
        lab.do_systx(["undo"]).ok();
        lab.run(&[], "rm -r tree dir; echo x >> file; echo y > opaque/a/o").ok();
        lab.run(&[], "echo z > tree").ok();
        assert!(!lab.has("dir") && lab.read("tree") == "z\n" && lab.read("file") == "old\nx\n");
        lab.do_systx(["undo"]).ok();
        lab.do_systx(["undo"]).ok();
        before.assert_same(&lab.tree(), &format!("all undone{kind}"));
    }
}

#[test]
fn what_is_not_committed_copies_nothing_up() {
    let lab = overlaid!("", LOWER);
    let before = lab.tree();
    lab.run(&[], &format!("{WORK}; find . > /dev/null; cat file > /dev/null; exit 3")).expect(3);
    assert_eq!(copied_up(&lab), [""; 0]);
    lab.run(&["--on-exit", "keep"], &format!("cat large | wc -c; {WORK}")).ok();
    let [id] = &lab.open_ids()[..] else { panic!("one is kept") };
    let diff = lab.do_systx(["diff", id]).ok();
    assert!(diff.out.contains("tree/deep/er/1") && diff.out.contains("+more"), "{}", diff.out);
    lab.do_systx(["abort", id]).ok();
    assert_eq!(copied_up(&lab), [""; 0]);
    before.assert_same(&lab.tree(), "dropped");
    lab.run(&[], "cat dir/k > /dev/null; echo x > made").ok();
    assert_eq!(copied_up(&lab), ["made"]);
}

#[test]
fn names_of_one_file_that_a_run_has_met_stay_names_of_one_file() {
    for kind in KINDS {
        let lower = "mkdir d; echo old > one; ln one two; ln one d/three; ln one unmet; ln -s x sym; ln sym sym2";
        let lab = overlaid!(kind, lower);
        let ino = |name: &str| lab.path(name).metadata().unwrap().ino();
        let modes = || ["one", "two", "d/three"].map(|n| lab.path(n).metadata().unwrap().mode());
        lab.run(&[], "cat d/three two > /dev/null; chmod 600 two; echo new >> one; mv d/three .")
            .ok();
        for name in ["two", "three"] {
            assert_eq!((lab.read(name), ino(name)), ("old\nnew\n".into(), ino("one")), "{name}");
        }
        assert_eq!(lab.read("unmet"), "old\n");
        lab.do_systx(["undo"]).ok();
        assert_eq!(["one", "two", "d/three"].map(|name| lab.read(name)), ["old\n"; 3]);
        assert_eq!(modes(), [0o100644; 3]);
        lab.run(&[], "chown -R 5:5 .").ok();
        for name in ["one", "two", "d/three", "unmet"] {
            assert_eq!(lab.path(name).metadata().unwrap().uid(), 5, "{name}");
        }
    }
}

#[test]
fn an_outsiders_change_is_a_conflict_and_a_look_is_none() {
    let lab = overlaid!("", LOWER);
    // Looks, and what is beside it.
    let mut run = lab.shell(&[]);
    run.eval("cat file dir/k; ls; echo mine > file");
    lab.native("cat file large > /dev/null; find . > /dev/null; echo beside >> dir/sub/s").ok();
    run.exit(0).ok();
    assert_eq!(lab.read("file"), "mine\n");
    // A change of what was read.
    let mut run = lab.shell(&[]);
    run.eval("cat dir/k; echo x > made");
    lab.native("echo theirs > dir/k").ok();
    run.exit(0).expect(CONFLICT).says("dir/k");
    assert!(!lab.has("made") && lab.read("dir/k") == "theirs\n");
    // Opened for writing, nothing written: the file is another one below.
    let mut run = lab.shell(&[]);
    run.eval("cat log; echo x > made");
    lab.native(": >> log").ok();
    run.exit(0).expect(CONFLICT).says("log");
    // What is in a removed directory.
    let mut run = lab.shell(&[]);
    run.eval("rm -r tree");
    lab.native("echo theirs > tree/deep/new").ok();
    run.exit(0).expect(CONFLICT);
    assert!(lab.read("tree/deep/new") == "theirs\n" && lab.has("tree/top"));
    // Two runs.
    let (mut a, mut b) = (lab.shell(&[]), lab.shell(&[]));
    a.eval("echo a >> log");
    b.eval("echo b >> large; rm -r opaque");
    b.exit(0).ok();
    a.exit(0).ok();
    assert!(lab.read("log") == "log\na\n" && !lab.has("opaque"));
}

#[test]
fn a_lock_copies_a_file_up_and_is_no_change() {
    let lab = overlaid!("", LOWER);
    if systx_e2e::lab::find_program("flock").is_none() {
        skip!("there is no flock(1)");
    }
    lab.run(&[], "cat file && flock file sh -c 'cat file >> log'").ok();
    assert_eq!(lab.read("log"), "log\nold\n");
}

#[test]
fn renames_and_nodes_are_refused_as_by_the_overlay() {
    let lab = overlaid!("", LOWER);
    let script = "mkdir new && echo x > new/x; for d in dir tree new; do \
        perl -e 'print rename($ARGV[0], \"$ARGV[0].2\") ? \"done \" : ($!+0).\" \"' $d; done; \
        mknod hole c 0 0 2>/dev/null && echo hole; mknod fine c 1 3 && mv dir other && ls other; true";
    let native = overlaid!("", LOWER);
    let wanted = native.native(script).ok().out;
    assert!(wanted.starts_with("18 18 done"), "{wanted}");
    let said = lab.run(&["-q"], script).ok().out;
    assert_eq!(said, wanted);
    native.tree().assert_same(&lab.tree(), "as without systx");
}

/// Unmounts in the end.
struct Mounted<'a>(&'a Lab, &'static str);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.0.kill_all();
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path(self.1)).status();
    }
}

#[test]
fn where_numbers_do_not_last_and_where_runs_alone_work_is_said() {
    let lab = lab!(Fs::Ext4);
    lab.native(
        "mkdir low over mem; echo x > low/f; mount -t tmpfs systx-e2e mem; mkdir mem/up mem/work",
    )
    .ok();
    let _mem = Mounted(&lab, "mem");
    for (xino, works) in [("off", false), ("on", true)] {
        let mount = format!(
            "mount -t overlay -o lowerdir=low,upperdir=mem/up,workdir=mem/work,xino={xino} overlay over"
        );
        lab.native(&mount).ok();
        let _over = Mounted(&lab, "over");
        let mut command = lab.systx(["run", "--", "sh", "-c", "echo y >> f"]);
        command.current_dir(lab.path("over"));
        let said = systx_e2e::run::finish(command, Default::default(), &lab);
        if works {
            said.ok();
            assert_eq!(lab.read("over/f"), "x\ny\n");
        } else {
            said.says("layers on several file systems").says("xino=on");
            assert!(!lab.has("over/.systx") && lab.read("over/f") == "x\n");
        }
    }
    let lab = overlaid!("", LOWER);
    for args in [["begin", "dir"], ["mount", "dir"]] {
        let said = lab.do_systx(args).expect(1);
        assert!(said.err.contains("only `systx run` works there"), "{}", said.err);
    }
    lab.run(&[], "echo x > made").ok();
    assert_eq!(copied_up(&lab), ["made"]);
}

#[test]
fn doctor_says_what_kind_of_overlay_it_is() {
    let lab = overlaid!(",volatile,userxattr", LOWER);
    let said = lab.do_systx(["doctor"]).out;
    for words in
        ["an overlay, with 1 lower layer, userxattr", "volatile: nothing survives a power cut"]
    {
        assert!(said.contains(words), "{said}");
    }
    let before = lab.tree();
    lab.run(&[], WORK).ok();
    lab.kill_daemon();
    lab.do_systx(["undo"]).ok();
    before.assert_same(&lab.tree(), "undone by another daemon");
}

/// One run whose daemon dies at its `n`-th call, or when all is done. What calls it made from the
/// end of the command on.
fn die(lab: &Lab, n: Option<usize>) -> Vec<&'static str> {
    let mut run = lab.shell(&[]);
    run.eval(WORK);
    let daemon = systx_e2e::lab::one(lab.daemons());
    let gone = systx_e2e::lab::watch(daemon);
    let pid = rustix::process::Pid::from_raw(daemon as i32).unwrap();
    let stop = Stop::at_call(pid, n);
    run.begin_exit(0);
    let told = run.finished().code == 0;
    if told {
        // What is to be done after the answer is not waited for.
        lab.kill_daemon();
    }
    assert!(wait_readable(&gone, Instant::now() + HANG), "it lives");
    stop.wait()
}

#[test]
fn a_daemon_that_is_killed_in_a_commit_leaves_all_or_nothing() {
    let mut random = Random::from_environment();
    let mut seen: BTreeMap<bool, usize> = BTreeMap::new();
    let mut made = None;
    for kind in KINDS {
        let (native, lab) = (overlaid!(kind, LOWER), overlaid!(kind, LOWER));
        let before = lab.tree();
        native.native(WORK).ok();
        let after = native.tree();
        drop(native);
        let all = *made.get_or_insert_with(|| die(&lab, None).len());
        drop(lab);
        let trials = if std::env::var_os("SYSTX_LONG").is_some() { all } else { 10 };
        for k in 0..trials {
            let lab = overlaid!(kind, LOWER);
            let n = 1 + k * all / trials + random.below((all / trials).max(1) as u64) as usize;
            let calls = die(&lab, Some(n));
            let what = format!("killed at call {n} of {all}, {:?}{kind}", calls.last());
            lab.do_systx(["recover"]).ok();
            let found = lab.tree();
            let (from_before, from_after) = (before.differences(&found), after.differences(&found));
            assert!(
                from_before.is_empty() || from_after.is_empty(),
                "{what}: neither before nor after\n  {}\n\n  {}",
                from_before.join("\n  "),
                from_after.join("\n  ")
            );
            let there = from_after.is_empty();
            *seen.entry(there).or_default() += 1;
            for dir in ["t", "conflict"] {
                let path = lab.path(Path::new(".systx").join(dir));
                let left = fs::read_dir(path).into_iter().flatten().count();
                assert_eq!(left, 0, "{what}: left in {dir}");
            }
            if there {
                lab.do_systx(["undo"]).ok();
                before.assert_same(&lab.tree(), &format!("{what}, undone"));
            }
        }
    }
    eprintln!("{made:?} calls: {seen:?}");
    assert!(seen.len() == 2, "{seen:?}");
}

#[test]
fn recovery_finds_its_way_after_the_overlay_was_mounted_again() {
    for kind in KINDS {
        let mut lab = overlaid!(kind, LOWER);
        let before: Tree = lab.tree();
        lab.run(&[], WORK).ok();
        let after = lab.tree();
        lab.remount();
        after.assert_same(&lab.tree(), "mounted again");
        lab.do_systx(["undo"]).ok();
        before.assert_same(&lab.tree(), &format!("undone{kind}"));
        lab.remount();
        lab.do_systx(["redo"]).ok();
        after.assert_same(&lab.tree(), &format!("redone{kind}"));
    }
}
