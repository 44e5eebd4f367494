//! A lab: a disposable file system with a private daemon.
//!
//! 1. an image file (in /dev/shm if there is room: the suites flush a lot) is formatted and
//!    mounted by loop, or a tmpfs is mounted, on a directory below /var/tmp;
//! 2. every `systx` started from the lab has `SYSTX_RUNTIME_DIR` set to a directory of the lab, so
//!    it has a daemon of its own, and every process of the lab can be found by that variable;
//! 3. dropping the lab ends those processes, unmounts, and removes everything, also on a panic.
//!
//! A killed test run cannot do 3.  So names carry the pid of the test process, and the first lab of
//! a process clears away what belongs to pids that are gone.
//!
//! Not under /tmp or /dev/shm: runs may put a private tmpfs there.

pub use self::built::{LIBRARY, SONAME, built};
pub(crate) use self::processes::{end, processes_with, read_at_once};
pub use crate::frozen::Frozen;
use crate::run::{Finished, HANG, Limits, Shell, finish, wait_readable};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

mod built;
mod layers;
mod limited;
mod logged;
mod processes;

pub(crate) const PREFIX: &str = "systx-e2e.";
pub(crate) const RUNTIME_VARIABLE: &str = "SYSTX_RUNTIME_DIR";
/// An ordinary user that no machine has: also a check that no passwd entry is needed.
pub const USER: u32 = 12021;

/// File systems that systx must work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fs {
    /// ext4 as mkfs makes it.
    Ext4,
    /// ext4 with `-O ^has_journal`.
    Ext4NoJournal,
    /// ext4 that has room for few files.
    Ext4FewInodes,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
    /// tmpfs.
    Tmpfs,
    /// An overlay with its layers on one ext4; not among those that every suite may meet.
    Overlay,
    /// A log-structured volume, mounted by the lab's own daemon; no more among them.
    Volume,
}

impl Fs {
    /// All of them that come as their tools make them.
    pub const ALL: [Fs; 5] = [Fs::Ext4, Fs::Ext4NoJournal, Fs::Xfs, Fs::Btrfs, Fs::Tmpfs];

    /// As `SYSTX_E2E_FS` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Fs::Ext4 => "ext4",
            Fs::Ext4NoJournal => "ext4-nojournal",
            Fs::Ext4FewInodes => "ext4-few-inodes",
            Fs::Xfs => "xfs",
            Fs::Btrfs => "btrfs",
            Fs::Tmpfs => "tmpfs",
            Fs::Overlay => "overlay",
            Fs::Volume => "volume",
        }
    }

    /// Taken from `SYSTX_E2E_FS`; ext4 unless told otherwise.
    pub fn default_for_suites() -> Fs {
        let Some(name) = std::env::var_os("SYSTX_E2E_FS") else { return Fs::Ext4 };
        *Fs::ALL
            .iter()
            .chain(&[Fs::Overlay, Fs::Volume])
            .find(|fs| OsStr::new(fs.name()) == name)
            .unwrap_or_else(|| panic!("SYSTX_E2E_FS: no file system {name:?}"))
    }

    /// The program that makes one, with its options; tmpfs has none.
    pub(crate) fn mkfs(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Fs::Ext4 | Fs::Overlay => Some(("mkfs.ext4", &["-q", "-F", "-m", "0"])),
            Fs::Ext4NoJournal => {
                Some(("mkfs.ext4", &["-q", "-F", "-m", "0", "-O", "^has_journal"]))
            }
            Fs::Ext4FewInodes => Some(("mkfs.ext4", &["-q", "-F", "-m", "0", "-N", "256"])),
            Fs::Xfs => Some(("mkfs.xfs", &["-q", "-f"])),
            Fs::Btrfs => Some(("mkfs.btrfs", &["-q", "-f"])),
            Fs::Tmpfs | Fs::Volume => None,
        }
    }
}

