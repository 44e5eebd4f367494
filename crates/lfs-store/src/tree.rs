//! The committed tree of a volume, as it is or as it was at a moment.
//!
//! A handle is a number of an object, and a hold on it: the object stays as long as the handle
//! lives, also without a name.  Whoever drops the last clone of one may have any lock, so it only
//! says so; the next call lets go of the object.

use crate::error::io_error;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::io::Result;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, Time, mix};
use systx_lfs::format::{BLOCK, INO_MAX, Ino, ROOT};
use systx_lfs::{Attrs, Clock, Ops, Volume};
use systx_store::io::{
    Class, Fixed, FsInfo, Handle, HostId, ListItem, Moment, Moments, Open, Openers, Project, Stamp,
    Stat, Tree,
};
use systx_store::writeset::{Content, Origin, WriteSet};

/// What `statfs` says of such a volume.
const MAGIC: u64 = u32::from_le_bytes(*b"SXLF") as u64;

/// The names and beginnings of names of extended attributes that there are.
const LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

/// That a volume has attributes of that kind.
///
/// # Errors
/// As other file systems say it: `EOPNOTSUPP`, and `EINVAL` for a namespace without a name.
pub fn check_namespace(key: &[u8]) -> std::result::Result<(), Errno> {
    if LISTS.contains(&key) {
        return Ok(());
    }
    match NAMESPACES.iter().find_map(|space| key.strip_prefix(*space)) {
        None => Err(Errno::OPNOTSUPP),
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
    }
}

/// What nobody holds any longer.
enum Dropped {
    /// An object that a handle was for.
    Handle(Ino),
    /// As that, and it was open for its content.
    File(Ino),
    /// A staging slot.
    Slot(Ino),
}

/// A hold on an object.
struct Held {
    ino: Ino,
    is_open: bool,
    dropped: Sender<Dropped>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let ino = self.ino;
        let what = if self.is_open { Dropped::File(ino) } else { Dropped::Handle(ino) };
        // Where nobody receives it the volume is closed.
        let _ = self.dropped.send(what);
    }
}

/// The tree of an open volume.
pub struct VolumeTree {
    volume: Arc<Volume>,
    /// The moment that it shows; `None`: it is the tree as it is.
    moment: Option<systx_lfs::Moment>,
    clock: Clock,
    /// Device number.
    dev: u64,
    dropped: Sender<Dropped>,
    root: Handle,
    going: Mutex<Going>,
    /// See [`VolumeTree::ask_first`].
    asked: Mutex<Option<KnownOpeners>>,
}

/// Who has an object open, if that is known otherwise than by the handles of the tree.
type KnownOpeners = Arc<dyn Fn(&Stat) -> Option<Openers> + Send + Sync>;

struct Going {
    dropped: Receiver<Dropped>,
    /// How often files are open.
    open: HashMap<Ino, u32>,
    /// Slots that are to be removed.
    slots: Vec<Ino>,
}

/// Identity of an object.
pub fn id_of(ino: Ino, attrs: &Attrs) -> HostId {
    HostId::new(ino, attrs.btime)
}

/// Version of an object.
pub fn stamp_of(ino: Ino, attrs: &Attrs) -> Stamp {
    Stamp::new(id_of(ino, attrs), attrs.ctime, attrs.mtime, attrs.size)
}

impl VolumeTree {
    /// Of this volume, with its clock.
    pub(crate) fn new(volume: Arc<Volume>, clock: Clock) -> VolumeTree {
        let dev = u64::from(mix(number_of(&volume)) as u32 | 1);
        let (sender, dropped) = channel();
        let (open, slots) = Default::default();
        let going = Mutex::new(rank::OPEN, Going { dropped, open, slots });
        VolumeTree {
            volume,
            moment: None,
            clock,
            dev,
            dropped: sender,
            root: unheld(ROOT),
            going,
            asked: Mutex::new(rank::LEAF, None),
        }
    }

    /// The tree as it is now, whatever is changed afterwards.  What it shows stays without a hold.
    fn of_moment(&self) -> VolumeTree {
        let moment = Some(self.volume.moment());
        VolumeTree { moment, ..VolumeTree::new(Arc::clone(&self.volume), Arc::clone(&self.clock)) }
    }

