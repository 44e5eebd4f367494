//! A store that is open, and locked, only while somebody needs it.
//!
//! What needs it takes a [`Lease`]; the first one opens the store, and makes it if there is none.
//! The last one that goes closes it again, if everything is installed and the journal has let go of
//! it, and gives its lock to whichever process comes next.  A store in which nothing was ever
//! committed goes with that.
//!
//! A closed store may be opened by another process meanwhile.  Nothing of it is kept in memory: the
//! next lease reads it anew, and finishes what that process has left.
//!
//! Processes take turns: one that waits for the lock says so ([`Io::ask_for_lock`]).  Then whoever
//! has it begins no further commit ([`OnDemand::turn`]), closes the store once those that have
//! begun are installed, and lets the others go first.

use crate::decisions;
use crate::error::{OpenError, open_io};
use crate::interface::Store;
use crate::io::{Handle, Io, Open};
use crate::journal;
use crate::layout::{Layout, found};
use crate::mark::Mark;
use crate::recovery::refused;
use crate::super_block::{Found, Super, read};
use crate::trust::Owner;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_base::sync::{Event, Mutex, rank};

/// How long a lease waits for the lock of another process.  One that commits gives it back at its
/// next checkpoint.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a look waits for a process that has the lock.
const LOOK_PATIENCE: Duration = Duration::from_secs(3);
/// How long a commit waits for those of this process that are under way, if another one asks for
/// the lock; and how long an opening waits for that one to take it.
const DRAINED: Duration = Duration::from_secs(1);
const TAKEN: Duration = Duration::from_millis(50);
/// From one try to the next.
const PAUSE: Duration = Duration::from_millis(5);

/// What opens a store.
pub trait Opens: Send + Sync {
    /// Opens it, and makes it if there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&self) -> Result<Arc<dyn Store>, OpenError>;

    /// It is about to be removed, since nothing was committed in it: its directory becomes another
    /// object, or none.
    fn removes(&self);
}

impl<F: Fn() -> Result<Arc<dyn Store>, OpenError> + Send + Sync> Opens for F {
    fn open(&self) -> Result<Arc<dyn Store>, OpenError> {
        self()
    }
    fn removes(&self) {}
}

/// See the module.
pub struct OnDemand {
    kept: Kept,
    state: Mutex<State>,
    changed: Event,
}

enum Kept {
    /// It is open, and stays so.
    Open(Arc<dyn Store>),
    /// It may be closed.
    Shelved(Shelf),
}

/// The directory of a store, and what opens it.
struct Shelf {
    io: Arc<dyn Io>,
    /// Below the root of `io`.
    path: Vec<u8>,
    opens: Box<dyn Opens>,
    /// The number of a store, and of its super block when nothing was left in it.
    seen: Mutex<Option<(u64, u64)>>,
}

struct State {
    /// One that may be closed, while it is open.
    store: Option<Arc<dyn Store>>,
    leases: usize,
    /// Those of them that do not end with a commit.
    lasting: usize,
    /// Some thread opens or closes it.
    busy: bool,
}

/// The right to use a store, which stays open and locked as long as this lives.
pub struct Lease {
    // Before the right to it: who comes next must find the lock free.
    store: Arc<dyn Store>,
    right: Right,
}

/// One that is counted.
struct Right {
    of: Arc<OnDemand>,
    lasting: bool,
}

impl Deref for Lease {
    type Target = dyn Store;
    fn deref(&self) -> &(dyn Store + 'static) {
        &*self.store
    }
}

impl Clone for Lease {
    fn clone(&self) -> Lease {
        let Right { of, lasting } = &self.right;
        let right = of.right(&mut of.state.lock(), *lasting);
        Lease { store: Arc::clone(&self.store), right }
    }
}

impl Drop for Right {
    fn drop(&mut self) {
        self.of.give_back(self.lasting);
    }
}

impl OnDemand {
    /// A store in the directory `path` below the root of `io`, which `opens` opens.
    pub fn new(io: Arc<dyn Io>, path: &[u8], opens: impl Opens + 'static) -> Arc<OnDemand> {
        let (path, seen) = (path.to_vec(), Mutex::new(rank::LEAF, None));
        OnDemand::with(Kept::Shelved(Shelf { io, path, opens: Box::new(opens), seen }))
    }

