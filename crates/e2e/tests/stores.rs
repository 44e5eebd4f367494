//! A store is made, opened and locked where something is committed, and only while that is so.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read, Write};
use std::process::{Child, Stdio};
use systx_e2e::lab;
use systx_e2e::room;
use systx_e2e::room::Room;
use systx_e2e::stop::Stop;
use systx_e2e::stores::{is_locked, wait_until_closed};

/// Another daemon of the same user.
const TWO: &str = "SYSTX_RUNTIME_DIR=/run/systx-e2e-two";

fn stores(room: &Room) -> Vec<&'static str> {
    ["a", "b", "m"].into_iter().filter(|at| room.path(at).join(".systx").exists()).collect()
}

/// A run that has begun, and ends when it is told to.
struct Begun(Child);

impl Begun {
    fn start(room: &Room, script: &str) -> Begun {
        let mut command = room.command(script);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = Begun(command.spawn().unwrap());
        let mut begun = [0; 6];
        run.0.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        assert_eq!(&begun, b"begun\n");
        run
    }

    fn end(mut self) -> i32 {
        self.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        self.0.wait().unwrap().code().unwrap()
    }
}

fn beginning(daemon: &str, before: &str, after: &str) -> String {
    format!("cd a && exec env {daemon} $S run -- sh -c '{before}; echo begun; read x; {after}'")
}

/// The same of a program outside of all transactions.
fn beginning_plain(before: &str) -> String {
    format!("{before}; echo begun; read x")
}

#[test]
fn where_nothing_is_committed_nothing_is_left() {
    let room = room!();
    room.sh("cd a && $S run -- cat file ../b/file ../m/file").ok();
    room.sh("cd a && $S run -- sh -c 'echo x > file; echo x > ../b/new; false'").failed();
    room.sh("cd a && $S run --read-only -- cat file; $S log; $S status; $S gc; $S recover").ok();
    assert_eq!(stores(&room), Vec::<&str>::new());
    room.sh("cd a && $S run -- sh -c 'cat file; echo x > ../b/new'").ok();
    assert_eq!(stores(&room), ["b"], "there something was changed");
    // A conflict that is found at the commit.
    let lost =
        Begun::start(&room, &beginning("", "cat file ../m/file > /dev/null", "echo x > file"));
    std::fs::write(room.path("m/file"), "outside\n").unwrap();
    assert_eq!(lost.end(), 75);
    assert_eq!(stores(&room), ["b"]);
}

/// The disk of `b` is in use by nobody: its loop device is given back with its file system.
fn b_is_let_go(room: &Room) {
    room.wait("the end of b's use", |room| {
        room.sh("test -z \"$(losetup -n -O NAME -j /run/b.img)\"").code == Some(0)
    });
}

/// Also while the daemon lives on, and the kernel has written back then what plain programs wrote.
#[test]
fn who_unmounts_a_file_system_after_a_run_has_all_of_it_on_the_disk() {
    let room = room!();
    room.sh("$S mount a/dir").ok();
    room.sh("cd b && $S run -- sh -c 'echo run > new; echo x > ../m/new'").ok();
    room.sh("cd b && $S run --read-only -- cat file; $S log; $S undo").ok();
    room.sh("echo plain > b/plain; umount b").ok();
    b_is_let_go(&room);
    room.mount("b");
    let text = room.sh("cat b/plain; test ! -e b/new; cd b && $S log && $S run -- true").ok();
    assert!(text.contains("plain"), "{text}");
    room.sh("test -d m/.systx; umount b").ok();
    b_is_let_go(&room);
    assert_eq!(room.processes(&["daemon", "--serve"]).len(), 1);
    room.sh("$S umount a/dir").ok();
}

/// Whether the daemon has a file system open.
fn is_open(room: &Room, which: &str) -> bool {
    let top = room.sh("$S top --once --json").ok();
    let top: serde_json::Value = serde_json::from_str(top.split_once('\n').unwrap().1).unwrap();
    let (all, path) = (top["top"]["volumes"].as_array().unwrap(), room.dir().join(which));
    let volume = all.iter().find(|v| v["volume"].as_str() == path.to_str()).expect("it is known");
    assert!(volume["counts"]["begun"].as_u64() >= Some(1), "counts outlive the closing: {top}");
    volume["open"].as_bool().unwrap()
}

