//! The gate that plain mutations pass while no transaction is open.
//!
//! A mutation that nobody can be in conflict with needs no record. It only has to be known that it
//! is there, so that a transaction does not begin in the middle of it. Hence a counter of those
//! inside, spread over several cache lines so that threads do not fight for one, and a flag that
//! says closed.
//!
//! Why nobody slips through: a mutation adds itself and then looks at the flag; [`Gate::close`]
//! sets the flag and then looks at the counters. All four are sequentially consistent, so at least
//! one of the two sees the other (Dekker's argument): the mutation turns back, or the closer waits
//! for it. A counter that was seen at 0 after the flag was set is only raised by those that turn
//! back.
//!
//! Why nobody sleeps for ever: the closer looks at the counters with `open` locked, and gives that
//! lock up only by going to sleep. Who leaves subtracts itself and then looks at the flag. Either
//! the closer saw the subtraction, or the flag was set before it, and then the one that leaves
//! takes the lock, which is after the closer went to sleep, and wakes it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use systx_base::sync::{Event, Mutex, rank};

/// Counters; more threads than these share.
const SHARDS: usize = 16;

/// On a cache line of its own, and that of the neighbour that processors fetch along with it.
#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicUsize);

/// See the head of this file.
pub(crate) struct Gate {
    shards: [Shard; SHARDS],
    closed: AtomicBool,
    /// How many keep it closed.  The lock is a leaf: nothing is called while it is held.
    keepers: Mutex<usize>,
    left: Event,
}

/// Which counter was raised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass(usize);

/// The counter of this thread: threads get them in turn.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static MINE: Cell<usize> = const { Cell::new(usize::MAX) });
    MINE.with(|mine| {
        if mine.get() == usize::MAX {
            mine.set(NEXT.fetch_add(1, SeqCst) % SHARDS);
        }
        mine.get()
    })
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            shards: Default::default(),
            closed: AtomicBool::new(false),
            keepers: Mutex::new(rank::LEAF, 0),
            left: Event::new(),
        }
    }

    /// Whether somebody keeps it closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Goes in; `None` if it is closed.
    pub(crate) fn enter(&self) -> Option<Pass> {
        let pass = Pass(shard());
        self.shards[pass.0].0.fetch_add(1, SeqCst);
        if self.is_closed() {
            self.leave(pass);
            return None;
        }
        Some(pass)
    }

    /// Goes out; any thread may do it.
    pub(crate) fn leave(&self, pass: Pass) {
        self.shards[pass.0].0.fetch_sub(1, SeqCst);
        if self.is_closed() {
            drop(self.keepers.lock());
            self.left.notify_all();
        }
    }

    /// Lets nobody in any more, and returns when nobody is inside.  Each call needs its
    /// [`Gate::open`].
    pub(crate) fn close(&self) {
        let mut keepers = self.keepers.lock();
        *keepers += 1;
        self.closed.store(true, SeqCst);
        // Also whoever finds it closed waits: the first may still be waiting.
        while self.shards.iter().any(|s| s.0.load(SeqCst) != 0) {
            self.left.wait(&mut keepers);
        }
    }

    /// As [`Gate::close`]; false, and nothing is done, if somebody is inside.
    pub(crate) fn try_close(&self) -> bool {
        let mut keepers = self.keepers.lock();
        self.closed.store(true, SeqCst);
        let free = self.shards.iter().all(|s| s.0.load(SeqCst) == 0);
        if free {
            *keepers += 1;
        } else if *keepers == 0 {
            // Who turned back meanwhile is recorded, as if a transaction had been open for a
            // moment.
            self.closed.store(false, SeqCst);
        }
        free
    }

    /// Takes back one [`Gate::close`].
    pub(crate) fn open(&self) {
        let mut keepers = self.keepers.lock();
        *keepers -= 1;
        if *keepers == 0 {
            self.closed.store(false, SeqCst);
        }
    }
}
