//! Commits that are under way at once: which may be, who waits for whom, and that what comes out is
//! what they did.
#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod place;

use common::hooked::Hooked;
use common::{Op, PATHS, scratch};
use place::{Place, chmod, object};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use systx_base::{Kind, TxnId};
use systx_guard::plain::{Gate as _, Order, STALL};
use systx_guard::publication::Publication;
use systx_store::real::RealIo;
use systx_store::writeset::{Bind, Content, Data, Extent, Ix, Object, Origin, WriteSet};
use systx_txn::{BeginOptions, ObjectRef};

/// Long enough to show who does not wait; too short shows nothing wrong.
const A_WHILE: Duration = Duration::from_millis(100);
/// Only a hang takes longer.
const HANG: Duration = Duration::from_secs(300);

const PAGE: u64 = 4096;

/// Takes a name out of the root.
fn name(name: &str) -> WriteSet {
    let bind = Bind { dir: Ix(0), name: name.into(), target: None, displaces: None };
    WriteSet { objects: vec![object(Origin::Root)], binds: vec![bind], ..WriteSet::default() }
}

fn decided<'v>(place: &'v Place, id: u64, writes: &WriteSet) -> Publication<'v> {
    let mut publication = place.vol.publish(TxnId(id), writes);
    publication.decide(|| Ok::<(), ()>(())).unwrap();
    publication.let_next();
    publication
}

/// Whether a publication of `second` begins while one of `first` is decided and not over; it does
/// begin afterwards.
fn begins_beside(place: &Place, first: &WriteSet, second: &WriteSet) -> bool {
    let (begun, begins) = channel();
    let publication = decided(place, 1, first);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            drop(place.vol.publish(TxnId(2), second));
            begun.send(()).unwrap();
        });
        let beside = match begins.recv_timeout(A_WHILE) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(e) => panic!("{e}"),
        };
        drop(publication);
        if !beside {
            begins.recv_timeout(HANG).unwrap();
        }
        beside
    })
}

#[test]
fn who_does_not_meet_what_is_decided_does_not_wait_for_it() {
    let backing = scratch();
    for file in ["f", "g"] {
        fs::write(backing.path().join(file), b"old").unwrap();
    }
    let place = Place::open(backing.path(), ".");
    let (f, g) = (chmod(&place, "f"), chmod(&place, "g"));
    // The first may take its time: who begins within `A_WHILE` has not waited.
    let beside = |first: &WriteSet, second: &WriteSet| begins_beside(&place, first, second);
    assert!(beside(&f, &g) && beside(&f, &name("x")));
    assert!(!beside(&f, &f) && !beside(&name("x"), &name("x")));
    // In one directory.
    assert!(!beside(&name("x"), &name("y")));
}

/// Overwrites a page of a file of the root.
fn page(place: &Place, name: &str, page: u64) -> WriteSet {
    let stamp = place.vol.tree.stat_at(&place.vol.tree.root(), name.as_bytes()).unwrap().stamp();
    let origin = Origin::Host { parent: Ix(0), name: name.into(), kind: Kind::File, stamp };
    let extents = vec![Extent { offset: page * PAGE, data: Data::Inline(vec![b'n'; 9]) }];
    let content = Content::Patch { len: stamp.length(), keep: stamp.length(), extents };
    let changed = Object { content, ..object(origin) };
    WriteSet { objects: vec![object(Origin::Root), changed], ..WriteSet::default() }
}

#[test]
fn who_overwrites_other_pages_of_a_file_waits_only_where_the_store_needs_it_or_somebody_is_held() {
    let backing = scratch();
    fs::write(backing.path().join("f"), vec![b'o'; 3 * PAGE as usize]).unwrap();
    let hooked = Hooked::new(RealIo::open(backing.path()).unwrap());
    let real = Arc::new(RealIo::open(backing.path()).unwrap());
    let place = Place::open_over(backing.path(), ".", hooked.clone(), real);
    let [first, second] = [0, 1].map(|n| page(&place, "f", n));
    assert!(!begins_beside(&place, &first, &second), "files are one thing");
    hooked.share_files();
    assert!(begins_beside(&place, &first, &second));
    assert!(!begins_beside(&place, &first, &first), "the same page");
    let mut longer = second.clone();
    longer.objects[1].content = Content::Patch { len: 4 * PAGE, keep: 3 * PAGE, extents: vec![] };
    assert!(!begins_beside(&place, &first, &longer) && !begins_beside(&place, &longer, &first));
    // A plain read of it.
    let oid = place.vol.tree.stat_at(&place.vol.tree.root(), b"f").unwrap().id.oid();
    let publication = decided(&place, 1, &first);
    std::thread::scope(|scope| {
        let order = Order::new(place.vol.clone(), STALL);
        let read = scope.spawn(move || {
            order.read(&[ObjectRef::Pages { oid, first: 2, last: 2 }], &mut || Ok(()))
        });
        let begun = Instant::now();
        let waits = loop {
            let (begun_too, begins) = channel();
            let (place, second) = (&place, &second);
            scope.spawn(move || {
                drop(place.vol.publish(TxnId(2), second));
                begun_too.send(()).unwrap();
            });
            // The read may not have come yet.
            match begins.recv_timeout(A_WHILE) {
                Ok(()) => assert!(begun.elapsed() < HANG, "it never waits"),
                Err(_) => break begins,
            }
        };
        assert!(!read.is_finished());
        drop(publication);
        read.join().unwrap().unwrap();
        waits.recv_timeout(HANG).unwrap();
    });
}

