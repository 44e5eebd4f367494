//! Listings of a view while its names change: every name that stays is seen exactly once, whatever
//! happens between two requests, and every listing comes to an end.

mod common;

use common::*;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use systx_base::{NodeId, TxnId};
use systx_txn::Isolation;
use systx_vfs::api::*;
use systx_vfs::client;
use systx_vfs::freeze::Everything;
use systx_vfs::view::View;

/// One request: up to `count` names from a cookie on, and where to go on.
fn some(view: &View, dir: NodeId, from: u64, count: usize) -> (Vec<Vec<u8>>, u64) {
    let (mut names, mut next) = (Vec::new(), from);
    view.readdir(dir, from, true, &mut |e| {
        if names.len() == count {
            return false;
        }
        names.push(e.name.to_vec());
        next = e.next;
        true
    })
    .expect("readdir");
    (names, next)
}

fn all(view: &View, dir: NodeId) -> Vec<Vec<u8>> {
    let mut names = some(view, dir, 0, usize::MAX).0;
    names.retain(|name| name != b"." && name != b"..");
    names
}

fn name(n: u16) -> Vec<u8> {
    format!("name-{n}").into_bytes()
}

const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };

#[derive(Clone, Debug)]
enum Change {
    Create(u16),
    Unlink(u16),
    Rename(u16, u16),
    Lookup(u16),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (0u16..120).prop_map(Change::Create),
        (0u16..120).prop_map(Change::Unlink),
        (0u16..120, 0u16..120).prop_map(|(a, b)| Change::Rename(a, b)),
        (0u16..120).prop_map(Change::Lookup),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(200), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn what_stays_is_seen_once(
        start in proptest::collection::btree_set(0u16..100, 0..60),
        before in proptest::collection::vec(change(), 0..10),
        rounds in proptest::collection::vec((1usize..20, proptest::collection::vec(change(), 0..6)), 1..20),
    ) {
        let dir = scratch();
        for n in &start {
            fs::write(dir.path().join(std::ffi::OsStr::from_bytes(&name(*n))), "").expect("write");
        }
        let view = open_view(&open_volume(dir.path()), 1, Isolation::Serializable);
        let root = NodeId::ROOT;
        let mut model = start;
        let mut touched = BTreeSet::new();
        let mut run = |change: &Change, model: &mut BTreeSet<u16>| match change {
            Change::Create(n) => {
                let made = view.create(CALLER, root, &name(*n), NEW, true);
                assert_eq!(made.is_ok(), model.insert(*n));
                touched.insert(*n);
            }
            Change::Unlink(n) => {
                let gone = view.unlink(CALLER, root, &name(*n));
                assert_eq!(gone.is_ok(), model.remove(n));
                touched.insert(*n);
            }
            Change::Rename(a, b) => {
                let to = (root, &name(*b)[..]);
                let done = view.rename(CALLER, (root, &name(*a)), to, RenameHow::Replace);
                assert_eq!(done.is_ok(), model.contains(a));
                if model.contains(a) && a != b {
                    model.remove(a);
                    model.insert(*b);
                    touched.extend([*a, *b]);
                }
            }
            Change::Lookup(n) => {
                let found = view.lookup(CALLER, root, &name(*n)).expect("lookup");
                assert_eq!(found.is_some(), model.contains(n));
            }
        };
        for change in &before {
            run(change, &mut model);
        }
        let stays = model.clone();
        let mut changed = BTreeSet::new();
        let (mut seen, mut cookie, mut rounds) = (BTreeMap::<Vec<u8>, u32>::new(), 0, rounds.into_iter());
        loop {
            let (count, changes) = rounds.next().unwrap_or((10, Vec::new()));
            let (names, next) = some(&view, root, cookie, count);
            if names.is_empty() {
                break;
            }
            prop_assert!(next > cookie, "cookies rise");
            cookie = next;
            for name in names {
                *seen.entry(name).or_default() += 1;
            }
            for change in &changes {
                match change {
                    Change::Create(n) | Change::Unlink(n) => drop(changed.insert(*n)),
                    Change::Rename(a, b) => changed.extend([*a, *b]),
                    Change::Lookup(_) => {}
                }
                run(change, &mut model);
            }
        }
        for n in stays.difference(&changed) {
            prop_assert_eq!(seen.get(&name(*n)), Some(&1), "{}", n);
        }
        let now: BTreeSet<_> = all(&view, root).into_iter().collect();
        let expected: BTreeSet<_> = model.iter().map(|n| name(*n)).collect();
        prop_assert_eq!(now, expected);
    }
}

