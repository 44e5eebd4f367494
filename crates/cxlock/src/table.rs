//! What a lock may become when a section begins, ends or does I/O: the protocol as data, for tests
//! and models.
//!
//! | state | exclusive begins | optimistic begins | a section ends | I/O |
//! |---|---|---|---|---|
//! | free | exclusive | transactional | – | – |
//! | transactional | waits, or is exclusive | transactional | transactional or free | restarts |
//! | exclusive | waits | waits | free; those that waited go on | goes on |
//!
//! An exclusive section that does not wait aborts the optimistic ones.  One that does I/O restarts
//! with the lock.  An aborted attempt ends as any other section does.  One that wants the lock
//! itself afterwards begins as an exclusive one.

/// What a lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No section is inside.
    Free,
    /// Optimistic sections are inside.
    Transactional,
    /// One exclusive section is inside.
    Exclusive,
}

/// What happens to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An exclusive section wants to begin.
    Exclusive,
    /// An optimistic section wants to begin.
    Optimistic,
    /// A section that is inside ends, or an attempt is undone.
    End,
    /// A section that is inside does I/O.
    Io,
}

/// Each state, each event that can happen in it, and each state after it.  A section that waits
/// leaves the state as it is.
pub const TABLE: &[(State, Event, State)] = &[
    (State::Free, Event::Exclusive, State::Exclusive),
    (State::Free, Event::Optimistic, State::Transactional),
    (State::Transactional, Event::Exclusive, State::Transactional),
    (State::Transactional, Event::Exclusive, State::Exclusive),
    (State::Transactional, Event::Optimistic, State::Transactional),
    (State::Transactional, Event::End, State::Transactional),
    (State::Transactional, Event::End, State::Free),
    (State::Transactional, Event::Io, State::Transactional),
    (State::Transactional, Event::Io, State::Free),
    (State::Exclusive, Event::Exclusive, State::Exclusive),
    (State::Exclusive, Event::Optimistic, State::Exclusive),
    (State::Exclusive, Event::End, State::Free),
    (State::Exclusive, Event::Io, State::Exclusive),
];

/// Whether the table has this transition.
#[must_use]
pub fn allows(from: State, event: Event, to: State) -> bool {
    TABLE.contains(&(from, event, to))
}