/// What a program still has open of a view is of the file system: what it writes there is a change
/// that transactions hear of, by those who share the volume.
#[test]
fn a_view_that_lives_on_after_its_commit_keeps_its_file_system_open() {
    let room = room!();
    let path = room.sh("$S begin --json b").ok();
    let json: serde_json::Value =
        serde_json::from_str(path.split_once('\n').unwrap().1).expect("JSON");
    let text = |name: &str| json["begun"][name].as_str().expect("a string").to_owned();
    let (id, view) = (text("id"), text("path"));
    let uses = beginning_plain(&format!("exec 3<{view}/file"));
    let program = Begun::start(&room, &uses);
    room.sh(&format!("$S commit {id}")).ok();
    for _ in 0..2 {
        room.sh("cd m && $S run -- cat file").ok();
        room.wait("the end of m's use", |room| !is_open(room, "m"));
        assert!(is_open(&room, "b"));
    }
    program.end();
    room.wait("the end of b's use", |room| !is_open(room, "b"));
}

#[test]
fn two_daemons_of_a_user_commit_in_one_tree_and_see_each_other_as_outsiders() {
    let room = room!();
    for (n, daemon) in ["", TWO, "", TWO].into_iter().enumerate() {
        room.sh(&format!("cd a && {daemon} $S run -- sh -c 'echo {n} > new{n}'")).ok();
    }
    // Both are in the middle of a transaction.
    let one = Begun::start(&room, &beginning("", "echo 1 > one", "echo 1 > one2"));
    let two = Begun::start(&room, &beginning(TWO, "echo 2 > two", "echo 2 > two2"));
    assert_eq!((one.end(), two.end()), (0, 0));
    assert_eq!(room.sh("cat a/one2 a/two2").ok().lines().skip(1).collect::<Vec<_>>(), ["1", "2"]);
    // What one of them has read, the other changes.
    let reads = Begun::start(&room, &beginning("", "cat file > /dev/null", "echo x > made"));
    room.sh(&format!("cd a && {TWO} $S run -- sh -c 'echo two > file'")).ok();
    assert_eq!(reads.end(), 75);
    assert!(!room.path("a/made").exists());
    // One history, of which each takes back what the other did.
    let log = room.sh("cd a && $S log --json | grep -c argv").ok();
    let seen = room.sh(&format!("cd a && {TWO} $S log --json | grep -c argv")).ok();
    assert_eq!(log.lines().last(), seen.lines().last());
    room.sh("cd a && $S undo").ok();
    assert_eq!(room.sh("cat a/file").ok().lines().last(), Some("old"));
    room.sh(&format!("cd a && {TWO} $S redo")).ok();
    assert_eq!(room.sh("cat a/file").ok().lines().last(), Some("two"));
}

#[test]
fn what_a_guarded_directory_shows_is_one_daemons() {
    let room = room!();
    room.sh("cd a && $S mount dir").ok();
    let holders = room.processes(&["daemon"]);
    let said = room.sh(&format!("cd a && {TWO} $S run -- sh -c 'echo x > other'")).failed();
    assert!(said.contains("another daemon uses the store"), "{said}");
    let is_named = |pid: &Pid| said.contains(&format!("process {} ", pid.as_raw_nonzero()));
    assert!(holders.iter().any(is_named), "{said}");
    room.sh("cd a && $S run -- sh -c 'echo x > dir/k' && $S umount dir").ok();
    room.sh(&format!("cd a && {TWO} $S run -- sh -c 'echo x > other'")).ok();
}

/// Two file systems whose locks have one inode number: each is named with its own holder.
#[test]
fn the_process_that_has_a_store_is_named_by_the_file_system_too() {
    let room = room!();
    let on = ["one", "two"];
    let daemon = |at: &str| format!("/run/systx-e2e-of-{at}");
    for at in on {
        // New ones, in which the same happens: numbers of inodes count up from the same one.
        room.sh(&format!("mkdir /run/{at} && mount -t tmpfs -o mode=755 systx-e2e /run/{at}")).ok();
        let mount = format!("SYSTX_RUNTIME_DIR={} $S mount dir", daemon(at));
        room.sh(&format!("cd /run/{at} && mkdir dir && {mount}")).ok();
    }
    let number = |at: &str| room.sh(&format!("stat -c %i /run/{at}/.systx/lock")).ok();
    let numbers = on.map(|at| number(at).lines().last().map(str::to_owned));
    assert_eq!(numbers[0], numbers[1], "or this shows nothing");
    for at in on {
        let run = format!("cd /run/{at} && {TWO} $S run -- sh -c 'echo x > other'");
        let said = room.sh(&run).failed();
        let holders = room.processes(&["--serve", &daemon(at)]);
        assert_eq!(holders.len(), 1);
        let named = format!("process {} ", holders[0].as_raw_nonzero());
        assert!(said.contains(&named), "{said}");
    }
    for at in on {
        let umount = format!("SYSTX_RUNTIME_DIR={} $S umount dir", daemon(at));
        room.sh(&format!("cd /run/{at} && {umount}")).ok();
    }
}

