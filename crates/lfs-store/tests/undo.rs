//! Undo moves blocks between a file and what is kept of it: what that costs, and that everything
//! which counts blocks, keeps them or looks back at them goes on as before.

#![allow(clippy::unwrap_used)]

mod common;

use common::volume::{clock, make, meta, open, open_among, write};
use common::{Dump, Sets, bytes, dump, patch};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use systx_base::{Kind, TxnId};
use systx_lfs::device::{Device, MemDevice};
use systx_lfs::format::{BLOCK, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Greedy, Limits, Ops, Shape, Volume, receive, send};
use systx_lfs_store::VolumeStore;
use systx_store::writeset::{Content, Data, Extent, WriteSet};
use systx_store::{Joint, Keep, Member, Outcome, Outcomes, Ready, Store, TxnKind, UndoError};

const PAGE: u64 = BLOCK as u64;
/// Blocks of the file that is overwritten.
const PAGES: u64 = 1024;

/// Counts the blocks that are written.
struct Counting {
    dev: MemDevice,
    blocks: AtomicU64,
}

impl Counting {
    fn new(blocks: usize) -> Arc<Counting> {
        Arc::new(Counting { dev: MemDevice::new(blocks), blocks: AtomicU64::new(0) })
    }

    /// Those of the log until `act` is durable.
    fn written(&self, store: &VolumeStore, act: impl FnOnce()) -> u64 {
        store.volume().checkpoint().unwrap();
        let before = self.blocks.load(Ordering::Relaxed);
        act();
        store.volume().checkpoint().unwrap();
        self.blocks.load(Ordering::Relaxed) - before
    }
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.dev.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.dev.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.blocks.fetch_add(from.len() as u64 / PAGE, Ordering::Relaxed);
        self.dev.write(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.write(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.dev.sync()
    }
}

/// Commits as a transaction of a kind, and applies it.
fn commit_as(store: &VolumeStore, txn: u64, set: WriteSet, kind: TxnKind) {
    let reservation = store.reserve(&set).unwrap();
    let meta = systx_store::CommitMeta { kind, ..meta(TxnId(txn)) };
    let done = store.commit_group(vec![Ready { reservation, set, meta }]);
    let lsn = done.into_iter().next().unwrap().unwrap().lsn;
    store.apply(lsn).unwrap();
}

/// Takes `of` back as transaction `txn`.
fn undo(store: &VolumeStore, of: u64, txn: u64) {
    let undo = store.undo_set(TxnId(of)).unwrap();
    commit_as(store, txn, undo.set.clone(), TxnKind::Undo { of: TxnId(of) });
}

fn old(n: usize) -> Vec<u8> {
    bytes(1, (PAGES * PAGE) as usize - n)
}

/// A volume with a large file, of which all but the first and last 100 bytes are overwritten by
/// transaction 2.
fn overwritten(dev: Arc<dyn Device>) -> (Arc<VolumeStore>, Dump, Dump) {
    make(dev.clone());
    let store = open(dev);
    let mut sets = Sets::new(&store);
    sets.file("/f", &old(1000));
    write(&store, TxnId(1), sets.set);
    let before = dump(&store);
    overwrite(&store, 2, 2);
    let after = dump(&store);
    assert!(before != after);
    (store, before, after)
}

fn overwrite(store: &VolumeStore, txn: u64, seed: u64) {
    let mut sets = Sets::new(store);
    let len = PAGES * PAGE - 1000;
    sets.object("/f").content = patch(len, 100, &bytes(seed, len as usize - 200));
    write(store, TxnId(txn), sets.set);
}

fn sound(store: Arc<VolumeStore>, dev: Arc<dyn Device>) {
    store.close().unwrap();
    assert!(Arc::into_inner(store).is_some(), "nobody has the store");
    assert_eq!(check(dev, clock()).unwrap().findings, []);
}

/// What transaction `txn` is said to have found and left.
fn sides(store: &VolumeStore, txn: u64) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let past = store.look_back(TxnId(txn)).unwrap().unwrap().remove(0);
    let read = |side: &Option<systx_store::PastSide>| {
        side.as_ref().and_then(|side| store.read_back(side, usize::MAX).unwrap())
    };
    (read(&past.old), read(&past.new))
}

