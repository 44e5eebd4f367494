//! Finding an inode again that lost one of its names and lives on under another.
//!
//! The graveyard keeps no link to such an inode, or users would count one name too many. What undo
//! needs is any name that is left: it is looked for by inode number, in the graveyard (a later
//! transaction may have removed the last name), next to where the lost name was, and then
//! everywhere on the volume. Whatever is found must have the identity that was noted, birth time
//! included.

use crate::io::{Handle, HostId, Stat, Tree};
use std::io::{Error, Result};
use systx_base::Kind;

/// Names on the way down to something, its own last.
pub(crate) type Way = Vec<Vec<u8>>;

/// Where an inode was found.
pub(crate) enum Survivor {
    /// Below the graveyard: with one name in it, with more in a directory that was removed.
    Grave(Way),
    /// Below the volume's root.
    Tree(Way),
}

/// A name, and what it names.
type Named = (Vec<u8>, Stat);

/// What is searched for, and where.
pub(crate) struct Search<'a> {
    pub tree: &'a dyn Tree,
    pub grave: &'a Handle,
    /// The store's own directory, which is not looked into.
    pub own: HostId,
    pub id: HostId,
    pub kind: Kind,
    /// Whether the volume is an overlay. The listing of a directory there may tell the number that
    /// an object has in the upper layer, which is not the one that a look at it tells.
    pub overlay: bool,
}

impl Search<'_> {
    /// A name of the inode; `near` is a directory below the root to look into first.
    pub fn find(&self, near: Option<Way>) -> Result<Option<Survivor>> {
        let (root, grave) = (self.tree.root(), self.grave);
        if let Some((name, _)) = self.look_into(grave)?.0 {
            return Ok(Some(Survivor::Grave(vec![name])));
        }
        if let Some(mut way) = near
            && let Some(dir) = self.open(&root, &way)?
            && let Some((name, _)) = self.look_into(&dir)?.0
        {
            way.push(name);
            return Ok(Some(Survivor::Tree(way)));
        }
        if let Some(way) = self.walk(grave)? {
            return Ok(Some(Survivor::Grave(way)));
        }
        Ok(self.walk(&root)?.map(Survivor::Tree))
    }

    /// Everywhere below a directory, breadth first: what belongs together is often close together.
    fn walk(&self, top: &Handle) -> Result<Option<Way>> {
        let mut todo = std::collections::VecDeque::from([Way::new()]);
        while let Some(way) = todo.pop_front() {
            let Some(dir) = self.open(top, &way)? else { continue };
            let (found, below) = self.look_into(&dir)?;
            if let Some((name, _)) = found {
                return Ok(Some([&way[..], &[name]].concat()));
            }
            todo.extend(below.into_iter().map(|name| [&way[..], &[name]].concat()));
        }
        Ok(None)
    }

    /// A directory below another; `None` where it is gone, not ours to read, or another file
    /// system.
    fn open(&self, top: &Handle, way: &[Vec<u8>]) -> Result<Option<Handle>> {
        let mut dir = top.clone();
        for name in way {
            dir = match self.tree.open_dir(&dir, name) {
                Ok(dir) => dir,
                Err(e) if is_closed(&e) => return Ok(None),
                Err(e) => return Err(e),
            };
        }
        Ok(Some(dir))
    }

    /// The inode's name in one directory, and the names of directories in there; nothing in the
    /// store's own.
    fn look_into(&self, dir: &Handle) -> Result<(Option<Named>, Vec<Vec<u8>>)> {
        if self.tree.stat(dir).is_ok_and(|s| s.id == self.own) {
            return Ok((None, Vec::new()));
        }
        let (mut same, mut below) = (Vec::new(), Vec::new());
        let listed = self.tree.list(dir, &mut |item| {
            let may_be = self.overlay && item.kind == Some(self.kind);
            if item.ino == self.id.ino || may_be {
                same.push(item.name.to_vec());
            } else if item.kind.is_none_or(|kind| kind == Kind::Dir) {
                below.push(item.name.to_vec());
            }
            true
        });
        match listed {
            Err(e) if is_closed(&e) => return Ok((None, Vec::new())),
            other => other?,
        }
        for name in same {
            match self.tree.stat_at(dir, &name) {
                Ok(stat) if stat.id == self.id && stat.kind == self.kind => {
                    return Ok((Some((name, stat)), below));
                }
                Ok(_) => {}
                Err(e) if is_closed(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok((None, below))
    }
}

fn is_closed(e: &Error) -> bool {
    use libc::{EACCES, ELOOP, ENOENT, ENOTDIR, EPERM, ESTALE, EXDEV};
    matches!(e.raw_os_error(), Some(EACCES | ELOOP | ENOENT | ENOTDIR | EPERM | ESTALE | EXDEV))
}

#[cfg(test)]
mod tests;
