//! Wrong use, broken surroundings, damaged stores: a clear message, the right exit code, nothing
//! lost.

use std::fs;
use std::path::{Path, PathBuf};
use systx_e2e::lab::tool;
use systx_e2e::random::Random;
use systx_e2e::run::{Limits, finish};
use systx_e2e::{FAILED, Finished, Fs, Lab, lab, skip};

/// A failure that a person can do something with: said on stderr, in words, by `systx`.
#[track_caller]
fn clear_failure(done: Finished, about: &[&str]) -> Finished {
    assert!(done.code != 0, "this must fail\n{done}");
    assert!(!done.err.trim().is_empty(), "nothing is said\n{done}");
    assert!(!done.err.contains("panicked"), "{done}");
    for word in about {
        assert!(done.err.contains(word), "{word:?} is not named\n{done}");
    }
    done
}

#[test]
fn unknown_and_ambiguous_ids() {
    let lab = lab!();
    lab.run(&[], "echo x > x").ok();
    for verb in ["status", "diff", "commit", "abort", "enter", "show", "undo"] {
        clear_failure(lab.do_systx([verb, "00c0ffee"]), &["00c0ffee"]);
        clear_failure(lab.do_systx([verb, "not-an-id"]), &["not-an-id"]);
    }
    for n in 0..20 {
        lab.run(&["--on-exit=keep"], &format!("echo {n} > kept-{n}")).ok();
    }
    // Twenty ids cannot all differ in the first digit.
    let ids = lab.open_ids();
    let first_digit = |id: &String| id[..1].to_owned();
    let shared = ids
        .iter()
        .map(first_digit)
        .find(|d| ids.iter().map(first_digit).filter(|e| e == d).count() > 1);
    let prefix = shared.expect("two share their first digit");
    clear_failure(lab.do_systx(["abort", &prefix]), &[]);
    assert_eq!(ids.len(), lab.open_ids().len(), "nothing was aborted");
}

#[test]
fn paths_outside_the_volume() {
    let lab = lab!();
    lab.run(&["--on-exit=keep"], "echo x > x").ok();
    let id = lab.open_ids().remove(0);
    for path in ["/etc/passwd", "/etc", "../../etc", "no/such/change"] {
        clear_failure(lab.do_systx(["commit", &id, path]), &[]);
    }
    assert!(!lab.has("x"));
    lab.do_systx(["commit", &id]).ok();
    assert!(lab.has("x"));
}

#[test]
fn wrong_options_and_directories() {
    let lab = lab!();
    lab.do_systx(["run", "--no-such-option", "--", "true"]).expect(FAILED);
    lab.do_systx(["run", "--on-exit=perhaps", "--", "true"]).expect(FAILED);
    lab.do_systx(["run", "--isolation=none", "--", "true"]).expect(FAILED);
    lab.do_systx(["run"]).expect(FAILED);
    lab.do_systx(["run", "--"]).expect(FAILED);
    lab.do_systx(["no-such-verb"]).expect(2);
    lab.do_systx(["log", "--no-such-option"]).expect(2);
    clear_failure(
        lab.do_systx(["run", "-C", "no/such/dir", "--", "true"]).expect(FAILED),
        &["no/such/dir"],
    );
    lab.write("file", "x");
    clear_failure(lab.do_systx(["run", "-C", "file", "--", "true"]).expect(FAILED), &["file"]);
    clear_failure(
        lab.do_systx(["run", "--root", "/no/such/root", "--", "true"]).expect(FAILED),
        &["/no/such/root"],
    );
    lab.do_systx(["--help"]).ok();
    lab.do_systx(["--version"]).ok();
    lab.do_systx(["run", "--help"]).ok();
}

#[test]
fn a_working_directory_that_is_gone() {
    let lab = lab!();
    let script =
        format!("mkdir gone; cd gone; rmdir ../gone; {} run -- true", lab.binary().display());
    clear_failure(lab.native(&script), &[]);
}