    /// A store that is open, and stays so.
    pub fn always(store: Arc<dyn Store>) -> Arc<OnDemand> {
        OnDemand::with(Kept::Open(store))
    }

    fn with(kept: Kept) -> Arc<OnDemand> {
        let state = State { store: None, leases: 0, lasting: 0, busy: false };
        Arc::new(OnDemand { kept, state: Mutex::new(rank::STORES, state), changed: Event::new() })
    }

    /// The store if it is open.
    fn opened(&self, state: &State) -> Option<Arc<dyn Store>> {
        match &self.kept {
            Kept::Open(store) => Some(Arc::clone(store)),
            Kept::Shelved(_) => state.store.clone(),
        }
    }

    /// What is known of it while it is closed, if it may be.
    fn shelf(&self) -> Option<&Shelf> {
        match &self.kept {
            Kept::Open(_) => None,
            Kept::Shelved(shelf) => Some(shelf),
        }
    }

    /// Opens the store if it is not open, and keeps it so.  Waits for a process that has it.
    ///
    /// # Errors
    /// It cannot be opened; [`OpenError::Locked`]: another process does not give it back.
    pub fn lease(self: &Arc<Self>) -> Result<Lease, OpenError> {
        self.lease_within(PATIENCE, false)
    }

    /// As [`OnDemand::lease`], for something that may take as long as it likes.
    ///
    /// # Errors
    /// As there.
    pub fn lasting(self: &Arc<Self>) -> Result<Lease, OpenError> {
        self.lease_within(PATIENCE, true)
    }

