//! What is written together lies together, costs what it says, and has what was written last.

use crate::device::{Device, MemDevice};
use crate::error::Error;
use crate::format::{BLOCK, Compression, Ino, ROOT};
use crate::fsck::check;
use crate::object::Place;
use crate::ops::{SetAttrs, Shape};
use crate::state::{Limits, Need};
use crate::txn::Txn;
use crate::volume::{Format, Volume, mkfs};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use systx_base::sync::{Mutex, rank};
use systx_base::{Kind, Time, mix};

const PAGE: u64 = BLOCK as u64;

fn clock() -> crate::Clock {
    Arc::new(Time::default)
}

/// A device that counts the blocks that are written, and of which one write may wait.
struct Counting {
    inner: MemDevice,
    written: AtomicU64,
    gate: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Counting {
    fn write_all(&self, at: u64, from: &[u8]) -> io::Result<()> {
        let closed = self.gate.lock().take();
        if let Some((here, go)) = closed {
            here.send(()).expect("somebody waits");
            go.recv().expect("somebody lets it go");
        }
        self.written.fetch_add((from.len() / BLOCK) as u64, Ordering::Relaxed);
        self.inner.write(at, from)
    }
}

impl Device for Counting {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.inner.read(at, to)
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.write_all(at, from)
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.write_all(at, from)
    }
    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

struct Case {
    dev: Arc<Counting>,
    volume: Arc<Volume>,
    cluster: u64,
}

fn open(dev: Arc<dyn Device>) -> Volume {
    Volume::open(dev, clock(), 1, Limits::default()).expect("it opens")
}

fn case(cluster: u32, compression: Compression) -> Case {
    let (inner, gate) = (MemDevice::new(9 + 40 * 64), Mutex::new(rank::LEAF, None));
    let dev = Arc::new(Counting { inner, written: AtomicU64::new(0), gate });
    let (id, label) = ([3; 16], String::new());
    let format = Format { segment_blocks: 64, cluster, id, label, owner: (0, 0), compression };
    mkfs(dev.clone(), &format, clock()).expect("mkfs");
    let volume = Arc::new(open(dev.clone()));
    Case { dev, volume, cluster: cluster.into() }
}

fn page(with: u64) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|n| mix(with << 16 | (n + 1)).to_le_bytes()).collect()
}

impl Case {
    /// A file of so many pages, in order, with its content.
    fn file(&self, name: &str, pages: u64) -> (Ino, Vec<u8>) {
        let content: Vec<u8> = (0..pages).flat_map(page).collect();
        let made = self.volume.plain(|ops| {
            let f = ops.create(ROOT, name.as_bytes(), &Shape::new(Kind::File, 0o600))?;
            ops.write(f, 0, &content)?;
            Ok(f)
        });
        self.volume.sync().expect("it is durable");
        (made.expect("a file"), content)
    }

    fn write(&self, ino: Ino, at: u64, bytes: &[u8]) -> Txn {
        let mut txn = Txn::new();
        self.volume.within(&mut txn, |ops| ops.write(ino, at, bytes)).expect("it is staged");
        txn
    }

    fn read(&self, volume: &Volume, ino: Ino) -> Vec<u8> {
        volume
            .look(|ops| {
                let size = ops.attrs(ino)?.size;
                ops.read(ino, 0, size as usize)
            })
            .expect("it is read")
    }

    fn places(&self, ino: Ino) -> Vec<(u64, Place)> {
        let places = self.volume.with_state(|state| {
            let pages = state.tree.get(ino)?.pages().into_iter().flatten();
            Ok(pages.map(|(page, at)| (*page, at.place.expect("it is written"))).collect())
        });
        places.expect("it is read")
    }

    /// How many clusters of a file do not lie together.
    fn scattered(&self, ino: Ino) -> usize {
        let places = self.places(ino);
        let clusters = places.chunk_by(|(a, _), (b, _)| a / self.cluster == b / self.cluster);
        // Where one was between them it may be dead.
        let follows =
            |(p, a): &(u64, Place), (q, b): &(u64, Place)| b.at > a.at && b.at - a.at <= q - p;
        let together = |of: &[(u64, Place)]| of.is_sorted_by(follows);
        clusters.filter(|of| !together(of)).count()
    }

