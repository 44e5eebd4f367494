use super::*;
use crate::testing::{Ground, commit_of};
use crate::{Site, Stopped};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(60);

/// A commit that gives a file of the root another mode, decided.
fn decided(site: &Arc<Site>, id: u64, name: &str) -> Decided {
    let decided = commit_of(id, &[(site, name)]).reserve().and_then(|reserved| reserved.decide());
    decided.unwrap_or_else(|why| panic!("{id}: {why}"))
}

/// What is done with a commit when its record is written: it is put in its place, and told of.
fn placed(name: &'static str, to: &Sender<&'static str>) -> Then {
    let to = to.clone();
    Box::new(move |durable: Result<Durable, Stopped>| {
        let placed = durable.and_then(Durable::place).unwrap_or_else(|why| panic!("{name}: {why}"));
        // Before the release, for which whoever comes after it waits.
        to.send(name).unwrap();
        let _ = placed.release();
    })
}

#[test]
fn they_are_finished_in_their_order_and_a_durable_one_comes_after_those_before_it() {
    Ground::all(&["a", "b", "c", "d"]).iter().for_each(finished_in_order);
}

fn finished_in_order(ground: &Ground) {
    let volume = &ground.site;
    let (said, says) = channel();
    let relaxed = Relaxed::new();
    let give = |id, name, then: Then| {
        let decided = decided(volume, id, name);
        decided.relax();
        relaxed.finish(decided, then);
    };
    // The first one keeps the thread from the others.
    let (let_go, held) = channel::<()>();
    let first = placed("a", &said);
    give(
        1,
        "a",
        Box::new(move |written| {
            held.recv_timeout(HANG).unwrap();
            first(written);
        }),
    );
    give(2, "b", placed("b", &said));
    give(3, "c", placed("c", &said));
    let durable = decided(volume, 4, "d");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let placed = durable.durable().and_then(Durable::place).unwrap();
            let _ = placed.release();
            said.send("d").unwrap();
        });
        let early = says.recv_timeout(A_WHILE);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "before what came before it");
        let_go.send(()).unwrap();
    });
    let order: Vec<_> = (0..4).map(|_| says.recv_timeout(HANG).unwrap()).collect();
    assert_eq!(order, ["a", "b", "c", "d"]);
    assert_eq!(ground.history(), [1, 2, 3, 4], "records are in the same order");
    for name in ["a", "b", "c", "d"] {
        assert_eq!(ground.mode(name), 0o600, "{name}");
    }
}

#[test]
fn who_decides_one_too_many_waits() {
    let names: Vec<String> = (0..=MOST).map(|n| n.to_string()).collect();
    Ground::all(&names).iter().for_each(|ground| one_too_many(ground, &names));
}

fn one_too_many(ground: &Ground, names: &[String]) {
    let volume = &ground.site;
    let relaxed = Relaxed::new();
    let (said, says) = channel();
    let (let_go, held) = channel::<()>();
    let first = placed("first", &said);
    let mut then: Option<Then> = Some(Box::new(move |written| {
        held.recv_timeout(HANG).unwrap();
        first(written);
    }));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (id, name) in (1..).zip(names) {
                let decided = decided(volume, id, name);
                decided.relax();
                let then = then.take().unwrap_or_else(|| placed("other", &said));
                relaxed.finish(decided, then);
            }
            said.send("all").unwrap();
        });
        let early = says.recv_timeout(A_WHILE);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "{MOST} are under way");
        let_go.send(()).unwrap();
    });
    let words: Vec<_> = (0..MOST + 2).map(|_| says.recv_timeout(HANG).unwrap()).collect();
    assert_eq!(words[0], "first");
    assert_eq!(words.iter().filter(|word| **word == "other").count(), MOST);
}

#[test]
fn a_commit_over_several_file_systems_waits_for_relaxed_ones_before_it() {
    // Any two kinds of store, and either of them may decide.
    for (one, other) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        let grounds = Ground::all(&["a", "b", "c", "x"]);
        both_wait([&grounds[one], &grounds[other]]);
    }
}

fn both_wait(grounds: [&Ground; 2]) {
    let sites = grounds.map(|ground| Arc::clone(&ground.site));
    let (relaxed, (said, says)) = (Relaxed::new(), channel());
    // When it is in its place, the first one keeps the thread from the second.
    let (let_go, held) = channel::<()>();
    let first = placed("first", &said);
    let then: Then = Box::new(move |durable| {
        first(durable);
        held.recv_timeout(HANG).unwrap();
    });
    for (id, name, then) in [(1, "a", then), (2, "b", placed("second", &said))] {
        let decided = decided(&sites[0], id, name);
        decided.relax();
        relaxed.finish(decided, then);
    }
    assert_eq!(says.recv_timeout(HANG), Ok("first"));
    let both = commit_of(3, &[(&sites[0], "c"), (&sites[1], "x")]);
    let both = both.reserve().and_then(|reserved| reserved.decide()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let placed = both.durable().and_then(Durable::place).unwrap();
            let _ = placed.release();
            said.send("both").unwrap();
        });
        let early = says.recv_timeout(A_WHILE);
        assert_eq!(early, Err(RecvTimeoutError::Timeout), "before what came before it");
        let_go.send(()).unwrap();
    });
    let order: Vec<_> = (0..2).map(|_| says.recv_timeout(HANG).unwrap()).collect();
    assert_eq!(order, ["second", "both"]);
}
