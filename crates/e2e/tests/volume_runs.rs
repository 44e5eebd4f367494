//! Transactions in a log-structured volume that is mounted: what plain programs of the mount may
//! see of them, whoever is killed.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use systx_e2e::mapped::Mapped;
use systx_e2e::room::Room;
use systx_e2e::run::{Limits, Running, Shell, finish};
use systx_e2e::volume::{Mounted, shell};
use systx_e2e::{Finished, Lab, lab, skip};

const CONFLICT: i32 = 75;

/// `systx run OPTIONS -- sh -c SCRIPT` in the volume.
fn run(v: &Mounted<'_>, options: &[&str], script: &str) -> Finished {
    let shell = ["--", "sh", "-c", script];
    let mut command = v.lab.systx(["run"].iter().chain(options).chain(&shell));
    command.current_dir(&v.dir);
    finish(command, Limits::seconds(100), v.lab)
}

/// A shell in a run in the volume.
fn begin<'a>(v: &Mounted<'a>, options: &[&str]) -> Shell<'a> {
    let argv = ["run"].iter().chain(options).chain(&["--", "sh"]);
    let mut command = v.lab.systx(argv);
    command.current_dir(&v.dir);
    Shell::start(v.lab, command)
}

fn systx(v: &Mounted<'_>, args: &str) -> Finished {
    let mut command = v.lab.systx(args.split(' '));
    command.current_dir(&v.dir);
    finish(command, Limits::seconds(60), v.lab)
}

fn latest(v: &Mounted<'_>) -> String {
    let log = systx(v, "log --json").ok().json();
    systx_e2e::run::ids(&log).first().expect("something was committed").clone()
}

fn read(v: &Mounted<'_>, name: &str) -> String {
    fs::read_to_string(v.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn a_run_is_seen_when_it_commits_and_is_undone_and_redone() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; echo old > a; echo x > d/f; ln -s a link; cat a d/f > /dev/null; ls -lR . d")
        .ok();
    let script = "set -e; echo new > a; echo made > n; rm d/f; rmdir d; mv link other; \
         chmod 600 a; \
                  setfattr -n user.k -v w n 2>/dev/null || true";
    let kept = run(&v, &["--on-exit=keep"], script).ok();
    let id = lab.open_ids().pop().unwrap_or_else(|| panic!("{kept}"));
    let before = "cat a d/f link; ls; stat -c %a a";
    let old = v.sh(before).ok().out;
    assert_eq!(old, "old\nx\nold\na\nd\nlink\n644\n");
    let diff = systx(&v, &format!("diff {id}")).ok().out;
    assert!(diff.contains("+new") && diff.contains("-old"), "{diff}");
    assert!(systx(&v, "top --once").ok().out.contains(v.dir.to_str().unwrap()));
    // It is not unmounted under it.
    let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(refused.err.contains(&id), "{refused}");
    systx(&v, &format!("commit {id}")).ok();
    let after = "cat a n other; ls; stat -c %a a";
    let new = v.sh(after).ok().out;
    assert_eq!(new, "new\nmade\nnew\na\nn\nother\n600\n");
    assert!(systx(&v, &format!("show {id}")).ok().out.contains("+made"));
    v.again();
    assert_eq!(v.sh(after).ok().out, new);
    assert_eq!(latest(&v), id);
    systx(&v, &format!("undo {id}")).ok();
    assert_eq!(v.sh(before).ok().out, old);
    let undo = latest(&v);
    systx(&v, &format!("redo {id}")).ok();
    assert_eq!(v.sh(after).ok().out, new);
    assert_ne!(undo, id);
    // What failed leaves no trace.
    run(&v, &[], "rm -r *; echo gone > here; exit 3").expect(3);
    assert_eq!(v.sh(after).ok().out, new);
}

#[test]
fn a_run_loses_to_a_plain_change_of_what_it_has_read_and_names_it() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 1 > a; mkdir d; echo 1 > d/f").ok();
    let changes: [(&str, &str, &str); 6] = [
        ("cat a", "echo 2 > a", "v/a"),
        ("cat a", "mv a z; cp z a", "v/a"),
        ("stat a", "chmod 600 a", "v/a"),
        ("ls d", "touch d/new", "v/d"),
        ("test -e absent", "touch absent", "v/absent"),
        ("echo 3 > d/f", "echo 2 > d/f", "v/d/f"),
    ];
    for (reads, changed, path) in changes {
        let mut one = begin(&v, &["--retries=0"]);
        one.try_eval(reads);
        v.sh(changed).ok();
        one.try_eval("echo mine > mine");
        one.begin_exit(0);
        let end = one.finished();
        assert_eq!(end.code, CONFLICT, "{reads}: {changed}: {end}");
        assert!(end.err.contains(path), "{reads}: {changed}: {}", end.err);
        assert!(!v.path("mine").exists(), "{end}");
    }
    // What does not meet does not lose.
    let mut one = begin(&v, &["--retries=0"]);
    one.eval("cat a; echo 9 > of-run");
    v.sh("echo 9 > of-program; echo 9 >> d/f").ok();
    one.exit(0).ok();
    assert_eq!(read(&v, "of-run") + &read(&v, "of-program"), "9\n9\n");
    // Under a snapshot a stale read is no loss, and a write is.
    let mut one = begin(&v, &["--retries=0", "--isolation=snapshot"]);
    one.eval("cat a; echo 1 > b");
    v.sh("echo 7 > a").ok();
    one.exit(0).ok();
    // Tried again, it sees what is there.
    v.sh("echo 1 > n; mkfifo go").ok();
    run(&v, &[], "echo $(($(cat n) + 1)) > n").ok();
    assert_eq!(read(&v, "n"), "2\n");
}

