//! The times that files can have: a view shows those that a program sets as they can be.

use super::Spill;
use std::sync::OnceLock;
use systx_base::Time;
pub use systx_store::Times;

/// In every second since 1970 that fits in 31 bits each file system has times.
const EVERYWHERE: std::ops::RangeInclusive<i64> = 1..=i32::MAX as i64 - 1;

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
