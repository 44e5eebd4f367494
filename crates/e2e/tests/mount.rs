//! The life of a guarded directory: `systx mount`, work, runs that look below it, deaths of the
//! daemon, `systx umount`.
//!
//! Whatever may hang does so in a process with a limit, never in the test itself.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use systx_e2e::lab::{Frozen, find_program, guard_mounts, signal};
use systx_e2e::lab::{one, watch};
use systx_e2e::run::{HANG, Limits, Running, finish, wait_readable};
use systx_e2e::stop::Stop;
use systx_e2e::{CONFLICT, Finished, Lab, Tree, lab, skip};

use rustix::process::Signal;

/// A lab with a directory `g` of some files, guarded.
fn guarded(lab: &Lab) -> PathBuf {
    lab.write("g/sub/file", "plain\n");
    lab.write("outside", "plain\n");
    mount(lab, "g");
    lab.path("g")
}

fn mount(lab: &Lab, dir: &str) {
    lab.do_systx(["mount", dir]).ok().says("is guarded");
    assert_eq!(guard_mounts(&lab.path(dir)), [lab.path(dir)], "what is mounted");
}

/// A script outside every transaction, with a limit.
fn sh(lab: &Lab, script: &str) -> Finished {
    let mut command = lab.command("sh");
    command.args(["-c", script]);
    finish(command, Limits::default(), lab)
}

/// The paths that `systx mount` lists.
fn listed(lab: &Lab) -> Vec<String> {
    let json = lab.do_systx(["mount", "--json"]).ok().json();
    let guarded = json["guarded"].as_array().expect("a list").clone();
    guarded.iter().map(|g| g["dir"].as_str().expect("a path").to_owned()).collect()
}

/// A process that is told when to end.
struct Held {
    child: Child,
}

