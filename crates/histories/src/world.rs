//! The world that a serial execution would have: cells with values, undone step by step.

use crate::history::{Atom, Cell, State};
use std::collections::HashMap;

/// Why an atom cannot be where it was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// What was recorded.
    pub atom: Atom,
    /// The cell that says otherwise.
    pub cell: Cell,
    /// What it holds.
    pub holds: u64,
}

/// Cells and values, with a fingerprint and a way back.
#[derive(Clone, Debug, Default)]
pub struct World {
    cells: HashMap<Cell, u64>,
    fingerprint: u128,
    /// What was overwritten, the latest last.
    before: Vec<(Cell, u64)>,
}

/// Mixes two words; the constants are those of splitmix64.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// 128 bits of a few words, for fingerprints that are combined by exclusive or.
pub fn hash(words: &[u64]) -> u128 {
    let (mut a, mut b) = (0x9e37_79b9_7f4a_7c15_u64, 0xd1b5_4a32_d192_ed03_u64);
    for word in words {
        a = mix(a ^ word);
        b = mix(b.wrapping_add(*word).rotate_left(17));
    }
    u128::from(a) << 64 | u128::from(b)
}

fn contribution(cell: Cell, value: u64) -> u128 {
    if value == 0 {
        return 0;
    }
    let (kind, a, b) = match cell {
        Cell::Slot(file, slot) => (1, file, slot),
        Cell::Size(file) => (2, file, 0),
        Cell::Mode(file) => (3, file, 0),
        Cell::Entry(dir, name) => (4, dir, name),
    };
    hash(&[kind, u64::from(a) << 32 | u64::from(b), value])
}

impl World {
    /// As it was to begin with.
    pub fn new(initial: &State) -> World {
        let mut world = World::default();
        for (cell, value) in initial {
            world.put(*cell, *value);
        }
        world.before.clear();
        world
    }

    /// What a cell holds.
    pub fn get(&self, cell: Cell) -> u64 {
        self.cells.get(&cell).copied().unwrap_or(0)
    }

    /// The same for equal worlds, and for hardly any others.
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }

    /// All that it holds.
    pub fn state(&self) -> State {
        self.cells.iter().filter(|(_, v)| **v != 0).map(|(c, v)| (*c, *v)).collect()
    }

    fn put(&mut self, cell: Cell, value: u64) {
        let old = self.cells.insert(cell, value).unwrap_or(0);
        self.fingerprint ^= contribution(cell, old) ^ contribution(cell, value);
        self.before.push((cell, old));
    }

    /// Where it stands, for [`World::back_to`].
    pub fn mark(&self) -> usize {
        self.before.len()
    }

    /// Takes back what was done since.
    pub fn back_to(&mut self, mark: usize) {
        while self.before.len() > mark {
            if let Some((cell, old)) = self.before.pop() {
                let new = self.cells.insert(cell, old).unwrap_or(0);
                self.fingerprint ^= contribution(cell, old) ^ contribution(cell, new);
            }
        }
    }

    /// Does one atom; `held` is what its unit has looked up.
    ///
    /// # Errors
    /// What contradicts it; then nothing is changed.
    pub fn perform(&mut self, atom: Atom, held: &mut u64) -> Result<(), Contradiction> {
        let unless = |ok: bool, cell: Cell, holds: u64| match ok {
            true => Ok(()),
            false => Err(Contradiction { atom, cell, holds }),
        };
        match atom {
            Atom::Is(cell, value) => unless(self.get(cell) == value, cell, self.get(cell)),
            Atom::Present(cell) => unless(self.get(cell) != 0, cell, 0),
            Atom::Set(cell, value) => {
                self.put(cell, value);
                Ok(())
            }
            Atom::Append(file, value) => {
                let size = self.get(Cell::Size(file));
                // A length that no record number reaches is not the recorder's.
                unless(size < u64::from(u32::MAX), Cell::Size(file), size)?;
                self.put(Cell::Slot(file, size as u32), value);
                self.put(Cell::Size(file), size + 1);
                Ok(())
            }
            Atom::Truncate(file, len) => {
                let size = self.get(Cell::Size(file));
                for slot in u64::from(len)..size {
                    self.put(Cell::Slot(file, slot as u32), 0);
                }
                self.put(Cell::Size(file), u64::from(len));
                Ok(())
            }
            Atom::Rename(from, to) => {
                let what = self.get(from);
                unless(what != 0, from, 0)?;
                if self.get(to) != what {
                    self.put(to, what);
                    self.put(from, 0);
                }
                Ok(())
            }
            Atom::Resolve(cell) => {
                unless(self.get(cell) != 0, cell, 0)?;
                *held = self.get(cell);
                Ok(())
            }
            Atom::Bind(cell) => {
                unless(self.get(cell) == 0, cell, self.get(cell))?;
                self.put(cell, *held);
                Ok(())
            }
        }
    }
}
