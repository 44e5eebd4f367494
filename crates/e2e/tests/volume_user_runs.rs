//! Transactions in a log-structured volume of an ordinary user's: everything in here is done by
//! that user, without any privilege.

use systx_e2e::lab::{find_program, guard_mounts};
use systx_e2e::open::Open;
use systx_e2e::run::{Dialogue, Limits, Running, Shell, finish, ids};
use systx_e2e::volume::{Mounted, shell};
use systx_e2e::{CONFLICT, Finished, Lab, lab, skip};

macro_rules! user_lab {
    () => {
        match lab!().as_known_user() {
            Ok(lab) => lab,
            Err(why) => skip!("{why}"),
        }
    };
}

macro_rules! python {
    () => {
        if find_program("python3").is_none() {
            skip!("there is no python3");
        }
    };
}

/// A command in the volume, to which its user goes: root does not get into it.
fn within(v: &Mounted<'_>, script: &str) -> std::process::Command {
    let mut command = v.lab.command("sh");
    let go = "cd \"$1\" && exec sh -c \"$2\"";
    command.args(["-c", go, "sh"]).arg(&v.dir).arg(script).env("SYSTX", v.lab.binary());
    command
}

/// `systx ARGUMENTS` in the volume.
fn systx(v: &Mounted<'_>, arguments: &str) -> Finished {
    finish(within(v, &format!("exec $SYSTX {arguments}")), Limits::seconds(100), v.lab)
}

/// `systx run OPTIONS -- sh -c SCRIPT` in the volume.
fn run_command(v: &Mounted<'_>, options: &str, script: &str) -> std::process::Command {
    let mut command = within(v, &format!("exec $SYSTX run {options} -- sh -c \"$SCRIPT\""));
    command.env("SCRIPT", script);
    command
}

fn run(v: &Mounted<'_>, options: &str, script: &str) -> Finished {
    finish(run_command(v, options, script), Limits::seconds(100), v.lab)
}

/// A shell in a run in the volume.
fn begin<'a>(v: &Mounted<'a>, options: &str) -> Shell<'a> {
    Shell::start(v.lab, within(v, &format!("exec $SYSTX run {options} -- sh")))
}

/// A plain shell in the volume.
fn plain<'a>(v: &Mounted<'a>) -> Shell<'a> {
    Shell::start(v.lab, within(v, "exec sh"))
}

/// A Python program in the volume, with its first words.
fn python<'a>(v: &Mounted<'a>, program: &str, argument: &str, says: &str) -> Dialogue<'a> {
    let mut command = within(v, &format!("exec python3 -B -c \"$PROGRAM\" {argument}"));
    command.env("PROGRAM", program);
    let mut program = Dialogue::start(v.lab, command);
    program.wait_for(says);
    program
}

fn latest(v: &Mounted<'_>) -> String {
    let log = systx(v, "log --json").ok().json();
    ids(&log).first().expect("something was committed").clone()
}

fn read(v: &Mounted<'_>, name: &str) -> String {
    v.sh(&format!("cat {name}")).ok().out
}

#[test]
fn a_users_run_is_seen_when_it_commits_and_is_undone_and_redone() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; echo old > a; echo x > d/f; ln -s a link; cat a d/f > /dev/null; ls -lR . d")
        .ok();
    let script = "set -e; echo new > a; echo made > n; rm d/f; rmdir d; mv link other; \
                  chmod 600 a; mkfifo p; cat a";
    let kept = run(&v, "--on-exit=keep", script).ok();
    assert_eq!(kept.out, "new\n");
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
    let after = "cat a n other; ls; stat -c '%a %u' a n | sed s/$(id -u)/mine/";
    let new = v.sh(after).ok().out;
    assert_eq!(new, "new\nmade\nnew\na\nn\nother\np\n600 mine\n644 mine\n");
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
    // A run that fails leaves no trace.
    run(&v, "", "rm -r *; echo gone > here; exit 3").expect(3);
    assert_eq!(v.sh(after).ok().out, new);
}