    /// As [`OnDemand::lease`], before a commit: a process that waits for the store has it first.
    /// Whoever has a lease of it already must not wait here.
    ///
    /// # Errors
    /// As there.
    pub fn turn(self: &Arc<Self>) -> Result<Lease, OpenError> {
        let until = Instant::now() + DRAINED;
        let mut state = self.state.lock();
        while state.lasting == 0
            && state.leases > 0
            && state.store.as_ref().is_some_and(|store| store.is_asked_for())
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.changed.wait_for(&mut state, left);
        }
        drop(state);
        self.lease()
    }

    fn right(self: &Arc<Self>, state: &mut State, lasting: bool) -> Right {
        state.leases += 1;
        state.lasting += usize::from(lasting);
        Right { of: Arc::clone(self), lasting }
    }

    fn lease_within(
        self: &Arc<Self>,
        patience: Duration,
        lasting: bool,
    ) -> Result<Lease, OpenError> {
        let mut state = self.state.lock();
        while state.busy {
            self.changed.wait(&mut state);
        }
        let shelf = match (&self.kept, &state.store) {
            (Kept::Shelved(shelf), None) => shelf,
            (Kept::Open(store), _) | (_, Some(store)) => {
                let store = Arc::clone(store);
                return Ok(Lease { store, right: self.right(&mut state, lasting) });
            }
        };
        state.busy = true;
        drop(state);
        let turn = Turn(self);
        let store = shelf.open_now(patience)?;
        let mut state = self.state.lock();
        state.store = Some(Arc::clone(&store));
        let right = self.right(&mut state, lasting);
        drop(state);
        drop(turn);
        Ok(Lease { store, right })
    }

    /// The store if it is open at this moment.
    pub fn if_open(self: &Arc<Self>) -> Option<Lease> {
        let mut state = self.state.lock();
        let store = self.opened(&state)?;
        Some(Lease { store, right: self.right(&mut state, false) })
    }

    /// Nobody needs it, and no thread is opening or closing it.
    pub fn is_closed(&self) -> bool {
        let state = self.state.lock();
        !state.busy && state.leases == 0 && self.opened(&state).is_none()
    }

    /// Waits until nobody has a lease of it: before it is closed for good, when nobody can take one
    /// any more.
    pub fn wait_unused(&self) {
        let mut state = self.state.lock();
        while state.leases > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// As [`OnDemand::lease`], if the store is there: makes none.
    ///
    /// # Errors
    /// As there.
    pub fn existing(self: &Arc<Self>) -> Result<Option<Lease>, OpenError> {
        if let Some(lease) = self.if_open() {
            return Ok(Some(lease));
        }
        match self.shelf().map(Shelf::layout).transpose()? {
            Some(None) => Ok(None),
            _ => self.lease().map(Some),
        }
    }

    /// What tells this store from all others, if it was written to.  It is not opened for that.
    pub fn known_as(self: &Arc<Self>) -> Option<u64> {
        if let Some(lease) = self.if_open() {
            return lease.known_as();
        }
        let shelf = self.shelf()?;
        let layout = shelf.layout().ok()??;
        match read(&*shelf.io, &layout) {
            Ok(Found::Valid(block)) => Some(block.store),
            _ => None,
        }
    }

    /// Whether the history has this transaction, as far as that is known without opening the store.
    pub fn has_history(self: &Arc<Self>, txn: TxnId) -> bool {
        self.if_open().is_some_and(|lease| lease.has_history(txn).unwrap_or(false))
    }

    /// Finishes what a process has left in the store, before anybody looks at the file system; if
    /// nothing was left, it is not opened.  The lease if it was, or was open already.
    ///
    /// # Errors
    /// As [`OnDemand::lease`].
    pub fn finish_left(
        self: &Arc<Self>,
        also: impl Fn(u64) -> bool,
    ) -> Result<Option<Lease>, OpenError> {
        let Some(shelf) = self.shelf() else { return Ok(self.if_open()) };
        let failed = open_io(&shelf.path);
        let until = Instant::now() + LOOK_PATIENCE;
        let mut asking = None;
        loop {
            // The lock may be this process's.
            if self.state.lock().busy {
                // Whoever makes it may wait for a disk that is frozen.
                if shelf.is_new().map_err(&failed)? {
                    return Ok(None);
                }
                let mut state = self.state.lock();
                while state.busy {
                    self.changed.wait(&mut state);
                }
            }
            if let Some(lease) = self.if_open() {
                return Ok(Some(lease));
            }
            let Some(layout) = shelf.layout()? else { return Ok(None) };
            if !shelf.is_locked(&layout).map_err(&failed)? {
                let left = shelf.has_left(&layout, &also).map_err(&failed)?;
                drop(asking);
                let lease = || self.lease_within(LOOK_PATIENCE, false);
                return left.then(lease).transpose();
            }
            if Instant::now() >= until {
                return Err(OpenError::Locked { path: crate::error::shown(&shelf.path) });
            }
            asking = asking.or(shelf.ask()?);
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes the store, if nothing was committed in it and nobody has it.
    pub fn tidy(self: &Arc<Self>) {
        let Some(shelf) = self.shelf() else { return };
        let known = shelf.seen.lock().is_some() || self.known_as().is_some();
        if !known && shelf.layout().is_ok_and(|there| there.is_some()) {
            // With the lease it goes.
            let _ = self.lease_within(Duration::ZERO, false);
        }
    }

    /// Makes the directories that a store of `owner` will be in, before a transaction begins whose
    /// commit may be the first.
    ///
    /// # Errors
    /// Why it may not be there.
    pub fn make_way(&self, owner: Owner) -> Result<(), OpenError> {
        let Some(Shelf { io, path, .. }) = self.shelf() else { return Ok(()) };
        Layout::make_way(&**io, path, Some(owner)).map_err(|why| refused(path, why))
    }

    fn give_back(&self, lasting: bool) {
        let mut state = self.state.lock();
        state.leases -= 1;
        state.lasting -= usize::from(lasting);
        let over = state.leases == 0 && !state.busy;
        let Some(shelf) = self.shelf().filter(|_| over) else {
            if over {
                drop(state);
                self.changed.notify_all();
            }
            return;
        };
        let Some(store) = state.store.take_if(|store| store.is_at_rest()) else {
            drop(state);
            self.changed.notify_all();
            return;
        };
        state.busy = true;
        drop(state);
        let _turn = Turn(self);
        if store.is_unused() {
            shelf.opens.removes();
            store.remove();
        }
        shelf.closed();
        // Whoever comes next must find the lock free.
        drop(store);
    }
}

impl Shelf {
    fn open_now(&self, patience: Duration) -> Result<Arc<dyn Store>, OpenError> {
        let until = Instant::now() + patience;
        self.let_others_go_first()?;
        let mut asking = None;
        loop {
            match self.opens.open() {
                Err(OpenError::Locked { .. }) if Instant::now() < until => {
                    asking = asking.or(self.ask()?);
                    std::thread::sleep(PAUSE);
                }
                opened => return opened,
            }
        }
    }

    /// Says that this process waits for the lock, as long as the answer lives.
    fn ask(&self) -> Result<Option<Asking<'_>>, OpenError> {
        let Some(layout) = self.layout()? else { return Ok(None) };
        let failed = open_io(&self.path);
        let Some(lock) = self.lock_of(&layout).map_err(&failed)? else { return Ok(None) };
        self.io.ask_for_lock(&lock, true).map_err(&failed)?;
        Ok(Some(Asking { io: &*self.io, lock }))
    }

    /// Those that were waiting when this process closed the store look for it every [`PAUSE`].
    fn let_others_go_first(&self) -> Result<(), OpenError> {
        let Some(layout) = self.layout()? else { return Ok(()) };
        let failed = open_io(&self.path);
        let Some(lock) = self.lock_of(&layout).map_err(&failed)? else { return Ok(()) };
        let until = Instant::now() + TAKEN;
        while self.io.is_lock_asked_for(&lock).map_err(&failed)?
            && !self.io.is_locked(&lock).map_err(&failed)?
            && Instant::now() < until
        {
            std::thread::sleep(PAUSE / 5);
        }
        Ok(())
    }

    fn layout(&self) -> Result<Option<Layout>, OpenError> {
        Layout::look(&*self.io, &self.path, None).map_err(|why| refused(&self.path, why))
    }

    /// Whether nothing was committed in it yet.
    fn is_new(&self) -> std::io::Result<bool> {
        let Ok(Some(layout)) = self.layout() else { return Ok(true) };
        Ok(matches!(read(&*self.io, &layout)?, Found::Nothing))
    }

    fn lock_of(&self, layout: &Layout) -> std::io::Result<Option<Handle>> {
        found(self.io.open_file(&layout.state, b"lock", Open::Read))
    }

    fn is_locked(&self, layout: &Layout) -> std::io::Result<bool> {
        self.lock_of(layout)?.map_or(Ok(false), |lock| self.io.is_locked(&lock))
    }

    /// Whether its opening would do something.
    fn has_left(&self, layout: &Layout, also: impl Fn(u64) -> bool) -> std::io::Result<bool> {
        match read(&*self.io, layout)? {
            Found::Nothing => Ok(false),
            // Its opening says what is wrong.
            Found::Damaged | Found::Version(_) => Ok(true),
            Found::Valid(block) => Ok(self.has_records(layout, &block)?
                || decisions::has_decisions(&*self.io, layout)?
                || also(block.store)),
        }
    }

    fn has_records(&self, layout: &Layout, block: &Super) -> std::io::Result<bool> {
        let (io, now) = (&*self.io, (block.store, block.seq));
        let seen = *self.seen.lock() == Some(now);
        let has = if seen {
            journal::is_begun(io, layout, block.identity(), block.head)?
        } else {
            let scan = journal::scan(io, layout, block.identity(), block.head)?;
            let mark = Mark::load(io, layout)?;
            let mark = mark.filter(|m| m.store == block.store && m.epoch == block.epoch);
            !scan.records.is_empty()
                || scan.torn
                || scan.damaged.is_some()
                || mark.is_some_and(|mark| mark.lsn >= block.head.lsn)
        };
        if !has && !seen {
            *self.seen.lock() = Some(now);
        }
        Ok(has)
    }

    /// The store was closed, with nothing left in it.
    fn closed(&self) {
        let block = match self.layout() {
            Ok(Some(layout)) => read(&*self.io, &layout).ok(),
            _ => None,
        };
        *self.seen.lock() = match block {
            Some(Found::Valid(block)) => Some((block.store, block.seq)),
            _ => None,
        };
    }
}

/// This process waits for a lock.
struct Asking<'a> {
    io: &'a dyn Io,
    lock: Handle,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // It ends with the handle, too.
        let _ = self.io.ask_for_lock(&self.lock, false);
    }
}

/// The right to open or close it, which ends also with a panic.
struct Turn<'a>(&'a OnDemand);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
