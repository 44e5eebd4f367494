//! Each kind of finding is found, by its name; no damage makes the check fail otherwise.

use super::{Check, Finding, check};
use crate::checkpoint;
use crate::device::{Device, MemDevice};
use crate::error::{Error, Structure};
use crate::format::{BLOCK, Compression, ROOT};
use crate::object::{Body, Link, Page, Place, Within};
use crate::ops::Shape;
use crate::recovery::recover;
use crate::state::{Limits, State};
use crate::txn::Txn;
use crate::volume::{Format, Volume, mkfs};
use std::collections::BTreeSet;
use std::sync::Arc;
use systx_base::{Kind, Time, mix};

fn clock() -> crate::tree::Clock {
    Arc::new(Time::default)
}

fn open(dev: &Arc<MemDevice>) -> Volume {
    Volume::open(dev.clone(), clock(), 9, Limits::default()).expect("it opens")
}

/// A volume with something of everything: files, directories, one with a long record, links.
fn volume() -> Arc<MemDevice> {
    let dev = Arc::new(MemDevice::new(9 + 48 * 16));
    let label = "checked".to_owned();
    let format = Format {
        segment_blocks: 16,
        cluster: 1,
        id: [1; 16],
        label,
        owner: (0, 0),
        compression: Default::default(),
    };
    mkfs(dev.clone(), &format, clock()).expect("mkfs");
    let volume = open(&dev);
    let act = |n: u64| {
        volume.plain(|ops| {
            if n == 0 {
                ops.create(ROOT, b"d", &Shape::new(Kind::Dir, 0o755))?;
            }
            let d = ops.lookup(ROOT, b"d")?.ino;
            let name = format!("a file with a long name, number {n}");
            let f = ops.create(d, name.as_bytes(), &Shape::new(Kind::File, 0o600))?;
            ops.write(f, 0, &[n as u8; 3000])?;
            ops.link(f, ROOT, name.as_bytes())
        })
    };
    (0..40).for_each(|n| act(n).expect("a file"));
    volume.close().expect("it closes");
    dev
}

fn checked(dev: &Arc<MemDevice>) -> Check {
    check(dev.clone(), clock()).expect("it can be checked")
}

fn flipped(dev: &MemDevice, at: u64, byte: usize) -> Arc<MemDevice> {
    let mut bytes = dev.bytes();
    bytes[at as usize * BLOCK + byte] ^= 0x10;
    Arc::new(MemDevice::from_bytes(bytes))
}

#[test]
fn a_volume_without_damage_has_no_finding() {
    let found = checked(&volume());
    assert_eq!(found.findings, []);
    assert_eq!((found.objects, found.pages), (42, 40));
    let kinds: BTreeSet<Structure> = found.metadata.values().copied().collect();
    let all = [
        Structure::Super,
        Structure::SuperCopy,
        Structure::Checkpoint,
        Structure::Root,
        Structure::Usage,
        Structure::Chunk,
        Structure::Record,
        Structure::Summary,
    ];
    assert_eq!(kinds, all.into(), "the volume has something of everything");
}

#[test]
fn damage_to_any_one_block_of_metadata_is_found_by_name() {
    let dev = volume();
    for (at, what) in checked(&dev).metadata {
        for byte in [0, 100, 1999, BLOCK - 1] {
            let damaged = flipped(&dev, at, byte);
            let found = checked(&damaged).findings;
            // Behind what the structure needs of its last block there is nothing to damage.
            let padding = matches!(
                what,
                Structure::Root | Structure::Usage | Structure::Chunk | Structure::Record
            ) && found.is_empty();
            let named =
                found.iter().any(|f| matches!(f, Finding::Damaged { what: w, .. } if *w == what));
            assert!(named || padding && byte > 0, "{what:?} at {at}, byte {byte}: {found:?}");
        }
    }
}

#[test]
fn damage_to_a_page_is_found() {
    let dev = volume();
    let (mut state, ..) = recover(dev.clone(), clock()).expect("it opens");
    let ino = state.tree.get(ROOT).expect("root").entries().expect("entries").values();
    let ino = ino.map(|l| l.ino).max().expect("a file");
    let page = state.tree.get(ino).expect("a file").pages().expect("pages")[&0].clone();
    let at = page.place.expect("it was written").at;
    let found = checked(&flipped(&dev, at, 7)).findings;
    assert!(
        matches!(&found[..], [Finding::Damaged { what: Structure::Data, at: a, .. }] if *a == at)
    );
}

