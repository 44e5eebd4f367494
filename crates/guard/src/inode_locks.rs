//! Plain writes in flight, and the lock of the kernel that orders them.
//!
//! write(2) changes the kernel's page first, where everybody who has that page can see it, and only
//! then tells the daemon; the length follows when the daemon has answered. All that time the call
//! has its inode's `i_rwsem`, exclusively. So whoever takes that lock knows that every write in
//! flight has *landed* (the daemon has performed it, and the kernel's caches show it whole), and
//! none is in flight as long as he keeps it.
//!
//! The daemon takes it by an ordinary call through its own mount, removexattr of a name that
//! nothing has ([`FILE_BARRIER`]). The request comes with the lock held, and is answered when the
//! lock may go. Where that is needed, and nothing less will do, is modelled in
//! `crates/sim/src/in_flight.rs`:
//! - *the decision of a commit*: what the transaction has read must not be in the kernel's pages in
//!   a newer state. Else somebody may have seen that, and then something that the commit changes,
//!   unchanged ([`SharedVolume::lock_written`]);
//! - *dropping pages*: a page that a write in flight has changed must not be read anew before the
//!   daemon knows of it: it would stay without that write (the same, [`SharedVolume::flush`] and
//!   [`SharedVolume::drop_changed`]). Of a file that nobody has open for writing they are dropped
//!   without the lock, and who opens it for that waits meanwhile
//!   ([`SharedVolume::without_writers`]). Where opens make no messages, see
//!   [`writers`];
//! - *attributes*: the daemon knows of a new length before the kernel does
//!   ([`SharedVolume::land`]);
//! - *an aged transaction* keeps writers out before it reads: a write that is held when it comes is
//!   in the page already ([`SharedVolume::keep_writers_out`]). Of a file that nobody has open for
//!   writing without the lock: it says so before it looks, and who opens it is counted first and
//!   asks then.
//!
//! **Why nobody waits in a circle.** A barrier's request is answered without asking for anything.
//! Who waits for one has no request that a writer could wait for: a READ never does, since it keeps
//! its pages locked. A GETATTR might be of a caller that has the lock himself. Decisions that want
//! several files of each other's wait before they have any of them ([`InodeLocks::want_all`]). And
//! every wait here is bounded: a lock that was not got in time is given up.

use crate::inode_locks::writers::{KeptOut, Relied};
use crate::publication::Guarded;
use crate::shared::SharedVolume;
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::sync::{Event, Mutex, rank};
use systx_base::{NodeId, Oid, TxnId};
use systx_store::io::HostId;
use systx_vfs::neighbours::NotQuiet;

pub mod writers;

/// The extended attribute that a barrier asks to remove, followed by a [`Ticket`]: nothing has it.
pub const FILE_BARRIER: &[u8] = b"system.systx\x01barrier.";

/// How long taking the locks of a decision, or of a reader, may take.  Longer than a READ is held
/// ([`crate::publication`]), for whose pages a writer may be waiting.
const TAKING: Duration = Duration::from_millis(100);

/// The same for an aged transaction.
const PATIENT: Duration = Duration::from_secs(1);

/// How long an answer about attributes waits: its caller may himself have the lock.
const LANDING: Duration = Duration::from_millis(500);

/// How long it may take to get the lock for dropping what must not stay: longer only where a disk
/// hangs.
const AT_LAST: Duration = Duration::from_secs(60);

/// How long opening a file for writing waits for its pages to be dropped: for a READ of them, and
/// nobody else.
const DROPPING: Duration = Duration::from_secs(1);

/// Most files that are locked at once: each takes a thread and a request, of the 256 that a queue
/// of the kernel has.
const LOCKED_MAX: usize = 128;

/// One lock that is wanted, or held.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(u64);

impl Ticket {
    /// Of a barrier that does not stay.
    pub(crate) const PASS: Ticket = Ticket(0);

    /// The extended attribute's name.
    pub fn name(self) -> Vec<u8> {
        [FILE_BARRIER, self.0.to_string().as_bytes()].concat()
    }

