//! What everything above knows of a store.
//!
//! Which kind of store it is, is chosen where it is opened.  From then on it is a [`Store`], and
//! what it hands out for its own later use is opaque: a [`Reservation`], a [`Slot`], a [`Seat`].
//! The committed state itself is read through a [`crate::io::Tree`].
//!
//! A transaction goes through a store in these steps:
//! 1. [`Store::stage`]: what does not fit into memory goes to staging slots.
//! 2. [`Store::reserve`]: the only step that reports a full disk.
//! 3. [`Store::commit_group`], or the part of a joint commit ([`crate::Joiner`]): when it returns,
//!    the transaction survives whatever happens.
//! 4. [`Store::apply`]: what was committed is in the tree.
//! 5. [`Store::checkpoint`]: the store lets go of what it needed until then.

use crate::error::{ApplyError, CheckpointError, CommitError, ReserveError, UndoError};
use crate::footprint::Disjoint;
use crate::history::{ChangeKind, CommitMeta, HistoryEntry};
use crate::io::{Class, HostId};
use crate::joint::{Decision, Joint};
use crate::report::ApplyReport;
use crate::times::Times;
use crate::writeset::{Slot, Staging, WriteSet};
use std::any::Any;
use std::io::Result;
use std::sync::Arc;
use systx_base::{Gid, Kind, Orders, Time, TxnId, Uid};

type Written<T> = std::result::Result<T, CommitError>;

/// What was forgotten to make room for a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    /// Transactions.
    pub transactions: u64,
    /// Bytes that they had kept.
    pub bytes: u64,
    /// The commit itself cannot be undone: there is no room to keep what it removes.
    pub itself: bool,
}

/// Room for one commit; of a transaction that changes nothing, none.
#[derive(Debug, Default)]
pub struct Reservation {
    room: Option<Box<dyn Any + Send + Sync>>,
    forgotten: Forgotten,
}

impl Reservation {
    /// `room`: what the store that makes it finds there again ([`Reservation::into_room`]).
    pub fn new(room: impl Any + Send + Sync, forgotten: Forgotten) -> Reservation {
        Reservation { room: Some(Box::new(room)), forgotten }
    }
    /// What was forgotten for it.
    pub fn forgotten(&self) -> Forgotten {
        self.forgotten
    }
    /// What the store has put there, which stays.
    pub fn room_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.room.as_mut()?.downcast_mut()
    }
    /// What the store has put there.
    pub fn into_room<T: Any>(self) -> Option<T> {
        self.room?.downcast().ok().map(|room| *room)
    }
}

/// A transaction that is ready to be committed.
#[derive(Debug)]
pub struct Ready {
    /// Its room.
    pub reservation: Reservation,
    /// What it changes.
    pub set: WriteSet,
    /// What its history says about it.
    pub meta: CommitMeta,
}

/// A commit that survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Its position in the log, for [`Store::apply`].
    pub lsn: u64,
}

/// See [`Store::late`].
pub struct Late {
    /// Which.
    pub lsn: u64,
    /// Its id.
    pub txn: TxnId,
    /// What it changes.
    pub set: WriteSet,
}

/// A write set that undoes a transaction, and what it refers to.
pub struct Undo {
    /// The write set.
    pub set: WriteSet,
    /// Its slots: they must live until it is committed.
    pub slots: Vec<Slot>,
    /// What it brings back is not collected until this is dropped.
    pub in_use: InUse,
}

impl std::fmt::Debug for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Undo").field(&self.set).finish()
    }
}

/// What a store must not collect, until it is dropped.
pub type InUse = Box<dyn Any + Send + Sync>;

/// Which paths below the volume root are meant.
pub type Wanted<'a> = &'a dyn Fn(&[u8]) -> bool;

/// What [`Store::gc`] leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keep {
    /// At most this many transactions can be undone.
    pub count: usize,
    /// None that was committed before this time.
    pub since: Option<Time>,
    /// At most this many bytes of what was displaced.
    pub bytes: u64,
    /// So many of the newest can be undone, whatever the limits before say.
    pub least: usize,
    /// So many that cannot be undone any more stay in the log.
    pub log: usize,
}

impl Default for Keep {
    fn default() -> Self {
        Keep { count: usize::MAX, since: None, bytes: u64::MAX, least: 0, log: 0 }
    }
}