/// Damages a volume in a way that all sums are right.
fn wrong(change: impl FnOnce(&mut State)) -> Vec<Finding> {
    let dev = volume();
    let (mut state, ..) = recover(dev.clone(), clock()).expect("it opens");
    state.head.epoch += 1;
    change(&mut state);
    checkpoint::write(&mut state).expect("a checkpoint");
    checked(&dev).findings
}

fn file(state: &mut State) -> u64 {
    let entries = state.tree.get(ROOT).expect("root").entries().expect("entries");
    entries.values().find(|l| l.kind == Kind::File).expect("a file").ino
}

fn page(state: &mut State) -> Place {
    let ino = file(state);
    state.tree.get(ino).expect("a file").pages().expect("pages")[&0].place.expect("a place")
}

fn pages(
    state: &mut State,
    ino: u64,
    change: impl FnOnce(&mut std::collections::BTreeMap<u64, Page>),
) {
    match &mut state.tree.change(ino).expect("a file").body {
        Body::Pages(pages) => change(pages),
        _ => panic!("not a file"),
    }
}

fn names(state: &mut State, change: impl FnOnce(&mut std::collections::BTreeMap<Vec<u8>, Link>)) {
    match &mut state.tree.change(ROOT).expect("root").body {
        Body::Entries(entries) => change(entries),
        _ => panic!("not a directory"),
    }
}

#[test]
fn a_wrong_link_count_is_found() {
    let found = wrong(|state| {
        let ino = file(state);
        state.tree.change(ino).expect("a file").node.attrs.nlink = 7;
    });
    assert!(matches!(found[..], [Finding::LinkCount { says: 7, counted: 2, .. }]), "{found:?}");
}

#[test]
fn a_name_of_nothing_is_found() {
    let link = Link { ino: 12345, kind: Kind::File };
    let found = wrong(|state| names(state, |all| all.extend([(b"ghost".to_vec(), link)])));
    let name = b"ghost".to_vec();
    assert_eq!(found, [Finding::Dangling { dir: ROOT, name }]);
}

#[test]
fn a_name_of_another_type_is_found() {
    let found = wrong(|state| {
        names(state, |all| {
            let link = all.values_mut().find(|l| l.kind == Kind::File).expect("a file");
            link.kind = Kind::Fifo;
        });
    });
    assert!(matches!(&found[..], [Finding::WrongType { dir: ROOT, .. }]), "{found:?}");
}

#[test]
fn an_object_without_a_name_is_found() {
    let found = wrong(|state| {
        names(state, |all| all.retain(|name, _| name != b"d"));
    });
    assert!(found.iter().any(|f| matches!(f, Finding::Unreachable(_))), "{found:?}");
    assert!(found.iter().any(|f| matches!(f, Finding::LinkCount { ino: ROOT, .. })), "{found:?}");
}

#[test]
fn a_directory_that_is_not_where_it_says_is_found() {
    let mut dir = 0;
    let found = wrong(|state| {
        let entries = state.tree.get(ROOT).expect("root").entries().expect("entries");
        dir = entries[&b"d".to_vec()].ino;
        state.tree.change(dir).expect("d").node.parent = dir;
    });
    assert_eq!(found, [Finding::WrongParent(dir)]);
}

#[test]
fn a_page_beyond_the_end_is_found() {
    let found = wrong(|state| {
        let ino = file(state);
        pages(state, ino, |all| {
            let first = all.remove(&0).expect("a page");
            all.insert(9, first);
        });
    });
    assert!(matches!(found[0], Finding::BeyondEnd { page: 9, .. }), "{found:?}");
    // The summary speaks of the page that it was.
    assert!(matches!(found[1..], [Finding::Unlisted { .. }]), "{found:?}");
}