#[test]
fn ten_thousand_names() {
    let dir = scratch();
    let long = |n: u32| format!("{n:05}-{}", "x".repeat((n % 200) as usize));
    for n in 0..10_000 {
        fs::write(dir.path().join(long(n)), "").unwrap();
    }
    let view = open_view(&open_volume(dir.path()), 1, Isolation::Serializable);
    // Every cookie is a place to go on from, and stays so while half of the names go.
    let mut places = Vec::new();
    let mut order = Vec::new();
    view.readdir(NodeId::ROOT, 0, false, &mut |e| {
        order.push(e.name.to_vec());
        places.push(e.next);
        true
    })
    .unwrap();
    assert_eq!(order.len(), 10_002);
    let gone: BTreeSet<Vec<u8>> = (0..10_000).step_by(2).map(|n| long(n).into_bytes()).collect();
    for name in &gone {
        view.unlink(CALLER, NodeId::ROOT, name).unwrap();
    }
    for n in 10_000..11_000 {
        view.create(CALLER, NodeId::ROOT, long(n).as_bytes(), NEW, true).unwrap();
    }
    // New names come first, before all that a listing under way still has to tell.
    for at in (2..places.len()).step_by(997) {
        let (rest, _) = some(&view, NodeId::ROOT, places[at], usize::MAX);
        let want: Vec<_> =
            order[at + 1..].iter().filter(|name| !gone.contains(*name)).cloned().collect();
        assert_eq!(rest, want, "from the cookie behind name {at}");
    }
    assert_eq!(all(&view, NodeId::ROOT).len(), 6_000);
    // A program that removes what it lists, in small steps, as rm -r does.
    let (mut cookie, mut removed) = (0, 0);
    loop {
        let (names, next) = some(&view, NodeId::ROOT, cookie, 100);
        if names.is_empty() {
            break;
        }
        for name in names.iter().filter(|name| *name != b"." && *name != b"..") {
            view.unlink(CALLER, NodeId::ROOT, name).unwrap();
            removed += 1;
        }
        cookie = next;
    }
    assert_eq!(removed, 6_000);
    assert_eq!(all(&view, NodeId::ROOT).len(), 0);
    assert_eq!(view.freeze(&Everything).writes.binds.len(), 10_000);
}

#[test]
fn a_listing_is_worn_once_an_eighth_of_its_files_was_read() {
    let dir = scratch();
    for n in 0..40 {
        fs::write(dir.path().join(format!("f{n:02}")), "x").unwrap();
    }
    let view = open_view(&open_volume(dir.path()), 1, Isolation::Serializable);
    let file = |n: u32| {
        let name = format!("f{n:02}").into_bytes();
        view.lookup(CALLER, NodeId::ROOT, &name).unwrap().unwrap().node
    };
    let worn = |files: std::ops::Range<u32>| {
        files.filter_map(|n| Some((n, view.worn_listing(file(n))?))).collect::<Vec<_>>()
    };
    assert_eq!(worn(0..40), [], "the kernel has no listing");
    all(&view, NodeId::ROOT);
    assert_eq!(worn(0..40), [(4, NodeId::ROOT)], "once, until it is listed again");
    all(&view, NodeId::ROOT);
    assert_eq!(worn(10..14), []);
    // A listing without attributes settles nothing and is not counted.
    view.readdir(NodeId::ROOT, 0, false, &mut |_| true).unwrap();
    assert_eq!(worn(14..16), [(14, NodeId::ROOT)]);
}

/// A program that has used the attributes of all that it listed is told them with the next listing.
/// All that is told is read, and nothing else is.
#[test]
fn what_a_listing_tells_is_read_and_nothing_else() {
    const FILES: usize = 70;
    let dir = scratch();
    let name = |n: usize| format!("f{n:02}").into_bytes();
    for d in ["a", "b"] {
        fs::create_dir(dir.path().join(d)).unwrap();
        (0..FILES).for_each(|n| fs::write(dir.path().join(format!("{d}/f{n:02}")), "x").unwrap());
    }
    let [lister, stranger] = [7, 8].map(|tid| Caller { tid, ..CALLER });
    for (asks, asker) in [(0, lister), (FILES / 2, lister), (FILES, stranger), (FILES, lister)] {
        let vol = open_volume(dir.path());
        let view = open_view(&vol, 1, Isolation::Serializable);
        let of = |view: &View, name: &[u8]| view.lookup(CALLER, NodeId::ROOT, name).unwrap();
        let tell = |d: NodeId| {
            let _serving = client::serving(lister);
            let mut told = Vec::new();
            view.readdir(d, 0, true, &mut |e| {
                told.extend(e.name.starts_with(b"f").then_some(e.entry.is_some()));
                true
            })
            .unwrap();
            told
        };
        let [a, b] = [b"a", b"b"].map(|d| of(&view, d).unwrap().node);
        assert_eq!(tell(a), [false; FILES]);
        (0..asks).for_each(|n| assert!(view.lookup(asker, a, &name(n)).unwrap().is_some()));
        // Of what was looked at it is told again: the kernel may doubt it by now.
        assert_eq!(tell(a).iter().filter(|with| **with).count(), asks);
        let told = tell(b);
        let with = told.iter().filter(|with| **with).count();
        let uses = asks == FILES && asker == lister;
        assert!(if uses { (FILES / 2..FILES).contains(&with) } else { with == 0 }, "{with}");
        for (n, with) in told.into_iter().enumerate() {
            let young = TxnId(2 + n as u64);
            let other = open_view(&vol, young.0, Isolation::Serializable);
            let b = of(&other, b"b").unwrap().node;
            let file = other.lookup(CALLER, b, &name(n)).unwrap().unwrap().node;
            assert_eq!(other.write(file, 1, b"more", false).is_err(), with, "file {n}");
            vol.engine.abort(young);
        }
    }
}

