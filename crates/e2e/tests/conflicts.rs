//! Two who want the same: transactions against each other, and against programs outside.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use systx_e2e::lab::find_program;
use systx_e2e::run::{Limits, Running};
use systx_e2e::{CONFLICT, Fs, Lab, OUTSIDE, lab, skip};

/// Both read and write `file`; the one that ends second, or earlier by decision of the policy,
/// must lose: returns (winner's text, how the loser ended).
fn collide(lab: &Lab, one: &str, two: &str) -> Vec<systx_e2e::Finished> {
    let mut a = lab.shell(&[]);
    let mut b = lab.shell(&[]);
    a.eval("true");
    b.eval("true");
    // One of them may be ended here already: detection is at first access.
    a.try_eval(one);
    b.try_eval(two);
    a.try_eval("true");
    a.begin_exit(0);
    b.begin_exit(0);
    vec![a.finished(), b.finished()]
}

fn one_commits_one_loses(lab: &Lab, one: &str, two: &str, path: &str) {
    let ends = collide(lab, one, two);
    let codes: Vec<_> = ends.iter().map(|e| e.code).collect();
    assert!(
        codes == [0, CONFLICT] || codes == [CONFLICT, 0],
        "one must commit, one must lose: {codes:?}\n{}\n{}",
        ends[0],
        ends[1]
    );
    let loser = ends.iter().find(|e| e.code == CONFLICT).expect("checked");
    assert!(loser.err.contains(path), "the conflict is named by its path {path}\n{loser}");
}

#[test]
fn a_lost_conflict_names_the_path_and_the_opponent() {
    let lab = lab!();
    lab.write("counter", "0\n");
    let ends = collide(
        &lab,
        "echo $(($(cat counter) + 1)) > counter",
        "echo $(($(cat counter) + 1)) > counter",
    );
    let loser = ends
        .iter()
        .find(|e| e.code == CONFLICT)
        .unwrap_or_else(|| panic!("{}\n{}", ends[0], ends[1]));
    assert!(ends.iter().any(|e| e.code == 0), "{}\n{}", ends[0], ends[1]);
    assert!(loser.err.contains(lab.path("counter").to_str().unwrap()), "{loser}");
    assert!(loser.err.contains("sh"), "the command of the opponent is named\n{loser}");
    assert_eq!(lab.read("counter"), "1\n");
}

#[test]
fn conflicts_on_each_kind_of_object() {
    let lab = lab!();
    let cases: &[(&str, &str, &str, &str)] = &[
        ("two files by one name", "echo a > new", "echo b > new", "new"),
        ("unlink and write", "rm f", "echo b >> f", "f"),
        ("rename and unlink", "mv f g", "rm f", "f"),
        ("chmod and chmod", "chmod 600 f", "chmod 640 f", "f"),
        (
            "the same page",
            "printf a | dd of=f bs=1 conv=notrunc",
            "printf b | dd of=f bs=1 seek=1 conv=notrunc",
            "f",
        ),
        ("two appends", "echo a >> f", "echo b >> f", "f"),
        ("xattr", "setfattr -n user.x -v 1 f", "setfattr -n user.x -v 2 f", "f"),
        (
            "a listing and its reader",
            "ls d > listing-1; echo a > d/one",
            "ls d > listing-2; echo b > d/two",
            "d",
        ),
        ("rmdir and create", "rmdir e", "echo x > e/new", "e"),
        ("swap of a name and use of it", "mv d old; mkdir d", "echo x > d/late", "d"),
    ];
    for (what, one, two, path) in cases {
        if *what == "xattr" && (find_program("setfattr").is_none() || lab.fs == Fs::Tmpfs) {
            eprintln!("left out: {what}: no setfattr, or a tmpfs");
            continue;
        }
        lab.native("rm -rf *; seq 3000 > f; mkdir d e; echo 1 > d/x").ok();
        eprintln!("{what}");
        one_commits_one_loses(&lab, one, two, path);
    }
}

