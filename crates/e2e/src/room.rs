//! A mount namespace with disposable file systems, in which nothing else can be written, so that
//! what is mounted on the machine plays no part: for suites about transactions over several file
//! systems.

use crate::lab::{Frozen, Fs, PREFIX, base, end, obstacle, read_at_once, systx_binary};
use crate::lost::shut_down;
use crate::run::HANG;
use crate::tree::Tree;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Everything that can be written is made read-only here, but for /run, which is new, and for what
/// the test mounts.
const SEAL: &str = "mount --make-rprivate / && mount -t tmpfs -o mode=755 systx-e2e /run && \
    findmnt -rn -t ext2,ext3,ext4,xfs,btrfs,f2fs,bcachefs,jfs,tmpfs -o TARGET | while read -r at; do \
    case $at in /run|/run/*|/dev|/dev/*) ;; *) mount -o remount,bind,ro \"$at\" 2>/dev/null ;; esac; done; \
    mkdir -m 700 /run/systx-e2e";

/// Three file systems: `a`, `b`, and `m`, which is a tmpfs, in a directory that has the same path
/// in the namespace.
pub struct Room {
    dir: PathBuf,
    holder: Child,
    namespace: u64,
}

/// What a shell said and how it ended.
pub struct Said {
    /// The script, and what it printed.
    pub text: String,
    /// Exit code, if no signal ended it.
    pub code: Option<i32>,
}

impl Said {
    /// What it printed; it must have ended with 0.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{}", self.text);
        self.text
    }

    /// What it printed; it must not have ended with 0.
    #[track_caller]
    pub fn failed(self) -> String {
        assert_ne!(self.code, Some(0), "{}", self.text);
        self.text
    }
}

impl Room {
    /// With an ext4 on `a`, an xfs on `b`, a tmpfs on `m`.
    ///
    /// # Errors
    /// What this machine does not have: for the skip message.
    pub fn new() -> Result<Room, String> {
        Room::on([Fs::Ext4, Fs::Xfs])
    }

    /// With these on `a` and on `b`.
    ///
    /// # Errors
    /// As for [`Room::new`].
    pub fn on(kinds: [Fs; 2]) -> Result<Room, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let disks = kinds.map(|kind| kind.mkfs().expect("a file system with a disk"));
        obstacle(&["unshare", "nsenter", "findmnt", disks[0].0, disks[1].0]).map_or(Ok(()), Err)?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base().join(format!("{PREFIX}{}.fs{n}", std::process::id()));
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
        for (which, (mkfs, options)) in ["a", "b"].into_iter().zip(disks) {
            let make = format!("{mkfs} {} {which}.img", options.join(" "));
            room.sh(&format!("cd /run && truncate -s 400M {which}.img && {make}")).ok();
            room.mount(which);
        }
        room.sh("for d in a b m; do echo old > $d/file; mkdir $d/dir; echo k > $d/dir/k; done")
            .ok();
        Ok(room)
    }

    /// Waits for something of which nobody tells.
    pub fn wait(&self, what: &str, condition: impl Fn(&Room) -> bool) {
        let until = Instant::now() + HANG;
        while !condition(self) {
            assert!(Instant::now() < until, "{what} does not come");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A script in the namespace, to be started.
    pub fn command(&self, script: &str) -> Command {
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
    pub fn sh(&self, script: &str) -> Said {
        let Output { status, stdout, stderr } = self.command(script).output().unwrap();
        let text = [stdout, stderr].map(|b| String::from_utf8_lossy(&b).into_owned()).concat();
        Said { text: format!("{script}\n{text}"), code: status.code() }
    }

    /// Mounts `a` or `b`.
    pub fn mount(&self, which: &str) {
        self.sh(&format!("mount -o loop /run/{which}.img {which}")).ok();
    }

    /// Unmounts `a` or `b`.  The kernel may need a moment after the end of what used it.
    pub fn umount(&self, which: &str) {
        self.wait("the end of its use", |room| room.sh(&format!("umount {which}")).code == Some(0));
    }

    /// The disk of `a` or `b` goes away, with what it was not told to keep, and comes back.
    pub fn lose_disk(&self, which: &str) {
        shut_down(&self.path(which));
        self.umount(which);
        self.mount(which);
    }

    /// Waits until the store of `a` or `b` is closed, as it is soon after its last use: what closes
    /// it writes there.
    pub fn until_closed(&self, which: &str) {
        let store = self.dir.join(which).join(".systx");
        let has_open = |pid: &Pid| {
            let all = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
            let all = all.into_iter().flatten().flatten();
            all.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|at| at.starts_with(&store))
        };
        self.wait("the end of the store's use", |room| {
            !room.processes(&["daemon", "--serve"]).iter().any(has_open)
        });
    }

    /// Keeps everybody from writing to `a` or `b`, until the answer is dropped, which must be
    /// before the room is.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn freeze(&self, which: &str) -> Frozen {
        Frozen::at(self.path(which))
    }

    /// Processes in this namespace whose command line has all of `parts`.
    pub fn processes(&self, parts: &[&str]) -> Vec<Pid> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            let ns = fs::metadata(entry.path().join("ns/mnt")).map(|m| m.ino());
            // Before the rest: the command line of one that has its memory map locked is not told.
            if ns.ok() != Some(self.namespace) {
                continue;
            }
            let argv = read_at_once(&entry.path().join("cmdline")).unwrap_or_default();
            let argv: Vec<_> = argv.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
            if parts.iter().all(|part| argv.iter().any(|a| a == part)) {
                found.push(pid);
            }
        }
        found
    }

    /// SIGKILL for it, and its end: its memory, with its command line, goes before its descriptors,
    /// whose end may write.
    pub fn kill_daemon(&self) {
        let daemons = self.processes(&["daemon"]);
        end(&daemons
            .iter()
            .map(|pid| pid.as_raw_nonzero().get().unsigned_abs())
            .collect::<Vec<_>>());
    }

    /// The directory that has `a`, `b` and `m`, as the namespace has it.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Where something in the namespace is for this process; relative to the directory that has
    /// `a`, `b` and `m`.
    pub fn path(&self, there: &str) -> PathBuf {
        let there = self.dir.join(there);
        let below = there.strip_prefix("/").unwrap_or(&there);
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(below)
    }

    /// What is on `a`, `b` and `m`.
    pub fn trees(&self) -> [Tree; 3] {
        ["a", "b", "m"].map(|which| Tree::capture(self.path(which)))
    }

    /// The number that systx calls the latest transaction by.
    pub fn latest(&self) -> String {
        let log = self.sh("cd a && $S log").ok();
        let line = log.lines().nth(1).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.holder.stdin.take().map(|mut stdin| stdin.write_all(b"\n"));
        // Stopped first: a keeper starts the next daemon when the one before it ends.
        let all = self.processes(&[]);
        for signal in [Signal::STOP, Signal::KILL] {
            for pid in &all {
                let _ = rustix::process::kill_process(*pid, signal);
            }
        }
        let _ = self.holder.wait();
        if let Err(e) = fs::remove_dir_all(&self.dir)
            && !std::thread::panicking()
        {
            panic!("{}: {e}", self.dir.display());
        }
    }
}