    /// The ticket in an extended attribute's name, if that is a barrier's.
    pub fn in_name(name: &[u8]) -> Option<Ticket> {
        let number = std::str::from_utf8(name.strip_prefix(FILE_BARRIER)?).ok()?;
        Some(Ticket(number.parse().unwrap_or(0)))
    }
}

/// The locks of a volume.
pub(crate) struct InodeLocks {
    state: Mutex<State>,
    changed: Event,
}

#[derive(Default)]
struct State {
    last: u64,
    wanted: HashMap<Ticket, Wanted>,
    /// Files whose pages are being dropped without a lock; how many times at once.
    dropping: HashMap<HostId, usize>,
}

struct Wanted {
    /// `None`: no transaction's.
    owner: Option<TxnId>,
    file: HostId,
    reached: bool,
    /// When it ends by itself.
    until: Option<Instant>,
}

impl InodeLocks {
    pub fn new() -> InodeLocks {
        InodeLocks { state: Mutex::new(rank::LEAF, State::default()), changed: Event::new() }
    }

    /// Whether a transaction may keep a further file locked.
    fn has_room(&self, owner: TxnId) -> bool {
        let state = self.state.lock();
        state.wanted.values().filter(|w| w.owner == Some(owner)).count() <= LOCKED_MAX
    }

