//! A transaction is a directory: any program works below its path, and what a program has open
//! there outlives the transaction.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use systx_e2e::lab::{USER, find_program};
use systx_e2e::open::{Open, OrCanceled};
use systx_e2e::run::{Limits, Running, eventually, finish};
use systx_e2e::{CONFLICT, Fs, Lab, Tree, lab};

const ECANCELED: i32 = 125;

fn read_all(file: &File) -> io::Result<String> {
    let mut buf = vec![0; 1 << 16];
    let n = file.read_at(&mut buf, 0)?;
    Ok(String::from_utf8_lossy(&buf[..n]).into_owned())
}

fn rw(path: &std::path::Path) -> File {
    File::options().read(true).write(true).open(path).unwrap_or_else(|e| panic!("{path:?}: {e}"))
}

#[track_caller]
fn assert_canceled<T: std::fmt::Debug>(what: &str, result: io::Result<T>) {
    let errno = result.as_ref().err().and_then(io::Error::raw_os_error);
    assert_eq!(errno, Some(ECANCELED), "{what}: {result:?}");
}

#[test]
fn any_program_works_below_the_path_and_all_of_it_is_committed_at_once() {
    let lab = lab!();
    let seed = "mkdir -p project/src native/src; for d in project native; do echo 'print(6 * 7)' > $d/src/a.py; \
                seq 100 > $d/numbers; echo old > $d/old; done";
    lab.native(seed).ok();
    let work = "set -e; umask 022; export HOME=$PWD GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000'; \
         sed -i s/7/8/ numbers; mv src lib; rm old; mkdir -p new/deep; echo x > new/deep/x; ln -s x new/deep/link; \
         ln numbers hard; chmod 600 new/deep/x; cat numbers | sort -r > sorted; \
         if command -v python3 >/dev/null; then python3 -B lib/a.py > answer; fi; \
         if command -v git >/dev/null; then git init -q -b main . && git add -A && \
         git -c user.name=n -c user.email=e commit -qm one && git status --porcelain > status && git gc -q; fi";
    let before = Tree::capture(lab.path("project"));
    let open = Open::begin(&lab, "project", &[]);
    open.sh(work).ok();
    before.assert_same(&Tree::capture(lab.path("project")), "before the commit nothing shows");
    let listed = open.listed();
    assert_eq!(listed["state"], "open", "{listed}");
    assert_eq!(listed["view"], open.path.to_str().unwrap(), "{listed}");
    assert!(lab.do_systx(["list"]).ok().out.contains(&format!("{}  open", open.id)));
    let diff = lab.do_systx(["diff", &open.id, "--name-status"]).ok();
    assert!(diff.out.contains("project/new/deep/x"), "{diff}");
    let inside = open.path.join("new");
    let part = lab.do_systx(["diff", &open.id, "--name-only", inside.to_str().unwrap()]).ok();
    assert!(part.out.contains("project/new/deep/x") && !part.out.contains("sorted"), "{part}");
    open.systx("commit").ok();
    assert!(!open.path.exists(), "the path is gone");
    let native = |script: &str| lab.native(&format!("cd native && {{ {script}; }}")).ok();
    native(work);
    // git notes times and inode numbers of the files.
    lab.native("rm -rf native/.git/index project/.git/index").ok();
    let (want, got) = (Tree::capture(lab.path("native")), Tree::capture(lab.path("project")));
    want.assert_same(&got, "the same work natively");
    assert_eq!(lab.logged_ids()[0], open.id);
    lab.native("rm -rf project/.git native/.git").ok();
}

#[test]
fn what_was_committed_can_be_undone_and_what_was_aborted_leaves_nothing() {
    let lab = lab!();
    lab.write("d/file", "one\n");
    let before = Tree::capture(lab.path("d"));
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo two > file; mkdir sub; echo x > sub/x").ok();
    open.systx("abort").ok();
    assert!(!open.path.exists());
    before.assert_same(&Tree::capture(lab.path("d")), "after the abort");
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo two > file; mkdir sub; echo x > sub/x").ok();
    open.systx("commit").ok();
    assert_eq!(lab.read("d/file"), "two\n");
    lab.do_systx(["undo", &open.id]).ok();
    assert_eq!(lab.read("d/file"), "one\n");
    assert!(!lab.has("d/sub"));
    assert!(lab.open_ids().is_empty());
}

