//! The rules that say whether a piece of the log counts, by name, so that a test can take one away
//! and see that it is missed.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The sum of the summary is right.
    SummarySum,
    /// The sum of each block is right.
    BlockSum,
    /// It is of this volume.
    Volume,
    /// It is of this opening.
    Epoch,
    /// Its segment was taken as often as it says.
    Generation,
    /// It has the next number.
    Lsn,
    /// It has the sum of the piece before it.
    Chain,
    /// It begins a group where one has to begin, and nowhere else.
    Begin,
    /// It is no part of a transaction that is not decided.
    Private,
    /// It names a segment as the next one that can be.
    Next,
}

/// Whether a rule is kept: `is`, unless a test has taken the rule away.
pub fn keeps(rule: Rule, is: bool) -> bool {
    is || taken_away(rule)
}

#[cfg(not(test))]
fn taken_away(_: Rule) -> bool {
    false
}

#[cfg(test)]
fn taken_away(rule: Rule) -> bool {
    TAKEN.get() == Some(rule)
}

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Does something without a rule, in this thread.
#[cfg(test)]
pub fn without<T>(rule: Option<Rule>, act: impl FnOnce() -> T) -> T {
    TAKEN.set(rule);
    let done = act();
    TAKEN.set(None);
    done
}