/// What disposable file systems cannot do without and this machine does not have; everything else
/// that goes wrong with them is a failure. `programs` that are needed beside.
pub(crate) fn obstacle(programs: &[&str]) -> Option<String> {
    use rustix::thread::{CapabilitySet, capabilities};
    let may_mount =
        capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN));
    if !rustix::process::geteuid().is_root() || !may_mount {
        return Some("only root with CAP_SYS_ADMIN can mount a disposable file system".into());
    }
    // A tmpfs takes no program and no disk.
    let disk = (!programs.is_empty()).then_some("/dev/loop-control");
    if let Some(device) = ["/dev/fuse"].into_iter().chain(disk).find(|d| !Path::new(d).exists()) {
        return Some(format!("there is no {device}"));
    }
    let missing = programs.iter().find(|program| find_program(program).is_none());
    missing.map(|program| format!("there is no {program}"))
}

/// Something of the lab that must have been made.
#[track_caller]
fn made(what: &Path, result: std::io::Result<()>) {
    result.unwrap_or_else(|e| panic!("no lab: {}: {e}", what.display()));
}

/// Whether the kernel has a file system, once something of that kind was to be mounted.
fn kernel_knows(kind: Fs) -> bool {
    let kind = kind.name().split('-').next().unwrap_or_default();
    let all = fs::read_to_string("/proc/filesystems").expect("/proc is there");
    all.lines().any(|line| line.split_whitespace().last() == Some(kind))
}

/// A disposable file system with its own daemon.
pub struct Lab {
    dir: PathBuf,
    image: Option<PathBuf>,
    mounted: bool,
    user: Option<u32>,
    copied: OnceLock<()>,
    /// Further options of an overlay, or of a mount by loop.
    options: String,
    /// Which file system it is.
    pub fs: Fs,
}

impl Lab {
    /// On the default file system.
    ///
    /// # Errors
    /// What this machine does not have: for the skip message.
    ///
    /// # Panics
    /// If it has all of that, and yet no lab can be made.
    pub fn new() -> Result<Lab, String> {
        Lab::on(Fs::default_for_suites())
    }

    /// On the given one.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    ///
    /// # Panics
    /// As for it.
    pub fn on(fs: Fs) -> Result<Lab, String> {
        Lab::sized(fs, 768)
    }

    /// With so many megabytes of room.
    ///
    /// # Errors
    /// As for [`Lab::new`].
    ///
    /// # Panics
    /// As for it.
    pub fn sized(fs: Fs, megabytes: u64) -> Result<Lab, String> {
        Lab::made(fs, megabytes, "", "")
    }