/// A program of two threads that comes to have its memory map locked for as long as a file system
/// does not answer: one unmaps a page that has to be written, the other wants to change the map.
const LOCKS_ITS_MAP: &str = r#"
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
size, pointer = ctypes.c_size_t, ctypes.c_void_p
libc.mmap.restype = pointer
libc.mmap.argtypes = [pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [pointer, size]
libc.mprotect.argtypes = [pointer, size, ctypes.c_int]
fd = os.open("file", os.O_RDWR)
page = libc.mmap(None, 4096, 3, 1, fd, 0)
own = libc.mmap(None, 4096, 3, 0x22, -1, 0)
ctypes.memset(page, 120, 1)
print("begun", flush=True)
sys.stdin.readline()
unmaps = threading.Thread(target=libc.munmap, args=(page, 4096))
unmaps.start()
while unmaps.is_alive():
    libc.mprotect(own, 4096, 1)
    libc.mprotect(own, 4096, 3)
"#;

/// Whether all threads of a process wait in the kernel for something that no signal ends.
fn is_stuck(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('D'))
    })
}

/// Nobody can say what that one has mapped.
#[test]
fn a_program_that_waits_for_one_file_system_keeps_nobody_from_unmounting_another() {
    let room = room!();
    room.sh("mkdir a/g b/h; echo x > a/g/file; cd a && $S mount g").ok();
    std::fs::write(room.path("a/program"), LOCKS_ITS_MAP).unwrap();
    let mut waits = Begun::start(&room, "cd a/g && exec python3 ../program");
    let [program] = room.processes(&["../program"])[..] else { panic!("one program") };
    let [daemon] = room.processes(&["--serve", "/run/systx-e2e"])[..] else { panic!("one daemon") };
    let stopped = Stopped::new(daemon);
    waits.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    room.wait("the wait", |_| is_stuck(program));
    let limit = "timeout 100";
    room.sh(&format!("cd b && {TWO} {limit} $S mount h && {TWO} {limit} $S umount h")).ok();
    assert!(is_stuck(program), "or this shows nothing");
    drop(stopped);
    assert_eq!(waits.0.wait().unwrap().code(), Some(0));
    assert_eq!(std::fs::read(room.path("a/g/file")).unwrap(), b"x\n");
}

/// A process that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Stopped {
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn a_daemon_that_is_killed_leaves_its_store_to_the_next() {
    let room = room!();
    let known = "SYSTX_STATE_DIR=/run/systx-e2e-state";
    let two = format!("{known} {TWO}");
    let open = Begun::start(&room, &beginning(&two, "echo 2 > two", "true"));
    room.sh(&format!("cd a && {known} $S run -- sh -c 'echo 1 > one'")).ok();
    room.kill_daemon();
    assert_eq!(open.end(), 125);
    for daemon in [&two, known] {
        room.sh(&format!("cd a && {daemon} $S run -- sh -c 'cat one >> more'")).ok();
    }
    assert!(room.sh("cat a/more").ok().ends_with("1\n1\n") && !room.path("a/two").exists());
}

