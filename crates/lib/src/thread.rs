//! The transactions of this thread.

use crate::calls;
use crate::door::{Door, Phase};
use crate::options::{Begin, Declared, Flags, patience};
use crate::scope;
use crate::seat::{Seat, Where, has_ended, here};
use crate::{State, Status};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use systx_abi as abi;

/// The guarded directory for [`xbegin`] without one, see [`use_dir`].
static DEFAULT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// What a thread has.
struct Mine {
    /// The thread that this was made by: a forked child has a copy.
    tid: rustix::process::Pid,
    /// By the directory that was asked for; the last used one first.
    seats: Vec<(PathBuf, Seat)>,
    open: Option<Open>,
}

struct Open {
    id: u64,
    /// How often `xbegin` was called more than `xend`.
    depth: u32,
    /// Where the thread worked before; `None` while it is paused.
    from: Option<Where>,
    /// It is another process's or thread's, which this one was made in.
    joined: bool,
    /// If it is another thread's of this process: the way out.
    guest: Option<Guest>,
    /// Its end fails rather than wait for others that take part.
    alone: bool,
    /// The daemon routes this thread's requests.
    routed: bool,
}

/// A thread in another one's transaction, in which it was made.
struct Guest {
    door: Arc<Door>,
    /// It has stepped out.
    out: bool,
}

impl Open {
    fn joined(id: u64, depth: u32, guest: Option<Guest>) -> Open {
        Open { id, depth, from: None, joined: true, guest, alone: false, routed: false }
    }

    /// How the transaction that a guest takes part in has ended.
    fn over(&self) -> Option<State> {
        let now = *self.guest.as_ref()?.door.now();
        match now.phase {
            Phase::Over(state) if now.id == self.id => Some(state),
            // What came of it is not known any more.
            _ if now.id != self.id => Some(State::Aborted),
            _ => None,
        }
    }
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

/// The directory for [`xbegin`] calls that name none; `None`: that of the environment variable
/// `SYSTX_DIR`, or else the working directory.
pub fn use_dir(dir: Option<&Path>) {
    if let Ok(mut default) = DEFAULT.lock() {
        *default = dir.map(Path::to_owned);
    }
}

fn default_dir() -> PathBuf {
    let set = DEFAULT.lock().ok().and_then(|dir| dir.clone());
    set.or_else(|| std::env::var_os("SYSTX_DIR").map(PathBuf::from)).unwrap_or_else(|| ".".into())
}

fn with<T>(run: impl FnOnce(&mut Mine) -> Result<T, Errno>) -> io::Result<T> {
    let _quiet = calls::quiet();
    let done = MINE.try_with(|mine| {
        let mut mine = mine.try_borrow_mut().map_err(|_| Errno::BUSY)?;
        let tid = rustix::thread::gettid();
        let mine = mine.get_or_insert_with(|| Mine { tid, seats: Vec::new(), open: made_inside() });
        if mine.tid != tid {
            // After a fork: the seats are the parent's, and so is the transaction. Their
            // descriptors are closed with this process.
            std::mem::forget(std::mem::take(&mut mine.seats));
            mine.tid = tid;
            calls::forked();
            // Whose requests are routed is one thread, and this is another one.
            if mine.open.as_ref().is_some_and(|open| open.routed) {
                mine.open = None;
            }
            if let Some(open) = &mut mine.open {
                open.joined = true;
                open.depth = 0;
                open.guest = None;
            }
        }
        run(mine)
    });
    // At the very end of a thread there is nothing left to ask.
    Ok(done.unwrap_or(Err(Errno::INVAL))?)
}

/// What a thread takes part in that has done nothing yet.
fn made_inside() -> Option<Open> {
    let door = Door::here()?;
    let id = door.now().id;
    Some(Open::joined(id, 0, Some(Guest { door, out: false })))
}

impl Mine {
    fn seat(&mut self, dir: &Path) -> Result<(), Errno> {
        if let Some(at) = self.seats.iter().position(|(of, _)| of == dir) {
            self.seats.swap(0, at);
            return Ok(());
        }
        let seat = Seat::new(dir).map_err(not_begun)?;
        self.seats.insert(0, (dir.to_owned(), seat));
        Ok(())
    }

