//! One transaction over several file systems: ext4, xfs and a tmpfs, in a mount namespace of their own in which nothing
//! else can be written, so that what is mounted on the machine plays no part.

use rustix::process::{Pid, Signal};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use systx_e2e::lab::{find_program, systx_binary};
use systx_e2e::run::{HANG, wait_readable};

/// Everything that can be written is made read-only here, but for /run, which is new, and for what the test mounts.
const SEAL: &str = "mount --make-rprivate / && mount -t tmpfs -o mode=755 systx-e2e /run && \
    findmnt -rn -t ext2,ext3,ext4,xfs,btrfs,f2fs,bcachefs,jfs,tmpfs -o TARGET | while read -r at; do \
    case $at in /run|/run/*|/dev|/dev/*) ;; *) mount -o remount,bind,ro \"$at\" 2>/dev/null ;; esac; done; \
    mkdir -m 700 /run/systx-e2e";

struct Room {
    dir: PathBuf,
    holder: Child,
    namespace: u64,
}

/// What a shell said and how it ended.
struct Said {
    text: String,
    code: Option<i32>,
}

impl Said {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.text);
        self.text
    }
    #[track_caller]
    fn failed(self) -> String {
        assert_ne!(self.code, Some(0), "{}", self.text);
        self.text
    }
}

