//! Whether what was seen can have been seen.

use super::{Change, DIRS, Moment, Name, Report, Seen, What, is_first};
use std::collections::HashMap;

/// More is not told of.
const MOST: usize = 20;

/// When something happened, and what was there afterwards.
struct Event {
    begun: Moment,
    over: Moment,
    there: bool,
}

/// What happened to each name, and when to each directory.
struct Past {
    names: HashMap<Name, Vec<Event>>,
    dirs: [Vec<(Moment, Moment)>; 2],
    number: u32,
}

impl Past {
    fn new(number: u32, changes: Vec<Change>) -> Past {
        let mut past = Past { names: HashMap::new(), dirs: [Vec::new(), Vec::new()], number };
        for Change { begun, over, names } in changes {
            for (name, there) in names {
                past.names.entry(name).or_default().push(Event { begun, over, there });
                past.dirs[name.0].push((begun, over));
            }
        }
        past
    }

    /// Whether a name was there in all this time; `None`: something was done to it.
    fn state(&self, name: Name, begun: Moment, over: Moment) -> Option<bool> {
        let events = self.names.get(&name).map_or(&[][..], Vec::as_slice);
        let before = events.partition_point(|event| event.over <= begun);
        let next = events.get(before).map(|event| event.begun);
        if next.is_some_and(|next| next < over) {
            return None;
        }
        Some(before.checked_sub(1).map_or(is_first(name.1), |last| events[last].there))
    }

    fn is_disturbed(&self, seen: &Seen) -> bool {
        let events = &self.dirs[seen.dir];
        let before = events.partition_point(|event| event.1 <= seen.begun);
        events.get(before).is_some_and(|event| event.0 < seen.over)
    }

    /// What is wrong with the names that were seen.
    fn wrong(&self, seen: &Seen, names: &[u32]) -> Vec<String> {
        let mut times = vec![0; self.number as usize];
        names.iter().for_each(|number| times[*number as usize] += 1);
        let at = |number: u32| format!("{}/{number:06} at {}", DIRS[seen.dir], seen.begun);
        let judge = |number: u32| {
            let state = self.state((seen.dir, number), seen.begun, seen.over)?;
            match (state, times[number as usize]) {
                (true, 1) | (false, 0) => None,
                (true, 0) => Some(format!("a listing lacks {}", at(number))),
                (true, n) => Some(format!("a listing has {n} times {}", at(number))),
                (false, _) => Some(format!("a listing has what was gone: {}", at(number))),
            }
        };
        (0..self.number).filter_map(judge).collect()
    }

    /// What is wrong with the times of a directory. Of `all`: when it was over, and the times that
    /// were seen, in this order.
    fn wrong_times(&self, dir: usize, tick: Moment, all: &[(&Seen, (i64, i64))]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut latest: Vec<(Moment, (i64, i64))> = Vec::new();
        for (seen, times) in all {
            let (mtime, ctime) = latest.last().map_or(*times, |(_, max)| *max);
            latest.push((seen.over, (mtime.max(times.0), ctime.max(times.1))));
        }
        let until = |moment: Moment| {
            let known = latest.partition_point(|(over, _)| *over <= moment);
            known.checked_sub(1).map(|last| latest[last].1)
        };
        for (seen, times) in all {
            let back = |max: (i64, i64)| times.0 < max.0 || times.1 < max.1;
            let same = |max: (i64, i64)| times.0 <= max.0 || times.1 <= max.1;
            let events = self.dirs[dir].partition_point(|event| event.1 <= seen.begun);
            let change = events.checked_sub(1).map(|last| self.dirs[dir][last].0);
            // Of a change whose call is not over one may see the time, and the next one not yet.
            let changing = self.dirs[dir].get(events).is_some_and(|event| event.0 < seen.begun);
            let name = DIRS[dir];
            if !changing && until(seen.begun).is_some_and(back) {
                wrong.push(format!("times of {name} went back at {}: {times:?}", seen.begun));
            } else if change.and_then(|at| until(at.saturating_sub(tick))).is_some_and(same) {
                wrong.push(format!("times of {name} are old at {}: {times:?}", seen.begun));
            }
        }
        wrong
    }
}

