//! The log that QEMU's `blklogwrites` writes of a disk, and what the disk holds after a power cut.
//!
//! The format is that of the kernel's dm-log-writes: a sector that says how many entries there are,
//! then for each entry a sector with its place, length and flags, followed by its data. All numbers
//! are little-endian.

use crate::random::Random;
use std::ops::Range;

/// Unit in which a disk writes: what is torn is torn between two of them.
pub const SECTOR: usize = 512;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
const METADATA: u64 = 16;

/// What the disk was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing but to flush.
    Nothing,
    /// These bytes of the log were written.
    Write(Range<usize>),
    /// So many sectors were given up; they read as zeros.
    Discard(u64),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where, in bytes from the start of the disk.
    pub at: u64,
    /// What.
    pub act: Act,
    /// All that came before is durable once this was answered.
    pub flush: bool,
    /// It is durable itself once it was answered.
    pub durable: bool,
}

/// All requests in their order.
pub struct Log {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// What a power cut left of what no flush had covered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Writes that the disk had not been told to make durable.
    pub volatile: usize,
    /// Of those, writes of which at least a sector did not arrive.
    pub damaged: usize,
    /// Sectors that did not arrive.
    pub sectors: usize,
}

impl Log {
    /// Reads a log of a disk of `size` bytes.
    ///
    /// # Errors
    /// It is no such log, or names what such a disk cannot have.
    pub fn parse(bytes: Vec<u8>, size: u64) -> Result<Log, String> {
        let word = |at: usize| {
            let word = at.checked_add(8).and_then(|end| bytes.get(at..end));
            word.and_then(|w| w.try_into().ok()).map(u64::from_le_bytes)
        };
        let cut_off = || "the log ends within its first sector".to_owned();
        if word(0).ok_or_else(cut_off)? != MAGIC {
            return Err("no log of writes: its first bytes are others".into());
        }
        let version = word(8).ok_or_else(cut_off)?;
        let sector = word(24).ok_or_else(cut_off)? as u32;
        if version != 1 || sector as usize != SECTOR {
            return Err(format!("a log of version {version} with sectors of {sector} bytes"));
        }
        let count = word(16).ok_or_else(cut_off)?;
        let mut entries = Vec::new();
        let mut at = SECTOR;
        for n in 0..count {
            let begin = at;
            let bad = |what: &str| format!("entry {n} of the log, at byte {begin}: {what}");
            let head = [word(at), word(at + 8), word(at + 16), word(at + 24)];
            let [Some(place), Some(sectors), Some(flags), Some(extra)] = head else {
                return Err(bad("the log ends before it"));
            };
            if flags & !(FLUSH | FUA | DISCARD | METADATA) != 0 || extra != 0 {
                let what = if flags & MARK != 0 { "a mark" } else { "unknown flags" };
                return Err(bad(&format!("{what}, which this disk does not write ({flags:x})")));
            }
            let start = place.checked_mul(SECTOR as u64);
            let len = sectors.checked_mul(SECTOR as u64);
            let (Some(start), Some(len)) = (start, len) else {
                return Err(bad("beyond every disk"));
            };
            if start.checked_add(len).is_none_or(|end| end > size) {
                return Err(bad("beyond the end of the disk"));
            }
            at += SECTOR;
            let act = if sectors == 0 {
                Act::Nothing
            } else if flags & DISCARD != 0 {
                Act::Discard(sectors)
            } else {
                // It fits: the disk does.
                let data = at..at.saturating_add(len as usize);
                if data.end > bytes.len() {
                    return Err(bad("the log ends within its data"));
                }
                at = data.end;
                Act::Write(data)
            };
            entries.push(Entry {
                at: start,
                act,
                flush: flags & FLUSH != 0,
                durable: flags & FUA != 0,
            });
        }
        Ok(Log { bytes, entries })
    }

    /// All entries in their order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What an entry wrote, if it wrote something.
    pub fn data(&self, entry: &Entry) -> Option<&[u8]> {
        match &entry.act {
            Act::Write(range) => self.bytes.get(range.clone()),
            _ => None,
        }
    }

    /// Where this was written first, as the number of the entry.
    pub fn position(&self, at: u64, begin: &[u8]) -> Option<usize> {
        let is = |e: &Entry| e.at == at && self.data(e).is_some_and(|d| d.starts_with(begin));
        self.entries.iter().position(is)
    }