#[test]
fn what_two_runs_do_to_one_file_one_of_them_does() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 0 > n").ok();
    let (mut one, mut two) = (begin(&v, &["--retries=0"]), begin(&v, &["--retries=0"]));
    one.try_eval("echo $(($(cat n) + 1)) > n");
    two.try_eval("echo $(($(cat n) + 1)) > n");
    one.begin_exit(0);
    two.begin_exit(0);
    let (one, two) = (one.finished(), two.finished());
    let mut codes = [one.code, two.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, CONFLICT], "{one}\n{two}");
    assert_eq!(read(&v, "n"), "1\n");
}

/// Of two files that each commit makes equal, whoever reads the second one after the first one
/// never sees it older.
#[test]
fn no_program_sees_half_of_a_commit_by_calls_names_or_mappings() {
    const COMMITS: u32 = 25;
    let lab = lab!();
    let v = Mounted::new(&lab);
    let line = |n: u32| format!("{n:07}\n");
    for name in ["x", "y"] {
        fs::write(v.path(name), line(0)).unwrap();
    }
    fs::create_dir(v.path("names")).unwrap();
    let number =
        |text: &str| text.trim().parse::<u32>().unwrap_or_else(|e| panic!("{text:?}: {e}"));
    let over = AtomicBool::new(false);
    let mapped = |name: &str| {
        let file = OpenOptions::new().read(true).write(true).open(v.path(name)).unwrap();
        Mapped::shared(&file, 8)
    };
    let by_call = || loop {
        let (x, y) = (number(&read(&v, "x")), number(&read(&v, "y")));
        assert!(x <= y, "by name: {x} {y}");
        if over.load(Relaxed) {
            return;
        }
    };
    let by_descriptor = || {
        let (x, y) = (File::open(v.path("x")).unwrap(), File::open(v.path("y")).unwrap());
        let get = |file: &File| {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, 0).unwrap();
            number(std::str::from_utf8(&bytes).unwrap())
        };
        while !over.load(Relaxed) {
            let (first, second) = (get(&x), get(&y));
            assert!(first <= second, "by descriptor: {first} {second}");
        }
    };
    let by_mapping = || {
        let (x, y) = (mapped("x"), mapped("y"));
        // A number may change between two of its bytes, but only upwards.
        let get = |of: &Mapped| {
            let once = || (0..7).fold(0, |n, at| n * 10 + u32::from(of.get(at) - b'0'));
            loop {
                let (first, second) = (once(), once());
                if first == second {
                    return first;
                }
            }
        };
        while !over.load(Relaxed) {
            let (first, second) = (get(&x), get(&y));
            assert!(first <= second, "by mapping: {first} {second}");
        }
    };
    // Each commit replaces one name by the next: there is never none, and a listing shows one.
    fs::write(v.path("names/0000000"), "").unwrap();
    let by_listing = || {
        while !over.load(Relaxed) {
            let names = fs::read_dir(v.path("names")).unwrap().count();
            assert_eq!(names, 1, "by listing");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(by_call);
        scope.spawn(by_descriptor);
        scope.spawn(by_mapping);
        scope.spawn(by_listing);
        let ends = Over(&over);
        for n in 1..=COMMITS {
            let script = format!(
                "printf '{n:07}\\n' | dd of=x conv=notrunc status=none; \
                 printf '{n:07}\\n' | dd of=y conv=notrunc status=none; \
                 mv names/{:07} names/{n:07}",
                n - 1
            );
            run(&v, &[], &script).ok();
            assert_eq!(read(&v, "x"), line(n));
        }
        drop(ends);
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn counts_of_runs_and_of_plain_programs_at_once_are_all_there() {
    const EACH: usize = 8;
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 0 > n; : > log").ok();
    let work = "n=$(($(cat n) + 1)); echo $n > n; echo run $n >> log";
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..EACH).for_each(|_| drop(run(&v, &["--retries=200"], work).ok())));
        }
        scope.spawn(|| {
            let mut log = OpenOptions::new().append(true).open(v.path("log")).unwrap();
            (0..40).for_each(|n| writeln!(log, "plain {n}").unwrap());
        });
    });
    assert_eq!(read(&v, "n"), format!("{}\n", 2 * EACH));
    let log = read(&v, "log");
    let of = |who: &str| log.lines().filter(|line| line.starts_with(who)).count();
    assert_eq!((of("run "), of("plain ")), (2 * EACH, 40), "{log}");
}

