//! What plain programs have open in a guarded directory while transactions commit changes of it;
//! where opens are told to the daemon, and where they are not (`--fast-open`, decision 0019).

use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use systx_e2e::lab::{one, signal};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{CONFLICT, Finished, Lab, lab, skip};

const FAST: &[&str] = &["--fast-open"];

/// How directories are mounted here.
const WAYS: [&[&str]; 2] = [&[], FAST];

/// The first bytes that a descriptor shows.
fn start_of(file: &File) -> String {
    let mut bytes = [0; 3];
    let n = file.read_at(&mut bytes, 0).expect("read");
    String::from_utf8_lossy(&bytes[..n]).into()
}

fn begin(lab: &Lab) -> (String, std::path::PathBuf) {
    let begun = lab.do_systx(["begin", "g"]).ok();
    let (id, path) = begun.out.trim_end().split_once(' ').expect("an id and a path");
    (id.to_owned(), path.into())
}

fn filled(path: &Path, with: &str, len: usize) {
    std::fs::write(path, with.repeat(len / with.len())).expect("write");
}

/// Also one that had no room in memory: nothing of systx has it open for writing any more.
#[test]
fn a_program_that_was_committed_can_be_executed_at_once() {
    let lab = lab!();
    for _ in 0..4 {
        let mut shell = lab.shell(&[]);
        shell.eval("cp /bin/true tool; head -c 70M /dev/zero >> tool");
        // What is done beside the answer has this to write as well, and lasts the longer.
        lab.native("head -c 100M /dev/zero > more").ok();
        shell.exit(0).ok();
        lab.native("./tool && rm tool").ok();
    }
}

/// Files of all sizes, below and above those that are overwritten whoever has them open, and of
/// those that go to the disk while the transaction runs.
#[test]
fn who_has_a_file_open_sees_a_commit_that_rewrites_it() {
    for way in WAYS {
        let lab = lab!();
        std::fs::create_dir(lab.path("g")).expect("mkdir");
        for len in [300, 200_001, 3_000_000] {
            filled(&lab.path(format!("g/{len}")), "old", len);
            filled(&lab.path(format!("g/run-{len}")), "old", len);
        }
        lab.native("chmod 755 g/run-*").ok();
        if !lab.guards("g", way) {
            continue;
        }
        for len in [300, 200_001, 3_000_000] {
            let (name, may_run) = (format!("g/{len}"), format!("g/run-{len}"));
            // All of it is in the kernel's cache: nothing that is read through these descriptors
            // asks anybody.
            for name in [&name, &may_run] {
                std::fs::read(lab.path(name)).expect("read");
            }
            let [reader, runner] =
                [&name, &may_run].map(|n| File::open(lab.path(n)).expect("open"));
            let (id, view) = begin(&lab);
            filled(&view.join(len.to_string()), "new", len);
            filled(&view.join(format!("run-{len}")), "new", len);
            assert_eq!((start_of(&reader), start_of(&runner)), ("old".into(), "old".into()));
            lab.do_systx(["commit", &id]).ok();
            assert_eq!(start_of(&reader), "new", "{way:?}: {len} bytes");
            let same = |file: &File, name: &str| {
                let at = lab.path(name).metadata().expect("stat");
                file.metadata().expect("fstat").ino() == at.ino()
            };
            assert!(same(&reader, &name), "{way:?}: {len} bytes");
            assert_eq!(start_of(&File::open(lab.path(&name)).expect("open")), "new");
            // What may be running stays what it is to who has it open, whole, and is another file
            // from then on.
            assert_eq!(start_of(&runner), "old", "{way:?}: {len} bytes");
            assert!(!same(&runner, &may_run));
            assert_eq!(start_of(&File::open(lab.path(&may_run)).expect("open")), "new");
        }
        lab.unguard("g");
    }
}