    /// The number of the entry up to which all is durable when the first `end` entries were
    /// answered.
    pub fn flushed(&self, end: usize) -> usize {
        let before = &self.entries[..end.min(self.entries.len())];
        // The flush that a write asks for comes before it.
        before.iter().rposition(|e| e.flush).unwrap_or(0)
    }

    /// The disk after a power cut when the first `end` entries were answered, from what it held at
    /// first. What a flush covers is there, and of each write that none covers any part, at the
    /// dice's choice. With `lie` the disk has ignored all flushes.
    pub fn cut(&self, disk: &mut [u8], end: usize, lie: bool, dice: &mut Random) -> Lost {
        let end = end.min(self.entries.len());
        let flushed = if lie { 0 } else { self.flushed(end) };
        let mut lost = Lost::default();
        let taste = Taste::choose(dice, flushed, end);
        for (n, entry) in self.entries[..end].iter().enumerate() {
            let sectors = self.sectors(entry);
            if n < flushed || (entry.durable && !lie) {
                for sector in 0..sectors {
                    self.put(disk, entry, sector);
                }
                continue;
            }
            lost.volatile += usize::from(sectors > 0);
            let whole = taste.whole(n, dice);
            let mut missing = 0;
            for sector in 0..sectors {
                if whole.unwrap_or_else(|| taste.sector(dice)) {
                    self.put(disk, entry, sector);
                } else {
                    missing += 1;
                }
            }
            lost.damaged += usize::from(missing > 0);
            lost.sectors += missing;
        }
        lost
    }

    /// The disk as all of it leaves it.
    pub fn replay(&self, disk: &mut [u8]) {
        for entry in &self.entries {
            for sector in 0..self.sectors(entry) {
                self.put(disk, entry, sector);
            }
        }
    }

    fn sectors(&self, entry: &Entry) -> usize {
        match &entry.act {
            Act::Nothing => 0,
            Act::Write(range) => range.len() / SECTOR,
            Act::Discard(n) => *n as usize,
        }
    }

    /// Writes one sector of an entry.  What does not lie on this disk is left out.
    fn put(&self, disk: &mut [u8], entry: &Entry, sector: usize) {
        let Ok(at) = usize::try_from(entry.at) else { return };
        let at = at + sector * SECTOR;
        let Some(target) = disk.get_mut(at..at + SECTOR) else { return };
        match self.data(entry) {
            Some(data) => target.copy_from_slice(&data[sector * SECTOR..(sector + 1) * SECTOR]),
            None => target.fill(0),
        }
    }
}

/// In which way a cut loses: nothing and all are as likely as any mixture.
enum Taste {
    Nothing,
    All,
    /// What came first arrives; of the one at the cut, a part.
    Early(usize),
    /// Whole writes, with so many chances of eight to arrive.
    Writes(u64),
    /// Sectors, with so many chances of eight to arrive.
    Sectors(u64),
    /// A third of the writes arrives, a third does not, and a third is torn.
    Torn,
}

impl Taste {
    fn choose(dice: &mut Random, flushed: usize, end: usize) -> Taste {
        match dice.below(8) {
            0 => Taste::Nothing,
            1 => Taste::All,
            2 => Taste::Early(flushed + dice.below((end - flushed).max(1) as u64) as usize),
            3 | 4 => Taste::Writes(1 + dice.below(7)),
            5 => Taste::Sectors(1 + dice.below(7)),
            _ => Taste::Torn,
        }
    }

    /// Whether the whole of a write arrives; nothing if that is up to each sector.
    fn whole(&self, n: usize, dice: &mut Random) -> Option<bool> {
        match self {
            Taste::Nothing => Some(true),
            Taste::All => Some(false),
            Taste::Early(last) => (n != *last).then_some(n < *last),
            Taste::Writes(chances) => Some(dice.below(8) < *chances),
            Taste::Sectors(_) => None,
            Taste::Torn => match dice.below(3) {
                0 => Some(true),
                1 => Some(false),
                _ => None,
            },
        }
    }

    fn sector(&self, dice: &mut Random) -> bool {
        match self {
            Taste::Sectors(chances) => dice.below(8) < *chances,
            _ => dice.below(2) == 0,
        }
    }
}
