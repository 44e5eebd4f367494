//! What programs have stored in shared mappings of a file: it is in the kernel's pages, where the
//! view does not see it.  What is answered about the content of a file is about those pages, so
//! they come first.
//!
//! **Holes.**  A page that is dirty is no hole, whatever the view knows.  Before a hole is
//! answered to lseek(2), the kernel writes back its pages in that hole ([`Mapped::seek`]); so a
//! file without holes costs nothing.  It forgets them, too, which no write in flight may meet:
//! lseek(2) has the inode's lock.
//!
//! stat(2) has not, and so nothing is written back for it.  A file that has a length and no blocks
//! is a hole as a whole, and programs that copy believe that without looking further.  So the
//! kernel keeps no attributes of such a file ([`is_hollow`]), and it is shown with a page's blocks
//! if the kernel may have pages of it ([`Mapped::shown`]).
//!
//! **Behind the end.**  A mapping reaches to the end of the last page.  What is stored there is no
//! part of the file, and has to be gone when the file grows.  The kernel does not see to that for
//! a file system like this one.  When a request has left a *gap*, bytes behind the old end that
//! nobody has written ([`systx_vfs::client::gap`]), the kernel's page gets zeros there before it
//! is answered ([`Mapped::fill`]).  An append leaves no gap.  A page that the kernel cannot have
//! whole is mapped by nobody: what was neither read nor written as a whole needs no zeros, so who
//! writes new files with gaps pays nothing.
//!
//! **Why nobody waits in a circle, and nothing comes late that does harm.**  Writing back waits
//! for WRITEs and READs of these pages, and is asked for by a request that has no page locked
//! (LSEEK).  It may have to wait for a truncation (the kernel sends no WRITE meanwhile), and no
//! truncation waits for it.  So many at once, at most, that further requests find a worker
//! ([`AT_ONCE`]); beyond that the answer is that there is no hole, which is never wrong.
//!
//! A write has its last page locked itself if that is not whole.  Nobody has such a page mapped,
//! and it needs nothing; but the kernel does not tell, and whoever asks for the page waits for the
//! write's answer.  So for a write the page is written back and forgotten, not stored to: that may
//! come after the answer, and nothing that was stored until then is lost.  A thread does it, and
//! the write waits for [`PATIENCE`] only.  What is written back until the answer counts as zeros
//! in the gap; after it, as what it is.
//!
//! Other requests have no page locked.  For them zeros are put into the page (NOTIFY_STORE), which
//! waits for a READ of it, or for somebody who drops it; until it is done the gap counts as zeros
//! in what is written back.  A truncation keeps WRITEs waiting, so forgetting the page would wait
//! for its answer; a copy is not in the page, and would be overwritten by it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{Kind, NodeId};
use systx_vfs::api::{Attr, Calls, Reply, Requests, Seek};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::wire;

/// What the kernel maps at once.
const PAGE: u64 = 4096;

/// Requests that have pages written back at the same time.
const AT_ONCE: usize = 64;

/// How long a write waits until its page is forgotten, for which it may itself be waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// How long others wait for zeros where their gap was.  What is put later covers what was stored
/// since.
const LONG_PATIENCE: Duration = Duration::from_secs(2);

/// The kernel's pages of files.
pub(crate) trait Pages: Send + Sync {
    /// Has it write back those that are dirty, and forget all, of this range of bytes (to
    /// `u64::MAX`: to the end).
    fn write_back(&self, file: NodeId, range: Range<u64>) -> io::Result<()>;
    /// Puts zeros there, less than a page.
    fn zero(&self, file: NodeId, range: Range<u64>) -> io::Result<()>;
    /// Has it forget the attributes of the file, which waits for nothing.
    fn forget_attributes(&self, file: NodeId) -> io::Result<()>;
}

impl Pages for Device {
    fn write_back(&self, file: NodeId, range: Range<u64>) -> io::Result<()> {
        // Offsets end below 2^63.
        let off = range.start as i64;
        let len = if range.end == u64::MAX { 0 } else { (range.end - range.start) as i64 };
        let body = wire::NotifyInode { ino: file.0, off, len };
        self.notify(wire::notify::INVAL_INODE, &[body.as_bytes()])
    }