impl Held {
    /// Runs a script that prints a line when it holds what it is to hold, then waits.
    fn new(lab: &Lab, dir: &Path, script: &str) -> Held {
        let mut command = lab.command("sh");
        command.args(["-c", &format!("{script}; echo held; read line")]).current_dir(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("sh");
        let mut line = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line)
            .unwrap_or_else(|e| panic!("{script}: {e}"));
        Held { child }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn mount_and_umount_leave_the_directory_as_it_was() {
    let lab = lab!();
    let make = "umask 022; mkdir -p g/a/b g/empty; echo text > g/a/file; ln g/a/file g/hard; \
         ln -s a/file g/link; mkfifo g/fifo; truncate -s 3M g/sparse; chmod 4711 g/a/file; \
         touch -d 2001-02-03 g/a/b g/sparse; chmod 1770 g; chown 12:34 g/hard";
    lab.native(make).ok();
    let g = lab.path("g");
    let whole = lab.tree();
    let before = Tree::capture(&g);
    mount(&lab, "g");
    assert_eq!(listed(&lab), [g.to_str().unwrap()]);
    before.assert_same(&Tree::capture(&g), "through the mount");
    // Whatever the name by which it is called.
    lab.native("ln -s g alias").ok();
    lab.do_systx(["umount", "alias"]).ok().says("ordinary directory");
    lab.native("rm alias").ok();
    assert!(guard_mounts(&lab.root()).is_empty());
    assert!(listed(&lab).is_empty());
    whole.assert_same(&lab.tree(), "after umount");

    // What was done meanwhile is there.
    mount(&lab, "g");
    sh(&lab, "echo more >> g/a/file; rm g/link; mkdir g/new; mv g/sparse g/new").ok();
    let work = Tree::capture(&g);
    lab.do_systx(["umount", "g"]).ok();
    work.assert_same(&Tree::capture(&g), "work through the mount");
    assert_eq!(lab.read("g/hard"), "text\nmore\n");
    lab.until("no keeper without guarded directories", || lab.keepers().is_empty());
}

#[test]
fn who_holds_something_from_before_is_named() {
    let lab = lab!();
    lab.write("g/sub/file", "x");
    lab.native("cp /bin/sleep g/sleep").ok();
    let (g, root) = (lab.path("g"), lab.root());
    let cwd = Held::new(&lab, &g.join("sub"), "true");
    let open = Held::new(&lab, &root, "exec 7>>g/sub/file");
    // It holds the program when it executes it, which takes a while after the shell has made the
    // process.
    let executed = "until [ $(cat /proc/$!/comm) = sleep ]; do :; done";
    let program = Held::new(&lab, &root, &format!("g/sleep 1000 & {executed}; exec 8<&0"));
    let beside = Held::new(&lab, &root, "exec 7>>beside");

    let refused = lab.do_systx(["mount", "g"]).expect(CONFLICT).says("is not guarded");
    for (held, what) in [(&cwd, "working directory"), (&open, "open"), (&program, "")] {
        // The program is a child of what we started.
        let line = refused.err.lines().find(|l| l.contains(&format!(" {} (", held.pid())));
        match what {
            "" => assert!(refused.err.contains(&format!("program {}", g.join("sleep").display()))),
            what => assert!(line.is_some_and(|l| l.contains(what)), "{what}: {refused}"),
        }
    }
    assert!(!refused.err.contains(&format!(" {} (", beside.pid())), "{refused}");
    assert!(guard_mounts(&root).is_empty());
    let json = lab.do_systx(["mount", "--json", "g"]).expect(CONFLICT).json();
    let holders = json["error"]["holders"].as_array().unwrap();
    let of = |pid: u32| holders.iter().find(|h| h["pid"] == pid).expect("is named").clone();
    assert_eq!(of(cwd.pid())["held"][0]["as"], "directory");
    assert_eq!(of(open.pid())["held"][0]["path"], g.join("sub/file").to_str().unwrap());

    let forced = lab.do_systx(["mount", "--force", "g"]).ok().says("past the guard");
    assert!(forced.err.contains(&cwd.pid().to_string()), "{forced}");
    assert_eq!(guard_mounts(&root), [g]);
    // They are not users of the mount.
    lab.do_systx(["umount", "g"]).ok();
}

#[test]
fn what_cannot_be_guarded_is_refused() {
    let lab = lab!();
    guarded(&lab);
    lab.write("file", "x");
    lab.native("mkdir -p g/sub above/in with/disk; mount -t tmpfs none with/disk").ok();
    let no = |args: &[&str], why: &str| lab.do_systx(args).expect(1).says(why);
    no(&["mount", "g"], "is guarded already");
    no(&["mount", "g/sub"], "is guarded as a whole");
    no(&["mount", "."], "is guarded already");
    no(&["mount", "file"], "is not a directory");
    no(&["mount", "nothing"], "No such file");
    no(&["mount", "/"], "cannot be guarded");
    no(&["mount", "/proc/sys"], "belongs to the kernel");
    no(&["mount", ".systx"], "belongs to the store");
    no(&["mount", "with"], "is mounted inside");
    no(&["umount", "above"], "is not guarded");
    lab.native("umount with/disk").ok();
    let inside = lab.run_argv(&[], &[lab.binary().to_str().unwrap(), "mount", "above"]);
    inside.expect(1).says("inside transaction");
    // One engine for the same files.
    let other = lab.path("other").display().to_string();
    lab.run(&["--store", &other], "true").expect(125).says("need the same store");
    // Nothing of this did any harm.
    assert_eq!(guard_mounts(&lab.root()), [lab.path("g")]);
    assert_eq!(sh(&lab, "cat g/sub/file").ok().out, "plain\n");
}

#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    let lab = lab!().as_user();
    lab.write("g/file", "x");
    lab.do_systx(["mount", "g"]).expect(1).says("only root can guard a directory");
    assert!(guard_mounts(&lab.root()).is_empty());
    assert!(listed(&lab).is_empty());
}

#[test]
fn a_run_covers_guarded_and_unguarded_files_in_one_commit() {
    let lab = lab!();
    let g = guarded(&lab);
    let before = lab.tree();
    let script = "echo run > g/sub/file; echo run > outside; echo new > g/new; mkdir g/dir";
    // From above, dropped: nothing of it.
    lab.run(&["--on-exit=abort"], &format!("{script}; test -e g/new")).ok();
    before.assert_same(&lab.tree(), "aborted");
    // From inside, kept: only there.
    let inside = script.replace("g/", "").replace("> outside", "> ../outside");
    let script = format!("set -e; {inside}; pwd; cat sub/file ../outside new");
    let kept = lab.do_systx(["run", "-C", "g", "--on-exit=keep", "--", "sh", "-c", &script]).ok();
    assert_eq!(kept.out, format!("{}\nrun\nrun\nnew\n", g.display()));
    before.assert_same(&lab.tree(), "kept");
    let id = &lab.open_ids()[0];
    let diff = lab.do_systx(["diff", "--name-status", id]).ok().out;
    for path in ["g/sub/file", "g/new", "g/dir", "outside"] {
        assert!(diff.contains(lab.path(path).to_str().unwrap()), "{diff}");
    }
    lab.do_systx(["commit", id]).ok();
    assert_eq!(
        sh(&lab, "cat g/sub/file outside g/new; ls g").ok().out,
        "run\nrun\nnew\ndir\nnew\nsub\n"
    );
    // One transaction, taken back as one.
    lab.do_systx(["undo"]).ok();
    before.assert_same(&lab.tree(), "undone");
    // The variable of a transaction that leaked proves nothing, here as anywhere.
    let mut command = lab.systx(["list"]);
    command.env("SYSTX_TXN", "00000001");
    finish(command, Limits::default(), &lab).ok();
    // A shell that works in the guarded directory itself.
    let mut shell = lab.shell(&["-C", "g"]);
    shell.eval("mv sub moved && ln moved/file ../linked");
    assert_eq!(sh(&lab, "ls g").ok().out, "sub\n");
    shell.exit(0).ok();
    assert_eq!(sh(&lab, "cat g/moved/file linked").ok().out, "plain\nplain\n");
    lab.do_systx(["umount", "g"]).ok();
    assert_eq!(lab.read("g/moved/file"), "plain\n");
}

#[test]
fn an_open_transaction_outlives_the_guard() {
    let lab = lab!();
    guarded(&lab);
    lab.run(&["--on-exit=keep"], "echo run > g/sub/file; echo run > outside").ok();
    let id = &lab.open_ids()[0];
    lab.do_systx(["umount", "g"]).ok().says(id);
    assert_eq!(lab.read("g/sub/file"), "plain\n");
    lab.do_systx(["commit", id]).ok();
    assert_eq!(lab.read("g/sub/file") + &lab.read("outside"), "run\nrun\n");
}

#[test]
fn the_root_of_a_volume_can_be_guarded() {
    let lab = lab!();
    lab.write("dir/file", "plain\n");
    let before = lab.tree();
    // The lab starts every process in this directory: from elsewhere, then.
    let from = |dir: &str, args: &[&str]| {
        let mut command = lab.systx(args);
        command.current_dir(dir);
        finish(command, Limits::default(), &lab)
    };
    let root = lab.root();
    let root = root.to_str().unwrap();
    from("/", &["mount", root]).ok();
    assert_eq!(guard_mounts(&lab.root()), [lab.root()]);
    assert!(!lab.has(".systx"), "the store shows");
    lab.run(&[], "echo run > dir/file").ok();
    lab.kill_and_come_back();
    assert_eq!(sh(&lab, "cat dir/file; echo plain > dir/file").ok().out, "run\n");
    from("/", &["umount", root]).ok();
    before.assert_same(&lab.tree(), "after all");
}

#[test]
fn a_directory_in_use_is_unmounted_by_force_only() {
    let lab = lab!();
    let g = guarded(&lab);
    let user = Held::new(&lab, &g.join("sub"), "exec 7<>file");
    let refused = lab.do_systx(["umount", "g"]).expect(CONFLICT).says("is in use");
    assert!(refused.err.contains(&format!(" {} (", user.pid())), "{refused}");
    assert_eq!(guard_mounts(&lab.root()), std::slice::from_ref(&g));
    sh(&lab, &format!("echo through >&- ; echo through >> /proc/{}/fd/7", user.pid())).ok();
    lab.do_systx(["umount", "--force", "g"]).ok().says("cut off");
    assert!(guard_mounts(&lab.root()).is_empty());
    let old = sh(&lab, &format!("cat /proc/{}/fd/7", user.pid())).expect(1);
    old.says("Transport endpoint is not connected");
    assert_eq!(lab.read("g/sub/file"), "plain\nthrough\n");
    drop(user);
    mount(&lab, "g");
    // A mount inside it is in the way, too, and is named.
    sh(&lab, "mount -t tmpfs none g/sub").ok();
    lab.do_systx(["umount", "g"]).expect(CONFLICT).says("is mounted in it");
    sh(&lab, "umount g/sub").ok();
    // So is another mount of it, which would be dead afterwards.  A run takes it for what it is.
    sh(&lab, "mkdir too && mount --bind g/sub too").ok();
    lab.run(&[], "echo twice > too/file; cmp too/file g/sub/file").ok();
    lab.do_systx(["umount", "g"]).expect(CONFLICT).says("is also mounted at");
    lab.do_systx(["umount", "--force", "g"]).ok();
    assert!(guard_mounts(&lab.root()).is_empty());
    assert_eq!(lab.read("g/sub/file"), "twice\n");
    mount(&lab, "g");
    // By hand, if nobody uses it.
    sh(&lab, "umount g").ok();
    lab.until("the daemon has noticed", || listed(&lab).is_empty());
}

/// Programs go on in loops, and shall all come to their end.
#[test]
fn a_killed_daemon_comes_back_with_everything_that_was_done() {
    let lab = lab!();
    let g = guarded(&lab);
    lab.run(&[], "echo committed > g/committed; echo committed > outside").ok();
    let old = Held::new(&lab, &lab.root(), "exec 7<>g/sub/file 8<g");
    // Notes what it has been told is done; an error is fine, a hang or a loss is not.
    let work = "i=0; n=0; while [ $n -lt 150 ]; do i=$((i + 1)); \
             echo $i > g/$0.$i && echo $i >> $0.done && n=$((n + 1)); \
             ls g; cat g/sub/file; mkdir g/$0.d; rmdir g/$0.d; \
         done";
    let worker = |name: &str| {
        let mut command = lab.command("sh");
        command.args(["-c", work, name]);
        Running::start(command, Limits::default())
    };
    let workers: Vec<_> = ["one", "two", "three"].map(worker).into();
    for round in 0..3 {
        lab.until("they are at work", || {
            let done = std::fs::read_to_string(lab.path("one.done")).unwrap_or_default();
            done.lines().count() > round * 40
        });
        lab.kill_and_come_back();
        assert_eq!(guard_mounts(&g), std::slice::from_ref(&g), "after kill {round}");
    }
    for worker in workers {
        worker.finish(&lab);
    }
    let check = "for name in one two three; do \
             while read i; do test \"$(cat g/$name.$i)\" = $i || echo lost $name.$i; done < $name.done; \
             wc -l < $name.done; \
         done";
    let counts = sh(&lab, check).ok().out;
    assert!(!counts.contains("lost"), "{counts}");
    for count in counts.lines() {
        assert_eq!(count, "150");
    }
    assert_eq!(sh(&lab, "cat g/committed outside").ok().out, "committed\ncommitted\n");
    for fd in [7, 8] {
        let old = sh(&lab, &format!("stat -L /proc/{}/fd/{fd}", old.pid())).expect(1);
        old.says("Transport endpoint is not connected");
    }
    // It is the guarded directory again, not only its name.
    lab.run(&["-C", "g"], "echo again > committed; echo again > ../outside").ok();
    assert_eq!(sh(&lab, "cat g/committed outside").ok().out, "again\nagain\n");
    lab.do_systx(["umount", "g"]).ok();
    let log = lab.daemon_log();
    assert!(!log.contains("there is a gap") && !log.contains("not guarded any more: "), "{log}");
}

#[test]
fn a_run_whose_daemon_is_killed_aborts() {
    let lab = lab!();
    guarded(&lab);
    lab.run(&["--on-exit=keep"], "echo kept > g/kept").ok();
    let mut shell = lab.shell(&["-C", "g"]);
    shell.eval("echo lost > sub/file; echo lost > ../outside");
    lab.kill_and_come_back();
    shell.begin_exit(0);
    let done = shell.finished();
    assert_ne!(done.code, 0, "{done}");
    assert!(lab.open_ids().is_empty());
    assert_eq!(sh(&lab, "cat g/sub/file outside; ls g").ok().out, "plain\nplain\nsub\n");
}

#[test]
fn a_killed_keeper_is_replaced_and_if_both_are_killed_the_next_command_mounts_again() {
    let lab = lab!();
    let g = guarded(&lab);
    let first = one(lab.keepers());
    signal(&[first], Signal::KILL);
    lab.until("another keeper", || lab.keepers().iter().any(|k| *k != first));
    lab.kill_and_come_back();
    assert_eq!(sh(&lab, "cat g/sub/file").ok().out, "plain\n");

    lab.until("a keeper", || lab.keepers().len() == 1);
    lab.kill_daemon_and_keeper();
    assert!(lab.daemons().is_empty() && lab.keepers().is_empty());
    // A request may have been under way when the kernel closed the device.
    lab.until("the connection has ended", || {
        sh(&lab, "cat g/sub/file").expect(1).err.contains("Transport endpoint is not connected")
    });
    assert_eq!(listed(&lab), [g.to_str().unwrap()]);
    assert_eq!(sh(&lab, "cat g/sub/file").ok().out, "plain\n");
    lab.kill_and_come_back();
    assert_eq!(guard_mounts(&lab.root()), [g]);
}

#[test]
fn a_daemon_that_is_told_to_end_unmounts_and_stays_away() {
    let lab = lab!();
    let g = guarded(&lab);
    let user = Held::new(&lab, &g, "exec 7<sub/file");
    let (daemon, keeper) = (watch(one(lab.daemons())), watch(one(lab.keepers())));
    signal(&lab.daemons(), Signal::TERM);
    assert!(wait_readable(&daemon, Instant::now() + HANG), "the daemon does not end");
    assert!(wait_readable(&keeper, Instant::now() + HANG), "the keeper does not end");
    assert!(lab.daemons().is_empty(), "{}", lab.daemon_log());
    assert!(guard_mounts(&lab.root()).is_empty());
    assert_eq!(lab.read("g/sub/file"), "plain\n");
    drop(user);
    assert!(listed(&lab).is_empty());
}

/// Else the kernel would go on waiting for a daemon that is dead.
#[test]
fn nobody_but_the_daemon_has_the_device() {
    let lab = lab!();
    guarded(&lab);
    // This keeper was started before the device was opened, the next one is not.
    let first = one(lab.keepers());
    signal(&[first], Signal::KILL);
    lab.until("another keeper", || lab.keepers().iter().any(|k| *k != first));
    let holds = |pid: &u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|l| l == Path::new("/dev/fuse"))
    };
    // Between fork and exec a child has everything, for a moment.
    lab.until("the daemon has it alone", || {
        let holders: Vec<u32> = lab.processes().into_iter().filter(holds).collect();
        lab.keepers().len() == 1 && holders == lab.daemons()
    });
}