#[test]
fn a_part_can_be_committed_and_work_goes_on() {
    let lab = lab!();
    lab.write("d/a", "1\n");
    let open = Open::begin(&lab, "d", &[]);
    let kept = File::create(open.path.join("kept")).unwrap();
    open.sh("echo 2 > a; echo n > new").ok();
    let new = open.path.join("new");
    lab.do_systx(["commit", &open.id, new.to_str().unwrap()]).ok();
    assert_eq!((lab.read("d/new").as_str(), lab.read("d/a").as_str()), ("n\n", "1\n"));
    kept.write_all_at(b"still\n", 0).unwrap();
    open.sh("echo more >> new; test $(stat -c %i new) = $(stat -c %i ../../../mnt/d/new)").ok();
    assert_eq!(lab.read("d/new"), "n\n");
    open.systx("commit").ok();
    assert_eq!(lab.read("d/new"), "n\nmore\n");
    assert_eq!((lab.read("d/a").as_str(), lab.read("d/kept").as_str()), ("2\n", "still\n"));
}

#[test]
fn nobody_else_can_enter() {
    let lab = lab!();
    lab.native("mkdir -m 777 d; echo x > d/x; chmod 666 d/x").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("cat x").ok();
    let other = |what: &str| {
        let mut command = lab.command("setpriv");
        let ids = [format!("--reuid={USER}"), format!("--regid={USER}")];
        let script = format!("{what} {}", open.path.display());
        command.args(ids).args(["--clear-groups", "--", "sh", "-c", &script]);
        finish(command, Limits::default(), &lab)
    };
    for what in ["ls", "cd", "stat", "touch"] {
        let refused = other(what);
        assert_ne!(refused.code, 0, "{refused}");
        let said = refused.err.to_lowercase();
        assert!(said.contains("permission denied") || said.contains("can't cd"), "{refused}");
    }
    open.systx("abort").ok();
}

#[test]
fn two_views_of_one_tree_with_different_changes_both_commit() {
    let lab = lab!();
    lab.native("mkdir d; echo 1 > d/a; echo 2 > d/b").ok();
    let (one, two) = (Open::begin(&lab, "d", &[]), Open::begin(&lab, "d", &[]));
    one.sh("echo one > a; echo n > new-one").ok();
    two.sh("echo two > b; echo n > new-two").ok();
    assert_eq!(two.sh("cat a").ok_or_canceled(), None, "what one wrote is in the way of two");
    let lost = two.listed();
    assert_eq!(lost["state"], "doomed", "{lost}");
    two.systx("abort").ok();
    let two = Open::begin(&lab, "d", &[]);
    two.sh("echo two > b; echo n > new-two").ok();
    one.systx("commit").ok();
    two.systx("commit").ok();
    assert_eq!((lab.read("d/a").as_str(), lab.read("d/b").as_str()), ("one\n", "two\n"));
    assert!(lab.has("d/new-one") && lab.has("d/new-two"));
}

#[test]
fn the_loser_is_told_where_and_against_whom_and_is_cleared_by_abort() {
    let lab = lab!();
    lab.write("d/counter", "0\n");
    let (older, younger) = (Open::begin(&lab, "d", &[]), Open::begin(&lab, "d", &[]));
    let held = rw(&younger.path.join("counter"));
    assert_eq!(read_all(&held).unwrap(), "0\n");
    older.sh("echo 1 > counter").ok();
    // Lost: what it does fails, what it has read stays readable.
    assert_canceled("write", held.write_at(b"2", 0));
    assert_canceled("open", File::open(younger.path.join("counter")));
    assert_canceled("create", File::create(younger.path.join("x")));
    assert_canceled("mkdir", fs::create_dir(younger.path.join("y")));
    assert_canceled("lookup", younger.path.join("never").metadata());
    eventually("names that the kernel had cached", || {
        let looked = younger.path.join("counter").metadata();
        looked.is_err_and(|e| e.raw_os_error() == Some(ECANCELED))
    });
    assert_eq!(read_all(&held).unwrap(), "0\n");
    assert_eq!(younger.listed()["state"], "doomed");
    assert!(younger.systx("status").ok().out.contains("lost"), "in words");
    let refused = younger.systx("commit").expect(CONFLICT);
    assert!(refused.err.contains(lab.path("d/counter").to_str().unwrap()), "{refused}");
    assert!(refused.err.contains(&older.id), "{refused}");
    assert!(lab.open_ids().contains(&younger.id), "it is still there");
    younger.systx("abort").ok();
    assert!(!younger.path.exists() && !lab.open_ids().contains(&younger.id));
    older.systx("commit").ok();
    assert_eq!(lab.read("d/counter"), "1\n");
}

