//! Which snapshots of a volume are kept: of each hour, day, week or month the last one, for so many
//! of them.  Pure: what is removed is somebody else's.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::collections::BTreeSet;
use systx_protocol::VolumeSnapshot;

/// How many are kept, by period.  Periods are those of UTC, and only such as have a snapshot count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// So many of the latest, whenever they were made.
    pub last: usize,
    /// The latest one of each of so many hours.
    pub hourly: usize,
    /// Of each of so many days.
    pub daily: usize,
    /// Of each of so many weeks, which begin on Mondays.
    pub weekly: usize,
    /// Of each of so many months.
    pub monthly: usize,
}

/// The names of those that no rule keeps, oldest first.
pub fn superfluous(snapshots: &[VolumeSnapshot], rules: Rules) -> Vec<&str> {
    let mut kept: BTreeSet<usize> = (0..snapshots.len()).rev().take(rules.last).collect();
    let periods = [
        (rules.hourly, "%F %H"),
        (rules.daily, "%F"),
        (rules.weekly, "%G-%V"),
        (rules.monthly, "%Y-%m"),
    ];
    for (most, format) in periods {
        let mut seen = BTreeSet::new();
        for (at, snapshot) in snapshots.iter().enumerate().rev() {
            if seen.len() == most {
                break;
            }
            // A time that is none is of a period of its own.
            if seen.insert(period(snapshot, format).unwrap_or_else(|| snapshot.name.clone())) {
                kept.insert(at);
            }
        }
    }
    let rest = snapshots.iter().enumerate().filter(|(at, _)| !kept.contains(at));
    rest.map(|(_, s)| s.name.as_str()).collect()
}

/// The one in which it was made, in the form of strftime(3).
fn period(snapshot: &VolumeSnapshot, format: &str) -> Option<String> {
    let at = Timestamp::from_second(snapshot.time.secs).ok()?;
    Some(at.to_zoned(TimeZone::UTC).strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_base::Time;

    fn snapshots(times: &[&str]) -> Vec<VolumeSnapshot> {
        let at = |text: &&str| VolumeSnapshot {
            name: (*text).to_owned(),
            time: Time { secs: text.parse::<Timestamp>().unwrap().as_second(), nanos: 0 },
            keeps: 0,
            of: None,
        };
        times.iter().map(at).collect()
    }

    #[test]
    fn the_last_one_of_each_period_is_kept() {
        let all = snapshots(&[
            "2026-10-31 23:59:59Z",
            "2026-11-22 12:00:00Z", // a Sunday
            "2026-11-23 00:10:00Z",
            "2026-11-23 00:50:00Z",
            "2026-11-23 09:00:00Z",
            "2026-11-25 08:00:00Z",
        ]);
        let kept = |rules| {
            let gone = superfluous(&all, rules);
            let kept = (0..all.len()).filter(|at| !gone.contains(&all[*at].name.as_str()));
            kept.collect::<Vec<_>>()
        };
        let none = Rules::default();
        assert_eq!(kept(none), [0_usize; 0]);
        assert_eq!(kept(Rules { last: 2, ..none }), [4, 5]);
        assert_eq!(kept(Rules { hourly: 3, ..none }), [3, 4, 5]);
        assert_eq!(kept(Rules { daily: 3, ..none }), [1, 4, 5]);
        assert_eq!(kept(Rules { weekly: 2, ..none }), [1, 5]);
        assert_eq!(kept(Rules { monthly: 9, ..none }), [0, 5]);
        assert_eq!(kept(Rules { last: 1, daily: 2, monthly: 2, ..none }), [0, 4, 5]);
        assert_eq!(kept(Rules { last: 9, ..none }).len(), all.len());
    }

    #[test]
    fn times_that_are_none_are_no_reason_to_remove_anything_else() {
        let mut all = snapshots(&["2026-11-22 12:00:00Z", "2026-11-23 12:00:00Z"]);
        all[0].time.secs = i64::MAX;
        assert!(superfluous(&all, Rules { daily: 2, ..Rules::default() }).is_empty());
    }
}