#[test]
fn a_users_run_loses_to_a_plain_change_of_what_it_has_read_and_names_it() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 1 > a; mkdir d; echo 1 > d/f").ok();
    let changes: [(&str, &str, &str); 7] = [
        ("cat a", "echo 2 > a", "v/a"),
        ("cat a", "mv a z; cp z a", "v/a"),
        ("stat a", "chmod 600 a", "v/a"),
        ("ls d", "touch d/new", "v/d"),
        ("test -e absent", "touch absent", "v/absent"),
        ("echo 3 > d/f", "echo 2 > d/f", "v/d/f"),
        // By a descriptor from before, of what no path of the user's leads to any more.
        ("cat a", "exec 8>>a; chmod 0 a; echo 3 >&8; chmod 600 a", "v/a"),
    ];
    for (reads, changed, path) in changes {
        let mut one = begin(&v, "--retries=0");
        one.try_eval(reads);
        v.sh(changed).ok();
        one.try_eval("echo mine > mine");
        one.begin_exit(0);
        let end = one.finished();
        assert_eq!(end.code, CONFLICT, "{reads}: {changed}: {end}");
        assert!(end.err.contains(path), "{reads}: {changed}: {}", end.err);
        assert_ne!(v.sh("cat mine").code, 0, "{end}");
    }
    // Runs that do not meet do not lose.
    let mut one = begin(&v, "--retries=0");
    one.eval("cat a; echo 9 > of-run");
    v.sh("echo 9 > of-program; echo 9 >> d/f").ok();
    one.exit(0).ok();
    assert_eq!(read(&v, "of-run of-program"), "9\n9\n");
    // Two runs.
    let (mut one, mut two) = (begin(&v, "--retries=0"), begin(&v, "--retries=0"));
    v.sh("echo 0 > n").ok();
    one.try_eval("echo $(($(cat n) + 1)) > n");
    two.try_eval("echo $(($(cat n) + 1)) > n");
    one.begin_exit(0);
    two.begin_exit(0);
    let mut codes = [one.finished().code, two.finished().code];
    codes.sort_unstable();
    assert_eq!((codes, read(&v, "n").as_str()), ([0, CONFLICT], "1\n"));
}

const STORER: &str = "import mmap, os, sys\n\
     page = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8)\n\
     print('mapped', flush=True)\n\
     for line in sys.stdin:\n    page[:1] = line[:1].encode()\n    print('stored', flush=True)\n";

/// What is in the kernel's pages only, of a file to which no path leads from where it was opened.
#[test]
fn a_store_to_a_mapping_is_a_plain_change_also_where_no_path_leads() {
    python!();
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    for hide in ["true", "chmod 0 shut", "rm shut/f", "mv shut/f elsewhere"] {
        v.sh("chmod -R u+rwX . && rm -rf * && mkdir shut && echo aaaaaaa > f && ln f shut/f").ok();
        let mut storer = python(&v, STORER, "shut/f", "mapped");
        v.sh(hide).ok();
        let mut store = |text: &str| {
            storer.send(text);
            storer.wait_for("stored");
        };
        store("b\n");
        // What was stored before arrives when it is read, and who has looked before that is told.
        assert!(run(&v, "--retries=20", "head -c 1 f").ok().out.ends_with('b'), "{hide}");
        let mut one = begin(&v, "--retries=0");
        assert_eq!(one.eval("head -c 1 f"), "b", "{hide}");
        store("c\n");
        one.try_eval("echo mine > mine");
        one.begin_exit(0);
        let end = one.finished();
        assert_eq!(end.code, CONFLICT, "{hide}: {end}");
        assert!(end.err.contains("v/f"), "{hide}: {end}");
        // And a commit is in the file that is mapped, with what was stored beside it.
        let patch = "printf 1 | dd of=f bs=1 seek=1 conv=notrunc status=none";
        run(&v, "--retries=20", patch).ok();
        store("d\n");
        assert_eq!(v.sh("head -c 3 f").ok().out, "d1a", "{hide}");
        storer.close().ok();
    }
}

