//! Where the objects of a write set are before it is installed.

use crate::env::Env;
use crate::io::Handle;
use crate::open_dirs::OpenDirs;
use crate::writeset::{Ix, Origin, WriteSet};
use std::io::{Error, Result};

/// Finds them by their paths.
pub(crate) struct Origins<'a> {
    env: Env<'a>,
    set: &'a WriteSet,
    dirs: OpenDirs,
}

impl<'a> Origins<'a> {
    pub fn new(env: Env<'a>, set: &'a WriteSet) -> Origins<'a> {
        Origins { env, set, dirs: OpenDirs::default() }
    }

    /// The directory that an object was in, and its name there; `None` for what is new, or in a
    /// directory that is gone.
    pub fn place(&mut self, ix: Ix) -> Result<Option<(Handle, &'a [u8])>> {
        match &self.set.object(ix).origin {
            Origin::Host { parent, name, .. } => Ok(self.dir(*parent)?.map(|dir| (dir, &name[..]))),
            Origin::Grave { name, .. } => Ok(Some((self.env.layout.grave.clone(), name))),
            Origin::Root => Ok(Some((self.env.io.root(), b""))),
            Origin::New(_) => Ok(None),
        }
    }

    /// The directory that an object is; `None` as for [`Origins::place`].
    pub fn dir(&mut self, ix: Ix) -> Result<Option<Handle>> {
        let above = self.dirs.closed_above(ix, |ix| match &self.set.object(ix).origin {
            Origin::Host { parent, .. } => Some(*parent),
            _ => None,
        });
        for dir in above.into_iter().rev() {
            self.open(dir)?;
        }
        self.open(ix)
    }

    /// The same, where the directory above, if it can be, is open.
    fn open(&mut self, ix: Ix) -> Result<Option<Handle>> {
        if let Some(dir) = self.dirs.get(ix) {
            return Ok(Some(dir));
        }
        let (parent, name) = match &self.set.object(ix).origin {
            Origin::Root => (Some(self.env.io.root()), None),
            Origin::Host { parent, name, .. } => (self.dirs.get(*parent), Some(name)),
            Origin::Grave { name, .. } => (Some(self.env.layout.grave.clone()), Some(name)),
            Origin::New(_) => (None, None),
        };
        let dir = match (parent, name) {
            (None, _) => return Ok(None),
            (Some(root), None) => root,
            (Some(parent), Some(name)) => match self.env.io.open_dir(&parent, name) {
                Ok(dir) => dir,
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e),
            },
        };
        self.dirs.put(ix, dir.clone());
        Ok(Some(dir))
    }
}

/// Whether there is nothing at a name any more.
pub(crate) fn is_gone(e: &Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EXDEV))
}