    /// The seat of a directory that was unmounted since, whose daemon was replaced, or in which
    /// somebody is left, gives way to another one.
    fn renew(&mut self, dir: &Path) -> Result<(), Errno> {
        // It is needed until the daemon has made the next one: that takes over how often it has
        // lost.
        let (_, old) = self.seats.remove(0);
        Door::leave(&old.door);
        self.seat(dir)
    }

    fn current(&self) -> Result<&Seat, Errno> {
        self.seats.first().map(|(_, seat)| seat).ok_or(Errno::INVAL)
    }

    fn begin(&mut self, dir: &Path, how: &Begin<'_>) -> Result<(), Errno> {
        let order = how.order.map(|(name, number)| order(abi::order::JOIN, name, number));
        let order = order.transpose()?;
        let scoped = !how.scope.is_empty();
        if scoped && order.is_some() {
            return Err(Errno::INVAL);
        }
        // What only counts has neither.
        let plain = order.is_none() && !scoped;
        if self.takes_part(plain)? || self.is_made_inside(dir, plain)? {
            return Ok(());
        }
        let routed = self.current()?.door.is_routed();
        if routed && how.flags.bits() & Flags::CALLS_KNOWN != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (id, from) = self.go_in(dir, how, order.as_ref()).map_err(not_begun)?;
        let alone = how.flags.bits() & Flags::NONBLOCK.bits() != 0;
        self.current()?.door.set(id, Phase::Open);
        let (from, joined, guest) = (Some(from), false, None);
        self.open = Some(Open { id, depth: 1, from, joined, guest, alone, routed });
        if calls::wanted(how.flags) {
            let begun = self
                .current()
                .and_then(|seat| calls::begin(how.flags, &seat.control, seat.door.namespace));
            begun.inspect_err(|_| {
                let _ = self.abort();
            })?;
        }
        Ok(())
    }

    /// Whether the thread is in a transaction, which it enters once more: if it only counts.
    fn takes_part(&mut self, plain: bool) -> Result<bool, Errno> {
        if let Some(guest) = self.open.as_ref().and_then(|open| open.guest.as_ref()) {
            let (out, over) = (guest.out, self.open.as_ref().and_then(Open::over).is_some());
            match (out, over) {
                (true, true) => self.open = None,
                (true, false) => return Err(Errno::BUSY),
                // It can do nothing here but step out.
                (false, true) => return Err(Errno::CANCELED),
                (false, false) => {}
            }
        }
        let Some(open) = &mut self.open else { return Ok(false) };
        if !plain {
            return Err(Errno::INVAL);
        }
        if open.from.is_none() && !open.joined {
            return Err(Errno::BUSY);
        }
        open.depth += 1;
        Ok(true)
    }

    /// Takes a seat; whether there is none, for a thread that was made, or a program that was
    /// executed, inside of a transaction: it takes part in that.
    fn is_made_inside(&mut self, dir: &Path, plain: bool) -> Result<bool, Errno> {
        match self.seat(dir) {
            Ok(()) => Ok(false),
            Err(Errno::ALREADY) if plain => {
                self.open = Some(Open::joined(u64::MAX, 1, None));
                Ok(true)
            }
            Err(Errno::ALREADY) => Err(Errno::INVAL),
            Err(e) => Err(e),
        }
    }

    /// Has the daemon begin one, and goes in: which, and where from.
    fn go_in(
        &mut self,
        dir: &Path,
        how: &Begin<'_>,
        order: Option<&abi::Order>,
    ) -> Result<(u64, Where), Errno> {
        let mut flags = how.flags.of_daemon();
        loop {
            let asked = match self.current()?.begin(flags, &how.scope) {
                Err(e) if is_worn(e) => {
                    self.renew(dir)?;
                    self.current()?.begin(flags, &how.scope)?
                }
                other => other?,
            };
            let seat = self.current()?;
            if let Some(order) = order {
                // Without its place it must not be committed.
                seat.ask(abi::ORDER, &mut order.clone()).inspect_err(|_| {
                    let _ = seat.ask(abi::ABORT, &mut abi::End::default());
                })?;
            }
            match seat.go_in() {
                Ok(from) => return Ok((asked.id, from)),
                Err(e) => {
                    let mut end = abi::End::default();
                    let told = seat.ask(abi::ABORT, &mut end);
                    // The working directory is the first thing that it looks up. If it lost by
                    // that, the program has done nothing yet that it would have to know.
                    if e != Errno::CANCELED || told.is_err() || end.state != abi::state::LOST {
                        return Err(e);
                    }
                    flags |= abi::begin::RETRY;
                }
            }
        }
    }