    /// What is there, now, after an opening, and after a checkpoint.
    fn is(&self, ino: Ino, wanted: &[u8]) {
        assert!(self.read(&self.volume, ino) == wanted);
        self.volume.sync().expect("it is durable");
        for checkpoint in [false, true] {
            if checkpoint {
                self.volume.checkpoint().expect("a checkpoint");
            }
            let copy = || Arc::new(MemDevice::from_bytes(self.dev.inner.bytes()));
            assert!(self.read(&open(copy()), ino) == wanted, "opened again, {checkpoint}");
            assert_eq!(check(copy(), clock()).expect("a check").findings, []);
        }
    }
}

/// Overwrites, holes, cuts and appends at random, durable or not, the cleaner beside them.
#[test]
fn what_is_written_together_lies_together() {
    for cluster in [1, 2, 4, 16] {
        let case = case(cluster, Compression::Off);
        let (f, mut wanted) = case.file("f", 150);
        for n in 0..300_u64 {
            let draw = mix(u64::from(cluster) << 32 | (n + 1));
            let at = draw % (wanted.len() as u64 + 9000);
            let bytes = &page(n + 1000)[..(draw >> 20) as usize % 4096 + 1];
            match draw >> 40 & 15 {
                0 => {
                    case.volume.plain(|ops| ops.punch(f, at, 9000)).expect("a hole");
                    let end = wanted.len().min(at as usize + 9000);
                    wanted[(at as usize).min(end)..end].fill(0);
                }
                1 => {
                    let size = wanted.len().saturating_sub((draw >> 44) as usize % 40_000);
                    let set = SetAttrs { size: Some(size as u64), ..SetAttrs::default() };
                    case.volume.plain(|ops| ops.set_attrs(f, &set)).expect("it is cut");
                    wanted.truncate(size);
                }
                2 => {
                    let until = case.volume.space().free_segments + 2;
                    case.volume.clean(&crate::Greedy, until).expect("it is cleaned");
                }
                3 => case.volume.checkpoint().expect("a checkpoint"),
                _ => {
                    let txn = case.write(f, at, bytes);
                    let end = at as usize + bytes.len();
                    wanted.resize(wanted.len().max(end), 0);
                    wanted[at as usize..end].copy_from_slice(bytes);
                    match draw >> 50 & 1 {
                        0 => case.volume.commit(txn).expect("it is durable"),
                        _ => drop(case.volume.commit_relaxed(txn).expect("it is committed")),
                    }
                }
            }
        }
        case.is(f, &wanted);
        assert!(wanted.len() > 50_000, "{}", wanted.len());
        assert_eq!(case.scattered(f), 0, "{cluster}");
    }
}

#[test]
fn a_small_write_costs_its_cluster_and_no_more() {
    for cluster in [1, 2, 4, 8, 16] {
        let case = case(cluster, Compression::Off);
        let (f, mut wanted) = case.file("f", 64);
        let before = case.dev.written.load(Ordering::Relaxed);
        case.volume.commit(case.write(f, 21 * PAGE + 5, b"some bytes")).expect("it is durable");
        let written = case.dev.written.load(Ordering::Relaxed) - before;
        assert_eq!(written, 1 + u64::from(cluster), "the summary and the pages");
        wanted[21 * BLOCK + 5..][..10].copy_from_slice(b"some bytes");
        case.is(f, &wanted);
        assert_eq!(case.scattered(f), 0);
    }
}