/// Of two files that each commit makes equal, whoever reads the second one after the first one
/// never sees it older.
#[test]
fn no_program_of_the_user_sees_half_of_a_commit() {
    const COMMITS: u32 = 25;
    python!();
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir names; touch names/0000000; echo 0000000 | tee x > y").ok();
    let ways = ["names", "descriptors", "mappings", "listing"];
    let lookers = ways.map(|how| python(&v, include_str!("halves.py"), how, "looked"));
    for n in 1..=COMMITS {
        let script = format!(
            "printf '{n:07}\\n' | dd of=x conv=notrunc status=none; \
             printf '{n:07}\\n' | dd of=y conv=notrunc status=none; \
             mv names/{:07} names/{n:07}",
            n - 1
        );
        run(&v, "--retries=100", &script).ok();
        assert_eq!(read(&v, "x"), format!("{n:07}\n"));
    }
    for looker in lookers {
        let end = looker.close().ok();
        assert!(end.out.contains("all of them"), "{end}");
    }
}

/// A program stores in a mapping, then writes that it did. A run that sees the second sees the
/// first, and no run is lost or done twice.
#[test]
fn runs_count_while_a_program_writes_and_stores() {
    const EACH: usize = 5;
    python!();
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 0 > n; echo 0000000 > stored; echo plain 0000000 > log; : > seen").ok();
    let storer = python(&v, include_str!("storing.py"), "", "stores");
    let work = "n=$(($(cat n) + 1)); echo $n > n; \
                written=$(tail -n 1 log); echo ${written#plain } $(cat stored) >> seen";
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..EACH).for_each(|_| drop(run(&v, "--retries=500", work).ok())));
        }
    });
    let last = storer.close().ok().out;
    let last: u32 = last.trim().strip_prefix("last ").expect("a number").parse().unwrap();
    assert_eq!(read(&v, "n"), format!("{}\n", 2 * EACH));
    let seen = read(&v, "seen");
    let mut before = (0, 0);
    assert_eq!(seen.lines().count(), 2 * EACH, "{seen}");
    for line in seen.lines() {
        let (written, stored) = line.split_once(' ').expect("two numbers");
        let now: (u32, u32) = (written.parse().unwrap(), stored.parse().unwrap());
        // It may have been stored, and not written yet.
        assert!(now.0 <= now.1 && now.1 <= now.0 + 1 && before <= now, "{seen}");
        before = now;
    }
    assert_eq!(read(&v, "stored"), format!("{last:07}\n"));
    assert_eq!(read(&v, "log").lines().count() as u32, last + 1);
}

#[test]
fn a_killed_daemon_of_a_user_leaves_all_of_a_commit_or_nothing() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.begin_rounds();
    let mut committed = 0;
    for round in 1..=4_u64 {
        let script = format!(
            "echo {round} > a; echo {round} > d/b; rm d/at-*; echo {round} > d/at-{round}; \
             head -c 300000 /dev/zero > d/filler"
        );
        let running = Running::start(run_command(&v, "", &script), Limits::seconds(60));
        // Some are killed before they decide, others after that.
        std::thread::sleep(std::time::Duration::from_millis(round * 50));
        lab.kill_and_come_back();
        let end = running.finish(&lab);
        committed = v.all_or_nothing(committed, round, (end.code == 0, &end.to_string()));
        v.again();
    }
}

