//! Two transactions on one volume, a table of pairs of calls: who loses, or that nobody does.
//!
//! The first one is older and so wins any conflict (docs/SEMANTICS.md, "Objects, conflicts, who
//! wins"); each pair is run with each of the two calls first.

#![allow(clippy::unwrap_used)]

mod common;

use common::*;
use rustix::io::Errno;
use std::fs;
use std::sync::Arc;
use systx_base::{NodeId, TxnId};
use systx_txn::{Isolation, Opponent, Status};
use systx_vfs::api::*;
use systx_vfs::freeze::Everything;
use systx_vfs::view::View;
use systx_vfs::volume::Volume;

const OLD: TxnId = TxnId(1);
const YOUNG: TxnId = TxnId(2);

type Call = fn(&Twin) -> Result<(), Errno>;

/// How a pair ends, under serializable and under snapshot isolation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    /// Nobody loses under either.
    Both,
    /// The younger one loses under either.
    Lost,
    /// Under snapshot isolation both go on.
    LostIfSerializable,
    /// Under snapshot isolation the second call cannot follow the first, but the first can follow
    /// the second.
    LostIfSecond,
    /// The other way round.
    LostIfFirst,
}
use Ends::*;

fn at(twin: &Twin, path: &str) -> Result<NodeId, Errno> {
    twin.walk(path).map(|entry| entry.node)
}

fn up<'a>(twin: &Twin, path: &'a str) -> Result<(NodeId, &'a [u8]), Errno> {
    twin.parent(path)
}

const NEW: NewAttr = NewAttr { mode: 0o644, umask: 0o022 };

fn create(twin: &Twin, path: &str) -> Result<(), Errno> {
    let (dir, name) = up(twin, path)?;
    twin.0.create(CALLER, dir, name, NEW, true).map(drop)
}
fn mkdir(twin: &Twin, path: &str) -> Result<(), Errno> {
    let (dir, name) = up(twin, path)?;
    twin.0.mkdir(CALLER, dir, name, NEW).map(drop)
}
fn stat(twin: &Twin, path: &str) -> Result<(), Errno> {
    match twin.walk(path) {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e),
    }
}
fn list(twin: &Twin, path: &str) -> Result<(), Errno> {
    // As the kernel asks for every listing.
    twin.0.readdir(at(twin, path)?, 0, true, &mut |_| true)
}
fn chmod(twin: &Twin, path: &str) -> Result<(), Errno> {
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    twin.0.setattr(CALLER, at(twin, path)?, set).map(drop)
}
fn read(twin: &Twin, path: &str, page: u64) -> Result<(), Errno> {
    twin.0.read(at(twin, path)?, page * 4096, &mut [0; 4096]).map(drop)
}
fn write(twin: &Twin, path: &str, page: u64) -> Result<(), Errno> {
    twin.0.write(at(twin, path)?, page * 4096, &[1; 4096], false).map(drop)
}
fn append(twin: &Twin, path: &str) -> Result<(), Errno> {
    let entry = twin.walk(path)?;
    twin.0.write(entry.node, entry.attr.size, b"more", false).map(drop)
}
fn truncate(twin: &Twin, path: &str) -> Result<(), Errno> {
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    twin.0.setattr(CALLER, at(twin, path)?, set).map(drop)
}
fn unlink(twin: &Twin, path: &str) -> Result<(), Errno> {
    let (dir, name) = up(twin, path)?;
    twin.0.unlink(CALLER, dir, name)
}
fn rmdir(twin: &Twin, path: &str) -> Result<(), Errno> {
    let (dir, name) = up(twin, path)?;
    twin.0.rmdir(CALLER, dir, name)
}
fn rename(twin: &Twin, from: &str, to: &str) -> Result<(), Errno> {
    twin.0.rename(CALLER, up(twin, from)?, up(twin, to)?, RenameHow::Replace)
}
fn link(twin: &Twin, from: &str, to: &str) -> Result<(), Errno> {
    let node = at(twin, from)?;
    let (dir, name) = up(twin, to)?;
    twin.0.link(CALLER, node, dir, name).map(drop)
}
fn set_xattr(twin: &Twin, path: &str) -> Result<(), Errno> {
    let node = at(twin, path)?;
    twin.0.setxattr(CALLER, node, b"user.x", b"1", SetXattr::Any, false)
}
fn set_times(twin: &Twin, path: &str) -> Result<(), Errno> {
    let set = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    twin.0.setattr(CALLER, at(twin, path)?, set).map(drop)
}