/// Commits that overwrite pages of one cluster, one after the other, each before the group of the
/// one before it is written, is on the medium, or is shown: what is written along is never older
/// than what they have committed.
#[test]
fn commits_that_overlap_in_a_cluster_keep_what_each_has_written() {
    for hidden in [false, true] {
        let case = case(16, Compression::Off);
        let (f, mut wanted) = case.file("f", 40);
        let mut shown = Vec::new();
        let mut commit = |n: u64| {
            let txn = case.write(f, n * PAGE, &page(n + 500));
            match hidden {
                false => drop(case.volume.commit_relaxed(txn).expect("it is committed")),
                true => shown.push(case.volume.commit_hidden(txn, &mut None).expect("hidden")),
            }
            wanted[n as usize * BLOCK..][..BLOCK].copy_from_slice(&page(n + 500));
        };
        // Two wait.
        commit(3);
        commit(4);
        // The group with both is on its way when the next ones come.
        let ((here, arrived), (go, wait)) = (channel(), channel());
        *case.dev.gate.lock() = Some((here, wait));
        let writer = std::thread::spawn({
            let volume = case.volume.clone();
            move || volume.sync()
        });
        arrived.recv().expect("it is written");
        commit(5);
        commit(3);
        go.send(()).expect("it waits");
        writer.join().expect("it ends").expect("it is durable");
        // And when it is on the medium.
        commit(6);
        case.volume.sync().expect("it is durable");
        for hidden in shown {
            case.volume.show(hidden).expect("it is shown");
        }
        case.is(f, &wanted);
        assert_eq!(case.scattered(f), 0);
    }
}

/// A page that goes to another file, as undo does it, is neither read nor written, and what lies
/// beside it in both is what it was.
#[test]
fn what_is_taken_stays_where_it_lies() {
    let case = case(16, Compression::Off);
    let (f, mut wanted) = case.file("f", 32);
    let (g, mut kept) = case.file("g", 1);
    let swap = |from: Ino, to: Ino, with: Option<&[u8]>| {
        let mut txn = Txn::new();
        let act = |ops: &mut crate::Ops<'_>| {
            assert!(ops.take((from, 9), (to, 9))?);
            if let Some(with) = with {
                ops.write(from, 9 * PAGE, with)?;
                // Beside what comes, as the ends of what is kept for an undo.
                ops.write(to, 8 * PAGE, with)?;
            }
            let set = SetAttrs { size: Some(32 * PAGE), ..SetAttrs::default() };
            ops.set_attrs(to, &set)
        };
        case.volume.within(&mut txn, act).expect("it is staged");
        let before = case.dev.written.load(Ordering::Relaxed);
        case.volume.commit(txn).expect("it is durable");
        case.dev.written.load(Ordering::Relaxed) - before
    };
    let was = case.places(f)[9].1;
    kept.resize(32 * BLOCK, 0);
    kept[9 * BLOCK..10 * BLOCK].copy_from_slice(&page(9));
    kept[8 * BLOCK..9 * BLOCK].copy_from_slice(&page(77));
    assert_eq!(swap(f, g, Some(&page(77))), 17 + 2);
    wanted[9 * BLOCK..10 * BLOCK].copy_from_slice(&page(77));
    assert!(case.places(g).contains(&(9, was)));
    case.is(f, &wanted);
    case.is(g, &kept);
    // Back: the summary says it.
    assert_eq!(swap(g, f, None), 1);
    wanted[9 * BLOCK..10 * BLOCK].copy_from_slice(&page(9));
    kept[9 * BLOCK..10 * BLOCK].fill(0);
    assert!(case.places(f).contains(&(9, was)));
    case.is(f, &wanted);
    case.is(g, &kept);
    // With the next write beside it all lie together.
    case.volume.commit(case.write(f, 0, b"x")).expect("it is durable");
    wanted[0] = b'x';
    case.is(f, &wanted);
    assert_eq!(case.scattered(f), 0);
}

