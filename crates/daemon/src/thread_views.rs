//! Transactions of threads: begun and ended by ioctls on a guarded directory, or on a volume
//! (`systx-abi`), seen through an alias root of its mount ([`systx_guard::aliases`]).
//!
//! A seat belongs to one thread, which the kernel names in each request. Its transaction is dropped
//! when that thread or its process ends: the thread's pidfd tells, or else the last close of the
//! control descriptor.
//!
//! The ioctls are served by the threads that serve the mount, which may wait: each has a worker of
//! its own for as long as it takes, and the kernel holds no lock of a file meanwhile.

use crate::hall::{self, Hall};
use crate::in_line::Waiting;
use crate::lasting::{Relaxing, Tail};
use crate::members::{Members, PIDFD_THREAD};
use crate::processes;
use crate::protocol::{HostPath, Outcome, State, ThreadActivity};
use crate::strays::Strays;
use crate::thread_orders;
use crate::thread_scopes::Scope;
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use crate::volume::OpenVolume;
use crate::watch::{Keeps, Watcher};
use certified::Pending;
use deaths::Deaths;
use last::Last;
use profile::Profile;
use rustix::io::Errno;
use rustix::process::{Pid, pidfd_open};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use systx_abi as abi;
use systx_base::TxnId;
use systx_base::sync::{Mutex, rank};
use systx_guard::aliases::{Control, Left, Seat, Tag};
use systx_guard::retired::{Lasting, StillOpen};
use systx_protocol::modes::{self, Way};
use systx_txn::Engine;
use systx_vfs::api::{Caller, Reply};
use zerocopy::{FromBytes, IntoBytes};

mod begin;
mod certified;
mod deaths;
mod held;
mod last;
mod profile;

/// How long another attempt waits at most for the end of who made the last one lose, and for
/// stronger ones that lost over the same.
const DEFER: Duration = Duration::from_millis(500);

/// So often may two threads make each other lose, one of them asleep, before it is told that this
/// does not end.
const ASLEEP: u32 = 8;

/// Most seats that another user than the daemon's has on one directory.
const SEATS_OF_A_GUEST: usize = 64;

/// Who serves the ioctls of one guarded directory, or of a volume.
pub struct Desk {
    /// For threads that outlive a call.
    me: Weak<Desk>,
    table: Weak<Transactions>,
    volume: Weak<OpenVolume>,
    hall: Weak<Hall>,
    /// The names that lead from the volume's root to the directory.
    below: Arc<[Vec<u8>]>,
    places: Mutex<HashMap<Seat, Arc<Place>>>,
    watcher: Arc<Watcher>,
    deaths: OnceLock<Option<Arc<Deaths>>>,
    /// Of a mount that routes.
    strays: Strays,
}

/// A seat and what happens on it.
struct Place {
    seat: Seat,
    tid: u32,
    uid: u32,
    gid: u32,
    /// Its pidfd, where the kernel has those of threads.
    thread: Option<Arc<OwnedFd>>,
    argv: Vec<HostPath>,
    now: Mutex<Now>,
}

#[derive(Default)]
struct Now {
    open: Option<Work>,
    /// What its end waits for, in words.
    waits: String,
    /// What the next one declares, while it is told and in line.
    scope: Scope,
    /// The same as others see it; what is in line no more may be here still.
    waiting: Option<Waiting>,
    /// One that is over, and whose verdict is to come.
    pending: Option<Box<Pending>>,
    /// The last one that was open.
    last: Last,
    profile: Profile,
    /// It waits to begin this one, since then.
    held: Option<(TxnId, Instant)>,
    /// How long what is open had to wait to begin.
    waited: Option<Duration>,
    /// Somebody stayed inside after its end, and would be in the next one.
    worn: bool,
    /// What was said to be committed, and could not be made durable afterwards.
    not_durable: Option<(TxnId, String)>,
}

#[derive(Clone)]
struct Work {
    txn: Arc<Transaction>,
    lasting: Arc<Lasting>,
    /// It has lost, and the kernel was made to ask.
    told: Arc<AtomicBool>,
    /// Not where it is routed: nobody takes part but the thread itself.
    members: Option<Arc<Members>>,
    /// Its end does not wait for the disk.
    relaxed: bool,
}

