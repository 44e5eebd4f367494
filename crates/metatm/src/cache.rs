//! Caches of the processors: where a line is, and what it costs to have it.

use crate::settings::Costs;

const SETS: usize = 64;
const WAYS: usize = 4;
const NONE: u32 = u32::MAX;

/// First level caches of 16 KiB (four ways, 64 bytes a line), and second level caches that nothing
/// falls out of: the modelled data is smaller than they are.
#[derive(Debug)]
pub struct Caches {
    /// Per processor and set, the line used last first.
    first: Vec<[[u32; WAYS]; SETS]>,
    /// Which processors have a valid copy, by line.
    copies: Vec<u64>,
}

/// What an access took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Took {
    /// Cycles.
    pub cycles: u32,
    /// A line fell out of the first level cache.
    pub evicted: Option<u32>,
}

impl Caches {
    /// Empty caches.
    #[must_use]
    pub fn new(processors: usize, lines: usize) -> Self {
        Caches { first: vec![[[NONE; WAYS]; SETS]; processors], copies: vec![0; lines] }
    }

    /// Processor `p` reads or writes a line.
    pub fn access(&mut self, p: usize, line: u32, write: bool, costs: &Costs) -> Took {
        let mine = 1u64 << p;
        let copies = &mut self.copies[line as usize];
        let (have, others) = (*copies & mine != 0, *copies & !mine);
        *copies = if write { mine } else { *copies | mine };
        let (near, evicted) = self.touch(p, line);
        let cycles = match () {
            () if !have || (write && others != 0) => costs.bus,
            () if near => costs.hit,
            () => costs.second,
        };
        Took { cycles, evicted }
    }

    /// Puts a line in front of its set.
    fn touch(&mut self, p: usize, line: u32) -> (bool, Option<u32>) {
        let set = &mut self.first[p][line as usize % SETS];
        if let Some(at) = set.iter().position(|l| *l == line) {
            set[..=at].rotate_right(1);
            return (true, None);
        }
        set.rotate_right(1);
        let out = std::mem::replace(&mut set[0], line);
        (false, (out != NONE).then_some(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_near_where_it_was_used_last_and_far_after_a_write_elsewhere() {
        let (mut caches, costs) = (Caches::new(2, 1000), Costs::default());
        let mut take = |p, write| caches.access(p, 7, write, &costs).cycles;
        assert_eq!([take(0, false), take(0, false), take(0, true)], [200, 1, 1]);
        assert_eq!([take(1, false), take(1, false), take(0, false)], [200, 1, 1]);
        // A write takes the copy of the other one away.
        assert_eq!([take(0, true), take(0, true), take(1, false)], [200, 1, 200]);
    }

    #[test]
    fn the_fifth_line_of_a_set_throws_out_the_one_not_used_for_longest() {
        let (mut caches, costs) = (Caches::new(1, 1000), Costs::default());
        let mut take = |line: u32| caches.access(0, line, false, &costs);
        for n in 0..4 {
            assert_eq!(take(n * 64).evicted, None);
        }
        take(0);
        assert_eq!(take(4 * 64).evicted, Some(64));
        assert_eq!((take(0).cycles, take(64).cycles), (1, 16));
    }
}