/// Each has met the same version of the file.  Which of them is seen first is chance; which is
/// taken back first is not, as ever.
#[test]
fn what_overwrote_pages_of_one_file_at_once_is_taken_back_in_the_order_of_the_log() {
    for shown in [[2, 3, 4], [4, 2, 3], [3, 4, 2]] {
        let dev: Arc<dyn Device> = Arc::new(MemDevice::new(8192));
        make(dev.clone());
        let store = open(dev.clone());
        let mut sets = Sets::new(&store);
        let len = 4 * BLOCK - 1000;
        sets.file("/f", &bytes(1, len));
        write(&store, TxnId(1), sets.set);
        // A whole page, a part of one, and the last one.
        let ranges = [(0, BLOCK), (BLOCK + 7, 100), (3 * BLOCK, BLOCK - 1000)];
        let members = ranges.iter().zip(2..).map(|((at, n), txn)| {
            let mut sets = Sets::new(&store);
            sets.object("/f").content = patch(len as u64, *at as u64, &bytes(txn, *n));
            let reservation = store.reserve(&sets.set).unwrap();
            Ready { reservation, set: sets.set, meta: meta(TxnId(txn)) }
        });
        let mut states = vec![dump(&store)];
        for ((at, n), txn) in ranges.iter().zip(2..) {
            let mut next = states[states.len() - 1].clone();
            next.get_mut("/f").unwrap().content[*at..*at + *n].copy_from_slice(&bytes(txn, *n));
            states.push(next);
        }
        let done: Vec<_> =
            store.commit_group(members.collect()).into_iter().map(Result::unwrap).collect();
        for txn in shown {
            store.apply(done[txn - 2].lsn).unwrap();
        }
        let now = |store: &VolumeStore| dump(store)["/f"].content.clone();
        let state = |n: usize| states[n].get("/f").unwrap().content.clone();
        assert_eq!(now(&store), state(3), "{shown:?}");
        for of in [2, 3] {
            let refused = store.undo_set(TxnId(of)).map(drop);
            assert!(matches!(refused, Err(UndoError::Overlap(_))), "{of}: {refused:?}");
        }
        for (of, txn, left) in [(4, 5, 2), (3, 6, 1), (2, 7, 0), (7, 8, 1), (6, 9, 2), (5, 10, 3)] {
            let taken_back = store.undo_set(TxnId(of)).map(drop);
            assert!(taken_back.is_ok(), "{shown:?}: undo of {of}: {taken_back:?}");
            undo(&store, of, txn);
            assert_eq!(now(&store), state(left), "{shown:?}: undo of {of}");
        }
        for (txn, n) in [(4, 3), (3, 2), (2, 1)] {
            assert_eq!(sides(&store, txn), (Some(state(n - 1)), Some(state(n))), "{shown:?}");
        }
        sound(store, dev);
    }
}

#[test]
fn an_undo_writes_no_content_whatever_it_takes_back() {
    let dev = Counting::new(8192);
    let (store, before, after) = overwritten(dev.clone());
    // What is kept of it was not copied: the new content and some metadata.
    let cost = dev.written(&store, || overwrite(&store, 3, 3));
    assert!((PAGES..PAGES + 100).contains(&cost), "{cost} blocks");
    undo(&store, 3, 4);
    for (of, txn, wanted) in [(2, 5, &before), (5, 6, &after), (2, 7, &before), (7, 8, &after)] {
        let (used, mut undone) = (store.volume().space().used, None);
        let cost = dev.written(&store, || {
            let undo = store.undo_set(TxnId(of)).unwrap();
            commit_as(&store, txn, undo.set.clone(), TxnKind::Undo { of: TxnId(of) });
            undone = Some(undo);
        });
        drop(undone);
        // Two ends of a range, the entries of both files and their records.
        assert!(cost < 60, "the undo of {of} wrote {cost} blocks of {PAGES}");
        assert!(store.volume().space().used < used + 40, "{used}: {:?}", store.volume().space());
        assert!(&dump(&store) == wanted, "after the undo of {of}");
    }
    sound(store, dev);
}

/// Each transaction shows both of its sides, wherever undos have moved them.
#[test]
fn whoever_looks_back_sees_what_undos_have_moved() {
    let dev = Arc::new(MemDevice::new(8192));
    let (store, before, after) = overwritten(dev.clone());
    let [a, b] = [&before, &after].map(|dump| dump["/f"].content.clone());
    let (a, b) = (Some(a), Some(b));
    let mut done: Vec<(u64, _, _)> = vec![(2, &a, &b)];
    for (of, txn, left) in [(2, 3, &a), (3, 4, &b), (2, 5, &a), (5, 6, &b), (6, 7, &a), (7, 8, &b)]
    {
        let met = if left == &a { &b } else { &a };
        undo(&store, of, txn);
        done.push((txn, met, left));
        for (txn, met, left) in &done {
            assert!(&sides(&store, *txn).0 == *met, "before {txn}, after {of} was undone");
            assert!(&sides(&store, *txn).1 == *left, "after {txn}, after {of} was undone");
        }
    }
    // A part of it, from another version on.
    overwrite(&store, 20, 20);
    let c = Some(dump(&store)["/f"].content.clone());
    undo(&store, 20, 21);
    assert!((sides(&store, 20), sides(&store, 21)) == ((b.clone(), c.clone()), (c, b.clone())));
    assert!(sides(&store, 2) == (a.clone(), b.clone()));
    undo(&store, 2, 22);
    assert!(dump(&store) == before);
    sound(store, dev);
}

