//! The engine under real threads.

use super::*;
use crate::{Caller, Plain, Stall};

// ---- threads ----

/// A value that can be caught half-written.
#[derive(Default)]
struct Counter(AtomicU64, AtomicU64);

/// Threads increment shared counters in transactions, over and over, with everything that can go
/// wrong: losing, waiting, failing commits.  Every wait ends, no increment is lost, and nobody who
/// has not been told of a loss has seen half a commit.
#[test]
fn threads_lose_neither_wake_ups_nor_updates() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 300;
    const COUNTERS: usize = 3;
    let e = Arc::new(Engine::new());
    let counters: Arc<[Counter; COUNTERS]> = Arc::default();
    let ids = Arc::new(AtomicU64::new(1));
    let threads: Vec<_> = (0..THREADS)
        .map(|seed| {
            let (e, counters, ids) = (e.clone(), counters.clone(), ids.clone());
            std::thread::spawn(move || {
                for round in 0..ROUNDS {
                    let which = ((seed + round * round) % COUNTERS as u64) as usize;
                    increment(&e, &counters[which], which, &ids, (seed + round) % 7 == 0);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let total: u64 = counters.iter().map(|c| c.0.load(Ordering::SeqCst)).sum();
    assert_eq!(total, THREADS * ROUNDS);
    assert_eq!((e.stats().transactions, e.stats().inodes), (0, 0));
    check(&e);
}

/// A failing thread must not leave the others waiting: then the test would hang and not fail.
struct EndOnPanic<'a>(&'a Engine, TxnId);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(self.1);
        }
    }
}

fn increment(e: &Engine, counter: &Counter, which: usize, ids: &AtomicU64, fail_once: bool) {
    let object = ObjectRef::Size(Oid(which as u64));
    let (mut first, mut age, mut fail) = (None, 0, fail_once);
    loop {
        let t = TxnId(ids.fetch_add(1, Ordering::Relaxed));
        let o = BeginOptions { timestamp: first, age, ..BeginOptions::default() };
        let Timestamp(began) = e.begin(t, o);
        first = first.or(Some(began));
        let lost = Arc::new(AtomicBool::new(false));
        let flag = lost.clone();
        e.on_doom(t, move |_, _| flag.store(true, Ordering::SeqCst));
        let _failure = EndOnPanic(e, t);
        let ask = |ask: fn(&Engine, TxnId, ObjectRef<'_>) -> Access| loop {
            match ask(e, t, object) {
                Access::Wait(winner) => e.wait_installed(winner),
                answer => return answer == Access::Granted,
            }
        };
        if ask(Engine::read) {
            let seen = counter.0.load(Ordering::SeqCst);
            std::thread::yield_now();
            let again = counter.1.load(Ordering::SeqCst);
            assert!(lost.load(Ordering::SeqCst) || seen == again, "half a commit was seen");
            if ask(Engine::write) && e.decide(t).is_ok() && !std::mem::take(&mut fail) {
                // Install: nobody else may have done so since the read.
                assert_eq!(counter.0.swap(seen + 1, Ordering::SeqCst), seen);
                std::thread::yield_now();
                assert_eq!(counter.1.swap(seen + 1, Ordering::SeqCst), seen);
                e.installed(t);
                return;
            }
        }
        age += 1;
        e.abort(t);
    }
}

/// A small generator: a run can be repeated with the same choices, whatever the scheduler does.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Gives others the processor now and then, so that every place is one where a thread may stop.
fn perhaps_yield(choices: &mut Choices) {
    if choices.below(3) == 0 {
        std::thread::yield_now();
    }
}

/// Both numbers are raised by one mutation.
type Pair = [AtomicU64; 2];

fn mutate(e: &Engine, pairs: &[Pair], choices: &mut Choices) {
    let which = choices.below(pairs.len() as u64) as usize;
    let object = [ObjectRef::Size(Oid(which as u64))];
    let guard = loop {
        match e.plain_mutation(&object, Caller::new(1, 0, b"stress"), Stall::Never) {
            Plain::Decided(guard) => break guard,
            Plain::Wait(winner) => e.wait_installed(winner),
            Plain::Hold(_) => unreachable!("it may not be held"),
        }
    };
    pairs[which][0].fetch_add(1, Ordering::SeqCst);
    perhaps_yield(choices);
    pairs[which][1].fetch_add(1, Ordering::SeqCst);
    drop(guard);
}

/// Reads two pairs; what it saw counts if it has not lost until then.  True if so.
fn look(e: &Engine, pairs: &[Pair], id: TxnId, choices: &mut Choices) -> bool {
    e.begin(id, BeginOptions::default());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let which = choices.below(pairs.len() as u64) as usize;
        let access = loop {
            match e.read(id, ObjectRef::Size(Oid(which as u64))) {
                Access::Wait(winner) => e.wait_installed(winner),
                answer => break answer,
            }
        };
        if access == Access::Granted {
            seen.push((which, pairs[which].each_ref().map(|n| n.load(Ordering::SeqCst))));
            perhaps_yield(choices);
        }
    }
    let again: Vec<_> = seen
        .iter()
        .map(|(which, _)| (*which, pairs[*which].each_ref().map(|n| n.load(Ordering::SeqCst))))
        .collect();
    let counts = e.decide(id).is_ok();
    e.installed(id);
    e.abort(id);
    if counts {
        assert!(seen.iter().all(|(_, [a, b])| a == b), "half a mutation was seen: {seen:?}");
        assert_eq!(seen, again, "a mutation went past a transaction that held the object");
    }
    counts
}

/// Transactions begin and end, one at a time, so that the gate opens and closes all the time, while
/// mutations go through it. Nobody sees half of one, no mutation is lost, everybody comes to an
/// end.
#[test]
fn no_transaction_begins_in_the_middle_of_a_mutation() {
    const MUTATORS: u64 = 3;
    const MUTATIONS: u64 = 20_000;
    const PAIRS: usize = 3;
    let e = Arc::new(Engine::new());
    let pairs: Arc<[Pair; PAIRS]> = Arc::default();
    let busy = Arc::new(AtomicU64::new(MUTATORS));
    let mutators: Vec<_> = (0..MUTATORS)
        .map(|seed| {
            let (e, pairs, busy) = (e.clone(), pairs.clone(), busy.clone());
            std::thread::spawn(move || {
                let mut choices = Choices(seed);
                for _ in 0..MUTATIONS {
                    mutate(&e, &pairs[..], &mut choices);
                }
                busy.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    let lookers: Vec<_> = (0..2)
        .map(|seed| {
            let (e, pairs, busy) = (e.clone(), pairs.clone(), busy.clone());
            std::thread::spawn(move || {
                let (mut choices, mut id, mut counted) = (Choices(100 + seed), 2 + seed, 0);
                while busy.load(Ordering::SeqCst) > 0 {
                    counted += u64::from(look(&e, &pairs[..], TxnId(id), &mut choices));
                    id += 2;
                    perhaps_yield(&mut choices);
                }
                counted
            })
        })
        .collect();
    for thread in mutators {
        thread.join().unwrap();
    }
    let counted: u64 = lookers.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(counted > 0, "no transaction got through");
    let sum = |half: usize| pairs.iter().map(|p| p[half].load(Ordering::SeqCst)).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (MUTATORS * MUTATIONS, MUTATORS * MUTATIONS));
    assert_eq!((e.stats().transactions, e.stats().inodes), (0, 0));
    assert!(!e.gate.is_closed());
    check(&e);
}