impl Room {
    /// With an ext4 on `a`, an xfs on `b`, a tmpfs on `m`.
    fn new() -> Option<Room> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let missing = ["unshare", "nsenter", "findmnt", "mkfs.ext4", "mkfs.xfs"]
            .into_iter()
            .find(|tool| find_program(tool).is_none());
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED: only root can mount disposable file systems, with /dev/fuse");
            return None;
        }
        if let Some(tool) = missing {
            eprintln!("SKIPPED: there is no {tool}");
            return None;
        }
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/var/tmp/systx-e2e.{}.fs{n}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for sub in ["a", "b", "m"] {
            fs::create_dir(dir.join(sub)).unwrap();
        }
        // It lives until its standard input is closed.
        let holder = Command::new("unshare")
            .args(["-m", "sh", "-c", "echo; read -r _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut room = Room { dir, holder, namespace: 0 };
        let here = fs::metadata("/proc/self/ns/mnt").unwrap().ino();
        room.wait("a namespace", |room| {
            let ns = format!("/proc/{}/ns/mnt", room.holder.id());
            fs::metadata(ns).is_ok_and(|m| m.ino() != here)
        });
        let ns = format!("/proc/{}/ns/mnt", room.holder.id());
        room.namespace = fs::metadata(ns).unwrap().ino();
        room.sh(&format!("{SEAL} && mount -t tmpfs -o mode=755 systx-e2e m")).ok();
        room.sh(
            "cd /run && truncate -s 400M a.img b.img && mkfs.ext4 -q a.img && mkfs.xfs -q b.img",
        )
        .ok();
        room.mount("a");
        room.mount("b");
        room.sh("for d in a b m; do echo old > $d/file; mkdir $d/dir; echo k > $d/dir/k; done")
            .ok();
        Some(room)
    }

    fn wait(&self, what: &str, condition: impl Fn(&Room) -> bool) {
        let until = Instant::now() + HANG;
        while !condition(self) {
            assert!(Instant::now() < until, "{what} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn command(&self, script: &str) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg("-t")
            .arg(self.holder.id().to_string())
            .args(["-m", "--", "timeout", "300", "sh", "-c"])
            .arg(format!("cd {} && {script}", self.dir.display()))
            .env("S", systx_binary())
            .env("D", &self.dir)
            .env("SYSTX_RUNTIME_DIR", "/run/systx-e2e")
            .env("LC_ALL", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env_remove("SYSTX_ONE_FILE_SYSTEM")
            .env_remove("SYSTX_LOG")
            .stdin(Stdio::null());
        command
    }

    /// A script in the namespace, in the directory that has `a`, `b` and `m`; `$S` is systx.
    fn sh(&self, script: &str) -> Said {
        let Output { status, stdout, stderr } = self.command(script).output().unwrap();
        let text = [stdout, stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
        Said { text: format!("{script}\n{text}"), code: status.code() }
    }

    fn mount(&self, which: &str) {
        self.sh(&format!("mount -o loop /run/{which}.img {which}")).ok();
    }

    /// The kernel may need a moment after the end of what used it.
    fn umount(&self, which: &str) {
        self.wait("the end of its use", |room| room.sh(&format!("umount {which}")).code == Some(0));
    }

    /// Processes in this namespace whose command line has all of `parts`.
    fn processes(&self, parts: &[&str]) -> Vec<Pid> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            let ns = fs::metadata(entry.path().join("ns/mnt")).map(|m| m.ino());
            let argv = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let argv: Vec<_> = argv.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
            if ns.is_ok_and(|ns| ns == self.namespace)
                && parts.iter().all(|part| argv.iter().any(|a| a == part))
            {
                found.push(pid);
            }
        }
        found
    }

    fn kill_daemon(&self) {
        for pid in self.processes(&["daemon"]) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.wait("the daemon's end", |room| room.processes(&["daemon"]).is_empty());
    }

    /// All files, with what is in them.
    fn tree(&self) -> String {
        self.sh(
            "for d in a b m; do if mountpoint -q $d; then find $d -xdev -path '*/.systx' -prune -o \
             -path '*/lost+found' -prune -o -printf '%p %y %m\n' | sort; find $d -xdev -path '*/.systx' \
             -prune -o -type f -printf '%p: ' -exec cat {} \\; | sort; else echo $d is absent; fi; done",
        )
        .ok()
    }

    /// The number that systx calls the latest transaction by.
    fn latest(&self) -> String {
        let log = self.sh("cd a && $S log").ok();
        let line = log.lines().nth(1).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.holder.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        for pid in self.processes(&[]) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.holder.wait();
        if let Err(e) = fs::remove_dir_all(&self.dir)
            && !std::thread::panicking()
        {
            panic!("{}: {e}", self.dir.display());
        }
    }
}

/// Changes all three.
const WORK: &str = "mv a/file b/moved; echo new > b/file; echo new > m/file; mkdir a/made; echo n > a/made/n; \
    rm b/dir/k; chmod 700 m/dir";

fn after(room: &Room) -> String {
    room.sh(&format!("cp -a a b m /run/ && cd /run && {WORK}")).ok();
    let there = room.sh(
        "cd /run && for d in a b m; do find $d -path '*/.systx' -prune -o -path '*/lost+found' -prune -o \
         -printf '%p %y %m\n' | sort; find $d -path '*/.systx' -prune -o -type f -printf '%p: ' -exec cat {} \\; | sort; done",
    );
    let text = there.ok();
    room.sh("rm -rf /run/a /run/b /run/m").ok();
    text
}

/// The listing without the script that made it.
fn listing(text: &str) -> Vec<&str> {
    text.lines().skip_while(|l| !l.starts_with("a ")).collect()
}

#[test]
fn a_run_over_three_file_systems_is_committed_undone_and_redone_as_one() {
    let Some(room) = Room::new() else { return };
    let (before, after) = (room.tree(), after(&room));
    let said = room.sh(&format!("cd a && $S run -- sh -c 'cd ..; {WORK}'")).ok();
    assert!(said.contains("committed"), "{said}");
    assert_eq!(listing(&room.tree()), listing(&after));
    let id = room.latest();
    for dir in ["a", "b", "m"] {
        let shown = room.sh(&format!("cd {dir} && $S show {id}")).ok();
        for path in ["a/made", "b/moved", "m/file"] {
            assert!(shown.contains(path), "{shown}");
        }
    }
    // From any of them.
    room.sh(&format!("cd b && $S undo {id}")).ok();
    assert_eq!(listing(&room.tree()), listing(&before));
    room.sh("cd m && $S redo").ok();
    assert_eq!(listing(&room.tree()), listing(&after));
}

#[test]
fn what_is_not_committed_leaves_no_trace_on_any() {
    let Some(room) = Room::new() else { return };
    let before = room.tree();
    room.sh(&format!("cd a && $S run -- sh -c 'cd ..; {WORK}; exit 3'")).failed();
    assert_eq!(room.tree(), before);
    let said = room.sh(&format!("cd m && $S run --on-exit keep -- sh -c 'cd ..; {WORK}'")).ok();
    assert_eq!(room.tree(), before, "{said}");
    let diff = room.sh("cd a && id=$($S list --json | grep -o '\"id\": *\"[0-9a-f]*\"' | head -1 | cut -d'\"' -f4); \
        $S diff $id; $S commit $id $D/a/made $D/b/moved; $S enter $id -- cat $D/b/moved $D/m/file; $S abort $id");
    for part in ["a/made", "b/moved", "m/file", "several file systems", "old", "new"] {
        assert!(diff.text.contains(part), "{}", diff.text);
    }
    assert_eq!(room.tree(), before);
    // Two of which one loses.
    let said = room.sh("cd a && $S run -- sh -c 'cat ../b/file; echo x > ../m/x; \
        nsenter -t '$PPID' -m true; echo outside > /proc/'$$'/root'$D'/b/file; cat ../b/file >> ../m/x'");
    let text = said.failed();
    assert!(text.contains("b/file") && text.contains("conflict"), "{text}");
    assert_eq!(room.sh("ls m").ok(), room.sh("ls m").ok());
    assert!(!room.sh("ls m").ok().contains('x'), "{text}");
}

#[test]
fn several_file_systems_look_as_on_the_host() {
    let Some(room) = Room::new() else { return };
    let script = "[ $(stat -c %d a b m / | sort -u | wc -l) = 4 ] && echo four; \
        ln a/file b/hard 2>&1; find . -xdev -name file; df --output=target a b m; \
        find a -xdev | sort; mkdir b/nested; rmdir b 2>&1; touch /etc/systx-e2e 2>&1";
    let native = room.sh(script).text.replace("./", "");
    room.sh("rmdir b/nested").ok();
    let inside = room.sh(&format!("cd m && $S run -q -- sh -c 'cd ..; {script}'"));
    let seen = inside.text.clone();
    for line in native.lines().skip(2).filter(|l| !l.contains(".systx")) {
        assert!(
            seen.contains(line.trim_end_matches(": Device or resource busy")),
            "{line}\n{seen}"
        );
    }
    assert!(seen.contains("four") && seen.contains("cross-device"), "{seen}");
    // What a run does not cover is named and refused, as before.
    assert!(seen.contains("Read-only file system"), "{seen}");
    // Restricted to the file system of the working directory.
    let one = room.sh("cd a && SYSTX_ONE_FILE_SYSTEM=1 $S run -- sh -c 'echo x > ../b/x'").failed();
    assert!(one.contains("Read-only file system"), "{one}");
}

/// Kills the daemon some time after the end of the command.
fn die_in_commit(room: &Room, after: Duration) {
    room.sh("mkdir -p /run/e2e && rm -f /run/e2e/done && mkfifo /run/e2e/done").ok();
    let fifo = format!("/proc/{}/root/run/e2e/done", room.holder.id());
    let mut done = fs::OpenOptions::new().read(true).write(true).open(fifo).unwrap();
    // So that there is a daemon, whose number is known.
    room.sh("cd a && $S run -- true").ok();
    let daemon = room.processes(&["daemon"]);
    // Not by its name: the run has a /run of its own.
    let script =
        format!("exec 9>/run/e2e/done; cd a && $S run -q -- sh -c 'cd ..; {WORK}; echo >&9'");
    let mut run = room.command(&script);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(wait_readable(&done, Instant::now() + HANG), "the command does not come to its end");
    done.read_exact(&mut [0]).unwrap();
    std::thread::sleep(after);
    for pid in daemon {
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    room.kill_daemon();
    run.wait().unwrap();
}

/// Whether the transaction is there, on all file systems; takes it back.
fn is_there(room: &Room, before: &str, after: &str, what: &str) -> bool {
    let tree = room.tree();
    let tree = listing(&tree);
    if tree == listing(before) {
        return false;
    }
    assert!(tree == listing(after), "{what}: neither before nor after\n{}", tree.join("\n"));
    room.sh("cd a && $S undo").ok();
    assert_eq!(listing(&room.tree()), listing(before), "{what}, undone");
    true
}

#[test]
fn a_daemon_that_is_killed_in_a_commit_leaves_all_or_nothing() {
    let Some(room) = Room::new() else { return };
    let (before, after) = (room.tree(), after(&room));
    let mut seen = [0, 0];
    for round in 0..12 {
        die_in_commit(&room, Duration::from_micros(round * 1500));
        room.sh("cd b && $S recover").ok();
        let there = is_there(&room, &before, &after, &format!("round {round}"));
        seen[usize::from(there)] += 1;
    }
    eprintln!("{} before, {} after", seen[0], seen[1]);
}

/// `a` decides; `b` is not there when it recovers, and then is.
#[test]
fn a_part_that_is_absent_is_finished_when_it_is_there_again() {
    let Some(room) = Room::new() else { return };
    let (before, after) = (room.tree(), after(&room));
    let mut waited = 0;
    for round in 0..10 {
        die_in_commit(&room, Duration::from_micros(round * 1500));
        room.umount("b");
        let said = room.sh("cd a && $S recover").ok();
        if said.contains("waits in") {
            waited += 1;
            assert!(said.contains("/b/.systx"), "{said}");
            let said = room.sh("cd a && $S doctor").text;
            assert!(said.contains("waits in"), "{said}");
        }
        // The rest goes on meanwhile.
        room.sh("cd a && $S run -- sh -c 'echo more > ../m/more' && rm ../m/more").ok();
        room.kill_daemon();
        room.mount("b");
        room.sh("cd b && $S recover").ok();
        let said = room.sh("cd a && $S recover").ok();
        assert!(!said.contains("waits in"), "{said}");
        is_there(&room, &before, &after, &format!("round {round}"));
    }
    eprintln!("b was waited for {waited} times");
}

/// As before, but it is `a`, the store that decides, that is not there.
#[test]
fn a_part_waits_for_a_decider_that_is_absent() {
    let Some(room) = Room::new() else { return };
    let (before, after) = (room.tree(), after(&room));
    let look = "find b -path 'b/.systx' -prune -o -printf '%p %y %m %s %T@ %i\n' | sort";
    let mut waited = 0;
    for round in 0..10 {
        die_in_commit(&room, Duration::from_micros(round * 1500));
        room.umount("a");
        let then = room.sh(look).ok();
        let said = room.sh("cd b && $S recover");
        if said.code != Some(0) {
            waited += 1;
            let text = said.text;
            assert!(
                text.contains("waits for the store in") && text.contains("/a/.systx"),
                "{text}"
            );
            assert_eq!(room.sh(look).ok(), then);
            // Named by whoever would cover it.
            let text = room.sh("cd m && $S run -- true").text;
            assert!(text.contains("waits for the store in"), "{text}");
        }
        room.mount("a");
        room.sh("cd b && $S recover && cd ../a && $S recover").ok();
        is_there(&room, &before, &after, &format!("round {round}"));
    }
    eprintln!("a was waited for {waited} times");
}
