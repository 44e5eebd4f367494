//! Which volume a command works on: the file system that holds a directory, where it is mounted, and
//! where its store lives.

use crate::protocol::{HostPath, Inspected, Recovered};
use crate::top::Counts;
use crate::transaction::outside_change;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systx_base::Uid;
use systx_store::io::{Class, Io};
use systx_store::real::RealIo;
use systx_store::{Config, DirStore, OpenError, RecoveryReport};
use systx_vfs::volume::Volume;
use thiserror::Error;

/// Name of the store's directory at the root of a volume, when root owns it.
pub const STORE_DIR: &str = ".systx";

/// Why a volume cannot be used.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// A system call failed.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// No place for the store.
    #[error(
        "no directory on the file system mounted at {mount} belongs to you: give one with --store DIR"
    )]
    NoStore {
        /// Where the file system is mounted.
        mount: String,
    },
    /// The store refused.
    #[error("cannot open the store in {path}: {error}")]
    Store {
        /// The store's directory.
        path: String,
        /// Why.
        error: OpenError,
    },
    /// The mount table makes no sense.
    #[error("cannot find the mount of {path} in the mount table")]
    NoMount {
        /// The directory.
        path: String,
    },
}

/// Where a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// Mount point on the host.
    pub mount: PathBuf,
    /// `st_dev`.
    pub dev: u64,
    /// The store's directory, absolute.
    pub store: PathBuf,
}

/// An open volume with its store.
pub struct OpenVolume {
    /// Where it is.
    pub location: Location,
    /// What views share.
    pub vol: Arc<Volume>,
    /// The durable side.
    pub store: Arc<DirStore>,
    /// What recovery did when it was opened.
    pub recovery: RecoveryReport,
    /// What happened since.
    pub counts: Counts,
}

impl OpenVolume {
    /// What recovery did when the volume was opened, as sentences; empty if there was nothing to do.
    pub fn recovery_notes(&self) -> Vec<String> {
        self.recovered().notes
    }

    /// What recovery did when the volume was opened.
    pub fn recovered(&self) -> Recovered {
        let report = &self.recovery;
        let mut notes = Vec::new();
        if !report.finished.is_empty() {
            let ids: Vec<_> = report.finished.iter().map(ToString::to_string).collect();
            notes.push(format!("recovery finished transaction {}", ids.join(", ")));
        }
        if report.discarded {
            notes.push("recovery discarded a commit that was cut off before its decision".into());
        }
        let outside: Vec<_> = report.outside.iter().map(|c| outside_change(self, c)).collect();
        Recovered {
            store: HostPath::from(self.location.store.as_path()),
            finished: report.finished.len() as u64,
            discarded: report.discarded.into(),
            outside,
            notes,
        }
    }

    /// Facts for `doctor`.
    pub fn inspected(&self) -> Inspected {
        let class = match self.store.class() {
            Class::Strong => "journaled: renames are atomic and ordered across a power cut",
            Class::Weak => "not journaled: commits are installed in two synced steps",
            Class::Memory => "in memory: nothing survives a power cut",
        };
        Inspected {
            root: HostPath::from(self.location.mount.as_path()),
            store: HostPath::from(self.location.store.as_path()),
            class: class.into(),
            pending: 0,
            bytes: disk_usage(&self.location.store),
            notes: self.recovery_notes(),
        }
    }

    /// The absolute host path of a path below the volume's root.
    pub fn absolute(&self, relative: &[u8]) -> Vec<u8> {
        let mut path = self.vol.mount_path.clone();
        path.push(b'/');
        path.extend_from_slice(relative);
        path
    }
}

/// One line of mountinfo(5), as far as it matters here.
struct Mount {
    id: u64,
    root: Vec<u8>,
    point: Vec<u8>,
    fs_type: Vec<u8>,
}

