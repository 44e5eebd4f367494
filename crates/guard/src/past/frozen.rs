//! The file system as a snapshot sees it: another [`Tree`], below guarded directories of the moment
//! when the snapshot began, elsewhere what is there.
//!
//! Every call reads what is there and looks afterwards whether that has been changed, see
//! [`super`].

use super::{Pinned, Snapshot, overlay, pages_of};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashSet};
use std::io::Result;
use std::sync::Arc;
use systx_base::{Kind, Time};
use systx_store::io::{Fixed, FsInfo, Handle, HostId, ListItem, Open, Project, Stat, Tree};
use systx_vfs::snapshot::{Frozen, Moment};

/// What the view of a snapshot of the directories `roots` of a file system is made over.
pub(crate) fn frozen(now: Arc<dyn Tree>, snapshot: Snapshot, roots: HashSet<HostId>) -> Frozen {
    let (snapshot, roots) = (Arc::new(snapshot), Arc::new(roots));
    let past = past_tree(now, Arc::clone(&snapshot), Arc::clone(&roots));
    Frozen::new(Arc::new(past), Box::new(Kept(snapshot)), roots)
}

/// The tree that the view works on.
pub(super) fn past_tree(
    now: Arc<dyn Tree>,
    snapshot: Arc<Snapshot>,
    roots: Arc<HashSet<HostId>>,
) -> impl Tree {
    PastTree { now, snapshot, roots }
}

struct Kept(Arc<Snapshot>);

impl Moment for Kept {
    fn is_given_up(&self) -> bool {
        self.0.is_given_up()
    }
    fn bare<'h>(&self, handle: &'h Handle) -> &'h Handle {
        bare(handle)
    }
}

/// The handle of the file system below that one of a snapshot stands for.
fn bare(handle: &Handle) -> &Handle {
    &handle.inner::<At>().handle
}

/// What is inside a [`Handle`] of this implementation.
struct At {
    handle: Handle,
    id: HostId,
    kind: Kind,
    /// It is of the snapshot.
    past: bool,
}

struct PastTree {
    now: Arc<dyn Tree>,
    snapshot: Arc<Snapshot>,
    roots: Arc<HashSet<HostId>>,
}

fn gone() -> std::io::Error {
    Errno::NOENT.into()
}