/// The daemon has nothing open that programs have made, written and closed.
#[test]
fn what_programs_have_closed_the_daemon_has_not_open() {
    for way in WAYS {
        let lab = lab!();
        lab.write("g/before", "x");
        if !lab.guards("g", way) {
            continue;
        }
        sh(
            &lab,
            "cd g; for i in $(seq 100); do echo $i > new-$i; echo $i >> before; cat new-$i; done",
        )
        .ok();
        let daemon = one(lab.daemons());
        let is_open = |fd: std::fs::DirEntry| {
            let of_it = |path: &Path| path.starts_with(lab.path("g")) && path.extension().is_none();
            let info = std::fs::read_to_string(format!(
                "/proc/{daemon}/fdinfo/{}",
                fd.file_name().display()
            ));
            let flags = info
                .ok()?
                .lines()
                .find_map(|l| u32::from_str_radix(l.strip_prefix("flags:")?.trim(), 8).ok())?;
            let is_path = flags & rustix::fs::OFlags::PATH.bits() != 0;
            let to = std::fs::read_link(fd.path()).ok().filter(|to| of_it(to))?;
            (!is_path && to.is_file()).then_some(to)
        };
        lab.until("nothing is open", || {
            let fds = std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("it lives");
            fds.flatten().filter_map(is_open).count() == 0
        });
        lab.unguard("g");
    }
}

/// A program that runs is replaced, and an undo brings back the inode that it runs from: it can be
/// opened, executed and changed as ever.
#[test]
fn a_running_program_that_came_and_went_is_there_again() {
    for way in WAYS {
        let lab = lab!();
        lab.native("mkdir g; cp /bin/sleep g/run; cp /bin/true true").ok();
        if !lab.guards("g", way) {
            continue;
        }
        let path = lab.path("g/run");
        let mut running = lab.command(&path);
        let mut running = running.arg("1000").spawn().expect("it runs");
        let before = path.metadata().expect("stat").ino();
        lab.run(&[], "cp true g/run").ok();
        assert_ne!(path.metadata().expect("stat").ino(), before, "{way:?}");
        sh(&lab, "g/run").ok();
        assert!(running.try_wait().expect("wait").is_none(), "{way:?}: it runs");
        lab.do_systx(["undo"]).ok();
        assert_eq!(path.metadata().expect("stat").ino(), before, "{way:?}");
        sh(&lab, "g/run 0 && cat g/run >/dev/null && chmod 700 g/run && ln g/run g/other").ok();
        running.kill().expect("kill");
        running.wait().expect("wait");
        assert_eq!(path.metadata().expect("stat").mode() & 0o7777, 0o700);
        lab.unguard("g");
    }
}

fn rw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("open")
}

/// A script outside every transaction.
fn sh(lab: &Lab, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", script]);
    finish(command, Limits::default(), lab)
}

/// What the kernel has it gives out while the daemon is stopped; and after a daemon was killed, the
/// next one keeps to it.
#[test]
fn opens_ask_nobody() {
    let lab = lab!();
    lab.write("g/sub/file", "text\n");
    if !lab.guards("g", FAST) {
        skip!("a volume takes no --fast-open");
    }
    for _ in 0..2 {
        let listed = lab.do_systx(["mount", "--json"]).ok().json();
        assert_eq!(listed["guarded"][0]["fast_open"], true, "{listed}");
        let look = "cat g/sub/file && exec 7<>g/sub/file && exec 7>&-";
        // Once more, since a reading makes the kernel doubt the access time.
        sh(&lab, look).ok();
        sh(&lab, look).ok();
        let daemon = one(lab.daemons());
        signal(&[daemon], Signal::STOP);
        let seen = sh(&lab, look);
        signal(&[daemon], Signal::CONT);
        assert_eq!(seen.ok().out, "text\n");
        lab.kill_and_come_back();
    }
    lab.unguard("g");
}

