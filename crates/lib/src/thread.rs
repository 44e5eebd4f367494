//! The transactions of this thread.

use crate::calls;
use crate::options::{Begin, patience};
use crate::seat::{Seat, Where};
use crate::sys_unsafe::has_children;
use crate::{State, Status};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
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
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

/// The directory for [`xbegin`] calls that name none; `None`: that of the environment variable `SYSTX_DIR`,
/// or else the working directory.
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
        let mine = mine.get_or_insert_with(|| Mine { tid, seats: Vec::new(), open: None });
        if mine.tid != tid {
            // After a fork: the seats are the parent's, and so is the transaction.  Their descriptors
            // are closed with this process.
            std::mem::forget(std::mem::take(&mut mine.seats));
            mine.tid = tid;
            calls::forked();
            if let Some(open) = &mut mine.open {
                open.joined = true;
                open.depth = 0;
            }
        }
        run(mine)
    });
    // At the very end of a thread there is nothing left to ask.
    Ok(done.unwrap_or(Err(Errno::INVAL))?)
}

impl Mine {
    fn seat(&mut self, dir: &Path) -> Result<(), Errno> {
        if let Some(at) = self.seats.iter().position(|(of, _)| of == dir) {
            self.seats.swap(0, at);
            return Ok(());
        }
        let seat = Seat::new(dir)?;
        self.seats.insert(0, (dir.to_owned(), seat));
        Ok(())
    }

    fn current(&self) -> Result<&Seat, Errno> {
        self.seats.first().map(|(_, seat)| seat).ok_or(Errno::INVAL)
    }

    fn begin(&mut self, dir: &Path, how: &Begin<'_>) -> Result<(), Errno> {
        let order = how.order.map(|(name, number)| order(abi::order::JOIN, name, number));
        let order = order.transpose()?;
        if let Some(open) = &mut self.open {
            if order.is_some() {
                // What only counts has no place of its own.
                return Err(Errno::INVAL);
            }
            if open.from.is_none() && !open.joined {
                return Err(Errno::BUSY);
            }
            open.depth += 1;
            return Ok(());
        }
        match self.seat(dir) {
            Ok(()) => {}
            // A thread that was made, or a program that was executed, inside of a transaction.
            Err(Errno::ALREADY) => {
                if order.is_some() {
                    return Err(Errno::INVAL);
                }
                self.open = Some(Open { id: u64::MAX, depth: 1, from: None, joined: true });
                return Ok(());
            }
            Err(e) => return Err(e),
        }
        let mut flags = how.flags.of_daemon();
        let (id, from) = loop {
            let mut asked = abi::Begin { flags, ..abi::Begin::default() };
            match self.current()?.ask(abi::BEGIN, &mut asked) {
                // The directory was unmounted since, or its daemon was replaced.
                Err(Errno::NOTCONN | Errno::STALE | Errno::CONNABORTED | Errno::NODEV) => {
                    self.seats.remove(0);
                    self.seat(dir)?;
                    self.current()?.ask(abi::BEGIN, &mut asked)?;
                }
                other => other?,
            }
            let seat = self.current()?;
            if let Some(order) = &order {
                // Without its place it must not be committed.
                seat.ask(abi::ORDER, &mut order.clone()).inspect_err(|_| {
                    let _ = seat.ask(abi::ABORT, &mut abi::End::default());
                })?;
            }
            match seat.go_in() {
                Ok(from) => break (asked.id, from),
                Err(e) => {
                    let mut end = abi::End::default();
                    let told = seat.ask(abi::ABORT, &mut end);
                    // The working directory is the first thing that it looks up.  If it lost by that, the program has
                    // done nothing yet that it would have to know.
                    if e != Errno::CANCELED || told.is_err() || end.state != abi::state::LOST {
                        return Err(e);
                    }
                    flags |= abi::begin::RETRY;
                }
            }
        };
        self.open = Some(Open { id, depth: 1, from: Some(from), joined: false });
        if calls::wanted(how.flags) {
            let begun = self
                .current()
                .and_then(|seat| calls::begin(how.flags, &seat.control, seat.namespace));
            begun.inspect_err(|_| {
                let _ = self.abort();
            })?;
        }
        Ok(())
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
        let seat = self.current()?;
        if has_children() && anybody_in(seat.namespace) {
            if let Some(open) = &mut self.open {
                open.from = Some(from);
            }
            return Err(Errno::BUSY);
        }
        if calls::doomed() {
            if let Some(open) = &mut self.open {
                open.from = Some(from);
            }
            self.abort()?;
            return Err(Errno::CANCELED);
        }
        let moved = seat.go_out(&from)?;
        let until = Instant::now().checked_add(patience());
        let mut asked = abi::End::default();
        let answer = loop {
            let late = until.is_some_and(|until| Instant::now() >= until);
            asked = abi::End { flags: if late { abi::end::NOW } else { 0 }, ..asked };
            let answer = seat.ask(abi::END, &mut asked);
            if answer.is_err() || asked.state != abi::state::WAITS {
                break answer;
            }
            if late {
                let from = seat.go_back(from, moved.as_deref())?;
                if let Some(open) = &mut self.open {
                    open.from = Some(from);
                }
                return Err(Errno::from_raw_os_error(asked.errno));
            }
        };
        self.open = None;
        calls::leave(answer.is_ok() && asked.state == abi::state::COMMITTED);
        answer?;
        match asked.state {
            abi::state::COMMITTED => {
                if let Some(moved) = moved {
                    // Where it went inside is there now.
                    rustix::process::chdir(&moved)?;
                }
                Ok(())
            }
            abi::state::FAILED => Err(Errno::from_raw_os_error(asked.errno)),
            _ => Err(Errno::CANCELED),
        }
    }