    fn zero(&self, file: NodeId, range: Range<u64>) -> io::Result<()> {
        const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
        let size = (range.end - range.start).min(PAGE);
        let (nodeid, offset) = (file.0, range.start);
        let body = wire::NotifyStore { nodeid, offset, size: size as u32, padding: 0 };
        self.notify(wire::notify::STORE, &[body.as_bytes(), &ZEROS[..size as usize]])
    }

    fn forget_attributes(&self, file: NodeId) -> io::Result<()> {
        let body = wire::NotifyInode { ino: file.0, off: -1, len: 0 };
        self.notify(wire::notify::INVAL_INODE, &[body.as_bytes()])
    }
}

/// Whether there is nothing in a file but a length, as far as the view knows.
pub(crate) fn is_hollow(attr: &Attr) -> bool {
    attr.kind == Kind::File && attr.size > 0 && attr.blocks == 0
}

/// See the module.
pub(crate) struct Mapped {
    pages: Arc<dyn Pages>,
    /// Requests that have something written back.
    asking: AtomicUsize,
    /// Where the last page ends that the kernel may have whole, by file.
    whole: Mutex<HashMap<NodeId, u64>>,
    gaps: Arc<Gaps>,
}

/// Bytes in which the kernel may not have zeros yet.
struct Gaps {
    open: Mutex<Vec<(NodeId, Range<u64>)>>,
    count: AtomicUsize,
    closed: Event,
}

impl Gaps {
    fn close(&self, gap: &(NodeId, Range<u64>)) {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|other| other == gap) {
            open.swap_remove(at);
        }
        self.count.store(open.len(), SeqCst);
        self.closed.notify_all();
    }
}

impl Mapped {
    /// The kernel believes that a call that is performed here alone leaves the mode as it was; but
    /// set-id bits go with the content.
    pub fn mode_may_have_changed(&self, file: NodeId) {
        if let Err(error) = self.pages.forget_attributes(file) {
            tracing::warn!(?file, %error, "attributes are not forgotten");
        }
    }

    pub fn new(pages: Arc<dyn Pages>) -> Mapped {
        let gaps = Gaps {
            open: Mutex::new(rank::LEAF, Vec::new()),
            count: AtomicUsize::new(0),
            closed: Event::new(),
        };
        Mapped {
            pages,
            asking: AtomicUsize::new(0),
            whole: Mutex::new(rank::LEAF, HashMap::new()),
            gaps: Arc::new(gaps),
        }
    }

    /// The kernel is going to have the pages of a file up to there, at most.
    pub fn has(&self, file: NodeId, end: u64) {
        let mut whole = self.whole.lock();
        let before = whole.entry(file).or_default();
        *before = end.max(*before);
    }

    /// So many bytes are written: the kernel has those pages that they fill.
    pub fn written(&self, file: NodeId, offset: u64, len: usize) {
        let end = offset.saturating_add(len as u64) / PAGE * PAGE;
        if end >= offset.saturating_add(PAGE) {
            self.has(file, end);
        }
    }

    pub fn forget(&self, file: NodeId) {
        self.whole.lock().remove(&file);
    }

    /// The attributes of a file as they are with what may be in the kernel's pages.
    pub fn shown(&self, file: NodeId, attr: Attr) -> Attr {
        let may_be_stored = is_hollow(&attr) && self.whole.lock().contains_key(&file);
        Attr { blocks: if may_be_stored { PAGE / 512 } else { attr.blocks }, ..attr }
    }

    /// Has the kernel write back what was stored in this range; whether it was asked.
    fn write_back(&self, file: NodeId, range: Range<u64>) -> bool {
        let is_first = self.asking.fetch_add(1, SeqCst) < AT_ONCE;
        if is_first && let Err(error) = self.pages.write_back(file, range) {
            // Forgotten in the meantime, as a rule.
            tracing::debug!(file = file.0, %error, "not written back");
        }
        self.asking.fetch_sub(1, SeqCst);
        is_first
    }

