//! Operations on the content of files.

use super::{Ops, zeros};
use crate::error::{Error, Result};
use crate::format::{BLOCK, Head, Ino};
use crate::group::{Group, Target};
use crate::object::{Bytes, Node, Object, PAGES_MAX, Page, Place};
use crate::piece::Purpose;
use crate::tree::Env;
use crate::txn::{Private, Staged};
use std::ops::Range;
use systx_base::Kind;

const PAGE: u64 = BLOCK as u64;

/// Where the content of a page is.
enum Content {
    Memory(Bytes),
    Stored(Place),
    Zeros,
}

impl Content {
    fn bytes(self, env: &Env) -> Result<Option<Bytes>> {
        match self {
            Content::Memory(bytes) => Ok(Some(bytes)),
            Content::Stored(place) => Ok(Some(env.read_page(place)?.into())),
            Content::Zeros => Ok(None),
        }
    }
}

/// Whole pages that lie beside each other and are read at once.
#[derive(Default)]
struct Run {
    first: u64,
    sums: Vec<u32>,
}

impl Run {
    fn goes_on(&self, place: Place) -> bool {
        !place.is_packed() && self.first + self.sums.len() as u64 == place.at
    }

    fn add(&mut self, place: Place) {
        if self.sums.is_empty() {
            self.first = place.at;
        }
        self.sums.push(place.crc);
    }

    /// Reads it in front of the byte `end`.
    fn read(&mut self, env: &Env, to: &mut [u8], end: usize) -> Result<()> {
        if !self.sums.is_empty() {
            env.read_pages(self.first, &self.sums, &mut to[end - self.sums.len() * BLOCK..end])?;
            self.sums.clear();
        }
        Ok(())
    }
}