#[test]
fn a_daemon_that_is_killed_leaves_all_of_a_commit_or_nothing() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.begin_rounds();
    let mut committed = 0;
    for round in 1..=4_u64 {
        let script = format!(
            "echo {round} > a; echo {round} > d/b; rm d/at-*; echo {round} > d/at-{round}; \
             head -c 300000 /dev/zero > d/filler"
        );
        let argv = ["run", "--", "sh", "-c", &script];
        let mut command = lab.systx(argv);
        command.current_dir(&v.dir);
        let running = Running::start(command, Limits::seconds(60));
        // Some are killed before they decide, others after that.
        std::thread::sleep(std::time::Duration::from_millis(round * 50));
        lab.kill_and_come_back();
        let end = running.finish(&lab);
        committed = v.all_or_nothing(committed, round, (end.code == 0, &end.to_string()));
        v.again();
    }
}

#[test]
fn a_volume_that_is_full_says_so_before_the_decision() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "16M");
    v.sh("echo old > a; head -c 7000000 /dev/urandom > ballast; sync ballast").ok();
    // Each of them stays in memory until the commit.
    let files = "for i in $(seq COUNT); do head -c 100000 /dev/urandom > f$i; done";
    let end = run(&v, &[], &format!("echo new > a; {}", files.replace("COUNT", "80"))).expect(125);
    assert!(end.err.to_lowercase().contains("space"), "{end}");
    assert_eq!(v.sh("cat a; ls").ok().out, "old\na\nballast\n");
    run(&v, &[], &format!("echo new > a; {}", files.replace("COUNT", "2"))).ok();
    assert_eq!(v.sh("cat a; ls").ok().out, "new\na\nballast\nf1\nf2\n");
    // To remove is always possible.  The log has it, or the run says that it cannot be undone.
    let in_log = |end: &Finished| {
        let id = end.err.split("committed ").nth(1).and_then(|rest| rest.get(..8));
        let logged = systx(&v, "log").ok().out.contains(id.expect("a commit"));
        assert_eq!(logged, !end.err.contains("cannot be undone"), "{end}");
        logged
    };
    assert!(in_log(&run(&v, &[], "rm f1").ok()));
    v.sh("for size in 65536 4096; do head -c 20000000 /dev/zero | dd bs=$size of=rest$size; done");
    assert!(!in_log(&run(&v, &[], "rm f2").ok()));
}

