//! The simulated kernel's memory: the volatile state, the disk, open files, the clock; and the
//! primitive changes of which every call consists.  Each primitive changes the volatile state and
//! notes on the disk what may reach it ([`crate::crash`]).

use crate::crash::{Change, Disk, Entry, Life, Profile, Unit};
use crate::state::{Body, Inode, Meta, PAGE, Page, ROOT, State, Xattrs};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systx_base::{Kind, Time};
use systx_store::Instance;
use systx_store::io::{Class, Openers};

/// When the simulated clock begins.
pub const CLOCK: i64 = 1_700_000_000;
/// The first inode number that a file gets.
const FIRST_INO: u64 = 11;

/// What is recorded while calls are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Record {
    /// Nothing.
    #[default]
    Off,
    /// The instant right before each sync takes effect: enough for power cuts.
    Syncs,
    /// Also the instant after every other change: for the death of processes.
    Calls,
}

/// An instant of a run.
#[derive(Clone)]
pub struct Point {
    /// What programs see.
    pub now: State,
    /// What a power cut would find.
    pub disk: Disk,
    /// See [`crate::SimFs::mark`].
    pub mark: u64,
    /// The number of calls made so far.
    pub call: u64,
    /// The call before which, or after which, this is.
    pub label: String,
    pub(crate) tick: u64,
    pub(crate) instance: Instance,
}

pub(crate) struct World {
    pub(crate) now: State,
    pub(crate) disk: Disk,
    pub(crate) tick: u64,
    pub(crate) instance: Instance,
    pub(crate) call: u64,
    pub(crate) mark: u64,
    pub(crate) record: Record,
    pub(crate) points: Vec<Point>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) opens: BTreeMap<u64, u32>,
    pub(crate) locked: BTreeSet<u64>,
    pub(crate) openers: BTreeMap<u64, Openers>,
    pub(crate) capacity: u64,
    pub(crate) max_inodes: u64,
    /// Bytes of values of extended attributes that one inode has room for.
    pub(crate) xattr_room: usize,
    next_ino: u64,
    entries: Vec<Entry>,
}

pub(crate) type Res<T> = Result<T, Errno>;

impl World {
    pub(crate) fn new(now: State, disk: Disk, tick: u64, instance: Instance) -> World {
        World {
            now,
            disk,
            tick,
            instance,
            call: 0,
            mark: 0,
            record: Record::Off,
            points: Vec::new(),
            trace: None,
            opens: BTreeMap::new(),
            locked: BTreeSet::new(),
            openers: BTreeMap::new(),
            capacity: 1 << 30,
            max_inodes: 1 << 30,
            xattr_room: usize::MAX,
            next_ino: FIRST_INO,
            entries: Vec::new(),
        }
    }

    /// The clock: a millisecond further with every call that changes something or asks for it.
    pub(crate) fn time(&self) -> Time {
        Time {
            secs: CLOCK + (self.tick / 1000) as i64,
            nanos: (self.tick % 1000) as u32 * 1_000_000,
        }
    }

    fn weak(&self) -> bool {
        self.disk.profile.class == Class::Weak
    }

    fn profile(&self) -> Profile {
        self.disk.profile
    }

    /// Starts a mutating call.
    pub(crate) fn begin(&mut self) {
        self.tick += 1;
        self.call += 1;
    }

    /// Ends a mutating call.
    pub(crate) fn end(&mut self, label: impl FnOnce() -> String) {
        if !self.entries.is_empty() {
            let entries = std::mem::take(&mut self.entries);
            self.disk.push(Unit::Namespace, self.tick, Change::Namespace(entries));
        }
        self.note(label, self.record == Record::Calls);
    }

    /// Notes a call in the trace, and the instant if `point`.
    pub(crate) fn note(&mut self, label: impl FnOnce() -> String, point: bool) {
        if self.trace.is_none() && !point {
            return;
        }
        let label = label();
        if let Some(trace) = &mut self.trace {
            trace.push(label.clone());
        }
        if point {
            self.points.push(self.point(label));
        }
    }

    pub(crate) fn point(&self, label: String) -> Point {
        Point {
            now: self.now.clone(),
            disk: self.disk.clone(),
            mark: self.mark,
            call: self.call,
            label,
            tick: self.tick,
            instance: self.instance,
        }
    }

    // ---- lookups ----

    pub(crate) fn inode(&self, ino: u64) -> Res<&Inode> {
        self.now.get(ino).map(|i| &**i).ok_or(Errno::NOENT)
    }

