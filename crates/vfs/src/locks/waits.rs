//! Who waits for a lock of whom, in all views of this process: how a circle is found, and how a
//! waiter hears of a release.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use systx_base::sync::{Mutex, rank};

use super::Class;

/// A request that waits for a lock, as long as it does.
pub struct Wait {
    number: u64,
    /// The process that it is noted under; 0: not noted.
    noted: AtomicU32,
    wake: Box<dyn Fn() + Send + Sync>,
    pub(super) class: OnceLock<Class>,
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wait").field(&self.number).finish()
    }
}

static LAST: AtomicU64 = AtomicU64::new(0);
static GRAPH: Mutex<Graph> = Mutex::new(rank::LEAF, Graph(BTreeMap::new()));

impl Wait {
    /// `wake` is called when something was released that was in its way; it may be called from any
    /// thread, and locks nothing but leaves.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Wait> {
        let number = LAST.fetch_add(1, Relaxed);
        let (noted, class) = (AtomicU32::new(0), OnceLock::new());
        Arc::new(Wait { number, noted, wake: Box::new(wake), class })
    }

    /// It waits for a process from now on, and for no other one; false if that would wait for
    /// ever, since that process waits for this one.
    pub(super) fn blocks(&self, pid: u32, holder: u32) -> bool {
        self.clear();
        // A process that waits for itself may have a thread that lets go.
        if pid == 0 || holder == 0 || pid == holder {
            return true;
        }
        self.noted.store(pid, Relaxed);
        GRAPH.lock().block((pid, self.number), holder)
    }

    /// It waits for nobody, until it asks again.
    pub(super) fn clear(&self) {
        match self.noted.swap(0, Relaxed) {
            0 => {}
            pid => drop(GRAPH.lock().0.remove(&(pid, self.number))),
        }
    }

    pub(super) fn wake(&self) {
        (self.wake)();
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.clear();
    }
}

/// For each process that waits, by its waits: for which process.
struct Graph(BTreeMap<(u32, u64), u32>);

impl Graph {
    fn block(&mut self, wait: (u32, u64), holder: u32) -> bool {
        let mut seen = BTreeSet::from([holder]);
        let mut todo = vec![holder];
        while let Some(at) = todo.pop() {
            for (_, next) in self.0.range((at, 0)..=(at, u64::MAX)) {
                if *next == wait.0 {
                    return false;
                }
                if seen.insert(*next) {
                    todo.push(*next);
                }
            }
        }
        self.0.insert(wait, holder);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_closes_a_circle_is_refused_and_no_other() {
        let mut graph = Graph(BTreeMap::new());
        assert!(graph.block((1, 10), 2));
        assert!(graph.block((2, 20), 3));
        assert!(graph.block((4, 40), 3), "two for one");
        assert!(!graph.block((3, 30), 1), "1 waits for 2, 2 for 3");
        assert!(!graph.block((3, 31), 4), "4 waits for 3");
        // Another thread of 1 waits elsewhere.
        assert!(graph.block((1, 11), 5));
        assert!(!graph.block((5, 50), 1));
        graph.0.remove(&(2, 20));
        assert!(graph.block((3, 30), 1));
    }

    #[test]
    fn what_does_not_wait_any_more_is_in_no_circle() {
        let wait = || Wait::new(|| ());
        let (a, b) = (wait(), wait());
        // Numbers of processes that no other test has.
        let (p, q) = (u32::MAX - 1, u32::MAX - 2);
        assert!(a.blocks(p, q));
        assert!(!b.blocks(q, p));
        a.clear();
        assert!(b.blocks(q, p));
        drop(b);
        assert!(a.blocks(p, q));
        assert!(wait().blocks(p, p), "of a process that has another thread");
    }
}