    /// A barrier's request is here: returns when the lock may be given back.
    pub fn stay(&self, ticket: Ticket) {
        let mut state = self.state.lock();
        if let Some(wanted) = state.wanted.get_mut(&ticket) {
            wanted.reached = true;
            self.changed.notify_all();
        }
        while let Some(wanted) = state.wanted.get(&ticket) {
            match wanted.until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.changed.wait(&mut state),
                Some(Duration::ZERO) => drop(state.wanted.remove(&ticket)),
                Some(left) => self.changed.wait_for(&mut state, left),
            }
        }
    }

    fn want(&self, owner: Option<TxnId>, file: HostId, hold: Option<Duration>) -> Ticket {
        let until = hold.map(|hold| Instant::now() + hold);
        enter(&mut self.state.lock(), Wanted { owner, file, reached: false, until })
    }

    /// Tickets for the decision of a transaction, once no other decision wants any of these files:
    /// each would get some of them, and none all. `None`: not in time.
    fn want_all(&self, owner: TxnId, files: &[HostId], limit: Duration) -> Option<Vec<Ticket>> {
        let begun = Instant::now();
        let mut state = self.state.lock();
        let of_another = |w: &Wanted| {
            w.until.is_none() && w.owner.is_some_and(|o| o != owner) && files.contains(&w.file)
        };
        while state.wanted.values().any(of_another) {
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut state, left);
        }
        let wanted =
            |file: &HostId| Wanted { owner: Some(owner), file: *file, reached: false, until: None };
        Some(files.iter().map(|file| enter(&mut state, wanted(file))).collect())
    }

    /// It ends so long from now.
    fn limit(&self, ticket: Ticket, hold: Duration) {
        if let Some(wanted) = self.state.lock().wanted.get_mut(&ticket) {
            wanted.until = Some(Instant::now() + hold);
        }
    }

    /// The barrier's call is over: what the kernel does not know nobody writes to.
    fn returned(&self, ticket: Ticket) {
        if let Some(wanted) = self.state.lock().wanted.get_mut(&ticket) {
            wanted.reached = true;
        }
        self.changed.notify_all();
    }

    /// The lock that a transaction has on a file does not end by itself until
    /// [`InodeLocks::unkeep`], to which this is to be given.
    fn keep(&self, owner: TxnId, file: HostId) -> Option<(Ticket, Option<Instant>)> {
        let mut state = self.state.lock();
        let mut all = state.wanted.iter_mut();
        let (ticket, wanted) =
            all.find(|(_, w)| w.owner == Some(owner) && w.file == file && w.reached)?;
        Some((*ticket, wanted.until.take()))
    }

    fn unkeep(&self, (ticket, until): (Ticket, Option<Instant>)) {
        if let Some(wanted) = self.state.lock().wanted.get_mut(&ticket) {
            wanted.until = until;
        }
        self.changed.notify_all();
    }

    /// Aged transactions that are about to read a file, or have it locked.
    fn readers(&self, file: HostId) -> Vec<TxnId> {
        let state = self.state.lock();
        // Others have locks without an end of their own.
        let now = Instant::now();
        let lasts = |w: &&Wanted| w.file == file && w.until.is_some_and(|until| now < until);
        let theirs = state.wanted.values().filter(lasts);
        theirs.filter_map(|w| w.owner).collect()
    }

    fn is_dropping(&self, file: HostId) -> bool {
        self.state.lock().dropping.contains_key(&file)
    }

    /// Waits until no pages of a file are being dropped without its lock; not for ever.
    fn wait_dropped(&self, file: HostId) {
        let begun = Instant::now();
        let mut state = self.state.lock();
        while state.dropping.contains_key(&file) {
            let left = DROPPING.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return tracing::warn!(?file, "opened for writing while its pages are dropped");
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Whether all of them are there in time. One that was given back meanwhile, as of a
    /// transaction that has lost, will not be.
    fn all_reached(&self, tickets: &[Ticket], limit: Duration) -> bool {
        let begun = Instant::now();
        let mut state = self.state.lock();
        loop {
            let mut all = tickets.iter().map(|t| state.wanted.get(t));
            if all.clone().all(|w| w.is_some_and(|w| w.reached)) {
                return true;
            }
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() || all.any(|w| w.is_none()) {
                return false;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Gives back the locks of a transaction that have an end of their own: on others somebody
    /// relies just now.
    fn let_in(&self, owner: TxnId) {
        self.give_back(|_, w| w.owner == Some(owner) && w.until.is_some());
    }

    fn give_back(&self, which: impl Fn(&Ticket, &Wanted) -> bool) {
        self.state.lock().wanted.retain(|ticket, wanted| !which(ticket, wanted));
        self.changed.notify_all();
    }
}

fn enter(state: &mut State, wanted: Wanted) -> Ticket {
    state.last += 1;
    let ticket = Ticket(state.last);
    state.wanted.insert(ticket, wanted);
    ticket
}

/// Nobody opens a file for writing as long as this lives, and [is still](Unwritten::is_still) so.
pub(crate) struct Unwritten<'v> {
    locks: &'v InodeLocks,
    file: HostId,
    kept_out: KeptOut,
}

impl Unwritten<'_> {
    /// Whether nobody can have opened it meanwhile where opens are not told.
    pub fn is_still(&self) -> bool {
        self.kept_out.is_still()
    }
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        let mut state = self.locks.state.lock();
        if let Some(count) = state.dropping.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                state.dropping.remove(&self.file);
            }
        }
        drop(state);
        self.locks.changed.notify_all();
    }
}

/// Files that nobody writes to as long as this lives.
pub(crate) struct Locked<'v> {
    vol: &'v SharedVolume,
    pub(crate) owner: TxnId,
    /// Files that have to be locked whatever the transaction has read.
    pub(crate) changed: Option<&'v HashSet<Oid>>,
    tickets: Vec<Ticket>,
    /// Locks that the transaction had before.
    kept: Vec<(Ticket, Option<Instant>)>,
    /// Those that somebody has open for writing.
    files: HashSet<HostId>,
    /// What keeps writers out of the others, beside what holds them at the opening.
    kept_out: KeptOut,
}

impl Locked<'_> {
    /// Whether no other file that has to be locked has been opened for writing since.
    pub fn is_enough(&self) -> bool {
        let (owner, changed) = (self.owner, self.changed);
        self.vol.guarded_now().iter().all(|guarded| {
            let relied = Relied { vol: self.vol, guarded, owner, changed };
            guarded.writers.are_kept_out(&relied, &self.files, &self.kept_out)
        })
    }

    pub fn has(&self, file: HostId) -> bool {
        self.files.contains(&file) || self.kept_out.has(file)
    }

    /// Makes stores to mappings of these files known.
    pub fn flush(&self) {
        for id in &self.files {
            self.vol.flush_locked(*id);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.kept.drain(..).for_each(|kept| self.vol.inode_locks.unkeep(kept));
        self.vol.inode_locks.give_back(|ticket, _| self.tickets.contains(ticket));
    }
}

