//! Operations on names.

use super::{Ops, link_to};
use crate::error::{Error, Result};
use crate::format::{INO_MAX, Ino, ROOT};
use crate::object::{Link, NAME_MAX, Node, is_component};
use crate::txn::Rebind;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use systx_base::{Gid, Kind, Uid};

/// What a new object is.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Type.
    pub kind: Kind,
    /// Permission bits, 07777.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Number of a device.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
}

impl Shape {
    /// A file, directory, pipe or socket of root.
    pub fn new(kind: Kind, mode: u32) -> Shape {
        Shape { kind, mode, uid: 0, gid: 0, rdev: 0, target: Vec::new() }
    }

    /// A symbolic link of root.
    pub fn symlink(target: &[u8]) -> Shape {
        Shape { target: target.to_vec(), ..Shape::new(Kind::Symlink, 0o777) }
    }
}

/// What becomes of the names of a rename, as the flags of renameat2(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rename {
    /// The target is replaced.
    Replace,
    /// The target must not exist.
    NoReplace,
    /// Both exist, and change places.
    Exchange,
    /// The target is replaced, and a character device 0:0 takes the place of the source.
    Whiteout,
    /// The target must not exist, and a character device 0:0 takes the place of the source.
    WhiteoutNoReplace,
}

impl Ops<'_> {
    /// What a name stands for.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDir`], [`Error::NameTooLong`]; what reading can say.
    pub fn lookup(&mut self, dir: Ino, name: &[u8]) -> Result<Link> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        self.entry(dir, name)?.ok_or(Error::NotFound)
    }

    pub(super) fn entry(&mut self, dir: Ino, name: &[u8]) -> Result<Option<Link>> {
        if let Some(rebind) = self.txn.entries.get(&dir).and_then(|e| e.get(name)) {
            return Ok(rebind.new);
        }
        if let Some(node) = self.txn.created.get(&dir) {
            return if node.attrs.kind == Kind::Dir { Ok(None) } else { Err(Error::NotDir) };
        }
        let entries = self.tree.get(dir)?.entries().ok_or(Error::NotDir)?;
        Ok(entries.get(name).copied())
    }

    /// Up to `max` entries after the name `after`, in the order of their bytes.
    ///
    /// # Errors
    /// [`Error::NotDir`], [`Error::NotFound`]; what reading can say.
    pub fn list(
        &mut self,
        dir: Ino,
        after: Option<&[u8]>,
        max: usize,
    ) -> Result<Vec<(Vec<u8>, Link)>> {
        let none = BTreeMap::new();
        let base = match self.txn.created.get(&dir) {
            Some(node) if node.attrs.kind == Kind::Dir => &none,
            Some(_) => return Err(Error::NotDir),
            None => self.tree.get(dir)?.entries().ok_or(Error::NotDir)?,
        };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = (from, Bound::Unbounded);
        let empty = BTreeMap::new();
        let own = self.txn.entries.get(&dir).unwrap_or(&empty);
        let mut below = base.range::<[u8], _>(range).peekable();
        let mut above = own.range::<[u8], _>(range).peekable();
        let mut found = Vec::new();
        while found.len() < max {
            let (name, link) = match (below.peek(), above.peek()) {
                (None, None) => break,
                (Some((b, _)), Some((a, _))) if b < a => pair(below.next()),
                (Some(_), None) => pair(below.next()),
                (b, Some((a, _))) => {
                    if b.is_some_and(|(b, _)| b == a) {
                        below.next();
                    }
                    let Some((name, rebind)) = above.next() else { break };
                    (name.clone(), rebind.new)
                }
            };
            found.extend(link.map(|link| (name, link)));
        }
        Ok(found)
    }

    pub(crate) fn bind(&mut self, dir: Ino, name: &[u8], new: Option<Link>) -> Result<()> {
        let old = self.entry(dir, name)?;
        let entries = self.txn.entries.entry(dir).or_default();
        entries.entry(name.to_vec()).or_insert(Rebind { old, new }).new = new;
        for (link, by) in [(old, -1), (new, 1)] {
            let Some(link) = link else { continue };
            // A directory counts its own dot and its subdirectories: see `names_change`.
            let (ino, by) = match link.kind {
                Kind::Dir => {
                    *self.txn.links.entry(dir).or_insert(0) += by;
                    (link.ino, by * 2)
                }
                _ => (link.ino, by),
            };
            *self.txn.links.entry(ino).or_insert(0) += by;
        }
        let now = self.now;
        let patch = self.patch(dir);
        (patch.mtime, patch.ctime) = (Some(now), Some(now));
        Ok(())
    }

    /// Whether a new name can be made in a directory.
    fn place(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        if !is_component(name) {
            return Err(Error::Invalid("name"));
        }
        let node = self.node(dir)?;
        if node.attrs.kind != Kind::Dir {
            return Err(Error::NotDir);
        }
        // Removed, and somebody still has it open.
        if node.attrs.nlink == 0 { Err(Error::NotFound) } else { Ok(()) }
    }

    /// Makes an object and a name for it.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotDir`], [`Error::NotFound`], [`Error::NameTooLong`],
    /// [`Error::Invalid`]; what reading can say.
    pub fn create(&mut self, dir: Ino, name: &[u8], shape: &Shape) -> Result<Ino> {
        self.place(dir, name)?;
        if self.entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        let ino = self.make(shape)?;
        if shape.kind == Kind::Dir
            && let Some(node) = self.txn.created.get_mut(&ino)
        {
            node.parent = dir;
        }
        self.bind(dir, name, Some(link_to(ino, shape.kind)))?;
        Ok(ino)
    }

    /// Makes another name for an object.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Exists`], [`Error::NotFound`] also for an object that has lost
    /// its last name; as [`Ops::create`].
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        self.place(dir, name)?;
        let attrs = self.attrs(ino)?;
        if attrs.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        if attrs.nlink == 0 {
            return Err(Error::NotFound);
        }
        if self.entry(dir, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.bind(dir, name, Some(link_to(ino, attrs.kind)))?;
        self.touch(ino);
        Ok(())
    }

    /// Puts in an object that was made elsewhere, with its number; names come later.
    pub(crate) fn adopt(&mut self, ino: Ino, node: Node) -> Result<()> {
        let maker = self.maker.as_mut().ok_or(Error::ReadOnly)?;
        if ino >= INO_MAX {
            return Err(Error::Invalid("number of an object"));
        }
        *maker.next_ino = (ino + 1).max(*maker.next_ino);
        self.txn.created.insert(ino, node);
        Ok(())
    }

    pub(super) fn touch(&mut self, ino: Ino) {
        let now = self.now;
        self.patch(ino).ctime = Some(now);
    }

    /// Removes a name of anything but a directory.  Returns what it stood for.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::NotFound`]; as [`Ops::create`].
    pub fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.place(dir, name)?;
        let link = self.lookup(dir, name)?;
        if link.kind == Kind::Dir {
            return Err(Error::IsDir);
        }
        self.bind(dir, name, None)?;
        self.touch(link.ino);
        Ok(link.ino)
    }

    /// Removes an empty directory.  Returns its number.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NotDir`], [`Error::NotFound`]; as [`Ops::create`].
    pub fn rmdir(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        self.place(dir, name)?;
        let link = self.lookup(dir, name)?;
        if link.kind != Kind::Dir {
            return Err(Error::NotDir);
        }
        if !self.list(link.ino, None, 1)?.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.bind(dir, name, None)?;
        self.touch(link.ino);
        Ok(link.ino)
    }

    /// Renames, as renameat2(2).
    ///
    /// # Errors
    /// As there; [`Error::Invalid`] for a directory that would come to lie below itself.
    pub fn rename(&mut self, from: (Ino, &[u8]), to: (Ino, &[u8]), how: Rename) -> Result<()> {
        self.place(from.0, from.1)?;
        self.place(to.0, to.1)?;
        let source = self.lookup(from.0, from.1)?;
        let target = self.entry(to.0, to.1)?;
        self.not_below(source, to.0)?;
        if how == Rename::Exchange {
            let target = target.ok_or(Error::NotFound)?;
            self.not_below(target, from.0)?;
            if source.ino != target.ino {
                self.bind(from.0, from.1, Some(target))?;
                self.bind(to.0, to.1, Some(source))?;
                self.moved(source, to.0);
                self.moved(target, from.0);
            }
            return Ok(());
        }
        let whiteout = matches!(how, Rename::Whiteout | Rename::WhiteoutNoReplace);
        if let Some(target) = target {
            if matches!(how, Rename::NoReplace | Rename::WhiteoutNoReplace) {
                return Err(Error::Exists);
            }
            if source.ino == target.ino {
                return Ok(());
            }
            match (source.kind == Kind::Dir, target.kind == Kind::Dir) {
                (true, false) => return Err(Error::NotDir),
                (false, true) => return Err(Error::IsDir),
                (true, true) if !self.list(target.ino, None, 1)?.is_empty() => {
                    return Err(Error::NotEmpty);
                }
                _ => {}
            }
        }
        self.bind(from.0, from.1, None)?;
        self.bind(to.0, to.1, Some(source))?;
        self.moved(source, to.0);
        if let Some(target) = target {
            self.touch(target.ino);
        }
        if whiteout {
            self.create(from.0, from.1, &Shape::new(Kind::CharDev, 0))?;
        }
        Ok(())
    }

    pub(super) fn moved(&mut self, link: Link, dir: Ino) {
        self.touch(link.ino);
        if link.kind == Kind::Dir {
            self.patch(link.ino).parent = Some(dir);
        }
    }

    /// A directory must not come to lie in or below itself.
    pub(crate) fn not_below(&mut self, moved: Link, dir: Ino) -> Result<()> {
        if moved.kind != Kind::Dir {
            return Ok(());
        }
        let mut at = dir;
        let mut seen = BTreeSet::new();
        while at != ROOT && seen.insert(at) {
            if at == moved.ino {
                return Err(Error::Invalid("a directory below itself"));
            }
            at = self.parent(at)?;
        }
        if at == ROOT && moved.ino != ROOT {
            Ok(())
        } else {
            Err(Error::Invalid("a directory below itself"))
        }
    }
}

fn pair(entry: Option<(&Vec<u8>, &Link)>) -> (Vec<u8>, Option<Link>) {
    entry.map_or((Vec::new(), None), |(name, link)| (name.clone(), Some(*link)))
}