#[test]
fn the_daemon_stays_as_long_as_something_is_guarded() {
    let lab = lab!();
    lab.write("g/file", "plain\n");
    let mut command = lab.systx(["mount", "g"]);
    command.env("SYSTX_IDLE", "1");
    finish(command, Limits::default(), &lab).ok();
    let daemon = watch(one(lab.daemons()));
    assert!(!wait_readable(&daemon, Instant::now() + Duration::from_millis(1800)), "it left");
    lab.do_systx(["umount", "g"]).ok();
    assert!(wait_readable(&daemon, Instant::now() + HANG), "it stays for nothing");
    lab.until("no keeper without a daemon", || lab.keepers().is_empty());
}

#[test]
fn where_no_daemon_can_be_started_the_plain_directory_is_there_in_the_end() {
    let lab = lab!();
    guarded(&lab);
    let keeper = watch(one(lab.keepers()));
    // What is in the way of the next daemon.
    let socket = lab.runtime_file("sock");
    std::fs::remove_file(&socket).unwrap();
    std::fs::create_dir(&socket).unwrap();
    lab.kill_daemon();
    sh(&lab, "cat g/sub/file").expect(1);
    assert!(wait_readable(&keeper, Instant::now() + HANG), "the keeper tries for ever");
    assert!(guard_mounts(&lab.root()).is_empty(), "{}", lab.daemon_log());
    assert_eq!(lab.read("g/sub/file"), "plain\n");
    let log = lab.daemon_log();
    assert!(log.contains("is not guarded any more: no daemon could be started"), "{log}");
    std::fs::remove_dir(&socket).unwrap();
    assert!(listed(&lab).is_empty());
    mount(&lab, "g");
}