/// What is moved is where it was for whoever does not see the commit yet.
#[test]
fn a_commit_that_is_not_shown_has_taken_nothing() {
    let dev = Arc::new(MemDevice::new(8192));
    let (store, before, after) = overwritten(dev.clone());
    let undo = store.undo_set(TxnId(2)).unwrap();
    let (reservation, set) = (store.reserve(&undo.set).unwrap(), undo.set.clone());
    let meta = systx_store::CommitMeta { kind: TxnKind::Undo { of: TxnId(2) }, ..meta(TxnId(3)) };
    let done = store.commit_group(vec![Ready { reservation, set, meta }]).remove(0).unwrap();
    let [slot] = &undo.slots[..] else { panic!("{} slots", undo.slots.len()) };
    let mut bytes = vec![0; 3 * BLOCK];
    assert_eq!(slot.read_at(&mut bytes, 9 * PAGE).unwrap(), bytes.len());
    assert!(bytes == before["/f"].content[9 * BLOCK..12 * BLOCK]);
    assert!(dump(&store) == after);
    store.apply(done.lsn).unwrap();
    assert_eq!(slot.read_at(&mut bytes, 9 * PAGE).unwrap(), 0);
    assert!(dump(&store) == before);
    assert!(slot.write_at(b"x", 0).is_err());
    drop(undo);
    sound(store, dev);
}

/// Where a part of the history is gone that says where a before-image was moved to, it is not
/// known: it is not taken for zeros.
#[test]
fn what_the_history_has_lost_track_of_is_not_made_up() {
    let dev = Arc::new(MemDevice::new(8192));
    let (store, ..) = overwritten(dev.clone());
    let held = store.undo_set(TxnId(2)).unwrap();
    undo(&store, 2, 3);
    undo(&store, 3, 4);
    store.gc(Keep { count: 1, log: 9, ..Keep::default() }).unwrap();
    let left: Vec<u64> = store.history().unwrap().iter().map(|e| e.meta.txn.0).collect();
    assert!(left.contains(&2) && store.undo_set(TxnId(3)).is_err(), "{left:?}");
    assert!(sides(&store, 2).0.is_none());
    assert!(store.undo_set(TxnId(2)).is_err());
    drop(held);
    sound(store, dev);
}

/// What came later stands in the way, what was tried and not done moves nothing, and what the
/// history needed is free when it is given up.
#[test]
fn an_undo_that_is_refused_moves_nothing_and_a_history_given_up_frees_its_blocks() {
    let dev = Arc::new(MemDevice::new(8192));
    let (store, before, after) = overwritten(dev.clone());
    // Looked at, and not done.
    drop(store.undo_set(TxnId(2)).unwrap());
    // Two at once: one of them is too late.
    let (one, other) = (store.undo_set(TxnId(2)).unwrap(), store.undo_set(TxnId(2)).unwrap());
    let ready = |set: WriteSet, txn| Ready {
        reservation: store.reserve(&set).unwrap(),
        set,
        meta: meta(TxnId(txn)),
    };
    let late = ready(other.set.clone(), 4);
    commit_as(&store, 3, one.set.clone(), TxnKind::Undo { of: TxnId(2) });
    assert!(store.commit_group(vec![late]).remove(0).is_err());
    drop((one, other));
    assert!(dump(&store) == before);
    assert!(matches!(store.undo_set(TxnId(2)), Err(UndoError::Overlap(_))));
    let mut sets = Sets::new(&store);
    sets.object("/f").content = patch(PAGES * PAGE - 1000, 5000, b"later");
    write(&store, TxnId(5), sets.set);
    assert!(matches!(store.undo_set(TxnId(3)), Err(UndoError::Overlap(_))));
    undo(&store, 5, 6);
    undo(&store, 3, 7);
    assert!(dump(&store) == after);
    let used = store.volume().space().used;
    assert!(used > 2 * PAGES, "{used}");
    store.gc(Keep { count: 1, log: 0, ..Keep::default() }).unwrap();
    undo(&store, 7, 8);
    assert!(dump(&store) == before);
    store.gc(Keep { count: 0, log: 0, ..Keep::default() }).unwrap();
    store.volume().checkpoint().unwrap();
    let used = store.volume().space().used;
    assert!(used < PAGES + 100, "{used} blocks are in use");
    sound(store, dev);
}

