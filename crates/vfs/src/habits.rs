//! Which programs use the attributes of what they list.
//!
//! The kernel asks for attributes with every listing, for whatever program, and of a stat(2) that
//! it answers from what it was told it tells nobody. So attributes that go with a listing count as
//! read. A listing tells names and types only, then, and the kernel asks for the attributes of each
//! file that a program uses. But a program that is known to use them gets them with the next
//! listing, or `ls -lR` would make a message for every file.
//!
//! A program is known by what it does: its process has asked for three quarters of the files that
//! it was lately told by name only. One that has them told is still told some files by name only,
//! and is found out by those once it does not ask for them any more.

use std::collections::HashMap;
use systx_base::Kind;

/// Threads that are known at once; then all are forgotten, which costs messages and nothing else.
const MOST: usize = 1024;
/// Files by name only, after which it shows whether a program uses attributes.
const ENOUGH: u32 = 16;
/// Of such older files no more count than so many.
const REMEMBERED: u32 = 64;
/// As [`REMEMBERED`], for a program that is told attributes.
const REMEMBERED_OF_USER: u32 = 8;
/// One in so many files is told by name only, also to a program that uses attributes.
const SAMPLE: u32 = 32;

/// What one thread does with its listings.
#[derive(Default)]
struct Habit {
    /// Its listings tell attributes.
    uses: bool,
    /// Files that it was told by name only.
    by_name: u32,
    /// Those among them for which its process has asked.
    asked: u32,
    /// Files of the listing under way that it was told with attributes.
    with_attributes: u32,
}

impl Habit {
    fn asks(&self) -> bool {
        self.asked.saturating_mul(4) >= self.by_name.saturating_mul(3)
    }

    /// It goes on with a listing, or begins one.
    fn lists(&mut self, begins: bool) {
        if begins {
            self.with_attributes = 0;
            if self.uses && !self.asks() {
                *self = Habit::default();
            }
            let most = if self.uses { REMEMBERED_OF_USER } else { REMEMBERED };
            if self.by_name > most {
                let share = u64::from(self.asked) * u64::from(most) / u64::from(self.by_name);
                (self.by_name, self.asked) = (most, u32::try_from(share).unwrap_or(most));
            }
        }
        self.uses |= self.by_name >= ENOUGH && self.asks();
    }

    /// Whether the next name is told with attributes.
    fn takes(&mut self, kind: Kind) -> bool {
        if !self.uses || kind == Kind::Dir {
            return self.uses;
        }
        self.with_attributes += 1;
        self.with_attributes % SAMPLE != 1
    }
}

/// The habits of the threads that list, by the numbers that requests bear.
#[derive(Default)]
pub(crate) struct Habits(HashMap<u32, Habit>);

impl Habits {
    /// A thread asks for names, from the first on or for more of them.
    pub fn lists(&mut self, tid: u32, begins: bool) {
        if self.0.len() >= MOST && !self.0.contains_key(&tid) {
            self.0.clear();
        }
        self.0.entry(tid).or_default().lists(begins);
    }

    /// Whether the next name that it is told goes with attributes.
    pub fn takes(&mut self, tid: u32, kind: Kind) -> bool {
        self.0.get_mut(&tid).is_some_and(|habit| habit.takes(kind))
    }

    /// It was told a file by name only.
    pub fn told_by_name(&mut self, tid: u32) {
        if let Some(habit) = self.0.get_mut(&tid) {
            habit.by_name = habit.by_name.saturating_add(1);
        }
    }

    /// Its process asks for one of those.
    pub fn asked(&mut self, tid: u32) {
        if let Some(habit) = self.0.get_mut(&tid) {
            habit.asked = habit.by_name.min(habit.asked + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TID: u32 = 7;

    /// Lists so many files, and asks for one in `asks` of those told by name only; how many were
    /// told with attributes.
    fn list(habits: &mut Habits, files: u32, asks: Option<u32>) -> u32 {
        habits.lists(TID, true);
        let mut with = 0;
        for file in 0..files {
            if habits.takes(TID, Kind::File) {
                with += 1;
            } else {
                habits.told_by_name(TID);
                if asks.is_some_and(|one_in| file % one_in == 0) {
                    habits.asked(TID);
                }
            }
        }
        with
    }

    #[test]
    fn who_asks_for_nothing_is_told_names() {
        let mut habits = Habits::default();
        for _ in 0..100 {
            assert_eq!(list(&mut habits, 50, None), 0);
            assert_eq!(list(&mut habits, 50, Some(2)), 0);
            habits.lists(TID, true);
            assert!(!habits.takes(TID, Kind::Dir));
        }
    }

    #[test]
    fn who_asks_for_all_is_told_attributes_until_it_asks_no_more() {
        let mut habits = Habits::default();
        assert_eq!(list(&mut habits, ENOUGH - 1, Some(1)), 0, "that may be chance");
        assert_eq!(list(&mut habits, 1, Some(1)), 0);
        for _ in 0..20 {
            assert_eq!(list(&mut habits, 64, Some(1)), 62);
        }
        habits.lists(TID, true);
        assert!(habits.takes(TID, Kind::Dir));
        let falsely: u32 = (0..20).map(|_| list(&mut habits, 64, None)).sum();
        assert!(falsely <= 2 * 62, "{falsely}");
        // Small directories as well.
        while list(&mut habits, 64, Some(1)) == 0 {}
        let falsely: u32 = (0..20).map(|_| list(&mut habits, 3, None)).sum();
        assert!(falsely <= 8, "{falsely}");
    }

    #[test]
    fn who_has_listed_much_and_used_nothing_is_known_soon() {
        let mut habits = Habits::default();
        list(&mut habits, 100_000, None);
        let listings = (0..).take_while(|_| list(&mut habits, 100, Some(1)) == 0).count();
        assert!(listings <= 2, "{listings}");
    }

    #[test]
    fn one_listing_shows_it_as_well() {
        let mut habits = Habits::default();
        assert_eq!(list(&mut habits, 100, Some(1)), 0);
        habits.lists(TID, false);
        assert!(!habits.takes(TID, Kind::File), "a sample");
        assert!(habits.takes(TID, Kind::File));
        habits.lists(TID + 1, true);
        assert!(!habits.takes(TID + 1, Kind::Dir), "another thread");
    }

    #[test]
    fn no_more_are_known_than_so_many() {
        let mut habits = Habits::default();
        (1..5000).for_each(|tid| habits.lists(tid, true));
        assert!(habits.0.len() <= MOST);
    }
}