#[test]
fn a_users_volume_is_not_unmounted_under_a_run_but_by_force() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo kept > kept; sync kept").ok();
    let mut one = begin(&v, "");
    one.eval("echo lost > lost; cat kept");
    // It may be over a moment later, as any other use.
    let done = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(done.err.contains("is open in"), "{done}");
    // By those who know nothing of systx: the run works in it.
    assert_ne!(shell(&lab, &lab.root(), 20, "fusermount3 -u v").code, 0);
    lab.do_systx(["umount", "--force", "v"]).ok();
    assert!(guard_mounts(&lab.root()).is_empty());
    one.try_eval("true");
    one.begin_exit(0);
    assert_ne!(one.finished().code, 0);
    lab.do_systx(["fsck", "image"]).ok();
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(v.sh("ls; cat kept").ok().out, "kept\nkept\n");
    // A program that has ended holds nothing.
    run(&v, "", "echo more > more").ok();
    let taken_off = || shell(&lab, &lab.root(), 20, "fusermount3 -u v").code == 0;
    lab.until("nobody uses it", taken_off);
    lab.until("it is closed", || lab.do_systx(["fsck", "image"]).code == 0);
    lab.do_systx(["mount", "image", "v"]).ok();
    assert_eq!(read(&v, "more"), "more\n");
}

#[test]
fn a_full_volume_of_a_user_says_so_before_the_decision() {
    let lab = user_lab!();
    let v = Mounted::sized(&lab, "16M");
    v.sh("echo old > a; head -c 7000000 /dev/urandom > ballast; sync ballast").ok();
    let files = "echo new > a; for i in $(seq COUNT); do head -c 100000 /dev/urandom > f$i; done";
    let end = run(&v, "", &files.replace("COUNT", "80")).expect(125);
    assert!(end.err.to_lowercase().contains("space"), "{end}");
    assert_eq!(v.sh("cat a; ls").ok().out, "old\na\nballast\n");
    run(&v, "", &files.replace("COUNT", "2")).ok();
    assert_eq!(v.sh("cat a; ls").ok().out, "new\na\nballast\nf1\nf2\n");
}

#[test]
fn locks_and_descriptors_are_the_same_in_a_users_run_and_outside() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; touch d/lock").ok();
    let mut one = begin(&v, "");
    one.eval("exec 9<>d/lock; flock 9");
    let tried = v.sh("flock -n d/lock true");
    assert_eq!(tried.code, 1, "{tried}");
    one.eval("exec 9<&-");
    one.exit(0).ok();
    v.sh("flock -n d/lock true").ok();
    // Who has a file open when a run rewrites it sees that.
    for size in [10, 400_000] {
        v.sh(&format!("head -c {size} /dev/zero > f")).ok();
        let mut open = plain(&v);
        open.eval("exec 8<>f 7<f; head -c 1 <&7");
        let script =
            format!("head -c {size} /dev/zero | tr '\\0' x > f.new; cat f.new > f; rm f.new");
        run(&v, "", &script).ok();
        assert_eq!(open.eval("head -c 1 <&8; tail -c 1 /proc/self/fd/7"), "xx", "{size}");
        open.eval("printf m > /proc/self/fd/8");
        assert_eq!(run(&v, "", "head -c 1 f").ok().out, "m");
        open.exit(0).ok();
    }
}

/// One transaction over a volume and the directory in which it is mounted.
#[test]
fn a_users_run_in_and_beside_the_volume_is_all_or_nothing() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    let all = |lab: &Lab| shell(lab, &lab.root(), 20, "cat f v/f; ls v").out;
    let both = |script: &str| {
        let mut command = lab.systx(["run", "--retries=0", "--", "sh", "-c", script]);
        command.env_remove("SYSTX_ONE_FILE_SYSTEM");
        command
    };
    let done = |script: &str| finish(both(script), Limits::seconds(60), &lab);
    done("echo 1 > f; echo 1 > v/f; touch v/at-1").ok();
    assert_eq!(all(&lab), "1\n1\nat-1\nf\n");
    for n in 2..=4_u64 {
        let script = format!("echo {n} > f; echo {n} > v/f; rm v/at-*; touch v/at-{n}");
        let running = Running::start(both(&script), Limits::seconds(60));
        std::thread::sleep(std::time::Duration::from_millis(n * 60));
        lab.kill_and_come_back();
        let end = running.finish(&lab);
        // The next command has what is left finished.
        lab.do_systx(["recover"]).ok();
        let found = all(&lab);
        let lines: Vec<&str> = found.lines().collect();
        assert!(lines[0] == lines[1] && lines[2] == format!("at-{}", lines[0]), "{found}\n{end}");
        if end.code == 0 {
            assert_eq!(lines[0], n.to_string(), "{found}\n{end}");
        }
    }
    done("echo no > f; echo no > v/f; exit 3").expect(3);
    assert!(!all(&lab).contains("no"));
    v.again();
}