/// Room that a run has filled and given up is there again, for plain programs and for the unmount.
#[test]
fn a_run_that_has_filled_the_volume_leaves_nothing_of_that() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "16M");
    for round in 0..3 {
        v.sh(&format!("echo {round} > kept{round}")).ok();
        let end = run(&v, &[], "echo new > kept0; head -c 40000000 /dev/zero | tr '\\0' x > big");
        assert!(end.code != 0 && end.err.contains("No space left"), "{end}");
        match round {
            0 => {}
            1 => drop(v.sh("head -c 5000000 /dev/zero > f && sync f").ok()),
            _ => drop(run(&v, &[], "head -c 8000000 /dev/zero | tr '\\0' x > f").ok()),
        }
        v.again();
        let big = if round > 0 { "f\n" } else { "" };
        let kept: String = (0..=round).map(|n| format!("kept{n}\n")).collect();
        assert_eq!(v.sh("ls; cat kept0").ok().out, format!("{big}{kept}0\n"));
        v.sh("rm -f f").ok();
    }
}

/// The kernel keeps the locks of the mount, and a run takes its own there.
#[test]
fn a_run_and_a_plain_program_exclude_each_other_by_locks() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; touch d/lock").ok();
    let mut one = begin(&v, &[]);
    one.eval("exec 9<>d/lock; flock 9");
    let tried = v.sh("flock -n d/lock true");
    assert_eq!(tried.code, 1, "{tried}");
    one.eval("exec 9<&-");
    one.exit(0).ok();
    v.sh("flock -n d/lock true").ok();
}

/// Who has a file open when a run replaces its content sees the new one, by that descriptor too.
#[test]
fn an_open_file_is_the_file_that_a_run_has_rewritten() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    for size in [10, 400_000] {
        v.sh(&format!("head -c {size} /dev/zero > f")).ok();
        let open = OpenOptions::new().read(true).write(true).open(v.path("f")).unwrap();
        let mapped = Mapped::shared(&open, size);
        assert_eq!(mapped.get(size - 1), 0);
        let script =
            format!("head -c {size} /dev/zero | tr '\\0' x > f.new; cat f.new > f; rm f.new");
        run(&v, &[], &script).ok();
        let mut byte = [0];
        open.read_exact_at(&mut byte, size as u64 - 1).unwrap();
        assert_eq!((byte, mapped.get(size - 1)), (*b"x", b'x'), "{size}");
        // And what is stored there is in the file.
        mapped.set(0, b'm');
        assert_eq!(fs::read(v.path("f")).unwrap()[0], b'm');
        let end = run(&v, &[], "head -c 1 f");
        assert_eq!(end.out, "m", "{end}");
    }
}

#[test]
fn what_is_not_there_yet_is_refused_by_name() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    // By force it goes under whoever works there, and what they did goes with it.
    let mut one = begin(&v, &[]);
    one.eval("echo lost > lost");
    lab.do_systx(["umount", "--force", "v"]).ok();
    one.try_eval("true");
    one.begin_exit(0);
    assert_ne!(one.finished().code, 0);
    lab.do_systx(["mount", "image", "v"]).ok();
    assert!(!v.path("lost").exists());
}