#[test]
fn what_does_not_overlap_does_not_conflict() {
    let lab = lab!();
    let cases: &[(&str, &str, &str)] = &[
        ("different files", "echo a > a", "echo b > b"),
        ("different new names in one directory", "echo a > d/new-a", "echo b > d/new-b"),
        ("different directories", "mkdir -p x/1; ls x", "mkdir -p y/1; ls y"),
        ("removal of different names", "rm d/1", "rm d/2"),
        (
            "different pages of one file",
            "printf a | dd of=big bs=1 seek=10 conv=notrunc",
            "printf b | dd of=big bs=1 seek=900000 conv=notrunc",
        ),
        ("both only read", "cat d/1 big | cksum", "cat d/1 big | cksum; ls d"),
    ];
    for (what, one, two) in cases {
        lab.native("rm -rf *; echo 0 > a; echo 0 > b; mkdir d x y; echo 1 > d/1; echo 2 > d/2; head -c 1M /dev/zero > big").ok();
        let ends = collide(&lab, one, two);
        for end in &ends {
            assert_eq!(end.code, 0, "{what}: {end}");
        }
    }
}

/// Lets runs meet: each reports that it came to the gate, and passes when the gate opens; once open
/// it stays open, so that a retry passes.
struct Gate {
    ready: fs::File,
    go: fs::File,
    /// What the script says at the gate.
    script: String,
}

impl Gate {
    fn new(lab: &Lab, name: &str) -> Gate {
        let place = |kind: &str| lab.outside().join(format!("{name}.{kind}"));
        let (ready, go) = (place("ready"), place("go"));
        lab.native(&format!("mkfifo -m 666 {} {}", ready.display(), go.display())).ok();
        // Open for both, so that neither side ever waits for the other to open it.
        let open = |path| fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let script = format!("echo r > {}; read open_gate < {}", ready.display(), go.display());
        Gate { ready: open(&ready), go: open(&go), script }
    }
    fn wait_for_arrival(&mut self) {
        self.ready.read_exact(&mut [0; 2]).expect("held open");
    }
    fn open(&mut self) {
        self.go.write_all(&[b'\n'; 100]).expect("a pipe holds this");
    }
}

#[test]
fn retries_make_both_succeed() {
    let lab = lab!();
    lab.write("counter", "0\n");
    let mut gates = [Gate::new(&lab, "one"), Gate::new(&lab, "two")];
    let runs: Vec<_> = gates
        .iter()
        .enumerate()
        .map(|(n, gate)| {
            let gate = &gate.script;
            let script =
                format!("n=$(cat counter); {gate}; echo $((n + 1)) > counter; echo > mark-{n}");
            let command = lab.systx(["run", "--retries", "3", "--", "sh", "-c", &script]);
            Running::start(command, Limits::default())
        })
        .collect();
    gates.iter_mut().for_each(Gate::wait_for_arrival); // both have read the counter
    gates.iter_mut().for_each(Gate::open);
    for run in runs {
        run.finish(&lab).ok();
    }
    assert_eq!(lab.read("counter"), "2\n");
    assert!(lab.has("mark-0") && lab.has("mark-1"));
}

#[test]
fn a_counter_under_contention_counts_right() {
    let lab = lab!();
    lab.write("counter", "0\n");
    let (workers, rounds) = (4, 5);
    std::thread::scope(|s| {
        for _ in 0..workers {
            s.spawn(|| {
                for _ in 0..rounds {
                    lab.run(&["--retries", "50"], "echo $(($(cat counter) + 1)) > counter").ok();
                }
            });
        }
    });
    assert_eq!(lab.read("counter"), format!("{}\n", workers * rounds));
}

#[test]
fn without_retries_nothing_is_lost_silently() {
    let lab = lab!();
    lab.write("counter", "0\n");
    let wins = AtomicU64::new(0);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..5 {
                    let done = lab.run(&[], "echo $(($(cat counter) + 1)) > counter");
                    match done.code {
                        0 => wins.fetch_add(1, Ordering::Relaxed),
                        CONFLICT => 0,
                        _ => panic!("{done}"),
                    };
                }
            });
        }
    });
    assert_eq!(lab.read("counter"), format!("{}\n", wins.load(Ordering::Relaxed)));
    assert!(wins.load(Ordering::Relaxed) > 0);
}

