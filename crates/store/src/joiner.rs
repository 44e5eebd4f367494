//! Makes joint commits ([`crate::joint`]), one at a time.

use crate::error::CommitError;
use crate::history::CommitMeta;
use crate::interface::{Committed, Ready, Reservation, Store};
use crate::io::Class;
use crate::joint::{Joint, Member};
use crate::writeset::WriteSet;
use systx_base::sync::{Event, Mutex, rank};
use thiserror::Error;

/// One store's share in a joint commit.
pub struct Part<'a> {
    /// The store.
    pub store: &'a dyn Store,
    /// Its directory, absolute, on the host: where it will be looked for.
    pub path: Vec<u8>,
    /// Room for it.
    pub reservation: Reservation,
    /// What changes there.
    pub set: WriteSet,
}

/// Why a joint commit was not made.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct JointError {
    /// Which part is the reason.
    pub part: usize,
    /// Why.
    pub error: CommitError,
}

/// Makes joint commits, one at a time.
#[derive(Debug)]
pub struct Joiner {
    busy: Mutex<bool>,
    free: Event,
}

impl Default for Joiner {
    fn default() -> Self {
        Joiner::new()
    }
}

struct Turn<'a>(&'a Joiner);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.busy.lock() = false;
        self.0.free.notify_all();
    }
}

/// Claims that are given back unless they were used.
struct Claims<'a, 'b>(&'a [Part<'b>], Vec<u64>, usize);

impl Drop for Claims<'_, '_> {
    fn drop(&mut self) {
        for (part, ticket) in self.0.iter().zip(&self.1).skip(self.2) {
            part.store.unclaim(*ticket);
        }
    }
}

impl Joiner {
    /// Of the stores of one process.
    pub const fn new() -> Joiner {
        Joiner { busy: Mutex::new(rank::LEAF, false), free: Event::new() }
    }

    fn turn(&self) -> Turn<'_> {
        let mut busy = self.busy.lock();
        while *busy {
            self.free.wait(&mut busy);
        }
        *busy = true;
        Turn(self)
    }

    /// Commits all parts, or none; the first one decides. When this returns all are durable; each
    /// is in its tree after [`Store::apply`]. `id` is a random number.
    ///
    /// # Errors
    /// Nothing was committed, except with [`CommitError::InDoubt`].
    pub fn commit(
        &self,
        id: u64,
        mut parts: Vec<Part<'_>>,
        meta: &CommitMeta,
    ) -> std::result::Result<Vec<Committed>, JointError> {
        let at = |part: usize| move |error: CommitError| JointError { part, error };
        let _turn = self.turn();
        let mut members = Vec::with_capacity(parts.len());
        for (n, part) in parts.iter().enumerate() {
            part.set.check().map_err(|e| at(n)(e.into()))?;
            let store = part.store.number().map_err(at(n))?;
            let memory = part.store.class() == Class::Memory;
            members.push(Member { store, memory, path: part.path.clone() });
        }
        let mut tickets = Vec::with_capacity(parts.len());
        {
            let mut claims = Claims(&parts, Vec::new(), 0);
            for (n, part) in parts.iter().enumerate() {
                claims.1.push(part.store.claim(&part.set).map_err(at(n))?);
            }
            tickets.append(&mut claims.1);
        }
        let joint = |me: usize| Joint { id, members: members.clone(), decider: 0, me: me as u32 };
        let mut lsns = vec![0; parts.len()];
        // The decider last.
        for n in (0..parts.len()).rev() {
            let part = &mut parts[n];
            let (reservation, set) =
                (std::mem::take(&mut part.reservation), std::mem::take(&mut part.set));
            let ready = Ready { reservation, set, meta: meta.clone() };
            match part.store.prepare(tickets[n], ready, joint(n)) {
                Ok(lsn) => lsns[n] = lsn,
                Err(error) => {
                    for (part, ticket) in parts[..n].iter().zip(&tickets) {
                        part.store.unclaim(*ticket);
                    }
                    for (part, lsn) in parts.iter().zip(&lsns).skip(n + 1) {
                        match &error {
                            CommitError::InDoubt(why) if n == 0 => part.store.in_doubt(why),
                            _ => part.store.decided(*lsn, false),
                        }
                    }
                    return Err(JointError { part: n, error });
                }
            }
        }
        for (part, lsn) in parts.iter().zip(&lsns).skip(1) {
            part.store.decided(*lsn, true);
        }
        Ok(lsns.into_iter().map(|lsn| Committed { lsn }).collect())
    }
}
