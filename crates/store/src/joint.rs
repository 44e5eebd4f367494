//! One commit over several stores, with one commit point.
//!
//! One of the stores is the *decider*. The others are prepared: their records are made durable
//! first, and say who decides. The decider's record, which lists all, is the commit point: a
//! prepared record counts if the decider has committed, and is as if it had never been written if
//! not.
//!
//! **Who remembers.** The decider's journal holds the decision until its checkpoint; from the
//! installation on it is also in a file `d/JOINT`, which stays until every other store has let go
//! of its prepared record. Where there is neither, nothing was committed. So no store's journal
//! waits for another's checkpoint, and stores may be recovered in any order.
//!
//! **Recovery.** A store that finds a prepared record asks the decider's files
//! ([`crate::outcome`]); without an answer it is not opened and nothing in it is touched. Before
//! the answer the decider's file system is synced: a record that only the page cache has would be
//! believed here and lost there by a power cut.
//!
//! **Names.** A joint commit is known by a random number: transaction ids of what was aborted are
//! used again.
//!
//! **No deadlock.** One joint commit at a time is between its first claim and its decision
//! ([`crate::Joiner`]), so a prepared record waits for nobody who waits for it.

use systx_base::TxnId;
use systx_base::codec::{DecodeError, Decoder, Encoder};

/// One store of a joint commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// What tells it from all other stores.
    pub store: u64,
    /// On a file system that does not outlive the kernel.
    pub memory: bool,
    /// Where its directory was: absolute, on the host.
    pub path: Vec<u8>,
}

/// What every record of a joint commit says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joint {
    /// Random, the same in all of them.
    pub id: u64,
    /// All stores.
    pub members: Vec<Member>,
    /// Which of them decides.
    pub decider: u32,
    /// Which of them this is.
    pub me: u32,
}

impl Joint {
    /// Whether this store's record is the commit point.
    pub fn decides(&self) -> bool {
        self.me == self.decider
    }

    /// The store that decides.
    pub fn decider(&self) -> Option<&Member> {
        self.members.get(self.decider as usize)
    }

    /// All stores but this one.
    pub fn others(&self) -> impl Iterator<Item = &Member> {
        let me = self.me as usize;
        self.members.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, m)| m)
    }
}

/// What became of a joint commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It counts.
    Committed,
    /// It never happened.
    Aborted,
    /// The store that knows is not there, or cannot be read.
    Unknown,
}

/// Who knows what other stores decided.
pub trait Outcomes {
    /// What became of a commit that was prepared in the store that asks.
    fn outcome(&self, joint: &Joint) -> Outcome;
}

/// Knows no other stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Outcomes for Nobody {
    fn outcome(&self, _: &Joint) -> Outcome {
        Outcome::Unknown
    }
}

/// A decision that other stores may still ask for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// Of which joint commit.
    pub id: u64,
    /// Its transaction.
    pub txn: TxnId,
    /// The other stores.
    pub others: Vec<Member>,
}

/// More stores than that are not in one commit.
pub(crate) const MEMBERS: usize = 4096;

pub(crate) fn put_joint(e: &mut Encoder, joint: &Joint) {
    e.u64(joint.id);
    e.seq(&joint.members, |e, m| {
        e.u64(m.store);
        e.u8(m.memory.into());
        e.bytes(&m.path);
    });
    e.u32(joint.decider);
    e.u32(joint.me);
}

pub(crate) fn get_joint(d: &mut Decoder<'_>) -> std::result::Result<Joint, DecodeError> {
    let id = d.u64()?;
    let members = d.seq(|d| {
        let store = d.u64()?;
        let memory = match d.u8()? {
            0 => false,
            1 => true,
            other => return Err(d.invalid("flag", other.into())),
        };
        Ok(Member { store, memory, path: d.bytes()?.to_vec() })
    })?;
    let (decider, me) = (d.u32()?, d.u32()?);
    let known = |ix: u32| (ix as usize) < members.len();
    if members.len() > MEMBERS || !known(decider) || !known(me) {
        return Err(d.invalid("store of a joint commit", members.len() as u64));
    }
    Ok(Joint { id, members, decider, me })
}