#[test]
fn a_block_of_two_is_found() {
    let mut at = 0;
    let found = wrong(|state| {
        let (place, ino) = (page(state), file(state));
        at = place.at;
        let other = state.tree.get(ROOT).expect("root").entries().expect("entries").values();
        let other = other.filter(|l| l.kind == Kind::File && l.ino != ino).map(|l| l.ino).min();
        let page = Page { place: Some(place), memory: None };
        pages(state, other.expect("another"), |all| drop(all.insert(0, page)));
    });
    assert!(found.contains(&Finding::Shared { at }), "{found:?}");
}

/// A page of a pack that two files have; packs that overlap, or lie where a page does.
#[test]
fn packs_that_are_not_alone_are_found() {
    let packed = |at, index, blocks| {
        let place = Place { at, crc: 0, within: Within { index, blocks } };
        Page { place: Some(place), memory: None }
    };
    for ((first, n), (index, blocks), is_shared) in [
        ((0, 4), (0, 4), true),
        ((0, 4), (1, 4), false),
        ((0, 4), (1, 3), true),
        ((2, 1), (1, 3), true),
    ] {
        let mut at = 0;
        let found = wrong(|state| {
            // Blocks of a segment that nobody uses.
            let free = (0..).find(|n| state.usage.is_free(*n)).expect("a free segment");
            at = state.tree.env.geometry.first(free);
            let (ino, root) = (file(state), state.tree.get(ROOT).expect("root"));
            let all = root.entries().expect("entries").values();
            let other = all.filter(|l| l.kind == Kind::File && l.ino != ino).map(|l| l.ino).min();
            pages(state, ino, |all| drop(all.insert(0, packed(at + first, 0, n))));
            pages(state, other.expect("another"), |all| {
                all.insert(0, packed(at, index, blocks));
            });
        });
        let shared = found.iter().any(|f| matches!(f, Finding::Shared { .. }));
        assert_eq!(shared, is_shared, "{found:?}");
    }
    let mut at = 0;
    let found = wrong(|state| {
        at = page(state).at;
        let (ino, root) = (file(state), state.tree.get(ROOT).expect("root"));
        let all = root.entries().expect("entries").values();
        let other = all.filter(|l| l.kind == Kind::File && l.ino != ino).map(|l| l.ino).min();
        pages(state, other.expect("another"), |all| drop(all.insert(0, packed(at, 0, 1))));
    });
    assert!(found.contains(&Finding::Shared { at }), "{found:?}");
}

/// A page that has come to a file from another one, by itself and in a pack: the list of such files
/// does not have it.
#[test]
fn a_file_that_is_not_listed_is_found() {
    for compression in [Compression::Off, Compression::Zstd] {
        let dev = Arc::new(MemDevice::new(9 + 48 * 16));
        let (id, label) = ([1; 16], String::new());
        let format =
            Format { segment_blocks: 16, cluster: 1, id, label, owner: (0, 0), compression };
        mkfs(dev.clone(), &format, clock()).expect("mkfs");
        let volume = open(&dev);
        let make = |name: &[u8], pages: usize| {
            volume.plain(|ops| {
                let f = ops.create(ROOT, name, &Shape::new(Kind::File, 0o600))?;
                ops.write(f, 0, &vec![7; pages * BLOCK])?;
                Ok(f)
            })
        };
        let (from, to) = (make(b"from", 9).expect("a file"), make(b"to", 9).expect("a file"));
        volume.checkpoint().expect("a checkpoint");
        let packed = volume.pack().expect("it is packed").pages;
        assert_eq!(packed > 0, compression.is_on());
        let mut txn = Txn::new();
        let take =
            |ops: &mut crate::Ops<'_>| ops.take((from, 4), (to, 7)).map(|took| assert!(took));
        volume.within(&mut txn, take).and_then(|()| volume.commit(txn)).expect("it is moved");
        volume.close().expect("it closes");
        assert_eq!(checked(&dev).findings, []);
        let (mut state, ..) = recover(dev.clone(), clock()).expect("it opens");
        state.head.epoch += 1;
        let place = state.tree.get(to).expect("a file").pages().expect("pages")[&7].place;
        let (segment, _) = state.tree.env.geometry.locate(place.expect("a place").at).expect("one");
        state.tree.strays.forget(to);
        checkpoint::write(&mut state).expect("a checkpoint");
        assert_eq!(checked(&dev).findings, [Finding::Unlisted { ino: to, segment }]);
    }
}

