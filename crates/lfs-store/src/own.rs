//! The store's own directory in its volume.
//!
//! It is an object of the tree as others are, so a commit and what is kept of it are one write, and
//! a snapshot or a stream of the volume has both.  Views hide it.

use systx_base::Kind;
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::{Error, Ops, Result, Shape};

/// The name of the store's own directory in the root of its volume.
pub const NAME: &[u8] = b".systx";

/// The name in there of what was committed.
pub(crate) const HISTORY: &[u8] = b"h";

/// Its directories.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub top: Ino,
    /// What was displaced.
    pub grave: Ino,
    /// What was committed.
    pub history: Ino,
    /// Staging slots.
    pub slots: Ino,
    /// Parts of joint commits that others decide.
    pub prepared: Ino,
    /// What this store has decided for others.
    pub decisions: Ino,
    /// The numbers that orders are at.
    pub orders: Ino,
}

impl Own {
    /// Finds them, and makes what is not there.
    pub fn find(ops: &mut Ops<'_>) -> Result<Own> {
        let top = dir(ops, ROOT, NAME)?;
        Ok(Own {
            top,
            grave: dir(ops, top, b"g")?,
            history: dir(ops, top, HISTORY)?,
            slots: dir(ops, top, b"s")?,
            prepared: dir(ops, top, b"p")?,
            decisions: dir(ops, top, b"d")?,
            orders: dir(ops, top, b"o")?,
        })
    }
}

fn dir(ops: &mut Ops<'_>, at: Ino, name: &[u8]) -> Result<Ino> {
    match ops.lookup(at, name) {
        Ok(link) if link.kind == Kind::Dir => Ok(link.ino),
        Ok(_) => Err(Error::NotDir),
        Err(Error::NotFound) => ops.create(at, name, &Shape::new(Kind::Dir, 0o700)),
        Err(error) => Err(error),
    }
}

/// The whole content of a file of the store's.
pub(crate) fn read(ops: &mut Ops<'_>, ino: Ino) -> Result<Vec<u8>> {
    let len = ops.attrs(ino)?.size;
    ops.read(ino, 0, usize::try_from(len).map_err(|_| Error::TooLarge)?)
}

/// Makes a file of the store's with this content.
pub(crate) fn write(ops: &mut Ops<'_>, dir: Ino, name: &[u8], bytes: &[u8]) -> Result<Ino> {
    let ino = ops.make(&Shape::new(Kind::File, 0o600))?;
    ops.write(ino, 0, bytes)?;
    ops.set_name(dir, name, Some(ino))?;
    Ok(ino)
}

/// Takes a name away with all that is below it.
pub(crate) fn clear(ops: &mut Ops<'_>, dir: Ino, name: &[u8]) -> Result<()> {
    let link = match ops.lookup(dir, name) {
        Ok(link) => link,
        Err(Error::NotFound) => return Ok(()),
        Err(error) => return Err(error),
    };
    if link.kind == Kind::Dir {
        for (below, _) in ops.list(link.ino, None, usize::MAX)? {
            clear(ops, link.ino, &below)?;
        }
    }
    ops.forget_name(dir, name)
}

/// Blocks of the content of an object and of all that is below it.
pub(crate) fn blocks(ops: &mut Ops<'_>, ino: Ino) -> Result<u64> {
    if ops.attrs(ino)?.kind != Kind::Dir {
        return ops.blocks(ino);
    }
    let mut sum = 0;
    for (_, link) in ops.list(ino, None, usize::MAX)? {
        sum += blocks(ops, link.ino)?;
    }
    Ok(sum)
}
