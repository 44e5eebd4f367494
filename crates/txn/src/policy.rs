//! Who wins a conflict between two active transactions.
//!
//! The rule is a small trait so that it can be exchanged.  The default is *osprio*, then
//! *timestamp* (TxOS, SOSP'09 §5.2.1): the more urgent process wins; among equals the older
//! transaction.  Timestamp alone guarantees that the oldest makes progress; priority breaks that, so
//! a transaction that has lost often enough is *aged* and then outranks every one that is not,
//! whatever their priority.  Among aged ones the oldest wins.  One that sleeps, waiting for something that may be in the
//! hands of its rival, loses to every one that does not (deferential mode of TxOS+, EuroSys'12 §6.1).  A retry keeps the timestamp of its
//! first attempt, so there is always one transaction that cannot lose to another transaction.
//!
//! Before all that a *guest* gives way to everybody else: whoever lets others have transactions
//! does not wait for them, however often those have lost, and whatever they have declared.  Among
//! guests the rest holds, so there is progress among them.

use systx_base::TxnId;

/// What a policy knows about a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    /// The transaction.
    pub id: TxnId,
    /// Its nice value: lower is more urgent.
    pub priority: i32,
    /// How many attempts lost before this one.
    pub age: u32,
    /// When its first attempt began, in the engine's logical time.
    pub timestamp: u64,
    /// It belongs to another user than the engine does: it loses to all that do not.
    pub guest: bool,
    /// Of a member of an order.  Then all but the id is that of the first member, see [`crate::Order`].
    pub place: Option<Place>,
    /// It has a scope ([`crate::Engine::line_up`]): what is in that is not contended for, but with
    /// a guest, elsewhere it counts as aged.
    pub scoped: bool,
    /// It waits for something else, see [`crate::Engine::defer_while`]; of a member of an order also if one with a lower
    /// number does.
    pub asleep: bool,
}

/// A place in an order, as policies see it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The same for the members of one group, another for those of others.
    pub group: u32,
    /// The lower one goes first.
    pub number: u64,
}

impl Contender {
    /// Whether `other` gives way to this one, whatever else is known of the two.
    pub fn outranks(&self, other: &Contender) -> bool {
        !self.guest && other.guest
    }
}

/// Decides conflicts between active transactions.
///
/// For progress, `challenger_wins` should be a strict total order: for two different contenders
/// exactly one of `challenger_wins(a, b)` and `challenger_wins(b, a)` holds, and it is transitive.  Of two members of
/// one group the lower number has to win, or they cannot commit in their order.
/// It is called with the conflict table locked: it must neither block nor call the engine.
pub trait ContentionPolicy: Send + Sync {
    /// Whether `challenger`, who asks for an object, beats `holder`, who has it.
    fn challenger_wins(&self, challenger: &Contender, holder: &Contender) -> bool;

    /// Whether plain mutations may be held for a transaction that asks for it.  Under the same rules
    /// as `challenger_wins`.
    fn may_reserve(&self, _contender: &Contender) -> bool {
        false
    }
}

/// Priority, then age of the transaction, with aging of losers, guests last: the default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OsPrio {
    /// A transaction that lost this often outranks all that did not.
    pub aged_after: u32,
}

impl Default for OsPrio {
    fn default() -> Self {
        OsPrio { aged_after: 3 }
    }
}

impl OsPrio {
    fn is_aged(&self, c: &Contender) -> bool {
        c.scoped || c.age >= self.aged_after
    }

    /// Sorts the winner first.  Aged ones ignore priority, or a low priority could still starve
    /// among other aged ones.
    fn key(&self, c: &Contender) -> impl Ord + use<> {
        let aged = self.is_aged(c);
        let priority = if aged { 0 } else { c.priority };
        (c.guest, c.asleep, !aged, priority, c.timestamp, c.place, c.id)
    }
}

impl ContentionPolicy for OsPrio {
    fn challenger_wins(&self, challenger: &Contender, holder: &Contender) -> bool {
        self.key(challenger) < self.key(holder)
    }

    fn may_reserve(&self, contender: &Contender) -> bool {
        self.is_aged(contender) && !contender.guest
    }
}