    /// Looks at the committed tree.
    pub(crate) fn look<T>(
        &self,
        look: impl FnOnce(&mut Ops<'_>) -> systx_lfs::Result<T>,
    ) -> Result<T> {
        match &self.moment {
            Some(moment) => moment.look(look),
            None => self.volume.look(look),
        }
        .map_err(io_error)
    }

    /// Says that nobody has a slot any longer; it is removed by the next call.
    pub(crate) fn slot_dropped(&self) -> impl Fn(Ino) + Send + Sync + use<> {
        let dropped = self.dropped.clone();
        move |ino| drop(dropped.send(Dropped::Slot(ino)))
    }

    /// Lets go of what was dropped.  Returns slots that nobody has any longer.
    ///
    /// # Errors
    /// What reading the volume says.
    pub(crate) fn let_go(&self) -> Result<Vec<Ino>> {
        let mut released = Vec::new();
        let mut going = self.going.lock();
        while let Ok(dropped) = going.dropped.try_recv() {
            match dropped {
                Dropped::Slot(ino) => going.slots.push(ino),
                Dropped::Handle(ino) => released.push(ino),
                Dropped::File(ino) => {
                    released.push(ino);
                    if let Some(count) = going.open.get_mut(&ino) {
                        *count -= 1;
                        if *count == 0 {
                            going.open.remove(&ino);
                        }
                    }
                }
            }
        }
        let slots = std::mem::take(&mut going.slots);
        drop(going);
        for ino in released {
            self.volume.release(ino).map_err(io_error)?;
        }
        Ok(slots)
    }

    /// Slots that [`VolumeTree::let_go`] has returned, and that are still to be removed.
    pub(crate) fn to_be_removed(&self, slots: Vec<Ino>) {
        self.going.lock().slots.extend(slots);
    }

    /// Has a commit ask who has a file open where the volume is mounted, before it puts another
    /// object in its place.
    pub fn ask_first(&self, known: impl Fn(&Stat) -> Option<Openers> + Send + Sync + 'static) {
        *self.asked.lock() = Some(Arc::new(known));
    }

    /// The objects of a write set that programs of a mount have open, and that are to be replaced.
    /// The kernel may ask the volume before it says so: no lock may be held.
    pub(crate) fn open_elsewhere(&self, set: &WriteSet) -> HashSet<Ino> {
        let mut open = HashSet::new();
        let Some(asked) = self.asked.lock().clone() else { return open };
        for object in &set.objects {
            let whole = matches!(object.content, Content::Whole { .. } | Content::Slot(_));
            let (true, Origin::Host { stamp, .. }) = (whole, &object.origin) else { continue };
            let ino = stamp.id().number();
            // What is gone is found out by the installation.
            let Ok(stat) = self.look(|ops| self.stat_of(ops, ino)) else { continue };
            if !matches!(asked(&stat), None | Some(Openers::None)) {
                open.insert(ino);
            }
        }
        open
    }

    /// Whether somebody has the file open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.going.lock().open.contains_key(&ino)
    }

    /// A handle of an object.
    ///
    /// # Errors
    /// `ENOENT`.
    pub(crate) fn handle(&self, ino: Ino, is_open: bool) -> Result<Handle> {
        if self.moment.is_some() {
            return Ok(unheld(ino));
        }
        self.volume.hold(ino).map_err(io_error)?;
        if is_open {
            *self.going.lock().open.entry(ino).or_insert(0) += 1;
        }
        Ok(Handle::new(Held { ino, is_open, dropped: self.dropped.clone() }))
    }

    /// Slots stay for whoever removes them.
    fn tidy(&self) -> Result<()> {
        let slots = self.let_go()?;
        if !slots.is_empty() {
            self.to_be_removed(slots);
        }
        Ok(())
    }

    fn open(
        &self,
        at: &Handle,
        name: &[u8],
        is_open: bool,
        may: impl Fn(Kind) -> Result<()>,
    ) -> Result<Handle> {
        self.tidy()?;
        let at = ino_of(at);
        let (ino, kind) = self.look(|ops| {
            let ino = find(ops, at, name)?;
            Ok((ino, ops.attrs(ino)?.kind))
        })?;
        may(kind)?;
        self.handle(ino, is_open)
    }

