//! How the transaction of a thread begins.

use super::held::Hold;
use super::last::{Last, Slept};
use super::{ASLEEP, Desk, Place, Work};
use crate::hall::Hall;
use crate::members::Members;
use crate::protocol::{self, Failure, HostPath};
use crate::thread_scopes;
use crate::transaction::{Lives, Terms, Transaction, Whose, engine_isolation};
use crate::transactions::Transactions;
use crate::urgency::{self, LastThread, OfThread};
use crate::volume::OpenVolume;
use abi::begin::{ALL, NONBLOCK, NOW, READ_ONLY, RELAXED, RETRY, SCOPED, SNAPSHOT};
use rustix::io::Errno;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use systx_abi as abi;
use systx_base::TxnId;
use systx_guard::aliases::Rider;
use systx_guard::retired::Lasting;
use systx_protocol::modes::{self, Way};
use systx_txn::BeginOptions;
use systx_vfs::api::{Caller, Reply};

impl Desk {
    pub(super) fn begin(
        &self,
        place: &Place,
        caller: Caller,
        arg: abi::Begin,
    ) -> Reply<abi::Begin> {
        place.now.lock().pending = None;
        let begun = self.begin_or_wait(place, caller, arg);
        let last_word = arg.flags & (NOW | NONBLOCK) != 0;
        // Who is gone meanwhile has left for the last time.
        let last_word = last_word || self.place(place.seat).is_err();
        let stays = |b: &abi::Begin| b.state == abi::state::WAITS && !last_word;
        if !begun.as_ref().is_ok_and(stays) {
            self.leave_line(place);
        }
        begun
    }

    fn begin_or_wait(&self, place: &Place, caller: Caller, arg: abi::Begin) -> Reply<abi::Begin> {
        let last = place.may_begin(&arg)?;
        let (table, volume, hall) = self.parts()?;
        if let Some(path) = table.volumes.unprotected.any_in(&hall.dir) {
            place.now.lock().last.words = not_protected(&path, place.uid);
            return Err(Errno::OPNOTSUPP);
        }
        let guest = caller.uid != table.uid();
        let wish = Wish { place, caller, arg, guest, last, table, volume, hall };
        if wish.would_lose() {
            return Err(Errno::AGAIN);
        }
        let thread = LastThread::new(caller.tid.into());
        let (options, terms) = (wish.options(), wish.terms(thread));
        let retries = options.age;
        let txn = match wish.is(SCOPED) {
            true => match wish.in_line(&terms, &options)? {
                Ok(txn) => txn,
                Err(waits) => return Ok(waits),
            },
            false => wish.in_turn(&terms, &options)?,
        };
        let id = txn.id;
        self.open(&wish, txn)?;
        Ok(abi::Begin { retries, id: id.0, state: abi::state::OPEN, ..arg })
    }

    /// What has begun is shown to its thread.
    fn open(&self, wish: &Wish<'_>, txn: Arc<Transaction>) -> Reply<()> {
        let (place, hall, tid) = (wish.place, &wish.hall, wish.caller.tid);
        let asleep = move || crate::blocked::all_keep_waiting_for(tid).is_some();
        txn.volume.vol.engine.defer_while(txn.id, asleep);
        let lasting = Lasting::new(Arc::clone(&txn.view), Arc::clone(&wish.volume.vol));
        let lasting = Arc::new(lasting);
        let rider = self.rider(place, hall);
        let routed = rider.is_some();
        let attached = hall.aliases.attach(place.seat, lasting.clone(), self.below.clone(), rider);
        if let Err(errno) = attached {
            txn.abort();
            return Err(errno);
        }
        wish.table.add(Arc::clone(&txn));
        let members = (!routed).then(|| Arc::new(Members::new(tid, wish.arg.namespace)));
        // What reads only, a snapshot among them, has nothing that could be durable.
        let relaxed = wish.is(RELAXED) && !wish.is(READ_ONLY);
        let open = Work { txn, lasting, told: Arc::default(), members, relaxed };
        place.now.lock().open = Some(open);
        Ok(())
    }

    /// Whose requests are routed, if those of a transaction on this seat are.
    fn rider(&self, place: &Place, hall: &Hall) -> Option<Rider> {
        let thread = place.thread.clone().filter(|_| hall.aliases.routes())?;
        self.strays.enter(place.tid, thread.as_fd());
        Some(Rider { tid: place.tid, uid: place.uid, gid: place.gid, thread })
    }
}

impl Place {
    /// Whether a transaction may begin here; how the last one ended.
    fn may_begin(&self, arg: &abi::Begin) -> Reply<Last> {
        let mut now = self.now.lock();
        let scoped = arg.flags & SCOPED != 0;
        if arg.flags & !ALL != 0 || scoped && (arg.flags & READ_ONLY != 0 || !now.scope.is_told()) {
            return Err(Errno::INVAL);
        }
        if now.open.is_some() {
            return Err(Errno::BUSY);
        }
        if now.worn {
            return Err(Errno::STALE);
        }
        if let Some((id, words)) = now.not_durable.take() {
            let (state, errno) = (abi::state::FAILED, Errno::IO.raw_os_error());
            now.last = Last { id: id.0, state, errno, words, ..Last::default() };
            return Err(Errno::IO);
        }
        if now.last.slept.times >= ASLEEP {
            now.last.slept = Slept::default();
            now.last.words = format!(
                "lost {ASLEEP} times to one thread while it waited, and that one lost, too: a \
                 lock is held around transactions by one, and taken inside of them by another"
            );
            return Err(Errno::DEADLK);
        }
        Ok(now.last.clone())
    }
}