/// One transaction over a volume and two file systems.
#[test]
fn a_run_over_a_volume_and_file_systems_is_all_or_nothing_also_if_the_daemon_is_killed() {
    let room = match Room::new() {
        Ok(room) => room,
        Err(why) => skip!("no room of file systems: {why}"),
    };
    let work = |n: u32| {
        format!(
            "cd ..; echo {n} > b/v/f; echo {n} > a/f; echo {n} > b/f; rm -f b/v/at-*; \
             echo > b/v/at-{n}"
        )
    };
    let all = "cat b/v/f a/f b/f; ls b/v";
    room.sh("$S mkfs a/image --size 32M && mkdir b/v && $S mount a/image b/v").ok();
    room.sh(&format!("cd a && $S run -- sh -c '{}'", work(1))).ok();
    let found = room.sh(all).ok();
    assert!(found.contains("1\n1\n1\nat-1\nf\n"), "{found}");
    for n in 2..=4 {
        let script = format!("cd a && $S run -- sh -c '{}'", work(n));
        let mut command = room.command(&script);
        let mut child = command.spawn().expect("a shell");
        std::thread::sleep(std::time::Duration::from_millis(u64::from(n) * 60));
        room.kill_daemon();
        child.wait().expect("own child");
        // The next command has what is left finished.
        room.sh("$S mount; (cd a && $S recover); (cd b && $S recover)").ok();
        // Nothing waits for the volume, which has finished its part.
        let doctor = room.sh("cd a && $S doctor").text;
        assert!(!doctor.contains("waits in"), "{doctor}");
        let found = room.sh("cat b/v/f a/f b/f").ok();
        let lines: Vec<&str> = found.lines().rev().take(3).collect();
        assert!(lines[0] == lines[1] && lines[1] == lines[2], "{n}: {found}");
    }
    room.sh("cd a && $S undo $($S log | head -n 1 | cut -d ' ' -f 1)").ok();
    // It may have been the first one, which has made them.
    let script = "for at in b/v a b; do cat $at/f 2>/dev/null || echo none; done | uniq | wc -l";
    let different = room.sh(script).ok();
    assert!(different.trim_end().ends_with('1'), "{different}");
    room.sh("$S umount b/v && $S fsck a/image").ok();
}

/// What changed only a file system that is mounted below the directory is its latest all the same.
#[test]
fn undo_and_log_find_what_changed_only_what_is_mounted_below() {
    let room = match Room::new() {
        Ok(room) => room,
        Err(why) => skip!("no room of file systems: {why}"),
    };
    room.sh("$S mkfs b/image --size 32M && mkdir a/v a/t && $S mount b/image a/v").ok();
    room.sh("mount -t tmpfs tmpfs a/t && cd a && echo 0 > f").ok();
    for at in ["v", "t"] {
        room.sh("cd a && $S run -- sh -c 'echo 1 > f'").ok();
        room.sh(&format!("cd a && $S run -- sh -c 'echo later > {at}/g'")).ok();
        let log = room.sh(&format!("cd a && $S log {at}/g")).ok();
        assert!(log.contains("later"), "{log}");
        let said = room.sh("cd a && $S undo 2>&1 && cat f && ls v t").ok();
        assert!(said.contains("later") && said.contains("\n1\n"), "{at}: {said}");
        assert!(!said.contains("\ng\n"), "{at}: {said}");
        room.sh(&format!("cd a && $S redo && test $(cat {at}/g) = later && $S undo")).ok();
        // And then the one before it.
        let said = room.sh("cd a && $S undo 2>&1 && cat f").ok();
        assert!(said.ends_with("\n0\n"), "{at}: {said}");
    }
    room.sh("umount a/t && $S umount a/v && $S fsck b/image").ok();
}

/// An id is found in whichever file system its transaction is, and is shown and taken back there.
#[test]
fn a_transaction_is_found_by_its_id_from_another_file_system() {
    let room = match Room::new() {
        Ok(room) => room,
        Err(why) => skip!("no room of file systems: {why}"),
    };
    room.sh("$S mkfs b/image --size 32M && mkdir a/v && $S mount b/image a/v").ok();
    for at in ["a/v", "b"] {
        room.sh(&format!("cd {at} && $S run -q -- sh -c 'echo there > g'")).ok();
        let log = room.sh(&format!("cd {at} && $S log -n 1")).ok();
        // What was said comes first.
        let id = log.lines().nth(1).and_then(|line| line.get(..8)).expect("a line of the log");
        let shown = room.sh(&format!("cd a && $S diff {id}")).ok();
        assert!(shown.contains("+there"), "{at}: {shown}");
        let shown = room.sh(&format!("cd a && $S show {id}")).ok();
        let is_it = shown.contains(id) && shown.contains(&format!("{at}: sh -c"));
        assert!(is_it && shown.contains("+there"), "{at}: {shown}");
        room.sh(&format!("cd a && $S undo {id} && test ! -e ../{at}/g")).ok();
        room.sh(&format!("cd a && $S redo {id} && test -e ../{at}/g")).ok();
        // Who says which file system is meant gets no other.
        for command in ["undo", "show"] {
            let said = room.sh(&format!("cd a && ! $S {command} --root . {id} 2>&1")).ok();
            assert!(said.contains("has no transaction") && said.contains("log -C DIR"), "{said}");
        }
    }
    room.sh("$S umount a/v && $S fsck b/image").ok();
}

