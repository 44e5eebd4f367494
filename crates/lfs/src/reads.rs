//! What is known of those who read: which files are read from front to back, and what readers have
//! lost because a file lies scattered.  It is in memory alone: to forget it costs time and nothing
//! else.

use crate::format::Ino;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Most pages that the medium is told of ahead of who reads in order.
const AHEAD: u64 = 512;
/// Files that are followed at once.
const FILES: usize = 1024;
/// Pages that are worth as much as one jump: who reads in order loses by it about the time in which
/// so many blocks are written.
const JUMP: u64 = 16;
/// Pages that lie together in a file that is in order, at least: less cannot be helped.
pub const TOGETHER: u64 = 32;

/// Where the reader of a file is.
#[derive(Clone, Copy, Default)]
struct Reader {
    /// The page after the last one that was read.
    next: u64,
    /// Up to here the medium was told.
    told: u64,
    /// Requests in order, one after the other.
    streak: u32,
}

/// See the module.
#[derive(Default)]
pub struct Reads {
    readers: HashMap<Ino, Reader>,
    /// Jumps that were made beyond those that order would have made, by file.
    jumps: BTreeMap<Ino, u64>,
    /// Files whose readers have lost as much as it costs to write them in order.
    due: BTreeMap<Ino, u64>,
    has_news: bool,
}

impl Reads {
    /// These pages of a file are about to be read: the medium is to be told of those that are
    /// returned.  They are more, the longer somebody reads in order.
    pub fn follow(&mut self, ino: Ino, pages: Range<u64>) -> Range<u64> {
        let n = pages.end.saturating_sub(pages.start);
        if self.readers.len() >= FILES && !self.readers.contains_key(&ino) {
            self.readers.clear();
        }
        let reader = self.readers.entry(ino).or_default();
        // Requests of a reader that is ahead may overtake each other.
        let is_before = pages.start < reader.next;
        let near = pages.start.abs_diff(reader.next) <= n * 2 && reader.next > 0;
        let near = near && !(is_before && reader.streak < 2);
        if !near {
            *reader = Reader { next: pages.end, told: pages.start, streak: 0 };
        }
        if pages.start >= reader.next {
            reader.streak = (reader.streak + 1).min(16);
        }
        reader.next = reader.next.max(pages.end);
        let ahead = if reader.streak < 2 { 0 } else { (n << reader.streak).min(AHEAD) };
        let from = reader.told.max(pages.start);
        // One page alone is read as fast as it is told of.
        if n + ahead <= 1 || ahead > 0 && from >= reader.next + ahead / 2 {
            return from..from;
        }
        reader.told = from.max(reader.next + ahead);
        from..reader.told
    }

    /// Somebody reads so many pages of a file, of `all`, in so many runs.
    pub fn jumped(&mut self, ino: Ino, pages: u64, runs: u64, all: u64) {
        // One more may be the end of a segment.
        let more = runs.saturating_sub(2 + pages / TOGETHER);
        if more == 0 {
            return;
        }
        if self.jumps.len() >= FILES * 64 {
            self.jumps.clear();
        }
        let jumps = self.jumps.entry(ino).or_default();
        *jumps += more;
        if *jumps * JUMP >= all {
            self.has_news |= self.due.insert(ino, *jumps).is_none();
        }
    }

    /// Whether a file has become due since this was asked last.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Whether a file is due.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The file whose readers have lost most.  It is not due again before they have lost as much
    /// once more.
    pub fn take_due(&mut self) -> Option<Ino> {
        let (ino, _) = self.due.iter().max_by_key(|(_, jumps)| **jumps)?;
        let ino = *ino;
        self.forget(ino);
        Some(ino)
    }

    /// A file is gone, or is written anew.
    pub fn forget(&mut self, ino: Ino) {
        self.jumps.remove(&ino);
        self.due.remove(&ino);
        self.readers.remove(&ino);
    }
}