#[test]
fn nice_decides_before_age() {
    let lab = lab!();
    lab.write("d/f", "0\n");
    let older = Open::begin(&lab, "d", &["--nice", "5"]);
    let urgent = Open::begin(&lab, "d", &["--nice", "-5"]);
    older.sh("echo 1 > f").ok();
    urgent.sh("echo 2 > f").ok();
    older.systx("commit").expect(CONFLICT);
    urgent.systx("commit").ok();
    assert_eq!(lab.read("d/f"), "2\n");
}

#[test]
fn a_view_and_a_run_conflict_as_two_runs_do() {
    let lab = lab!();
    lab.write("d/f", "0\n");
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo view > f").ok();
    let lost = lab.run(&[], "echo run > d/f").expect(CONFLICT);
    assert!(lost.err.contains(&open.id) && lost.err.contains("begin"), "{lost}");
    open.systx("commit").ok();
    let mut run = lab.shell(&[]);
    run.eval("echo run > d/f");
    let open = Open::begin(&lab, "d", &[]);
    assert_eq!(open.sh("echo view > f").ok_or_canceled(), None);
    run.exit(0).ok();
    let refused = open.systx("commit").expect(CONFLICT);
    assert!(refused.err.contains("d/f"), "{refused}");
    assert_eq!(lab.read("d/f"), "run\n");
}

#[test]
fn an_outside_change_of_what_was_read_is_a_conflict() {
    let lab = lab!();
    lab.write("d/f", "0\n");
    let open = Open::begin(&lab, "d", &[]);
    open.sh("cat f; echo 1 > g").ok();
    lab.write("d/f", "outside\n");
    open.systx("commit").expect(CONFLICT).says("d/f");
    assert!(!lab.has("d/g"));
    open.systx("abort").ok();
}

#[test]
fn a_plain_write_that_takes_committed_capabilities_away_is_a_conflict() {
    const CAPS: &str = "security.capability";
    // Version 2: cap_net_raw, effective.
    let mut caps = [0; 20];
    (caps[0], caps[3], caps[5]) = (1, 2, 0x20);
    let lab = lab!();
    lab.write("g/file", "old");
    lab.write("g/other", "old");
    lab.guard("g");
    // Now it is known there that the file has none.
    lab.write("g/file", "plain");
    let giver = Open::begin(&lab, "g", &[]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(giver.path.join("file"), CAPS, &caps, flags).expect("root may");
    giver.systx("commit").ok();
    let reader = Open::begin(&lab, "g", &[]);
    let read = rustix::fs::getxattr(reader.path.join("file"), CAPS, &mut [0; 64]);
    assert_eq!(read, Ok(caps.len()));
    reader.sh("echo new > other").ok();
    let file = rw(&lab.path("g/file"));
    file.write_at(b"P", 0).expect("a plain write");
    let left = rustix::fs::getxattr(lab.path("g/file"), CAPS, &mut [0; 64]);
    assert_eq!(left, Err(rustix::io::Errno::NODATA));
    reader.systx("commit").expect(CONFLICT);
    reader.systx("abort").ok();
    assert_eq!(lab.read("g/other"), "old");
    drop(file);
    lab.unguard("g");
}

#[test]
fn descriptors_stay_valid_over_a_commit() {
    let lab = lab!();
    for transport in ["auto", "dev"] {
        descriptors_over_a_commit(&lab, transport);
    }
}

fn descriptors_over_a_commit(lab: &Lab, transport: &str) {
    lab.native("rm -rf d; mkdir d; echo old > d/old; echo same > d/same; echo move > d/move").ok();
    let open = Open::begin(lab, "d", &["--transport", transport]);
    open.sh("echo changed > old; echo new > new; mkdir sub; mv move sub/moved").ok();
    let [old, new, same, moved] = ["old", "new", "same", "sub/moved"].map(|name| {
        let file = rw(&open.path.join(name));
        assert!(!read_all(&file).unwrap().is_empty(), "its pages are cached");
        file
    });
    open.systx("commit").ok();
    // The current committed content, which is that of the real file.
    for (file, name) in [(&old, "old"), (&new, "new"), (&same, "same"), (&moved, "sub/moved")] {
        let path = lab.path("d").join(name);
        assert_eq!(read_all(file).unwrap(), fs::read_to_string(&path).unwrap(), "{name}");
        assert_eq!(file.metadata().unwrap().ino(), path.metadata().unwrap().ino(), "{name}");
        // Writes are plain writes.
        file.write_all_at(b"W", 0).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read_to_string(&path).unwrap().starts_with('W'), "{name}");
        file.set_len(2).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 2, "{name}");
        // And others' writes are seen, a moment later, also where the length says nothing.
        assert_eq!(read_all(file).unwrap().len(), 2, "{name}");
        rw(&path).write_all_at(b"ZZ", 0).unwrap();
        eventually(name, || read_all(file).unwrap() == "ZZ");
        fs::write(&path, "written outside\n").unwrap();
        eventually(name, || read_all(file).unwrap() == "written outside\n");
        assert_eq!(file.metadata().unwrap().len(), 16, "{name}");
    }
    // Whatever becomes of the name.
    fs::remove_file(lab.path("d/old")).unwrap();
    old.write_all_at(b"gone", 0).unwrap();
    assert_eq!(read_all(&old).unwrap(), "goneten outside\n");
    assert_eq!(old.metadata().unwrap().nlink(), 0);
}