/// (what, one call, another, how it ends).  "p" is a file of eight pages, "h/a" and "h/b" are one
/// file, "empty" is an empty directory.
const PAIRS: &[(&str, Call, Call, Ends)] = &[
    // Names.
    ("create, create the same", |t| create(t, "d/n"), |t| create(t, "d/n"), Lost),
    ("create, create another", |t| create(t, "d/n"), |t| create(t, "d/m"), Both),
    ("create, mkdir of the same", |t| create(t, "n"), |t| mkdir(t, "n"), Lost),
    ("mkdir, mkdir in one directory", |t| mkdir(t, "d/n"), |t| mkdir(t, "d/m"), Both),
    ("found absent, created", |t| stat(t, "d/n"), |t| create(t, "d/n"), LostIfSerializable),
    ("found absent, another created", |t| stat(t, "d/n"), |t| create(t, "d/m"), Both),
    ("list, create", |t| list(t, "d"), |t| create(t, "d/n"), LostIfSerializable),
    ("list, unlink", |t| list(t, "d"), |t| unlink(t, "d/f"), LostIfSerializable),
    ("list, create elsewhere", |t| list(t, "d"), |t| create(t, "e/n"), Both),
    ("list, create below", |t| list(t, "d"), |t| create(t, "d/s/n"), Both),
    ("list, append to a listed file", |t| list(t, "d"), |t| append(t, "d/f"), Both),
    ("list, chmod of a listed file", |t| list(t, "d"), |t| chmod(t, "d/f"), Both),
    ("list, chmod of a listed directory", |t| list(t, "d"), |t| chmod(t, "d/s"), Both),
    (
        "list and stat, append",
        |t| list(t, "d").and_then(|()| stat(t, "d/f")),
        |t| append(t, "d/f"),
        LostIfSerializable,
    ),
    ("list, list", |t| list(t, "d"), |t| list(t, "d"), Both),
    ("stat, unlink", |t| stat(t, "d/f"), |t| unlink(t, "d/f"), LostIfSerializable),
    ("unlink, unlink the same", |t| unlink(t, "d/f"), |t| unlink(t, "d/f"), Lost),
    ("unlink, unlink another", |t| unlink(t, "d/f"), |t| unlink(t, "d/s/f"), Both),
    ("unlink, write", |t| unlink(t, "p"), |t| write(t, "p", 0), LostIfSecond),
    ("rename, write", |t| rename(t, "p", "n"), |t| write(t, "p", 0), LostIfSecond),
    ("rename onto, create", |t| rename(t, "p", "d/n"), |t| create(t, "d/n"), Lost),
    ("rename, rename to the same", |t| rename(t, "p", "n"), |t| rename(t, "f", "n"), Lost),
    ("rename, rename of others", |t| rename(t, "p", "d/n"), |t| rename(t, "f", "d/m"), Both),
    // Directories.
    (
        "rename a directory, create in it",
        |t| rename(t, "d", "n"),
        |t| create(t, "d/n"),
        LostIfSecond,
    ),
    (
        "rename a directory, create below it",
        |t| rename(t, "d", "n"),
        |t| create(t, "d/s/n"),
        LostIfSecond,
    ),
    (
        "rename a directory, write below it",
        |t| rename(t, "d", "n"),
        |t| write(t, "d/f", 0),
        LostIfSecond,
    ),
    (
        "rename a directory, stat in it",
        |t| rename(t, "d", "n"),
        |t| stat(t, "d/f"),
        LostIfSerializable,
    ),
    ("rename a directory, create beside it", |t| rename(t, "d", "n"), |t| create(t, "m"), Both),
    ("rmdir, create in it", |t| rmdir(t, "empty"), |t| create(t, "empty/n"), Lost),
    ("rmdir, mkdir in it", |t| rmdir(t, "empty"), |t| mkdir(t, "empty/n"), Lost),
    ("rmdir, list it", |t| rmdir(t, "empty"), |t| list(t, "empty"), LostIfSerializable),
    ("rmdir, rename into it", |t| rmdir(t, "empty"), |t| rename(t, "f", "empty/f"), Lost),
    ("rmdir, rmdir", |t| rmdir(t, "empty"), |t| rmdir(t, "empty"), Lost),
    (
        "rename over a directory, create in it",
        |t| rename(t, "e2", "empty"),
        |t| create(t, "empty/n"),
        Lost,
    ),
    // Attributes.
    ("stat, chmod", |t| stat(t, "f"), |t| chmod(t, "f"), LostIfSerializable),
    ("stat, chmod another", |t| stat(t, "f"), |t| chmod(t, "p"), Both),
    ("stat, setxattr", |t| stat(t, "f"), |t| set_xattr(t, "f"), LostIfSerializable),
    ("stat, utimes", |t| stat(t, "f"), |t| set_times(t, "f"), LostIfSerializable),
    ("chmod, chmod", |t| chmod(t, "f"), |t| chmod(t, "f"), Lost),
    ("chmod a directory, look below it", |t| chmod(t, "d"), |t| stat(t, "d/f"), LostIfSerializable),
    (
        "chmod a directory, create in it",
        |t| chmod(t, "d"),
        |t| create(t, "d/n"),
        LostIfSerializable,
    ),
    ("create, stat the directory", |t| create(t, "d/n"), |t| stat(t, "d"), Both),
    // Content: a lookup reads attributes and size.
    ("read, write the same page", |t| read(t, "p", 1), |t| write(t, "p", 1), LostIfSerializable),
    ("read, write another page", |t| read(t, "p", 1), |t| write(t, "p", 5), Both),
    ("write, write the same page", |t| write(t, "p", 1), |t| write(t, "p", 1), Lost),
    ("write, write another page", |t| write(t, "p", 1), |t| write(t, "p", 5), Both),
    ("read, read", |t| read(t, "p", 1), |t| read(t, "p", 1), Both),
    ("stat, write inside", |t| stat(t, "p"), |t| write(t, "p", 1), Both),
    ("stat, append", |t| stat(t, "p"), |t| append(t, "p"), LostIfSerializable),
    // The length is part of what a write commits.
    ("write inside, append", |t| write(t, "p", 1), |t| append(t, "p"), LostIfFirst),
    ("append, append", |t| append(t, "p"), |t| append(t, "p"), Lost),
    ("truncate, append", |t| truncate(t, "p"), |t| append(t, "p"), Lost),
    ("truncate, write", |t| truncate(t, "p"), |t| write(t, "p", 5), Lost),
    ("truncate, read", |t| truncate(t, "p"), |t| read(t, "p", 5), LostIfSerializable),
    ("chmod, write", |t| chmod(t, "p"), |t| write(t, "p", 1), LostIfSerializable),
    // Hard links.
    (
        "write, read by the other name",
        |t| write(t, "h/a", 0),
        |t| read(t, "h/b", 0),
        LostIfSerializable,
    ),
    ("write, write by the other name", |t| write(t, "h/a", 0), |t| write(t, "h/b", 0), Lost),
    ("chmod, stat by the other name", |t| chmod(t, "h/a"), |t| stat(t, "h/b"), LostIfSerializable),
    ("unlink, write by the other name", |t| unlink(t, "h/a"), |t| write(t, "h/b", 0), Both),
    ("unlink, unlink the other name", |t| unlink(t, "h/a"), |t| unlink(t, "h/b"), Both),
    ("link, stat", |t| link(t, "p", "n"), |t| stat(t, "p"), Both),
    ("link, unlink the source", |t| link(t, "p", "n"), |t| unlink(t, "p"), LostIfSerializable),
    ("link, create the same", |t| link(t, "p", "d/n"), |t| create(t, "d/n"), Lost),
];