#[test]
fn write_skew_is_prevented_and_snapshot_allows_it_by_name() {
    let lab = lab!();
    let scripts = [
        "[ $(cat a) = 0 ]; cat b > /dev/null; echo 1 > a",
        "[ $(cat b) = 0 ]; cat a > /dev/null; echo 1 > b",
    ];
    for (isolation, wanted) in [("serializable", vec![0, CONFLICT]), ("snapshot", vec![0, 0])] {
        lab.write("a", "0\n");
        lab.write("b", "0\n");
        let option = format!("--isolation={isolation}");
        let mut one = lab.shell(&[&option]);
        let mut two = lab.shell(&[&option]);
        one.try_eval(scripts[0]);
        two.try_eval(scripts[1]);
        one.begin_exit(0);
        two.begin_exit(0);
        let ends = [one.finished(), two.finished()];
        let mut codes: Vec<_> = ends.iter().map(|e| e.code).collect();
        codes.sort_unstable();
        assert_eq!(codes, wanted, "{isolation}\n{}\n{}", ends[0], ends[1]);
        if isolation == "serializable" {
            let loser = ends.iter().find(|e| e.code == CONFLICT).unwrap();
            assert!(
                loser.err.contains("snapshot"),
                "only reads were stale: the other level is named\n{loser}"
            );
        }
    }
}

#[test]
fn snapshot_isolation_still_refuses_two_writers() {
    let lab = lab!();
    lab.write("f", "0\n");
    let mut one = lab.shell(&["--isolation=snapshot"]);
    let mut two = lab.shell(&["--isolation=snapshot"]);
    one.try_eval("echo one > f");
    two.try_eval("echo two > f");
    one.begin_exit(0);
    two.begin_exit(0);
    let (one, two) = (one.finished(), two.finished());
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, CONFLICT], "{one}\n{two}");
}

/// `stale_only` promises that the weaker level would have committed.
#[test]
fn a_loser_under_snapshot_isolation_is_not_sent_there() {
    let lab = lab!();
    let cases = [
        ("echo 1 > d/f", "cat d/f; echo 2 > d/f"),
        ("echo 1 > d/n; mv d/n d/f", "cat d/f; echo 2 > d/m; mv d/m d/f"),
        ("rm d/f", "echo 2 >> d/f"),
        ("echo 1 > d/e/x", "rmdir d/e"),
        ("rmdir d/e", "echo 2 > d/e/x"),
        ("mv d moved", "echo 2 > d/new"),
    ];
    for (n, (winner, loser)) in cases.into_iter().enumerate() {
        lab.write(format!("{n}/d/f"), "0\n");
        lab.write(format!("{n}/d/e/gone"), "");
        fs::remove_file(lab.path(format!("{n}/d/e/gone"))).unwrap();
        let mut one = lab.shell(&["--isolation=snapshot"]);
        one.eval(&format!("cd {n}; {winner}"));
        let mut two = lab.shell(&["--isolation=snapshot"]);
        two.eval(&format!("cd {n}; {loser}"));
        one.begin_exit(0);
        one.finished().ok();
        two.begin_exit(0);
        let lost = two.finished();
        assert_eq!(lost.code, CONFLICT, "{winner}; {loser}\n{lost}");
        assert!(!lost.err.contains("--isolation"), "{winner}; {loser}\n{lost}");
    }
}

#[test]
fn four_workers_with_git_status_and_their_own_file_all_commit() {
    let lab = lab!();
    if find_program("git").is_none() {
        skip!("no git");
    }
    lab.native(
        "git init -q . && git config user.email a@b && git config user.name n && \
         for i in $(seq 200); do mkdir -p src/$((i % 10)); echo $i > src/$((i % 10))/$i.c; done && \
         find src -exec touch -d '1 hour ago' {} + && git add . && git commit -qm first && \
         touch -d '1 minute ago' .git/index && git status --short",
    )
    .ok();
    // The index is older than now and newer than the files: git has no reason to write it again.
    let mut workers: Vec<_> = (0..4).map(|_| lab.shell(&["--isolation=snapshot"])).collect();
    for worker in &mut workers {
        worker.eval("git status --short");
    }
    for (n, worker) in workers.iter_mut().enumerate() {
        worker.eval(&format!("echo edited by {n} > src/{n}/{n}.mine; echo more >> src/{n}/1{n}.c"));
        worker.eval("git status --short");
    }
    for worker in workers {
        worker.exit(0).ok();
    }
    for n in 0..4 {
        assert_eq!(lab.read(format!("src/{n}/{n}.mine")), format!("edited by {n}\n"));
        assert_eq!(lab.read(format!("src/{n}/1{n}.c")), format!("1{n}\nmore\n"));
    }
    let status = lab.native("git status --short -- src | wc -l").ok();
    assert_eq!(status.out, "8\n");
}