/// What lies in a pack comes out of it with what is written beside it.
#[test]
fn a_cluster_comes_out_of_its_pack() {
    let case = case(8, Compression::Zstd);
    let (f, mut wanted) = case.file("f", 150);
    let same: Vec<u8> = b"the same again. ".iter().copied().cycle().take(150 * BLOCK).collect();
    case.volume.commit(case.write(f, 0, &same)).expect("it is durable");
    wanted.copy_from_slice(&same);
    // Some packs begin in the middle of a cluster.
    for first in (0..150).step_by(24) {
        case.volume.plain(|ops| ops.punch(f, first * PAGE, 3 * PAGE)).expect("a hole");
        wanted[first as usize * BLOCK..][..3 * BLOCK].fill(0);
    }
    case.volume.checkpoint().expect("a checkpoint");
    assert!(case.volume.pack().expect("it is packed").pages > 50);
    let of_one = |places: &[(u64, Place)]| {
        let packs = places.chunk_by(|(a, _), (b, _)| a / 8 == b / 8);
        packs.filter(|of| of.iter().any(|(_, p)| p.is_packed() && p.at != of[0].1.at)).count()
    };
    assert_eq!(of_one(&case.places(f)), 0, "a cluster lies in one pack");
    let cluster = |first: u64| {
        let places = case.places(f).into_iter();
        places.filter(|(page, _)| page / 8 == first / 8).map(|(_, at)| at).collect::<Vec<_>>()
    };
    let packed = |first: &u64| cluster(*first).iter().all(Place::is_packed);
    let first = (8..144).step_by(8).find(packed).expect("one in a pack");
    case.volume.commit(case.write(f, (first + 3) * PAGE, &page(5))).expect("it is durable");
    wanted[(first as usize + 3) * BLOCK..][..BLOCK].copy_from_slice(&page(5));
    case.is(f, &wanted);
    let now = cluster(first);
    assert!(now.is_sorted_by(|a, b| a.at + 1 == b.at) && !now.iter().any(Place::is_packed));
}

/// A neighbour that cannot be read is nobody's reason to fail, and stays what it is.
#[test]
fn a_damaged_neighbour_stays_where_it_lies() {
    let case = case(4, Compression::Off);
    let (f, wanted) = case.file("f", 8);
    let at = case.places(f)[2].1.at;
    case.volume.checkpoint().expect("a checkpoint");
    let mut block = vec![0; BLOCK];
    case.dev.read(at, &mut block).expect("it is read");
    block[100] ^= 1;
    case.dev.inner.write(at, &block).expect("memory");
    case.volume.commit(case.write(f, PAGE, &page(70))).expect("it is durable");
    case.volume.commit(case.write(f, 0, &page(71))).expect("it is durable");
    let read = |volume: &Volume, n: u64| volume.look(|ops| ops.read(f, n * PAGE, BLOCK));
    let again = open(Arc::new(MemDevice::from_bytes(case.dev.inner.bytes())));
    for volume in [&*case.volume, &again] {
        assert_eq!(read(volume, 0).expect("it was written"), page(71));
        assert_eq!(read(volume, 1).expect("it was written"), page(70));
        let damaged = read(volume, 2);
        assert!(matches!(damaged, Err(Error::Corrupt { at: a, .. }) if a == at), "{damaged:?}");
        assert_eq!(read(volume, 3).expect("beside it"), wanted[3 * BLOCK..4 * BLOCK]);
    }
}

/// Where only what is promised to others is left, nothing is written along: they find what they
/// were promised.
#[test]
fn what_is_promised_is_not_used_up() {
    let case = case(16, Compression::Off);
    let (f, mut wanted) = case.file("f", 400);
    let mut promises = Vec::new();
    while let Ok(promise) = case.volume.promise(8) {
        promises.push(promise);
    }
    promises.truncate(promises.len() - 5);
    let mut done = 0;
    for n in 0..48 {
        // A page of each of four clusters.
        let at = |k: u64| ((n * 4 + k) % 25 * 16 + 3) * PAGE;
        let mut txn = Txn::new();
        let write = |k: u64| case.volume.within(&mut txn, |ops| ops.write(f, at(k), &page(n + k)));
        (0..4).try_for_each(write).expect("it is staged");
        match case.volume.commit_relaxed(txn) {
            Ok(_) => {
                for k in 0..4 {
                    wanted[at(k) as usize..][..BLOCK].copy_from_slice(&page(n + k));
                }
                done += 1;
            }
            Err(Error::NoSpace) => {}
            Err(e) => panic!("{e}"),
        }
        let stands = case.volume.with_state(|state| Ok(state.has_room(Need::of(0))));
        assert!(stands.expect("it goes on"), "{n}");
    }
    assert!(done > 0);
    drop(promises);
    case.is(f, &wanted);
}