/// What [`Store::gc`] did, or would do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GcReport {
    /// Transactions that can no longer be undone, oldest first.
    pub removed: Vec<TxnId>,
    /// Bytes that were freed.
    pub freed: u64,
    /// Bytes of what was displaced that are still held.
    pub kept: u64,
    /// Transactions that can still be undone.
    pub left: usize,
}

/// One changed path of a committed transaction.
#[derive(Clone, Debug)]
pub struct Past {
    /// Path below the volume root.
    pub path: Vec<u8>,
    /// What happened.
    pub kind: ChangeKind,
    /// What was there before.
    pub old: Option<PastSide>,
    /// What was there after.
    pub new: Option<PastSide>,
    /// Whether the content differs, not only attributes.
    pub content: bool,
    /// Bytes of new content.
    pub bytes: u64,
    /// Extended attributes that differ.
    pub xattrs: Vec<Vec<u8>>,
}

/// One side of it.
#[derive(Clone, Debug)]
pub struct PastSide {
    /// Its type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Length.
    pub size: u64,
    /// Modification time.
    pub mtime: Time,
    /// Device number of a device node.
    pub rdev: u64,
    /// Where its bytes are, for [`Store::read_back`]; `None` where that is not known any more.
    pub seat: Option<Seat>,
}

/// A place that only its store knows.
pub type Seat = Arc<dyn Any + Send + Sync>;

/// Durable versions of one volume; shared by reference between threads.
///
/// No method has a body here: whatever a store leaves out the compiler names.
pub trait Store: Send + Sync {
    /// The crash behaviour of what is below.
    fn class(&self) -> Class;
    /// An object of the tree that is the store's own: views hide it.
    fn own_object(&self) -> Option<HostId>;
    /// What tells this store from all others, if it has been written to.
    fn known_as(&self) -> Option<u64>;
    /// What tells this store from all others, from now on for ever.
    ///
    /// # Errors
    /// It cannot be noted.
    fn number(&self) -> Written<u64>;
    /// The longest file that can be committed, in bytes.
    fn max_len(&self) -> u64;
    /// The times that files can have.
    ///
    /// # Errors
    /// There is no room for a trial.
    fn times(&self) -> Result<Times>;

    /// A staging slot.
    ///
    /// # Errors
    /// There is no room for it.
    fn stage(&self) -> Result<Slot>;
    /// A slot from an earlier opening may be committed in this one.
    fn adopt(&self, slot: &dyn Staging);
    /// Where a write to a slot finds no room: old transactions are forgotten for so many bytes.
    /// Whether there is more room now; the next commit tells of it.
    fn forget_for_content(&self, bytes: u64) -> bool;

    /// Makes sure that a commit of this write set, and its installation, will find room.  Where
    /// there is not enough, the oldest transactions are forgotten until there is.
    ///
    /// # Errors
    /// There is none, or something that the write set needs cannot be had.
    fn reserve(&self, set: &WriteSet) -> std::result::Result<Reservation, ReserveError>;
    /// No write sets yet: those that are added may be committed as one group.
    fn disjoint(&self) -> Disjoint;
    /// Commits several transactions, with one wait for the disk; what becomes of each is in the
    /// order of `members`.  Those that are committed are durable when this returns, and in the tree
    /// after [`Store::apply`] of each.
    ///
    /// # Errors
    /// Whoever touches what one before it touches is refused with [`CommitError::Overlaps`]: ask
    /// [`Disjoint`].
    fn commit_group(&self, members: Vec<Ready>) -> Vec<Written<Committed>>;
    /// Installs a committed transaction in the tree, or waits for whoever does, and returns the
    /// report. Calling it again returns the same report until the checkpoint. It moves the version
    /// of nothing but what the write set names, and the report has those. On an overlay it may move
    /// that of a file that a removed directory has a name of: who has met it under another one puts
    /// it into the set.
    ///
    /// # Errors
    /// It is not in the tree, or not whole.
    fn apply(&self, lsn: u64) -> std::result::Result<ApplyReport, ApplyError>;
    /// Committed transactions whose installation was tried in vain: whoever can tries again.
    fn late(&self) -> Vec<Late>;
    /// Makes what is installed durable, and lets the store forget what it needed for that.
    ///
    /// # Errors
    /// Nothing is lost: what is installed is kept until the next attempt, or the next opening.
    fn checkpoint(&self) -> std::result::Result<(), CheckpointError>;
    /// Whether the store does not need the record of a commit any more.
    fn has_let_go(&self, committed: Committed) -> bool;