#[test]
fn a_path_in_a_users_volume_is_a_transaction_and_goes_on_after_it() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo old > old; mkdir sub; echo move > sub/move; echo shut > shut").ok();
    let open = Open::begin(&lab, "v", &[]);
    let work = "set -e; echo more >> old; echo n > new; mv sub/move moved; rmdir sub; \
                mkdir -p a/b; ln new hard; cat old";
    assert_eq!(open.sh(work).ok().out, "old\nmore\n");
    assert_eq!(v.sh("ls; cat old").ok().out, "old\nshut\nsub\nold\n");
    let refused = lab.do_systx(["umount", "v"]).expect(CONFLICT);
    assert!(refused.err.contains(&open.id), "{refused}");
    let mut inside = lab.command("sh");
    inside.args(["-c", "cd \"$1\" && exec sh", "sh"]).arg(&open.path);
    let mut inside = Shell::start(&lab, inside);
    inside.eval("exec 9<>old 8>>new 7<a 6>>shut");
    // To this one no path leads when it is committed.
    inside.eval("mkdir closed; echo c > closed/c; exec 5>>closed/c; chmod 0 closed");
    open.systx("commit").ok();
    inside.eval("echo held >&5");
    assert_eq!(v.sh("chmod 700 closed; cat closed/c; rm -r closed").ok().out, "c\nheld\n");
    assert_eq!(
        v.sh("ls; cat old new moved").ok().out,
        "a\nhard\nmoved\nnew\nold\nshut\nold\nmore\nn\nmove\n"
    );
    // An open file stays what it is.
    v.sh("chmod 0 shut; mv a aa; rm hard; echo plain >> old").ok();
    inside.eval("echo held >&9; echo held >&8; echo held >&6; touch /proc/self/fd/7/made");
    assert_eq!(
        v.sh("chmod 600 shut; cat new shut; ls aa").ok().out,
        "n\nheld\nshut\nheld\nb\nmade\n"
    );
    run(&v, "", "echo run > new").ok();
    assert_eq!(inside.eval("cat /proc/self/fd/8"), "run\n");
    let used = lab.do_systx(["umount", "v"]);
    assert!(used.code != 0 && used.err.contains("in use"), "{used}");
    inside.exit(0).ok();
    systx(&v, &format!("undo {}", open.id)).expect(1);
    // Aborted, and lost.
    let open = Open::begin(&lab, "v", &[]);
    open.sh("echo x > x; rm old").ok();
    open.systx("abort").ok();
    let open = Open::begin(&lab, "v", &[]);
    open.sh("cat old; echo x > x").ok();
    v.sh("echo plain > old").ok();
    let lost = open.systx("commit").expect(CONFLICT);
    assert!(lost.err.contains("v/old"), "{lost}");
    open.systx("abort").ok();
    assert_ne!(v.sh("cat x").code, 0);
    v.again();
}

#[test]
fn a_users_frozen_snapshot_shows_one_moment() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo 1 > a; echo 1 > b; mkdir d").ok();
    let mut frozen = begin(&v, "--read-only");
    assert_eq!(frozen.eval("cat a"), "1\n");
    v.sh("echo 2 > a; echo 2 > b; rmdir d").ok();
    run(&v, "", "echo 3 > a; echo 3 > b").ok();
    assert_eq!(frozen.eval("cat a b; ls -d d"), "1\n1\nd\n");
    frozen.exit(0).ok();
    assert_eq!(read(&v, "a b"), "3\n3\n");
}

