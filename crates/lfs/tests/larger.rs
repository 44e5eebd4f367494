//! Transactions that are larger than memory beside others, in a volume of which little is free:
//! what others have committed, or were promised, has its room, and what is aborted gives it back.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BLOCKS, LIMITS, SEGMENT, budget, bytes, clock, commit, file, fresh, open, tree};
use std::collections::BTreeMap;
use std::sync::Arc;
use systx_base::mix;
use systx_lfs::device::{Fault, SimDisk};
use systx_lfs::format::{BLOCK, ROOT};
use systx_lfs::fsck::check;
use systx_lfs::{Error, Limits, Ops, Promise, Txn, Volume};

/// A transaction that writes one page of its file after the other.
struct Large {
    name: &'static str,
    txn: Txn,
    pages: u64,
}

/// Writes these pages of a file, which may be new.
fn write(ops: &mut Ops<'_>, name: &str, pages: std::ops::Range<u64>) -> Result<(), Error> {
    let f = match ops.lookup(ROOT, name.as_bytes()) {
        Ok(link) => link.ino,
        Err(_) => ops.create(ROOT, name.as_bytes(), &file())?,
    };
    pages.into_iter().try_for_each(|page| ops.write(f, page * BLOCK as u64, &content(name, page)))
}

/// A page of a file.
fn content(name: &str, page: u64) -> Vec<u8> {
    bytes(name.bytes().fold(page, |all, byte| mix(all ^ u64::from(byte))), BLOCK)
}

impl Large {
    fn new(name: &'static str) -> Large {
        Large { name, txn: Txn::new(), pages: 0 }
    }

    /// By one call, or by one for each page.
    fn write(&mut self, volume: &Volume, more: u64, at_once: bool) -> Result<(), Error> {
        let mut rest = more;
        while rest > 0 {
            let now = if at_once { rest } else { 1 };
            let pages = self.pages..self.pages + now;
            volume.within(&mut self.txn, |ops| write(ops, self.name, pages))?;
            (self.pages, rest) = (self.pages + now, rest - now);
        }
        Ok(())
    }

    /// Until there is no room.
    fn fill(&mut self, volume: &Volume, at_once: bool) {
        let done = match at_once {
            true => self.write(volume, 1000, true),
            false => (0..1000).try_for_each(|_| self.write(volume, 1, false)),
        };
        assert!(matches!(done, Err(Error::NoSpace)), "{done:?}");
    }
}

/// A volume of which nothing is free that need not be, since each segment has something live in it.
fn worn() -> Arc<SimDisk> {
    const FILES: u64 = 10;
    let (disk, volume) = fresh(BLOCKS);
    let in_files = |ops: &mut Ops<'_>,
                    act: &dyn Fn(&mut Ops<'_>, u64, &str) -> Result<(), Error>| {
        (0..FILES).try_for_each(|n| act(ops, n, &format!("f{n}")))
    };
    let all = |page| {
        commit(&volume, |ops| in_files(ops, &|ops, _, name| write(ops, name, page..page + 1)))
    };
    let pages = (0..).find(|page| volume.space().free_segments < 14 || all(*page).is_err());
    commit(&volume, |ops| {
        in_files(ops, &|ops, n, name| {
            let f = ops.lookup(ROOT, name.as_bytes())?.ino;
            let most = if n == 0 { 0 } else { pages.unwrap() * BLOCK as u64 };
            ops.punch(f, 0, most)
        })
    })
    .unwrap();
    volume.checkpoint().unwrap();
    drop(volume);
    disk
}

/// Of a volume in which little is free and much is dead a transaction that is larger than memory
/// gets about as much as small ones do, for which room is made.
#[test]
fn room_is_made_for_what_is_larger_than_memory_as_for_others() {
    let disk = worn();
    let volume = open(Arc::new(disk.copy())).unwrap();
    let small = |page| commit(&volume, |ops| write(ops, "new", page..page + 1));
    let most = (0..).find(|page| small(*page).is_err()).unwrap();
    assert!(most > 100, "{most}");
    for steps in [true, false] {
        let copy = Arc::new(disk.copy());
        let volume = open(copy.clone()).unwrap();
        let at_once = |pages| match steps {
            true => {
                let mut large = Large::new("new");
                (0..pages).try_for_each(|_| large.write(&volume, 1, false))?;
                volume.commit(large.txn)
            }
            false => volume.plain(|ops| write(ops, "new", 0..pages)),
        };
        // It fills segments of its own, and the last of them in part.
        let pages = most - 4 * u64::from(SEGMENT);
        at_once(pages).unwrap();
        assert_eq!(tree(&volume)["/new"].content.len() as u64, pages * BLOCK as u64);
        assert!(matches!(at_once(2 * most), Err(Error::NoSpace)));
        drop(volume);
        assert_eq!(check(copy, clock()).unwrap().findings, []);
    }
}

/// A small volume of which little is written by itself.
fn volume() -> (Arc<SimDisk>, Volume) {
    let (disk, volume) = fresh(BLOCKS);
    drop(volume);
    let limits = Limits { dirty_pages_max: 10_000, ..LIMITS };
    (disk.clone(), Volume::open(disk, clock(), 5, limits).unwrap())
}