    /// Waits for, or settles, every transaction that this write set meets; then nobody else meets
    /// it until the claim is used by [`Store::prepare`] or given back by [`Store::unclaim`].
    ///
    /// # Errors
    /// One of those cannot be settled.
    fn claim(&self, set: &WriteSet) -> Written<u64>;
    /// Gives a claim back.
    fn unclaim(&self, claim: u64);
    /// Makes the part of a joint commit durable, which counts once its decider has committed; its
    /// position in the log.
    ///
    /// # Errors
    /// It is not there; [`CommitError::InDoubt`]: it may be.
    fn prepare(&self, claim: u64, ready: Ready, joint: Joint) -> Written<u64>;
    /// What became of a prepared transaction.
    fn decided(&self, lsn: u64, committed: bool);
    /// Whether a prepared transaction is committed cannot be found out while this process lives.
    fn in_doubt(&self, why: &str);
    /// Decisions that other stores may still ask for.
    ///
    /// # Errors
    /// They cannot be read.
    fn decisions(&self) -> Result<Vec<Decision>>;
    /// Nobody will ask for this decision again: every other store has let go of its part.
    ///
    /// # Errors
    /// It is kept.
    fn forget_decision(&self, id: u64) -> Result<()>;

    /// Every transaction that is kept, oldest first.
    ///
    /// # Errors
    /// It cannot be read.
    fn history(&self) -> Result<Vec<HistoryEntry>>;
    /// Whether a transaction is kept.
    ///
    /// # Errors
    /// It cannot be read.
    fn has_history(&self, txn: TxnId) -> Result<bool>;
    /// The write set that takes `txn` back, if nothing that came later overlaps.
    ///
    /// # Errors
    /// Something does, or it cannot be taken back any more.
    fn undo_set(&self, txn: TxnId) -> std::result::Result<Undo, UndoError>;
    /// As [`Store::undo_set`], of what it changed at the paths that are `wanted`.
    ///
    /// # Errors
    /// As there.
    fn undo_part(&self, txn: TxnId, wanted: Wanted<'_>) -> std::result::Result<Undo, UndoError>;
    /// What a committed transaction changed; `None` if it has no history, or was forgotten.
    ///
    /// # Errors
    /// It cannot be read.
    fn look_back(&self, txn: TxnId) -> Result<Option<Vec<Past>>>;
    /// The content of one side of a file, at most `limit` bytes, or the target of a link; `None` if
    /// it is not known any more.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_back(&self, side: &PastSide, limit: usize) -> Result<Option<Vec<u8>>>;
    /// What [`Store::gc`] with these limits would do.
    ///
    /// # Errors
    /// The history cannot be read.
    fn would_gc(&self, keep: Keep) -> Result<GcReport>;
    /// Forgets the oldest transactions until the rest is within the limits.
    ///
    /// # Errors
    /// Something could not be removed.
    fn gc(&self, keep: Keep) -> Result<GcReport>;
    /// The limits that hold without anybody's order.
    ///
    /// # Errors
    /// How much there is cannot be told.
    fn usual_limits(&self) -> Result<Keep>;
    /// Forgets what is beyond the usual limits, if there may be something.
    ///
    /// # Errors
    /// As [`Store::gc`].
    fn bound_history(&self) -> Result<Option<GcReport>>;

    /// The numbers that orders are at: a commit that is durable is in there.
    fn orders(&self) -> Arc<Orders>;

    /// Why nothing is committed any more, if something has failed that leaves no other way.
    fn stopped(&self) -> Option<String>;
    /// Whether there is nothing for which it would have to stay open.
    fn is_at_rest(&self) -> bool;
    /// Whether another process waits for it.
    fn is_asked_for(&self) -> bool;
    /// Whether nothing was ever committed in it.
    fn is_unused(&self) -> bool;
    /// Removes it, if it is unused: nobody uses it any more.
    fn remove(&self);
}

impl dyn Store {
    /// Commits one transaction; see [`Store::commit_group`].
    ///
    /// # Errors
    /// As there.
    pub fn commit(
        &self,
        reservation: Reservation,
        set: WriteSet,
        meta: CommitMeta,
    ) -> Written<Committed> {
        let done = self.commit_group(vec![Ready { reservation, set, meta }]).pop();
        done.unwrap_or(Err(CommitError::UnknownSlot))
    }
}
