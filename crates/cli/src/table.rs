//! What `systx top` shows, as lines of text: pure.

use crate::commands::list::state;
use crate::output;
use systx_base::Time;
use systx_protocol::{
    Activity, Before, InLine, Isolation, RunActivity, Sides, ThreadActivity, VolumeActivity,
};

/// Commits per second of each volume between two looks; `None` where it was not there before.
pub fn rates(before: &[VolumeActivity], now: &[VolumeActivity], seconds: f64) -> Vec<Option<f64>> {
    let rate = |v: &VolumeActivity| {
        let earlier = before.iter().find(|b| b.volume == v.volume)?.counts.committed;
        // Less than before: it is another daemon's count.
        let commits = v.counts.committed.checked_sub(earlier)?;
        (seconds > 0.0).then(|| commits as f64 / seconds)
    };
    now.iter().map(rate).collect()
}

/// Most threads of a directory, and runs of a volume, that are shown.
const THREADS_MAX: usize = 8;

/// The whole picture.  `rates`: as [`rates`] gives them.
pub fn lines(volumes: &[VolumeActivity], rates: &[Option<f64>], now: Time) -> Vec<String> {
    let open: usize = volumes.iter().map(|v| v.transactions.len()).sum();
    let s = |n: usize| if n == 1 { "" } else { "s" };
    let mut out = vec![format!(
        "systx: {open} transaction{}, {} volume{}  {}",
        s(open),
        volumes.len(),
        s(volumes.len()),
        output::time(now)
    )];
    for (volume, rate) in volumes.iter().zip(rates.iter().chain(std::iter::repeat(&None))) {
        out.push(String::new());
        out.push(head(volume, *rate));
        out.extend(volume.stopped.iter().map(|why| format!("  stopped: {why}")));
        for g in &volume.guarded {
            out.push(format!("  {} is guarded, stall {} ms", g.dir, g.stall_ms));
            let lost = g.threads.iter().filter(|thread| thread.lost > 0);
            out.extend(lost.take(THREADS_MAX).map(thread));
        }
        out.extend(volume.runs.iter().take(THREADS_MAX).map(run));
        if !volume.transactions.is_empty() {
            out.push(row([
                "ID",
                "STATE",
                "AGE",
                "COMMAND",
                "NAMES",
                "LISTS",
                "ATTRS",
                "SIZES",
                "PAGES",
                "ISOLATION",
            ]));
        }
        for transaction in &volume.transactions {
            out.extend(rows(transaction, now));
        }
        if !volume.line.is_empty() {
            out.push("  in line to begin with a scope:".into());
        }
        out.extend(volume.line.iter().map(|waiting| in_line(waiting, now)));
    }
    out
}

fn head(volume: &VolumeActivity, rate: Option<f64>) -> String {
    let c = &volume.counts;
    let rate = rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    format!(
        "{}: {rate} commits/s; {} begun, {} committed, {} aborted, {} lost; {} conflicts, {} waits",
        volume.volume, c.begun, c.committed, c.aborted, c.lost, c.conflicts, c.waits
    )
}

fn rows(t: &Activity, now: Time) -> Vec<String> {
    let isolation = match (t.read_only, t.isolation) {
        (true, _) => "read-only",
        (_, Isolation::Serializable) => "serializable",
        (_, Isolation::Snapshot) => "snapshot",
    };
    let w = &t.workset;
    let mut out = vec![row([
        &t.id.to_string(),
        state(t.state),
        &age(now, t.begun),
        &output::short_command(&t.argv, 24),
        &sides(w.entries),
        &sides(w.lists),
        &sides(w.attributes),
        &sides(w.sizes),
        &sides(w.pages),
        isolation,
    ])];
    if let Some(winner) = t.waits_for {
        out.push(format!("            waits for the commit of {winner}"));
    }
    if let Some(c) = &t.conflict {
        out.push(format!("            lost on {} to {}", c.path, output::opponent(&c.opponent)));
    }
    out
}

/// A thread that has lost.
fn thread(t: &ThreadActivity) -> String {
    let command = output::short_command(&t.argv, 24);
    let mut out = format!(
        "    thread {} ({command}): {} of {} attempts lost, lately {} %; {} held, lately {}",
        t.tid,
        short(t.lost),
        short(t.ended),
        t.losses_per_mille / 10,
        short(t.held),
        milliseconds(t.waited_us)
    );
    if t.keeps_losing {
        out.push_str("; keeps losing");
    }
    if let Some(id) = t.held_for {
        out.push_str(&format!("; waits to begin for {id}"));
    }
    out
}