    fn made(fs: Fs, megabytes: u64, options: &str, script: &str) -> Result<Lab, String> {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let programs: Vec<&str> = fs.mkfs().into_iter().map(|(mkfs, _)| mkfs).collect();
        obstacle(&programs).map_or(Ok(()), Err)?;
        SWEEP.call_once(sweep);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}.{n}", std::process::id());
        let dir = base().join(&name);
        made(&dir, fs::create_dir(&dir));
        let mut lab = Lab {
            dir,
            image: None,
            mounted: false,
            user: None,
            copied: OnceLock::new(),
            options: options.to_owned(),
            fs,
        };
        for sub in ["mnt", "run", "disk"] {
            let sub = lab.dir.join(sub);
            made(&sub, fs::create_dir(&sub));
        }
        chmod(&lab.dir, 0o755);
        chmod(&lab.dir.join("run"), 0o700);
        if fs == Fs::Volume {
            lab.mount_logged(&name, megabytes);
        } else {
            lab.mount(&name, megabytes)?;
        }
        if fs == Fs::Overlay {
            let lower = lab.layer("lower");
            for layer in [&lower, &lab.layer("upper"), &lab.layer("work")] {
                made(layer, fs::create_dir(layer));
                chmod(layer, 0o755);
            }
            let mut sh = Command::new("sh");
            tool(sh.args(["-ec", script]).current_dir(&lower)).expect("a script that works");
            match lab.lay() {
                Err(why) if !kernel_knows(fs) => {
                    return Err(format!("this kernel has none: {why}"));
                }
                laid => drop(laid.unwrap_or_else(|why| panic!("no overlay: {why}"))),
            }
        }
        Ok(lab)
    }

    fn mount(&mut self, name: &str, megabytes: u64) -> Result<(), String> {
        let mnt = self.disk();
        let must = |done: Result<String, String>| {
            done.unwrap_or_else(|why| panic!("no lab on {}: {why}", self.fs.name()));
        };
        if let Some((mkfs, options)) = self.fs.mkfs() {
            let image = image_dir(megabytes).join(format!("{name}.img"));
            self.image = Some(image.clone());
            let file = fs::File::create(&image);
            made(&image, file.and_then(|file| file.set_len(megabytes << 20)));
            must(tool(Command::new(mkfs).args(options).arg(&image)));
            // Only an attempt tells whether the kernel has it, since that may load a module first.
            let mounted = tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mnt));
            if let (Err(why), false) = (&mounted, kernel_knows(self.fs)) {
                return Err(format!("this kernel has no {}: {why}", self.fs.name()));
            }
            must(mounted);
        } else {
            let size = format!("size={megabytes}m,mode=0755");
            must(tool(
                Command::new("mount").args(["-t", "tmpfs", "-o", &size, "systx-e2e"]).arg(&mnt),
            ));
        }
        self.mounted = true;
        chmod(&mnt, 0o755);
        Ok(())
    }

    /// From now on `systx` is started by an ordinary user, who owns the root of the volume.
    #[must_use]
    pub fn as_user(mut self) -> Lab {
        self.user = Some(USER);
        for path in [self.root(), self.dir.join("run")] {
            std::os::unix::fs::chown(&path, Some(USER), Some(USER)).expect("root may chown");
        }
        self
    }

    /// As [`Lab::as_user`], by a user whom the machine knows by name: fusermount3 serves no others.
    ///
    /// # Errors
    /// What this machine does not have: for the skip message.
    pub fn as_known_user(mut self) -> Result<Lab, String> {
        if find_program("fusermount3").is_none() {
            return Err("there is no fusermount3 (package fuse3)".into());
        }
        let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let uid = known.lines().find_map(|line| {
            line.strip_prefix("nobody:").and_then(|rest| rest.split(':').nth(1)?.parse().ok())
        });
        let uid: u32 = uid.ok_or("there is no user nobody")?;
        self.user = Some(uid);
        for path in [self.root(), self.dir.join("run")] {
            std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("root may chown");
        }
        Ok(self)
    }

    /// The uid under which `systx` runs.
    pub fn uid(&self) -> u32 {
        self.user.unwrap_or(0)
    }

    /// Root of the volume.
    pub fn root(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// Where the disk is mounted.
    fn disk(&self) -> PathBuf {
        self.dir.join(if self.fs == Fs::Overlay { "disk" } else { "mnt" })
    }

    /// A path in the volume.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root().join(relative)
    }

    /// A directory of the lab that is not on the volume.
    pub fn outside(&self) -> PathBuf {
        let dir = self.dir.join("outside");
        fs::create_dir_all(&dir).expect("the lab's directory is ours");
        chmod(&dir, 0o1777);
        dir
    }

    /// Writes a file of the volume from outside, with its parent directories.
    pub fn write(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(relative);
        let mut missing = Vec::new();
        let mut parent = path.parent().expect("the root is no file");
        while !parent.exists() {
            missing.push(parent.to_owned());
            parent = parent.parent().expect("the root exists");
        }
        for dir in missing.iter().rev() {
            fs::create_dir(dir).expect("parent of a new file");
            self.give(dir);
        }
        let new = !path.exists();
        fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        if new {
            self.give(&path);
        }
        path
    }

    /// Gives a file to the lab's user.
    pub fn give(&self, path: &Path) {
        if let Some(uid) = self.user {
            std::os::unix::fs::lchown(path, Some(uid), Some(uid)).expect("root may chown");
        }
    }

    /// Reads a file of the volume from outside; bytes that are no UTF-8 are replaced.
    pub fn read(&self, relative: impl AsRef<Path>) -> String {
        let path = self.path(relative);
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// There is something by this name.
    pub fn has(&self, relative: impl AsRef<Path>) -> bool {
        self.path(relative).symlink_metadata().is_ok()
    }

    /// The volume as a value, without systx's own directories.
    pub fn tree(&self) -> crate::Tree {
        crate::Tree::capture(self.root())
    }

    /// A command with the lab's environment and user, started in the volume's root.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self.user {
            None => Command::new(program),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command
                    .arg(format!("--reuid={uid}"))
                    .arg(format!("--regid={uid}"))
                    .args(["--clear-groups", "--"])
                    .arg(program);
                command
            }
        };
        command
            .current_dir(self.root())
            .env(RUNTIME_VARIABLE, self.dir.join("run"))
            // Not what else is mounted on this machine.
            .env("SYSTX_ONE_FILE_SYSTEM", "1")
            .env("LC_ALL", "C.UTF-8")
            .env("NO_COLOR", "1")
            .env_remove("SYSTX_LOG")
            .stdin(Stdio::null());
        if self.user.is_some() {
            command.env("HOME", self.root()).env("USER", "systx-e2e");
        }
        command
    }

    /// `systx` with these arguments, not yet started.
    pub fn systx<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.command(self.binary());
        command.args(args);
        command
    }

    /// Runs `systx` to its end.
    pub fn do_systx<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Finished {
        finish(self.systx(args), Limits::default(), self)
    }

    /// `systx run OPTIONS -- sh -c SCRIPT`, to its end.
    pub fn run(&self, options: &[&str], script: &str) -> Finished {
        self.run_argv(options, &["sh", "-c", script])
    }

    /// `systx run OPTIONS -- ARGV`, to its end.
    pub fn run_argv(&self, options: &[&str], argv: &[&str]) -> Finished {
        self.do_systx(["run"].iter().chain(options).chain(&["--"]).chain(argv))
    }

    /// Ids of the open transactions.
    pub fn open_ids(&self) -> Vec<String> {
        crate::run::ids(&self.do_systx(["list", "--json"]).ok().json())
    }

    /// Ids of the committed transactions, the latest first.
    pub fn logged_ids(&self) -> Vec<String> {
        crate::run::ids(&self.do_systx(["log", "--json"]).ok().json())
    }

    /// `sh -c SCRIPT` outside every transaction, by the lab's user.
    pub fn native(&self, script: &str) -> Finished {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        finish(command, Limits::default(), self)
    }

    /// A shell inside `systx run OPTIONS`, driven line by line.
    pub fn shell(&self, options: &[&str]) -> Shell<'_> {
        Shell::start(self, self.systx(["run"].iter().chain(options).chain(&["--", "sh"])))
    }

    /// The binary, where the lab's user and what runs inside can execute it.
    pub fn binary(&self) -> PathBuf {
        // In a run, /dev/shm, /run and perhaps /tmp are private places.
        let hidden = ["/dev", "/run", "/tmp"].iter().any(|p| systx_binary().starts_with(p));
        if self.user.is_none() && !hidden {
            return systx_binary().to_owned();
        }
        let copy = self.dir.join("systx");
        self.copied.get_or_init(|| {
            // By cp: a descriptor open for writing in this process could be inherited by what
            // another thread starts just now, and then executing the file is refused.
            tool(Command::new("cp").arg(systx_binary()).arg(&copy)).expect("copy of the binary");
            chmod(&copy, 0o755);
        });
        copy
    }

    /// Pids of the lab's processes, by the variable in their environment.
    pub fn processes(&self) -> Vec<u32> {
        processes_with(&self.dir.join("run"))
    }

    /// Pids of the lab's daemon.
    pub fn daemons(&self) -> Vec<u32> {
        let found = self.daemon_processes(|part| part == b"--serve");
        // A process that it is just about to execute a program in looks as itself.
        let is_copy = |pid: &u32| parent(*pid).is_some_and(|parent| found.contains(&parent));
        found.iter().copied().filter(|pid| !is_copy(pid)).collect()
    }

    /// Pids of the process that starts the daemon again if it dies.
    pub fn keepers(&self) -> Vec<u32> {
        self.daemon_processes(|part| part == b"--keep")
    }

    fn daemon_processes(&self, which: impl Fn(&[u8]) -> bool) -> Vec<u32> {
        let wanted = |pid: &u32| {
            let argv = Path::new("/proc").join(pid.to_string()).join("cmdline");
            let argv = read_at_once(&argv).unwrap_or_default();
            let mut argv = argv.split(|b| *b == 0).skip(1);
            argv.next() == Some(b"daemon") && argv.next().is_some_and(&which)
        };
        self.processes().into_iter().filter(wanted).collect()
    }

    /// kill -9 of the daemon; returns when it is gone, and a volume is served again.
    pub fn kill_daemon(&self) {
        end(&self.daemons());
        self.await_logged();
    }

    /// Waits for something that is bound to happen, and tells nobody when it does.
    ///
    /// # Panics
    /// If it does not happen for long, with the daemon's log.
    #[track_caller]
    pub fn until(&self, what: &str, mut happened: impl FnMut() -> bool) {
        let deadline = Instant::now() + HANG;
        while !happened() {
            assert!(Instant::now() < deadline, "never happened: {what}\n{}", self.daemon_log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Keeps everybody from writing to the disk, until the answer is dropped. Takes fsfreeze(8),
    /// which not all have, and a file system that can be frozen: not a tmpfs.
    ///
    /// # Panics
    /// If it cannot be done.
    pub fn freeze(&self) -> Frozen {
        Frozen::at(self.root())
    }

    /// kill -9 of the daemon; returns when its keeper has started the next one and gone home.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn kill_and_come_back(&self) {
        self.until("there is one keeper", || self.keepers().len() == 1);
        let (daemon, keeper) = (one(self.daemons()), watch(one(self.keepers())));
        self.kill_daemon();
        let home = wait_readable(&keeper, Instant::now() + HANG);
        assert!(home, "the keeper works for ever\n{}", self.daemon_log());
        assert_ne!(one(self.daemons()), daemon, "{}", self.daemon_log());
    }

    /// kill -9 of the daemon and its keeper, neither of which gets to do anything about it.
    pub fn kill_daemon_and_keeper(&self) {
        let both = [self.daemons(), self.keepers()].concat();
        signal(&both, rustix::process::Signal::STOP);
        end(&both);
    }

    /// kill -9 of everything that belongs to the lab; returns when it is gone.
    pub fn kill_all(&self) {
        // A process may fork while the list is read.
        for _ in 0..10 {
            let pids = self.processes();
            if pids.is_empty() {
                return;
            }
            end(&pids);
        }
    }

    /// A file of the daemon in its runtime directory, by the end of its name.
    pub fn runtime_file(&self, suffix: &str) -> PathBuf {
        let namespace = fs::metadata("/proc/self/ns/mnt").expect("/proc").ino();
        self.dir.join("run").join(format!("{namespace}.{suffix}"))
    }

    /// What the daemon had to say, for failure messages.
    pub fn daemon_log(&self) -> String {
        let mut out = String::new();
        let Ok(entries) = fs::read_dir(self.dir.join("run")) else { return out };
        for path in entries.flatten().map(|e| e.path()) {
            if path.extension() == Some(OsStr::new("log")) {
                let text = fs::read(&path).unwrap_or_default();
                let tail = &text[text.len().saturating_sub(4000)..];
                out.push_str(&String::from_utf8_lossy(tail));
            }
        }
        out
    }

    /// Unmounts the volume and mounts it again, as after a restart of the machine.
    pub fn remount(&mut self) {
        self.kill_all();
        assert!(self.fs != Fs::Tmpfs, "a tmpfs does not survive");
        unmount(&self.root());
        if self.fs == Fs::Overlay {
            unmount(&self.disk());
        }
        self.mounted = false;
        self.mount_again();
        if self.fs == Fs::Overlay {
            self.lay().unwrap();
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.kill_all();
        if std::env::var_os("SYSTX_E2E_KEEP").is_some() && std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.dir.display());
            return;
        }
        if self.mounted {
            clear_guards(&self.root());
            for at in [self.root(), self.disk()] {
                if is_mount_point(&at) {
                    unmount(&at);
                }
            }
        }
        self.check_logged();
        remove(&self.dir, self.image.as_deref());
    }
}

