//! How the last transaction of a seat has ended, and what is told of that.

use crate::describe::for_user;
use crate::protocol::{self, Conflict, Opponent, Outcome};
use crate::stopped::errno_of;
use crate::transaction::Transaction;
use rustix::io::Errno;
use systx_abi as abi;
use systx_base::{TxnId, Uid};

/// How a transaction ended.
#[derive(Clone, Default)]
pub(super) struct Last {
    pub id: u64,
    pub state: u32,
    pub errno: i32,
    /// How often it had lost by then, and its place in time, if it lost.
    pub retries: u32,
    pub timestamp: u64,
    /// How it lost asleep, if it did.
    pub slept: Slept,
    pub conflict: Option<Conflict>,
    /// The same, as the engine has it, and those of the attempts before: the last ones.
    pub lost: Vec<systx_txn::Conflict>,
    pub words: String,
}

/// Attempts that lost asleep, one after another, each to the same thread, which committed nothing
/// meanwhile: that one lost to the next attempt.
#[derive(Clone, Copy, Default)]
pub(super) struct Slept {
    pub times: u32,
    /// The winner's thread.
    pub tid: u32,
    /// How often the winner had lost.
    pub age: u32,
}

impl Slept {
    /// One more, to this one.
    pub fn and(self, winner: &Transaction) -> Slept {
        let (tid, age) = (winner.terms.whose.client, winner.age);
        let on = self.times > 0 && self.tid == tid && age > self.age;
        Slept { times: if on { self.times + 1 } else { 1 }, tid, age }
    }
}

/// Most conflicts that are remembered of one piece of work.
const LOST_MAX: usize = 8;

impl Last {
    /// One more attempt at the same has lost by this.
    pub fn after(&mut self, before: &[systx_txn::Conflict]) {
        let old = before.iter().rev().take(LOST_MAX - self.lost.len().min(LOST_MAX)).rev();
        self.lost.splice(0..0, old.cloned());
    }

    /// As the program is told.
    pub fn answer(&self) -> abi::End {
        abi::End {
            flags: 0,
            state: self.state,
            errno: self.errno,
            retries: self.retries,
            id: self.id,
        }
    }

    /// The transaction that it lost to.
    pub fn winner(&self) -> Option<TxnId> {
        match self.conflict.as_ref()?.opponent {
            Opponent::Transaction { id, .. } => Some(id),
            Opponent::Outside { .. } => None,
        }
    }

    /// How a commit ended.
    pub fn ended(&mut self, outcome: Outcome, txn: &Transaction) {
        match outcome {
            Outcome::Committed { outside, .. } => {
                self.state = abi::state::COMMITTED;
                self.words = past_the_guard(&outside);
            }
            Outcome::Conflict { conflict, .. } => {
                self.fail(Some(conflict), txn.age, txn.timestamp);
            }
            // Not that nothing was committed.
            Outcome::Unfinished { failure, .. } => {
                self.state = abi::state::FAILED;
                self.errno = Errno::CONNABORTED.raw_os_error();
                self.words = failure.to_string();
            }
            Outcome::Refused { failure, .. } => {
                self.state = abi::state::FAILED;
                self.errno = errno_of(&failure).raw_os_error();
                self.words = failure.to_string();
            }
            // Somebody else decides.
            Outcome::Aborted { .. } if self.state == abi::state::WAITS => {}
            Outcome::Aborted { .. } | Outcome::Kept { .. } => self.state = abi::state::ABORTED,
        }
    }

    pub fn fail(&mut self, conflict: Option<Conflict>, age: u32, timestamp: u64) {
        if conflict.is_some() {
            self.state = abi::state::LOST;
            self.retries = age.saturating_add(1);
        }
        self.timestamp = timestamp;
        self.conflict = conflict;
    }

    /// As far as it is for a user's eyes.
    pub fn status(&self, viewer: Uid) -> abi::Status {
        let mut status = abi::Status {
            state: self.state,
            retries: self.retries,
            id: self.id,
            opponent: 0,
            path_len: 0,
            words_len: 0,
            path: [0; abi::PATH_MAX],
            words: [0; abi::WORDS_MAX],
        };
        let mut words = self.words.clone();
        if let Some(conflict) = self.conflict.clone().map(|c| for_user(c, viewer)) {
            let path = &conflict.path.0;
            let path = &path[path.len().saturating_sub(abi::PATH_MAX)..];
            status.path[..path.len()].copy_from_slice(path);
            status.path_len = path.len() as u32;
            let opponent = match &conflict.opponent {
                Opponent::Transaction { id: TxnId(0), .. } => "another user's transaction".into(),
                Opponent::Transaction { id, argv, .. } => {
                    status.opponent = id.0;
                    let argv: Vec<String> = argv.iter().map(ToString::to_string).collect();
                    format!("transaction {id} ({})", argv.join(" "))
                }
                Opponent::Outside { what, .. } => format!("a program outside ({what})"),
            };
            if words.is_empty() {
                words = opponent;
            }
        }
        let words = &words.as_bytes()[..words.len().min(abi::WORDS_MAX)];
        status.words[..words.len()].copy_from_slice(words);
        status.words_len = words.len() as u32;
        status
    }
}

/// What others had changed behind the guard's back of what a commit has changed; empty nearly
/// always.
fn past_the_guard(changes: &[protocol::OutsideChange]) -> String {
    let Some(protocol::OutsideChange { path, saved, what }) = changes.first() else {
        return String::new();
    };
    let saved = saved.as_ref().map_or_else(String::new, |saved| format!(", kept as {saved}"));
    let more = match changes.len() {
        1 => String::new(),
        n => format!("; and {} more", n - 1),
    };
    format!("committed, but past the guard {path} {what}{saved}{more}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{HostPath, OutsideChange};

    #[test]
    fn a_commit_tells_what_it_met_past_the_guard() {
        assert_eq!(past_the_guard(&[]), "");
        let path = HostPath(b"/srv/a".to_vec());
        let met = |saved: Option<&[u8]>| OutsideChange {
            path: path.clone(),
            saved: saved.map(|saved| HostPath(saved.to_vec())),
            what: "had been changed".into(),
        };
        let one = "committed, but past the guard /srv/a had been changed";
        assert_eq!(past_the_guard(&[met(None)]), one);
        let both = past_the_guard(&[met(Some(b"/srv/.systx/a")), met(None)]);
        assert_eq!(both, format!("{one}, kept as /srv/.systx/a; and 1 more"));
    }
}