/// Slots and holes, files that became longer and shorter.
#[test]
fn lengths_and_holes_come_back_as_they_were() {
    let dev = Arc::new(MemDevice::new(8192));
    make(dev.clone());
    let store = open(dev.clone());
    let mut sets = Sets::new(&store);
    sets.file("/f", &[]);
    let extent = |page: u64, n: u64| Extent {
        offset: page * PAGE + 7,
        data: Data::Inline(bytes(page, (n * PAGE) as usize)),
    };
    let len = 300 * PAGE + 77;
    let extents = vec![extent(3, 40), extent(90, 100), extent(260, 40)];
    sets.object("/f").content = Content::Whole { len, extents };
    write(&store, TxnId(1), sets.set);
    let (before, blocks) = (dump(&store), store.volume().space().used);
    let changes = [
        (100 * PAGE + 5, 100 * PAGE + 5, vec![extent(10, 20)]),
        (400 * PAGE, 50 * PAGE, vec![extent(310, 30)]),
        (len, len, vec![Extent { offset: PAGE, data: Data::Hole { len: 200 * PAGE } }]),
        (len + 3, len, vec![extent(90, 5), extent(280, 15)]),
    ];
    for (n, (len, keep, extents)) in (10..).step_by(10).zip(changes) {
        let mut sets = Sets::new(&store);
        sets.object("/f").content = Content::Patch { len, keep, extents };
        write(&store, TxnId(n), sets.set);
        let after = dump(&store);
        undo(&store, n, n + 1);
        assert!(dump(&store) == before, "{n}");
        undo(&store, n + 1, n + 2);
        assert!(dump(&store) == after, "{n}");
        undo(&store, n, n + 3);
        assert!(dump(&store) == before, "{n}");
    }
    store.gc(Keep { count: 0, log: 0, ..Keep::default() }).unwrap();
    store.volume().checkpoint().unwrap();
    let used = store.volume().space().used;
    assert!(used < blocks + 20, "holes are holes: {used}, not {blocks}");
    sound(store, dev);
}

/// The file of [`overwritten`], with pages of another one between its own, which is removed then:
/// so half of each segment is dead.
fn scattered(dev: Arc<dyn Device>) -> (Arc<VolumeStore>, Dump, Dump) {
    make(dev.clone());
    let store = open(dev);
    let volume = store.volume().clone();
    let shape = Shape::new(Kind::File, 0o644);
    for name in [b"f", b"j"] {
        volume.plain(|ops| ops.create(ROOT, name, &shape).map(drop)).unwrap();
    }
    for (at, content) in (0..).step_by(8 * BLOCK).zip(old(1000).chunks(8 * BLOCK)) {
        for name in [b"f", b"j"] {
            let write = |ops: &mut Ops<'_>| {
                let ino = ops.lookup(ROOT, name)?.ino;
                ops.write(ino, at, content)
            };
            volume.plain(write).unwrap();
        }
        volume.sync().unwrap();
    }
    volume.plain(|ops| ops.unlink(ROOT, b"j").map(drop)).unwrap();
    let before = dump(&store);
    overwrite(&store, 2, 2);
    let after = dump(&store);
    (store, before, after)
}

/// Segments that are in use beyond those that the blocks in use would fill.
fn wasted(store: &VolumeStore) -> u64 {
    let (space, geometry) = (store.volume().space(), store.volume().identity().1);
    let taken = u64::from(geometry.segments - space.free_segments);
    taken.saturating_sub(space.used.div_ceil(geometry.usable().into()))
}

