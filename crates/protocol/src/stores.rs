//! Where the stores of a user are.  The list is of those that are not where a look at the mount
//! table finds them: given by
//! `--store`, or in the topmost directory of the user's on a file system that belongs to somebody
//! else.
//!
//! A list of them is kept, so that `recover --all` misses none.  It is a hint: whoever reads it
//! looks at each place itself, and a medium that is not plugged in today stays on it.  It is
//! written when a store is opened for the first time, before anything is committed there.

use crate::replaced::replace;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use systx_base::Uid;

/// Name of the store's directory at the root of a volume, when root owns it.
pub const STORE_DIR: &str = ".systx";

/// More than that is not read: some ten thousand paths.
const LONGEST: u64 = 1 << 20;

/// The store of an ordinary user on the file system of the home directory.
#[must_use]
pub fn own_store(home: &Path) -> PathBuf {
    home.join(".local/state/systx")
}

/// The list of one user.
#[derive(Clone, Debug)]
pub struct Noted {
    dir: PathBuf,
}

impl Noted {
    /// That of a user; `None` if there is no place for it.
    pub fn of(uid: Uid, home: Option<&Path>) -> Option<Noted> {
        // While the machine starts, root has no home.
        let dir = if uid == 0 { PathBuf::from("/var/lib") } else { home?.join(".local/state") };
        Some(Noted { dir })
    }

    fn file(&self) -> PathBuf {
        self.dir.join("systx.stores")
    }

    /// The stores on it.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn stores(&self) -> io::Result<Vec<PathBuf>> {
        let file = match File::open(self.file()) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes)?;
        // What is behind the last NUL was cut off.
        let mut lines: Vec<&[u8]> = bytes.split(|b| *b == 0).collect();
        lines.pop();
        let path = |line: &&[u8]| PathBuf::from(OsString::from_vec(line.to_vec()));
        Ok(lines.iter().map(path).filter(|path| path.is_absolute()).collect())
    }

    /// Puts a store on it; durable on return.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&self, store: &Path) -> io::Result<()> {
        if self.stores()?.iter().any(|noted| noted == store) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = File::from(rustix::fs::open(&self.dir, flags, Mode::empty())?);
        // One at a time, and the list is replaced as a whole.
        flock(&dir, FlockOperation::LockExclusive)?;
        let mut all = self.stores()?;
        all.retain(|noted| noted != store && !is_gone(noted));
        all.push(store.to_owned());
        let mut bytes: Vec<u8> =
            all.iter().flat_map(|path| [path.as_os_str().as_bytes(), &[0]].concat()).collect();
        // The oldest are at the front.
        while bytes.len() as u64 > LONGEST {
            let first = bytes.iter().position(|b| *b == 0).map_or(bytes.len(), |at| at + 1);
            bytes.drain(..first);
        }
        replace(&self.file(), &bytes, 0o600)
    }
}

/// The directory that it was in is there, and it is not.
fn is_gone(store: &Path) -> bool {
    let missing =
        |path: &Path| path.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    missing(store) && store.parent().is_some_and(|parent| parent.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_noted_once_and_for_as_long_as_it_may_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let noted = Noted::of(1, Some(dir.path())).unwrap();
        let made = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        };
        assert!(noted.stores().unwrap().is_empty());
        let (kept, gone) = (made("with \n a line/.systx"), made("gone/.systx"));
        let absent = PathBuf::from("/nowhere/on/a/stick/.systx");
        for store in [&kept, &gone, &absent, &kept] {
            noted.note(store).unwrap();
        }
        assert_eq!(noted.stores().unwrap(), [kept.clone(), gone.clone(), absent.clone()]);
        std::fs::remove_dir(&gone).unwrap();
        let last = made("last/.systx");
        noted.note(&last).unwrap();
        assert_eq!(noted.stores().unwrap(), [kept, absent, last]);
    }

    #[test]
    fn what_is_in_the_list_may_be_anything() {
        let dir = tempfile::tempdir().unwrap();
        let noted = Noted::of(1, Some(dir.path())).unwrap();
        std::fs::create_dir_all(&noted.dir).unwrap();
        std::fs::write(noted.file(), b"relative\0/a\0\0/cut off").unwrap();
        assert_eq!(noted.stores().unwrap(), [PathBuf::from("/a")]);
        // Longer than is read: what fits counts, and it does not grow.
        let many = "/0123456789abcdef\0".repeat(70_000);
        std::fs::write(noted.file(), many).unwrap();
        noted.note(Path::new("/b")).unwrap();
        assert_eq!(noted.stores().unwrap().last(), Some(&PathBuf::from("/b")));
        assert!(noted.file().metadata().unwrap().len() <= LONGEST);
    }

    #[test]
    fn several_at_once_lose_none() {
        let dir = tempfile::tempdir().unwrap();
        let noted = Noted::of(1, Some(dir.path())).unwrap();
        std::thread::scope(|s| {
            for n in 0..8 {
                let noted = &noted;
                s.spawn(move || noted.note(Path::new(&format!("/no/{n}"))).unwrap());
            }
        });
        assert_eq!(noted.stores().unwrap().len(), 8);
    }
}