    /// What `name` in `dir` names.
    pub(crate) fn find(&self, dir: u64, name: &[u8]) -> Res<u64> {
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG);
        }
        let entries = self.inode(dir)?.entries().ok_or(Errno::NOTDIR)?;
        entries.get(name).copied().ok_or(Errno::NOENT)
    }

    /// As [`World::find`]; `None` for an absent name.
    pub(crate) fn find_opt(&self, dir: u64, name: &[u8]) -> Res<Option<u64>> {
        match self.find(dir, name) {
            Ok(ino) => Ok(Some(ino)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Fails unless entries may be made in `dir`: a removed directory takes none.
    pub(crate) fn may_add(&self, dir: u64) -> Res<()> {
        if self.inode(dir)?.nlink == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// Whether `dir` is `top` or lies below it.
    pub(crate) fn below(&self, mut dir: u64, top: u64) -> bool {
        loop {
            if dir == top {
                return true;
            }
            match self.now.get(dir).map(|i| &i.body) {
                Some(Body::Dir { parent, .. }) if *parent != dir => dir = *parent,
                _ => return false,
            }
        }
    }

    pub(crate) fn used_blocks(&self) -> u64 {
        self.now.inodes.values().map(|i| i.blocks()).sum()
    }

    /// Fails with `ENOSPC` unless `blocks` and `inodes` more fit.
    pub(crate) fn room(&self, blocks: u64, inodes: u64) -> Res<()> {
        let blocks_full = blocks > 0
            && self.capacity < 1 << 30
            && self.used_blocks().saturating_add(blocks) > self.capacity;
        let inodes_full = self.now.inodes.len() as u64 + inodes > self.max_inodes;
        if blocks_full || (inodes > 0 && inodes_full) { Err(Errno::NOSPC) } else { Ok(()) }
    }

    // ---- changes ----

    fn change(&mut self, ino: u64) -> &mut Inode {
        self.now.get_mut(ino).expect("callers looked the inode up under the same lock")
    }

    /// Changes attributes; moves the change time.
    pub(crate) fn set_meta(&mut self, ino: u64, f: impl FnOnce(&mut Meta)) {
        let time = self.time();
        let inode = self.change(ino);
        f(&mut inode.meta);
        inode.meta.ctime = time;
        let meta = inode.meta;
        self.disk.push(Unit::Meta(ino), self.tick, Change::Meta(meta));
    }

    /// Moves the times that a namespace call moves.
    pub(crate) fn touch(&mut self, ino: u64, mtime: bool) {
        let time = self.time();
        let Some(inode) = self.now.get_mut(ino) else { return };
        inode.meta.ctime = time;
        if mtime {
            inode.meta.mtime = time;
        }
        let meta = inode.meta;
        let unit = Unit::Meta(ino);
        if self.profile().implicit_times {
            self.disk.push(unit, self.tick, Change::Meta(meta));
        } else if let Some(last) = self.disk.pending.get_mut(&unit).and_then(|v| v.last_mut()) {
            last.change = Change::Meta(meta);
        } else if let Some(inode) = self.disk.image.get_mut(ino) {
            inode.meta = meta;
        }
    }

    pub(crate) fn set_xattrs(&mut self, ino: u64, f: impl FnOnce(&mut Xattrs)) {
        let inode = self.change(ino);
        f(Arc::make_mut(&mut inode.xattrs));
        let xattrs = inode.xattrs.clone();
        self.disk.push(Unit::Xattrs(ino), self.tick, Change::Xattrs(xattrs));
    }

    /// What every change of a file's data does to its capabilities.
    pub(crate) fn strip_capability(&mut self, ino: u64) {
        const CAPABILITY: &[u8] = b"security.capability";
        if self.now.get(ino).is_some_and(|i| i.xattrs.contains_key(CAPABILITY)) {
            self.set_xattrs(ino, |x| {
                x.remove(CAPABILITY);
            });
        }
    }

    /// Replaces a page; `None` makes it a hole.
    pub(crate) fn set_page(&mut self, ino: u64, n: u64, page: Option<Arc<Page>>) {
        let Body::File { pages, reserved } = &mut self.change(ino).body else { return };
        reserved.remove(&n);
        let old = match &page {
            Some(page) => pages.insert(n, page.clone()),
            None => pages.remove(&n),
        };
        if page.is_none() && old.is_none() {
            return;
        }
        if page.is_none() && self.weak() {
            // The block may be somebody else's before the inode on disk lets go of it.  The garbage
            // is a version of an earlier time, so that it does not replace, nor is replaced.
            let garbage = Change::Page(Some(Page::garbage()));
            self.disk.push(Unit::Page(ino, n), self.tick, garbage);
            self.tick += 1;
        }
        self.disk.push(Unit::Page(ino, n), self.tick, Change::Page(page));
    }

    pub(crate) fn page(&self, ino: u64, n: u64) -> Option<&Arc<Page>> {
        match &self.now.get(ino)?.body {
            Body::File { pages, .. } => pages.get(&n),
            _ => None,
        }
    }

    /// Allocates blocks that were not.
    pub(crate) fn reserve(&mut self, ino: u64, first: u64, last: u64) {
        if let Body::File { pages, reserved } = &mut self.change(ino).body {
            reserved.extend((first..=last).filter(|n| !pages.contains_key(n)));
        }
        // Unwritten blocks read as zeros like holes do: nothing to note for a power cut.
    }

    /// Gives blocks back that were allocated and never written.
    pub(crate) fn unreserve(&mut self, ino: u64, pages: impl std::ops::RangeBounds<u64>) {
        if let Body::File { reserved, .. } = &mut self.change(ino).body {
            reserved.retain(|n| !pages.contains(n));
        }
    }

    /// Sets or removes an entry.  Link counts, parents and times are the caller's.
    pub(crate) fn bind(&mut self, dir: u64, name: &[u8], target: Option<u64>) {
        if let Some(entries) = self.change(dir).entries_mut() {
            match target {
                Some(ino) => entries.insert(name.to_vec(), ino),
                None => entries.remove(name),
            };
        }
        if self.weak() {
            let unit = Unit::Entry(dir, name.to_vec());
            self.disk.push(unit, self.tick, Change::Entry(target));
        } else {
            self.entries.push((dir, name.to_vec(), target));
        }
    }

    pub(crate) fn add_links(&mut self, ino: u64, n: i32) {
        let inode = self.change(ino);
        inode.nlink = inode.nlink.saturating_add_signed(n);
    }

    pub(crate) fn set_parent(&mut self, ino: u64, dir: u64) {
        if let Body::Dir { parent, .. } = &mut self.change(ino).body {
            *parent = dir;
        }
    }

    /// Makes an inode with a name, as open with `O_CREAT`, mkdir, symlink and mknod do.
    pub(crate) fn make(
        &mut self,
        dir: u64,
        name: &[u8],
        kind: Kind,
        mode: u32,
        body: Body,
    ) -> Res<u64> {
        if self.find_opt(dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.may_add(dir)?;
        self.room(u64::from(kind == Kind::Dir), 1)?;
        let above = self.inode(dir)?.meta;
        let set_gid = above.mode & 0o2000;
        let time = self.time();
        let ino = self.free_ino();
        let inherited = if kind == Kind::Dir { set_gid } else { 0 };
        let meta = Meta {
            mode: mode & 0o7777 | inherited,
            uid: 0,
            gid: if set_gid != 0 { above.gid } else { 0 },
            size: if let Body::Symlink(target) = &body { target.len() as u64 } else { 0 },
            atime: time,
            mtime: time,
            ctime: time,
        };
        let nlink = if kind == Kind::Dir { 2 } else { 1 };
        let xattrs = Arc::default();
        let inode = Inode { kind, btime: time, nlink, meta, xattrs, body, live: true };
        let image = Inode { live: !self.weak(), ..inode.clone() };
        self.disk.image.inodes.insert(ino, Arc::new(image));
        self.now.inodes.insert(ino, Arc::new(inode));
        if self.weak() {
            self.disk.push(Unit::Life(ino), self.tick, Change::Life(Life::Live));
        }
        self.bind(dir, name, Some(ino));
        if kind == Kind::Dir {
            self.add_links(dir, 1);
        }
        self.touch(dir, true);
        Ok(ino)
    }

    /// The lowest number that neither memory nor disk knows, as ext4 would choose.
    fn free_ino(&mut self) -> u64 {
        while self.now.inodes.contains_key(&self.next_ino)
            || self.disk.image.inodes.contains_key(&self.next_ino)
        {
            self.next_ino += 1;
        }
        self.next_ino
    }

    /// Takes away one name of `ino` (all links of a directory), and the inode with the last one.
    pub(crate) fn unname(&mut self, ino: u64, dir: u64) {
        if self.now.get(ino).is_some_and(|i| i.kind == Kind::Dir) {
            self.change(ino).nlink = 0;
            self.add_links(dir, -1);
        } else {
            self.add_links(ino, -1);
        }
        self.touch(ino, false);
        self.release(ino);
    }

    /// Frees an inode that has neither names nor openers.
    pub(crate) fn release(&mut self, ino: u64) {
        let unused = !self.opens.contains_key(&ino);
        if unused && ino != ROOT && self.now.get(ino).is_some_and(|i| i.nlink == 0) {
            let gone = self.now.inodes.remove(&ino);
            self.openers.remove(&ino);
            if self.weak() {
                if gone.is_some_and(|i| i.kind == Kind::File) {
                    let scrambled = Change::Life(Life::Scrambled);
                    self.disk.push(Unit::Life(ino), self.tick, scrambled);
                }
                self.disk.push(Unit::Life(ino), self.tick, Change::Life(Life::Freed));
            }
        }
    }

    // ---- syncs ----

    /// What fdatasync, or with `attributes` fsync, of a file or directory promises.
    pub(crate) fn sync(&mut self, ino: u64, attributes: bool) {
        if self.inode(ino).is_ok_and(|i| i.kind == Kind::Dir) {
            self.sync_dir(ino, attributes);
        } else if !self.weak() {
            self.flush_pages(ino, |_| true);
            self.flush_meta(ino, attributes);
            if self.profile().fsync_persists_names {
                self.disk.flush_namespace(|(_, _, target)| *target == Some(ino));
            }
        } else if self.profile().fsync_persists_inode {
            self.disk.flush(&Unit::Life(ino));
            self.flush_pages(ino, |_| true);
            self.flush_meta(ino, attributes);
        } else {
            self.flush_overwritten(ino, |_| true);
        }
    }

    fn sync_dir(&mut self, ino: u64, attributes: bool) {
        if self.weak() {
            let units = self.disk.pending.keys();
            let own = |u: &&Unit| matches!(u, Unit::Entry(dir, _) if *dir == ino);
            for unit in units.filter(own).cloned().collect::<Vec<_>>() {
                self.disk.flush(&unit);
            }
            if self.profile().fsync_persists_inode {
                self.disk.flush(&Unit::Life(ino));
            }
        } else {
            self.disk.flush_namespace(|(dir, _, target)| *dir == ino || *target == Some(ino));
        }
        if attributes && (!self.weak() || self.profile().fsync_persists_inode) {
            self.flush_meta(ino, true);
        }
    }

    fn flush_pages(&mut self, ino: u64, wanted: impl Fn(u64) -> bool) {
        let range = Unit::Page(ino, 0)..=Unit::Page(ino, u64::MAX);
        let units = self.disk.pending.range(range).map(|(u, _)| u.clone());
        let hit = |u: &Unit| matches!(u, Unit::Page(_, n) if wanted(*n));
        for unit in units.filter(hit).collect::<Vec<_>>() {
            self.disk.flush(&unit);
        }
    }

    /// Weak: only pages whose blocks the inode on disk already has.
    pub(crate) fn flush_overwritten(&mut self, ino: u64, wanted: impl Fn(u64) -> bool) {
        let Some(image) = self.disk.image.get(ino) else { return };
        let Body::File { pages, .. } = &image.body else { return };
        let known = image.meta.size.div_ceil(PAGE as u64);
        if !image.live {
            return;
        }
        let old: BTreeSet<u64> = pages.range(..known).map(|(n, _)| *n).collect();
        let kept = |n: u64| old.contains(&n) && self.page(ino, n).is_some();
        let kept: BTreeSet<u64> = old.iter().copied().filter(|n| kept(*n)).collect();
        self.flush_pages(ino, |n| kept.contains(&n) && wanted(n));
    }

    /// The pages of a durable write.
    pub(crate) fn flush_written(&mut self, ino: u64, first: u64, end: u64) {
        if self.weak() && !self.profile().fsync_persists_inode {
            self.flush_overwritten(ino, |n| (first..end).contains(&n));
        } else {
            self.flush_pages(ino, |n| (first..end).contains(&n));
            self.disk.flush(&Unit::Life(ino));
            self.flush_meta(ino, false);
        }
    }

    /// Makes the length durable, with `all` every attribute.
    fn flush_meta(&mut self, ino: u64, all: bool) {
        if all {
            self.disk.flush(&Unit::Meta(ino));
            self.disk.flush(&Unit::Xattrs(ino));
            return;
        }
        let Some(size) = self.now.get(ino).map(|i| i.meta.size) else { return };
        for version in self.disk.pending.get_mut(&Unit::Meta(ino)).into_iter().flatten() {
            if let Change::Meta(meta) = &mut version.change {
                meta.size = size;
            }
        }
        if self.disk.image.get(ino).is_some_and(|i| i.meta.size != size)
            && let Some(inode) = self.disk.image.get_mut(ino)
        {
            inode.meta.size = size;
        }
    }

    pub(crate) fn sync_everything(&mut self) {
        self.disk.flush_all(&self.now);
        self.next_ino = FIRST_INO;
    }
}