#[test]
fn nothing_that_was_written_around_a_commit_is_lost() {
    let lab = lab!();
    for round in 0..12 {
        let name = format!("d{round}");
        lab.native(&format!("mkdir {name}; echo 0 > {name}/old")).ok();
        let open = Open::begin(&lab, &name, &[]);
        let dir = File::open(&open.path).unwrap();
        let inside = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let enough = AtomicBool::new(false);
        let progress = [const { AtomicU64::new(0) }; 3];
        let written = std::thread::scope(|threads| {
            let work = |n: usize| {
                let (inside, enough, progress) = (&inside, &enough, &progress[n]);
                threads.spawn(move || {
                    let file = File::create(inside.join(format!("w{n}"))).unwrap();
                    let mut count = 0u64;
                    while !enough.load(Ordering::Relaxed) {
                        file.write_all_at(&count.to_le_bytes(), count * 8).unwrap();
                        count += 1;
                        progress.store(count, Ordering::Relaxed);
                        if count.is_multiple_of(8) {
                            // In the working directory, so to speak, before and after.
                            let (from, to) = (format!("t{n}.{count}"), format!("n{n}.{count}"));
                            fs::write(inside.join(&from), "x").unwrap();
                            fs::rename(inside.join(&from), inside.join(&to)).unwrap();
                        }
                    }
                    count
                })
            };
            let workers = [0, 1, 2].map(work);
            let now = || progress.each_ref().map(|p| p.load(Ordering::Relaxed));
            eventually("work before the commit", || now().iter().all(|n| *n > 20));
            open.systx("commit").ok();
            let then = now();
            let more = || now().iter().zip(then).all(|(now, then)| *now > then + 50);
            eventually("work after the commit", more);
            enough.store(true, Ordering::Relaxed);
            workers.map(|worker| worker.join().expect("no call failed"))
        });
        for (n, count) in written.into_iter().enumerate() {
            let want: Vec<u8> = (0..count).flat_map(u64::to_le_bytes).collect();
            let got = fs::read(lab.path(&name).join(format!("w{n}"))).unwrap();
            assert!(got == want, "round {round}, w{n}: {} of {} bytes", got.len(), want.len());
            for at in (8..=count).step_by(8) {
                let named = lab.path(&name).join(format!("n{n}.{at}"));
                assert_eq!(fs::read_to_string(&named).unwrap(), "x", "round {round}: {named:?}");
            }
        }
    }
}

#[test]
fn a_commit_by_another_transaction_is_seen_through_an_old_descriptor() {
    let lab = lab!();
    lab.native("mkdir d; seq 5000 > d/f").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo first | dd of=f conv=notrunc status=none").ok();
    let file = File::open(open.path.join("f")).unwrap();
    open.systx("commit").ok();
    assert!(read_all(&file).unwrap().starts_with("first"));
    lab.run(&[], "echo again | dd of=d/f conv=notrunc status=none").ok();
    eventually("the later commit", || read_all(&file).unwrap().starts_with("again"));
}