/// A file that is open for writing, or is opened for that and closed again for each write, or was
/// stored to through a mapping: a transaction that has read it loses to a write, and commits if
/// there was none since.
#[test]
fn who_has_read_what_a_program_writes_loses() {
    for way in WAYS {
        let lab = lab!();
        lab.write("g/file", "0123456789");
        if !lab.guards("g", way) {
            continue;
        }
        let path = lab.path("g/file");
        let kept = rw(&path);
        for (n, write) in [
            &(|| kept.write_all_at(b"a", 0).expect("write")) as &dyn Fn(),
            &|| rw(&path).write_all_at(b"b", 1).expect("write"),
            &|| std::fs::write(&path, "shorter").expect("write"),
            &|| drop(sh(&lab, "truncate -s 3 g/file").ok()),
        ]
        .into_iter()
        .enumerate()
        {
            for writes in [false, true] {
                let (id, view) = begin(&lab);
                std::fs::read(view.join("file")).expect("read");
                std::fs::write(view.join(format!("made-{n}-{writes}")), "x").expect("write");
                if writes {
                    write();
                }
                let code = lab.do_systx(["commit", &id]).code;
                assert_eq!(code, if writes { CONFLICT } else { 0 }, "{way:?}: {n}, {writes}");
                if writes {
                    lab.do_systx(["abort", &id]).ok();
                }
            }
        }
        drop(kept);
        lab.unguard("g");
    }
}

#[test]
fn locks_exclude_between_views_and_programs_outside() {
    for way in WAYS {
        let lab = lab!();
        // One that nobody has looked at, and one whose path is another one inside.
        lab.native("mkdir -p g/sub/deep; echo x > g/sub/deep/f; echo x > g/moved").ok();
        if !lab.guards("g", way) {
            continue;
        }
        for (inside_name, outside_name) in [("sub/deep/f", "g/sub/deep/f"), ("sub/new", "g/moved")]
        {
            let (id, view) = begin(&lab);
            std::fs::rename(view.join("moved"), view.join("sub/new")).expect("rename");
            let (inside, there) = (rw(&view.join(inside_name)), rw(&lab.path(outside_name)));
            inside.try_lock().expect("free");
            assert!(there.try_lock().is_err(), "{way:?}: held inside");
            inside.unlock().expect("unlock");
            there.try_lock().expect("free");
            assert!(inside.try_lock().is_err(), "{way:?}: held outside");
            // Another transaction, which must not touch what the first one has changed.
            let (other, second) = begin(&lab);
            if inside_name == &outside_name[2..] {
                let third = rw(&second.join(inside_name));
                assert!(third.try_lock().is_err(), "{way:?}: held outside");
                there.unlock().expect("unlock");
                third.try_lock().expect("free");
                assert!(inside.try_lock().is_err(), "{way:?}: held in another view");
            }
            lab.do_systx(["abort", &other]).ok();
            there.unlock().expect("unlock");
            lab.until("it is free", || inside.try_lock().is_ok());
            // Over the commit it stays what it is.
            lab.do_systx(["commit", &id]).ok();
            assert!(there.try_lock().is_err(), "{way:?}: still held");
            drop(inside);
            lab.until("released by closing", || there.try_lock().is_ok());
            drop(there);
            sh(&lab, "test ! -e g/sub/new || mv g/sub/new g/moved").ok();
        }
        lab.unguard("g");
    }
}

#[test]
fn programs_have_no_transactions_of_their_own_where_opens_are_not_told() {
    let lab = lab!();
    lab.write("g/file", "x");
    if !lab.guards("g", FAST) {
        skip!("a volume takes no --fast-open");
    }
    let dir = lab.path("g");
    let begun = std::thread::spawn(move || {
        systx::begin(&dir, systx::Flags::default()).map(drop).map_err(|e| e.raw_os_error())
    });
    let refused = begun.join().expect("the thread lives");
    assert_eq!(refused, Err(Some(rustix::io::Errno::OPNOTSUPP.raw_os_error())));
    lab.do_systx(["mount", "--fast-open", "--routed", "g"]).expect(2);
    lab.unguard("g");
}