#[test]
fn a_daemon_that_dies_again_and_again_gives_the_directory_up() {
    let lab = lab!();
    guarded(&lab);
    for _ in 0..5 {
        lab.kill_and_come_back();
    }
    assert_eq!(listed(&lab).len(), 1);
    lab.kill_and_come_back();
    assert!(listed(&lab).is_empty());
    assert!(guard_mounts(&lab.root()).is_empty());
    assert_eq!(lab.read("g/sub/file"), "plain\n");
    assert!(lab.daemon_log().contains("again and again"), "{}", lab.daemon_log());
}

/// The last of these daemons dies with a commit that is durable and not in its place yet.
#[test]
fn a_directory_that_is_given_up_has_all_that_was_committed_when_it_is_seen() {
    let lab = lab!();
    guarded(&lab);
    // The first commit makes the store.
    lab.run(&[], "printf first > g/first").ok();
    for _ in 0..5 {
        lab.kill_and_come_back();
    }
    let mut run = lab.shell(&[]);
    run.eval("printf new > g/sub/file; printf n > g/sub/new");
    lab.until("there is one keeper", || lab.keepers().len() == 1);
    let keeper = watch(one(lab.keepers()));
    let daemon = rustix::process::Pid::from_raw(one(lab.daemons()).cast_signed()).unwrap();
    let stop = Stop::from_call(daemon, "pwritev2", Some(2));
    // Before there is anybody who could recover what the daemon has left, nobody gets past the
    // guard.
    let seen = lab.path("g/sub/new");
    run.begin_exit(0);
    assert_ne!(run.finished().code, 0);
    stop.wait();
    lab.until("the plain directory", || std::fs::read(lab.path("g/sub/file")).is_ok());
    assert!(seen.exists(), "{}", lab.daemon_log());
    assert_eq!(lab.read("g/sub/file"), "new");
    assert!(wait_readable(&keeper, Instant::now() + HANG), "the keeper works for ever");
    assert!(guard_mounts(&lab.root()).is_empty(), "{}", lab.daemon_log());
    assert!(lab.daemon_log().contains("again and again"), "{}", lab.daemon_log());
}