impl Ops<'_> {
    fn file(&mut self, ino: Ino) -> Result<Node> {
        let node = self.node(ino)?;
        match node.attrs.kind {
            Kind::File => Ok(node),
            Kind::Dir => Err(Error::IsDir),
            _ => Err(Error::Invalid("not a file")),
        }
    }

    /// The bytes of a file from `offset` on, up to `len` of them.
    ///
    /// # Errors
    /// [`Error::IsDir`], [`Error::Invalid`], [`Error::NotFound`]; what reading can say.
    pub fn read(&mut self, ino: Ino, offset: u64, len: usize) -> Result<Vec<u8>> {
        let size = self.file(ino)?.attrs.size;
        let len = size.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        self.read_into(ino, offset, &mut bytes)?;
        Ok(bytes)
    }

    /// As [`Ops::read`], into a buffer.  Returns how many there were.
    ///
    /// # Errors
    /// As [`Ops::read`].
    pub fn read_into(&mut self, ino: Ino, offset: u64, to: &mut [u8]) -> Result<usize> {
        let size = self.file(ino)?.attrs.size;
        let end = offset.saturating_add(to.len() as u64).min(size);
        let len = end.saturating_sub(offset) as usize;
        self.announce(ino, offset, end);
        let mut run = Run::default();
        let mut done = 0;
        while done < len {
            let (page, within) = ((offset + done as u64) / PAGE, (offset + done as u64) % PAGE);
            let n = (len - done).min(BLOCK - within as usize);
            let content = self.content(ino, page)?;
            match content {
                Content::Stored(place) if n == BLOCK && run.goes_on(place) => {}
                _ => run.read(&self.tree.env, to, done)?,
            }
            let to = &mut to[done..done + n];
            match content {
                Content::Stored(place) if n == BLOCK && !place.is_packed() => run.add(place),
                Content::Zeros => to.fill(0),
                other => {
                    let bytes = other.bytes(&self.tree.env)?.unwrap_or_else(zeros);
                    to.copy_from_slice(&bytes[within as usize..within as usize + n]);
                }
            }
            done += n;
        }
        run.read(&self.tree.env, to, done)?;
        Ok(len)
    }

    /// Tells the medium of what is about to be read: it reads at once what lies together, and side
    /// by side what is scattered, where one read after the other would wait for each.
    fn announce(&mut self, ino: Ino, offset: u64, end: u64) {
        if end <= offset {
            return;
        }
        let told = self.tree.reads.follow(ino, offset / PAGE..end.div_ceil(PAGE));
        let Some(pages) = self.tree.loaded(ino).and_then(Object::pages) else { return };
        let stored = pages.range(told).map(|(_, page)| page);
        let (mut run, mut count, mut runs) = (0..0, 0, 0);
        for blocks in stored.filter(|p| p.memory.is_none()).filter_map(|p| Some(p.place?.blocks()))
        {
            count += 1;
            // The next page of the same pack.
            if blocks.end == run.end {
                continue;
            }
            if blocks.start != run.end {
                self.tree.env.dev.soon(run.start, run.end - run.start);
                run.start = blocks.start;
                runs += 1;
            }
            run.end = blocks.end;
        }
        self.tree.env.dev.soon(run.start, run.end - run.start);
        let all = pages.len() as u64;
        self.tree.reads.jumped(ino, count, runs, all);
    }

    /// Where a page's content is.
    fn content(&mut self, ino: Ino, page: u64) -> Result<Content> {
        match self.txn.pages.get(&ino).and_then(|p| p.get(&page)) {
            Some(Staged::Memory(bytes)) => return Ok(Content::Memory(bytes.clone())),
            Some(Staged::Spilled(place)) => return Ok(Content::Stored(*place)),
            Some(Staged::Hole) => return Ok(Content::Zeros),
            Some(Staged::Taken(from, page)) => {
                let (from, page) = (*from, *page);
                return self.committed(from, page);
            }
            None => {}
        }
        let cut = self.txn.cuts.get(&ino).is_some_and(|cut| page >= *cut);
        if cut || self.txn.created.contains_key(&ino) {
            return Ok(Content::Zeros);
        }
        self.committed(ino, page)
    }

    /// Where the tree has a page.
    fn committed(&mut self, ino: Ino, page: u64) -> Result<Content> {
        let found = self.tree.get(ino)?.pages().and_then(|p| p.get(&page));
        Ok(match found {
            Some(Page { memory: Some(bytes), .. }) => Content::Memory(bytes.clone()),
            Some(Page { place: Some(place), .. }) => Content::Stored(*place),
            _ => Content::Zeros,
        })
    }

    /// A page's content; `None` are zeros that take no space.
    fn page(&mut self, ino: Ino, page: u64) -> Result<Option<Bytes>> {
        self.content(ino, page)?.bytes(&self.tree.env)
    }

    /// Writes bytes at an offset; what lies between the end of the file and them is zeros.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::NoSpace`] if the transaction is larger than memory and no
    /// segment is left; as [`Ops::read`].
    pub fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<()> {
        self.writable()?;
        let size = self.file(ino)?.attrs.size;
        let end = offset.checked_add(bytes.len() as u64).filter(|e| *e <= PAGES_MAX * PAGE);
        let end = end.ok_or(Error::TooLarge)?;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (page, within) = (at / PAGE, (at % PAGE) as usize);
            let (now, later) = rest.split_at(rest.len().min(BLOCK - within));
            let content: Bytes = if now.len() == BLOCK {
                now.into()
            } else {
                let mut content = self.page(ino, page)?.map_or(vec![0; BLOCK], |b| b.to_vec());
                content[within..within + now.len()].copy_from_slice(now);
                content.into()
            };
            self.stage(ino, page, Staged::Memory(content));
            rest = later;
            at += now.len() as u64;
            self.spill()?;
        }
        let now = self.now;
        let patch = self.patch(ino);
        if end > size && !bytes.is_empty() {
            patch.size = Some(end);
        }
        (patch.mtime, patch.ctime) = (Some(now), Some(now));
        Ok(())
    }

    /// Stages a page of a file as it is to be; sizes and times are for the caller.
    pub(crate) fn put_page(&mut self, ino: Ino, page: u64, staged: Staged) -> Result<()> {
        self.writable()?;
        self.file(ino)?;
        self.stage(ino, page, staged);
        self.spill()
    }

    /// Has the commit take a page out of one file and put it into another, where it stays in its
    /// place of the log: nothing is read or written for it.  Until then the first file has it, too.
    /// Afterwards there is what the transaction writes there, or zeros.  Sizes are for the caller.
    /// Returns whether it can be: not if this transaction has made, changed or cut off the page, or
    /// takes it already, and not if it takes no space.
    ///
    /// # Errors
    /// As [`Ops::read`].
    pub fn take(&mut self, (from, page): (Ino, u64), (to, at): (Ino, u64)) -> Result<bool> {
        self.writable()?;
        let changed = self.txn.created.contains_key(&from)
            || self.txn.pages.get(&from).is_some_and(|own| own.contains_key(&page))
            || self.txn.cuts.get(&from).is_some_and(|cut| page >= *cut)
            || self.txn.taken.contains(&(from, page));
        if changed || at >= PAGES_MAX {
            return Ok(false);
        }
        let pages = self.tree.get(from)?.pages();
        if !pages.is_some_and(|pages| pages.contains_key(&page)) {
            return Ok(false);
        }
        self.txn.taken.insert((from, page));
        self.stage(to, at, Staged::Taken(from, page));
        let now = self.now;
        self.patch(from).ctime = Some(now);
        let patch = self.patch(to);
        (patch.mtime, patch.ctime) = (Some(now), Some(now));
        Ok(true)
    }

    fn stage(&mut self, ino: Ino, page: u64, staged: Staged) {
        let is = |s: &Staged| u64::from(matches!(s, Staged::Memory(_)));
        self.txn.in_memory += is(&staged);
        let old = self.txn.pages.entry(ino).or_default().insert(page, staged);
        self.txn.in_memory -= old.as_ref().map_or(0, is);
    }

    pub(super) fn truncate(&mut self, ino: Ino, node: &Node, size: u64) -> Result<()> {
        match node.attrs.kind {
            Kind::File => {}
            Kind::Dir => return Err(Error::IsDir),
            _ => return Err(Error::Invalid("not a file")),
        }
        if size > PAGES_MAX * PAGE {
            return Err(Error::TooLarge);
        }
        if size < node.attrs.size {
            let within = (size % PAGE) as usize;
            if within > 0
                && let Some(content) = self.page(ino, size / PAGE)?
            {
                let mut content = content.to_vec();
                content[within..].fill(0);
                self.stage(ino, size / PAGE, Staged::Memory(content.into()));
            }
            self.cut(ino, size.div_ceil(PAGE));
        }
        let now = self.now;
        let patch = self.patch(ino);
        patch.size = Some(size);
        patch.mtime = Some(now);
        Ok(())
    }

    fn cut(&mut self, ino: Ino, first: u64) {
        if let Some(pages) = self.txn.pages.get_mut(&ino) {
            let off = pages.split_off(&first);
            let memory = off.values().filter(|s| matches!(s, Staged::Memory(_))).count();
            self.txn.in_memory -= memory as u64;
        }
        let cut = self.txn.cuts.entry(ino).or_insert(first);
        *cut = first.min(*cut);
    }

    /// Makes a range of a file zeros that take no space; the size stays.
    ///
    /// # Errors
    /// As [`Ops::read`].
    pub fn punch(&mut self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let size = self.file(ino)?.attrs.size;
        let end = offset.saturating_add(len).min(size);
        let mut at = offset;
        // A hole may be as long as a file can be.
        while let Some(page) = self.next_page(ino, at / PAGE)? {
            at = at.max(page * PAGE);
            if at >= end {
                break;
            }
            let within = at % PAGE;
            let n = (end - at).min(PAGE - within);
            // The last page of a file is whole where the file ends.
            let whole = within == 0 && (n == PAGE || at + n == size);
            if whole {
                self.stage(ino, page, Staged::Hole);
            } else if let Some(content) = self.page(ino, page)? {
                let mut content = content.to_vec();
                content[within as usize..(within + n) as usize].fill(0);
                self.stage(ino, page, Staged::Memory(content.into()));
            }
            at += n;
        }
        let now = self.now;
        let patch = self.patch(ino);
        (patch.mtime, patch.ctime) = (Some(now), Some(now));
        Ok(())
    }

    /// Moves the pages of a transaction that is larger than memory into private segments.
    fn spill(&mut self) -> Result<()> {
        let Some(maker) = self.maker.as_mut() else { return Ok(()) };
        if self.txn.in_memory < maker.pages_max {
            return Ok(());
        }
        let env = &self.tree.env;
        let usable = u64::from(env.geometry.usable());
        let segments = u32::try_from(self.txn.in_memory / usable + 3).unwrap_or(u32::MAX);
        if maker.usage.free() < segments.saturating_add(maker.reserve) {
            return Err(Error::NoSpace);
        }
        if self.txn.private.is_none() {
            let (Some(segment), Some(next)) = (maker.usage.take(0), maker.usage.take(0)) else {
                return Err(Error::NoSpace);
            };
            let epoch = maker.head.epoch;
            let head = Head { segment, offset: 0, next, lsn: 0, chain: 0, epoch };
            let returned = maker.returned.clone();
            self.txn.private = Some(Private { head, segments: vec![segment], returned });
        }
        let Some(private) = self.txn.private.as_mut() else { return Ok(()) };
        let ids = (env.geometry, env.id);
        let (head, usage) = (&mut private.head, &mut *maker.usage);
        let mut group = Group::new(head, usage, ids, Purpose::Private, self.now);
        let is_block = |staged: &Staged| matches!(staged, Staged::Memory(_));
        for (ino, pages) in &self.txn.pages {
            let blocks = |of: Range<u64>| pages.range(of).filter(|(_, s)| is_block(s)).count();
            for (page, staged) in pages {
                if let Staged::Memory(bytes) = staged {
                    group.page(*ino, *page, bytes.clone(), blocks)?;
                }
            }
        }
        let done = group.finish();
        // They are taken as long as the transaction is not decided: `Group` gives up what is full.
        private.segments.extend(&done.entered);
        private.segments.iter().for_each(|s| maker.usage.hold(*s));
        let written = done.write(&*env.dev);
        if written.is_err() {
            // Who reads the segment finds nothing behind a piece that is missing.
            private.head.offset = env.geometry.segment_blocks;
        }
        written?;
        self.txn.asked = 0;
        for (target, place) in done.placed {
            if let Target::Page(ino, page) = target {
                self.stage(ino, page, Staged::Spilled(place));
            }
        }
        Ok(())
    }

    /// Bytes of zeros, to be written where a hole will not do.
    ///
    /// # Errors
    /// As [`Ops::write`].
    pub fn allocate(&mut self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let size = self.file(ino)?.attrs.size;
        let end = offset.checked_add(len).filter(|e| *e <= PAGES_MAX * PAGE);
        let end = end.ok_or(Error::TooLarge)?;
        for page in offset / PAGE..end.div_ceil(PAGE) {
            if self.page(ino, page)?.is_none() {
                self.stage(ino, page, Staged::Memory(zeros()));
                self.spill()?;
            }
        }
        let now = self.now;
        let patch = self.patch(ino);
        if end > size {
            patch.size = Some(end);
        }
        patch.ctime = Some(now);
        Ok(())
    }
}