#[test]
fn dots_and_removed_directories() {
    let dir = scratch();
    populate(dir.path()).unwrap();
    let twin = Twin(open_view(&open_volume(dir.path()), 1, Isolation::Serializable));
    let dots = |node: NodeId| {
        let mut inos = Vec::new();
        twin.0
            .readdir(node, 0, true, &mut |e| {
                if e.name == b"." || e.name == b".." {
                    assert!(e.entry.is_none());
                    inos.push(e.ino);
                }
                true
            })
            .unwrap();
        inos
    };
    let ino = |path: &str| twin.walk(path).unwrap().attr.ino;
    let root = twin.0.root().unwrap().attr.ino;
    assert_eq!(dots(NodeId::ROOT), [root, root]);
    let s = twin.walk("d/s").unwrap().node;
    assert_eq!(dots(s), [ino("d/s"), ino("d")]);
    twin.0
        .rename(
            CALLER,
            (twin.walk("d").unwrap().node, b"s"),
            (NodeId::ROOT, b"s"),
            RenameHow::Replace,
        )
        .unwrap();
    assert_eq!(dots(s), [ino("s"), root], "a moved directory has another parent");
    twin.0.unlink(CALLER, s, b"f").unwrap();
    twin.0.rmdir(CALLER, NodeId::ROOT, b"s").unwrap();
    assert_eq!(dots(s), [], "a removed directory has no names, not even its own");
    assert_eq!(twin.0.create(CALLER, s, b"x", NEW, true), Err(Errno::NOENT));
}

/// Deeper than any stack or path: nothing in a view may recurse into a tree.
#[test]
fn a_deep_tree() {
    let dir = scratch();
    let mut at =
        rustix::fs::open(dir.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    let depth = 2_000;
    for _ in 0..depth {
        rustix::fs::mkdirat(&at, "d", rustix::fs::Mode::from_raw_mode(0o755)).unwrap();
        at = rustix::fs::openat(&at, "d", rustix::fs::OFlags::PATH, rustix::fs::Mode::empty())
            .unwrap();
    }
    let path = dir.path().to_path_buf();
    let walk = move || {
        let view = open_view(&open_volume(&path), 1, Isolation::Serializable);
        let mut node = NodeId::ROOT;
        for _ in 0..depth {
            node = view.lookup(CALLER, node, b"d").unwrap().unwrap().node;
        }
        for _ in 0..depth {
            node = view.mkdir(CALLER, node, b"n", NEW).unwrap().node;
        }
        view.create(CALLER, node, b"f", NEW, true).unwrap();
        assert_eq!(view.validate(), []);
        let frozen = view.freeze(&Everything);
        assert_eq!(frozen.writes.check(), Ok(()));
        assert_eq!(frozen.writes.binds.len(), depth + 1);
        assert_eq!(view.changes().len(), depth + 1);
        // From the top again, with the handles of the bottom forgotten.
        view.readdir(NodeId(2), 0, true, &mut |_| true).unwrap();
        view.rename(CALLER, (NodeId::ROOT, b"d"), (NodeId::ROOT, b"e"), RenameHow::Replace)
            .unwrap();
        assert_eq!(view.validate(), []);
    };
    // A stack as small as those of the threads that serve requests.
    let thread = std::thread::Builder::new().stack_size(160 << 10).spawn(walk).unwrap();
    let ended = thread.join();
    // The crate that removes the scratch directory recurses.
    let removed = std::process::Command::new("rm").arg("-rf").arg(dir.path().join("d")).status();
    assert!(removed.unwrap().success());
    ended.unwrap();
}
