//! Operations that say what is to be, for whoever has the outcome of many operations: in any
//! order, and with nothing refused on the way that is right in the end.  The commit checks the
//! end: no directory is removed with something in it, and none lies below itself.

use super::{Ops, link_to};
use crate::error::{Error, Result};
use crate::format::{BLOCK, CHUNK, INO_MAX, Ino};
use crate::object::{Attrs, Node, TARGET_MAX, is_component};
use crate::ops::Shape;
use crate::txn::Staged;
use std::collections::BTreeMap;
use systx_base::Kind;

const PAGE: u64 = BLOCK as u64;

impl Ops<'_> {
    /// Makes an object that has no name yet.  One that gets none is not there after the commit.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::NameTooLong`] for the target of a link, [`Error::NoSpace`].
    pub fn make(&mut self, shape: &Shape) -> Result<Ino> {
        let symlink = shape.kind == Kind::Symlink;
        if shape.mode & !0o7777 != 0 || symlink == shape.target.is_empty() {
            return Err(Error::Invalid("mode or target"));
        }
        if shape.target.len() > TARGET_MAX {
            return Err(Error::NameTooLong);
        }
        let now = self.now;
        let maker = self.maker.as_mut().ok_or(Error::ReadOnly)?;
        // Numbers of a chunk that cannot be read are left out: nobody knows which of them are used.
        let ino = match self.tree.check_chunk(*maker.next_ino / CHUNK) {
            Err(e) if e.is_damage() => (*maker.next_ino / CHUNK + 1) * CHUNK,
            done => done.map(|()| *maker.next_ino)?,
        };
        if ino >= INO_MAX {
            return Err(Error::NoSpace);
        }
        *maker.next_ino = ino + 1;
        let attrs = Attrs {
            kind: shape.kind,
            mode: shape.mode,
            uid: shape.uid,
            gid: shape.gid,
            nlink: 0,
            size: shape.target.len() as u64,
            rdev: shape.rdev,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let target = shape.target.clone();
        let node = Node { attrs, xattrs: BTreeMap::new(), parent: 0, target };
        self.txn.created.insert(ino, node);
        self.txn.links.insert(ino, 0);
        Ok(ino)
    }

    /// What a name stands for from here on, whatever it stood for.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NotFound`], [`Error::Invalid`] for the name; what reading can
    /// say.
    pub fn set_name(&mut self, dir: Ino, name: &[u8], ino: Option<Ino>) -> Result<()> {
        self.writable()?;
        if !is_component(name) {
            return Err(Error::Invalid("name"));
        }
        let old = self.entry(dir, name)?;
        let new = match ino {
            Some(ino) => Some(link_to(ino, self.attrs(ino)?.kind)),
            None => None,
        };
        if old == new {
            return Ok(());
        }
        self.bind(dir, name, new)?;
        if let Some(old) = old {
            self.touch(old.ino);
        }
        if let Some(new) = new {
            self.moved(new, dir);
        }
        Ok(())
    }

    /// A name is gone that nobody has used: the object that it stood for keeps its change time.
    ///
    /// # Errors
    /// As [`Ops::set_name`].
    pub fn forget_name(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        self.bind(dir, name, None)
    }

    /// The first page of a file from one on that takes space.
    pub(super) fn next_page(&mut self, ino: Ino, from: u64) -> Result<Option<u64>> {
        let is_hole = |staged: &Staged| matches!(staged, Staged::Hole);
        let own = self.txn.pages.get(&ino);
        let above = own.and_then(|own| own.range(from..).find(|(_, s)| !is_hole(s)));
        let above = above.map(|(page, _)| *page);
        if self.txn.created.contains_key(&ino) {
            return Ok(above);
        }
        let cut = self.txn.cuts.get(&ino).copied().unwrap_or(u64::MAX);
        let stays = |page: &u64| own.and_then(|own| own.get(page)).is_none_or(|s| !is_hole(s));
        let pages = self.tree.get(ino)?.pages();
        let below = pages.and_then(|pages| {
            let mut all = pages.range(from..cut.max(from)).map(|(page, _)| *page);
            all.find(|page| stays(page))
        });
        Ok(above.into_iter().chain(below).min())
    }

    /// The next range of a file at or after an offset that takes space, as its first byte and the
    /// one after its last; `None` if nothing does up to the end.
    ///
    /// # Errors
    /// As [`Ops::attrs`].
    pub fn next_data(&mut self, ino: Ino, offset: u64) -> Result<Option<(u64, u64)>> {
        let size = self.attrs(ino)?.size;
        let Some(first) = self.next_page(ino, offset / PAGE)?.filter(|p| p * PAGE < size) else {
            return Ok(None);
        };
        let mut end = first + 1;
        while self.next_page(ino, end)? == Some(end) {
            end += 1;
        }
        let start = offset.max(first * PAGE);
        Ok((start < size).then_some((start, (end * PAGE).min(size))))
    }

    /// Blocks that the content of an object takes.
    ///
    /// # Errors
    /// As [`Ops::attrs`].
    pub fn blocks(&mut self, ino: Ino) -> Result<u64> {
        let own = self.txn.pages.get(&ino);
        let base = match self.txn.created.contains_key(&ino) {
            true => None,
            false => self.tree.get(ino)?.pages(),
        };
        let mut blocks = base.map_or(0, BTreeMap::len) as u64;
        for (page, staged) in own.into_iter().flatten() {
            blocks -= u64::from(base.is_some_and(|base| base.contains_key(page)));
            blocks += u64::from(!staged.is_hole());
        }
        Ok(blocks)
    }
}