pub(super) fn compare(names: u32, tick: Moment, changes: Vec<Change>, all: &[Seen]) -> Report {
    let mut report = Report { changes: changes.len() as u64, ..Report::default() };
    let past = Past::new(names, changes);
    let mut times: [Vec<(&Seen, (i64, i64))>; 2] = [Vec::new(), Vec::new()];
    for seen in all {
        let Seen { dir, begun, over, ref what } = *seen;
        match *what {
            What::Listing(ref names) => {
                report.listings += 1;
                report.disturbed += u64::from(past.is_disturbed(seen));
                report.wrong.extend(past.wrong(seen, names));
            }
            What::Look(number, found) => {
                report.looks += 1;
                if past.state((dir, number), begun, over).is_some_and(|there| there != found) {
                    let not = if found { "still" } else { "not" };
                    report.wrong.push(format!("{not} there: {}/{number:06} at {begun}", DIRS[dir]));
                }
            }
            What::Times(mtime, ctime) => {
                report.stats += 1;
                times[dir].push((seen, (mtime, ctime)));
            }
        }
    }
    for (dir, mut seen) in times.into_iter().enumerate() {
        seen.sort_by_key(|(seen, _)| seen.over);
        report.wrong.extend(past.wrong_times(dir, tick, &seen));
    }
    report.wrong.truncate(MOST);
    report
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// From 10 to 20 a name that was there went away, and from 30 to 40 another one came.
    fn wrong(begun: Moment, over: Moment, what: What) -> Vec<String> {
        let changes = vec![
            Change { begun: 10, over: 20, names: vec![((0, 2), false)] },
            Change { begun: 30, over: 40, names: vec![((0, 1), true)] },
        ];
        let first = Seen { dir: 0, begun: 1, over: 5, what: What::Times(7, 7) };
        compare(4, 0, changes, &[first, Seen { dir: 0, begun, over, what }]).wrong
    }

    #[test]
    fn a_listing_may_show_what_was_under_way_and_nothing_else() {
        let list =
            |begun, over, names: &[u32]| wrong(begun, over, What::Listing(names.to_vec())).len();
        assert_eq!(list(0, 10, &[0, 2]), 0);
        assert_eq!(list(0, 11, &[0, 2]) + list(0, 11, &[0]) + list(19, 21, &[2, 0]), 0);
        assert_eq!(list(20, 30, &[0]) + list(20, 40, &[0, 1]) + list(41, 50, &[1, 0]), 0);
        assert_eq!(list(20, 30, &[0, 2]), 1, "it was gone");
        assert_eq!(list(40, 50, &[0]), 1, "it was new");
        assert_eq!(list(0, 10, &[0, 0, 2]), 1, "twice");
        assert_eq!(list(0, 10, &[]), 2);
    }

    #[test]
    fn a_name_is_found_while_it_is_there() {
        assert_eq!(wrong(0, 10, What::Look(2, true)).len(), 0);
        assert_eq!(wrong(12, 15, What::Look(2, true)).len(), 0);
        assert_eq!(wrong(12, 15, What::Look(2, false)).len(), 0);
        assert_eq!(wrong(20, 22, What::Look(2, true)).len(), 1);
        assert_eq!(wrong(40, 41, What::Look(1, false)).len(), 1);
    }

    #[test]
    fn times_move_with_each_change_and_never_back() {
        assert_eq!(wrong(6, 9, What::Times(7, 7)).len(), 0);
        assert_eq!(wrong(6, 9, What::Times(6, 7)).len(), 1);
        assert_eq!(wrong(15, 25, What::Times(7, 7)).len(), 0);
        assert_eq!(wrong(15, 25, What::Times(6, 7)).len(), 0, "it is under way");
        assert_eq!(wrong(20, 25, What::Times(6, 7)).len(), 1);
        assert_eq!(wrong(20, 25, What::Times(8, 8)).len(), 0);
        assert_eq!(wrong(20, 25, What::Times(7, 7)).len(), 1);
        assert_eq!(wrong(20, 25, What::Times(7, 8)).len(), 1);
    }
}