    fn end(&mut self) -> Result<(), Errno> {
        let open = self.open.as_mut().ok_or(Errno::INVAL)?;
        if open.joined {
            // Its end is the end of this process.
            open.depth = open.depth.checked_sub(1).ok_or(Errno::PERM)?;
            return Ok(());
        }
        if open.depth > 1 {
            open.depth -= 1;
            return Ok(());
        }
        let from = open.from.take().ok_or(Errno::INVAL)?;
        let (id, alone) = (open.id, open.alone);
        if calls::doomed() {
            open.from = Some(from);
            self.abort()?;
            return Err(Errno::CANCELED);
        }
        let out = match self.current().and_then(|seat| seat.go_out(&from)) {
            Ok(out) => out,
            Err(e) => {
                self.is_inside(from);
                return Err(e);
            }
        };
        let seat = self.current()?;
        seat.door.set(id, Phase::Ending);
        let until = Instant::now().checked_add(patience());
        let mut asked = abi::End::default();
        // Whatever came of the way back: that may be the fault of another file system, and who is
        // not asked keeps the transaction open.
        let answer = loop {
            let late = until.is_some_and(|until| Instant::now() >= until);
            let flags = if late { abi::end::NOW } else { 0 };
            let flags = flags | if alone { abi::end::ALONE } else { 0 };
            asked = abi::End { flags, ..asked };
            let answer = seat.ask(abi::END, &mut asked);
            if answer.is_err() || asked.state != abi::state::WAITS {
                break answer;
            }
            let waits = Errno::from_raw_os_error(asked.errno);
            if late || waits == Errno::BUSY {
                seat.door.set(id, Phase::Open);
                let from = seat.go_back(from, out.moved.as_deref())?;
                self.is_inside(from);
                return Err(waits);
            }
        };
        let state = match answer {
            Ok(()) => State::from_abi(asked.state),
            // It was not asked.
            Err(Errno::NOTCONN | Errno::CANCELED) => State::Aborted,
            Err(_) => State::Failed,
        };
        self.settle(id, state);
        if answer.is_err_and(has_ended) && out.back.is_ok() {
            // What it says is what the program should know.
            let _ = self.current()?.daemon_has_ended(&from);
        }
        answer?;
        match asked.state {
            abi::state::COMMITTED => {
                let there = out.back.and_then(|()| match out.moved {
                    // Where it went inside is there now.
                    Some(moved) => rustix::process::chdir(&moved),
                    None => Ok(()),
                });
                // No other error of an end leaves something committed.
                there.map_err(|_| Errno::STALE)
            }
            abi::state::FAILED => Err(Errno::from_raw_os_error(asked.errno)),
            _ => Err(Errno::CANCELED),
        }
    }

    /// The transaction is over, and this thread is outside.
    fn settle(&mut self, id: u64, state: State) {
        self.open = None;
        if let Ok(seat) = self.current() {
            seat.door.set(id, Phase::Over(state));
        }
        calls::leave(state == State::Committed);
    }

    /// The transaction is open, and this thread in it, which came `from` there.
    fn is_inside(&mut self, from: Where) {
        if let Some(open) = &mut self.open {
            open.from = Some(from);
        }
    }

    fn abort(&mut self) -> Result<(), Errno> {
        let open = self.open.as_mut().ok_or(Errno::INVAL)?;
        if open.joined {
            return Err(Errno::PERM);
        }
        let (from, id) = (open.from.take(), open.id);
        let seat = self.current()?;
        seat.door.set(id, Phase::Ending);
        let out = from.as_ref().map_or(Ok(()), |from| seat.go_out(from)?.back);
        // Also where the way out was refused: who is not asked keeps it open.
        let done = match seat.ask(abi::ABORT, &mut abi::End::default()) {
            // It has taken the transaction with it.
            Err(e) if has_ended(e) => match (&from, out) {
                (Some(from), Ok(())) => seat.daemon_has_ended(from),
                _ => Ok(()),
            },
            told => told,
        };
        self.settle(id, State::Aborted);
        out.and(done)
    }
}

impl Seat {
    /// What is known of the last transaction without the daemon, which has ended.
    fn status_without_daemon(&self) -> Status {
        let now = *self.door.now();
        let (state, words) = match now.phase {
            Phase::Open | Phase::Ending => {
                (State::Aborted, "the daemon has ended, and the transaction with it".into())
            }
            Phase::Over(State::Failed) => {
                let id = now.id;
                let shown = format!("`systx show {id:08x}` finds it if it was committed");
                (State::Failed, format!("the daemon has ended: {shown}"))
            }
            Phase::Over(state) => (state, "the daemon has ended".into()),
        };
        Status { state, retries: 0, id: now.id, opponent: 0, path: Vec::new(), words }
    }

