//! The times that files can have: a view shows those that a program sets as they can be.

use super::Spill;
use std::sync::OnceLock;
use systx_base::Time;

/// The times that a file system can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The first second.
    pub first: i64,
    /// The last second.
    pub last: i64,
    /// Nanoseconds are multiples of this.
    pub step: u32,
}

/// In every second since 1970 that fits in 31 bits each file system has times.
const EVERYWHERE: std::ops::RangeInclusive<i64> = 1..=i32::MAX as i64 - 1;

impl Times {
    /// Every time there is.
    pub const ALL: Times = Times { first: i64::MIN, last: i64::MAX, step: 1 };

    /// The nearest time, as Linux has it (fs/inode.c `timestamp_truncate`).
    pub fn nearest(self, time: Time) -> Time {
        let secs = time.secs.clamp(self.first.min(self.last), self.last);
        let is_bound = secs == self.first || secs == self.last;
        let nanos = if is_bound { 0 } else { time.nanos - time.nanos % self.step.max(1) };
        Time { secs, nanos }
    }
}

/// [`Times`] of a volume, once they were asked for.
#[derive(Default)]
pub(crate) struct TimesHeld(OnceLock<Times>);

impl TimesHeld {
    /// What becomes of a time that a program sets.
    pub fn nearest(&self, spill: &dyn Spill, time: Time) -> Time {
        if EVERYWHERE.contains(&time.secs) && time.nanos == 0 {
            return time;
        }
        match self.0.get() {
            Some(times) => times.nearest(time),
            // Without room for a trial it is asked again at the next time.
            None => spill.times().map_or(time, |t| self.0.get_or_init(|| t).nearest(time)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_time_is_that_of_linux() {
        let ext4 = Times { first: -100, last: 1000, step: 1 };
        let at = |secs, nanos| Time { secs, nanos };
        assert_eq!(ext4.nearest(at(7, 999_999_999)), at(7, 999_999_999));
        assert_eq!(ext4.nearest(at(-100, 5)), at(-100, 0));
        assert_eq!(ext4.nearest(at(-101, 5)), at(-100, 0));
        assert_eq!(ext4.nearest(at(i64::MAX, 5)), at(1000, 0));
        let coarse = Times { step: 1_000_000_000, ..ext4 };
        assert_eq!(coarse.nearest(at(-1, 999_999_999)), at(-1, 0));
        assert_eq!(Times { step: 100, ..ext4 }.nearest(at(1, 250)), at(1, 200));
        // What a file system tells is not trusted.
        let odd = Times { first: 5, last: -5, step: 0 };
        assert_eq!(odd.nearest(at(1, 2)).secs, -5);
    }
}