/// The one thing that a user can take from the daemon: the way into the volume.
#[test]
fn who_shuts_the_root_of_the_volume_is_told_so_and_loses_nothing() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("echo old > f").ok();
    let mut one = begin(&v, "--retries=0 --on-exit=keep");
    one.eval("cat f; echo new > f");
    let id = lab.open_ids().pop().expect("it is open");
    one.exit(0).ok();
    let mut holds = plain(&v);
    holds.eval("exec 8<>f; chmod 0 .");
    let done = lab.do_systx(["commit", &id]);
    assert!(done.code != 0 && done.err.contains("chmod u+x"), "{done}");
    lab.native("chmod 700 v").ok();
    assert_eq!(holds.eval("cat f"), "old\n");
    holds.exit(0).ok();
    // It has relied on that right.
    lab.do_systx(["commit", &id]).expect(CONFLICT);
    lab.do_systx(["abort", &id]).ok();
    run(&v, "", "echo new > f").ok();
    assert_eq!(read(&v, "f"), "new\n");
}

#[test]
fn the_way_of_the_daemon_is_nobodys_else() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir d; echo f > d/f; chmod 0 d").ok();
    run(&v, "", "ls -la > list; find . -maxdepth 1").ok();
    let seen = v.sh("ls -a; cat list").ok().out;
    assert!(!seen.contains("systx"), "{seen}");
    let ino = v.sh("chmod 700 d; stat -c %i d/f; chmod 0 d").ok().out;
    let guess = format!(
        "for n in $(printf '.systx\\001numbers-') $(printf '.systx\\001numbers'); \
         do cat $n/{} && exit 9; done; true",
        ino.trim()
    );
    v.sh(&guess).ok();
    v.sh("chmod 700 d").ok();
}

/// The mount counts opens, so files that nobody writes to need no lock, however many they are.
#[test]
fn a_users_run_reads_more_than_can_be_locked() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("for i in $(seq 300); do echo $i > f$i; done; cat f* > /dev/null").ok();
    let mut open = plain(&v);
    open.eval("exec 8<>f1 9<>f2 7<f3");
    assert_eq!(run(&v, "", "cat f* | wc -l > lines; cat lines").ok().out, "300\n");
    assert_eq!(read(&v, "lines"), "300\n");
    open.exit(0).ok();
}

/// A mark of `systx protect` holds there, too; a path that would show it is refused by name.
#[test]
fn a_user_marks_what_is_in_the_volume() {
    let lab = user_lab!();
    let v = Mounted::new(&lab);
    v.sh("mkdir cache; echo 0 > cache/a; echo 0 > f").ok();
    let cache = v.path("cache").display().to_string();
    lab.do_systx(["protect", "off", &cache]).ok();
    let mut one = begin(&v, "--retries=0");
    one.eval("echo 1 > cache/a; echo 1 > f");
    v.sh("echo 2 > cache/a").ok();
    assert_eq!(one.eval("cat cache/a"), "2\n");
    one.exit(3).expect(3);
    assert_eq!(read(&v, "cache/a f"), "2\n0\n");
    let refused = lab.do_systx(["begin", v.dir.to_str().unwrap()]).expect(1);
    assert!(refused.err.contains(&format!("systx protect on {cache}")), "{refused}");
    lab.do_systx(["protect", "on", &cache]).ok();
    run(&v, "", "echo 3 > cache/a; exit 3").expect(3);
    assert_eq!(read(&v, "cache/a"), "2\n");
}

/// The daemon's way to a file keeps nothing of it.
#[test]
fn a_file_that_a_commit_has_locked_is_gone_when_it_is_removed() {
    let lab = user_lab!();
    let v = Mounted::sized(&lab, "16M");
    let mut open = plain(&v);
    for round in 0..4 {
        open.eval("head -c 5000000 /dev/urandom > big; exec 8<>big");
        run(&v, "--retries=20", "head -c 100 big > copy; stat big").ok();
        open.eval(&format!("echo {round} >&8; exec 8>&-; rm big"));
    }
    open.exit(0).ok();
}