    /// Asks for a transaction; with a scope, until it is its turn or the patience has ended.
    fn begin(&self, mut flags: u32, scope: &[Declared<'_>]) -> Result<abi::Begin, Errno> {
        if !scope.is_empty() {
            for mut path in scope::told(scope, &self.at)? {
                self.ask(abi::SCOPE, &mut path)?;
            }
            flags |= abi::begin::SCOPED;
        }
        let until = Instant::now().checked_add(patience());
        loop {
            let late = until.is_some_and(|until| Instant::now() >= until);
            let flags = flags | if late { abi::begin::NOW } else { 0 };
            let namespace = self.door.namespace;
            let mut asked = abi::Begin { flags, namespace, ..abi::Begin::default() };
            self.ask(abi::BEGIN, &mut asked)?;
            if asked.state != abi::state::WAITS {
                return Ok(asked);
            }
            let waits = Errno::from_raw_os_error(asked.errno);
            if late || waits == Errno::BUSY {
                return Err(waits);
            }
        }
    }
}

impl Guest {
    /// To where everybody else is; the working directory is the same path, if it is there.
    fn step_out(&mut self) -> Result<(), Errno> {
        if self.out {
            return Err(Errno::INVAL);
        }
        self.move_by(Door::go_out)?;
        self.out = true;
        Ok(())
    }

    fn step_in(&mut self, id: u64) -> Result<(), Errno> {
        if !self.out {
            return Err(Errno::INVAL);
        }
        // Nobody ends it before this thread is inside.
        let now = self.door.now();
        match now.phase {
            Phase::Open if now.id == id => {}
            Phase::Ending if now.id == id => return Err(Errno::BUSY),
            _ => return Err(Errno::CANCELED),
        }
        self.move_by(Door::go_in)?;
        drop(now);
        self.out = false;
        Ok(())
    }