#[test]
fn open_files_without_a_name_and_open_directories_survive_too() {
    let lab = lab!();
    lab.native("mkdir d; echo doomed > d/doomed").ok();
    let open = Open::begin(&lab, "d", &[]);
    let temporary = File::create_new(open.path.join("tmp")).map(|_| rw(&open.path.join("tmp")));
    let temporary = temporary.unwrap();
    temporary.write_all_at(&[b'x'; 300_000], 0).unwrap();
    let sparse = File::create_new(open.path.join("sparse")).map(|_| rw(&open.path.join("sparse")));
    let sparse = sparse.unwrap();
    sparse.write_all_at(b"far", 1 << 40).unwrap();
    let doomed = rw(&open.path.join("doomed"));
    open.sh("rm sparse tmp doomed; mkdir sub; echo x > sub/x").ok();
    let mut shell = lab.command("sh");
    shell.current_dir(open.path.join("sub"));
    let mut shell = systx_e2e::Shell::start(&lab, shell);
    shell.eval("cat x");
    open.systx("commit").ok();
    assert!(!lab.has("d/tmp") && !lab.has("d/doomed"));
    assert_eq!(
        (temporary.metadata().unwrap().len(), temporary.metadata().unwrap().nlink()),
        (300_000, 0)
    );
    temporary.write_all_at(b"end", 300_000).unwrap();
    let mut end = [0; 4];
    temporary.read_exact_at(&mut end, 299_999).unwrap();
    assert_eq!(&end, b"xend");
    assert_eq!(read_all(&doomed).unwrap(), "doomed\n");
    assert_eq!(sparse.metadata().unwrap().len(), (1 << 40) + 3);
    let mut far = [0; 4];
    sparse.read_exact_at(&mut far, (1 << 40) - 1).unwrap();
    assert_eq!(&far, b"\0far");
    // A working directory goes on as the committed directory.
    shell.eval("echo y > y; mv x z");
    assert_eq!((lab.read("d/sub/y").as_str(), lab.read("d/sub/z").as_str()), ("y\n", "x\n"));
    lab.write("d/sub/outside", "o\n");
    assert_eq!(shell.eval("cat outside; ls"), "o\noutside\ny\nz\n");
    shell.exit(0).ok();
}

#[test]
fn a_shared_writable_mapping_is_refused_by_name() {
    let lab = lab!();
    if find_program("python3").is_none() {
        systx_e2e::skip!("no python3");
    }
    lab.native("mkdir d; seq 2000 > d/f").ok();
    let open = Open::begin(&lab, "d", &[]);
    let script = "import mmap, sys\nf = open('f', 'r+b')\nm = mmap.mmap(f.fileno(), 0)\nm[0:4] = b'mmap'\n\
                  print('mapped', flush=True)\nsys.stdin.readline()\nm.close()\nprint('unmapped', flush=True)\nsys.stdin.readline()";
    let mut command = lab.command("python3");
    command.args(["-c", script]).current_dir(&open.path);
    let mut python = systx_e2e::run::Dialogue::start(&lab, command);
    python.wait_for("mapped\n");
    let refused = open.systx("commit").expect(CONFLICT);
    assert!(refused.err.contains("python3"), "{refused}");
    python.send("\n");
    python.wait_for("unmapped\n");
    open.systx("commit").ok();
    assert!(lab.read("d/f").starts_with("mmap"), "what it stored was written back");
    python.send("\n");
    python.close().ok();
}

#[test]
fn after_an_abort_calls_are_cancelled_and_pages_can_be_read() {
    let lab = lab!();
    lab.native("mkdir d; echo old > d/f").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo private > f").ok();
    let file = rw(&open.path.join("f"));
    let mut shell = lab.command("sh");
    shell.current_dir(&open.path);
    let mut shell = systx_e2e::Shell::start(&lab, shell);
    shell.eval("cat f");
    open.systx("abort").ok();
    assert_eq!(read_all(&file).unwrap(), "private\n");
    assert_canceled("write", file.write_at(b"x", 0));
    for what in
        ["ls -l f", "cat f", "echo x > f", "echo x > new", "mkdir x", "mv f g", "ls nothing"]
    {
        let (said, code) = shell.try_eval(what).expect("the shell lives");
        assert!(code != 0 && said.contains("canceled"), "{what}: {code} {said}");
    }
    shell.exit(0).ok();
    assert_eq!(lab.read("d/f"), "old\n");
}

#[test]
fn read_only_never_commits() {
    let lab = lab!();
    lab.native("mkdir d; echo old > d/f; echo other > d/g").ok();
    let open = Open::begin(&lab, "d", &["--read-only"]);
    open.sh("cat f; echo private > f; echo x > new; rm g").ok();
    let file = rw(&open.path.join("f"));
    assert_eq!(read_all(&file).unwrap(), "private\n");
    lab.run(&[], "echo elsewhere > d/h").ok();
    open.systx("commit").ok();
    assert_eq!((lab.read("d/f").as_str(), lab.read("d/g").as_str()), ("old\n", "other\n"));
    assert!(!lab.has("d/new"));
    // The real ones; of a moment, as it was there, and was changed.
    let shown = if lab.fs == Fs::Volume { "private\n" } else { "old\n" };
    assert_eq!(read_all(&file).unwrap(), shown, "what is open");
}

