//! A software model of a processor's transactions, for tests on any machine.
//!
//! It does what hardware does, at any speed but that of hardware: each access goes to the lines of
//! a cache that transactions hold; who asks for a line that another transaction holds in a way that
//! conflicts makes that one abort (requester wins); lines are limited; an abort may come out of
//! nowhere.  Writes are kept beside the memory until the commit, so an abort leaves nothing.
//!
//! Where the processor jumps back to the beginning of a transaction the model unwinds the stack.
//! So it needs `panic = "unwind"`, and destructors of the section's values run.

use crate::cause::Cause;
use crate::hardware::{Hardware, Place, sealed};
use crate::sync::{Mutex, Ordering, lock, thread_local};
use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::sync::Arc;

/// What a model is like.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a cache line: the unit of conflicts.
    pub line: usize,
    /// Lines that one transaction may have read.
    pub reads: usize,
    /// Lines that one transaction may have written.
    pub writes: usize,
    /// Of 65536 accesses in transactions, how many abort for no reason that is told.
    pub interrupts: u16,
    /// The seed of these.
    pub seed: u64,
    /// Whether transactions are there at all.
    pub present: bool,
}

impl Default for Settings {
    /// As a processor of 2020, on which nothing else runs.
    fn default() -> Self {
        Self { line: 64, reads: 4096, writes: 448, interrupts: 0, seed: 1, present: true }
    }
}

/// A processor in software.  Clones are the same processor.
#[derive(Clone, Debug)]
pub struct Model {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Transactions by thread.
    running: BTreeMap<u64, Run>,
    random: u64,
    /// Accesses so far.
    ticks: u64,
}

#[derive(Debug, Default)]
struct Run {
    reads: BTreeSet<usize>,
    writes: BTreeSet<usize>,
    doomed: Option<Cause>,
    /// Whether the section is being left.  Its destructors may still touch cells.
    unwinds: bool,
}

thread_local! {
    /// The model in whose transaction this thread is, by the address of what its clones share.
    static INSIDE: Cell<usize> = outside();
}

/// Not a constant: loom's `thread_local` takes none.
fn outside() -> Cell<usize> {
    Cell::new(0)
}

fn go_inside(model: usize) {
    INSIDE.with(|inside| inside.set(model));
}

/// What unwinds when a transaction aborts.
struct Unwound(Cause);

impl Model {
    /// A model with such settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let state = State { random: settings.seed | 1, ..State::default() };
        Self { shared: Arc::new(Shared { settings, state: Mutex::new(state) }) }
    }

    /// How many transactions run, doomed ones included.
    #[must_use]
    pub fn running(&self) -> usize {
        lock(&self.shared.state).running.len()
    }

    /// Makes all transactions that run abort, as a switch of all processors' tasks would.
    pub fn interrupt(&self) {
        for run in lock(&self.shared.state).running.values_mut() {
            run.doom(Cause::Other);
        }
    }

    /// Whether the transaction of this thread, if it is in one, has lost.
    #[must_use]
    pub fn is_doomed(&self) -> bool {
        let state = lock(&self.shared.state);
        state.running.get(&crate::sync::token()).is_some_and(|run| run.doomed.is_some())
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }

    /// One access by this thread: takes the line from whoever holds it in a conflicting way.
    fn access<R>(&self, place: Place<'_>, writes: bool, then: impl FnOnce() -> R) -> R {
        let settings = &self.shared.settings;
        let me = self.active().then(crate::sync::token);
        let line = place.address() / settings.line;
        let mut state = lock(&self.shared.state);
        state.ticks += 1;
        let interrupted = me.is_some() && state.interrupted(settings.interrupts);
        if me.is_none_or(|me| state.running.get(&me).is_some_and(|run| run.doomed.is_none())) {
            state.take(line, writes, me);
        }
        if let Some(run) = me.and_then(|me| state.running.get_mut(&me)) {
            if interrupted {
                run.doom(Cause::Other);
            }
            if run.doomed.is_none() {
                let (lines, room) = match writes {
                    true => (&mut run.writes, settings.writes),
                    false => (&mut run.reads, settings.reads),
                };
                lines.insert(line);
                if lines.len() > room {
                    run.doom(Cause::Capacity);
                }
            }
            if let Some(cause) = run.leaves() {
                drop(state);
                resume_unwind(Box::new(Unwound(cause)));
            }
        }
        // With the lock still held: the access and the check are one step.
        then()
    }
}

