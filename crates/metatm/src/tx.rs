//! Transactions of the hardware.

use crate::workload::Addr;
use smallvec::SmallVec;

/// Number of a transaction among those that there are now.
pub type Key = u32;

/// Why an attempt was undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Lost to another transaction.
    Conflict,
    /// A thread outside of transactions touched the same word.
    Asymmetric,
    /// The section needs mutual exclusion: I/O, or an exclusive section inside.
    NeedExclusive,
    /// More than the first level cache holds.
    Overflow,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 4] =
        [Cause::Conflict, Cause::Asymmetric, Cause::NeedExclusive, Cause::Overflow];

    /// Place in [`Cause::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a section read first and wrote last, to be checked at its end.
#[derive(Clone, Default, Debug)]
pub struct Unit {
    /// Words that it read before it wrote them, with what was seen.
    pub reads: Vec<(Addr, u64)>,
    /// Words that it wrote, with what is there now.
    pub writes: Vec<(Addr, u64)>,
}

impl Unit {
    /// It has seen a word.
    pub fn read(&mut self, at: Addr, value: u64) {
        if !self.writes.iter().any(|(a, _)| *a == at) {
            self.reads.push((at, value));
        }
    }

    /// It has changed a word.
    pub fn wrote(&mut self, at: Addr, value: u64) {
        match self.writes.iter_mut().find(|(a, _)| *a == at) {
            Some((_, v)) => *v = value,
            None => self.writes.push((at, value)),
        }
    }
}

/// What a thread brings into a conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// When the first attempt of the section began; attempts after it have the same.
    pub timestamp: u64,
    /// Attempts that were undone.
    pub losses: u32,
    /// Words that those had touched.
    pub karma: u64,
    /// How urgent the thread was when the processor was told.
    pub priority: i32,
}

/// An attempt of a section.
#[derive(Debug)]
pub struct Tx {
    /// What `xgettxid` says.
    pub id: u64,
    /// The thread, by number.
    pub thread: usize,
    /// For conflicts.
    pub standing: Standing,
    /// Words of the read set.
    pub reads: Vec<Addr>,
    /// Words of the write set, with what was there.
    pub undo: Vec<(Addr, u64)>,
    /// Lines of both.
    pub lines: Vec<u32>,
    /// Has lost: nothing is left but to restart.
    pub doomed: Option<Cause>,
    /// For the check.
    pub unit: Unit,
    /// Cycles so far, by processor.
    pub cost: SmallVec<[(usize, u64); 2]>,
    /// Locks that it found free, by number.
    pub locks: SmallVec<[usize; 2]>,
    /// Where the thread goes back to: a step, and how many sections are around it.
    pub start: (usize, usize),
}

impl Tx {
    /// Words in both sets.
    #[must_use]
    pub fn size(&self) -> u64 {
        (self.reads.len() + self.undo.len()) as u64
    }

    /// So many cycles of a processor went into this attempt.
    pub fn charge(&mut self, processor: usize, cycles: u64) {
        match self.cost.iter_mut().find(|(p, _)| *p == processor) {
            Some((_, sum)) => *sum += cycles,
            None => self.cost.push((processor, cycles)),
        }
    }
}

/// All transactions that there are now.
#[derive(Default, Debug)]
pub struct Txs {
    all: Vec<Option<Tx>>,
    free: Vec<Key>,
}

impl Txs {
    /// Adds one.
    pub fn add(&mut self, tx: Tx) -> Key {
        if let Some(key) = self.free.pop() {
            self.all[key as usize] = Some(tx);
            return key;
        }
        self.all.push(Some(tx));
        (self.all.len() - 1) as Key
    }

    /// One that is there.
    #[must_use]
    pub fn get(&self, key: Key) -> &Tx {
        self.all[key as usize].as_ref().expect("a transaction that has not ended")
    }

    /// One that is there.
    pub fn get_mut(&mut self, key: Key) -> &mut Tx {
        self.all[key as usize].as_mut().expect("a transaction that has not ended")
    }

    /// Takes one out.
    pub fn remove(&mut self, key: Key) -> Tx {
        self.free.push(key);
        self.all[key as usize].take().expect("a transaction that has not ended")
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.free.len() == self.all.len()
    }
}