#[test]
fn a_file_system_that_is_mounted_read_only() {
    let lab = lab!();
    lab.write("file", "x\n");
    let root = lab.root();
    tool(std::process::Command::new("mount").args(["-o", "remount,ro"]).arg(&root)).unwrap();
    let done = lab.run(&[], "cat file; echo y > new");
    tool(std::process::Command::new("mount").args(["-o", "remount,rw"]).arg(&root)).unwrap();
    clear_failure(done, &["ead-only"]);
    lab.run(&[], "echo y > new").ok();
}

#[test]
fn a_mount_inside_the_volume_is_shown_and_not_written() {
    let lab = lab!();
    lab.write("nested/hidden", "below the mount\n");
    let nested = lab.path("nested");
    tool(std::process::Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&nested)).unwrap();
    fs::write(nested.join("shown"), "on the mount\n").unwrap();
    let done =
        lab.run(&[], "cat nested/shown; ls nested; (echo x > nested/new) 2>&1; echo y > beside");
    let refused = lab.run(&[], "rm -r nested");
    let renamed = lab.run(&[], "mv nested elsewhere");
    let shown = fs::read_to_string(nested.join("shown"));
    tool(std::process::Command::new("umount").arg(&nested)).unwrap();
    let done = done.ok();
    assert!(
        done.out.starts_with("on the mount\nshown\n") && done.out.contains("Read-only"),
        "{done}"
    );
    assert!(refused.code != 0 && renamed.code != 0);
    assert_eq!(shown.unwrap(), "on the mount\n");
    assert_eq!(lab.read("nested/hidden"), "below the mount\n");
    assert!(lab.has("beside") && !lab.has("nested/new"));
}

#[test]
fn no_dev_fuse() {
    let lab = lab!();
    let before = lab.tree();
    let script = format!(
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9 && \
         {b} doctor; {b} run -- sh -c 'echo x > new'",
        b = lab.binary().display()
    );
    let mut command = lab.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let done = finish(command, Limits::default(), &lab).expect(FAILED);
    clear_failure(done, &["/dev/fuse"]);
    before.assert_same(&lab.tree(), "without /dev/fuse");
}

#[test]
fn no_user_namespaces_for_an_ordinary_user() {
    let lab = lab!().as_user();
    let before = lab.tree();
    // The limit is per user namespace: one is made around the test, so that the machine keeps its
    // own.  Its ids are the machine's; only root outside may map that, so the test does, and the
    // shell inside becomes root there by its next exec.
    let as_user = format!(
        "echo 0 > /proc/sys/user/max_user_namespaces && \
         exec setpriv --reuid={0} --regid={0} --clear-groups {1} run -- sh -c 'echo x > new'",
        lab.uid(),
        lab.binary().display()
    );
    let privileged = lab.command("true");
    let mut command = std::process::Command::new("unshare");
    command
        .args(["-U", "sh", "-c", "echo pid $$; read go; exec sh -c \"$1\"", "sh", &as_user])
        .envs(privileged.get_envs().filter_map(|(k, v)| Some((k, v?))))
        .current_dir(lab.root());
    let mut inside = systx_e2e::run::Dialogue::start(&lab, command);
    inside.wait_for("pid ");
    let pid = inside.wait_for("\n").trim().to_owned();
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), "0 0 65536").unwrap();
    }
    inside.send("go\n");
    clear_failure(inside.close().expect(FAILED), &["user namespace"]);
    // The store may have been made before it was noticed.
    let after = lab.tree().without(|p| p.starts_with(".local"));
    before.assert_same(&after, "without user namespaces");
}