impl Place {
    /// Drops what is open if it is not to be committed, or cannot be: why, and whether it is so.
    fn dropped(&self, table: &Transactions, work: &Work, commit: bool, last: &mut Last) -> bool {
        let txn = &work.txn;
        if table.get(txn.id).is_err() {
            (last.state, last.words) = (abi::state::ABORTED, "ended by `systx abort`".into());
            return true;
        }
        let conflict = txn.conflict(table);
        if !commit {
            (last.state, last.words) = (abi::state::ABORTED, self.now.lock().waits.clone());
            // What had lost has lost, also if its program noticed first: another attempt is older.
            last.fail(conflict, txn.age, txn.timestamp);
        } else if conflict.is_some() {
            last.fail(conflict, txn.age, txn.timestamp);
        } else if let Some(words) = work.members.as_ref().and_then(|members| members.killed()) {
            // It may have died half way through what it had to do.
            (last.state, last.words) = (abi::state::ABORTED, words);
        } else {
            return false;
        }
        txn.abort();
        table.retire(txn, false);
        true
    }
}

impl Desk {
    /// Of a directory that is mounted already.
    pub(crate) fn new(
        table: Weak<Transactions>,
        volume: &Arc<OpenVolume>,
        hall: &Arc<Hall>,
        strays: Strays,
    ) -> Arc<Desk> {
        let below = hall.dir.strip_prefix(&volume.location.mount).unwrap_or(&hall.dir);
        let below = below.iter().map(|name| name.as_bytes().to_vec()).collect();
        // A volume tells one of its commits, for which no file system raises events.
        let of_all = table.upgrade().filter(|_| volume.is_image());
        let watcher = of_all.map(|table| table.volumes.path_views.watcher()).unwrap_or_default();
        Arc::new_cyclic(|me| Desk {
            me: me.clone(),
            table,
            volume: Arc::downgrade(volume),
            hall: Arc::downgrade(hall),
            below,
            places: Mutex::new(rank::LEAF, HashMap::new()),
            watcher,
            deaths: OnceLock::new(),
            strays,
        })
    }

    fn parts(&self) -> Reply<(Arc<Transactions>, Arc<OpenVolume>, Arc<Hall>)> {
        let parts = (self.table.upgrade(), self.volume.upgrade(), self.hall.upgrade());
        let (Some(table), Some(volume), Some(hall)) = parts else { return Err(Errno::NODEV) };
        Ok((table, volume, hall))
    }

    // ---- seats ------------------------------------------------------------------------------

    fn attach(&self, caller: Caller, arg: abi::Attach) -> Reply<abi::Attach> {
        if arg.version != abi::VERSION {
            return Err(Errno::PROTO);
        }
        // A thread of another pid namespace has no number here.
        if caller.tid == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (_, _, hall) = self.parts()?;
        if hall.modes().into_iter().any(|mode| modes::excluded(Way::Thread, mode).is_some()) {
            return Err(Errno::OPNOTSUPP);
        }
        let own = caller.uid == rustix::process::geteuid().as_raw();
        let taken = || self.places.lock().values().filter(|p| p.uid == caller.uid).count();
        if !own && taken() >= SEATS_OF_A_GUEST {
            return Err(Errno::MFILE);
        }
        let number = i32::try_from(caller.tid).ok().and_then(Pid::from_raw);
        let thread = pidfd_open(number.ok_or(Errno::OPNOTSUPP)?, PIDFD_THREAD);
        let thread = thread.inspect_err(|errno| tracing::info!(%errno, "no pidfd of a thread"));
        let thread = thread.ok().map(Arc::new);
        let routed = hall.aliases.routes();
        if routed && thread.is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        let seat = hall.aliases.seat(caller.tid);
        let argv = processes::command_line(caller.tid).unwrap_or_default();
        let argv = argv.split(|b| *b == 0).filter(|a| !a.is_empty());
        let places: Vec<_> = self.places.lock().values().cloned().collect();
        let mut own_places =
            places.into_iter().filter(|p| (p.tid, p.uid) == (caller.tid, caller.uid));
        // The next attempt is that of the same thread.
        let before = own_places.find_map(|place| {
            let now = place.now.lock();
            now.worn.then(|| (now.last.clone(), now.profile.clone()))
        });
        let (last, profile) = before.unwrap_or_default();
        let place = Arc::new(Place {
            seat,
            tid: caller.tid,
            uid: caller.uid,
            gid: caller.gid,
            thread: thread.clone(),
            argv: argv.map(|a| HostPath(a.to_vec())).collect(),
            now: Mutex::new(rank::LEAF, Now { last, profile, ..Now::default() }),
        });
        self.places.lock().insert(seat, place);
        if let Some(thread) = thread {
            self.watch_over(thread, seat);
        }
        let text = seat.name();
        let mut name = [0; 52];
        name.get_mut(..text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&text);
        let (version, routed) = (abi::VERSION, u32::from(routed));
        Ok(abi::Attach { version, name_len: text.len() as u32, routed, name })
    }