#[test]
fn a_wrong_usage_is_found() {
    let mut segment = 0;
    let found = wrong(|state| {
        let at = page(state).at;
        segment = state.tree.env.geometry.locate(at).expect("a segment").0;
        state.usage.add(at).expect("a segment");
    });
    assert!(matches!(&found[..], [Finding::WrongUsage { segment: s, .. }] if *s == segment));
}

#[test]
fn a_log_that_goes_on_behind_its_end_is_found() {
    let dev = volume();
    let volume = open(&dev);
    let mut ends = Vec::new();
    for n in 0..3 {
        ends.push(recover(dev.clone(), clock()).expect("it opens").0.head);
        volume
            .plain(|ops| {
                ops.create(ROOT, format!("late{n}").as_bytes(), &Shape::new(Kind::Fifo, 0))
            })
            .expect("a name");
        volume.sync().expect("it is written");
    }
    drop(volume);
    assert_eq!(checked(&dev).findings, []);
    let (state, ..) = recover(dev.clone(), clock()).expect("it opens");
    let geometry = state.tree.env.geometry;
    let place = |n: usize| geometry.first(ends[n].segment) + u64::from(ends[n].offset);
    for broken in [0, 1] {
        let damaged = flipped(&dev, place(broken), 50);
        let found = checked(&damaged).findings;
        assert!(found.contains(&Finding::LogBroken { at: place(broken + 1) }), "{found:?}");
        // Nobody goes on from there: what is lost would never be told.
        let before = damaged.bytes();
        let opened = Volume::open(damaged.clone(), clock(), 9, Limits::default());
        assert!(matches!(opened, Err(Error::Corrupt { at, .. }) if at == place(broken)));
        assert_eq!(damaged.bytes(), before);
        Volume::open_to_read(damaged.clone(), clock()).expect("its snapshots are whole");
        // Unless somebody says so.
        let cut = Volume::open_broken(damaged.clone(), clock(), 9, Limits::default());
        let names = cut.expect("it opens").look(|ops| ops.list(ROOT, None, 100)).expect("a list");
        let late = names.iter().filter(|(name, _)| name.starts_with(b"late")).count();
        assert_eq!((late, checked(&damaged).findings), (broken, vec![]));
    }
    // The end of the log is as after a power cut that tore its last write.
    open(&flipped(&dev, place(2), 50));
    // Both copies of the last checkpoint.
    let region = crate::format::Checkpoint::region(state.last.sequence);
    let damaged = flipped(&flipped(&dev, region, 60), region + 1, 60);
    let found = checked(&damaged).findings;
    let lost = |f: &Finding| matches!(f, Finding::CheckpointLost { .. });
    assert!(found.iter().any(lost), "{found:?}");
}

#[test]
fn any_damage_is_a_finding_or_an_error_and_never_more() {
    let dev = volume();
    let blocks = dev.blocks();
    for n in 0..400u64 {
        let mut bytes = dev.bytes();
        for k in 0..1 + n % 5 {
            let draw = mix(n * 100 + k + 1);
            // Mostly where something is.
            let block = if draw & 1 == 0 { draw >> 8 & 63 } else { (draw >> 8) % blocks };
            let at = block as usize * BLOCK + (draw >> 40) as usize % BLOCK;
            let len = ((draw >> 52) as usize % 64 + 1).min(bytes.len() - at);
            bytes[at..at + len].fill((draw >> 3) as u8);
        }
        let damaged = Arc::new(MemDevice::from_bytes(bytes));
        match check(damaged.clone(), clock()) {
            Ok(_) | Err(Error::NotAVolume(_)) => {}
            Err(e) => panic!("{n}: {e}"),
        }
        if let Ok(volume) = Volume::open(damaged, clock(), 1, Limits::default()) {
            let listed = volume.look(|ops| ops.list(ROOT, None, 100));
            for (_, link) in listed.unwrap_or_default() {
                let _ = volume.look(|ops| ops.read(link.ino, 0, 5000));
            }
            let _ = volume.plain(|ops| ops.create(ROOT, b"new", &Shape::new(Kind::Fifo, 0)));
            let _ = volume.close();
        }
    }
}
