//! Counters of a connection.  Relaxed atomics: they order nothing and are only looked at.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::wire::Opcode;

/// One more than the largest opcode.
const OPCODES: usize = 64;

/// What a connection did so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that arrived.
    pub requests: u64,
    /// Requests answered with an error (`ENOENT` included).
    pub refused: u64,
    /// Requests that were not of the protocol.
    pub malformed: u64,
    /// Requests during which the view panicked.
    pub panicked: u64,
    /// Worker threads started after the first ones, because requests blocked.
    pub grown: u64,
    /// Threads that serve this connection now.
    pub threads: usize,
    /// Requests by opcode, those that occurred.
    pub by_opcode: Vec<(Opcode, u64)>,
}

impl Stats {
    /// How many requests of one opcode arrived.
    pub fn count(&self, opcode: Opcode) -> u64 {
        self.by_opcode.iter().find(|(o, _)| *o == opcode).map_or(0, |(_, n)| *n)
    }
}

pub(crate) struct Counters {
    by_opcode: [AtomicU64; OPCODES],
    refused: AtomicU64,
    malformed: AtomicU64,
    panicked: AtomicU64,
    grown: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            by_opcode: [const { AtomicU64::new(0) }; OPCODES],
            refused: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            panicked: AtomicU64::new(0),
            grown: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub fn request(&self, opcode: Option<Opcode>) {
        // Unknown opcodes are counted under 0, which no opcode uses.
        let at = opcode.map_or(0, |o| o as usize);
        if let Some(counter) = self.by_opcode.get(at) {
            counter.fetch_add(1, Relaxed);
        }
    }

    pub fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub fn malformed(&self) {
        self.malformed.fetch_add(1, Relaxed);
    }

    pub fn panicked(&self) {
        self.panicked.fetch_add(1, Relaxed);
    }

    pub fn grown(&self) {
        self.grown.fetch_add(1, Relaxed);
    }

    pub fn snapshot(&self, threads: usize) -> Stats {
        let of = |opcode: &Opcode| {
            let n = self.by_opcode.get(*opcode as usize).map_or(0, |c| c.load(Relaxed));
            (n > 0).then_some((*opcode, n))
        };
        Stats {
            requests: self.by_opcode.iter().map(|c| c.load(Relaxed)).sum(),
            refused: self.refused.load(Relaxed),
            malformed: self.malformed.load(Relaxed),
            panicked: self.panicked.load(Relaxed),
            grown: self.grown.load(Relaxed),
            threads,
            by_opcode: Opcode::ALL.iter().filter_map(of).collect(),
        }
    }
}