    /// Has the seat ended when its thread has. Without pidfds of threads, the last close of the
    /// control descriptor does that, for the whole process.
    fn watch_over(&self, thread: Arc<OwnedFd>, seat: Seat) {
        let deaths = self.deaths.get_or_init(|| Deaths::start(self.hall.clone()));
        if let Some(deaths) = deaths {
            deaths.add(seat, thread);
        }
    }

    fn place(&self, seat: Seat) -> Reply<Arc<Place>> {
        self.places.lock().get(&seat).cloned().ok_or(Errno::STALE)
    }

    /// The thread, or its process, is gone.
    fn close(&self, seat: Seat) {
        let Some(place) = self.places.lock().remove(&seat) else { return };
        if let Some(Some(deaths)) = self.deaths.get() {
            deaths.remove(seat);
        }
        self.leave_line(&place);
        if place.now.lock().open.is_some()
            && let Err(errno) = self.end(&place, false)
        {
            tracing::warn!(%errno, ?seat, "a dead thread's transaction");
        }
        if let Some(hall) = self.hall.upgrade() {
            hall.aliases.remove(seat);
        }
    }

    // ---- transactions -----------------------------------------------------------------------

    /// Tells one path of the scope of the next transaction.
    fn tell_scope(&self, place: &Place, arg: abi::Scope) -> Reply<abi::Scope> {
        self.leave_line(place);
        let mut now = place.now.lock();
        if now.open.is_some() {
            return Err(Errno::BUSY);
        }
        now.scope.tell(&arg, &self.below)?;
        Ok(arg)
    }

    /// A begin that was in line is not there any more, if it has not begun.
    fn leave_line(&self, place: &Place) {
        let line = {
            let mut now = place.now.lock();
            now.waiting = None;
            now.scope.leave()
        };
        if let (Some(id), Some(volume)) = (line, self.volume.upgrade()) {
            volume.vol.engine.leave_line(id);
        }
    }