#[test]
fn two_daemons_commit_side_by_side_on_one_file_system_and_on_several() {
    const ROUNDS: usize = 12;
    let room = room!();
    let both = "../b/both";
    // Of each daemon two streams of commits on one file system, one on another, one over both.
    let streams = ["", TWO].into_iter().enumerate().flat_map(|(n, daemon)| {
        [("a", "one", ""), ("a", "two", ""), ("m", "three", ""), ("a", "four", both)].map(
            |(dir, name, other)| {
                let (name, other) = (format!("{name}{n}"), format!("{other}{n}"));
                let also = if other.len() > 1 { format!("; echo >> {other}") } else { String::new() };
                let run = format!("{daemon} $S run -q -- sh -c 'echo >> {name}{also}'");
                let script = format!(
                    "cd {dir} && i=0 && while [ $i -lt {ROUNDS} ]; do {run} || exit; i=$((i + 1)); done"
                );
                let mut command = room.command(&script);
                let stream = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
                (format!("{dir}/{name}"), stream.unwrap())
            },
        )
    });
    for (file, stream) in streams.collect::<Vec<_>>() {
        let done = stream.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(0), "{file}: {said}");
        let lines = std::fs::read_to_string(room.path(&file)).unwrap().lines().count();
        assert_eq!(lines, ROUNDS, "{file}");
    }
    for n in 0..2 {
        let lines = std::fs::read_to_string(room.path(&format!("b/both{n}"))).unwrap();
        assert_eq!(lines.lines().count(), ROUNDS);
    }
    // Every commit is in the one history, under a number of its own.
    let log = room.sh("cd a && $S log -n 1000 --json").ok();
    assert_eq!(log.matches("\"argv\"").count(), 6 * ROUNDS, "{log}");
}

#[test]
fn what_is_kept_is_committed_after_another_daemon_has_been_there_or_loses_to_it() {
    let room = room!();
    room.sh("cd a && $S run -- sh -c 'echo one > one'").ok();
    for (write, ends) in [("file", 75), ("other", 0)] {
        let run = "$S run --on-exit=keep -- sh -c 'cat file > /dev/null; echo kept > kept'";
        let said = room.sh(&format!("cd a && {run}; $S list --json")).ok();
        let id = said.split("\"id\":\"").nth(1).unwrap_or_else(|| panic!("{said}"));
        let id = &id[..id.find('"').unwrap()];
        wait_until_closed(&room.path("a/.systx"));
        room.sh(&format!("cd a && {TWO} $S run -- sh -c 'echo two > {write}'")).ok();
        let ended = room.sh(&format!("cd a && $S commit {id}"));
        assert_eq!(ended.code, Some(ends), "{}", ended.text);
        assert_eq!(room.path("a/kept").exists(), ends == 0);
        room.sh(&format!("cd a && $S abort {id}"));
    }
}

#[test]
fn a_store_that_is_closed_tells_its_history_and_takes_back_what_it_has() {
    let room = room!();
    room.sh("cd a && $S run -- sh -c 'echo new > file'").ok();
    let id = room.latest();
    for daemon in [TWO, ""] {
        wait_until_closed(&room.path("a/.systx"));
        let said = room.sh(&format!(
            "cd a && export {daemon} X= && $S log && $S diff {id} && $S show {id} && $S gc -n && \
             $S doctor"
        ));
        assert!(said.ok().contains("+new"));
        wait_until_closed(&room.path("a/.systx"));
        room.sh(&format!("cd a && {daemon} $S undo && cat file")).ok();
        assert_eq!(std::fs::read_to_string(room.path("a/file")).unwrap(), "old\n");
        room.sh(&format!("cd a && {daemon} $S redo")).ok();
        assert_eq!(std::fs::read_to_string(room.path("a/file")).unwrap(), "new\n");
    }
}

#[test]
fn what_a_store_was_that_is_given_up_is_anybodys() {
    let room = room!();
    for round in 0..3 {
        // It is made for the commit, which loses.
        let lost = Begun::start(&room, &beginning("", "cat file > /dev/null", "echo x > made"));
        std::fs::write(room.path("a/file"), format!("outside {round}\n")).unwrap();
        assert_eq!(lost.end(), 75);
    }
    assert_eq!(stores(&room), Vec::<&str>::new());
    // Their inodes are among the next that the file system gives out.
    room.sh("cd a && for i in $(seq 1 60); do mkdir top$i dir/in$i; echo > f$i; done").ok();
    let said = room.sh("cd a && ls . dir > ../m/natively && $S run -- ls . dir").ok();
    let natively = std::fs::read_to_string(room.path("m/natively")).unwrap();
    assert!(said.ends_with(&natively), "{said}");
}

