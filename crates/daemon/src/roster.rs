//! The list of guarded directories, in the runtime directory: what a daemon mounts again after the
//! one before it was killed.
//!
//! It is written before a directory is mounted and after one is unmounted, whole, by a rename. What
//! is read is not trusted: the file must be the user's own, of this run of the kernel, and every
//! entry must still mean the same directory when it is used.

use crate::protocol::{
    Failure, FailureKind, ForThreads, HostPath, Policy, STALL_MS_MAX, Transport,
};
use crate::volume::Location;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};
use systx_protocol::replaced::replace;

const VERSION: u32 = 1;
/// Longer than any list that makes sense.
const MAX_BYTES: u64 = 4 << 20;
/// A daemon that was started again this often within [`WINDOW`] seconds does not mount once more.
const MAX_RESTARTS: usize = 5;
const WINDOW: u64 = 60;

/// One guarded directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where.
    pub dir: HostPath,
    /// Inode number of the directory below.
    pub ino: u64,
    /// Device number of the file system that it is on.
    pub dev: u64,
    /// Mount point of its volume.
    pub mount: HostPath,
    /// Where its store is.
    pub store: HostPath,
    /// How it is to be served.
    pub transport: Transport,
    /// How long a plain change may be held, see [`crate::protocol::Mount::stall_ms`].
    pub stall_ms: u64,
    /// See [`crate::protocol::Mount::policy`].
    #[serde(default)]
    pub policy: Policy,
    /// Transactions of threads are seen by routing, see [`crate::protocol::Mount::routed`].
    #[serde(default)]
    pub routed: bool,
    /// Opens make no messages, see [`crate::protocol::Mount::fast_open`].
    #[serde(default)]
    pub fast_open: bool,
    /// Who is asked before each commit, see [`crate::protocol::Mount::certifier`].
    #[serde(default)]
    pub certifier: Option<HostPath>,
}

impl Entry {
    /// Where the volume is.
    pub fn location(&self) -> Location {
        Location {
            mount: self.mount.as_path().to_owned(),
            dev: self.dev,
            store: self.store.as_path().to_owned(),
        }
    }

    fn makes_sense(&self) -> bool {
        let (dir, mount) = (self.dir.as_path(), self.mount.as_path());
        is_straight(&self.dir)
            && is_straight(&self.mount)
            && is_straight(&self.store)
            && dir != Path::new("/")
            && dir.starts_with(mount)
            && self.store.as_path().starts_with(mount)
            && self.stall_ms <= STALL_MS_MAX
    }
}

/// One mounted volume, or a snapshot of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeEntry {
    /// The image or the block device.
    pub file: HostPath,
    /// Where.
    pub dir: HostPath,
    /// How it is to be served.
    pub transport: Transport,
    /// The snapshot that is shown.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// See [`crate::protocol::MountVolume::threads`].
    #[serde(default)]
    pub threads: Option<ForThreads>,
    /// Which one it is, whatever comes to its path; `None`: an older version of systx mounted it.
    #[serde(default)]
    pub identity: Option<ImageIdentity>,
}

/// What tells an image from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageIdentity {
    /// Device and inode number of the file, or the device's own number: a copy is another image.
    pub at: (u64, u64),
    /// The number that the volume got when it was made: an inode number is given again.
    pub volume: [u8; 16],
}

impl VolumeEntry {
    fn makes_sense(&self) -> bool {
        is_straight(&self.file)
            && is_straight(&self.dir)
            && self.dir.as_path() != Path::new("/")
            && self.threads.as_ref().is_none_or(|how| how.stall_ms <= STALL_MS_MAX)
    }
}

/// Whether a path is absolute, and goes straight.
fn is_straight(path: &HostPath) -> bool {
    let path = path.as_path();
    path.is_absolute()
        && !path.as_os_str().as_encoded_bytes().contains(&0)
        && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
}

/// The list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roster {
    version: u32,
    /// Which run of the kernel: mounts do not outlive it.
    boot: String,
    /// Seconds since the boot at which a daemon had to mount again.
    restarts: Vec<u64>,
    /// What is guarded.
    pub entries: Vec<Entry>,
    /// What volumes are mounted.
    #[serde(default)]
    pub volumes: Vec<VolumeEntry>,
}

impl Roster {
    /// Nothing.
    pub fn empty() -> Roster {
        let (restarts, entries, volumes) = Default::default();
        Roster { version: VERSION, boot: boot(), restarts, entries, volumes }
    }