/// Finds the volume of `dir` and a place for its store.
pub fn locate(
    dir: &Path,
    store: Option<&Path>,
    uid: Uid,
    home: Option<&Path>,
) -> Result<Location, VolumeError> {
    let dir = std::fs::canonicalize(dir).map_err(|e| failed("find", dir, e))?;
    let dev = device(&dir)?;
    let table = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| failed("read", Path::new("/proc/self/mountinfo"), e))?;
    let mount = mount_point(&table, mount_id(&dir)?)
        .ok_or_else(|| VolumeError::NoMount { path: dir.display().to_string() })?;
    let store = match store {
        Some(given) => std::path::absolute(given).map_err(|e| failed("resolve", given, e))?,
        None => default_store(&mount, dev, uid, &dir, home)?,
    };
    Ok(Location { mount, dev, store })
}

/// Where the mount with this id is mounted.  By id, not by device: a btrfs subvolume has a device
/// number that the mount table does not know, and several mounts may show one device.
fn mount_point(table: &[u8], id: u64) -> Option<PathBuf> {
    let mount = table.split(|b| *b == b'\n').filter_map(parse_mount).find(|m| m.id == id)?;
    tracing::debug!(root = %String::from_utf8_lossy(&mount.root), "volume found");
    Some(PathBuf::from(std::ffi::OsString::from_vec(mount.point)))
}

/// Every mount point of this process's namespace; none if the table cannot be read.
pub fn mount_points() -> Vec<Vec<u8>> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|b| *b == b'\n').filter_map(parse_mount).map(|m| m.point).collect()
}

/// Where file systems of a type are mounted, the last mounted first.
pub(crate) fn mounts_of_type(table: &[u8], fs_type: &[u8]) -> Vec<PathBuf> {
    let mounts = table.split(|b| *b == b'\n').rev().filter_map(parse_mount);
    mounts
        .filter(|m| m.fs_type == fs_type)
        .map(|m| PathBuf::from(std::ffi::OsString::from_vec(m.point)))
        .collect()
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let mut fields = fields.skip(2);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let fs_type = fields.skip_while(|field| *field != b"-").nth(1).map(unescape);
    Some(Mount { id, root, point, fs_type: fs_type.unwrap_or_default() })
}

/// mountinfo writes space, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let ([b'\\', a, b, c, ..], true) = (rest, *first == b'\\') {
            let octal = |d: &u8| (b'0'..=b'7').contains(d).then(|| u32::from(d - b'0'));
            if let (Some(a), Some(b), Some(c)) = (octal(a), octal(b), octal(c)) {
                out.push((a * 64 + b * 8 + c) as u8);
                rest = &rest[4..];
                continue;
            }
        }
        out.push(*first);
        rest = tail;
    }
    out
}

/// Root keeps the store at the volume's root.  Anybody else in the own state directory if that is on
/// the volume, else next to the work: in the topmost directory above `dir` that is theirs.
fn default_store(
    mount: &Path,
    dev: u64,
    uid: Uid,
    dir: &Path,
    home: Option<&Path>,
) -> Result<PathBuf, VolumeError> {
    if uid == 0 {
        return Ok(mount.join(STORE_DIR));
    }
    if let Some(home) = home
        && device(home).is_ok_and(|d| d == dev)
        && owner(home) == Some(uid)
        && home.starts_with(mount)
    {
        return Ok(home.join(".local/state/systx"));
    }
    let own = dir
        .ancestors()
        .take_while(|a| a.starts_with(mount) && device(a).is_ok_and(|d| d == dev))
        .filter(|a| owner(a) == Some(uid))
        .last();
    match own {
        Some(top) => Ok(top.join(STORE_DIR)),
        None => Err(VolumeError::NoStore { mount: mount.display().to_string() }),
    }
}

