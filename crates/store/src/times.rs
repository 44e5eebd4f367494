//! The times that files of a file system can have.

use crate::io::{Handle, Io};
use std::io::Result;
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

    /// Those that `file` can have, by trial.
    pub(crate) fn of(io: &dyn Io, file: &Handle) -> Result<Times> {
        let trial = |atime, mtime| {
            io.set_times(file, b"", Some(atime), Some(mtime))?;
            io.stat(file)
        };
        let all = |secs| Time { secs, nanos: 0 };
        let bounds = trial(all(i64::MIN), all(i64::MAX))?;
        // The first of these whose multiple is left as it is.
        let fine = [1, 10, 100, 1_000, 1_000_000, 10_000_000];
        let some = Time { secs: 1 << 20, nanos: 999_999_999 };
        let shown = trial(some, some)?.mtime.nanos;
        let step = fine.into_iter().find(|step| shown == 999_999_999 / step * step);
        let (first, last) = (bounds.atime.secs, bounds.mtime.secs);
        Ok(Times { first, last, step: step.unwrap_or(1_000_000_000) })
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