/// Why nothing begins, for a user.
fn not_protected(path: &Path, uid: u32) -> String {
    let refusal = |what: &dyn Display| modes::refusal(Way::Thread, Way::Unprotected, what);
    // What there is in the directory may be none of others' business.
    if uid != rustix::process::geteuid().as_raw() {
        return refusal(&"something in the directory").message;
    }
    let Failure { message, hint, .. } = refusal(&path.display());
    hint.map_or(message.clone(), |hint| format!("{message}: {hint}"))
}

/// What a thread wants to begin, and where.
struct Wish<'a> {
    place: &'a Place,
    caller: Caller,
    arg: abi::Begin,
    /// Of another user than the daemon's.
    guest: bool,
    /// How its last one ended.
    last: Last,
    table: Arc<Transactions>,
    volume: Arc<OpenVolume>,
    hall: Arc<Hall>,
}

impl Wish<'_> {
    fn is(&self, flag: u32) -> bool {
        self.arg.flags & flag != 0
    }

    /// Whether it is the next attempt of one that has lost.
    fn is_again(&self) -> bool {
        self.is(RETRY) && self.last.state == abi::state::LOST
    }

    /// Whether it is not to wait, and what it has lost to goes on; in its scope it will not lose to
    /// that again.
    fn would_lose(&self) -> bool {
        self.is_again()
            && !self.is(SCOPED)
            && self.is(NONBLOCK)
            && self
                .last
                .winner()
                .is_some_and(|winner| !self.volume.vol.engine.wait_ended(winner, Duration::ZERO))
    }

    fn isolation(&self) -> protocol::Isolation {
        match self.is(SNAPSHOT) {
            false => protocol::Isolation::Serializable,
            true => protocol::Isolation::Snapshot,
        }
    }

    fn options(&self) -> BeginOptions {
        let again = self.is_again();
        BeginOptions {
            isolation: engine_isolation(self.isolation()),
            follows: Some(Arc::new(OfThread(self.caller.tid))),
            choice: urgency::by(self.hall.conflicts.policy),
            age: if again { self.last.retries } else { 0 },
            read_only: self.is(READ_ONLY),
            timestamp: again.then_some(self.last.timestamp),
            guest: self.guest,
            inject: self.table.inject(),
            ..BeginOptions::default()
        }
    }

    fn terms(&self, thread: LastThread) -> Terms {
        let Caller { uid, tid: client, .. } = self.caller;
        let whose = Whose { uid, client, thread, guest: self.guest };
        let cwd = HostPath::from(self.hall.dir.as_path());
        // Where requests are routed they hold locks of view 0.
        let patience = match self.hall.aliases.routes() {
            false => self.hall.conflicts.stall,
            true => Duration::ZERO,
        };
        Terms {
            isolation: self.isolation(),
            read_only: self.is(READ_ONLY),
            at_once: self.is(NONBLOCK),
            patience,
            ..Terms::new(Lives::Thread, self.place.argv.clone(), cwd, whose)
        }
    }

    fn refused(&self, failure: protocol::Failure) -> Errno {
        if self.is(NONBLOCK) && failure.kind == protocol::FailureKind::Busy {
            return Errno::AGAIN;
        }
        let uid = self.caller.uid;
        tracing::error!(uid, "a thread's transaction cannot begin: {failure}");
        Errno::IO
    }

    fn new_id(&self) -> Reply<TxnId> {
        self.table.new_id(&self.volume).map_err(|failure| self.refused(failure))
    }

    fn begin(&self, id: TxnId, terms: &Terms, options: &BeginOptions) -> Reply<Arc<Transaction>> {
        let (volume, ids) = (self.volume.clone(), self.table.ids());
        let begun = Transaction::begin_within(id, volume, terms.clone(), options.clone(), ids);
        begun.map_err(|failure| self.refused(failure))
    }

    /// Begins in the line of those that have declared what they meet; or says what it waits for.
    fn in_line(
        &self,
        terms: &Terms,
        options: &BeginOptions,
    ) -> Reply<Result<Arc<Transaction>, abi::Begin>> {
        let place = self.place;
        let mut scope = place.now.lock().scope.clone();
        let how = thread_scopes::Begin {
            table: &self.table,
            volume: &self.volume.vol,
            caller: self.caller,
            trusted: !self.guest,
            at_once: self.is(NONBLOCK),
            late: self.is(NOW),
            shows: &|waiting| place.now.lock().waiting = Some(waiting),
        };
        let begin = |id| self.begin(id, terms, options);
        let begun = how.run(&mut scope, || self.new_id(), begin);
        place.now.lock().scope = scope;
        Ok(begun?.map_err(|(errno, words)| {
            place.now.lock().last.words = words;
            let (state, errno) = (abi::state::WAITS, errno.raw_os_error());
            abi::Begin { state, errno, ..self.arg }
        }))
    }

    /// Begins when it would not lose again at once.
    fn in_turn(&self, terms: &Terms, options: &BeginOptions) -> Reply<Arc<Transaction>> {
        let id = self.new_id()?;
        let again = self.is_again().then_some(&self.last);
        let hold = Hold { id, options, again, stall: self.hall.conflicts.stall };
        let turn = match self.is(NONBLOCK) {
            true => None,
            false => self.place.hold(&self.volume.vol.engine, &hold)?,
        };
        let txn = self.begin(id, terms, options)?;
        drop(turn);
        Ok(txn)
    }
}