/// Each of the stores knows of the others, whichever has decided.
#[test]
fn what_was_done_on_a_volume_and_a_file_system_is_taken_back_as_a_whole_from_each_of_them() {
    let room = match Room::new() {
        Ok(room) => room,
        Err(why) => skip!("no room of file systems: {why}"),
    };
    room.sh("$S mkfs a/image --size 32M && mkdir b/v && $S mount a/image b/v").ok();
    for (n, from) in ["a", "b/v", "b"].into_iter().enumerate() {
        let run = format!("echo {n} > f; echo {n} > ../b/f; echo {n} > ../b/v/f");
        room.sh(&format!("cd a && $S run -- sh -c '{run}'")).ok();
        let are = |room: &Room, there: usize| {
            let found = room.sh("ls a/f b/f b/v/f 2>/dev/null | wc -l").ok();
            assert!(found.trim_end().ends_with(&there.to_string()), "from {from}: {found}");
        };
        for (again, there) in [("undo", 0), ("redo", 3), ("undo", 0)] {
            let said = room.sh(&format!("cd {from} && $S {again}")).ok();
            assert!(!said.contains("program outside"), "{said}");
            are(&room, there);
        }
        // Each history has it.
        let log = |at: &str| room.sh(&format!("cd {at} && $S log | head -n 1")).ok();
        let id = |at: &str| {
            log(at).lines().nth(1).and_then(|l| l.split(' ').next()).unwrap_or_default().to_owned()
        };
        assert!(id("a") == id("b") && id("a") == id("b/v"), "{} {}", log("a"), log("b/v"));
    }
    room.sh("$S umount b/v && $S fsck a/image").ok();
}

/// What a run has overwritten in place goes back by its blocks: undo and redo take no room for one
/// more copy of it.
#[test]
fn the_overwriting_of_a_large_file_is_undone_and_redone_without_copying_it() {
    let lab = lab!();
    let v = Mounted::sized(&lab, "512M");
    v.sh("seq -w 3000000 | head -c 24M > big; tail -c 1M big > small").ok();
    let content = "set -e; cksum < big; cksum < small; stat -c %s big small";
    let used = || -> u64 {
        let shown = v.sh("sync -f .; df --output=used -B1K . | tail -n 1").ok().out;
        shown.trim().parse().unwrap_or_else(|e| panic!("{shown}: {e}"))
    };
    let old = v.sh(content).ok().out;
    let script = "yes | head -c 24M | dd of=big bs=1M conv=notrunc; echo more >> small; \
                  truncate -s 20M big";
    run(&v, &[], script).ok();
    let (id, new) = (latest(&v), v.sh(content).ok().out);
    assert_ne!(old, new);
    let before = used();
    for (what, content_now) in [("undo", &old), ("redo", &new), ("undo", &old)] {
        systx(&v, &format!("{what} {id}")).ok();
        assert_eq!(&v.sh(content).ok().out, content_now, "after {what}");
        let now = used();
        assert!(now < before + 4096, "{what} took {now} KiB, not {before}");
        let shown = systx(&v, &format!("show --name-only {id}")).ok().out;
        assert!(shown.contains("v/big\n") && shown.contains("v/small\n"), "{shown}");
    }
    v.again();
    assert_eq!(v.sh(content).ok().out, old);
    // A later change of it stands in the way.
    systx(&v, &format!("redo {id}")).ok();
    v.sh("printf x | dd of=big conv=notrunc seek=5").ok();
    let refused = systx(&v, &format!("undo {id}"));
    assert!(refused.code != 0 && refused.err.contains("big"), "{refused}");
}