    fn move_by(&self, go: impl Fn(&Door) -> Result<(), Errno>) -> Result<(), Errno> {
        let path = here();
        go(&self.door)?;
        if let Some(path) = path {
            // What is not there leaves it in the root, where setns(2) has put it.
            let _ = rustix::process::chdir(path);
        }
        Ok(())
    }
}

impl Open {
    /// What a guest can know.
    fn status_of_guest(&self) -> Status {
        let over = self.over();
        let inside = self.guest.as_ref().is_some_and(|guest| !guest.out);
        let words = match over {
            Some(_) if inside => "it is over: xpause() takes this thread back to the directory",
            _ => "",
        };
        let state = over.unwrap_or(State::Open);
        Status {
            state,
            retries: 0,
            id: self.id,
            opponent: 0,
            path: Vec::new(),
            words: words.into(),
        }
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let _quiet = calls::quiet();
        // The end of a thread: what it has open is dropped.  The copy in a forked child is not its.
        if self.tid != rustix::thread::gettid() {
            std::mem::forget(std::mem::take(&mut self.seats));
        } else if self.open.as_ref().is_some_and(|open| !open.joined) {
            let _ = self.abort();
        }
        calls::gone();
    }
}

/// Begins a transaction of this thread on the guarded directory that holds `dir`; without one, on
/// that of `use_dir`. Inside a transaction it only counts.
///
/// The first call of a thread takes about half a millisecond, and gives the thread a working
/// directory and a umask of its own (unshare(2)).
///
/// # Errors
/// `ENOTTY`: not in a guarded directory. `EPERM`: no right to change the thread's mount namespace
/// (`CAP_SYS_ADMIN`). `EPROTO`: the daemon is of another version. `EOPNOTSUPP`: the process has a
/// root directory of its own, or a pid namespace that the daemon does not see, or the directory is
/// mounted `--fast-open`. `EBUSY`: a transaction is paused. `EAGAIN`: it would have to wait, and
/// [`Flags::NONBLOCK`](crate::Flags::NONBLOCK) says not to. With a place in an order: `EEXIST`: the
/// number is used up; `EBUSY`: another transaction has it; `EDQUOT`: its user has too many orders;
/// `EINVAL`: no name, or one of more than 64 bytes, or inside a transaction. With a scope:
/// `ETIMEDOUT`: others that run, or wait since before, have the same in theirs
/// ([`set_patience`](crate::set_patience)); `EDEADLK`: and the thread of who runs sleeps;
/// [`xstatus`] names them; `EBUSY`: the same, at once, with `NONBLOCK`; `EXDEV`: a path outside of
/// the directory; `E2BIG`: more than 256 paths; `EACCES`: the user may not do that to a path;
/// `EINVAL`: with an order or `READ_ONLY`, or inside a transaction. Those of opening the directory.
pub fn xbegin<'a>(dir: Option<&Path>, how: impl Into<Begin<'a>>) -> io::Result<()> {
    let how = how.into();
    let _quiet = calls::quiet_for(how.flags);
    with(|mine| match dir {
        Some(dir) => mine.begin(dir, &how),
        None => mine.begin(&default_dir(), &how),
    })
}

/// Which number comes next in an order of transactions, see [`Begin::order`]: all lower ones are
/// committed, durably. So a program finds out where to go on, whatever ended since.
///
/// # Errors
/// `EINVAL`: no name, or one of more than 64 bytes; those of [`xbegin`].
pub fn next_order(dir: Option<&Path>, name: &str) -> io::Result<u64> {
    ask_order(dir, order(abi::order::NEXT, name, 0)?)
}

/// Resets an order of transactions, see [`Begin::order`]: `next` comes next. When it returns that
/// is durable. With 0 the order is over, and costs nothing any more.
///
/// # Errors
/// `EBUSY`: transactions take part; `EINVAL`: no name, or one of more than 64 bytes; `EDQUOT`: its
/// user has too many orders; `EIO`: it could not be made durable; those of [`xbegin`].
pub fn reset_order(dir: Option<&Path>, name: &str, next: u64) -> io::Result<()> {
    ask_order(dir, order(abi::order::RESET, name, next)?).map(drop)
}

/// Asks something about an order beside all transactions; the number in the answer.
fn ask_order(dir: Option<&Path>, mut order: abi::Order) -> io::Result<u64> {
    with(|mine| {
        let dir = dir.map_or_else(default_dir, Path::to_owned);
        mine.seat(&dir)?;
        match mine.current()?.ask(abi::ORDER, &mut order) {
            Err(e) if is_worn(e) && mine.open.is_none() => {
                mine.renew(&dir)?;
                mine.current()?.ask(abi::ORDER, &mut order)
            }
            asked => asked,
        }
    })?;
    Ok(order.number)
}

/// The error of a begin. That the daemon had been asked when it ended makes no difference: nothing
/// was begun, so nothing can be committed or lost.
fn not_begun(errno: Errno) -> Errno {
    if has_ended(errno) { Errno::NOTCONN } else { errno }
}

/// Whether a seat answers so that is none any more, see [`Mine::renew`].
fn is_worn(errno: Errno) -> bool {
    has_ended(errno) || matches!(errno, Errno::STALE | Errno::NODEV)
}

fn order(what: u32, name: &str, number: u64) -> Result<abi::Order, Errno> {
    let mut order =
        abi::Order { what, name_len: name.len() as u32, number, name: [0; abi::ORDER_MAX] };
    let room = order.name.get_mut(..name.len()).filter(|room| !room.is_empty());
    room.ok_or(Errno::INVAL)?.copy_from_slice(name.as_bytes());
    Ok(order)
}

/// Ends the innermost [`xbegin`]; the last one commits. When it returns the changes are durable and
/// visible.
///
/// It waits until the threads and processes that were made inside have ended, or have stepped out
/// ([`xpause`]).
///
/// # Errors
/// `ECANCELED`: it has lost a conflict, or ([`State::Aborted`]) a process inside was killed by a
/// signal; nothing is committed; [`xstatus`] tells. `EBUSY`: others are inside, and it was begun
/// with [`Flags::NONBLOCK`]; the transaction is open and unchanged. `EINVAL`: there is none, or it
/// is paused. `EPERM`: it belongs to the parent process. `ENOSPC`, `EDQUOT`, `EIO` and others: it
/// could not be committed, nothing is. `ETIMEDOUT`: others were inside as long as it waited
/// ([`set_patience`](crate::set_patience)), or a lower number of its order was not committed; it is
/// open and unchanged, and [`xstatus`] names what it waits for. `ENOTCONN`: the daemon has ended,
/// and the transaction with it; nothing is committed. `ECONNABORTED`: it ended while it committed;
/// the number that [`xstatus`] tells is in the log if that had been decided; or the disk failed
/// after the decision, and the words of [`xstatus`] say what to do. `ESTALE`: it is committed, but
/// the thread cannot go to its working directory any more, and is in `/`.
pub fn xend() -> io::Result<()> {
    with(Mine::end)
}

/// Drops the transaction, however deep it is nested.  One whose daemon has ended is dropped.
///
/// # Errors
/// `EINVAL`: there is none.  `EPERM`: it belongs to the parent process.
pub fn xabort() -> io::Result<()> {
    with(Mine::abort)
}

/// Steps out of the transaction, which stays open: what the thread does from now on is not in it.
/// Returns its id.
///
/// A thread that was made inside another one's transaction steps out of that by itself, also after
/// its end.
///
/// # Errors
/// `EINVAL`: there is none, or it is paused already.
pub fn xpause() -> io::Result<u64> {
    with(|mine| {
        let open = mine.open.as_mut().ok_or(Errno::INVAL)?;
        let id = open.id;
        if let Some(guest) = &mut open.guest {
            return guest.step_out().map(|()| id);
        }
        if open.joined {
            return Err(Errno::INVAL);
        }
        let from = open.from.take().ok_or(Errno::INVAL)?;
        calls::pause();
        match mine.current()?.step_out(&from) {
            Ok(out) => out.back.map(|()| id),
            Err(e) => {
                mine.is_inside(from);
                calls::again()?;
                Err(e)
            }
        }
    })
}

/// Steps back into a paused transaction.
///
/// # Errors
/// `EINVAL`: none is paused. `EPERM`: it is not this thread's. Of a thread that was made inside
/// another one's transaction: `ECANCELED`: that is over; `EBUSY`: it is being ended.
pub fn xresume(id: u64) -> io::Result<()> {
    with(|mine| {
        let open = mine.open.as_mut().ok_or(Errno::INVAL)?;
        if open.id != id || open.joined && open.guest.is_none() {
            return Err(Errno::PERM);
        }
        if let Some(guest) = &mut open.guest {
            return guest.step_in(id);
        }
        if open.from.is_some() {
            return Err(Errno::INVAL);
        }
        let from = mine.current()?.step_in()?;
        if let Some(open) = &mut mine.open {
            open.from = Some(from);
        }
        calls::again()
    })
}

/// The id of this thread's transaction, as `systx log` shows it; 0 if there is none.
pub fn xid() -> u64 {
    with(|mine| Ok(mine.open.as_ref().map_or(0, |open| open.id))).unwrap_or(0)
}

/// Tells of this thread's transaction, or of its last one.
///
/// # Errors
/// `EINVAL`: it has not begun any.
pub fn xstatus() -> io::Result<Status> {
    with(|mine| {
        if let Some(open) = mine.open.as_ref().filter(|open| open.guest.is_some()) {
            return Ok(open.status_of_guest());
        }
        let mut status = abi::Status {
            state: 0,
            retries: 0,
            id: 0,
            opponent: 0,
            path_len: 0,
            words_len: 0,
            path: [0; abi::PATH_MAX],
            words: [0; abi::WORDS_MAX],
        };
        match mine.current()?.ask(abi::STATUS, &mut status) {
            Err(e) if has_ended(e) => return Ok(mine.current()?.status_without_daemon()),
            told => told?,
        }
        let cut = |bytes: &[u8], len: u32| bytes[..bytes.len().min(len as usize)].to_vec();
        Ok(Status {
            state: State::from_abi(status.state),
            retries: status.retries,
            id: status.id,
            opponent: status.opponent,
            path: cut(&status.path, status.path_len),
            words: String::from_utf8_lossy(&cut(&status.words, status.words_len)).into_owned(),
        })
    })
}