    /// Whether nothing is on it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.volumes.is_empty()
    }

    /// The directories over which something is mounted.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        let guarded = self.entries.iter().map(|entry| entry.dir.as_path());
        guarded.chain(self.volumes.iter().map(|entry| entry.dir.as_path()))
    }

    /// What the file says; empty if there is none, or none that can be believed, which is logged.
    pub fn load(path: &Path) -> Roster {
        match read(path) {
            Ok(None) => Roster::empty(),
            Ok(Some(bytes)) => decode(&bytes).unwrap_or_else(|why| {
                tracing::warn!("{} is not used: {why}", path.display());
                Roster::empty()
            }),
            Err(e) => {
                tracing::warn!("{} is not used: {e}", path.display());
                Roster::empty()
            }
        }
    }

    /// Writes the file, or removes it if nothing is on the list.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| {
            let text = format!("cannot write {}: {e}", path.display());
            Failure::new(FailureKind::Io, text).path(path)
        };
        if self.is_empty() {
            return match std::fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        }
        let bytes = serde_json::to_vec(self).map_err(|e| failed(e.into()))?;
        replace(path, &bytes, 0o600).map_err(failed)
    }

    /// Notes that a daemon mounts again what the one before it left; false if that happened too
    /// often of late.
    pub fn note_restart(&mut self) -> bool {
        let now = uptime();
        self.restarts.retain(|then| *then <= now && now - then < WINDOW);
        self.restarts.push(now);
        self.restarts.len() <= MAX_RESTARTS
    }
}

fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let meta = file.metadata()?;
    let own = meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if !meta.is_file() || !own {
        let why = "it is not a file that only its owner, this user, may write";
        return Err(std::io::Error::new(ErrorKind::InvalidData, why));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn decode(bytes: &[u8]) -> Result<Roster, String> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it is too long".into());
    }
    let roster: Roster = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if roster.version != VERSION {
        return Err(format!("it is of version {}, this is {VERSION}", roster.version));
    }
    if roster.boot != boot() {
        return Err("it is of before the machine was started".into());
    }
    if let Some(entry) = roster.entries.iter().find(|e| !e.makes_sense()) {
        return Err(format!("an entry makes no sense: {entry:?}"));
    }
    if let Some(entry) = roster.volumes.iter().find(|e| !e.makes_sense()) {
        return Err(format!("an entry makes no sense: {entry:?}"));
    }
    Ok(roster)
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

fn uptime() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(now.tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            dir: "/srv/a".into(),
            ino: 7,
            dev: 9,
            mount: "/srv".into(),
            store: "/srv/.systx".into(),
            transport: Transport::Auto,
            stall_ms: 500,
            policy: Policy::Size,
            routed: true,
            fast_open: true,
            certifier: Some("/run/certifier".into()),
        }
    }

    fn with(entries: Vec<Entry>) -> Roster {
        Roster { entries, ..Roster::empty() }
    }

    #[test]
    fn what_is_written_is_read_and_an_empty_list_leaves_no_file() {
        let path = std::env::temp_dir().join(format!("systx-roster-{}", std::process::id()));
        let roster = with(vec![entry()]);
        roster.save(&path).unwrap();
        assert_eq!(Roster::load(&path), roster);
        Roster::empty().save(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(Roster::load(&path), Roster::empty());
        // A link is not followed, a fifo not waited for.
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(Roster::load(&path), Roster::empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_cannot_be_believed_is_not_used() {
        let good = serde_json::to_vec(&with(vec![entry()])).unwrap();
        assert!(decode(&good).is_ok());
        for cut in 0..good.len() {
            assert!(decode(&good[..cut]).is_err());
        }
        let bad = |change: &dyn Fn(&mut Roster)| {
            let mut roster = with(vec![entry()]);
            change(&mut roster);
            decode(&serde_json::to_vec(&roster).unwrap()).is_err()
        };
        assert!(bad(&|r| r.version = 2));
        assert!(bad(&|r| r.boot = "another".into()));
        for dir in ["srv/a", "/", "/srv/../etc", "/etc", "/srv/a\0"] {
            assert!(bad(&|r| r.entries[0].dir = dir.into()), "{dir:?}");
        }
        assert!(bad(&|r| r.entries[0].stall_ms = STALL_MS_MAX + 1));
        assert!(bad(&|r| r.entries[0].store = "/elsewhere".into()));
        for (file, dir) in [("/a", "/"), ("a", "/srv"), ("/a", "/srv/../etc"), ("/a\0", "/srv")] {
            let (file, dir) = (HostPath::from(file), HostPath::from(dir));
            let (transport, snapshot, threads, identity) = Default::default();
            let entry = VolumeEntry { file, dir, transport, snapshot, threads, identity };
            assert!(bad(&|r| r.volumes.push(entry.clone())), "{entry:?}");
        }
    }

    #[test]
    fn a_daemon_that_dies_again_and_again_is_not_mounted_for_ever() {
        let mut roster = with(vec![entry()]);
        for _ in 0..MAX_RESTARTS {
            assert!(roster.note_restart());
        }
        assert!(!roster.note_restart());
        roster.restarts = vec![uptime().saturating_sub(WINDOW + 1); MAX_RESTARTS];
        assert!(roster.note_restart() || uptime() < WINDOW);
    }
}