/// The states of a process's threads, as proc(5) tells them.
fn threads_of(pid: u32) -> Vec<char> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    let state = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
    };
    tasks.flatten().filter_map(state).collect()
}

/// A thread of the daemon hangs in the kernel, so that the killed daemon cannot let go of anything.
/// Nobody waits for it: neither whom that thread was to answer, nor whose requests came to threads
/// that did not get to them any more.
#[test]
fn nobody_waits_for_a_killed_daemon_that_hangs() {
    let lab = lab!();
    if let Some(why) = Frozen::impossible(&lab) {
        skip!("{why}");
    }
    guarded(&lab);
    let daemon = one(lab.daemons());
    let keeper = watch(one(lab.keepers()));
    let mut clients = Vec::new();
    let frozen = lab.freeze();
    // It keeps the lock of that directory, so the others go to another one.
    let mut command = lab.command("sh");
    command.args(["-c", "echo x > g/sub/new"]);
    clients.push(Running::start(command, Limits::default()));
    lab.until("the daemon waits for the disk", || threads_of(daemon).contains(&'D'));
    signal(&[daemon], Signal::STOP);
    lab.until("the rest of it stops", || threads_of(daemon).iter().all(|s| "DT".contains(*s)));
    for late in ["g/late-0", "g/late-1", "g/late-2"] {
        let mut command = lab.command("stat");
        command.arg(late);
        let client = Running::start(command, Limits::default());
        let wchan = format!("/proc/{}/wchan", client.pid());
        let waits = || std::fs::read(&wchan).is_ok_and(|at| at == b"request_wait_answer");
        lab.until("a request is on its way", waits);
        clients.push(client);
    }
    signal(&[daemon], Signal::KILL);
    let deadline = Instant::now() + HANG;
    let waiting = clients.iter().filter(|client| !wait_readable(&watch(client.pid()), deadline));
    let waiting: Vec<u32> = waiting.map(Running::pid).collect();
    drop(frozen);
    assert!(waiting.is_empty(), "{waiting:?} still wait\n{}", lab.daemon_log());
    for client in clients {
        assert_ne!(client.finish(&lab).code, 0);
    }
    assert!(wait_readable(&keeper, Instant::now() + HANG), "{}", lab.daemon_log());
    assert_eq!(
        sh(&lab, "cat g/sub/file; echo y > g/sub/new; cat g/sub/new").ok().out,
        "plain\ny\n"
    );
}