/// A file that the kernel knows of a guarded directory, mostly one that plain programs have open
/// for writing.
struct Written {
    guarded: Arc<Guarded>,
    node: NodeId,
    id: HostId,
}

impl SharedVolume {
    /// Locks every file that a transaction relies on or has `changed`, and plain programs may be
    /// writing to.
    ///
    /// Hold no lock that a request of a plain program may need.
    ///
    /// # Errors
    /// That could not be had, or not in time.
    pub(crate) fn lock_written<'v>(
        &'v self,
        owner: TxnId,
        changed: Option<&'v HashSet<Oid>>,
    ) -> Result<Locked<'v>, NotQuiet> {
        let mut kept_out = KeptOut::default();
        let mut written = Vec::new();
        for guarded in self.guarded_now() {
            let relied = Relied { vol: self, guarded: &guarded, owner, changed };
            let open = guarded.writers.keep_all_out(&relied, &mut kept_out)?;
            let of = |(node, id)| Written { guarded: Arc::clone(&guarded), node, id };
            written.extend(open.into_iter().map(of));
        }
        if written.len() > LOCKED_MAX {
            return Err(NotQuiet::Many(written.len()));
        }
        let files = written.iter().map(|w| w.id).collect();
        let (tickets, kept) = (Vec::new(), Vec::new());
        let mut locked = Locked { vol: self, owner, changed, tickets, kept, files, kept_out };
        let mut new = Vec::new();
        for w in &written {
            match self.inode_locks.keep(owner, w.id) {
                Some(kept) => locked.kept.push(kept),
                None => new.push(w),
            }
        }
        let files: Vec<HostId> = new.iter().map(|w| w.id).collect();
        let tickets = self.inode_locks.want_all(owner, &files, TAKING);
        locked.tickets = tickets.ok_or(NotQuiet::Busy)?;
        new.iter().zip(&locked.tickets).for_each(|(w, ticket)| self.send_barrier(w, *ticket));
        let is_quiet = self.inode_locks.all_reached(&locked.tickets, TAKING);
        let is_shut = |w: &Written| w.guarded.caches.reach(w.node).err() == Some(Errno::ACCESS);
        match is_quiet {
            true => Ok(locked),
            false if written.iter().any(is_shut) => Err(NotQuiet::Shut),
            false => Err(NotQuiet::Busy),
        }
    }

    /// Before a transaction reads content of a file: if it is aged, plain programs are kept from
    /// writing to it until it ends, at most as long as the guarded directory allows.
    pub(crate) fn keep_writers_out(&self, owner: TxnId, id: HostId) {
        if !self.engine.is_reserved(owner) {
            return;
        }
        // Said before looking: who opens it is counted first, and asks then; so whoever is not
        // found waits, see `reader_of`.
        let longest = self.guarded_now().iter().map(|guarded| guarded.stall).max();
        let ticket = self.inode_locks.want(Some(owner), id, longest.or(Some(Duration::ZERO)));
        let found = match self.inode_locks.has_room(owner) {
            true => self.find_to_lock(id),
            false => self.find_written(id),
        };
        let Some(written) = found else { return };
        let stall = written.guarded.stall;
        self.inode_locks.limit(ticket, stall);
        if stall.is_zero() {
            return;
        }
        self.send_barrier(&written, ticket);
        // Nobody waits for this transaction's own requests, so it may take longer than for others.
        if !self.inode_locks.all_reached(&[ticket], stall.min(PATIENT)) {
            self.inode_locks.give_back(|t, _| *t == ticket);
        }
    }

    /// The read is recorded, which holds up who opens the file from here on, where that is told:
    /// without a writer that has it open, the lock is not needed any more.
    pub(crate) fn recorded(&self, owner: TxnId, id: HostId) {
        if self.find_to_lock(id).is_none() {
            self.inode_locks.give_back(|_, w| w.owner == Some(owner) && w.file == id);
        }
    }

    /// An aged transaction for which the opening of a file for writing is to be held: it has read
    /// content of the file, or is about to.
    pub(crate) fn reader_of(&self, file: HostId) -> Option<TxnId> {
        let waits = |t: &TxnId| self.engine.is_reserved(*t);
        let about_to = || self.inode_locks.readers(file).into_iter().find(waits);
        self.engine.reserved_for(file.oid()).or_else(about_to)
    }

    /// A transaction keeps nobody out any more, but where just now pages are dropped for it, or it
    /// is being decided: whoever does that relies on these locks, also if it has lost meanwhile,
    /// and gives them back.
    pub fn let_writers_in(&self, owner: TxnId) {
        self.inode_locks.let_in(owner);
    }

    /// Waits until writes to a file that the daemon has performed have landed; not for long.
    /// Whether they have.
    pub(crate) fn land(&self, id: HostId) -> bool {
        self.find_known(id).is_some_and(|file| self.pass_barrier(&file, LANDING))
    }

    /// Makes the kernel write back what plain programs have stored in mappings of this file, if one
    /// has it open for writing in a guarded directory; whether one has. It arrives as a plain
    /// write.
    ///
    /// Hold no lock that a request of a plain program may need.
    pub fn flush(&self, owner: Option<TxnId>, id: HostId) -> bool {
        let Some(written) = self.find_written(id) else { return false };
        if let Some(kept) = owner.and_then(|owner| self.inode_locks.keep(owner, id)) {
            drop_pages(&written);
            self.inode_locks.unkeep(kept);
            return true;
        }
        // What is not flushed now is before the decision.
        self.drop_locked(owner, &written, TAKING);
        true
    }

    /// Drops a file's pages with its lock; whether that could be had in time.
    fn drop_locked(&self, owner: Option<TxnId>, file: &Written, limit: Duration) -> bool {
        let ticket = self.inode_locks.want(owner, file.id, None);
        self.send_barrier(file, ticket);
        let is_locked = self.inode_locks.all_reached(&[ticket], limit);
        if is_locked {
            drop_pages(file);
        }
        self.inode_locks.give_back(|t, _| *t == ticket);
        is_locked
    }

    /// Keeps everybody from opening a file for writing, if nobody has: so its pages may be dropped
    /// without its lock. Not for longer than that takes.
    pub(crate) fn without_writers(&self, id: HostId) -> Option<Unwritten<'_>> {
        // Said before looking: who opens it counts first, and asks then.
        *self.inode_locks.state.lock().dropping.entry(id).or_default() += 1;
        let mut unwritten =
            Unwritten { locks: &self.inode_locks, file: id, kept_out: KeptOut::default() };
        for guarded in self.guarded_now() {
            unwritten.kept_out.add(guarded.writers.keep_out(id)?);
        }
        Some(unwritten)
    }

    /// A file is about to be opened for writing, or has been and nobody knows of it yet.
    pub(crate) fn wait_dropped(&self, id: HostId) {
        self.inode_locks.wait_dropped(id);
    }

    /// Whether somebody is dropping pages of a file without its lock.
    pub fn is_dropping(&self, id: HostId) -> bool {
        self.inode_locks.is_dropping(id)
    }

    /// Has the kernel forget the pages of a file that was changed otherwise than by the kernel's
    /// own calls on it. Writes in flight land first: a page without one of them would stay.
    ///
    /// Waits for whoever is writing to the file: not for a thread that serves requests.
    pub fn drop_changed(&self, id: HostId) {
        loop {
            if let Some(unwritten) = self.without_writers(id) {
                self.find_known(id).iter().for_each(drop_pages);
                if unwritten.is_still() {
                    return;
                }
                continue;
            }
            let Some(written) = self.find_written(id) else { continue };
            if !self.drop_locked(None, &written, AT_LAST) {
                tracing::warn!(?id, "pages dropped while they may be written to");
                drop_pages(&written);
            }
            return;
        }
    }

    /// As [`SharedVolume::flush`], of a file that is locked.
    pub(crate) fn flush_locked(&self, id: HostId) {
        if let Some(written) = self.find_written(id) {
            drop_pages(&written);
        }
    }

    fn find_known(&self, id: HostId) -> Option<Written> {
        self.find(id, |guarded| guarded.plain.node_of(id))
    }

    fn find_to_lock(&self, id: HostId) -> Option<Written> {
        self.find(id, |guarded| guarded.writers.to_lock(id))
    }

    fn find_written(&self, id: HostId) -> Option<Written> {
        self.find(id, |guarded| guarded.writers.written_to(id))
    }

    /// A file in the first guarded directory that has a node for it.
    fn find(&self, id: HostId, node: impl Fn(&Guarded) -> Option<NodeId>) -> Option<Written> {
        self.guarded_now().into_iter().find_map(|guarded| {
            let node = node(&guarded)?;
            Some(Written { guarded, node, id })
        })
    }

    /// In a thread: the call returns when the lock is given back.
    fn send_barrier(&self, file: &Written, ticket: Ticket) {
        let (guarded, node) = (Arc::clone(&file.guarded), file.node);
        let locks = Arc::clone(&self.inode_locks);
        let sent = std::thread::Builder::new().name("barrier".into()).spawn(move || match guarded
            .caches
            .file_barrier(node, ticket)
        {
            Ok(()) => locks.returned(ticket),
            Err(errno) => tracing::warn!(%errno, ?node, "file not locked"),
        });
        if let Err(error) = sent {
            tracing::warn!(%error, "no thread for a barrier");
        }
    }

    /// Whether it has returned in time.
    fn pass_barrier(&self, file: &Written, limit: Duration) -> bool {
        let (done, passed) = std::sync::mpsc::channel();
        let (guarded, node) = (Arc::clone(&file.guarded), file.node);
        let sent = std::thread::Builder::new().name("barrier".into()).spawn(move || {
            let passed = guarded.caches.file_barrier(node, Ticket::PASS);
            if let Err(errno) = passed {
                tracing::warn!(%errno, ?node, "writes in flight not waited for");
            }
            let _ = done.send(passed.is_ok());
        });
        sent.is_ok() && passed.recv_timeout(limit).unwrap_or(false)
    }
}