// Programs outside.

#[test]
fn an_outside_edit_between_read_and_commit() {
    let lab = lab!();
    let edits: &[(&str, &str)] = &[
        ("another content", "echo outside > f"),
        ("an append", "echo outside >> f"),
        ("a replacement by rename", "echo outside > t; mv t f"),
        ("removal", "rm f"),
        ("a chmod", "chmod 600 f"),
        ("the same length", "printf 'eno\n' > f"),
    ];
    for (what, edit) in edits {
        lab.native("rm -rf *; echo one > f").ok();
        let mut shell = lab.shell(&[]);
        shell.eval("cat f > copy; echo inside > g");
        lab.native(edit).ok();
        let outside = lab.tree();
        let done = shell.exit(0).expect(CONFLICT);
        assert!(done.err.contains(lab.path("f").to_str().unwrap()), "{what}\n{done}");
        outside.assert_same(&lab.tree(), what);
    }
}

/// It may have failed because of that: a lock that it found, and that is given up since.
#[test]
fn a_command_that_fails_after_a_change_outside_has_lost() {
    let lab = lab!();
    let claim = "(set -C; echo run > lock)";
    let begin = || {
        lab.native("rm -rf *; echo outside > lock").ok();
        let mut shell = lab.shell(&[]);
        assert!(shell.try_eval(claim).is_some_and(|(_, code)| code != 0), "it is locked");
        shell
    };
    begin().exit(3).expect(3);

    let shell = begin();
    lab.native("rm lock").ok();
    let done = shell.exit(3).expect(CONFLICT);
    assert!(done.err.contains(lab.path("lock").to_str().unwrap()), "{done}");

    lab.write("lock", "outside\n");
    let mut gate = Gate::new(&lab, "given-up");
    let script = format!("{claim} && exit 0; {}; exit 3", gate.script);
    let command = lab.systx(["run", "--retries", "1", "--", "bash", "-c", &script]);
    let run = Running::start(command, Limits::default());
    gate.wait_for_arrival();
    lab.native("rm lock").ok();
    gate.open();
    run.finish(&lab).ok();
    assert_eq!(lab.read("lock"), "run\n");
}

/// Who started it has opened the file, and it goes there at once: the message names the cause.
#[test]
fn a_run_that_reads_what_its_own_output_is_redirected_to_is_told_so() {
    let lab = lab!();
    let run = |script: &str| {
        lab.write("f", "one\n");
        lab.native(&format!("{} run -- sh -c '{script}' >> f", lab.binary().display()))
    };
    let told = "the output goes to that file past the transaction";
    run("cat f; echo two >> f").expect(CONFLICT).says(told);
    assert_eq!(lab.read("f"), "one\none\n");
    let ended = run("echo two; echo three >> f").ok();
    assert!(!ended.err.contains(told), "{ended}");
    assert_eq!(lab.read("f"), "one\ntwo\nthree\n");
    lab.write("f", "one\n");
    lab.run(&[], "seen=$(cat f); echo $seen two >> f").ok();
    assert_eq!(lab.read("f"), "one\none two\n");
}

#[test]
fn an_outside_edit_of_what_the_run_wrote() {
    let lab = lab!();
    lab.write("f", "one\n");
    let mut shell = lab.shell(&[]);
    shell.eval("echo inside > f; echo inside > new; rm -f other; mkdir d");
    lab.native("echo outside > f; echo outside > new; mkdir d; echo x > d/x").ok();
    let outside = lab.tree();
    shell.exit(0).expect(CONFLICT);
    outside.assert_same(&lab.tree(), "what was written outside stays");
}