    /// lseek(2) for data and holes, of what the kernel and the view have together.
    pub fn seek(&self, view: &dyn Requests, file: NodeId, from: u64, how: Seek) -> Reply<u64> {
        let mut asked = 0..0;
        loop {
            let found = view.lseek(file, from, how);
            let hole = hole(view, file, from, how, found)?;
            if hole.is_empty() || (asked.start <= hole.start && hole.end <= asked.end) {
                return found;
            }
            // The second time of all holes: there may be many.
            asked = if asked.is_empty() { hole } else { hole.start..u64::MAX };
            if !self.write_back(file, asked.clone()) {
                return match how {
                    Seek::Data => Ok(from),
                    Seek::Hole => Ok(view.getattr(file)?.size),
                };
            }
        }
    }

    /// Puts zeros where a gap begins, if the kernel may have something else there.  `by_write`:
    /// the request that has left the gap is a write, whose data the kernel has in its pages.
    pub fn fill(&self, file: NodeId, gap: Range<u64>, by_write: bool) {
        let tail = gap.start..gap.end.min(gap.start.next_multiple_of(PAGE));
        let end = self.whole.lock().get(&file).copied().unwrap_or(0);
        if tail.is_empty() || end <= gap.start / PAGE * PAGE {
            return;
        }
        let gap = (file, tail);
        let mut open = self.gaps.open.lock();
        open.push(gap.clone());
        self.gaps.count.store(open.len(), SeqCst);
        drop(open);
        let (pages, gaps, mine) = (Arc::clone(&self.pages), Arc::clone(&self.gaps), gap.clone());
        let zero = move || {
            let (file, range) = mine.clone();
            let done =
                if by_write { pages.write_back(file, range) } else { pages.zero(file, range) };
            if let Err(error) = done {
                tracing::debug!(file = file.0, %error, "no zeros behind the end of a file");
            }
            gaps.close(&mine);
        };
        if let Err(error) = std::thread::Builder::new().name("fuse-gap".into()).spawn(zero) {
            tracing::warn!(%error, "no thread to put zeros behind the end of a file");
            return self.gaps.close(&gap);
        }
        self.wait_filled(&gap, if by_write { PATIENCE } else { LONG_PATIENCE });
        if by_write {
            self.gaps.close(&gap);
        }
    }

    fn wait_filled(&self, gap: &(NodeId, Range<u64>), patience: Duration) {
        let begun = Instant::now();
        let mut open = self.gaps.open.lock();
        while open.contains(gap) {
            let left = patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return;
            }
            self.gaps.closed.wait_for(&mut open, left);
        }
    }

    /// What the kernel writes back, as it is with zeros in the gaps that have none yet.
    pub fn with_gaps<'d>(&self, file: NodeId, offset: u64, data: &'d [u8]) -> Cow<'d, [u8]> {
        let mut data = Cow::Borrowed(data);
        if self.gaps.count.load(SeqCst) == 0 {
            return data;
        }
        for (_, gap) in self.gaps.open.lock().iter().filter(|(of, _)| *of == file) {
            let end = offset.saturating_add(data.len() as u64);
            let (from, to) = (gap.start.max(offset), gap.end.min(end));
            if from < to {
                // Both lie within the data.
                data.to_mut()[(from - offset) as usize..(to - offset) as usize].fill(0);
            }
        }
        data
    }
}

/// The hole that such an answer speaks of: empty if there is none.
fn hole(
    view: &dyn Requests,
    file: NodeId,
    from: u64,
    how: Seek,
    found: Reply<u64>,
) -> Reply<Range<u64>> {
    let start = match (how, found) {
        (Seek::Data, Ok(data)) => return Ok(from..data),
        (Seek::Data, Err(Errno::NXIO)) => from,
        (Seek::Hole, Ok(hole)) => hole,
        (_, Err(_)) => return Ok(0..0),
    };
    if start >= view.getattr(file)?.size {
        return Ok(0..0);
    }
    if how == Seek::Data {
        return Ok(start..u64::MAX);
    }
    match view.lseek(file, start, Seek::Data) {
        Ok(data) => Ok(start..data),
        Err(Errno::NXIO) => Ok(start..u64::MAX),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests;