fn remove(dir: &Path, image: Option<&Path>) {
    // Views of transactions that were open when the daemon was killed, its own user's and guests'.
    clear_guards(dir);
    if let Some(image) = image {
        let _ = fs::remove_file(image);
    }
    if let Err(e) = fs::remove_dir_all(dir) {
        eprintln!("cannot remove {}: {e}", dir.display());
    }
}

/// Takes away the mounts over guarded directories that nobody serves any more.
fn clear_guards(mnt: &Path) {
    for at in guard_mounts(mnt).iter().rev() {
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

/// Where guarded directories are mounted below a directory, in the order of mounting.
pub fn guard_mounts(below: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let at = |line: &str| {
        let (place, fs) = line.split_once(" - ")?;
        let at = PathBuf::from(place.split(' ').nth(4)?);
        (fs.starts_with("fuse.systx ") && at.starts_with(below)).then_some(at)
    };
    table.lines().filter_map(at).collect()
}

pub(crate) fn unmount(mnt: &Path) {
    // A process that was killed lets go of its files a moment after it was reaped elsewhere.
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        let done = Command::new("umount").arg(mnt).stderr(Stdio::null()).status();
        if done.is_ok_and(|s| s.success()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("{} is busy: detached lazily", mnt.display());
    let _ = Command::new("umount").arg("-l").arg(mnt).status();
}

/// Clears away what killed test runs left.
pub fn sweep() {
    for place in [base(), PathBuf::from("/dev/shm")] {
        let Ok(entries) = fs::read_dir(&place) else { continue };
        for path in entries.flatten().map(|e| e.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(rest) = name.strip_prefix(PREFIX) else { continue };
            let pid = rest.split('.').next().unwrap_or_default();
            if pid.parse::<u32>().is_err() || Path::new("/proc").join(pid).exists() {
                continue;
            }
            eprintln!("left by a killed test run, removed: {}", path.display());
            if path.is_dir() {
                end(&processes_with(&path.join("run")));
                let mnt = path.join("mnt");
                clear_guards(&mnt);
                for at in [mnt, path.join("disk")] {
                    if is_mount_point(&at) {
                        unmount(&at);
                    }
                }
                remove(&path, None);
            } else {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn is_mount_point(path: &Path) -> bool {
    let dev = |p: &Path| p.metadata().map(|m| m.dev());
    match dev(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
        // One that nobody serves any more is one.
        found => found.ok() != path.parent().and_then(|up| dev(up).ok()),
    }
}

pub(crate) fn base() -> PathBuf {
    std::env::var_os("SYSTX_E2E_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

fn image_dir(megabytes: u64) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map(|s| s.f_bavail * s.f_frsize).unwrap_or(0);
    if room > (megabytes << 20) * 2 { shm.to_owned() } else { base() }
}

/// Sends a signal.
pub fn signal(pids: &[u32], signal: rustix::process::Signal) {
    for pid in pids {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// The only one of them.
///
/// # Panics
/// If there is another number of them.
pub fn one(pids: Vec<u32>) -> u32 {
    assert_eq!(pids.len(), 1, "{pids:?}");
    pids[0]
}

/// To wait for a process's end.
///
/// # Panics
/// If there is no such process.
pub fn watch(pid: u32) -> OwnedFd {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("it lives")
}

/// Sets permission bits.
pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|e| panic!("chmod {}: {e}", path.display()));
}

/// Writes a program. By a process of its own: a descriptor open for writing in this one could be
/// inherited by what another thread starts just now, and then executing the file is refused.
pub fn executable(path: &Path, text: &str) {
    let mut sh = Command::new("sh");
    sh.args(["-ec", "printf %s \"$2\" > \"$1\"; chmod 755 \"$1\"", "sh"]).arg(path).arg(text);
    tool(&mut sh).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
}

/// Runs a tool that must succeed.
///
/// # Errors
/// A sentence with what it said.
pub fn tool(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{name} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim()))
}

/// Where the program is on `PATH`, if it is.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

/// The `systx` under test: `SYSTX_BIN`, or the one of this build, built if it is not there yet.
pub fn systx_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(given) = std::env::var_os("SYSTX_BIN") {
            return PathBuf::from(given);
        }
        built(&["--bin", "systx"], "systx")
    })
}

#[cfg(test)]
mod tests {
    use super::is_mount_point;
    use std::path::Path;

    #[test]
    fn what_is_not_there_is_no_mount_point() {
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(Path::new("/proc/self")));
        assert!(!is_mount_point(Path::new("/proc/nothing")));
    }
}