#[test]
fn an_outside_edit_that_the_run_never_looked_at_does_not_matter() {
    let lab = lab!();
    lab.write("f", "one\n");
    lab.write("d/x", "1\n");
    let mut shell = lab.shell(&[]);
    shell.eval("echo inside > new");
    lab.native("echo outside > f; echo y > d/y; echo z > z").ok();
    shell.exit(0).ok();
    assert_eq!((lab.read("new"), lab.read("f")), ("inside\n".into(), "outside\n".into()));
    assert!(lab.has("d/y") && lab.has("z"));
}

#[test]
fn an_outside_new_name_conflicts_with_a_listing() {
    let lab = lab!();
    lab.write("d/x", "1\n");
    let mut shell = lab.shell(&[]);
    shell.eval("ls d > listing");
    lab.write("d/y", "2\n");
    let done = shell.exit(0).expect(CONFLICT);
    assert!(done.err.contains("d"), "{done}");
    assert!(!lab.has("listing"));
}

#[test]
fn a_file_mapped_outside_is_noticed() {
    let lab = lab!();
    if lab.fs == Fs::Tmpfs {
        skip!("tmpfs never tells of writes through a map");
    }
    lab.write("mapped", vec![b'a'; 20000]);
    // A program outside keeps the file mapped for writing and writes to it on a signal by pipe.
    let program = "import mmap,sys\nf=open('mapped','r+b')\nm=mmap.mmap(f.fileno(),0)\nm[0:1]=b'b'\nprint('ready',flush=True)\n\
                   sys.stdin.readline()\nm[1:8]=b'outside'\nprint('written',flush=True)\nsys.stdin.readline()\n";
    let mut command = lab.command("/usr/bin/python3");
    command.args(["-c", program]);
    let mut outside = systx_e2e::run::Dialogue::start(&lab, command);
    outside.wait_for("ready");
    let mut shell = lab.shell(&[]);
    let read = shell.try_eval(
        "head -c 8 mapped; printf inside | dd of=mapped bs=1 seek=10000 conv=notrunc 2>/dev/null",
    );
    outside.send("\n");
    outside.wait_for("written");
    shell.begin_exit(0);
    let done = shell.finished();
    // Refused or reported by name; and what was written outside is never lost.
    assert!(done.err.contains("mapped"), "read {read:?}\n{done}");
    assert!(done.code != 0 || done.err.contains("open for writing"), "{done}");
    outside.send("\n");
    outside.close();
    assert!(lab.read("mapped").starts_with("boutside"), "{}", &lab.read("mapped")[..10]);
}

#[test]
fn a_file_open_for_writing_outside_is_not_overwritten_unseen() {
    let lab = lab!();
    lab.write("log", "start\n");
    let mut log = fs::OpenOptions::new().append(true).open(lab.path("log")).unwrap();
    let mut shell = lab.shell(&[]);
    shell.try_eval("echo inside >> log; echo n > new");
    log.write_all(b"outside\n").unwrap();
    shell.begin_exit(0);
    let done = shell.finished();
    assert!(done.code != 0, "{done}");
    assert!(done.err.contains("log"), "{done}");
    log.write_all(b"more\n").unwrap();
    assert_eq!(lab.read("log"), "start\noutside\nmore\n");
    assert!(!lab.has("new"), "all or nothing");
}

