//! Shared words: values, and which transactions have read or written them.

use crate::cache::Caches;
use crate::tx::{Key, Tx};
use crate::workload::{Addr, LINE};
use smallvec::SmallVec;

/// Transactions that an access meets.
pub type Rivals = SmallVec<[Key; 4]>;

#[derive(Clone, Default, Debug)]
struct Word {
    value: u64,
    writer: Option<Key>,
    readers: SmallVec<[Key; 2]>,
}

/// The memory of the machine.  Values are written in place; a transaction knows what was there.
#[derive(Debug)]
pub struct Memory {
    words: Vec<Word>,
    /// Where the lines are.
    pub caches: Caches,
}

impl Memory {
    /// Memory of so many words, all zero.
    #[must_use]
    pub fn new(processors: usize, words: u32) -> Self {
        let lines = words.div_ceil(LINE) as usize;
        Memory {
            words: vec![Word::default(); words as usize],
            caches: Caches::new(processors, lines),
        }
    }

    /// What a word is now.
    #[must_use]
    pub fn value(&self, at: Addr) -> u64 {
        self.words[at as usize].value
    }

    /// Sets a word outside of transactions.
    pub fn set(&mut self, at: Addr, value: u64) {
        self.words[at as usize].value = value;
    }

    /// Transactions other than `own` with which an access collides.
    #[must_use]
    pub fn rivals(&self, at: Addr, write: bool, own: Option<Key>) -> Rivals {
        let word = &self.words[at as usize];
        let mut rivals = Rivals::new();
        rivals.extend(word.writer.filter(|w| Some(*w) != own));
        if write {
            let readers = word.readers.iter().filter(|r| Some(**r) != own);
            for reader in readers {
                if !rivals.contains(reader) {
                    rivals.push(*reader);
                }
            }
        }
        rivals
    }

    /// A word joins the read set.
    pub fn read_in(&mut self, at: Addr, key: Key, tx: &mut Tx) -> u64 {
        let word = &mut self.words[at as usize];
        if word.writer != Some(key) && !word.readers.contains(&key) {
            word.readers.push(key);
            tx.reads.push(at);
        }
        word.value
    }

    /// A word joins the write set.
    pub fn write_in(&mut self, at: Addr, value: u64, key: Key, tx: &mut Tx) {
        let word = &mut self.words[at as usize];
        if word.writer != Some(key) {
            tx.undo.push((at, word.value));
            word.writer = Some(key);
        }
        word.value = value;
    }

    /// A transaction gives its words back, changed or as they were.
    pub fn release(&mut self, key: Key, tx: &Tx, undo: bool) {
        for at in &tx.reads {
            self.words[*at as usize].readers.retain(|r| *r != key);
        }
        for (at, old) in tx.undo.iter().rev() {
            let word = &mut self.words[*at as usize];
            if word.writer == Some(key) {
                word.writer = None;
            }
            if undo {
                word.value = *old;
            }
        }
    }
}