struct Two {
    _dir: tempfile::TempDir,
    vol: Arc<Volume>,
    old: Twin,
    young: Twin,
}

fn two(isolation: Isolation) -> Two {
    let dir = scratch();
    populate(dir.path()).expect("populate");
    let root = dir.path();
    fs::write(root.join("p"), vec![7; 8 * 4096]).expect("write");
    for name in ["h", "empty", "e2"] {
        fs::create_dir(root.join(name)).expect("mkdir");
    }
    fs::write(root.join("h/a"), vec![7; 4096]).expect("write");
    fs::hard_link(root.join("h/a"), root.join("h/b")).expect("link");
    let vol = open_volume(root);
    let old = Twin(open_view(&vol, OLD.0, isolation));
    let young = Twin(open_view(&vol, YOUNG.0, isolation));
    Two { _dir: dir, vol, old, young }
}

/// Commits as far as the engine is concerned; false if it lost.
fn commits(t: &Two, id: TxnId, twin: &Twin) -> bool {
    let frozen = twin.0.freeze(&Everything);
    if twin.0.claim(id, &frozen.writes).is_err() || t.vol.engine.decide(id).is_err() {
        return false;
    }
    t.vol.installing([], || ((), vec![]));
    t.vol.engine.installed(id);
    true
}