impl State {
    /// Of 65536 calls about `share` are true; the same ones for the same seed.
    fn interrupted(&mut self, share: u16) -> bool {
        // xorshift
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random & 0xffff < u64::from(share)
    }

    /// Dooms all but `me` that hold a line in a way that conflicts.
    fn take(&mut self, line: usize, writes: bool, me: Option<u64>) {
        for (_, run) in self.running.iter_mut().filter(|(id, _)| Some(**id) != me) {
            if run.writes.contains(&line) || writes && run.reads.contains(&line) {
                run.doom(Cause::Conflict);
            }
        }
    }
}

impl Run {
    /// The first cause counts.  Who has lost holds nothing any more.
    fn doom(&mut self, cause: Cause) {
        self.doomed.get_or_insert(cause);
        self.reads.clear();
        self.writes.clear();
    }

    /// Why the section is to be left now, if it is; not again by destructors on the way out.
    fn leaves(&mut self) -> Option<Cause> {
        let leaving = self.unwinds && std::thread::panicking();
        self.unwinds |= self.doomed.is_some();
        self.doomed.filter(|_| !leaving)
    }
}

impl sealed::Sealed for Model {}

impl Hardware for Model {
    const BUFFERS: bool = true;

    fn present(&self) -> bool {
        self.shared.settings.present
    }

    fn begin(&self) -> Result<(), Cause> {
        let mut state = lock(&self.shared.state);
        state.ticks += 1;
        state.running.insert(crate::sync::token(), Run::default());
        go_inside(self.address());
        Ok(())
    }

    fn commit(&self, writes: &[(Place<'_>, u64)]) {
        let mut state = lock(&self.shared.state);
        state.ticks += 1;
        let me = crate::sync::token();
        if let Some(cause) = state.running.get(&me).and_then(|run| run.doomed) {
            drop(state);
            resume_unwind(Box::new(Unwound(cause)));
        }
        for (place, value) in writes {
            place.0.store(*value, Ordering::Release);
        }
        state.running.remove(&me);
        go_inside(0);
    }

    fn abort(&self, cause: Cause) -> ! {
        if let Some(run) = lock(&self.shared.state).running.get_mut(&crate::sync::token()) {
            run.doom(cause);
            run.unwinds = true;
        }
        resume_unwind(Box::new(Unwound(cause)))
    }

    fn caught(&self, payload: &(dyn Any + Send)) -> Option<Cause> {
        let run = lock(&self.shared.state).running.remove(&crate::sync::token());
        go_inside(0);
        // A panic of the section's own, unless the transaction had already lost: what a section
        // does then is not to be believed.
        let cause = payload.downcast_ref::<Unwound>().map(|unwound| unwound.0);
        run.and_then(|run| run.doomed).or(cause).or(Some(Cause::Panicked))
    }

    fn active(&self) -> bool {
        INSIDE.with(Cell::get) != 0
    }

    fn load(&self, place: Place<'_>) -> u64 {
        self.access(place, false, || place.0.load(Ordering::Acquire))
    }

    fn store(&self, place: Place<'_>, value: u64) {
        let buffered = self.active();
        self.access(place, true, || {
            if !buffered {
                place.0.store(value, Ordering::Release);
            }
        });
    }

    fn exchange(&self, place: Place<'_>, from: u64, to: u64) -> bool {
        self.access(place, true, || {
            place.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    fn swap(&self, place: Place<'_>, to: u64) -> u64 {
        self.access(place, true, || place.0.swap(to, Ordering::AcqRel))
    }

    /// Accesses so far, of all threads.
    fn ticks(&self) -> u64 {
        lock(&self.shared.state).ticks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn aborts(seed: u64, share: u16) -> Vec<bool> {
        let mut state = State { random: seed | 1, ..State::default() };
        (0..10_000).map(|_| state.interrupted(share)).collect()
    }

    #[test]
    fn random_aborts_are_those_of_the_seed_and_as_many_as_asked_for() {
        assert_eq!(aborts(3, 6554), aborts(3, 6554));
        assert_ne!(aborts(3, 6554), aborts(5, 6554));
        assert!(!aborts(3, 0).contains(&true));
        let tenth = aborts(3, 6554).into_iter().filter(|abort| *abort).count();
        assert!((800..1200).contains(&tenth), "{tenth}");
    }
}
