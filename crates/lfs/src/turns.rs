//! Who waits for the log: each thread is woken when its own commit is durable, or to write for
//! those that are left.  A thread that is woken for nothing costs two changes of the processor, and
//! with many clients there were as many of these as of those that had a reason.

use std::thread::{self, Thread};

/// Threads that wait for their commits to be durable.
#[derive(Default, Debug)]
pub struct Turns(Vec<(u64, Thread)>);

impl Turns {
    /// This thread waits until the first `ticket` commits are durable.
    pub fn wait_for(&mut self, ticket: u64) {
        self.0.push((ticket, thread::current()));
    }

    /// This thread waits no longer.
    pub fn leave(&mut self) {
        let own = thread::current().id();
        self.0.retain(|(_, thread)| thread.id() != own);
    }

    /// Takes those out who have a reason to go on, now that nobody writes: all whose commits are
    /// among the first `durable`, and one of the others, who writes for the rest.
    #[must_use]
    pub fn next(&mut self, durable: u64) -> Vec<Thread> {
        let writes = self.0.iter().position(|(ticket, _)| *ticket > durable);
        let mut at = 0;
        let gone = self.0.extract_if(.., |(ticket, _)| {
            at += 1;
            *ticket <= durable || writes == Some(at - 1)
        });
        gone.map(|(_, thread)| thread).collect()
    }

    /// Takes all out: nothing will be durable any more.
    #[must_use]
    pub fn all(&mut self) -> Vec<Thread> {
        self.0.drain(..).map(|(_, thread)| thread).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tickets: &[u64]) -> Turns {
        Turns(tickets.iter().map(|ticket| (*ticket, thread::current())).collect())
    }

    fn left(turns: &Turns) -> Vec<u64> {
        turns.0.iter().map(|(ticket, _)| *ticket).collect()
    }

    #[test]
    fn all_that_are_done_go_on_and_one_of_the_others() {
        let mut turns = of(&[3, 7, 5, 8, 6]);
        assert_eq!(turns.next(5).len(), 3);
        assert_eq!(left(&turns), [8, 6]);
        assert_eq!(turns.next(5).len(), 1);
        assert_eq!(left(&turns), [6]);
        assert_eq!(turns.next(6).len(), 1);
        assert!(left(&turns).is_empty());
        assert!(turns.next(6).is_empty());
    }

    #[test]
    fn nobody_is_left_behind_when_nothing_goes_on() {
        let mut turns = of(&[3, 7]);
        assert_eq!(turns.all().len(), 2);
        assert!(left(&turns).is_empty());
        turns.wait_for(9);
        turns.leave();
        assert!(left(&turns).is_empty());
    }
}