/// A file with pages that the summaries say are another one's is found by the cleaner, also after
/// the volume was opened again, by its checkpoint and by its log.
#[test]
fn the_cleaner_moves_what_an_undo_has_moved() {
    for again in ["open", "closed", "crashed"] {
        // So large that commits have no reason to clean.
        let mut dev = Arc::new(MemDevice::new(16384));
        let (mut store, before, after) = scattered(dev.clone());
        store.volume().checkpoint().unwrap();
        // The log since then has only that these have moved.
        undo(&store, 2, 3);
        undo(&store, 3, 4);
        if again == "closed" {
            sound(store, dev.clone());
            store = open(dev.clone());
        } else if again == "crashed" {
            dev = Arc::new(MemDevice::from_bytes(dev.bytes()));
            store = open(dev.clone());
        }
        assert!(wasted(&store) > PAGES / 256, "{again}: {}", wasted(&store));
        store.volume().clean(&Greedy, u32::MAX).unwrap();
        assert!(wasted(&store) < 3, "{again}: {}", wasted(&store));
        undo(&store, 2, 5);
        assert!(dump(&store) == before, "{again}");
        store.volume().clean(&Greedy, u32::MAX).unwrap();
        undo(&store, 5, 6);
        assert!(dump(&store) == after, "{again}");
        assert!(sides(&store, 5).0 == Some(after["/f"].content.clone()), "{again}");
        sound(store, dev);
    }
}

/// Snapshots from before and after, and a copy that is sent from one to the next, have what was
/// there then; a moment that began before has, too.
#[test]
fn snapshots_and_streams_have_what_was_there_then() {
    let dev = Arc::new(MemDevice::new(16384));
    let (store, before, after) = overwritten(dev.clone());
    let volume = store.volume().clone();
    let shown = |ops: &mut Ops<'_>| {
        let f = ops.lookup(ROOT, b"f")?.ino;
        let size = ops.attrs(f)?.size as usize;
        ops.read(f, 0, size)
    };
    let (a, b) = (&before["/f"].content, &after["/f"].content);
    let other: Arc<dyn Device> = Arc::new(MemDevice::new(16384));
    make(other.clone());
    let (salt, limits) = (42, Limits::default());
    let copy = Volume::open(other.clone(), clock(), salt, limits).unwrap();
    let steps = [("0", 0, b), ("1", 2, a), ("2", 3, b), ("3", 2, a)];
    let (mut last, mut moments) = (None, Vec::new());
    for (txn, (name, of, left)) in (2..).zip(steps) {
        moments.push((volume.moment(), if &dump(&store)["/f"].content == a { a } else { b }));
        if of > 0 {
            undo(&store, of, txn);
        }
        volume.snapshot(name).unwrap();
        volume.clean(&Greedy, volume.space().free_segments + 1).unwrap();
        let mut stream = Vec::new();
        send(&volume, name, last, &mut stream).unwrap();
        assert!(last.is_none() || stream.len() < 3 * a.len(), "{}", stream.len());
        receive(&copy, &mut &stream[..]).unwrap();
        assert!(&copy.look(shown).unwrap() == left, "the copy of {name}");
        last = Some(name);
    }
    for (name, _, left) in steps {
        assert!(&volume.at(name).unwrap().look(shown).unwrap() == left, "snapshot {name}");
    }
    for (moment, left) in &moments {
        assert!(&&moment.look(shown).unwrap() == left, "a moment");
    }
    drop((moments, volume));
    drop(copy);
    assert_eq!(check(other, clock()).unwrap().findings, []);
    sound(store, dev);
}

/// Says that a joint commit was decided for.
struct Yes;

impl Outcomes for Yes {
    fn outcome(&self, _: &Joint) -> Outcome {
        Outcome::Committed
    }
}

/// A part of a joint commit that another one decides has what it takes back, whatever is forgotten
/// until it is decided, and after a crash.
#[test]
fn a_prepared_undo_keeps_what_it_takes_back() {
    for crashes in [false, true] {
        let dev = Arc::new(MemDevice::new(8192));
        let (store, before, _) = overwritten(dev.clone());
        let undo = store.undo_set(TxnId(2)).unwrap();
        let member = |store| Member { store, memory: false, path: b"/x".to_vec() };
        let members = vec![member(2), member(store.number().unwrap())];
        let joint = Joint { id: 9, members, decider: 0, me: 1 };
        let (claim, set) = (store.claim(&undo.set).unwrap(), undo.set.clone());
        let reservation = store.reserve(&set).unwrap();
        let lsn =
            store.prepare(claim, Ready { reservation, set, meta: meta(TxnId(3)) }, joint).unwrap();
        drop(undo);
        store.gc(Keep { count: 0, log: 0, ..Keep::default() }).unwrap();
        store.volume().sync().unwrap();
        let (dev, store) = if crashes {
            let dev = Arc::new(MemDevice::from_bytes(dev.bytes()));
            (dev.clone(), open_among(dev, &Yes))
        } else {
            store.decided(lsn, true);
            store.apply(lsn).unwrap();
            (dev, store)
        };
        assert!(dump(&store) == before, "crash: {crashes}");
        sound(store, dev);
    }
}