/// Opens a volume: runs recovery if the store needs it.
pub fn open(location: &Location) -> Result<OpenVolume, VolumeError> {
    let root = open_root(&location.mount)?;
    let real = RealIo::from_dir(root).map_err(|e| failed("open", &location.mount, e))?;
    let real = Arc::new(real);
    let io: Arc<dyn Io> = real.clone();
    let relative = location
        .store
        .strip_prefix(&location.mount)
        .map_err(|_| VolumeError::NoStore { mount: location.mount.display().to_string() })?;
    if let Some(parent) = location.store.parent() {
        std::fs::create_dir_all(parent).map_err(|e| failed("create", parent, e))?;
    }
    let mut config = Config::new(relative.as_os_str().as_bytes());
    config.boot = boot_id();
    config.owner = Some(rustix::process::geteuid().as_raw());
    config.seed = seed();
    let refused = |error| VolumeError::Store { path: location.store.display().to_string(), error };
    let (store, recovery) = DirStore::open(config, io.clone()).map_err(refused)?;
    let mut mount = location.mount.as_os_str().as_bytes().to_vec();
    if mount == b"/" {
        mount.clear();
    }
    let hidden = HashSet::from([store.state_dir_id()]);
    let vol = Volume::new(io, mount, hidden)
        .map_err(|e| failed("look at", &location.mount, e.into()))?
        .with_locks(real);
    Ok(OpenVolume {
        location: location.clone(),
        vol: Arc::new(vol),
        store: Arc::new(store),
        recovery,
        counts: Counts::default(),
    })
}

/// Identity of this run of the kernel; zero if it does not tell.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without random bytes the identity of a new store is still distinct by its creation time.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

/// The volume's root without what is mounted below it; where the kernel does not allow that
/// (without privilege), the ordinary root, where mount points show the other file system and are
/// passed over.
fn open_root(mount: &Path) -> Result<OwnedFd, VolumeError> {
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, mount, flags) {
        Ok(fd) => Ok(fd),
        Err(Errno::PERM | Errno::NOSYS | Errno::INVAL | Errno::ACCESS) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(mount, flags, Mode::empty())
                .map_err(|e| failed("open", mount, e.into()))
        }
        Err(e) => Err(failed("open", mount, e.into())),
    }
}

/// Bytes allocated below a directory; what cannot be read counts as nothing.
fn disk_usage(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => disk_usage(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn device(path: &Path) -> Result<u64, VolumeError> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
        .map_err(|e| failed("look at", path, e.into()))?;
    Ok(rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

fn mount_id(path: &Path) -> Result<u64, VolumeError> {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)
        .map_err(|e| failed("look at", path, e.into()))?;
    Ok(stat.stx_mnt_id)
}

fn owner(path: &Path) -> Option<Uid> {
    rustix::fs::lstat(path).ok().map(|stat| stat.st_uid)
}

fn failed(action: &'static str, path: &Path, error: io::Error) -> VolumeError {
    VolumeError::Io { action, path: path.display().to_string(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 27 0:21 / /proc rw - proc proc rw\n\
        27 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 27 254:0 /srv/data /mnt/a\\040b rw - ext4 /dev/vda rw\n\
        41 27 7:1 / /mnt rw - xfs /dev/loop1 rw\n";

    #[test]
    fn a_mount_is_found_by_its_id() {
        let find = |id| mount_point(TABLE, id);
        assert_eq!(find(27), Some(PathBuf::from("/")));
        assert_eq!(find(40), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(find(41), Some(PathBuf::from("/mnt")));
        assert_eq!(find(9), None);
        assert_eq!(mounts_of_type(TABLE, b"xfs"), [PathBuf::from("/mnt")]);
        assert!(mounts_of_type(b"1 2 0:1 / /x rw\n", b"rw").is_empty());
    }

    #[test]
    fn broken_mount_tables_are_passed_over() {
        assert_eq!(mount_point(b"nonsense\nx 2 8:1 / /\n1\n\n", 1), None);
        assert_eq!(unescape(b"a\\0"), b"a\\0");
        assert_eq!(unescape(b"\\134"), b"\\");
    }
}
