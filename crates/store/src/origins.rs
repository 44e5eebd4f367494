//! Where the objects of a write set are before it is installed.

use crate::env::Env;
use crate::io::Handle;
use crate::writeset::{Ix, Origin, WriteSet};
use std::io::{Error, Result};

/// Finds them by their paths, and opens each directory once.
pub(crate) struct Origins<'a> {
    env: Env<'a>,
    set: &'a WriteSet,
    dirs: Vec<Option<Handle>>,
}

impl<'a> Origins<'a> {
    pub fn new(env: Env<'a>, set: &'a WriteSet) -> Origins<'a> {
        Origins { env, set, dirs: vec![None; set.objects.len()] }
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
        if let Some(dir) = &self.dirs[ix.0 as usize] {
            return Ok(Some(dir.clone()));
        }
        let Some((parent, name)) = self.place(ix)? else { return Ok(None) };
        let dir = if name.is_empty() {
            parent
        } else {
            match self.env.io.open_dir(&parent, name) {
                Ok(dir) => dir,
                Err(e) if is_gone(&e) => return Ok(None),
                Err(e) => return Err(e),
            }
        };
        self.dirs[ix.0 as usize] = Some(dir.clone());
        Ok(Some(dir))
    }
}

/// Whether there is nothing at a name any more.
pub(crate) fn is_gone(e: &Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::EXDEV))
}