#[test]
fn locks_exclude_programs_outside_and_last_over_the_commit() {
    let lab = lab!();
    lab.native("mkdir d; echo x > d/f").ok();
    let open = Open::begin(&lab, "d", &[]);
    let inside = rw(&open.path.join("f"));
    let outside = rw(&lab.path("d/f"));
    outside.try_lock().expect("free");
    assert!(inside.try_lock().is_err(), "held outside");
    outside.unlock().unwrap();
    inside.try_lock().expect("free");
    assert!(outside.try_lock().is_err(), "held inside");
    open.systx("commit").ok();
    assert!(outside.try_lock().is_err(), "still held");
    drop(inside);
    eventually("released by closing", || outside.try_lock().is_ok());
}

#[test]
fn enter_and_the_path_show_the_same() {
    let lab = lab!();
    lab.native("mkdir d; echo 1 > d/f").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo path > f").ok();
    let enter = |script: &str| lab.do_systx(["enter", &open.id, "sh", "-c", script]).ok();
    assert_eq!(enter("cat f; echo entered > f; echo n > new; ls").out, "path\nf\nnew\n");
    assert_eq!(open.sh("cat f new").ok().out, "entered\nn\n");
    assert_eq!(lab.read("d/f"), "1\n");
    open.systx("commit").ok();
    assert_eq!(lab.read("d/f"), "entered\n");
}

#[test]
fn a_view_is_no_place_for_another_transaction() {
    let lab = lab!();
    lab.native("mkdir d").ok();
    let open = Open::begin(&lab, "d", &[]);
    let path = open.path.to_str().unwrap();
    lab.do_systx(["begin", path]).expect(1).says("is in the view of a transaction");
    lab.do_systx(["run", "-C", path, "true"]).expect(125).says("is in the view of a transaction");
    lab.do_systx(["begin", "nowhere"]).expect(1).says("nowhere");
    lab.native("echo x > file").ok();
    lab.do_systx(["begin", "file"]).expect(1).says("not a directory");
    open.systx("abort").ok();
    open.systx("abort").expect(1).says(&open.id);
}

#[test]
fn a_view_may_show_the_whole_volume() {
    let lab = lab!();
    lab.native("mkdir d; echo 1 > d/f").ok();
    let open = Open::begin(&lab, "", &[]);
    open.sh("echo 2 > d/f; echo 3 > top; test ! -e .systx").ok();
    open.systx("commit").ok();
    assert_eq!((lab.read("d/f").as_str(), lab.read("top").as_str()), ("2\n", "3\n"));
}

#[test]
fn a_killed_daemon_leaves_no_view_behind() {
    let lab = lab!();
    lab.native("mkdir d && sync d").ok();
    let open = Open::begin(&lab, "d", &[]);
    open.sh("echo x > x").ok();
    lab.kill_daemon();
    assert!(open.path.metadata().is_err(), "nobody serves it");
    let again = Open::begin(&lab, "d", &[]);
    assert!(!open.path.symlink_metadata().is_ok_and(|_| true), "cleared away");
    assert!(!lab.has("d/x"));
    again.systx("abort").ok();
}

