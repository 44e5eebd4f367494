//! Begins with a scope: the paths that a thread has told, its place in line, and who is awaited in
//! words.

use crate::blocked;
use crate::describe::may_know;
use crate::in_line::Waiting;
use crate::thread_orders::{WAIT, Waits};
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use systx_abi as abi;
use systx_base::{Time, TxnId};
use systx_txn::{Ahead, Claimant};
use systx_vfs::api::{Caller, Reply};
use systx_vfs::client::command;
use systx_vfs::scope::{Claims, Declared, How, within};
use systx_vfs::volume::Volume;

/// How often a begin looks for its paths anew when they have changed meanwhile, before it is asked
/// again.
const ROUNDS: usize = 8;

/// The scope of a seat's next transaction.
#[derive(Clone, Default)]
pub struct Scope {
    declared: Arc<Vec<Declared>>,
    line: Option<Place>,
}

/// A place in line.
#[derive(Clone, Copy)]
struct Place {
    /// As whom.
    id: TxnId,
    number: u64,
    since: Time,
}

impl Scope {
    /// One path more; `below`: the names that lead to the guarded directory.
    pub fn tell(&mut self, arg: &abi::Scope, below: &[Vec<u8>]) -> Reply<()> {
        let how = match arg.how {
            abi::scope::READ => How::Read,
            abi::scope::WRITE => How::Write,
            abi::scope::WAY => How::Way,
            _ => return Err(Errno::INVAL),
        };
        if arg.first > 1 || arg.reserved != 0 {
            return Err(Errno::INVAL);
        }
        if arg.first == 1 {
            Arc::make_mut(&mut self.declared).clear();
        }
        if self.declared.len() >= abi::SCOPE_MAX {
            return Err(Errno::TOOBIG);
        }
        let path = arg.path.get(..arg.path_len as usize).ok_or(Errno::INVAL)?;
        let mut names = below.to_vec();
        if !path.is_empty() {
            names.extend(path.split(|b| *b == b'/').map(<[u8]>::to_vec));
        }
        let bad =
            |name: &Vec<u8>| matches!(name.as_slice(), b"" | b"." | b"..") || name.contains(&0);
        if names.iter().any(bad) {
            return Err(Errno::INVAL);
        }
        Arc::make_mut(&mut self.declared).push(Declared { names, how });
        Ok(())
    }

    /// Whether there is something in it.
    pub fn is_told(&self) -> bool {
        !self.declared.is_empty()
    }

    /// It has no place in line from now on; as whom it had one.
    pub fn leave(&mut self) -> Option<TxnId> {
        self.line.take().map(|place| place.id)
    }
}

/// A begin with a scope, on its way.
pub struct Begin<'a> {
    /// The transactions.
    pub table: &'a Transactions,
    /// Where.
    pub volume: &'a Volume,
    /// Who begins.
    pub caller: Caller,
    /// With all rights.
    pub trusted: bool,
    /// It does not wait, and takes that for an answer.
    pub at_once: bool,
    /// It has waited long enough.
    pub late: bool,
    /// Told whenever it gets in line.
    pub shows: &'a dyn Fn(Waiting),
}

impl Begin<'_> {
    /// Whose rights count.
    fn who(&self) -> Option<Caller> {
        (!self.trusted).then_some(self.caller)
    }

    fn claims(&self, scope: &Scope) -> Reply<Claims> {
        self.volume.claims(&scope.declared, self.who())
    }

    /// Takes a place in line, and waits a while for its turn; then `begin` is called with the id,
    /// until its view shows what the place was taken for. Else who is awaited.
    pub fn run(
        &self,
        scope: &mut Scope,
        new_id: impl Fn() -> Reply<TxnId>,
        begin: impl Fn(TxnId) -> Reply<Arc<Transaction>>,
    ) -> Reply<Result<Arc<Transaction>, Waits>> {
        let limit = if self.at_once || self.late { Duration::ZERO } else { WAIT };
        for _ in 0..ROUNDS {
            let claims = Arc::new(self.claims(scope)?);
            let id = scope.line.map_or_else(&new_id, |place| Ok(place.id))?;
            let waiting = self.line_up(scope, id, &claims);
            if let Err(ahead) = self.volume.engine.await_scope(id, limit) {
                let path = waiting.path(self.volume, &ahead.part);
                return Ok(Err(self.waits(&String::from_utf8_lossy(&path), &ahead)));
            }
            let txn = begin(id)?;
            let again = match txn.view.claims(&scope.declared, self.who()) {
                Ok(found) if within(&found, &claims) => return Ok(Ok(txn)),
                // Something came in its place before it had its turn, or while it looked.
                Ok(_) | Err(Errno::CANCELED) => new_id(),
                Err(e) => Err(e),
            };
            // That id is used up, the place is not.
            if let Ok(id) = &again {
                self.line_up(scope, *id, &claims);
            }
            txn.abort();
            again?;
        }
        Ok(Err((Errno::TIMEDOUT, "its paths change all the time".into())))
    }

    /// Takes a place in line, or the same one again.
    fn line_up(&self, scope: &mut Scope, id: TxnId, claims: &Arc<Claims>) -> Waiting {
        let since = scope.line.map_or_else(|| self.volume.tree.now(), |place| place.since);
        let (declared, shown) = (Arc::clone(&scope.declared), Arc::clone(claims));
        let waiting = Waiting { id, since, declared, claims: shown };
        // First, so that whoever finds it in line finds this, too.
        (self.shows)(waiting.clone());
        let claims = claims.iter().map(|(claim, _)| claim.clone()).collect();
        let place = scope.line.map(|place| place.number);
        let who = Claimant { id, client: self.caller.tid, guest: !self.trusted };
        let number = self.volume.engine.line_up(who, claims, place);
        scope.line = Some(Place { id, number, since });
        waiting
    }

    /// Who is awaited, and the errno for who has waited long enough.
    fn waits(&self, path: &str, ahead: &Ahead) -> Waits {
        let (by, client) = (ahead.by, ahead.client);
        let errno = if self.at_once { Errno::BUSY } else { Errno::TIMEDOUT };
        let runs = self.table.get(by).ok();
        let owner = match &runs {
            Some(txn) => Some(txn.terms.whose.uid),
            None => std::fs::metadata(format!("/proc/{client}")).ok().map(|m| m.uid()),
        };
        let known = may_know(self.caller.uid, owner);
        let comm = || String::from_utf8_lossy(&command(client)).into_owned();
        let words = match (ahead.runs, known) {
            (false, true) => format!("{path}: thread {client} ({}) is in line before", comm()),
            (false, false) => format!("{path}: thread {client} is in line before"),
            (true, true) => {
                let argv = runs.map(|txn| {
                    txn.terms.argv.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
                });
                let argv = argv.unwrap_or_else(comm);
                format!("{path} is in the scope of transaction {by} ({argv})")
            }
            (true, false) => format!("{path} is in the scope of another user's transaction"),
        };
        if !ahead.runs {
            return (errno, words);
        }
        // Perhaps for what the waiting one has.  To look takes a moment.
        let look = self.late && !self.at_once;
        match look.then(|| blocked::all_keep_waiting_for(client)).flatten() {
            Some(_) if !known => (Errno::DEADLK, format!("{words}, which waits")),
            Some(what) => (Errno::DEADLK, format!("{words}, which waits for {what}")),
            None => (errno, words),
        }
    }
}