/// A run that has lost.
fn run(r: &RunActivity) -> String {
    let now = match r.tries {
        Some(id) => format!("tries as {id}"),
        None => "waits to try again".into(),
    };
    let mut out = format!(
        "  run {} ({}): {} attempts lost, {} of work; lately {} objects, {} before the next",
        r.pid,
        output::short_command(&r.argv, 24),
        short(r.lost),
        milliseconds(r.lost_us),
        short(r.size),
        milliseconds(r.waited_us),
    );
    let opponent = output::opponent(&r.over.opponent);
    out.push_str(&format!("; last on {} to {opponent}; {now}", r.over.path));
    out
}

fn milliseconds(us: u64) -> String {
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

/// One that waits to begin.
fn in_line(w: &InLine, now: Time) -> String {
    let command = output::short_command(&w.argv, 24);
    let behind = match &w.behind {
        None => "about to begin".to_owned(),
        Some(behind) => {
            let by = match behind.by {
                Before::Transaction(id) => format!("transaction {id}"),
                Before::Position(number) => format!("number {number} in line"),
            };
            format!("waits for {}, behind {by}", behind.path)
        }
    };
    let age = age(now, w.since);
    format!("  {:>8}  {:<10} {age:>6}  {command:<24} {behind}", w.position, w.pid)
}

/// One line of the table.
fn row([id, state, age, command, rest @ ..]: [&str; 10]) -> String {
    let [names, lists, attrs, sizes, pages, isolation] = rest;
    format!(
        "  {id:<8}  {state:<10} {age:>6}  {command:<24} {names:>9} {lists:>7} {attrs:>9} {sizes:>9} \
         {pages:>9}  {isolation}"
    )
}

/// `read/written`.
fn sides(s: Sides) -> String {
    format!("{}/{}", short(s.read), short(s.written))
}

/// At most five characters.
fn short(n: u64) -> String {
    match n {
        0..=99_999 => n.to_string(),
        100_000..=9_999_999 => format!("{}k", n / 1000),
        _ => format!("{}M", n / 1_000_000),
    }
}

fn age(now: Time, then: Time) -> String {
    let seconds = now.secs.saturating_sub(then.secs).max(0);
    match seconds {
        0..=99 => format!("{seconds}s"),
        100..=5_999 => format!("{}m{:02}", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_base::TxnId;
    use systx_protocol::{
        Behind, Conflict, Counts, GuardedActivity, Opponent, Part, Remembered, State, WorksetSizes,
    };

    fn volume(committed: u64, transactions: Vec<Activity>) -> VolumeActivity {
        let counts = Counts { begun: 7, committed, lost: 1, ..Counts::default() };
        VolumeActivity {
            volume: "/srv".into(),
            open: true,
            stopped: None,
            counts,
            guarded: vec![],
            runs: vec![],
            transactions,
            line: vec![],
            remembered: Remembered::default(),
        }
    }

    fn activity() -> Activity {
        Activity {
            id: TxnId(0xabc),
            state: State::Open,
            argv: vec!["make".into(), "all".into()],
            begun: Time { secs: 1000, nanos: 0 },
            isolation: Isolation::Serializable,
            read_only: false,
            workset: WorksetSizes {
                entries: Sides { read: 12, written: 3 },
                pages: Sides { read: 123_456, written: 0 },
                ..WorksetSizes::default()
            },
            waits_for: Some(TxnId(0xdef)),
            conflict: None,
        }
    }

    fn conflict() -> Conflict {
        Conflict {
            path: "/srv/f".into(),
            part: Part::Data,
            opponent: Opponent::Transaction {
                id: TxnId(1),
                argv: vec!["x".into()],
                ended: false,
                uid: None,
            },
            stale_only: false,
            stale: vec![],
        }
    }

    #[test]
    fn rates_are_differences_of_one_daemon() {
        let at = |n| [volume(n, vec![])];
        assert_eq!(rates(&at(10), &at(16), 2.0), [Some(3.0)]);
        assert_eq!(rates(&at(10), &at(4), 2.0), [None], "another daemon");
        assert_eq!(rates(&[], &at(4), 2.0), [None]);
        assert_eq!(rates(&at(1), &at(2), 0.0), [None]);
    }

    #[test]
    fn the_picture_has_every_transaction_with_what_it_touched_and_waits_for() {
        let mut lost = activity();
        lost.state = State::Doomed;
        lost.conflict = Some(conflict());
        let now = Time { secs: 1130, nanos: 0 };
        let lines = lines(&[volume(6, vec![activity(), lost])], &[Some(1.25)], now);
        let all = lines.join("\n");
        assert!(all.starts_with("systx: 2 transactions, 1 volume "), "{all}");
        assert!(
            all.contains("/srv: 1.2 commits/s; 7 begun, 6 committed, 0 aborted, 1 lost;"),
            "{all}"
        );
        for part in ["00000abc", "open", "2m10", "12/3", "123k/0", "make all", "serializable"] {
            assert!(lines[4].contains(part), "{part} in {}", lines[4]);
        }
        assert!(lines[5].contains("waits for the commit of 00000def"), "{all}");
        assert!(lines[8].contains("lost on /srv/f to transaction 00000001 (x)"), "{all}");
        let column = |line: &str, what: &str| line.find(what).expect("there") + what.len();
        assert_eq!(column(&lines[3], "NAMES"), column(&lines[4], "12/3"), "columns are straight");
        assert_eq!(column(&lines[3], "PAGES"), column(&lines[4], "123k/0"));
    }

    #[test]
    fn who_is_in_line_is_shown_with_what_for_and_behind_whom_also_without_a_transaction() {
        let behind = |by| Some(Behind { path: "/srv/f".into(), by });
        let waiting = |position, behind| InLine {
            position,
            pid: 4711,
            tid: 4712,
            argv: vec!["mv".into(), "a".into()],
            since: Time { secs: 1000, nanos: 0 },
            behind,
        };
        let mut volume = volume(0, vec![]);
        volume.line = vec![
            waiting(1, None),
            waiting(2, behind(Before::Transaction(TxnId(0xabc)))),
            waiting(3, behind(Before::Position(2))),
        ];
        let lines = lines(&[volume], &[], Time { secs: 1130, nanos: 0 });
        assert_eq!(lines.len(), 7, "{lines:?}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&lines[4]), "1 4711 2m10 mv a about to begin");
        let second = "2 4711 2m10 mv a waits for /srv/f, behind transaction 00000abc";
        assert_eq!(words(&lines[5]), second);
        assert_eq!(words(&lines[6]), "3 4711 2m10 mv a waits for /srv/f, behind number 2 in line");
    }

    #[test]
    fn threads_that_lost_are_shown_with_how_often_and_for_whom_they_wait() {
        let thread = |tid, lost, held_for| ThreadActivity {
            pid: 4711,
            tid,
            argv: vec!["server".into()],
            ended: 40,
            lost,
            held: 3,
            losses_per_mille: 578,
            size: 9,
            waited_us: 2450,
            keeps_losing: lost > 3,
            held_for,
        };
        let mut volume = volume(0, vec![]);
        volume.guarded = vec![GuardedActivity {
            dir: "/srv/g".into(),
            stall_ms: 500,
            nodes: 1,
            seats: 3,
            members: 0,
            threads: vec![thread(2, 9, Some(TxnId(0xabc))), thread(3, 1, None), thread(4, 0, None)],
        }];
        let lines = lines(&[volume], &[], Time { secs: 1130, nanos: 0 });
        assert_eq!(lines.len(), 6, "{lines:?}");
        assert_eq!(
            lines[4].trim(),
            "thread 2 (server): 9 of 40 attempts lost, lately 57 %; 3 held, lately 2.4 ms; \
             keeps losing; waits to begin for 00000abc"
        );
        assert!(lines[5].ends_with("lately 2.4 ms"), "{lines:?}");
    }

    #[test]
    fn runs_that_lost_are_shown_with_what_it_cost_and_whether_they_try_again() {
        let run = |pid, tries| RunActivity {
            pid,
            argv: vec!["make".into()],
            lost: 3,
            lost_us: 1_234_567,
            size: 240,
            waited_us: 12_000,
            tries,
            over: conflict(),
        };
        let mut volume = volume(0, vec![]);
        volume.runs = vec![run(7, Some(TxnId(0xabc))), run(8, None)];
        let lines = lines(&[volume], &[], Time { secs: 1130, nanos: 0 });
        let told = "3 attempts lost, 1234.5 ms of work; lately 240 objects, 12.0 ms before the \
                    next; last on /srv/f to transaction 00000001 (x)";
        let expected = [
            format!("  run 7 (make): {told}; tries as 00000abc"),
            format!("  run 8 (make): {told}; waits to try again"),
        ];
        assert_eq!(lines[3..], expected);
    }

    #[test]
    fn a_volume_that_has_stopped_says_why() {
        let stopped = VolumeActivity { stopped: Some("full".into()), ..volume(3, vec![]) };
        let lines = lines(&[stopped], &[None], Time { secs: 1000, nanos: 0 });
        assert!(lines[2].starts_with("/srv: ") && lines[3] == "  stopped: full", "{lines:?}");
    }

    #[test]
    fn nothing_open_is_one_line_per_volume() {
        let now = Time { secs: 0, nanos: 0 };
        assert_eq!(lines(&[], &[], now).len(), 1);
        let lines = lines(&[volume(0, vec![])], &[], now);
        assert_eq!(lines.len(), 3);
        assert!(lines[2].contains("- commits/s"));
    }
}