#[test]
fn a_second_daemon_on_the_same_store() {
    let lab = lab!();
    lab.run(&[], "echo 1 > a").ok();
    let mut shell = lab.shell(&[]);
    shell.eval("echo 2 > b");
    let other = lab.path("../run2");
    fs::create_dir(&other).unwrap();
    systx_e2e::lab::chmod(&other, 0o700);
    let mut command = lab.systx(["run", "--", "sh", "-c", "echo 3 > c"]);
    command.env("SYSTX_RUNTIME_DIR", &other);
    let done = finish(command, Limits::default(), &lab);
    // An open transaction needs no store: nobody is kept from it.
    done.ok();
    shell.exit(0).ok();
    assert!(lab.has("b") && lab.has("c"));
    // End that daemon, too.
    let mut command = lab.systx(["list"]);
    command.env("SYSTX_RUNTIME_DIR", &other);
    finish(command, Limits::default(), &lab);
    end_daemon_of(&other);
}

fn end_daemon_of(runtime: &Path) {
    let wanted = format!("SYSTX_RUNTIME_DIR={}", runtime.display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ.split(|b| *b == 0).any(|v| v == wanted.as_bytes()) {
            let pid: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn regular_files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            out.extend(regular_files(&entry.path()));
        } else if kind.is_file() {
            out.push(entry.path());
        }
    }
    out
}

/// The journal after a crash in the middle of an installation, damaged in every file at many
/// places: recovery finishes, or says what is wrong; it never panics and never touches what the
/// transaction did not.
#[test]
fn a_damaged_store() {
    let lab = lab!();
    let store = lab.path(".systx");
    lab.write("innocent/file", "not part of any transaction\n");
    for n in 0..4 {
        lab.run(&[], &format!("mkdir d{n}; for i in 1 2 3; do echo {n} > d{n}/$i; done")).ok();
    }
    lab.kill_all();
    if !store.is_dir() {
        skip!("no store directory at the root of the volume");
    }
    let files = regular_files(&store);
    assert!(!files.is_empty());
    let mut random = Random::from_environment();
    for file in files {
        let good = fs::read(&file).unwrap();
        let used = good.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
        if used == 0 || used > 8 << 20 {
            continue;
        }
        for round in 0..8 {
            let mut bad = good.clone();
            match round {
                0 => bad[..4.min(used)].fill(0xff),    // the magic
                1 if used > 8 => bad[4..8].fill(0x7f), // the version, or what is there
                2 => bad.truncate(used / 2),
                3 => bad.clear(),
                _ => {
                    let at = random.below(used as u64) as usize;
                    bad[at] ^= 1 << random.below(8);
                }
            }
            fs::write(&file, &bad).unwrap();
            for args in [&["recover"][..], &["log"], &["run", "--", "true"]] {
                let done = lab.do_systx(args);
                let what = format!("{} round {round}\n{done}", file.display());
                assert!(
                    !done.err.contains("panicked") && !lab.daemon_log().contains("panicked"),
                    "{what}"
                );
                assert!(done.code == 0 || !done.err.trim().is_empty(), "{what}");
            }
            assert_eq!(lab.read("innocent/file"), "not part of any transaction\n");
            for n in 0..4 {
                assert_eq!(lab.read(format!("d{n}/1")), format!("{n}\n"));
            }
            lab.kill_all();
            if file.exists() {
                fs::write(&file, &good).unwrap();
            }
        }
    }
}

/// Of what a file system does not take, it is known before the commit: afterwards nobody could
/// install it.
#[test]
fn more_files_than_the_file_system_has_inodes_are_no_commit() {
    let lab = match Lab::sized(Fs::Ext4FewInodes, 128) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    lab.run(&[], "echo 1 > first").ok(); // the store has its room now
    let before = lab.tree();
    let free = rustix::fs::statvfs(lab.root()).unwrap().f_ffree;
    assert!(free < 300, "{free} inodes");
    let done = lab.run(&[], &format!("for i in $(seq {free}); do echo $i > n.$i; done"));
    assert!(done.code != 0 && done.err.contains("no inodes left"), "{done}");
    before.assert_same(&lab.tree(), "more files than there can be");
    // What there is room for; the store is as good as before, also after a death.
    lab.run(&[], "for i in $(seq 20); do echo $i > n.$i; done").ok();
    lab.kill_daemon();
    lab.run(&[], "rm n.*; echo 2 > first").ok();
    assert_eq!((lab.read("first").trim(), lab.has("n.1")), ("2", false));
}

