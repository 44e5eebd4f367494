//! Histories of transactions over simulated data, and a judge of them that knows nothing of the
//! engine.
//!
//! Every cell of data holds the number of the unit (transaction or outside write) that wrote it
//! last. A history is what each committed unit saw and wrote, and in which order the values of each
//! cell came. The judge draws the graph of Adya: u → v if v saw a value of u, if v's value came
//! directly after u's, or if u saw the value that v's replaced. The history is serializable if and
//! only if the graph has no cycle. Whoever lists a directory sees of every possible name whether it
//! is there, so phantoms are ordinary edges.

use std::collections::{BTreeMap, BTreeSet};
use systx_base::Oid;
use systx_txn::ObjectRef;

/// Names in each directory.
pub const NAMES: u8 = 3;

/// A cell of data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cell {
    Entry(u64, u8),
    /// Whether the name is there: what a listing shows of it.
    Name(u64, u8),
    Attr(u64),
    Size(u64),
    Page(u64, u64),
}

/// What one access touches.
#[allow(dead_code)] // Not every test uses every kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Target {
    Entry(u64, u8),
    /// Read only.
    List(u64),
    Attr(u64),
    Size(u64),
    Pages(u64, u64, u64),
}

impl Target {
    pub fn with<T>(self, f: impl FnOnce(ObjectRef<'_>) -> T) -> T {
        match self {
            Target::Entry(d, n) => f(ObjectRef::Entry { dir: Oid(d), name: &[n] }),
            Target::List(d) => f(ObjectRef::List(Oid(d))),
            Target::Attr(o) => f(ObjectRef::Attr(Oid(o))),
            Target::Size(o) => f(ObjectRef::Size(Oid(o))),
            Target::Pages(o, first, last) => f(ObjectRef::Pages { oid: Oid(o), first, last }),
        }
    }

    /// What a write of it changes.
    pub fn written(self) -> Vec<Cell> {
        match self {
            Target::Entry(d, n) => vec![Cell::Entry(d, n), Cell::Name(d, n)],
            _ => self.seen(),
        }
    }

    /// What a read of it shows.
    pub fn seen(self) -> Vec<Cell> {
        match self {
            Target::Entry(d, n) => vec![Cell::Entry(d, n)],
            Target::List(d) => (0..NAMES).map(|n| Cell::Name(d, n)).collect(),
            Target::Attr(o) => vec![Cell::Attr(o)],
            Target::Size(o) => vec![Cell::Size(o)],
            Target::Pages(o, a, b) => (a..=b).map(|p| Cell::Page(o, p)).collect(),
        }
    }
}

/// A unit: a transaction or an outside write.  0 wrote what was there in the beginning.
pub type Unit = u64;

/// See the head of this file.
#[derive(Clone, Default, Debug)]
pub struct History {
    /// The values of each cell, oldest first, without the one of unit 0.
    pub values: BTreeMap<Cell, Vec<Unit>>,
    /// What each committed unit saw.
    pub saw: BTreeMap<Unit, BTreeMap<Cell, Unit>>,
}

impl History {
    /// The present value of a cell.
    pub fn value(&self, cell: Cell) -> Unit {
        self.values.get(&cell).and_then(|v| v.last()).copied().unwrap_or(0)
    }

    pub fn write(&mut self, cell: Cell, unit: Unit) {
        self.values.entry(cell).or_default().push(unit);
    }

    fn edges(&self) -> BTreeSet<(Unit, Unit)> {
        let mut edges = BTreeSet::new();
        for values in self.values.values() {
            edges.extend(values.windows(2).map(|w| (w[0], w[1])));
        }
        for (reader, saw) in &self.saw {
            for (cell, writer) in saw {
                edges.insert((*writer, *reader));
                let values = self.values.get(cell).map_or(&[][..], |v| v);
                let next = match values.iter().position(|v| v == writer) {
                    Some(at) => values.get(at + 1),
                    None => values.first(),
                };
                edges.extend(next.map(|next| (*reader, *next)));
            }
        }
        edges.retain(|(a, b)| a != b && *a != 0);
        edges
    }

    /// A serial order of the units, or those among which there is a cycle.
    pub fn serial_order(&self) -> Result<Vec<Unit>, BTreeSet<Unit>> {
        let edges = self.edges();
        let mut left: BTreeSet<Unit> = edges.iter().flat_map(|(a, b)| [*a, *b]).collect();
        left.extend(self.saw.keys());
        let mut order = Vec::new();
        while !left.is_empty() {
            let blocked = |u: &Unit| edges.iter().any(|(a, b)| b == u && left.contains(a));
            let Some(next) = left.iter().copied().find(|u| !blocked(u)) else { return Err(left) };
            left.remove(&next);
            order.push(next);
        }
        Ok(order)
    }

    /// Units that saw a value of a cell and replaced another one: lost updates.  To have listed a
    /// directory is not to have looked at what a name stands for.
    pub fn lost_updates(&self) -> Vec<(Unit, Cell)> {
        let mut lost = Vec::new();
        let cells = self.values.iter().filter(|(cell, _)| !matches!(cell, Cell::Name(..)));
        for (cell, values) in cells {
            let mut before = 0;
            for unit in values {
                let seen = self.saw.get(unit).and_then(|saw| saw.get(cell));
                if seen.is_some_and(|seen| *seen != before) {
                    lost.push((*unit, *cell));
                }
                before = *unit;
            }
        }
        lost
    }
}

/// Small, seeded, the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
