//! One state of a file system: a table of inodes.  Cheap to copy, since files' pages and whole
//! inodes are shared until they change.
//!
//! Two uses: the *volatile* state, which every call of the simulated kernel reads and changes, and
//! the *disk image*, which may be incoherent (entries of inodes that were never written, inodes
//! that nothing names) until [`State::repair`] does what journal replay and fsck do after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systx_base::{Gid, Kind, Time, Uid};

/// Bytes of a page: the unit in which data reaches the disk.
pub const PAGE: usize = 4096;
/// The root directory's inode number.
pub const ROOT: u64 = 2;
/// Where fsck attaches inodes that lost their names.
pub const LOST_FOUND: &[u8] = b"lost+found";

/// One page of a file.
#[derive(Clone)]
pub struct Page {
    sum: u64,
    bytes: [u8; PAGE],
}

impl Page {
    /// A page with these bytes.
    pub fn new(bytes: [u8; PAGE]) -> Arc<Page> {
        let words = bytes.chunks_exact(8);
        let sum = words.fold(0xcbf2_9ce4_8422_2325_u64, |h, w| {
            let word = w.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
            (h ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
        });
        Arc::new(Page { sum, bytes })
    }
    /// Its bytes.
    pub fn bytes(&self) -> &[u8; PAGE] {
        &self.bytes
    }
    /// A hash of its bytes.
    pub fn sum(&self) -> u64 {
        self.sum
    }
    /// What is found in a block that was freed and used for something else.
    pub fn garbage() -> Arc<Page> {
        Page::new([0xDB; PAGE])
    }
}

/// Attributes that live in the inode itself and are written with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Meta {
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Length of a file.
    pub size: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of data.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
}

/// Extended attributes of one inode.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an inode holds.
#[derive(Clone)]
pub enum Body {
    /// A regular file: its allocated pages, and blocks allocated but never written.
    File {
        /// Data by page number.
        pages: BTreeMap<u64, Arc<Page>>,
        /// Unwritten blocks by page number.
        reserved: BTreeSet<u64>,
    },
    /// A directory.
    Dir {
        /// Inode number by name.
        entries: BTreeMap<Vec<u8>, u64>,
        /// The directory that holds it; itself for the root.
        parent: u64,
    },
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device node.
    Special {
        /// Device number.
        rdev: u64,
    },
}

/// One inode.
#[derive(Clone)]
pub struct Inode {
    /// Its type.
    pub kind: Kind,
    /// When it was made.
    pub btime: Time,
    /// Number of names; two and the number of subdirectories for a directory.
    pub nlink: u32,
    /// Written with the inode.
    pub meta: Meta,
    /// Extended attributes.
    pub xattrs: Arc<Xattrs>,
    /// Content.
    pub body: Body,
    /// In a disk image: the inode table has it.  Always true in a volatile state.
    pub live: bool,
}

impl Inode {
    /// The entries, if it is a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Vec<u8>, u64>> {
        match &self.body {
            Body::Dir { entries, .. } => Some(entries),
            _ => None,
        }
    }
    /// As [`Inode::entries`], to change them.
    pub fn entries_mut(&mut self) -> Option<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.body {
            Body::Dir { entries, .. } => Some(entries),
            _ => None,
        }
    }
    /// Blocks of 4096 bytes that it occupies.
    pub fn blocks(&self) -> u64 {
        match &self.body {
            Body::File { pages, reserved } => (pages.len() + reserved.len()) as u64,
            Body::Dir { .. } => 1,
            _ => 0,
        }
    }
}

/// All inodes.
#[derive(Clone, Default)]
pub struct State {
    /// By inode number.
    pub inodes: BTreeMap<u64, Arc<Inode>>,
}

impl State {
    /// A file system with nothing but its root directory.
    pub fn new(now: Time) -> State {
        let meta =
            Meta { mode: 0o755, uid: 0, gid: 0, size: 0, atime: now, mtime: now, ctime: now };
        let root = Inode {
            kind: Kind::Dir,
            btime: now,
            nlink: 2,
            meta,
            xattrs: Arc::default(),
            body: Body::Dir { entries: BTreeMap::new(), parent: ROOT },
            live: true,
        };
        State { inodes: BTreeMap::from([(ROOT, Arc::new(root))]) }
    }

    /// An inode.
    pub fn get(&self, ino: u64) -> Option<&Arc<Inode>> {
        self.inodes.get(&ino)
    }

    /// An inode, to change it; copies it if another state shares it.
    pub fn get_mut(&mut self, ino: u64) -> Option<&mut Inode> {
        self.inodes.get_mut(&ino).map(Arc::make_mut)
    }

    /// Makes a disk image coherent, as mounting after a crash does: entries of inodes that were
    /// never written, or were freed, go; a directory keeps one name; inodes without a name are
    /// freed, or with `orphans` come back as `lost+found/#<ino>`; link counts are counted anew.
    ///
    /// `reverse` decides which name a directory with two of them keeps: fsck promises neither.
    pub fn repair(&mut self, orphans: bool, reverse: bool) {
        self.inodes.retain(|_, inode| inode.live);
        self.drop_beyond_end();
        let mut seen = BTreeSet::from([ROOT]);
        self.walk(ROOT, reverse, &mut seen);
        if orphans {
            self.adopt(reverse, &mut seen);
        }
        self.inodes.retain(|ino, _| seen.contains(ino));
        self.count_links();
    }

