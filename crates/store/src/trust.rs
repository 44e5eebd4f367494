//! Which directory counts as a store: one in which nobody else can have put anything.
//!
//! Recovery does what the records of a store say, with the rights of its process.  So before
//! anything is made, changed or believed, every part of the way to the directory, the directory,
//! and the files in it are looked at, each through a handle that is used from then on
//! ([`crate::layout::Layout::make`]):
//!
//! - the way: directories of root, of the user, or of the owner of the volume's root; nobody else
//!   may write in them, unless they are sticky, where what belongs to the user cannot be renamed or
//!   removed by others;
//! - the directory: the user's own, not to be written by others, and either a store or empty;
//! - in it: directories and files of that user, which others cannot write, the files with one name
//!   each.
//!
//! Staged and displaced objects are not looked at: they are data, never instructions.

use crate::io::{Handle, Io, Stat};
use crate::layout::{found, names};
use std::io::{Error, Result};
use std::sync::{Arc, OnceLock};
use systx_base::{Gid, Kind, Uid};

/// Whose store it has to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The user.
    pub uid: Uid,
    /// The user's own group: what it may write, the user has let it write.
    pub gid: Gid,
}

/// Which stores are this machine's.
pub trait Known: Send + Sync {
    /// Whether the records of the store with this number may be installed.
    fn knows(&self, store: u64) -> bool;
    /// A store gets this number: durable when this returns.
    ///
    /// # Errors
    /// It cannot be noted; then nothing is committed there.
    fn note(&self, store: u64) -> Result<()>;
}

/// What a [`crate::Config`] has of it.
#[derive(Clone, Default)]
pub struct Registry {
    known: Option<Arc<dyn Known>>,
    noted: Arc<OnceLock<()>>,
}

impl Registry {
    /// Asks this one.
    pub fn new(known: Arc<dyn Known>) -> Registry {
        Registry { known: Some(known), noted: Arc::default() }
    }

    pub(crate) fn knows(&self, store: u64) -> bool {
        self.known.as_ref().is_none_or(|known| known.knows(store))
    }

    /// Notes a store, once.
    pub(crate) fn note(&self, store: u64) -> Result<()> {
        if self.noted.get().is_none() {
            self.known.as_ref().map_or(Ok(()), |known| known.note(store))?;
            let _ = self.noted.set(());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry")
    }
}

/// Why a directory is no store.
#[derive(Debug)]
pub(crate) enum Refused {
    /// A call failed.
    Io(Error),
    /// The directory is somebody else's.
    Foreign(Uid),
    /// Somebody else could have put something there.
    Unsafe(Vec<u8>, String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Io(error)
    }
}

type Checked = std::result::Result<(), Refused>;

const STICKY: u32 = 0o1000;
const FILES: [&[u8]; 7] =
    [b"lock", b"super.0", b"super.1", b"applied", b"spare", b"orders.0", b"orders.1"];
const DIRS: [&[u8]; 9] = [b"j", b"s", b"t", b"g", b"h", b"d", b"o", b"p", b"conflict"];
/// Directories whose files recovery and undo believe.
const BELIEVED: [&[u8]; 3] = [b"j", b"h", b"d"];

fn refuse(at: &[u8], why: impl Into<String>) -> Checked {
    Err(Refused::Unsafe(at.to_vec(), why.into()))
}

/// A directory on the way, `at` below the volume's root, which belongs to `top`.
pub(crate) fn way(at: &[u8], dir: &Stat, top: Uid, owner: Owner) -> Checked {
    if ![0, owner.uid, top].contains(&dir.uid) {
        return refuse(at, format!("belongs to user {}, who could exchange the store", dir.uid));
    }
    let by_group = dir.mode & 0o020 != 0 && dir.gid != owner.gid;
    if dir.mode & STICKY == 0 && (dir.mode & 0o002 != 0 || by_group) {
        let why = "can be written by others, who could exchange the store: take that right away \
                   (chmod go-w), or make it sticky (chmod +t)";
        return refuse(at, format!("(mode {:04o}) {why}", dir.mode));
    }
    Ok(())
}

/// The store's directory, `path` below the volume's root, with what is in it.
pub(crate) fn store(io: &dyn Io, path: &[u8], state: &Handle, owner: Owner) -> Checked {
    let stat = io.stat(state)?;
    if stat.uid != owner.uid {
        return Err(Refused::Foreign(stat.uid));
    }
    closed(path, &stat)?;
    let all = names(io, state)?;
    let ours = |name: &Vec<u8>| FILES.contains(&&name[..]) || DIRS.contains(&&name[..]);
    if !all.iter().any(|name| name == b"lock")
        && let Some(other) = all.iter().find(|name| !ours(name))
    {
        let other = String::from_utf8_lossy(other);
        return refuse(path, format!("is no store, and not empty: there is {other:?} in it"));
    }
    for name in &all {
        inside(io, &[path, b"/", name].concat(), state, name, owner)?;
        if BELIEVED.contains(&&name[..]) {
            let dir = io.open_dir(state, name)?;
            for file in names(io, &dir)? {
                inside(io, &[path, b"/", name, b"/", &file].concat(), &dir, &file, owner)?;
            }
        }
    }
    Ok(())
}

fn inside(io: &dyn Io, at: &[u8], dir: &Handle, name: &[u8], owner: Owner) -> Checked {
    let Some(stat) = found(io.stat_at(dir, name))? else { return Ok(()) };
    if stat.uid != owner.uid {
        return refuse(at, format!("belongs to user {}", stat.uid));
    }
    match stat.kind {
        Kind::Dir => {}
        Kind::File if stat.nlink == 1 => {}
        Kind::File => return refuse(at, "is a file with further names"),
        _ => return refuse(at, "is neither a file nor a directory"),
    }
    closed(at, &stat)
}

/// Nobody else can write there.
fn closed(at: &[u8], stat: &Stat) -> Checked {
    if stat.mode & 0o022 == 0 {
        return Ok(());
    }
    let why = "can be written by others: what is in it may not be yours; if nobody else has \
               written there, take that right away (chmod go-w), else choose another place";
    refuse(at, format!("(mode {:04o}) {why}", stat.mode))
}

#[cfg(test)]
mod tests;