/// A program outside edits one file in place as fast as it can while runs edit it too.  Each edit,
/// outside or inside, adds one line in its own slot, so a lost edit is seen.
#[test]
fn a_storm_of_outside_edits_loses_nothing() {
    let lab = lab!();
    let slots = 4000u64;
    lab.write("file", "........\n".repeat(slots as usize));
    let stop = AtomicBool::new(false);
    let written = AtomicU64::new(0);
    let seconds = if std::env::var_os("SYSTX_LONG").is_some() { 60 } else { 6 };
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut committed = Vec::new();
    let (mut lost, mut tried) = (0, 0);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) && n < slots / 2 {
                // Opens anew each time: an exchanged file must not swallow edits made by path.
                let file = fs::OpenOptions::new().write(true).open(lab.path("file")).unwrap();
                let line = format!("out{n:05}\n");
                file.write_all_at(line.as_bytes(), n * 9).unwrap();
                drop(file);
                n += 1;
                written.store(n, Ordering::Relaxed);
                // Pauses of changing length, so that edits fall into every phase of a commit.
                std::thread::sleep(Duration::from_micros(n * 7919 % 25_000));
            }
        });
        let mut slot = slots / 2;
        while Instant::now() < deadline {
            let text = format!("in{slot:06}");
            let script = format!(
                "printf {text} | dd of=file bs=1 seek={} conv=notrunc 2>/dev/null",
                slot * 9
            );
            let done = lab.run(&[], &script);
            tried += 1;
            match done.code {
                0 => {
                    committed.push((slot, text));
                    slot += 1;
                }
                // Lost, or someone had it open for writing, or it changed while installing.
                _ => {
                    assert!(done.err.contains("file"), "{done}");
                    lost += 1;
                    if lab.read("file").contains(&text) {
                        committed.push((slot, text)); // reported, but installed
                        slot += 1;
                    }
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let text = lab.read("file");
    let lines: Vec<_> = text.lines().collect();
    let outside = written.load(Ordering::Relaxed);
    eprintln!("{outside} edits outside; {tried} runs, {} committed, {lost} lost", committed.len());
    let missing: Vec<_> =
        (0..outside).filter(|n| lines[*n as usize] != format!("out{n:05}")).collect();
    let saved = saved_copies(&lab);
    let unexplained: Vec<_> = missing
        .iter()
        .filter(|n| !saved.iter().any(|t| t.contains(&format!("out{n:05}"))))
        .collect();
    assert!(unexplained.is_empty(), "edits outside were lost: {unexplained:?}");
    for (slot, text) in &committed {
        assert_eq!(lines[*slot as usize], text, "a committed edit was lost");
    }
    assert!(outside > 0 && tried > 0);
}

/// Contents of what systx put aside for outsiders (A5), wherever it is.
fn saved_copies(lab: &Lab) -> Vec<String> {
    let list = lab.native("find . -xdev -type f -size -1000k").ok().out;
    list.lines()
        .filter(|l| *l != "./file")
        .filter_map(|l| fs::read(lab.path(l)).ok())
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .collect()
}

/// Outsiders replace whole files by rename, as editors do, while runs change the same names.
#[test]
fn a_storm_of_outside_renames_loses_nothing() {
    let lab = lab!();
    lab.native("mkdir d; for i in $(seq 0 19); do echo start > d/$i; done").ok();
    let stop = AtomicBool::new(false);
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut last_written = vec![0u64; 20];
    std::thread::scope(|s| {
        let writer = s.spawn(|| {
            let mut last = vec![0u64; 20];
            let mut n = 0u64;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let i = (n * 7) % 20;
                let temporary = lab.path(format!("d/tmp-{n}"));
                fs::write(&temporary, format!("outside {n}\n")).unwrap();
                fs::rename(&temporary, lab.path(format!("d/{i}"))).unwrap();
                last[i as usize] = n;
                std::thread::sleep(Duration::from_micros(n * 104_729 % 4000));
            }
            last
        });
        let mut tried = 0;
        while Instant::now() < deadline {
            tried += 1;
            let i = tried % 20;
            // Reads what is there and keeps it in the history: nothing that was there is forgotten.
            let done =
                lab.run(&[], &format!("cat d/{i} >> history-{i}; echo inside {tried} > d/{i}"));
            assert!([0, CONFLICT, OUTSIDE].contains(&done.code), "{done}");
            assert!(done.code == 0 || done.err.contains(&format!("d/{i}")), "{done}");
        }
        stop.store(true, Ordering::Relaxed);
        last_written = writer.join().expect("the writer outside never fails");
    });
    // The last text that was written outside is there, or a run saw it before it replaced it, or it
    // was put aside.
    let saved = saved_copies(&lab);
    for (i, n) in last_written.iter().enumerate().filter(|(_, n)| **n > 0) {
        let text = format!("outside {n}\n");
        let here = lab.read(format!("d/{i}"));
        assert!(
            here == text || saved.iter().any(|t| t.contains(&text)),
            "d/{i} has {here:?}, and {text:?} is nowhere"
        );
    }
}

/// A file that is rewritten while someone has it open is written in place; one that is replaced, as
/// careful programs do, switches in one step for everybody.
#[test]
fn outsiders_never_see_half_of_a_file_that_is_replaced() {
    let lab = lab!();
    let (a, b) = ("A".repeat(30_000), "B".repeat(30_000));
    lab.write("file", &a);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut looks = 0;
            while !stop.load(Ordering::Relaxed) {
                let text = lab.read("file");
                assert!(text == a || text == b, "half a file of {} bytes", text.len());
                looks += 1;
            }
            looks
        });
        for n in 0..10 {
            let c = if n % 2 == 0 { 'B' } else { 'A' };
            lab.run(
                &["--retries", "20"],
                &format!("head -c 30000 /dev/zero | tr '\\0' {c} > t; mv t file"),
            )
            .ok();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("reader") > 0);
    });
}