#[test]
fn top_shows_transactions_worksets_conflicts_and_counts() {
    let lab = lab!();
    // A log-structured one is open as long as it is mounted.
    let open = if lab.fs == Fs::Volume { "1 volume" } else { "0 volumes" };
    let first = lab.do_systx(["top", "--once"]).ok().out;
    assert!(first.starts_with(&format!("systx: 0 transactions, {open}")), "{first}");
    lab.native("mkdir d; echo 0 > d/f; echo 0 > d/g").ok();
    let (one, two) = (Open::begin(&lab, "d", &[]), Open::begin(&lab, "d", &[]));
    one.sh("cat f; echo 1 > g; echo n > new").ok();
    assert_eq!(two.sh("cat g").ok_or_canceled(), None);
    let top = lab.do_systx(["top", "--once", "--json"]).ok().json();
    let volume = &top["top"]["volumes"][0];
    assert_eq!(volume["volume"], lab.root().to_str().unwrap(), "{top}");
    let count = |name: &str| volume["counts"][name].as_u64().expect("a number");
    assert_eq!((count("begun"), count("committed"), count("lost")), (2, 0, 1), "{top}");
    assert!(count("conflicts") >= 1 && volume["commits_per_second"].is_null(), "{top}");
    let of = |open: &Open| {
        let all = volume["transactions"].as_array().expect("a list");
        all.iter().find(|t| t["id"] == open.id).cloned().unwrap_or_else(|| panic!("{top}"))
    };
    let workset = &of(&one)["workset"];
    assert!(workset["entries"]["written"].as_u64() >= Some(1), "{top}");
    assert!(workset["pages"]["read"].as_u64() >= Some(1), "{top}");
    assert_eq!(of(&two)["state"], "doomed", "{top}");
    assert_eq!(of(&two)["conflict"]["opponent"]["id"], one.id, "{top}");
    let remembered = |name: &str| volume["remembered"][name].as_u64().expect("a number");
    assert!(remembered("inodes") >= 2 && remembered("names") >= 1, "{top}");
    let text = lab.do_systx(["top", "--once"]).ok().out;
    assert!(text.contains(&one.id) && text.contains("2 begun, 0 committed"), "{text}");
    assert!(text.contains("d/g to transaction"), "{text}");
    // Live, one picture after the other.
    let mut live =
        systx_e2e::run::Dialogue::start(&lab, lab.systx(["top", "--json", "--interval", "0.05"]));
    live.wait_for("\"committed\":0");
    two.systx("abort").ok();
    one.systx("commit").ok();
    let rate = live.wait_for("\"committed\":1");
    assert!(rate.contains("commits_per_second"));
    // It has no end of its own.
    lab.kill_all();
    drop(live);
}

#[test]
fn top_on_a_terminal_is_drawn_in_place_until_q() {
    let lab = lab!();
    if find_program("script").is_none() {
        systx_e2e::skip!("no script(1) to make a terminal with");
    }
    lab.native("mkdir d").ok();
    let open = Open::begin(&lab, "d", &[]);
    let line = format!("{} top --interval 0.05; stty -a; echo code $?", lab.binary().display());
    let mut command = lab.command("script");
    command.args(["-qc", &line, "/dev/null"]).env("TERM", "xterm");
    let mut terminal = systx_e2e::run::Dialogue::start(&lab, command);
    // Without a size nothing can be drawn: the pictures come all the same.
    terminal.wait_for("\u{1b}[?1049h");
    terminal.send("q");
    let rest = terminal.wait_for("code 0");
    assert!(rest.contains("\u{1b}[?1049l"), "the screen is as it was: {rest:?}");
    assert!(rest.contains(" icanon"), "and so is the terminal: {rest:?}");
    terminal.close();
    open.systx("abort").ok();
}

/// `FUSE_CTL_SUPER_MAGIC`.
const FUSE_CTL_MAGIC: rustix::fs::FsWord = 0x6573_5543;

#[test]
fn two_hundred_transactions_leave_nothing_in_the_daemon() {
    let lab = lab!();
    lab.native("mkdir d; echo 0 > d/f").ok();
    // The watchdog opens the control files of a connection when it has lived for a while: one of
    // the transaction that stays.
    let counts = |at: &fs::DirEntry| {
        // Where fusectl is not mounted, the daemon has a mount of it that is nowhere.
        let to = fs::read_link(at.path()).unwrap_or_default();
        let may_be = to == std::path::Path::new("/") || to.ends_with("fuse/connections");
        let control = |fs: rustix::fs::StatFs| fs.f_type == FUSE_CTL_MAGIC;
        let is_control = may_be && rustix::fs::statfs(at.path()).is_ok_and(control);
        // A mount that stays, of the volume or of that one, keeps workers that it was given while
        // a request was blocked, each with its ring. A view that stays has its device besides.
        let name = fs::read_to_string(at.path().join("comm")).unwrap_or_default();
        let is_worker = name.starts_with("fuse-cpu") || to.as_os_str() == "anon_inode:[io_uring]";
        !is_control && !is_worker
    };
    let count = |what: &str| {
        let daemon = lab.daemons()[0];
        let all = fs::read_dir(format!("/proc/{daemon}/{what}")).expect("it runs");
        all.flatten().filter(counts).count()
    };
    let round = |n: u32| {
        let open = Open::begin(&lab, "d", &[]);
        let file = rw(&open.path.join("f"));
        file.write_all_at(format!("{n:4}").as_bytes(), 0).unwrap();
        open.systx(if n % 4 == 3 { "abort" } else { "commit" }).ok();
        let _ = read_all(&file).unwrap();
    };
    // Keeps one transaction open, so that the daemon stays.
    let keep = Open::begin(&lab, "d", &["--read-only"]);
    (0..8).for_each(round);
    eventually("at rest", || count("task") < 20);
    let (fds, tasks) = (count("fd"), count("task"));
    (0..200).for_each(round);
    eventually("as many descriptors and threads as before", || {
        count("fd") <= fds && count("task") <= tasks
    });
    assert_eq!(lab.read("d/f").trim(), "198");
    let views = fs::read_dir(keep.path.parent().unwrap()).unwrap().count();
    assert_eq!(views, 2, "one view, and the volume that it is a piece of");
    keep.systx("abort").ok();
}

