//! What is not protected: files and directories that are outside of transactions (decision 0050).
//!
//! A list of marks, each a path and what was there when it was marked.  It is the user's, in the
//! [`crate::ledger`]'s directory, and others read root's as well.  It is read when a transaction
//! begins, so that it is the same for all daemons of a user; what it says of a path holds only if
//! the same object is still there.  It is written under another name and renamed, all of it durable
//! on return; who changes it has a lock of the directory.
//!
//! A file that cannot be believed is none: then everything is protected.

use crate::ledger;
use crate::protocol::{Failure, FailureKind, HostPath};
use crate::volume::Location;
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use systx_base::Uid;
use systx_protocol::replaced::replace;

const VERSION: u32 = 1;
/// Longer than any list that makes sense.
const MAX_BYTES: u64 = 1 << 20;
/// More are no marks that a person has made, and each is a mount in each view.
const MARKS_MAX: usize = 256;
/// Its name in the ledger's directory.
const FILE: &str = "unprotected";
/// How long somebody else may change the list.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
/// Its times of birth are those of the layers.
const OVERLAY_MAGIC: i128 = 0x794c_7630;

/// The mark of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Where it was.
    pub path: HostPath,
    /// Inode number.
    pub ino: u64,
    /// Seconds and nanoseconds of its birth, where the file system knows that.
    pub born: Option<(i64, u32)>,
}

impl Mark {
    /// Of what is there now.
    pub(crate) fn of(path: &Path, found: &Found) -> Mark {
        Mark { path: HostPath::from(path), ino: found.ino, born: found.born }
    }

    /// What it means, if that is still there.
    pub(crate) fn found(&self) -> Option<Found> {
        let found = look(self.path.as_path()).ok()?;
        let born = found.born == self.born || found.born.is_none() || self.born.is_none();
        (born && found.ino == self.ino && !found.is_mount && found.can_be_marked()).then_some(found)
    }