    fn at<T>(
        &self,
        at: &Handle,
        name: &[u8],
        look: impl FnOnce(&mut Ops<'_>, Ino) -> systx_lfs::Result<T>,
    ) -> Result<T> {
        let at = ino_of(at);
        self.look(|ops| {
            let ino = find(ops, at, name)?;
            look(ops, ino)
        })
    }

    /// What a `statx` tells of an object.
    pub(crate) fn stat_of(&self, ops: &mut Ops<'_>, ino: Ino) -> systx_lfs::Result<Stat> {
        let attrs = ops.attrs(ino)?;
        let blocks = ops.blocks(ino)? * (BLOCK as u64 / 512);
        // The store's own directory, which nobody sees, is a name of the root.
        let hidden = u32::from(ino == ROOT);
        Ok(Stat {
            id: id_of(ino, &attrs),
            dev: self.dev,
            kind: attrs.kind,
            mode: attrs.mode,
            uid: attrs.uid,
            gid: attrs.gid,
            nlink: attrs.nlink.saturating_sub(hidden),
            size: attrs.size,
            blocks,
            blksize: BLOCK as u32,
            rdev: attrs.rdev,
            atime: attrs.atime,
            mtime: attrs.mtime,
            ctime: attrs.ctime,
        })
    }
}

/// What tells a volume from others.
pub(crate) fn number_of(volume: &Volume) -> u64 {
    let (id, _) = volume.identity();
    id.chunks(8).fold(0, |sum, bytes| {
        let word = bytes.iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        mix(sum ^ mix(word.wrapping_add(1)))
    })
}

/// A handle of what stays by itself.
fn unheld(ino: Ino) -> Handle {
    Handle::new(Held { ino, is_open: false, dropped: channel().0 })
}

impl Moments for VolumeTree {
    fn moment(&self) -> Arc<dyn Moment> {
        Arc::new(self.of_moment())
    }
}

impl Moment for VolumeTree {
    fn is_given_up(&self) -> bool {
        self.moment.as_ref().is_some_and(systx_lfs::Moment::is_given_up)
    }
}

/// The number that a handle is for.
pub(crate) fn ino_of(handle: &Handle) -> Ino {
    handle.inner::<Held>().ino
}

/// The path of a directory, from the root.
///
/// # Errors
/// It has none any more; the volume cannot be read.
pub fn path_of(ops: &mut Ops<'_>, dir: Ino) -> systx_lfs::Result<Vec<u8>> {
    let (mut at, mut names) = (dir, Vec::new());
    while at != ROOT {
        let up = ops.parent(at)?;
        let all = ops.list(up, None, usize::MAX)?;
        let found = all.into_iter().find(|(_, link)| link.ino == at);
        names.push(found.ok_or(systx_lfs::Error::NotFound)?.0);
        at = up;
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

/// What a name means, or the object itself.
fn find(ops: &mut Ops<'_>, at: Ino, name: &[u8]) -> systx_lfs::Result<Ino> {
    if name.is_empty() { Ok(at) } else { Ok(ops.lookup(at, name)?.ino) }
}

fn must(is: bool, errno: Errno) -> Result<()> {
    if is { Ok(()) } else { Err(errno.into()) }
}

impl Tree for VolumeTree {
    fn root(&self) -> Handle {
        // It has a name for ever, and needs no hold.
        self.root.clone()
    }
    fn open_dir(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open(at, name, false, |kind| must(kind == Kind::Dir, Errno::NOTDIR))
    }
    fn open_file(&self, at: &Handle, name: &[u8], _: Open) -> Result<Handle> {
        self.open(at, name, true, |kind| must(kind == Kind::File, Errno::INVAL))
    }
    fn pin(&self, at: &Handle, name: &[u8]) -> Result<Handle> {
        self.open(at, name, false, |_| Ok(()))
    }
    fn stat_at(&self, at: &Handle, name: &[u8]) -> Result<Stat> {
        self.at(at, name, |ops, ino| self.stat_of(ops, ino))
    }
    fn project(&self, _: &Handle, _: &[u8]) -> Result<Project> {
        Ok(Project::default())
    }
    fn stat(&self, h: &Handle) -> Result<Stat> {
        self.stat_at(h, b"")
    }
    fn fixed(&self, at: &Handle, name: &[u8]) -> Result<Fixed> {
        self.at(at, name, |ops, ino| ops.attrs(ino).map(|_| Fixed::No))
    }
    fn list(&self, dir: &Handle, each: &mut dyn FnMut(ListItem<'_>) -> bool) -> Result<()> {
        let dir = ino_of(dir);
        for (name, link) in self.look(|ops| ops.list(dir, None, usize::MAX))? {
            if !each(ListItem { name: &name, ino: link.ino, kind: Some(link.kind) }) {
                break;
            }
        }
        Ok(())
    }
    fn path_of(&self, dir: &Handle) -> Result<Vec<u8>> {
        self.look(|ops| path_of(ops, ino_of(dir)))
    }
    fn read_link(&self, at: &Handle, name: &[u8]) -> Result<Vec<u8>> {
        self.at(at, name, |ops, ino| ops.target(ino))
    }
    fn get_xattr(&self, at: &Handle, name: &[u8], key: &[u8]) -> Result<Vec<u8>> {
        match self.at(at, name, |ops, ino| ops.xattr(ino, key)) {
            Err(e) if e.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => {
                check_namespace(key)?;
                Err(e)
            }
            found => found,
        }
    }
    fn list_xattr(&self, at: &Handle, name: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.at(at, name, |ops, ino| ops.xattrs(ino))
    }
    fn read_at(&self, h: &Handle, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.at(h, b"", |ops, ino| ops.read_into(ino, offset, buf))
    }
    fn next_data(&self, h: &Handle, offset: u64) -> Result<Option<(u64, u64)>> {
        self.at(h, b"", |ops, ino| ops.next_data(ino, offset))
    }
    fn fs_info(&self) -> Result<FsInfo> {
        let space = self.volume.space();
        let free = space.free();
        Ok(FsInfo {
            magic: MAGIC,
            class: Class::Strong,
            bsize: BLOCK as u64,
            blocks: space.total,
            bfree: free,
            bavail: free,
            files: INO_MAX,
            ffree: INO_MAX,
            namelen: 255,
        })
    }
    fn longest_target(&self) -> usize {
        4095
    }
    fn shares_files(&self) -> bool {
        true
    }
    fn now(&self) -> Time {
        (self.clock)()
    }
}