fn is(error: &std::io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

impl PastTree {
    fn wrap(&self, handle: Handle, stat: &Stat, past: bool) -> At {
        let past = past || self.roots.contains(&stat.id);
        At { handle, id: stat.id, kind: stat.kind, past }
    }

    /// What a name means.
    fn find(&self, at: &Handle, name: &[u8]) -> Result<At> {
        let at = at.inner::<At>();
        if name.is_empty() {
            return Ok(At { handle: at.handle.clone(), ..*at });
        }
        let there = self.now.pin(&at.handle, name);
        if at.past
            && let Some(meaning) = self.snapshot.meaning(at.id, name)?
        {
            let Pinned { handle, id, kind, .. } = &*meaning.ok_or_else(gone)?;
            return Ok(At { handle: handle.clone(), id: *id, kind: *kind, past: true });
        }
        let there = there?;
        let stat = self.now.stat(&there)?;
        Ok(self.wrap(there, &stat, at.past))
    }

    /// Attributes as they were, of an object whose attributes were just read.
    fn as_it_was(&self, now: Stat, past: bool) -> Result<Stat> {
        if !past {
            return Ok(now);
        }
        Ok(self.snapshot.stat(now.id)?.unwrap_or(now))
    }
}

impl Tree for PastTree {
    fn root(&self) -> Handle {
        let root = self.now.root();
        let id = self.now.stat(&root).map(|stat| stat.id).unwrap_or_default();
        let past = self.roots.contains(&id);
        Handle::new(At { handle: root, id, kind: Kind::Dir, past })
    }

    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        let found = self.find(at, name)?;
        if found.kind == Kind::Dir { Ok(Handle::new(found)) } else { Err(Errno::NOTDIR.into()) }
    }

    fn open_file(&self, at: &Handle, name: &[u8], _how: Open) -> Result<Handle> {
        let found = self.find(at, name)?;
        if found.kind != Kind::File {
            return Err(Errno::INVAL.into());
        }
        let handle = self.now.open_file(&found.handle, b"", Open::Read)?;
        Ok(Handle::new(At { handle, ..found }))
    }

    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.find(at, name).map(Handle::new)
    }

    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed> {
        let found = self.find(at, name)?;
        self.now.fixed(&found.handle, b"")
    }

    fn project(&self, at: &Handle, name: &[u8]) -> Result<Project> {
        let found = self.find(at, name)?;
        self.now.project(&found.handle, b"")
    }

    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        let dir = at.inner::<At>();
        if name.is_empty() {
            return self.stat(at);
        }
        let there = self.now.stat_at(&dir.handle, name);
        if dir.past
            && let Some(meaning) = self.snapshot.meaning(dir.id, name)?
        {
            let pinned = meaning.ok_or_else(gone)?;
            return self.as_it_was(self.now.stat(&pinned.handle)?, true);
        }
        let there = there?;
        self.as_it_was(there, dir.past || self.roots.contains(&there.id))
    }

    fn stat(&self, h: &Handle) -> Result<Stat> {
        let at = h.inner::<At>();
        self.as_it_was(self.now.stat(&at.handle)?, at.past)
    }

    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        let at = dir.inner::<At>();
        if !at.past {
            return self.now.list(&at.handle, each);
        }
        let mut names: BTreeMap<Box<[u8]>, (u64, Option<Kind>)> = BTreeMap::new();
        let listed = self.now.list(&at.handle, &mut |item| {
            names.insert(item.name.into(), (item.ino, item.kind));
            true
        });
        match listed {
            // It is removed: all that it had was changed.
            Err(e) if is(&e, Errno::NOENT) => {}
            other => other?,
        }
        for (name, meaning) in self.snapshot.meanings(at.id)? {
            match meaning {
                Some(pinned) => drop(names.insert(name, (pinned.id.number(), Some(pinned.kind)))),
                None => drop(names.remove(&name)),
            }
        }
        for (name, (ino, kind)) in &names {
            if !each(ListItem { name, ino: *ino, kind: *kind }) {
                break;
            }
        }
        Ok(())
    }

    fn path_of(&self, _: &Handle) -> Result<Vec<u8>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        // A link never changes where it points to.
        let found = self.find(at, name)?;
        self.now.read_link(&found.handle, b"")
    }

    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        let found = self.find(at, name)?;
        let there = self.now.get_xattr(&found.handle, b"", key);
        if found.past
            && let Some(all) = self.snapshot.xattrs(found.id)?
        {
            return all.get(key).cloned().ok_or_else(|| Errno::NODATA.into());
        }
        there
    }

    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        let found = self.find(at, name)?;
        let there = self.now.list_xattr(&found.handle, b"");
        if found.past
            && let Some(all) = self.snapshot.xattrs(found.id)?
        {
            return Ok(all.keys().cloned().collect());
        }
        there
    }

    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        let at = h.inner::<At>();
        let there = self.now.read_at(&at.handle, buf, offset)?;
        if !at.past {
            return Ok(there);
        }
        // Whatever of the content was changed, the attributes were kept first.
        let Some(stat) = self.snapshot.stat(at.id)? else { return Ok(there) };
        let left = stat.size.saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let buf = &mut buf[..len];
        if there < len {
            buf[there..].fill(0);
        }
        for piece in self.snapshot.pages(at.id, pages_of(offset, len as u64))? {
            overlay(buf, offset, &piece)?;
        }
        Ok(len)
    }

    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        let at = h.inner::<At>();
        let there = self.now.next_data(&at.handle, offset);
        if at.past
            && let Some(stat) = self.snapshot.stat(at.id)?
            && self.snapshot.has_pages(at.id)?
        {
            // Where the holes were is not kept.
            return Ok((offset < stat.size).then_some((offset, stat.size)));
        }
        there
    }

    fn fs_info(&self) -> Result<FsInfo> {
        self.now.fs_info()
    }

    fn now(&self) -> Time {
        self.now.now()
    }

    fn shares_files(&self) -> bool {
        self.now.shares_files()
    }
    fn longest_target(&self) -> usize {
        self.now.longest_target()
    }
}
