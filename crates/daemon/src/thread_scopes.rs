//! Begins with a scope: the paths that a thread has told, its place in line, and who is awaited in words.

use crate::blocked;
use crate::thread_orders::{WAIT, Waits};
use crate::transaction::Transaction;
use crate::transactions::Transactions;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use systx_abi as abi;
use systx_base::TxnId;
use systx_txn::Ahead;
use systx_vfs::api::{Caller, Reply};
use systx_vfs::client::command;
use systx_vfs::scope::{Claims, Declared, How, within};
use systx_vfs::volume::Volume;

/// How often a begin looks for its paths anew when they have changed meanwhile, before it is asked again.
const ROUNDS: usize = 8;

/// The scope of a seat's next transaction.
#[derive(Clone, Default)]
pub struct Scope {
    declared: Vec<Declared>,
    /// As whom it gets in line, and where it is.
    line: Option<(TxnId, u64)>,
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
            self.declared.clear();
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
        self.declared.push(Declared { names, how });
        Ok(())
    }

    /// Whether there is something in it.
    pub fn is_told(&self) -> bool {
        !self.declared.is_empty()
    }

    /// It has no place in line from now on; as whom it had one.
    pub fn leave(&mut self) -> Option<TxnId> {
        self.line.take().map(|(id, _)| id)
    }

    /// The path of a claim, as it is on the host.
    fn path(&self, volume: &Volume, of: Option<usize>) -> String {
        let names = of.and_then(|of| self.declared.get(of)).map(|d| d.names.join(&b"/"[..]));
        let path = [&volume.mount_path, &b"/"[..], &names.unwrap_or_default()].concat();
        String::from_utf8_lossy(&path).into_owned()
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
}

impl Begin<'_> {
    /// Whose rights count.
    fn who(&self) -> Option<Caller> {
        (!self.trusted).then_some(self.caller)
    }

    fn claims(&self, scope: &Scope) -> Reply<Claims> {
        self.volume.claims(&scope.declared, self.who())
    }

    /// Takes a place in line, and waits a while for its turn; then `begin` is called with the id, until its view shows
    /// what the place was taken for.  Else who is awaited.
    pub fn run(
        &self,
        scope: &mut Scope,
        new_id: impl Fn() -> Reply<TxnId>,
        begin: impl Fn(TxnId) -> Reply<Arc<Transaction>>,
    ) -> Reply<Result<Arc<Transaction>, Waits>> {
        let limit = if self.at_once || self.late { Duration::ZERO } else { WAIT };
        for _ in 0..ROUNDS {
            let claims = self.claims(scope)?;
            let (id, since) = match scope.line {
                Some((id, since)) => (id, Some(since)),
                None => (new_id()?, None),
            };
            self.line_up(scope, (id, since), &claims);
            if let Err(ahead) = self.volume.engine.await_scope(id, limit) {
                let of = claims.iter().find(|(claim, _)| claim.part == ahead.part);
                let path = scope.path(self.volume, of.map(|(_, of)| *of));
                return Ok(Err(self.waits(&path, &ahead)));
            }
            let txn = begin(id)?;
            let again = match txn.view.claims(&scope.declared, self.who()) {
                Ok(found) if within(&found, &claims) => return Ok(Ok(txn)),
                // Something came in its place before it had its turn, or while it looked.
                Ok(_) | Err(Errno::CANCELED) => new_id(),
                Err(e) => Err(e),
            };
            // That id is used up, the place is not.
            if let (Ok(id), Some((_, since))) = (&again, scope.line) {
                self.line_up(scope, (*id, Some(since)), &claims);
            }
            txn.abort();
            again?;
        }
        Ok(Err((Errno::TIMEDOUT, "its paths change all the time".into())))
    }

    fn line_up(&self, scope: &mut Scope, (id, since): (TxnId, Option<u64>), claims: &Claims) {
        let claims = claims.iter().map(|(claim, _)| claim.clone()).collect();
        let since = self.volume.engine.line_up(id, self.caller.tid, claims, since);
        scope.line = Some((id, since));
    }

    /// Who is awaited, and the errno for who has waited long enough.
    fn waits(&self, path: &str, ahead: &Ahead) -> Waits {
        let by = ahead.by;
        let comm = String::from_utf8_lossy(&command(ahead.client)).into_owned();
        let errno = if self.at_once { Errno::BUSY } else { Errno::TIMEDOUT };
        if !ahead.runs {
            let words = format!("{path}: thread {} ({comm}) is in line before", ahead.client);
            return (errno, words);
        }
        let argv = self.table.get(by).map(|txn| {
            txn.terms.argv.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        });
        let argv = argv.unwrap_or(comm);
        let words = format!("{path} is in the scope of transaction {by} ({argv})");
        // Perhaps for what the waiting one has.  To look takes a moment.
        let look = self.late && !self.at_once;
        match look.then(|| blocked::all_keep_waiting_for(ahead.client)).flatten() {
            Some(what) => (Errno::DEADLK, format!("{words}, which waits for {what}")),
            None => (errno, words),
        }
    }
}