#[test]
fn how_long_changes_are_held_is_told_and_outlives_the_daemon() {
    let lab = lab!();
    lab.write("g/file", "plain\n");
    lab.do_systx(["mount", "--stall", "60001", "g"]).expect(2).says("60000");
    lab.do_systx(["mount", "--stall", "1234", "g"]).ok();
    let told = || lab.do_systx(["mount", "--json"]).ok().json()["guarded"][0]["stall_ms"].clone();
    assert_eq!(told(), 1234);
    let text = lab.do_systx(["top", "--once"]).ok().out;
    assert!(text.contains("is guarded, stall 1234 ms"), "{text}");
    let top = lab.do_systx(["top", "--once", "--json"]).ok().json();
    assert_eq!(top["top"]["volumes"][0]["guarded"][0]["stall_ms"], 1234, "{top}");
    lab.kill_and_come_back();
    assert_eq!(told(), 1234);
    lab.do_systx(["umount", "g"]).ok();
}

/// A program that writes all the time, ended with this.
struct Writer<'a> {
    shell: Child,
    stop: &'a std::sync::atomic::AtomicBool,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// Programs write to two files without pause, one by a descriptor that it keeps, one by a new one
/// each time; a run that reads both and takes its time tries four times.
fn run_against_writers(lab: &Lab, stall: &str, way: &[&str]) -> i32 {
    for name in ["kept", "opened"] {
        lab.write(format!("g/{name}"), "x".repeat(8192));
    }
    lab.do_systx(["mount", "--stall", stall, "g"].iter().chain(way)).ok();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let kept = std::fs::File::options().write(true).open(lab.path("g/kept")).expect("kept");
    let code = std::thread::scope(|scope| {
        let mut shell = lab.command("sh");
        shell.args(["-c", "while :; do printf y 1<>opened; done"]).current_dir(lab.path("g"));
        let writer = Writer { shell: shell.spawn().expect("sh"), stop: &stop };
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::os::unix::fs::FileExt::write_all_at(&kept, b"z", 1).expect("no error ever");
            }
        });
        let script = format!("cat g/kept g/opened > /dev/null; sleep 0.2; echo done > {stall}");
        let code = lab.run(&["--retries", "3"], &script).code;
        drop(writer);
        code
    });
    drop(kept);
    lab.do_systx(["umount", "g"]).ok();
    assert_eq!(lab.has(stall), code == 0);
    code
}