#[test]
fn daily_work_in_a_run_leaves_what_it_leaves_natively() {
    const WORK: &str = "set -e; umask 022; mkdir -p a/b; \
         for i in $(seq 60); do echo $i > a/f$i; done; \
         cp -a a copy; ln copy/f1 hard; find copy -name '*7' -delete; sed -i s/1/one/ a/f1*; \
         mv a/b c; mkfifo fifo; chmod 4755 copy/f3; chown 12:34 copy/f4; ln -s copy/f2 link; \
         truncate -s 3M sparse; touch -d 2001-02-03 copy/f5";
    let lab: Lab = lab!();
    let v = Mounted::new(&lab);
    let native = lab.path("native");
    fs::create_dir(&native).unwrap();
    shell(&lab, &native, 60, WORK).ok();
    run(&v, &[], WORK).ok();
    let tree = systx_e2e::Tree::capture(&native);
    tree.assert_same(&systx_e2e::Tree::capture(&v.dir), "native against a run in a volume");
    run(&v, &[], "rm -r * && mkdir only").ok();
    assert_eq!(v.sh("ls").ok().out, "only\n");
    systx(&v, &format!("undo {}", latest(&v))).ok();
    v.again();
    tree.assert_same(&systx_e2e::Tree::capture(&v.dir), "native against what was undone");
}

#[test]
fn a_snapshot_is_found_by_a_transaction_that_it_is_from_before() {
    let lab = lab!();
    let v = Mounted::new(&lab);
    fs::create_dir(lab.path("old")).unwrap();
    let mount = |id: &str| lab.do_systx(["mount", "image", "old", "--at", id]);
    let mut ids = Vec::new();
    for n in 0..4 {
        if n > 0 {
            lab.do_systx(["snapshot", "v", &format!("s{n}")]).ok();
        }
        run(&v, &[], &format!("echo {n} > f")).ok();
        ids.push(latest(&v));
    }
    for mounted in [true, false] {
        if !mounted {
            v.umount();
        }
        for (n, id) in ids.iter().enumerate().skip(1) {
            // By the beginning of an id, too.
            for id in [id, &id[..id.len() - 1]] {
                mount(id).ok();
                let seen = fs::read_to_string(lab.path("old/f")).unwrap();
                assert_eq!(seen, format!("{}\n", n - 1));
                lab.do_systx(["umount", "old"]).ok();
            }
        }
        let none = mount(&ids[0]).expect(1);
        assert!(none.err.contains("no snapshot is from before transaction"), "{none}");
        let unknown = mount("0123456789abcdef").expect(1);
        assert!(unknown.err.contains("no history"), "{unknown}");
        let several = mount("nothing").expect(1);
        assert!(several.err.contains("there is no snapshot \"nothing\""), "{several}");
    }
    lab.do_systx(["mount", "image", "v"]).ok();
    // What only a snapshot remembers, while another snapshot is all that is mounted.
    systx(&v, "gc --keep 0").ok();
    mount(&ids[2]).ok();
    v.umount();
    assert_eq!(fs::read_to_string(lab.path("old/f")).unwrap(), "1\n");
    fs::create_dir(lab.path("older")).unwrap();
    lab.do_systx(["mount", "image", "older", "--at", &ids[1]]).ok();
    assert_eq!(fs::read_to_string(lab.path("older/f")).unwrap(), "0\n");
    for dir in ["older", "old"] {
        lab.do_systx(["umount", dir]).ok();
    }
    lab.do_systx(["mount", "image", "v"]).ok();
}

/// Many files are watched at once when a run is decided that has read them, as many as the daemon's
/// limit of open files lets it. The refusal names what such volumes are.
#[test]
fn a_run_that_has_read_too_many_files_for_the_daemon_is_told_why() {
    let lab = lab!();
    let systx = lab.binary().display().to_string();
    lab.native(&format!("ulimit -n 400 && exec {systx} run -- true")).ok();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; for i in $(seq 300); do echo $i > d/$i; done; cat d/* > all").ok();
    let refused = run(&v, &[], "cat d/* | cmp - all && echo > done").expect(125);
    assert!(refused.err.contains("in a volume"), "{refused}");
    assert!(!v.path("done").exists(), "{refused}");
    run(&v, &[], "cat d/9* | wc -l > done").ok();
}
