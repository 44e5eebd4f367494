//! The table against naive models: what Linux says of record locks, byte by byte, and what several
//! views see of each other.

use super::holders::Holders;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use systx_store::host_locks::LockRange;

const BYTES: u64 = 12;

/// Who holds which byte, shared (false) or exclusive.
#[derive(Default)]
struct Model(BTreeMap<(u8, u64), bool>);

impl Model {
    fn in_the_way(&self, owner: u8, asked: &LockRange) -> bool {
        let whole = owner >= 4;
        self.0.iter().any(|((other, byte), exclusive)| {
            *other != owner
                && (*other >= 4) == whole
                && (asked.start..=asked.end).contains(byte)
                && (*exclusive || asked.exclusive)
        })
    }
    fn clear(&mut self, owner: u8, start: u64, end: u64) {
        self.0.retain(|(other, byte), _| *other != owner || *byte < start || *byte > end);
    }
    fn set(&mut self, owner: u8, range: &LockRange) {
        for byte in range.start..=range.end {
            self.0.insert((owner, byte), range.exclusive);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(u8, LockRange),
    Clear(u8, u64, u64),
    Remove(u8),
}

/// Owners 0 to 3 lock ranges; 4 and 5 do by flock(2).
fn step() -> impl Strategy<Value = Step> {
    let range = (0..BYTES, 0..BYTES, any::<bool>()).prop_map(|(a, b, exclusive)| LockRange {
        start: a.min(b),
        end: a.max(b),
        exclusive,
    });
    prop_oneof![
        6 => (0u8..6, range).prop_map(|(owner, range)| Step::Set(owner, range)),
        3 => (0u8..6, 0..BYTES, 0..BYTES).prop_map(|(o, a, b)| Step::Clear(o, a.min(b), a.max(b))),
        1 => (0u8..6).prop_map(Step::Remove),
    ]
}

fn class(owner: u8) -> Class {
    match owner {
        0 | 1 => Class::Process,
        2 | 3 => Class::Description,
        _ => Class::Whole,
    }
}

/// What the table says that is held, byte by byte; ranges are apart and as long as they can be.
fn held(table: &Holders<u8>) -> BTreeMap<(u8, u64), bool> {
    let mut bytes = BTreeMap::new();
    for owner in 0..6 {
        let mut last: Option<LockRange> = None;
        for range in table.ranges(owner).iter().flat_map(|holder| holder.iter()) {
            if let Some(last) = last {
                assert!(last.end < range.start, "{last:?} {range:?}");
                let apart = last.end + 1 < range.start || last.exclusive != range.exclusive;
                assert!(apart, "{last:?} and {range:?} are one");
            }
            for byte in range.start..=range.end {
                bytes.insert((owner, byte), range.exclusive);
            }
            last = Some(range);
        }
    }
    bytes
}

proptest! {
    #[test]
    fn the_table_says_what_a_table_of_bytes_says(
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let (mut table, mut model) = (Holders::new(), Model::default());
        for step in steps {
            match step {
                Step::Set(owner, range) => {
                    let found = table.in_the_way(owner, owner >= 4, &range);
                    prop_assert_eq!(found.is_some(), model.in_the_way(owner, &range));
                    if let Some((holder, by)) = found {
                        prop_assert!(holder.owner != owner);
                        prop_assert!(by.start <= range.end && range.start <= by.end);
                        prop_assert!(by.exclusive || range.exclusive);
                        let there = model.0.get(&(holder.owner, by.start));
                        prop_assert_eq!(there, Some(&by.exclusive));
                        continue;
                    }
                    table.set(owner, u32::from(owner), class(owner), range);
                    model.set(owner, &range);
                }
                Step::Clear(owner, start, end) => {
                    table.clear(owner, start, end);
                    model.clear(owner, start, end);
                }
                Step::Remove(owner) => {
                    table.remove(owner);
                    model.clear(owner, 0, u64::MAX);
                }
            }
            prop_assert_eq!(&held(&table), &model.0);
        }
    }
}

// ---- several views ---------------------------------------------------------------------------

/// A view over one file, without one.
struct Views {
    file: LockFile,
    views: [Arc<Locks>; 2],
}

const NODE: NodeId = NodeId(7);

/// Told from outside.
struct Told {
    lives: AtomicBool,
    class: Class,
}

impl Taken for Told {
    fn lives(&self) -> bool {
        self.lives.load(SeqCst)
    }
    fn class(&self) -> Option<Class> {
        Some(self.class)
    }
}

/// Hands out what the test has made.
struct Looks(Arc<dyn Taken>);

impl Openings for Looks {
    fn taken(&self, _: &Asker, _: Option<Arc<dyn Taken>>) -> Arc<dyn Taken> {
        self.0.clone()
    }
}

fn told(class: Class) -> Arc<Told> {
    Arc::new(Told { lives: AtomicBool::new(true), class })
}

fn lock(pid: u32, kind: LockKind, (start, end): (u64, u64)) -> Lock {
    Lock { owner: u64::from(pid), pid, start, end, kind, flock: false, description: false }
}

const WRITE: LockKind = LockKind::Exclusive;
const ALL: (u64, u64) = (0, u64::MAX);

impl Views {
    fn new() -> Views {
        let file = LockFile::unnamed().expect("memfd");
        Views { file, views: [Locks::new(), Locks::new()] }
    }

    fn open(&self) -> Reply<LockFile> {
        self.file.another().map_err(|_| Errno::IO)
    }

    fn ask(
        &self,
        view: usize,
        lock: Lock,
        how: (Option<&Arc<Told>>, Option<&Arc<Wait>>),
    ) -> Reply<()> {
        let (told, wait) = how;
        let openings = told.map(|told| Arc::new(Looks(told.clone())) as Arc<dyn Openings>);
        let ask = Ask { node: NODE, lock, ino: 1, openings, wait };
        self.views[view].set(&ask, &|| self.open())
    }

    fn set(&self, view: usize, lock: Lock) -> Reply<()> {
        self.ask(view, lock, (None, None))
    }

    /// The process that is in the way of process 99.
    fn holder(&self, view: usize, range: (u64, u64)) -> Option<u32> {
        let found = self.views[view].test(NODE, &lock(99, WRITE, range), &|| self.open());
        found.expect("a test").map(|found| found.pid)
    }
}

/// Nobody outside is named, and neither is a description.
#[test]
fn the_process_that_is_in_the_way_is_named_across_views() {
    let views = Views::new();
    views.set(0, lock(11, WRITE, (0, 9))).expect("free");
    assert_eq!(views.set(1, lock(12, WRITE, (5, 20))), Err(Errno::AGAIN));
    views.set(1, lock(12, WRITE, (10, 20))).expect("beside");
    for view in 0..2 {
        assert_eq!(views.holder(view, (3, 3)), Some(11));
        assert_eq!(views.holder(view, (15, 15)), Some(12));
        assert_eq!(views.holder(view, (21, 99)), None);
    }
    let description = Lock { description: true, ..lock(13, WRITE, (30, 30)) };
    views.set(0, description).expect("free");
    assert_eq!(views.holder(1, (30, 30)), Some(0));
    let outside = views.open().expect("open");
    assert!(outside.set(LockRange { start: 40, end: 40, exclusive: true }).expect("lock"));
    assert_eq!(views.holder(1, (40, 40)), Some(0));
    assert_eq!(views.set(0, lock(11, WRITE, (40, 40))), Err(Errno::AGAIN));
    views.views[0].clear(NODE, &lock(11, LockKind::Unlock, (0, 4))).expect("a part");
    assert_eq!((views.holder(1, (4, 4)), views.holder(1, (5, 5))), (None, Some(11)));
    views.views[0].end();
    assert_eq!(views.holder(1, (0, 9)), None);
    assert!(outside.set(LockRange { start: 0, end: 9, exclusive: true }).expect("lock"));
}

#[test]
fn a_wait_that_closes_a_circle_across_views_is_refused() {
    let (views, others) = (Views::new(), Views::new());
    let (p, q) = (u32::MAX - 21, u32::MAX - 22);
    let (a, b) = (Wait::new(|| ()), Wait::new(|| ()));
    views.set(0, lock(p, WRITE, ALL)).expect("free");
    others.set(1, lock(q, WRITE, ALL)).expect("free");
    let waits =
        |views: &Views, view, pid, wait| views.ask(view, lock(pid, WRITE, ALL), (None, Some(wait)));
    assert_eq!(waits(&others, 0, p, &a), Err(Errno::AGAIN));
    assert_eq!(waits(&views, 1, q, &b), Err(Errno::DEADLK));
    // Who has let go is waited for no more, before it asks again.
    views.views[0].clear(NODE, &lock(p, LockKind::Unlock, ALL)).expect("unlock");
    assert_eq!(waits(&views, 1, q, &b), Ok(()));
    others.views[1].clear(NODE, &lock(q, LockKind::Unlock, ALL)).expect("unlock");
    assert_eq!(waits(&others, 0, p, &a), Ok(()));
    // Those of descriptions wait, as in the kernel.
    let (views, others) = (Views::new(), Views::new());
    let by = |pid| Lock { description: true, ..lock(pid, WRITE, ALL) };
    views.set(0, by(p)).expect("free");
    others.set(1, by(q)).expect("free");
    let (a, b) = (Wait::new(|| ()), Wait::new(|| ()));
    assert_eq!(others.ask(0, by(p), (None, Some(&a))), Err(Errno::AGAIN));
    assert_eq!(views.ask(1, by(q), (None, Some(&b))), Err(Errno::AGAIN));
}

#[test]
fn a_waiter_is_woken_by_every_kind_of_release() {
    let views = Views::new();
    let woken = Arc::new(AtomicUsize::new(0));
    let count = woken.clone();
    let wait = Wait::new(move || _ = count.fetch_add(1, SeqCst));
    let asks = |expected| {
        let got = views.ask(1, lock(2, LockKind::Shared, ALL), (None, Some(&wait)));
        assert_eq!(got, expected);
    };
    let mut times = 0;
    let releases: [&dyn Fn(); 4] = [
        &|| views.views[0].clear(NODE, &lock(1, LockKind::Unlock, ALL)).expect("all"),
        &|| views.views[0].clear(NODE, &lock(1, LockKind::Unlock, (0, 1 << 62))).expect("a part"),
        &|| views.set(0, lock(1, LockKind::Shared, ALL)).expect("a step down"),
        &|| views.views[0].end(),
    ];
    for release in releases {
        views.views[1].end();
        views.set(0, lock(1, WRITE, ALL)).expect("free");
        asks(Err(Errno::AGAIN));
        assert_eq!(woken.load(SeqCst), times);
        release();
        times += 1;
        assert_eq!(woken.load(SeqCst), times);
    }
}

/// The look of somebody who wants the lock is of a moment before the owner closed, opened and
/// locked anew.
#[test]
fn what_was_locked_anew_since_the_look_stays() {
    let views = Views::new();
    let first = told(Class::Process);
    views.ask(0, lock(1, WRITE, (0, 9)), (Some(&first), None)).expect("free");
    // Closed, and opened again: the next request finds out, whoever makes it.
    first.lives.store(false, SeqCst);
    let second = told(Class::Process);
    views.ask(0, lock(1, WRITE, (20, 29)), (Some(&second), None)).expect("free");
    assert_eq!(views.holder(1, (0, 9)), None, "what it held before the close");
    assert_eq!(views.views[1].sweep() + views.views[0].sweep(), 0);
    assert_eq!(views.set(1, lock(2, WRITE, (20, 29))), Err(Errno::AGAIN));
    second.lives.store(false, SeqCst);
    assert_eq!(views.set(1, lock(2, WRITE, (20, 29))), Ok(()), "a contender looks by itself");
}

/// What an owner has closed, where something happens in the middle of the first look.
struct Meanwhile(Mutex<Option<Happens>>);
type Happens = Box<dyn FnOnce() + Send>;

impl Taken for Meanwhile {
    fn lives(&self) -> bool {
        let happens = self.0.lock().take();
        if let Some(happens) = happens {
            happens();
        }
        false
    }
    fn class(&self) -> Option<Class> {
        Some(Class::Process)
    }
}

/// A lock of all by process 1, in the view 0; `happens` in the middle of the first look at it.
fn closed(views: &Arc<Views>, happens: impl FnOnce(&Views) + Send + 'static) {
    let theirs = Arc::downgrade(views);
    let happens: Happens = Box::new(move || happens(&theirs.upgrade().expect("views")));
    let taken: Arc<dyn Taken> = Arc::new(Meanwhile(Mutex::new(rank::LEAF, Some(happens))));
    let openings = Some(Arc::new(Looks(taken)) as Arc<dyn Openings>);
    let ask = Ask { node: NODE, lock: lock(1, WRITE, ALL), ino: 1, openings, wait: None };
    views.views[0].set(&ask, &|| views.open()).expect("free");
}

/// The same in the middle of a look.
#[test]
fn a_lock_taken_during_a_look_is_not_ended_by_it() {
    let views = Arc::new(Views::new());
    let again = told(Class::Process);
    closed(&views, move |views| {
        views.ask(0, lock(1, WRITE, ALL), (Some(&again), None)).expect("its own");
    });
    assert_eq!(views.views[0].sweep(), 0);
    assert_eq!(views.set(1, lock(2, WRITE, ALL)), Err(Errno::AGAIN));
}

/// Two look at the same time, and the other one ends what has closed.
#[test]
fn what_another_look_has_ended_is_not_in_the_way() {
    let views = Arc::new(Views::new());
    let other_look = |views: &Views| assert_eq!(views.views[0].sweep(), 1);
    closed(&views, other_look);
    assert_eq!(views.holder(1, ALL), None);
    closed(&views, other_look);
    assert_eq!(views.set(1, lock(2, WRITE, ALL)), Ok(()));
}

/// By flock(2) a lock is given up before it becomes another one.
#[test]
fn a_step_up_by_flock_that_fails_leaves_nothing() {
    let views = Views::new();
    let flock = |pid, kind| Lock { flock: true, ..lock(pid, kind, ALL) };
    views.set(0, flock(1, LockKind::Shared)).expect("free");
    views.set(1, flock(2, LockKind::Shared)).expect("shared");
    assert_eq!(views.set(0, flock(1, WRITE)), Err(Errno::AGAIN));
    assert_eq!(views.set(1, flock(2, WRITE)), Ok(()));
    assert_eq!(views.set(0, lock(3, WRITE, ALL)), Ok(()), "of another kind");
}

#[test]
fn locks_move_to_the_file_that_takes_the_place_of_theirs() {
    let (views, place) = (Views::new(), LockFile::unnamed().expect("memfd"));
    views.set(0, lock(1, WRITE, (0, 9))).expect("free");
    views.set(0, lock(1, LockKind::Shared, (20, 29))).expect("free");
    views.views[0].move_to(&|_| place.another().ok());
    let old = views.open().expect("open");
    assert!(old.set(LockRange { start: 0, end: 99, exclusive: true }).expect("lock"));
    let (new, range) = (place.another().expect("open"), |start, exclusive| LockRange {
        start,
        end: start,
        exclusive,
    });
    assert!(!new.set(range(5, false)).expect("in the way"));
    assert!(!new.set(range(25, true)).expect("in the way"));
    assert!(new.set(range(25, false)).expect("shared"));
    views.views[0].clear(NODE, &lock(1, LockKind::Unlock, ALL)).expect("unlock");
    assert!(new.set(range(5, true)).expect("free"));
}

// ---- the locks of a commit -------------------------------------------------------------------

fn byte(at: u64) -> LockRange {
    LockRange { start: at, end: at, exclusive: true }
}

/// Locks in the first view, and notes that.
fn section(views: &Views, sections: &mut Sections, lock: Lock) {
    views.set(0, lock).expect("free");
    sections.note(NODE, &lock);
}

#[test]
fn a_commit_has_what_was_locked_for_writing_and_what_has_ended_goes_over_to_it() {
    for flock in [false, true] {
        let (views, mut sections) = (Views::new(), Sections::default());
        let lock = |pid, kind| Lock { flock, ..lock(pid, kind, (0, 9)) };
        let (inside, outside) = (&views.views[0], views.open().expect("open"));
        let gets = || match flock {
            true => outside.flock(Some(true)).expect("asked"),
            false => outside.set(byte(5)).expect("asked"),
        };
        section(&views, &mut sections, lock(1, WRITE));
        let again = |over| inside.lock_again(&sections, over, &|_| views.open());
        for over in [false, true] {
            let held = again(over).expect("its own");
            assert!(!gets());
            assert_eq!(inside.count(), usize::from(!over), "its owner, if it lives");
            drop(held);
            assert_eq!(gets(), over);
        }
        assert_eq!(again(true).err(), Some(NODE), "somebody outside is at work");
        outside.release();
        let held = again(true).expect("free");
        assert!(!gets());
        drop(held);
        assert!(gets());
    }
}

#[test]
fn what_is_locked_in_another_transaction_is_not_waited_for_but_by_a_plain_program_it_is() {
    let (views, mut sections) = (Views::new(), Sections::default());
    section(&views, &mut sections, lock(1, WRITE, (0, 9)));
    views.views[0].end();
    let again = || views.views[0].lock_again(&sections, true, &|_| views.open()).map(drop);
    views.set(1, lock(2, WRITE, (5, 5))).expect("free");
    assert_eq!(again(), Ok(()));
    views.views[1].end();
    let plain = PlainLocks::default();
    plain.set(NODE, lock(3, LockKind::Shared, (5, 5)), None, &|| views.open()).expect("free");
    assert_eq!(again(), Err(NODE));
}

#[test]
fn what_was_locked_for_reading_is_not_locked_by_a_commit_and_many_ranges_are_one() {
    let (views, mut sections) = (Views::new(), Sections::default());
    let outside = views.open().expect("open");
    section(&views, &mut sections, lock(1, LockKind::Shared, (0, 9)));
    let held = views.views[0].lock_again(&sections, true, &|_| views.open()).ok();
    assert!(outside.set(byte(5)).expect("asked"));
    outside.release();
    drop(held);
    (10..75).for_each(|n| section(&views, &mut sections, lock(1, WRITE, (2 * n, 2 * n))));
    views.views[0].end();
    let held = views.views[0].lock_again(&sections, true, &|_| views.open()).ok();
    let free: Vec<u64> = (0..300).filter(|at| outside.set(byte(*at)).expect("asked")).collect();
    assert_eq!(free, (0..20).chain(149..300).collect::<Vec<_>>());
    drop(held);
}