    fn makes_sense(&self) -> bool {
        let path = self.path.as_path();
        path.is_absolute()
            && path != Path::new("/")
            && !self.path.0.contains(&0)
            && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
            && path.components().collect::<PathBuf>().as_os_str() == path.as_os_str()
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    ino: u64,
    born: Option<(i64, u32)>,
    kind: FileType,
    /// Its owner.
    pub uid: u32,
    /// Id of the mount that shows it.
    pub mount: u64,
    /// It is the root of a mount.
    pub is_mount: bool,
}

impl Found {
    /// Whether anything can be mounted over it that shows it.
    pub(crate) fn can_be_marked(&self) -> bool {
        matches!(self.kind, FileType::Directory | FileType::RegularFile)
    }
}

/// Opens what is at a path that leads over no symbolic link, for nothing but to look at it.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// What is at a path that leads over no symbolic link.
pub(crate) fn look(path: &Path) -> Result<Found, Errno> {
    let fd = open(path)?;
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let seen = rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, mask)?;
    let kind = FileType::from_raw_mode(seen.stx_mode.into());
    if kind == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    let has_births = i128::from(rustix::fs::fstatfs(&fd)?.f_type) != OVERLAY_MAGIC
        && StatxFlags::from_bits_retain(seen.stx_mask).contains(StatxFlags::BTIME);
    Ok(Found {
        ino: seen.stx_ino,
        born: has_births.then_some((seen.stx_btime.tv_sec, seen.stx_btime.tv_nsec)),
        kind,
        uid: seen.stx_uid,
        mount: seen.stx_mnt_id,
        is_mount: seen.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

/// The list, as it travels.
#[derive(Serialize, Deserialize)]
struct List {
    version: u32,
    marks: Vec<Mark>,
}

/// See the module.
pub(crate) struct Unprotected {
    /// The user's own list.
    own: PathBuf,
    /// Root's, for everybody else.
    of_root: Option<PathBuf>,
    /// The daemon's user.
    uid: Uid,
}

impl Unprotected {
    /// The list in a ledger's directory, and root's.
    pub(crate) fn new(ledger: &Path) -> Unprotected {
        let uid = rustix::process::geteuid();
        let of_root = (!uid.is_root()).then(|| Path::new(ledger::OF_ROOT).join(FILE));
        Unprotected { own: ledger.join(FILE), of_root, uid: uid.as_raw() }
    }

    /// The marks of the user's own list.
    pub(crate) fn own(&self) -> Result<Vec<Mark>, Failure> {
        read(&self.own, self.uid).map_err(|e| self.unusable(&e))
    }

    /// All marks, whether what they mean is still there or not; what of them is not believed, as
    /// sentences.
    pub(crate) fn marks(&self) -> (Vec<Mark>, Vec<String>) {
        let own = (&self.own, self.uid);
        let lists = std::iter::once(own).chain(self.of_root.iter().map(|list| (list, 0)));
        let (mut marks, mut notes) = (Vec::new(), Vec::new());
        for (list, owner) in lists {
            match read(list, owner) {
                Ok(more) => marks.extend(more),
                Err(e) => notes.push(format!(
                    "{} is not used, everything that it names is protected: {e}",
                    list.display()
                )),
            }
        }
        marks.sort_by(|a, b| a.path.cmp(&b.path));
        (marks, notes)
    }

    /// What is not protected now, for a transaction on volumes at these locations, by path; and
    /// sentences for the user.
    ///
    /// # Errors
    /// It has to do with a volume's store.
    pub(crate) fn beside<'a>(
        &self,
        locations: impl Iterator<Item = &'a Location>,
    ) -> Result<(Vec<HostPath>, Vec<String>), Failure> {
        let (mut marks, notes) = self.marks();
        marks.retain(|mark| mark.found().is_some());
        marks.dedup_by(|later, kept| later.path == kept.path);
        let now: Vec<HostPath> = marks.into_iter().map(|mark| mark.path).collect();
        for Location { store, .. } in locations {
            if let Some(path) = now.iter().find(|path| overlap(path.as_path(), store)) {
                let store = store.display();
                let text = format!("{path} is not protected, and has to do with the store {store}");
                let failure = Failure::new(FailureKind::Invalid, text);
                return Err(protect_first(failure, path.as_path()));
            }
        }
        Ok((now, notes))
    }

    /// The mark because of which a path is not protected: the nearest.
    pub(crate) fn mark_of(&self, path: &Path) -> Option<PathBuf> {
        nearest(&self.marks().0, path)
    }

    /// Something in a directory that is not protected, or that directory. Each begin of a thread's
    /// transaction asks, so the lists are read once.
    pub(crate) fn any_in(&self, dir: &Path) -> Option<PathBuf> {
        let (marks, _) = self.marks();
        let mut inside = marks.iter().filter(|mark| mark.path.as_path().starts_with(dir));
        let inside = inside.find(|mark| mark.found().is_some());
        inside.map(|mark| mark.path.as_path().to_owned()).or_else(|| nearest(&marks, dir))
    }

    /// Marks what is found at a path, instead of what was marked there before.
    ///
    /// # Errors
    /// There are too many marks, or the list cannot be written.
    pub(crate) fn add(&self, path: &Path, found: &Found) -> Result<(), Failure> {
        self.change(|marks| {
            marks.retain(|mark| mark.path.as_path() != path);
            if marks.len() >= MARKS_MAX {
                let text = format!("{MARKS_MAX} files and directories are not protected already");
                return Err(Failure::new(FailureKind::Invalid, text).hint(
                    "mark a directory that holds several of them; systx protect lists them",
                ));
            }
            marks.push(Mark::of(path, found));
            Ok(())
        })
    }

    /// Removes the mark of a path; what it means need not be there.
    ///
    /// # Errors
    /// The list cannot be written.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), Failure> {
        self.change(|marks| {
            marks.retain(|mark| mark.path.as_path() != path);
            Ok(())
        })
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Mark>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let failed = |e: Error| {
            let text = format!("cannot write {}: {e}", self.own.display());
            Failure::new(FailureKind::Io, text).path(self.own.as_path())
        };
        let dir = self.own.parent().unwrap_or(Path::new("/"));
        let lock = File::open(dir).map_err(failed)?;
        self.lock(&lock)?;
        let mut marks = self.own()?;
        let before = marks.clone();
        change(&mut marks)?;
        if marks == before {
            return Ok(());
        }
        marks.sort_by(|a, b| a.path.cmp(&b.path));
        let list = List { version: VERSION, marks };
        let bytes = serde_json::to_vec(&list).map_err(|e| failed(e.into()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(failed(Error::new(ErrorKind::FileTooLarge, "the paths are too long")));
        }
        // Root's list holds for everybody.
        let mode = if self.uid == 0 { 0o644 } else { 0o600 };
        if mode & 0o4 != 0 {
            let search = std::fs::Permissions::from_mode(0o711);
            std::fs::set_permissions(dir, search).map_err(failed)?;
        }
        replace(&self.own, &bytes, mode).map_err(failed)
    }

    /// Waits for others who change the list, but not for ever.
    fn lock(&self, dir: &File) -> Result<(), Failure> {
        let until = Instant::now() + LOCK_LIMIT;
        loop {
            match rustix::fs::flock(dir, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(e) => {
                    let text = format!("cannot lock the list {}: {e}", self.own.display());
                    return Err(Failure::new(FailureKind::Busy, text).path(self.own.as_path()));
                }
            }
        }
    }

    fn unusable(&self, e: &Error) -> Failure {
        let list = self.own.display();
        let text = format!("the list of what is not protected, {list}, is not used: {e}");
        let hint = format!("until then everything is protected; rm {list} begins a new one");
        Failure::new(FailureKind::State, text).hint(hint).path(self.own.as_path())
    }
}

/// The nearest mark because of which a path is not protected, of marks by path.
fn nearest(marks: &[Mark], path: &Path) -> Option<PathBuf> {
    let mut above = marks.iter().rev().filter(|mark| path.starts_with(mark.path.as_path()));
    let mark = above.find(|m| m.found().is_some_and(|f| holds(m.path.as_path(), &f, path)))?;
    Some(mark.path.as_path().to_owned())
}

/// Whether a path is in what was found at `mark`, and not in something that is mounted in there.
fn holds(mark: &Path, found: &Found, path: &Path) -> bool {
    path.starts_with(mark) && look(path).is_ok_and(|there| there.mount == found.mount)
}

/// Whether one of two paths leads over the other one.
pub(crate) fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Nothing that is below `mark` can be `what` is wanted.
pub(crate) fn not_protected(what: &Path, mark: &Path) -> Failure {
    let because = match what == mark {
        true => String::new(),
        false => format!(", as {}", mark.display()),
    };
    let text = format!("{} is not protected{because}: it is in no transaction", what.display());
    protect_first(Failure::new(FailureKind::Invalid, text), mark)
}

/// What helps.
pub(crate) fn protect_first(failure: Failure, mark: &Path) -> Failure {
    failure.hint(format!("systx protect on {}", mark.display())).path(mark)
}

/// The marks that a file has; none if it is not there.
fn read(path: &Path, owner: u32) -> Result<Vec<Mark>, Error> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        // To others root's is open only once there is one.
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(Errno::ACCESS) if owner == 0 => return Ok(Vec::new()),
        Err(e) => return Err(e.into()),
    };
    let invalid = |why: String| Error::new(ErrorKind::InvalidData, why);
    let meta = file.metadata()?;
    if !meta.is_file() || meta.uid() != owner || meta.mode() & 0o022 != 0 {
        return Err(invalid("it is not a file that only its owner may write".into()));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    decode(&bytes).map_err(invalid)
}

fn decode(bytes: &[u8]) -> Result<Vec<Mark>, String> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err("it is too long".into());
    }
    let list: List = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    if list.version != VERSION {
        return Err(format!("it is of version {}, this is {VERSION}", list.version));
    }
    if list.marks.len() > MARKS_MAX {
        return Err("it has too many marks".into());
    }
    match list.marks.iter().find(|mark| !mark.makes_sense()) {
        Some(mark) => Err(format!("a mark makes no sense: {:?}", mark.path)),
        None => Ok(list.marks),
    }
}

#[cfg(test)]
mod tests;