#[test]
fn private_data_that_is_in_a_store_keeps_nobody_from_it() {
    let room = room!();
    let staged = |name: &str| format!("head -c 3000000 /dev/urandom > {name}; cp {name} c{name}");
    // Where nothing is committed nothing is left of it.
    room.sh(&format!("cd a && $S run -- sh -c '{}; false'", staged("x"))).failed();
    room.wait("the end of a store that was given up", |room| stores(room).is_empty());
    let one = Begun::start(&room, &beginning("", &staged("one"), "echo more >> one"));
    let two = Begun::start(&room, &beginning(TWO, &staged("two"), "mv two moved"));
    // Both are open, and the stores are not.
    for (n, daemon) in ["", TWO, "", TWO].into_iter().enumerate() {
        wait_until_closed(&room.path("a/.systx"));
        let work = format!("{}; cat f{n} > ../m/f{n}", staged(&format!("f{n}")));
        room.sh(&format!("cd a && {daemon} $S run -- sh -c '{work}'")).ok();
        room.sh(&format!("cmp a/f{n} m/f{n} && [ $(stat -c %s a/f{n}) = 3000000 ]")).ok();
    }
    assert_eq!((one.end(), two.end()), (0, 0));
    let large = std::fs::read(room.path("a/one")).unwrap();
    assert_eq!((large.len(), large.ends_with(b"more\n")), (3_000_005, true));
    room.sh("cmp a/moved a/ctwo && ! cmp a/moved a/cone").ok();
    // What has become a file of the tree is locked by nobody.
    for file in ["one", "cone", "moved", "ctwo", "f0", "cf1"] {
        assert!(!is_locked(&room.path(&format!("a/{file}"))), "{file}");
    }
    wait_until_closed(&room.path("a/.systx"));
    let left = std::fs::read_dir(room.path("a/.systx/s")).unwrap().flatten();
    assert_eq!(left.filter(|slot| slot.metadata().unwrap().len() > 0).count(), 0);
}

#[test]
fn what_a_killed_daemon_had_decided_is_in_place_before_another_one_looks() {
    let room = room!();
    let known = "SYSTX_STATE_DIR=/run/systx-e2e-state";
    room.sh(&format!("cd a && {known} $S run -- sh -c 'echo one > one'")).ok();
    wait_until_closed(&room.path("a/.systx"));
    let begun = Begun::start(&room, &beginning(known, "echo new > file", "echo new > ../b/new"));
    let [daemon] = room.processes(&["daemon"])[..] else { panic!("one daemon") };
    // After the last of the records, which decides.
    let stop = Stop::from_call(daemon, "pwritev2", Some(4));
    assert_eq!(begun.end(), 125);
    stop.wait();
    let two = format!("{known} {TWO}");
    let said = room.sh(&format!("cd a && {two} $S run -q -- cat file ../b/new; true")).ok();
    let whole = said.ends_with("new\nnew\n");
    assert!(whole || said.contains("old\n") && !said.contains("new\n"), "{said}");
    assert_eq!(room.path("b/new").exists(), whole);
}

#[test]
fn where_nothing_can_be_written_a_run_begins_and_makes_nothing() {
    let room = room!();
    room.sh("mount -o remount,ro b && cd a && $S run -- sh -c 'cat ../b/file > copy'").ok();
    let said = room.sh("cd b && $S run --read-only -- cat file").failed();
    assert!(said.contains("read-only"), "{said}");
    room.sh("mount -o remount,rw b && cd b && $S run -- sh -c 'cat file > copy'").ok();
    assert_eq!(stores(&room), ["a", "b"]);
}

/// A user's store is below the home directory, in directories that may be missing.
#[test]
fn who_has_looked_for_a_way_that_the_first_store_needs_commits() {
    let lab = lab!().as_user();
    assert!(!lab.has(".local"));
    // As every start of Python does.
    lab.run(&[], "ls -A . > seen; ! stat .local/lib 2>/dev/null; ls -A .local > inside; :").ok();
    assert!(lab.has("seen") && lab.has(".local/state/systx"));
    // The store itself is in no view.
    assert_eq!(lab.read("inside"), "state\n");
}

/// Two runs that are the first of a user begin at once: each finds the way, and neither is in it.
#[test]
fn two_first_runs_of_a_user_make_one_way() {
    let lab = lab!().as_user();
    let (mut one, mut two) = (lab.shell(&[]), lab.shell(&[]));
    one.eval("ls -A .local > one");
    two.eval("ls -A .local > two");
    one.exit(0).ok();
    two.exit(0).ok();
    assert_eq!([lab.read("one"), lab.read("two")], ["state\n", "state\n"]);
}