/// What a program that watches a directory believes is in it, by the last event about each name.
struct Watcher {
    events: std::os::fd::OwnedFd,
    names: BTreeSet<String>,
}

impl Watcher {
    fn new(dir: &Path) -> Watcher {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
        let kinds = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVE;
        inotify::add_watch(&events, dir, kinds).unwrap();
        Watcher { events, names: names_in(dir) }
    }

    fn believes(&mut self) -> &BTreeSet<String> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.events, &mut buffer);
        while let Ok(event) = reader.next() {
            let name = event.file_name().expect("of a name").to_str().unwrap().to_owned();
            if event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                self.names.insert(name);
            } else {
                self.names.remove(&name);
            }
        }
        &self.names
    }
}

fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_watcher_outside_is_told_last_what_is_there() {
    let lab = lab!();
    if lab.fs == Fs::Volume {
        skip!("commits raise no events in a volume");
    }
    let works = [
        "echo 1 > f",
        "echo 1 > n; mv n f",
        "sed -i s/0/1/ f g",
        "rm f; echo 1 > f",
        "rm f; echo 1 > new; mkdir sub",
        "mv f g",
        "mv f h; mv d e",
        "mv f d/x",
        "rm g; ln -s f g",
        "ln -f f g",
        "rm f; mkdir f; echo 1 > f/x",
        "rm -r d; echo 1 > d",
    ];
    for (n, work) in works.into_iter().enumerate() {
        for file in ["f", "g", "d/x"] {
            lab.write(format!("{n}/{file}"), "0\n");
        }
        let dir = lab.path(n.to_string());
        let mut watcher = Watcher::new(&dir);
        lab.run(&[], &format!("cd {n}; {work}")).ok();
        assert_eq!(*watcher.believes(), names_in(&dir), "{work}");
        lab.do_systx(["undo"]).ok();
        assert_eq!(*watcher.believes(), names_in(&dir), "undo of {work}");
    }
}

#[test]
fn what_an_editor_outside_holds_open_is_still_its_file() {
    // A reader outside that has the old version open goes on reading the old version.
    let lab = lab!();
    lab.write("file", "old content\n");
    let mut file = fs::File::open(lab.path("file")).unwrap();
    lab.run(&[], "echo new content > t; mv t file").ok();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old content\n");
    assert_eq!(lab.read("file"), "new content\n");
}

/// Whoever comes first ends it, and nobody else is harmed by that.
#[test]
fn a_commit_and_an_abort_at_once_do_one_of_the_two() {
    let lab = lab!();
    let (mut committed, mut aborted) = (0, 0);
    for round in 0..40 {
        // Enough to do that the commit takes a while before it is decided.
        let work =
            format!("mkdir d{round}; for i in $(seq 100); do echo {round} > d{round}/$i; done");
        lab.run(&["--on-exit=keep"], &work).ok();
        let id = lab.open_ids().remove(0);
        let start = |command: &str| Running::start(lab.systx([command, &id]), Limits::default());
        let (commit, abort) = (start("commit"), start("abort"));
        let (commit, abort) = (commit.finish(&lab), abort.finish(&lab));
        let there = lab.has(format!("d{round}/100"));
        assert_eq!(there, commit.code == 0, "round {round}\n{commit}\n{abort}");
        assert_ne!(there, abort.code == 0, "round {round}\n{commit}\n{abort}");
        committed += usize::from(there);
        aborted += usize::from(!there);
    }
    eprintln!("{committed} committed, {aborted} aborted");
    assert!(lab.open_ids().is_empty());
    lab.run(&[], "echo last > last").ok();
    let log = lab.daemon_log();
    assert!(!log.contains("panicked"), "{log}");
}