#[test]
fn every_pair_ends_as_the_rules_say() {
    let mut wrong = Vec::new();
    for (what, one, other, ends) in PAIRS {
        for swapped in [false, true] {
            let (first, second) = if swapped { (other, one) } else { (one, other) };
            let t = two(Isolation::Serializable);
            assert_eq!(first(&t.old), Ok(()), "{what}");
            let answer = second(&t.young);
            let lost = t.vol.engine.status(YOUNG) == Some(Status::Doomed);
            let want = matches!(ends, Lost | LostIfSerializable | LostIfSecond | LostIfFirst);
            if !lost && answer != Ok(()) {
                wrong.push(format!("{what}: {answer:?} without a conflict"));
            }
            assert_eq!(t.vol.engine.status(OLD), Some(Status::Active), "{what}");
            if lost != want {
                let why = t.vol.engine.conflict(YOUNG);
                wrong.push(format!("{what}, swapped {swapped}: lost {lost}, conflict {why:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Under snapshot isolation nobody loses before somebody commits; then the first committer wins.
#[test]
fn under_snapshot_isolation_the_first_committer_wins() {
    let mut wrong = Vec::new();
    for (what, one, other, ends) in PAIRS {
        for swapped in [false, true] {
            let (first, second) = if swapped { (other, one) } else { (one, other) };
            let t = two(Isolation::Snapshot);
            assert_eq!(first(&t.old), Ok(()), "{what}");
            assert_eq!(second(&t.young), Ok(()), "{what}");
            assert!(commits(&t, OLD, &t.old), "{what}: the first committer wins");
            let lost = !commits(&t, YOUNG, &t.young);
            let want = match ends {
                Lost => true,
                LostIfSecond => !swapped,
                LostIfFirst => swapped,
                Both | LostIfSerializable => false,
            };
            if lost != want {
                wrong.push(format!("{what}, swapped {swapped}: lost {lost}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The same with the younger one first: it loses while it rests.
#[test]
fn the_older_one_wins_whoever_comes_first() {
    for (what, one, other, ends) in PAIRS.iter().filter(|(.., ends)| *ends == Lost) {
        let t = two(Isolation::Serializable);
        one(&t.young).unwrap();
        let answer = other(&t.old);
        assert_eq!(answer, Ok(()), "{what}");
        assert_eq!(t.vol.engine.status(YOUNG), Some(Status::Doomed), "{what} {ends:?}");
        let why = t.vol.engine.conflict(YOUNG).expect("a reason");
        assert_eq!(why.opponent, Opponent::Txn(OLD), "{what}");
        assert_eq!(stat(&t.young, "never met before"), Err(Errno::CANCELED), "{what}");
    }
}

/// What came and went was never written.
#[test]
fn a_name_that_comes_and_goes_disturbs_nobody_under_snapshot_isolation() {
    let t = two(Isolation::Snapshot);
    for twin in [&t.old, &t.young] {
        create(twin, "d/lock").unwrap();
        unlink(twin, "d/lock").unwrap();
    }
    create(&t.old, "d/mine").unwrap();
    create(&t.young, "d/yours").unwrap();
    assert!(commits(&t, OLD, &t.old));
    assert!(commits(&t, YOUNG, &t.young));
}

/// A page fault that fails would kill a program that only waits for its end.
#[test]
fn a_view_that_lost_still_serves_pages() {
    {
        let t = two(Isolation::Serializable);
        let (file, dir) = (at(&t.young, "p").unwrap(), at(&t.young, "d").unwrap());
        write(&t.young, "p", 3).unwrap();
        create(&t.young, "d/n").unwrap();
        create(&t.old, "d/n").unwrap();
        assert_eq!(t.vol.engine.status(YOUNG), Some(Status::Doomed));
        let view: &View = &t.young.0;
        let mut page = [0; 4096];
        for (n, byte) in [(0, 7), (3, 1), (7, 7)] {
            assert_eq!(view.read(file, n * 4096, &mut page), Ok(4096), "page {n}");
            assert_eq!(page, [byte; 4096], "page {n}");
        }
        assert_eq!(view.getattr(file).map(|a| a.size), Ok(8 * 4096));
        // Everything that looks for names or changes something says why.
        let lost = Err(Errno::CANCELED);
        assert_eq!(view.lookup(CALLER, NodeId::ROOT, b"d").map(drop), lost);
        assert_eq!(view.lookup(CALLER, dir, b"g").map(drop), lost);
        assert_eq!(view.write(file, 0, b"x", false).map(drop), lost);
        assert_eq!(chmod(&t.young, "f"), lost);
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(view.setattr(CALLER, file, set).map(drop), lost);
        assert_eq!(view.create(CALLER, dir, b"x", NEW, true).map(drop), lost);
        assert_eq!(view.unlink(CALLER, NodeId::ROOT, b"f"), lost);
        assert_eq!(view.readdir(dir, 0, true, &mut |_| true), lost);
        assert_eq!(view.setxattr(CALLER, file, b"user.x", b"", SetXattr::Any, false), lost);
        assert_eq!(view.tmpfile(CALLER, dir, NEW).map(drop), lost);
        assert_eq!(view.link(CALLER, file, dir, b"x").map(drop), lost);
        assert_eq!(view.fallocate(file, Fallocate::Allocate, 0, 1), lost);
    }
}

/// First committer wins: under snapshot isolation a stale read may stand, but nothing may be built
/// on it.
#[test]
fn nothing_is_built_on_a_stale_read() {
    let t = two(Isolation::Snapshot);
    stat(&t.young, "f").unwrap();
    stat(&t.young, "p").unwrap();
    chmod(&t.old, "f").unwrap();
    assert!(commits(&t, OLD, &t.old));
    assert_eq!(t.vol.engine.stale_reads(YOUNG).len(), 1);
    write(&t.young, "p", 0).unwrap();
    chmod(&t.young, "f").unwrap();
    let frozen = t.young.0.freeze(&Everything);
    let why = t.young.0.claim(YOUNG, &frozen.writes).expect_err("a lost update");
    let why = why.or_else(|| t.vol.engine.conflict(YOUNG));
    assert_eq!(why.map(|c| c.opponent), Some(Opponent::Txn(OLD)));
}