#[test]
fn an_aged_run_wins_against_programs_that_write_without_pause() {
    for way in [&[][..], &["--fast-open"]] {
        let lab = lab!();
        // Longer than it takes on any machine.
        assert_eq!(run_against_writers(&lab, "30000", way), 0);
        // Nobody is held for it: it loses as ever.
        assert_eq!(run_against_writers(&lab, "0", way), CONFLICT);
    }
}

/// A commit that is durable and cannot be installed: what is told of it is true, and when it is
/// installed after all, who has read the file before in the guarded directory sees it.
#[test]
fn what_is_decided_and_not_installed_is_told_so_and_is_seen_when_it_is_installed_later() {
    if find_program("prlimit").is_none() {
        skip!("there is no prlimit");
    }
    let lab = lab!();
    // The last is a file system of its own, with a history of its own.
    for (dir, mounted) in [("plain", false), ("g", true), ("below", false)] {
        if dir == "below" {
            sh(&lab, "mkdir below; mount -t tmpfs none below").ok();
        }
        let at = 24 << 20;
        lab.native(&format!(
            "mkdir -p {dir} && truncate -s 32M {dir}/big && printf before | dd of={dir}/big bs=1 seek={at} conv=notrunc status=none"
        ))
        .ok();
        if mounted {
            mount(&lab, dir);
        }
        let says = || sh(&lab, &format!("tail -c +{} {dir}/big | head -c 6", at + 1)).ok().out;
        let write =
            format!("printf after. | dd of={dir}/big bs=1 seek={at} conv=notrunc status=none");
        let run = |flags: &[&str], script: &str| {
            let script = if dir == "below" { format!("cd ..; {script}") } else { script.into() };
            let words = [&["run"], flags, &["--", "sh", "-c", &script]].concat();
            let mut run = lab.systx(words);
            if dir == "below" {
                run.current_dir(lab.path(dir));
            }
            finish(run, Limits::default(), &lab).ok();
        };
        // A daemon that has just begun has no checkpoint before it.
        run(&[], &format!("echo x > {dir}/x"));
        let all = ["recover", "commit", "undo"];
        for again in all.into_iter().skip(if dir == "below" { 2 } else { 0 }) {
            run(&["--on-exit=keep"], &write);
            let id = lab.open_ids().remove(0);
            assert_eq!(says(), "before", "{dir}");
            let limit = |bytes: &str| {
                let daemon = one(lab.daemons());
                lab.native(&format!("prlimit --pid {daemon} --fsize={bytes}:")).ok();
            };
            // The journal may be written, the file not that far.
            limit(&(at - 1).to_string());
            let told = lab.do_systx(["commit", &id]).expect(1).says("the transaction is committed");
            assert!(!told.err.contains("still there"), "{told}");
            assert_eq!(lab.open_ids(), [""; 0], "{told}");
            assert_eq!(says(), "before", "{dir}");
            // It is the last one, which is the one that is meant.
            let before = lab.read(format!("{dir}/x"));
            lab.do_systx(["undo"]).expect(1).says("systx recover");
            assert_eq!(lab.read(format!("{dir}/x")), before, "{dir}, {again}");
            limit("unlimited");
            match again {
                "recover" => drop(lab.do_systx(["recover"]).ok().says(&id)),
                "undo" => drop(lab.do_systx(["undo"]).ok().says(&id)),
                _ => run(&[], &format!("echo {again} > {dir}/x")),
            }
            let then = if again == "undo" { "before" } else { "after." };
            assert_eq!(says(), then, "{dir}, {again}\n{}", lab.daemon_log());
            // The log that this reads is of one file system.
            assert!(dir == "below" || lab.logged_ids().contains(&id));
            let back =
                format!("printf before | dd of={dir}/big bs=1 seek={at} conv=notrunc status=none");
            sh(&lab, &back).ok();
        }
    }
    sh(&lab, "umount below").ok();
}