    /// Gives what is open on a seat its place in an order, or resets one.
    fn order(&self, place: &Place, arg: abi::Order) -> Reply<abi::Order> {
        let (table, volume, _) = self.parts()?;
        let order = thread_orders::order(&arg, place.uid)?;
        match arg.what {
            abi::order::NEXT => {
                return Ok(abi::Order { number: thread_orders::next(&volume, &order)?, ..arg });
            }
            abi::order::RESET => thread_orders::reset((&table, &volume), order, arg.number)?,
            abi::order::JOIN => {
                let open = place.now.lock().open.clone().ok_or(Errno::INVAL)?;
                if let Err((errno, words)) = thread_orders::join(&open.txn, order, arg.number) {
                    // Without its place it must not be committed.
                    self.end(place, false)?;
                    let last = &mut place.now.lock().last;
                    (last.state, last.errno) = (abi::state::FAILED, errno.raw_os_error());
                    last.words = words;
                    return Err(errno);
                }
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(arg)
    }

    /// What has to happen before what is open on a seat can be committed; waits a while for it, if
    /// the flags say so.
    fn not_yet(&self, place: &Place, flags: u32) -> Reply<Option<abi::End>> {
        let (table, ..) = self.parts()?;
        let Work { txn, members, .. } = place.now.lock().open.clone().ok_or(Errno::INVAL)?;
        if table.get(txn.id).is_err() || txn.state() == State::Doomed {
            return Ok(None);
        }
        let wait = flags & abi::end::NOW == 0;
        let alone = flags & abi::end::ALONE != 0;
        let limit = if wait && !alone { thread_orders::WAIT } else { Duration::ZERO };
        let busy = if alone { Errno::BUSY } else { Errno::TIMEDOUT };
        // Their turn comes first: they may still do what the order is about.
        let inside = members.and_then(|members| members.wait(limit));
        let inside = inside.map(|words| (busy, words));
        let waits = inside.or_else(|| thread_orders::await_turn(&txn, &table, wait));
        let end = waits.as_ref().map(|(errno, _)| abi::End {
            state: abi::state::WAITS,
            errno: errno.raw_os_error(),
            id: txn.id.0,
            ..abi::End::default()
        });
        place.now.lock().waits = waits.map(|(_, words)| words).unwrap_or_default();
        Ok(end)
    }

    /// Commits or drops what is open on a seat.
    fn end(&self, place: &Place, commit: bool) -> Reply<abi::End> {
        let (table, _, hall) = self.parts()?;
        let work = place.now.lock().open.clone().ok_or(Errno::INVAL)?;
        let Work { txn, lasting, members, .. } = work.clone();
        let turn = txn.take_turn().map_err(|_| Errno::BUSY)?;
        let mut last = Last { id: txn.id.0, retries: txn.age, ..Last::default() };
        let engine = &txn.volume.vol.engine;
        let measured = place.measure(&txn);
        let asleep = engine.lost_asleep(txn.id);
        last.lost.extend(engine.conflict(txn.id));
        let mut open = None;
        let mut tail = None;
        if !place.dropped(&table, &work, commit, &mut last) {
            self.flush(&hall, place.seat, &lasting);
            match self.commit_work(place, &table, &work, &mut last) {
                Relaxing::Decided(rest) => {
                    last.state = abi::state::COMMITTED;
                    tail = Some(rest);
                }
                Relaxing::Ended(ended, still) => {
                    open = still;
                    last.lost.extend(engine.conflict(txn.id));
                    last.ended(table.end(&txn, ended), &txn);
                }
            }
        }
        let left = hall.aliases.detach(place.seat);
        self.strays.leave(place.tid);
        if let Some(tail) = tail {
            turn.keep();
            // Before anything below, which may have to wait for a request that waits for this.
            self.finish_later(*tail, (&table, &hall), (place.seat, txn.id), left.tag);
        }
        self.forget(&hall, place.seat, &left);
        self.keep_up(&hall, left.tag, &open.unwrap_or_default());
        let answer = last.answer();
        let committed = last.state == abi::state::COMMITTED;
        if !committed {
            let before = place.now.lock().last.slept;
            let winner = last.winner().filter(|_| asleep).and_then(|id| table.get(id).ok());
            last.slept = winner.map(|winner| before.and(&winner)).unwrap_or_default();
        }
        let worn = !committed && members.is_some_and(|members| members.any());
        let mut now = place.now.lock();
        if txn.age > 0 {
            last.after(&now.last.lost);
        }
        now.worn |= worn;
        now.open = None;
        now.waits.clear();
        now.last = last;
        now.note_end(measured);
        Ok(answer)
    }

    /// What is left of a relaxed commit is done by another thread.
    fn finish_later(
        &self,
        tail: Tail,
        (table, hall): (&Arc<Transactions>, &Arc<Hall>),
        (seat, id): (Seat, TxnId),
        tag: Tag,
    ) {
        let (hall, desk) = (Arc::downgrade(hall), self.me.clone());
        tail.finish(table, move |outcome, open| {
            let both = hall.upgrade().zip(desk.upgrade());
            let Some((hall, desk)) = both else { return };
            desk.has_ended(&hall, (seat, id), outcome, (tag, &open.unwrap_or_default()));
        });
    }

    /// Has the kernel write back what the thread has stored in shared mappings.
    fn flush(&self, hall: &Hall, seat: Seat, lasting: &Lasting) {
        let written = lasting.open_for_writing();
        let Some(connection) = hall.connection().filter(|_| !written.is_empty()) else { return };
        for node in written {
            let Some(node) = hall.aliases.node_of(seat, node) else { continue };
            let _ = connection.invalidate_inode(node, Some((0, 0)));
        }
    }

    /// A relaxed commit is in place, or could not be.
    fn has_ended(
        &self,
        hall: &Arc<Hall>,
        (seat, id): (Seat, TxnId),
        outcome: Outcome,
        (tag, open): (Tag, &[StillOpen]),
    ) {
        let words = match outcome {
            Outcome::Committed { .. } => return self.keep_up(hall, tag, open),
            Outcome::Unfinished { failure, .. } => {
                return self.tell_relaxed(seat, id, format!("{id} is not in place: {failure}"));
            }
            Outcome::Refused { failure, .. } => failure.to_string(),
            Outcome::Conflict { conflict, .. } => {
                format!("{} was changed past the guard meanwhile", conflict.path)
            }
            Outcome::Aborted { .. } | Outcome::Kept { .. } => "it was dropped".into(),
        };
        let words = format!("{id}, which was to be durable later, is not committed: {words}");
        self.tell_relaxed(seat, id, words);
    }

    /// What the next begin of a thread says of a relaxed commit before it.
    fn tell_relaxed(&self, seat: Seat, id: TxnId, words: String) {
        tracing::error!(%words, "a relaxed commit");
        if let Ok(place) = self.place(seat) {
            place.now.lock().not_durable = Some((id, words));
        }
    }

    /// Has the kernel forget what the next transaction must not see.
    fn forget(&self, hall: &Arc<Hall>, seat: Seat, left: &Left) {
        let Some(connection) = hall.connection() else { return };
        for name in &left.names {
            // That it does not know (any more) is fine.
            let _ = connection.invalidate_entry(seat.node(), name, false);
        }
        if left.root {
            let _ = connection.invalidate_inode(seat.node(), Some((0, 0)));
        }
        if !left.loose.is_empty() {
            // Before Linux 6.18 it finds out when it needs the memory.
            let _ = connection.prune(&left.loose);
        }
    }

    /// Has the kernel forget what a commit has made old in files that are still open, and what
    /// others change in them.
    fn keep_up(&self, hall: &Arc<Hall>, tag: Tag, open: &[StillOpen]) {
        let keeps: Arc<dyn Keeps> = hall.clone();
        for still in open {
            let Some(node) = tag.node(still.node) else { continue };
            if let Some((file, id)) = &still.file {
                self.watcher.add(&keeps, node, (file.as_fd(), *id));
            }
            keeps.drop_pages(node);
        }
    }

    /// Has the kernel ask again about names that those know who have lost: a program that looks for
    /// a file again and again would else not hear of it.
    fn tell_losers(&self) {
        let Some(hall) = self.hall.upgrade() else { return };
        let Some(connection) = hall.connection() else { return };
        let places: Vec<_> = self.places.lock().values().cloned().collect();
        for place in places {
            let Some(work) = place.now.lock().open.clone() else { continue };
            if work.txn.state() != State::Doomed || work.told.swap(true, Ordering::Relaxed) {
                continue;
            }
            for name in hall.aliases.names(place.seat) {
                let _ = connection.invalidate_entry(place.seat.node(), &name, false);
            }
            for (dir, name) in work.txn.view.names() {
                if let Some(dir) = hall.aliases.node_of(place.seat, dir) {
                    let _ = connection.invalidate_entry(dir, &name, false);
                }
            }
        }
    }

    /// Has the kernel let go of what was in use at the end of a transaction and is not any more.
    fn clear_up(&self) {
        let Some(hall) = self.hall.upgrade() else { return };
        let nodes = hall.aliases.unreachable();
        if let Some(connection) = hall.connection().filter(|_| !nodes.is_empty()) {
            // Before Linux 6.18 it does so when it needs the memory.
            let _ = connection.prune(&nodes);
        }
    }

    fn status(&self, place: &Place) -> Reply<abi::Status> {
        let (table, ..) = self.parts()?;
        let (open, waits, last) = {
            let now = place.now.lock();
            (now.open.clone(), now.waits.clone(), now.last.clone())
        };
        let last = match open {
            None => last,
            Some(Work { txn, .. }) => {
                let mut at = Last { id: txn.id.0, retries: txn.age, ..Last::default() };
                (at.state, at.words) = (abi::state::OPEN, waits);
                if table.get(txn.id).is_err() {
                    at.state = abi::state::ABORTED;
                } else if txn.state() == State::Doomed {
                    at.fail(txn.conflict(&*table), txn.age, txn.timestamp);
                }
                at
            }
        };
        Ok(last.status(place.uid))
    }
}

/// One kind of argument, and its answer.
fn answer<T: FromBytes + IntoBytes + zerocopy::Immutable>(
    arg: &[u8],
    ask: impl FnOnce(T) -> Reply<T>,
) -> Reply<Vec<u8>> {
    let arg = T::read_from_bytes(arg).map_err(|_| Errno::INVAL)?;
    Ok(ask(arg)?.as_bytes().to_vec())
}

impl hall::Desk for Desk {
    fn waiting(&self, ids: &[TxnId]) -> Vec<(Waiting, Vec<HostPath>)> {
        let places: Vec<_> = self.places.lock().values().cloned().collect();
        let of = |place: Arc<Place>| {
            let waiting = place.now.lock().waiting.clone()?;
            ids.contains(&waiting.id).then(|| (waiting, place.argv.clone()))
        };
        places.into_iter().filter_map(of).collect()
    }

    fn threads(&self, engine: &Engine) -> Vec<ThreadActivity> {
        self.all_threads(engine)
    }

    fn look_round(&self) {
        self.tell_losers();
        self.clear_up();
    }

    fn close_all(&self) {
        self.strays.leave_behind();
        let seats: Vec<Seat> = self.places.lock().keys().copied().collect();
        for seat in seats {
            self.close(seat);
        }
    }
}

impl Control for Desk {
    fn control(&self, caller: Caller, seat: Option<Seat>, cmd: u32, arg: &[u8]) -> Reply<Vec<u8>> {
        if cmd == abi::ATTACH {
            if seat.is_some() {
                return Err(Errno::ALREADY);
            }
            return answer(arg, |arg| self.attach(caller, arg));
        }
        if (cmd, seat) == (abi::ROUTE, None) {
            return answer(arg, |arg: abi::Route| {
                self.parts()?.2.aliases.is_told(caller.tid);
                self.strays.leave(caller.tid);
                Ok(arg)
            });
        }
        let known =
            [abi::BEGIN, abi::END, abi::ABORT, abi::STATUS, abi::ORDER, abi::SCOPE, abi::ROUTE];
        let known = known.contains(&cmd);
        let seat = seat.filter(|_| known).ok_or(Errno::NOTTY)?;
        let place = self.place(seat)?;
        if place.tid != caller.tid || place.uid != caller.uid && caller.uid != 0 {
            return Err(Errno::PERM);
        }
        match cmd {
            abi::BEGIN => answer(arg, |arg| self.begin(&place, caller, arg)),
            abi::END => answer(arg, |arg: abi::End| {
                if arg.flags & !abi::end::ALL != 0 {
                    return Err(Errno::INVAL);
                }
                self.commit(&place, arg.flags)
            }),
            abi::SCOPE => answer(arg, |arg| self.tell_scope(&place, arg)),
            abi::ORDER => answer(arg, |arg| self.order(&place, arg)),
            abi::ROUTE => answer(arg, |arg: abi::Route| {
                self.parts()?.2.aliases.switch(seat, arg.on != 0);
                Ok(arg)
            }),
            abi::ABORT => answer(arg, |_: abi::End| self.end(&place, false)),
            _ => answer(arg, |_: abi::Status| self.status(&place)),
        }
    }

    fn met(&self, seat: Seat, tid: u32) {
        let open = self.place(seat).ok().and_then(|place| place.now.lock().open.clone());
        if let Some(work) = open {
            work.members.inspect(|members| members.met(tid));
        }
    }

    fn is_inside(&self, tid: u32) -> bool {
        let places: Vec<_> = self.places.lock().values().cloned().collect();
        let open = places.iter().filter_map(|place| place.now.lock().open.clone());
        open.filter_map(|work| work.members).any(|members| members.has(tid))
    }

    fn closes(&self, seat: Seat, tid: u32) {
        // The thread goes on as another program, which has its number: descriptors are closed
        // before that begins.
        let routed = self.parts().is_ok_and(|(_, _, hall)| hall.aliases.routes());
        if routed && self.place(seat).is_ok_and(|place| place.tid == tid) {
            self.close(seat);
        }
    }

    fn vacated(&self, seat: Seat) {
        self.close(seat);
    }
}