#[test]
fn one_at_a_time_is_on_its_way_to_a_decision() {
    let backing = scratch();
    let place = Place::open(backing.path(), ".");
    let (begun, begins) = channel();
    let mut first = place.vol.publish(TxnId(1), &name("x"));
    std::thread::scope(|scope| {
        let place = &place;
        scope.spawn(move || {
            drop(place.vol.publish(TxnId(2), &WriteSet::default()));
            begun.send(()).unwrap();
        });
        assert!(begins.recv_timeout(A_WHILE).is_err(), "beside one that is not decided");
        first.decide(|| Ok::<(), ()>(())).unwrap();
        assert!(begins.recv_timeout(A_WHILE).is_err(), "before it lets the next one begin");
        first.let_next();
        begins.recv_timeout(HANG).unwrap();
    });
}

/// Threads that commit all the time, each in files of its own and names of one directory;
/// validation would take for an outsider's what does not follow from the others' notes.
#[test]
fn what_several_commit_at_once_is_what_is_there_and_nobody_is_taken_for_an_outsider() {
    const THREADS: usize = 4;
    const ROUNDS: u8 = 60;
    let backing = scratch();
    let place = Place::open(backing.path(), ".");
    for file in &PATHS[..THREADS] {
        fs::write(backing.path().join(file), b"old").unwrap();
    }
    std::thread::scope(|scope| {
        for mine in 0..THREADS {
            let place = &place;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let twin = place.begin(BeginOptions::default(), false);
                    // In place, by another inode, and through names of the directory that all of
                    // them change.
                    if round % 3 == 0 {
                        twin.run(&Op::Unlink(mine)).unwrap();
                        twin.run(&Op::Create(mine, 0o644)).unwrap();
                    } else if round % 3 == 1 {
                        twin.run(&Op::Truncate(mine, 0)).unwrap();
                    }
                    twin.run(&Op::Write(mine, 0, vec![round; 300])).unwrap();
                    assert!(place.end_of(&twin), "thread {mine}, round {round}");
                }
            });
        }
    });
    for file in &PATHS[..THREADS] {
        assert_eq!(fs::read(backing.path().join(file)).unwrap(), [ROUNDS - 1; 300]);
    }
}

/// The inode of what a transaction rewrites from empty is the same afterwards where all go through
/// us; elsewhere another one takes its place at once, large files are not copied into the journal,
/// and what may be a running program cannot be written to.
#[test]
fn small_files_that_are_rewritten_keep_their_inode_where_all_go_through_us() {
    let large = 70_000;
    for (guarded, file, len, mode, keeps) in [
        (".", "f", 300, 0o644, true),
        ("d", "d/f", 300, 0o644, true),
        ("d", "f", 300, 0o644, false),
        (".", "f", large, 0o644, false),
        (".", "f", 300, 0o755, false),
    ] {
        let backing = scratch();
        fs::create_dir(backing.path().join("d")).unwrap();
        let path = backing.path().join(file);
        fs::write(&path, b"old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        let place = Place::open(backing.path(), guarded);
        let at = PATHS.iter().position(|known| *known == file).unwrap();
        assert!(place.commit(|twin| {
            twin.run(&Op::Truncate(at, 0)).unwrap();
            for piece in 0..len / 100 {
                let offset = u16::try_from(piece * 100).unwrap_or(u16::MAX);
                twin.run(&Op::Write(
                    at,
                    offset,
                    vec![7; if offset == u16::MAX { 9000 } else { 100 }],
                ))
                .unwrap();
            }
        }));
        let now = fs::metadata(&path).unwrap();
        assert!(now.len() >= len.min(65_000));
        assert_eq!(now.ino() == before, keeps, "{file} of {len}, {guarded} guarded");
    }
}