/// Whoever comes last is there in the end: a commit beside an undo comes before it, and then they
/// overlap, or after it.
#[test]
fn an_undo_beside_a_commit_does_not_take_that_back() {
    let lab = lab!();
    lab.write("f", "0");
    let (mut undone, mut refused) = (0, 0);
    for round in 0..60 {
        lab.write("f", "0");
        lab.run(&[], "printf 1 > f").ok();
        let last = lab.logged_ids()[0].clone();
        let later = Open::begin(&lab, "", &[]);
        later.sh("printf 2 > f").ok();
        let commit = Running::start(lab.systx(["commit", &later.id]), Limits::default());
        let undo = Running::start(lab.systx(["undo", &last]), Limits::default());
        let (commit, undo) = (commit.finish(&lab), undo.finish(&lab));
        let now = lab.read("f");
        match (commit.code, undo.code) {
            (0, 0) => assert_eq!(now, "2", "round {round}: the commit was taken back\n{undo}"),
            (0, _) => assert_eq!(now, "2", "round {round}: {undo}"),
            (_, 0) => assert_eq!(now, "0", "round {round}: {commit}"),
            _ => panic!("round {round}: nobody won\n{commit}\n{undo}"),
        }
        undone += usize::from(undo.code == 0);
        refused += usize::from(undo.code != 0);
        if commit.code != 0 {
            later.systx("abort");
        }
    }
    eprintln!("{undone} undone, {refused} refused");
}

/// Three directories, one of them deep below the next, and what makes another tree of them: most of
/// them end below what was below them.
const BEFORE: [&str; 3] = ["b/a", "c/a/c/d", "a/c/c"];
const MOVES: [(&str, &str, &str); 8] = [
    ("exchange", "b", "c/a"),
    ("move", "b", "a/c/d"),
    ("move", "a/c", "d"),
    ("mkdir", "a/b", ""),
    ("exchange", "d", "c/a/a"),
    ("exchange", "d", "c/a/a/d"),
    ("move", "a/b", "c/a/a/d/b"),
    ("move", "a", "c/a/a/d/b/c"),
];

fn change_places(root: &std::path::Path) {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    for (what, from, to) in MOVES {
        let (from, to) = (root.join(from), root.join(to));
        let done = match what {
            "mkdir" => fs::create_dir(&from),
            "move" => fs::rename(&from, &to),
            _ => renameat_with(CWD, &from, CWD, &to, RenameFlags::EXCHANGE).map_err(Into::into),
        };
        done.unwrap_or_else(|e| panic!("{what} {from:?} {to:?}: {e}"));
    }
}

#[test]
fn directories_that_change_places_are_committed_as_the_view_shows_them() {
    let lab = lab!();
    for dir in ["native", "plain", "guarded"] {
        for path in BEFORE {
            lab.write(format!("{dir}/{path}/file"), path);
        }
    }
    lab.guard("guarded");
    let before = Tree::capture(lab.path("native"));
    change_places(&lab.path("native"));
    let after = Tree::capture(lab.path("native"));
    for dir in ["plain", "guarded"] {
        let open = Open::begin(&lab, dir, &[]);
        change_places(&open.path);
        after.assert_same(&Tree::capture(&open.path), "the view");
        open.systx("commit").ok();
        after.assert_same(&Tree::capture(lab.path(dir)), dir);
        lab.do_systx(["undo", &open.id]).ok();
        before.assert_same(&Tree::capture(lab.path(dir)), &format!("{dir}, undone"));
        lab.do_systx(["redo"]).ok();
        after.assert_same(&Tree::capture(lab.path(dir)), &format!("{dir}, redone"));
    }
}