    fn abort(&mut self) -> Result<(), Errno> {
        let open = self.open.as_mut().ok_or(Errno::INVAL)?;
        if open.joined {
            return Err(Errno::PERM);
        }
        let from = open.from.take();
        self.open = None;
        let seat = self.current()?;
        let done = match from {
            Some(from) => seat.go_out(&from).map(drop),
            None => Ok(()),
        };
        let done = done.and_then(|()| seat.ask(abi::ABORT, &mut abi::End::default()));
        calls::leave(false);
        done
    }
}

/// Whether a thread or process other than this thread is in a mount namespace.
fn anybody_in(namespace: u64) -> bool {
    use std::os::unix::fs::MetadataExt;
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let ids = |dir: &str| {
        let read = std::fs::read_dir(dir).into_iter().flatten().flatten();
        read.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok()).collect::<Vec<_>>()
    };
    ids("/proc").into_iter().any(|pid| {
        ids(&format!("/proc/{pid}/task")).into_iter().filter(|tid| *tid != me).any(|tid| {
            let ns = std::fs::metadata(format!("/proc/{pid}/task/{tid}/ns/mnt"));
            ns.is_ok_and(|ns| ns.ino() == namespace)
        })
    })
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

/// Begins a transaction of this thread on the guarded directory that holds `dir`; without one, on that of
/// `use_dir`.  Inside a transaction it only counts.
///
/// The first call of a thread takes about half a millisecond, and gives the thread a working directory and a umask of its
/// own (unshare(2)).
///
/// # Errors
/// `ENOTTY`: not in a guarded directory.  `EPERM`: no right to change the thread's mount namespace
/// (`CAP_SYS_ADMIN`).  `EPROTO`: the daemon is of another version.  `EOPNOTSUPP`: the process has a root
/// directory of its own, or a pid namespace that the daemon does not see.  `EBUSY`: a transaction is paused.  `EAGAIN`: it would
/// have to wait, and [`Flags::NONBLOCK`](crate::Flags::NONBLOCK) says not to.  With a
/// place in an order: `EEXIST`: the number is used up; `EBUSY`: another transaction has it; `EDQUOT`: its user has too
/// many orders; `EINVAL`: no name, or one of more than 64 bytes, or inside a transaction.
/// Those of opening the directory.
pub fn xbegin<'a>(dir: Option<&Path>, how: impl Into<Begin<'a>>) -> io::Result<()> {
    let how = how.into();
    let _quiet = calls::quiet_for(how.flags);
    with(|mine| match dir {
        Some(dir) => mine.begin(dir, &how),
        None => mine.begin(&default_dir(), &how),
    })
}

/// Resets an order of transactions, see [`Begin::order`]: `next` comes next.
///
/// # Errors
/// `EBUSY`: transactions take part; `EINVAL`: no name, or one of more than 64 bytes; `EDQUOT`: its user has too many
/// orders; those of [`xbegin`].
pub fn reset_order(dir: Option<&Path>, name: &str, next: u64) -> io::Result<()> {
    let mut order = order(abi::order::RESET, name, next)?;
    with(|mine| {
        mine.seat(&dir.map_or_else(default_dir, Path::to_owned))?;
        mine.current()?.ask(abi::ORDER, &mut order)
    })
}

fn order(what: u32, name: &str, number: u64) -> Result<abi::Order, Errno> {
    let mut order =
        abi::Order { what, name_len: name.len() as u32, number, name: [0; abi::ORDER_MAX] };
    let room = order.name.get_mut(..name.len()).filter(|room| !room.is_empty());
    room.ok_or(Errno::INVAL)?.copy_from_slice(name.as_bytes());
    Ok(order)
}

/// Ends the innermost [`xbegin`]; the last one commits.  When it returns the changes are durable and visible.
///
/// # Errors
/// `ECANCELED`: it has lost a conflict, nothing is committed; [`xstatus`] tells.  `EBUSY`: processes that were
/// started inside are still there; the transaction is open and unchanged.  `EINVAL`: there is none, or it
/// is paused.  `EPERM`: it belongs to the parent process.  `ENOSPC`, `EIO` and others: it could not be
/// committed, nothing is.  `ETIMEDOUT`: a lower number of its order was not committed while it waited
/// ([`set_patience`](crate::set_patience)); it is open and unchanged, and [`xstatus`] names the number.
pub fn xend() -> io::Result<()> {
    with(Mine::end)
}

/// Drops the transaction, however deep it is nested.
///
/// # Errors
/// `EINVAL`: there is none.  `EPERM`: it belongs to the parent process.
pub fn xabort() -> io::Result<()> {
    with(Mine::abort)
}

/// Steps out of the transaction, which stays open: what the thread does from now on is not in it.  Returns
/// its id.
///
/// # Errors
/// `EINVAL`: there is none, or it is paused already.
pub fn xpause() -> io::Result<u64> {
    with(|mine| {
        let open = mine.open.as_mut().filter(|open| !open.joined).ok_or(Errno::INVAL)?;
        let from = open.from.take().ok_or(Errno::INVAL)?;
        let id = open.id;
        calls::pause();
        mine.current()?.go_out(&from)?;
        Ok(id)
    })
}

/// Steps back into a paused transaction.
///
/// # Errors
/// `EINVAL`: none is paused.  `EPERM`: it is not this thread's.
pub fn xresume(id: u64) -> io::Result<()> {
    with(|mine| {
        let open = mine.open.as_ref().ok_or(Errno::INVAL)?;
        if open.id != id || open.joined {
            return Err(Errno::PERM);
        }
        if open.from.is_some() {
            return Err(Errno::INVAL);
        }
        let from = mine.current()?.go_in()?;
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
        mine.current()?.ask(abi::STATUS, &mut status)?;
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