/// Also if it was committed when there was room for the other already, and before that spilled.
#[test]
fn what_waits_to_be_written_has_its_room_whatever_is_spilled() {
    for begun in [0, 5, 11] {
        for waits in (0..180).step_by(15) {
            for at_once in [false, true] {
                let (disk, volume) = volume();
                let mut large = Large::new("large");
                large.write(&volume, begun, at_once).unwrap();
                let small =
                    |n: &u64| volume.plain(|ops| write(ops, &format!("f{n}"), 0..1)).is_ok();
                let waits = (0..waits).take_while(small).count();
                large.fill(&volume, at_once);
                let case = format!("{begun}, {waits}, {at_once}");
                volume.sync().unwrap_or_else(|e| panic!("{case}: {e}"));
                volume.checkpoint().unwrap_or_else(|e| panic!("{case}: {e}"));
                drop(large);
                drop(volume);
                assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "{case}");
                let there = tree(&open(disk).unwrap());
                assert!((0..waits).all(|n| there.contains_key(&format!("/f{n}"))), "{case}");
            }
        }
    }
}

/// The other one is neither committed nor aborted when the room is needed.
#[test]
fn what_is_promised_no_larger_transaction_gets() {
    for (promised, at_once) in (30..=90).step_by(6).flat_map(|n| [(n, false), (n, true)]) {
        let (_, volume) = volume();
        let promise = volume.promise(promised).unwrap();
        let mut large = Large::new("large");
        large.fill(&volume, at_once);
        let mut txn = Txn::of(Some(&promise));
        let case = format!("{promised}, {at_once}");
        let done = volume.within(&mut txn, |ops| write(ops, "promised", 0..promised - 24));
        done.unwrap_or_else(|e| panic!("{case}: {e}"));
        let hidden = volume.commit_hidden(txn, &mut Some(promise));
        let hidden = hidden.unwrap_or_else(|e| panic!("{case}: {e}"));
        volume.show(hidden).unwrap();
        volume.sync().unwrap_or_else(|e| panic!("{case}: {e}"));
        assert!(tree(&volume).contains_key("/promised"), "{case}");
    }
}

/// By the next that needs it, which may write all it has by one call.
#[test]
fn an_abort_gives_its_room_back_at_once() {
    let (_, volume) = volume();
    let filled = |name| {
        let mut large = Large::new(name);
        large.fill(&volume, false);
        large.pages
    };
    let alone = filled("alone");
    for round in 0..6 {
        let before = filled("before");
        assert!(before >= alone - 12, "round {round}: {before} of {alone}");
        if round % 2 == 0 {
            let pages = volume.space().free() * 3 / 4;
            let done = volume.plain(|ops| write(ops, "next", 0..pages));
            done.unwrap_or_else(|e| panic!("round {round}: {e}"));
            volume.plain(|ops| ops.unlink(ROOT, b"next").map(drop)).unwrap();
        }
    }
}

/// Two that take turns get as much together as one alone, whichever of them is decided how.
#[test]
fn two_larger_transactions_share_what_there_is() {
    let (disk, volume) = volume();
    let mut alone = Large::new("alone");
    alone.fill(&volume, false);
    let all = alone.pages;
    drop(alone);
    let (mut a, mut b) = (Large::new("a"), Large::new("b"));
    // Each has a last segment that is not full, and the next one.
    for page in 0..(all - 4 * u64::from(SEGMENT)) / 2 {
        a.write(&volume, 1, false).unwrap_or_else(|e| panic!("a, {page} of {all}: {e}"));
        b.write(&volume, 1, false).unwrap_or_else(|e| panic!("b, {page} of {all}: {e}"));
    }
    let pages = b.pages;
    drop(a);
    b.write(&volume, pages / 2, false).unwrap();
    volume.commit(b.txn).unwrap();
    let len = (pages + pages / 2) * BLOCK as u64;
    assert_eq!(tree(&volume)["/b"].content.len() as u64, len);
    drop(volume);
    assert_eq!(check(disk.clone(), clock()).unwrap().findings, []);
    assert_eq!(tree(&open(disk).unwrap())["/b"].content.len() as u64, len);
}

/// The first pages of a file.
fn contents(name: &str, pages: u64) -> Vec<u8> {
    (0..pages).flat_map(|page| content(name, page)).collect()
}