#[test]
fn an_extended_attribute_that_the_file_system_does_not_take_is_no_commit() {
    let lab = lab!(Fs::Ext4);
    lab.write("d/there", "old");
    let set = |len: u32| {
        format!(
            "echo new > d/new; echo new >> d/there; python3 -c 'import os; \
             [os.setxattr(f, \"user.big\", b\"x\" * {len}) for f in (\"d/there\", \"d/new\", \"d\")]'"
        )
    };
    let before = lab.tree();
    let done = lab.run(&[], &set(60_000));
    assert!(done.code != 0, "{done}");
    let named =
        done.err.contains("user.big") && done.err.contains(&*lab.path("d").to_string_lossy());
    assert!(named, "{done}");
    before.assert_same(&lab.tree(), "more than a file can have");
    // The store goes on, in this daemon and the next.
    lab.run(&[], &set(3000)).ok();
    lab.kill_daemon();
    lab.run(&[], "echo last > d/new").ok();
    assert_eq!((lab.read("d/there"), lab.read("d/new")), ("oldnew\n".into(), "last\n".into()));
    for (path, len) in [("d/there", 3000), ("d/new", 3000), ("d", 3000)] {
        let mut value = vec![0; 5000];
        assert_eq!(rustix::fs::getxattr(lab.path(path), "user.big", &mut value), Ok(len), "{path}");
    }
}

/// What the daemon may not write for somebody is an error of that, not its end (SIGXFSZ).
#[test]
fn a_limit_of_file_sizes_does_not_end_the_daemon() {
    let lab = lab!().as_user();
    lab.write("f", "old");
    let systx = lab.binary().display().to_string();
    let limited = |how: &str, script: &str| {
        lab.native(&format!("ulimit {how} -f 64 && exec {systx} run -- sh -c '{script}'"))
    };
    // The run starts the daemon, which cannot lift a hard limit: the journal is longer than that.
    let done = clear_failure(limited("", "echo new > f"), &["File too large"]);
    assert!(!done.err.contains("ended") && !done.err.contains("connection"), "{done}");
    let daemons = lab.daemons();
    assert_eq!(daemons.len(), 1, "it has survived: {done}");
    lab.run(&[], "cat f").ok();
    assert_eq!((lab.daemons(), lab.read("f")), (daemons, "old".into()));
    lab.kill_daemon();
    lab.run(&[], "echo new > f").ok();
    lab.kill_daemon();
    // A soft one it lifts.
    limited("-S", "echo newer > f").ok();
    assert_eq!(lab.read("f"), "newer\n");
}

#[test]
fn a_full_disk() {
    let lab = match Lab::sized(Fs::Ext4, 300) {
        Ok(lab) => lab,
        Err(why) => skip!("{why}"),
    };
    lab.run(&[], "echo 1 > first").ok(); // the store has its room now
    let before = lab.tree();
    let free = |lab: &Lab| {
        let s = rustix::fs::statvfs(lab.root()).unwrap();
        s.f_bavail * s.f_frsize
    };
    let room = free(&lab);
    // More than there is: the command fails, or the commit is refused.
    let done = lab.run(&[], "head -c 400M /dev/zero | tr '\\0' f > huge");
    assert!(done.code != 0, "{done}");
    assert!(done.err.contains("space"), "{done}");
    before.assert_same(&lab.tree(), "a full disk");
    // A command that does not care about its errors is not committed in part, either.
    let done = lab.run(&[], "head -c 400M /dev/zero | tr '\\0' f > huge; echo small > small; true");
    if done.code == 0 {
        assert!(lab.has("small"), "{done}");
        lab.native("rm -f huge small").ok();
    }
    // Files that fit in memory but not on the disk.
    lab.native(
        "head -c 1G /dev/zero > filler; rm -f ../x; sync -f .; truncate -s -2M filler; sync -f .",
    );
    let before = lab.tree();
    let done = lab.run(&[], "for i in 1 2 3 4; do head -c 5M /dev/zero | tr '\\0' g > g$i; done");
    assert!(done.code != 0 && done.err.contains("space"), "{done}");
    before.assert_same(&lab.tree(), "no room to commit");
    lab.native("rm filler").ok();
    lab.run(&[], "echo 2 > second").ok();
    lab.do_systx(["gc", "--keep", "0"]);
    assert!(free(&lab) + (16 << 20) > room, "the room is not given back");
}

