//! Who wins a conflict between two active transactions.
//!
//! The rule is a small trait so that it can be exchanged.  The default is [`Choice::OsPrio`].
//!
//! | policy | before the age of the transaction |
//! |---|---|
//! | [`Choice::OsPrio`] | the more urgent thread |
//! | [`Choice::Timestamp`] | nothing |
//! | [`Choice::SizeMatters`] | the more urgent thread, then the larger transaction |
//! | [`Choice::Karma`] | the same, with the work of its attempts that lost |
//! | [`Choice::TwoPhase`] | nothing; where waiting helps, who comes later waits |
//!
//! Age alone guarantees that the oldest makes progress; what comes before it breaks that. So with
//! every policy a transaction that has lost often enough is *aged*, and then outranks every one
//! that is not. Among aged ones the oldest wins. A retry keeps the timestamp of its first attempt,
//! so there is always one transaction that cannot lose to another transaction. One that sleeps,
//! waiting for something that may be in the hands of its rival, loses to every one that does not
//! (deferential mode of TxOS+, EuroSys'12 §6.1), and does not count for that.
//!
//! **Urgency** is that of a thread at the moment of the conflict ([`Urgency`]; TxOS, SOSP'09
//! §5.2.1; TxLinux, SOSP'07 §6.2): a thread that becomes urgent in the middle is not behind one
//! that was so when it began.
//!
//! Before all that a *guest* gives way to everybody else: whoever lets others have transactions
//! does not wait for them, however often those have lost, and whatever they have declared.  Among
//! guests the rest holds, so there is progress among them.

use std::cmp::Reverse;
use std::sync::Arc;
use systx_base::TxnId;

/// Tells how urgent threads are.  Lower is more urgent, on the scale of nice values; 0 is what
/// programs usually have.
///
/// It is asked with the conflict table locked: it must not block.
pub trait Urgency: Send + Sync + std::fmt::Debug {
    /// The thread that works for the transaction; `None` if nothing is known of it now.
    fn now(&self) -> Option<i32>;
    /// At the begin, for when nothing is known of it later; `None` where something will be.
    fn first(&self) -> Option<i32> {
        self.now()
    }
    /// Some other thread.
    fn of(&self, thread: u32) -> Option<i32>;
}

/// Whose urgency a transaction has, if that is not the same all the time.
pub type Follows = Option<Arc<dyn Urgency>>;

/// By which rule a transaction contends with those that have the same; with others by
/// [`Choice::OsPrio`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Choice {
    /// Priority, then age.
    #[default]
    OsPrio,
    /// Age alone.
    Timestamp,
    /// Priority, then size, then age (TxLinux, SOSP'07 §6.1, §6.2): less work is done again.
    SizeMatters,
    /// Priority, then the work of all attempts, then age (the *Karma* of Polka).
    Karma,
    /// Two-phase locking of pages, as of the transactions in a log-structured file system (ICDE'93
    /// §4.2, §4.5): who comes later waits for the end of who has the page.  In a circle of such
    /// waits the younger one loses.
    TwoPhase,
}

/// What a policy knows about a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contender {
    /// The transaction.
    pub id: TxnId,
    /// How urgent it is now, see [`Urgency`].
    pub priority: i32,
    /// Objects that it has read or written.
    pub size: u64,
    /// Objects that its attempts which lost had read or written.
    pub karma: u64,
    /// The rule that was asked for.
    pub choice: Choice,
    /// How many attempts lost before this one.
    pub age: u32,
    /// When its first attempt began, in the engine's logical time.
    pub timestamp: u64,
    /// It belongs to another user than the engine does: it loses to all that do not.
    pub guest: bool,
    /// Of a member of an order. Then all but the id is that of the first member, see
    /// [`crate::Order`].
    pub place: Option<Place>,
    /// It has a scope ([`crate::Engine::line_up`]): what is in that is not contended for, but with
    /// a guest, elsewhere it counts as aged.
    pub scoped: bool,
    /// It waits for something else, see [`crate::Engine::defer_while`]; of a member of an order
    /// also if one with a lower number does.
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
/// exactly one of `challenger_wins(a, b)` and `challenger_wins(b, a)` holds, and it is transitive.
/// Of two members of one group the lower number has to win, or they cannot commit in their order.
/// It is called with the conflict table locked: it must neither block nor call the engine.
pub trait ContentionPolicy: Send + Sync {
    /// Whether `challenger`, who asks for an object, beats `holder`, who has it.
    fn challenger_wins(&self, challenger: &Contender, holder: &Contender) -> bool;

    /// Whether a challenger first waits for the end of a holder, whoever of them would win: for
    /// contents of files, and if that makes no circle ([`crate::Engine::stall`]).  Neither is of an
    /// order, and priorities are those of the begin.
    fn waits(&self, _challenger: &Contender, _holder: &Contender) -> bool {
        false
    }

    /// Whether a transaction may ask for plain mutations to be held for it at all.
    fn may_reserve(&self, _contender: &Contender) -> bool {
        false
    }

    /// Whether the mutation of a plain thread of this urgency is held for a transaction that has
    /// asked for it.  Writes to content are kept out before they are known, whoever makes them.
    fn holds_up(&self, contender: &Contender, _plain: i32) -> bool {
        self.may_reserve(contender)
    }
}

/// Losses after which a transaction is aged.
const AGED_AFTER: u32 = 3;

fn is_aged(c: &Contender) -> bool {
    c.scoped || c.age >= AGED_AFTER
}

impl Choice {
    /// Sorts the winner first.  Aged ones ignore what comes before age, or it could still starve
    /// one among other aged ones.
    fn key(self, c: &Contender) -> impl Ord + use<> {
        let aged = is_aged(c);
        let (priority, work) = match self {
            _ if aged => (0, 0),
            Choice::OsPrio => (c.priority, 0),
            Choice::Timestamp | Choice::TwoPhase => (0, 0),
            Choice::SizeMatters => (c.priority, c.size),
            Choice::Karma => (c.priority, c.size.saturating_add(c.karma)),
        };
        (c.guest, c.asleep, !aged, priority, Reverse(work), c.timestamp, c.place, c.id)
    }
}

/// The policy that both have chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chosen;

impl ContentionPolicy for Chosen {
    fn challenger_wins(&self, challenger: &Contender, holder: &Contender) -> bool {
        let both = challenger.choice == holder.choice;
        let choice = if both { challenger.choice } else { Choice::OsPrio };
        choice.key(challenger) < choice.key(holder)
    }

    /// Not where a rule says who goes first: a guest gives way, and a scope has its claims.  Who
    /// sleeps may wait for the challenger.
    fn waits(&self, challenger: &Contender, holder: &Contender) -> bool {
        let locks = |c: &Contender| c.choice == Choice::TwoPhase && !c.scoped;
        let alike = challenger.guest == holder.guest;
        locks(challenger) && locks(holder) && alike && !holder.asleep
    }

    fn may_reserve(&self, contender: &Contender) -> bool {
        self.holds_up(contender, 0)
    }

    fn holds_up(&self, contender: &Contender, plain: i32) -> bool {
        !contender.guest && (is_aged(contender) || contender.priority < plain)
    }
}