    /// Frees blocks beyond a file's end: data whose length did not make it.
    fn drop_beyond_end(&mut self) {
        let beyond = |inode: &Inode| match &inode.body {
            Body::File { pages, .. } => {
                pages.range(inode.meta.size.div_ceil(PAGE as u64)..).next().is_some()
            }
            _ => false,
        };
        let long: Vec<u64> =
            self.inodes.iter().filter(|(_, i)| beyond(i)).map(|(ino, _)| *ino).collect();
        for ino in long {
            if let Some(inode) = self.get_mut(ino)
                && let Body::File { pages, .. } = &mut inode.body
            {
                let end = inode.meta.size.div_ceil(PAGE as u64);
                pages.split_off(&end);
            }
        }
    }

    /// Drops the dangling entries below `top` and notes every inode that has a name.
    fn walk(&mut self, top: u64, reverse: bool, seen: &mut BTreeSet<u64>) {
        let mut queue = vec![top];
        while let Some(dir) = queue.pop() {
            let Some(entries) = self.get(dir).and_then(|d| d.entries()) else { continue };
            let mut names: Vec<_> = entries.iter().map(|(n, i)| (n.clone(), *i)).collect();
            if reverse {
                names.reverse();
            }
            for (name, ino) in names {
                let is_dir = self.get(ino).map(|i| i.kind == Kind::Dir);
                let keep = match is_dir {
                    None => false,
                    Some(true) => !seen.contains(&ino),
                    Some(false) => true,
                };
                if !keep {
                    self.drop_entry(dir, &name);
                    continue;
                }
                seen.insert(ino);
                if is_dir == Some(true) {
                    self.set_parent(ino, dir);
                    queue.push(ino);
                }
            }
        }
    }

    /// Gives every inode outside `seen` a name in `lost+found`: whole directories first, so that
    /// what they hold stays in them.
    fn adopt(&mut self, reverse: bool, seen: &mut BTreeSet<u64>) {
        let lost: Vec<u64> = self.inodes.keys().copied().filter(|i| !seen.contains(i)).collect();
        if lost.is_empty() {
            return;
        }
        let named: BTreeSet<u64> = lost
            .iter()
            .filter_map(|i| self.get(*i).and_then(|d| d.entries()))
            .flat_map(|e| e.values().copied())
            .collect();
        let (tops, rest): (Vec<u64>, Vec<u64>) = lost.iter().partition(|i| !named.contains(i));
        // `rest` holds what lies inside one of `tops`, and cycles of directories that nothing
        // names.
        for ino in tops.into_iter().chain(rest) {
            if seen.insert(ino) {
                let shelf = self.lost_found(seen);
                let name = format!("#{ino}").into_bytes();
                if let Some(e) = self.get_mut(shelf).and_then(Inode::entries_mut) {
                    e.insert(name, ino);
                }
                self.set_parent(ino, shelf);
                self.walk(ino, reverse, seen);
            }
        }
    }

    fn lost_found(&mut self, seen: &mut BTreeSet<u64>) -> u64 {
        let found = self.get(ROOT).and_then(|r| r.entries()).and_then(|e| e.get(LOST_FOUND));
        if let Some(ino) = found {
            return *ino;
        }
        let ino = self.inodes.keys().next_back().map_or(ROOT, |i| *i) + 1;
        let mut dir = State::new(Time::default()).inodes[&ROOT].as_ref().clone();
        dir.meta.mode = 0o700;
        self.inodes.insert(ino, Arc::new(dir));
        self.set_parent(ino, ROOT);
        if let Some(e) = self.get_mut(ROOT).and_then(Inode::entries_mut) {
            e.insert(LOST_FOUND.to_vec(), ino);
        }
        seen.insert(ino);
        ino
    }

    fn set_parent(&mut self, ino: u64, dir: u64) {
        // Without a change nothing is copied.
        if matches!(self.get(ino).map(|i| &i.body), Some(Body::Dir { parent, .. }) if *parent != dir)
            && let Some(Body::Dir { parent, .. }) = self.get_mut(ino).map(|i| &mut i.body)
        {
            *parent = dir;
        }
    }

    fn drop_entry(&mut self, dir: u64, name: &[u8]) {
        if let Some(e) = self.get_mut(dir).and_then(Inode::entries_mut) {
            e.remove(name);
        }
    }

    fn count_links(&mut self) {
        let mut count: BTreeMap<u64, u32> = BTreeMap::from([(ROOT, 2)]);
        for (dir, inode) in &self.inodes {
            for ino in inode.entries().into_iter().flat_map(|e| e.values()) {
                let is_dir = self.get(*ino).is_some_and(|i| i.kind == Kind::Dir);
                *count.entry(*ino).or_default() += 1 + u32::from(is_dir);
                *count.entry(*dir).or_default() += u32::from(is_dir);
            }
        }
        for (ino, n) in count {
            if self.get(ino).is_some_and(|i| i.nlink != n)
                && let Some(inode) = self.get_mut(ino)
            {
                inode.nlink = n;
            }
        }
    }

    /// A hash of everything that a program could see, but for times at or after `clock`: those are
    /// only the simulated clock's, and differ with the way that led here.
    pub fn fingerprint(&self, clock: i64) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut h = std::collections::hash_map::DefaultHasher::new();
        for (ino, inode) in &self.inodes {
            let Meta { mode, uid, gid, size, mtime, .. } = inode.meta;
            let mtime = Some(mtime).filter(|t| t.secs < clock);
            (ino, inode.kind, inode.nlink, &inode.xattrs).hash(&mut h);
            (mode, uid, gid, size, mtime).hash(&mut h);
            match &inode.body {
                Body::File { pages, reserved } => {
                    for (n, page) in pages {
                        (n, page.sum()).hash(&mut h);
                    }
                    reserved.hash(&mut h);
                }
                Body::Dir { entries, .. } => entries.hash(&mut h),
                Body::Symlink(target) => target.hash(&mut h),
                Body::Special { rdev } => rdev.hash(&mut h),
            }
        }
        h.finish()
    }
}
