//! The table in docs/SEMANTICS.md, "Who waits, and who loses": each row is played against the
//! engine.
//!
//! The words of a row are the test: what is not known to `side` fails.

#![allow(clippy::unwrap_used)]

use systx_base::{Oid, TxnId};
use systx_txn::{
    Access, BeginOptions, Caller, Claim, Claimant, Engine, ObjectRef, Part, Plain, Stall, Status,
};

const PAGE: &str = include_str!("../../../docs/SEMANTICS.md");
const HEAD: &str = "| the one that asks | the one that has it | then the first one |";

/// The one that has it, the one that asks, and one that others wait for.
const HAS: TxnId = TxnId(1);
const ASKS: TxnId = TxnId(2);
const FIRST: TxnId = TxnId(3);
const LAST: TxnId = TxnId(4);
const FILE: ObjectRef<'static> = ObjectRef::Pages { oid: Oid(10), first: 0, last: 3 };
const ANOTHER: ObjectRef<'static> = ObjectRef::Size(Oid(11));
const A_THIRD: ObjectRef<'static> = ObjectRef::Size(Oid(12));

/// A side of a row.
#[derive(Clone, Default, Debug)]
struct Side {
    writes: bool,
    plain: bool,
    older: bool,
    decided: bool,
    waits: bool,
    waited_for: bool,
    sleeps: bool,
    scope: bool,
    options: BeginOptions,
}

fn side(text: &str) -> Side {
    let mut side = Side::default();
    for word in text.split(", ") {
        match word {
            "reads" => side.writes = false,
            "writes" | "has written" => side.writes = true,
            "has read" => side.writes = false,
            "a program outside" => (side.plain, side.writes) = (true, true),
            "older" => side.older = true,
            "younger" => side.older = false,
            "aged" => side.options.age = 3,
            "urgent" => side.options.priority = -5,
            "a guest" => side.options.guest = true,
            "decided" => side.decided = true,
            "waits" => side.waits = true,
            "waited for" => side.waited_for = true,
            "sleeps" => side.sleeps = true,
            "in its scope" => side.scope = true,
            other => panic!("{other:?} in {text:?}"),
        }
    }
    side
}

fn begin(e: &Engine, id: TxnId, side: &Side) {
    if side.scope {
        let who = Claimant { id, client: 0, guest: side.options.guest };
        e.line_up(who, vec![Claim { part: Part::Inode(Oid(10)), write: true }], None);
        e.await_scope(id, std::time::Duration::ZERO).unwrap();
    }
    e.begin(id, side.options.clone());
    if side.sleeps {
        e.defer_while(id, || true);
    }
}

fn access(e: &Engine, id: TxnId, o: ObjectRef<'_>, writes: bool) -> Access {
    if writes { e.write(id, o) } else { e.read(id, o) }
}

/// What becomes of the one that asks.
fn play(asks: &Side, has: &Side) -> &'static str {
    let e = Engine::new();
    // Stronger than everybody, and weaker.
    e.begin(FIRST, BeginOptions { age: 9, ..BeginOptions::default() });
    if asks.older {
        begin(&e, ASKS, asks);
    }
    begin(&e, HAS, has);
    e.reserve(HAS);
    assert_eq!(access(&e, HAS, FILE, has.writes), Access::Granted);
    if !asks.older && !asks.plain {
        begin(&e, ASKS, asks);
    }
    e.begin(LAST, BeginOptions { priority: 19, guest: true, ..BeginOptions::default() });
    let mut waits = Vec::new();
    if has.waits {
        e.write(FIRST, ANOTHER);
        waits.push(e.stall(HAS, ANOTHER).unwrap());
    }
    if asks.waited_for {
        e.write(ASKS, A_THIRD);
        waits.push(e.stall(LAST, A_THIRD).unwrap());
    }
    if has.decided {
        e.decide(HAS).unwrap();
    }
    let has_lost = || e.status(HAS) == Some(Status::Doomed);
    if asks.plain {
        let by = Caller { pid: 7, ..Caller::default() };
        return match e.plain_mutation(&[FILE], by, Stall::Bounded) {
            Plain::Decided(_) if has_lost() => "wins",
            Plain::Decided(_) => "nobody loses",
            Plain::Wait(_) => "waits for the commit",
            Plain::Hold(_) => "waits for a time",
        };
    }
    if !asks.writes && e.stall(ASKS, FILE).is_some() {
        return "waits for a time";
    }
    match access(&e, ASKS, FILE, asks.writes) {
        Access::Granted if has_lost() => "wins",
        Access::Granted => "nobody loses",
        Access::Doomed => "loses",
        Access::Wait(_) => "waits for the commit",
    }
}

#[test]
fn the_table_of_who_waits_and_who_loses_is_so() {
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .skip_while(|line| *line != HEAD)
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 20, "the table is where it was: {rows:?}");
    for row in rows {
        let [asks, has, then] = row[..] else { panic!("{row:?}") };
        assert_eq!(play(&side(asks), &side(has)), then, "{asks} / {has}");
    }
}

/// A wait is bounded and counts for nothing: whoever would lose loses afterwards.
#[test]
fn nobody_wins_by_waiting() {
    let policies = [
        ("older", "younger"),
        ("younger", "older"),
        ("younger, urgent", "older"),
        ("younger, aged", "older, urgent"),
        ("older", "younger, aged"),
    ];
    for (asks, has) in policies {
        let writes = play(&side(&format!("writes, {asks}")), &side(&format!("has written, {has}")));
        let e = Engine::new();
        let (asks, has) = (side(asks), side(has));
        let mut order = [(HAS, &has), (ASKS, &asks)];
        if asks.older {
            order.reverse();
        }
        order.iter().for_each(|(id, side)| begin(&e, *id, side));
        e.write(HAS, FILE);
        // For as long as it may.
        drop(e.stall(ASKS, FILE));
        let reads = if e.read(ASKS, FILE) == Access::Granted { "wins" } else { "loses" };
        assert_eq!(reads, writes, "{asks:?} {has:?}");
    }
}