/// What is written after that is found by the commit, by an opening and by the cleaner.
#[test]
fn whoever_goes_on_after_a_write_that_failed_loses_nothing() {
    const PAGES: u64 = 60;
    for fails in 0.. {
        let (disk, volume) = volume();
        let mut large = Large::new("large");
        large.write(&volume, 5, false).unwrap();
        disk.fault(Fault::Fails(fails));
        let mut failed = false;
        while large.pages < PAGES {
            if let Err(e) = large.write(&volume, 1, false) {
                assert!(matches!(e, Error::Io(_)), "write {fails}: {e}");
                failed = true;
                disk.fault(Fault::None);
            }
        }
        disk.fault(Fault::None);
        volume.commit(large.txn).unwrap();
        drop(volume);
        let volume = open(disk.clone()).unwrap();
        let small = |n: &u64| commit(&volume, |ops| write(ops, "small", *n..n + 1)).is_err();
        (0..).find(small).unwrap();
        assert!(tree(&volume)["/large"].content == contents("large", PAGES), "write {fails}");
        drop(volume);
        assert_eq!(check(disk, clock()).unwrap().findings, [], "write {fails}");
        if !failed {
            assert!(fails > 4, "{fails} writes");
            return;
        }
    }
}

/// Two large transactions, and what others do beside them.
struct Case {
    volume: Volume,
    large: [Large; 2],
    promise: Option<Promise>,
    /// Pages of the files that are committed.
    there: BTreeMap<String, u64>,
    refused: u64,
    committed: u64,
}

impl Case {
    fn committed(&mut self, name: &str, pages: u64) {
        let there = self.there.entry(name.to_owned()).or_default();
        *there = pages.max(*there);
    }

    /// What may be refused for want of room.
    fn may_be(&mut self, done: Result<(), Error>) -> bool {
        match done {
            Ok(()) => true,
            Err(Error::NoSpace) => {
                self.refused += 1;
                false
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn large(&mut self, draw: u64) {
        let n = (draw >> 8) as usize % 2;
        let name = self.large[n].name;
        let new = |case: &mut Case| std::mem::replace(&mut case.large[n], Large::new(name));
        match draw % 8 {
            0 => drop(new(self)),
            1 => {
                let Large { txn, pages, .. } = new(self);
                let done = match self.volume.commit(txn) {
                    // Somebody has removed its file.
                    Err(Error::Removed(_) | Error::Conflict { .. }) => return,
                    done => done,
                };
                if self.may_be(done) && pages > 0 {
                    self.committed += 1;
                    self.committed(name, pages);
                }
            }
            _ => {
                let (more, at_once) = (1 + (draw >> 16) % 14, draw >> 32 & 1 == 0);
                let done = self.large[n].write(&self.volume, more, at_once);
                if !self.may_be(done) {
                    drop(new(self));
                }
            }
        }
    }

    fn small(&mut self, draw: u64) {
        match draw % 8 {
            0 => self.volume.sync().unwrap(),
            1 => self.volume.checkpoint().unwrap(),
            2 | 3 => {
                let nth = (draw >> 8) as usize % self.there.len().max(1);
                let Some(name) = self.there.keys().nth(nth).cloned() else { return };
                self.volume.plain(|ops| ops.unlink(ROOT, name.as_bytes()).map(drop)).unwrap();
                self.there.remove(&name);
            }
            4 => match self.promise.take() {
                None => match self.volume.promise(48) {
                    Ok(promise) => self.promise = Some(promise),
                    Err(e) => assert!(!self.may_be(Err(e))),
                },
                promise => {
                    let (mut txn, name) = (Txn::of(promise.as_ref()), format!("p{}", draw >> 60));
                    self.volume.within(&mut txn, |ops| write(ops, &name, 0..3)).unwrap();
                    let hidden = self.volume.commit_hidden(txn, &mut { promise }).unwrap();
                    self.volume.show(hidden).unwrap();
                    self.committed(&name, 3);
                }
            },
            _ => {
                let (name, pages) = (format!("f{}", draw >> 59), 1 + (draw >> 16) % 4);
                let done = self.volume.plain(|ops| write(ops, &name, 0..pages));
                if self.may_be(done) {
                    self.committed(&name, pages);
                }
            }
        }
    }

    fn is_there(&self, volume: &Volume) {
        let found = tree(volume);
        assert_eq!(found.len(), self.there.len() + 1);
        for (name, pages) in &self.there {
            assert!(found[&format!("/{name}")].content == contents(name, *pages), "{name}");
        }
    }
}

/// Nothing is refused but for want of room: what only removes and what was promised never.
#[test]
fn any_steps_beside_larger_transactions() {
    let (mut refused, mut committed) = (0, 0);
    for seed in 0..24 * budget() as u64 {
        println!("seed {seed}");
        let (disk, volume) = volume();
        let (large, there) = ([Large::new("a"), Large::new("b")], BTreeMap::new());
        let mut case = Case { volume, large, promise: None, there, refused: 0, committed: 0 };
        for n in 0..300 {
            let draw = mix(seed << 32 | n);
            if draw >> 40 & 1 == 0 { case.large(draw) } else { case.small(draw) }
        }
        case.large = [Large::new("a"), Large::new("b")];
        case.volume.checkpoint().unwrap();
        case.is_there(&case.volume);
        (refused, committed) = (refused + case.refused, committed + case.committed);
        assert_eq!(check(disk.clone(), clock()).unwrap().findings, [], "seed {seed}");
        case.is_there(&open(Arc::new(disk.copy())).unwrap());
    }
    assert!(refused > 0 && committed > 0, "{refused}, {committed}");
}