fn drop_pages(file: &Written) {
    if let Err(errno) = file.guarded.caches.drop_pages(file.node) {
        tracing::warn!(%errno, node = ?file.node, "pages of a guarded file not written back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use systx_base::Time;

    const FILE: HostId = HostId::new(7, Time { secs: 0, nanos: 0 });

    #[test]
    fn a_ticket_is_read_from_its_name_and_nothing_else_is_one() {
        assert_eq!(Ticket::in_name(&Ticket(12).name()), Some(Ticket(12)));
        assert_eq!(Ticket::in_name(b"system.systx\x01barrier.x"), Some(Ticket::PASS));
        assert_eq!(Ticket::in_name(b"system.systx"), None);
        assert_eq!(Ticket::in_name(b"user.systx"), None);
    }

    #[test]
    fn an_aged_reader_is_known_before_its_lock_is_there_and_as_long_as_it_lasts() {
        let locks = InodeLocks::new();
        locks.want(Some(TxnId(1)), FILE, None);
        locks.want(None, FILE, Some(Duration::from_secs(300)));
        assert_eq!(locks.readers(FILE), [], "locked for a moment, or by nobody");
        let ticket = locks.want(Some(TxnId(2)), FILE, Some(Duration::from_secs(300)));
        assert_eq!(locks.readers(FILE), [TxnId(2)]);
        assert_eq!(locks.readers(HostId::new(8, Time::default())), []);
        locks.limit(ticket, Duration::ZERO);
        assert_eq!(locks.readers(FILE), []);
    }

    /// Each wants some files, in any order: nobody has one that another has, and all get theirs.
    #[test]
    fn decisions_have_all_files_that_they_want_or_wait_without_any() {
        const HANG: Duration = Duration::from_secs(300);
        let locks = InodeLocks::new();
        let held = std::array::from_fn::<_, 5, _>(|_| AtomicU64::new(0));
        std::thread::scope(|scope| {
            for owner in 1..=6 {
                let (locks, held) = (&locks, &held);
                scope.spawn(move || {
                    for round in 0..300 {
                        let first = owner * 7 + round * 3;
                        let all = [0, 1 + round % 2 * 2, 2].map(|next| (first + next) % 5);
                        let files = all.map(|number| HostId::new(number, Time::default()));
                        let tickets = locks.want_all(TxnId(owner), &files, HANG).unwrap();
                        assert_eq!(tickets.len(), files.len());
                        for file in all {
                            let before = held[file as usize].swap(owner, Relaxed);
                            assert_eq!(before, 0, "{before} has it");
                        }
                        std::thread::yield_now();
                        all.iter().for_each(|file| held[*file as usize].store(0, Relaxed));
                        locks.give_back(|ticket, _| tickets.contains(ticket));
                    }
                });
            }
        });
        // A lock that ends by itself keeps no decision waiting here, and not for ever.
        locks.want(Some(TxnId(1)), FILE, Some(HANG));
        let mine = locks.want_all(TxnId(2), &[FILE], Duration::ZERO).unwrap();
        assert!(locks.want_all(TxnId(3), &[FILE], Duration::ZERO).is_none());
        locks.give_back(|ticket, _| mine.contains(ticket));
        assert!(locks.want_all(TxnId(3), &[FILE], Duration::ZERO).is_some());
    }

    #[test]
    fn who_has_lost_does_not_wait_for_a_lock_that_was_given_back_for_it() {
        const HANG: Duration = Duration::from_secs(300);
        let locks = Arc::new(InodeLocks::new());
        let kept = locks.want(Some(TxnId(1)), FILE, None);
        let aged = locks.want(Some(TxnId(1)), FILE, Some(HANG));
        locks.returned(kept);
        let (done, is_done) = std::sync::mpsc::channel();
        let theirs = Arc::clone(&locks);
        let waits = std::thread::spawn(move || {
            done.send(theirs.all_reached(&[kept, aged], HANG)).unwrap();
        });
        while !locks.changed.has_waiters() {
            std::thread::yield_now();
        }
        locks.let_in(TxnId(1));
        assert_eq!(is_done.recv_timeout(HANG / 10), Ok(false));
        waits.join().unwrap();
        assert!(locks.all_reached(&[kept], Duration::ZERO), "somebody relies on this one");
    }

    #[test]
    fn a_barrier_stays_until_it_is_given_back_or_its_time_is_over() {
        let locks = Arc::new(InodeLocks::new());
        // Nobody waits for these.
        locks.stay(Ticket::PASS);
        locks.stay(Ticket(99));
        let ticket = locks.want(Some(TxnId(1)), FILE, None);
        assert!(!locks.all_reached(&[ticket], Duration::ZERO));
        assert_eq!(locks.keep(TxnId(1), FILE), None, "it is not there yet");
        let theirs = Arc::clone(&locks);
        let held = std::thread::spawn(move || theirs.stay(ticket));
        assert!(locks.all_reached(&[ticket], Duration::from_secs(30)));
        assert_eq!(locks.keep(TxnId(1), FILE), Some((ticket, None)));
        assert_eq!(locks.keep(TxnId(2), FILE), None);
        assert!(!held.is_finished());
        locks.give_back(|_, wanted| wanted.owner == Some(TxnId(1)));
        held.join().unwrap();
        // By itself.
        let brief = locks.want(Some(TxnId(1)), FILE, Some(Duration::from_millis(1)));
        locks.returned(brief);
        let kept = locks.keep(TxnId(1), FILE).unwrap();
        assert!(kept.1.is_some());
        locks.unkeep(kept);
        locks.stay(brief);
        assert!(locks.state.lock().wanted.is_empty());
    }
}