#[test]
fn a_transaction_larger_than_the_journal() {
    let lab = lab!();
    let script = "mkdir many; cd many; name=$(head -c 180 /dev/zero | tr '\\0' n); \
                  seq -f \"$name-%05.0f\" 20000 | xargs touch";
    let before = lab.tree();
    let done = lab.run(&[], script);
    if done.code == 0 {
        lab.native("[ $(ls many | wc -l) = 20000 ]").ok();
    } else {
        clear_failure(done, &[]);
        before.assert_same(&lab.tree(), "a refused transaction");
    }
    lab.run(&[], "echo x > afterwards").ok();
}

#[test]
fn many_commits_go_around_the_journal() {
    let lab = lab!();
    for n in 0..60 {
        lab.run(
            &[],
            &format!("head -c 1M /dev/zero | tr '\\0' {} > f{}; echo {n} > last", n % 10, n % 7),
        )
        .ok();
    }
    assert_eq!(lab.read("last"), "59\n");
    lab.do_systx(["gc"]).ok();
    lab.kill_daemon();
    lab.do_systx(["recover"]).ok();
    assert_eq!(lab.read("last"), "59\n");
}

#[test]
fn gc_bounds_the_space() {
    let lab = lab!();
    for n in 0..12 {
        lab.run(&[], &format!("head -c 4M /dev/urandom > file; echo {n} > n")).ok();
    }
    let size = || {
        let out = lab.native("du -sm --exclude=lost+found . | cut -f1").ok().out;
        out.trim().parse::<u64>().unwrap()
    };
    let full = size();
    lab.do_systx(["gc", "--keep", "1"]).ok();
    let small = size();
    assert!(small < full, "{full} MB before, {small} MB after");
    assert_eq!(lab.read("n"), "11\n");
    lab.do_systx(["undo"]).ok();
    assert_eq!(lab.read("n"), "10\n");
}

#[test]
fn another_users_daemon_is_not_used() {
    let lab = lab!().as_user();
    lab.run(&[], "echo x > mine").ok();
    // Root with the same runtime directory: it is not root's.
    let mut command = std::process::Command::new(lab.binary());
    command
        .args(["run", "--", "true"])
        .current_dir(lab.root())
        .env("SYSTX_RUNTIME_DIR", lab.path("../run"));
    clear_failure(finish(command, Limits::default(), &lab), &[]);
}

#[test]
fn what_the_user_may_not_do_is_not_done_for_him() {
    let lab = lab!().as_user();
    fs::create_dir(lab.path("roots")).unwrap();
    fs::write(lab.path("roots/file"), "root's\n").unwrap();
    fs::write(lab.path("roots/secret"), "secret\n").unwrap();
    systx_e2e::lab::chmod(&lab.path("roots/secret"), 0o600);
    systx_e2e::lab::chmod(&lab.path("roots"), 0o755);
    for attempt in [
        "echo x > roots/file",
        "rm roots/file",
        "cat roots/secret",
        "touch roots/new",
        "chmod 777 roots",
        "mv roots mine && rm mine/file",
        "mknod dev c 1 3",
        "chown 0 .",
    ] {
        let done = lab.run(&[], attempt);
        assert!(done.code != 0, "{attempt}\n{done}");
    }
    assert_eq!(fs::read_to_string(lab.path("roots/file")).unwrap(), "root's\n");
    assert!(!lab.path("roots/new").exists() && !lab.path("dev").exists());
}
