//! What one transaction sees is of one moment, whatever comes between any two calls that its view
//! makes of the backing file system: a commit that changes everything, or a plain program that
//! does.
//!
//! The view is stopped before and after each of these calls in turn. Afterwards a transaction that
//! is committed must have seen everything as it was left; one that has lost goes on until it
//! notices, and must not have seen some of it old and some of it new.

#![allow(clippy::unwrap_used)]

#[path = "../../vfs/tests/common/mod.rs"]
mod common;
mod place;

use common::hooked::Hooked;
use common::*;
use place::Place;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use systx_base::{Kind, NodeId};
use systx_store::real::RealIo;
use systx_txn::BeginOptions;
use systx_vfs::api::*;

/// What was there before the change, what is after it, and what never was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Old,
    New,
    Never,
}
use Side::*;

/// One look, which sees one of the two.
type Look = fn(&Twin) -> Result<Side, Errno>;

const PAGE: usize = 4096;
/// Length of "f", old and new; not a whole number of pages.
const LONG: usize = 2 * PAGE + 100;
/// Old length of "q", of which a page is changed in place and a byte is added.
const LARGE: usize = 64 * PAGE;

fn populate_old(root: &Path) {
    let at = |path: &str| root.join(path);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("a"), "old").unwrap();
    fs::write(at("z"), "old").unwrap();
    fs::write(at("f"), vec![b'o'; LONG]).unwrap();
    fs::write(at("g"), vec![b'o'; LONG]).unwrap();
    fs::hard_link(at("g"), at("h")).unwrap();
    fs::write(at("r"), vec![b'o'; LONG]).unwrap();
    fs::write(at("p"), "").unwrap();
    fs::write(at("q"), vec![b'o'; LARGE]).unwrap();
    rustix::fs::lsetxattr(at("f"), "user.k", b"old", rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::lsetxattr(at("d"), "user.k", b"old", rustix::fs::XattrFlags::empty()).unwrap();
    symlink("old", at("l")).unwrap();
    fs::create_dir(at("e")).unwrap();
    fs::write(at("e/last"), "").unwrap();
    fs::write(at("d/old"), "").unwrap();
}

/// Changes all that is looked at. As a commit it comes at once; of the calls of a plain program
/// each one does, but nobody looks in between.
fn change_everything<V: Requests>(twin: &Twin<V>) -> Result<(), Errno> {
    let node = |path: &str| twin.walk(path).map(|entry| entry.node);
    let v = &twin.0;
    let file = |name: &[u8]| {
        let new = NewAttr { mode: 0o644, umask: 0 };
        v.mknod(CALLER, NodeId::ROOT, name, Kind::File, new, 0).map(|entry| entry.node)
    };
    for (path, to) in [("a", "changed"), ("z", "new")] {
        v.setattr(CALLER, node(path)?, SetAttr { size: Some(0), ..SetAttr::default() })?;
        v.write(node(path)?, 0, to.as_bytes(), false)?;
    }
    for path in ["f", "g"] {
        v.write(node(path)?, 0, &[b'n'; LONG], false)?;
    }
    v.write(node("q")?, 3 * PAGE as u64, &[b'n'; PAGE], false)?;
    v.write(node("q")?, LARGE as u64, b"n", false)?;
    for (path, mode) in [("f", 0o600), ("p", 0o600), ("d", 0o700)] {
        let at = node(path)?;
        v.setattr(CALLER, at, SetAttr { mode: Some(mode), ..SetAttr::default() })?;
        v.setxattr(CALLER, at, b"user.k", b"new", SetXattr::Any, false)?;
        v.setxattr(CALLER, at, b"user.new", b"", SetXattr::Any, false)?;
    }
    v.unlink(CALLER, NodeId::ROOT, b"l")?;
    v.symlink(CALLER, NodeId::ROOT, b"l", b"new")?;
    v.rename(CALLER, (node("d")?, b"old"), (node("d")?, b"new"), RenameHow::Replace)?;
    v.unlink(CALLER, node("e")?, b"last")?;
    // Another inode under the same name.
    v.write(file(b"r.new")?, 0, &[b'n'; LONG], false)?;
    v.rename(CALLER, (NodeId::ROOT, b"r.new"), (NodeId::ROOT, b"r"), RenameHow::Replace)
}

fn either<T: PartialEq>(seen: T, old: T, new: T) -> Result<Side, Errno> {
    Ok(if seen == old {
        Old
    } else if seen == new {
        New
    } else {
        Never
    })
}

/// Bytes of which all are old or all are new.
fn bytes(seen: &[u8]) -> Result<Side, Errno> {
    either((seen.contains(&b'o'), seen.contains(&b'n')), (true, false), (false, true))
}

fn read(t: &Twin, path: &str, from: usize, len: usize) -> Result<Vec<u8>, Errno> {
    read_of(t, t.walk(path)?.node, from, len)
}

fn read_of(t: &Twin, node: NodeId, from: usize, len: usize) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; len];
    let n = t.0.read(node, from as u64, &mut buf)?;
    buf.truncate(n);
    Ok(buf)
}

/// What a program writes among what is there.
const MINE: &[u8] = b"MINE";

/// Writes it, and what is around it then.  By a descriptor: who has lost can still read so.
fn around(t: &Twin, path: &str, at: usize, seen: std::ops::Range<usize>) -> Result<Side, Errno> {
    let node = t.walk(path)?.node;
    t.0.write(node, at as u64, MINE, false)?;
    others(t, node, seen)
}

fn others(t: &Twin, node: NodeId, seen: std::ops::Range<usize>) -> Result<Side, Errno> {
    let seen = read_of(t, node, seen.start, seen.len())?;
    bytes(&seen.into_iter().filter(|b| !MINE.contains(b)).collect::<Vec<_>>())
}

fn xattr(t: &Twin, path: &str) -> Result<Side, Errno> {
    let value = t.0.getxattr(t.walk(path)?.node, b"user.k")?;
    either(&*value, b"old", b"new")
}

fn xattrs(t: &Twin, path: &str) -> Result<Side, Errno> {
    let names = t.0.listxattr(t.walk(path)?.node)?;
    either(names.split(|b| *b == 0).any(|name| name == b"user.new"), false, true)
}

fn is_there(t: &Twin, dir: &str, name: &[u8]) -> Result<bool, Errno> {
    Ok(t.0.lookup(CALLER, t.walk(dir)?.node, name)?.is_some())
}

fn list(t: &Twin, path: &str) -> Result<String, Errno> {
    let mut names = Vec::new();
    t.0.readdir(t.walk(path)?.node, 0, true, &mut |item| {
        names.push(String::from_utf8_lossy(item.name).into_owned());
        true
    })?;
    names.sort();
    Ok(names.join(" "))
}

const LOOKS: &[(&str, Look)] = &[
    ("length", |t| either(t.walk("a")?.attr.size, 3, 7)),
    ("bytes of another length", |t| {
        let seen = read(t, "a", 0, 10)?;
        either(&*seen, b"old", b"changed")
    }),
    ("bytes of a short file", |t| either(&*read(t, "z", 0, 3)?, b"old", b"new")),
    ("mode", |t| either(t.walk("f")?.attr.mode, 0o644, 0o600)),
    ("mode of what is not written to", |t| either(t.walk("p")?.attr.mode, 0o644, 0o600)),
    ("attribute of what is not written to", |t| xattrs(t, "p")),
    ("length of a large file", |t| either(t.walk("q")?.attr.size, LARGE as u64, LARGE as u64 + 1)),
    ("page of a large file", |t| bytes(&read(t, "q", 3 * PAGE, PAGE)?)),
    ("all bytes", |t| bytes(&read(t, "f", 0, LONG)?)),
    ("bytes page by page", |t| {
        let pages = [read(t, "g", PAGE, PAGE)?, read(t, "g", 0, PAGE)?, read(t, "g", 2 * PAGE, 9)?];
        bytes(&pages.concat())
    }),
    ("bytes by two names", |t| bytes(&[read(t, "g", 0, 9)?, read(t, "h", PAGE, 9)?].concat())),
    ("bytes of a replaced file", |t| bytes(&read(t, "r", 0, LONG)?)),
    ("attribute", |t| xattr(t, "f")),
    ("attributes", |t| xattrs(t, "f")),
    ("attribute of a directory", |t| xattr(t, "d")),
    ("attributes of a directory", |t| xattrs(t, "d")),
    ("mode of a directory", |t| either(t.walk("d")?.attr.mode, 0o755, 0o700)),
    ("target", |t| either(&*t.0.readlink(t.walk("l")?.node)?, b"old", b"new")),
    ("name that goes", |t| either(is_there(t, "d", b"old")?, true, false)),
    ("name that comes", |t| either(is_there(t, "d", b"new")?, false, true)),
    ("listing", |t| either(list(t, "d")?, ". .. old".into(), ". .. new".into())),
    ("listing of what is emptied", |t| either(list(t, "e")?, ". .. last".into(), ". ..".into())),
    ("where data is", |t| {
        let end = t.0.lseek(t.walk("a")?.node, 0, Seek::Hole)?;
        either(end, 3, 7)
    }),
];

/// Looks that change something as well.
const CHANGES: &[(&str, Look)] = &[
    ("rest of a page that is written to", |t| around(t, "f", PAGE + 9, PAGE..2 * PAGE)),
    ("rest of two pages that are written to", |t| around(t, "r", PAGE - 2, 0..2 * PAGE)),
    ("rest of a page of a large file", |t| around(t, "q", 3 * PAGE + 9, 3 * PAGE..4 * PAGE)),
    ("rest of a page after a cut", |t| {
        let node = t.walk("g")?.node;
        t.0.setattr(CALLER, node, SetAttr { size: Some(PAGE as u64 + 9), ..SetAttr::default() })?;
        around(t, "g", PAGE + 5, PAGE..2 * PAGE)
    }),
    ("what is written behind the end", |t| {
        let a = t.walk("a")?;
        t.0.write(a.node, a.attr.size, MINE, false)?;
        either(read_of(t, a.node, 0, 20)?, b"oldMINE".to_vec(), b"changedMINE".to_vec())
    }),
    ("what is written behind the end of a large file", |t| {
        let q = t.walk("q")?;
        t.0.write(q.node, q.attr.size, MINE, false)?;
        either(read_of(t, q.node, LARGE, 20)?, MINE.to_vec(), b"nMINE".to_vec())
    }),
    ("what is copied", |t| {
        let (from, to) = (t.walk("f")?.node, t.walk("g")?.node);
        t.0.copy_file_range((from, 0), (to, 9), 100)?;
        others(t, to, 0..LONG)
    }),
    ("bytes of a file that is moved", |t| {
        t.0.rename(CALLER, (NodeId::ROOT, b"f"), (t.walk("d")?.node, b"f"), RenameHow::Replace)?;
        bytes(&read(t, "d/f", 0, LONG)?)
    }),
];

/// Who changes everything.
#[derive(Clone, Copy, Debug)]
enum Who {
    /// A transaction that wins.
    Commit,
    /// A program outside all transactions.
    Plain,
}

/// One case: these looks, one after the other, and the change at the `nth` moment. What was wrong;
/// `None` if there was no such moment.
fn run(looks: &[(&str, Look)], who: Who, opaque: bool, nth: usize) -> Option<Result<(), String>> {
    let dir = scratch();
    populate_old(dir.path());
    let real = Arc::new(RealIo::open(dir.path()).expect("backing directory"));
    let hooked = Hooked::new(RealIo::open(dir.path()).expect("backing directory"));
    let place = Arc::new(Place::open_over(dir.path(), ".", hooked.clone(), real));
    let mine = place.begin(BeginOptions::default(), opaque);
    let other = Arc::clone(&place);
    hooked.at(nth, move || match who {
        Who::Commit => {
            let first = BeginOptions { priority: -20, ..BeginOptions::default() };
            let theirs = other.begin(first, false);
            change_everything(&theirs).expect("a change by a transaction");
            assert!(other.end_of(&theirs), "it is the stronger one");
        }
        Who::Plain => change_everything(&Twin(other.plain.clone())).expect("a plain change"),
    });
    let mut seen = Vec::new();
    for (what, look) in looks {
        match look(&mine) {
            Ok(side) => seen.push((*what, side)),
            // It may go on, as programs do that do not look at what they are told.
            Err(Errno::CANCELED) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    let committed = place.end_of(&mine);
    if hooked.cancel() {
        return None;
    }
    let all = |side: Side| seen.iter().all(|(_, saw)| *saw == side);
    let right = if committed { all(New) } else { !opaque || all(Old) || all(New) };
    let text = || format!("{who:?} at moment {nth}: committed: {committed}, seen: {seen:?}");
    Some(if right { Ok(()) } else { Err(text()) })
}

/// Runs the looks with the change at each moment.
fn sweep(looks: &[(&str, Look)], opaque: &[bool], wrong: &mut Vec<String>) -> usize {
    let mut cases = 0;
    for who in [Who::Commit, Who::Plain] {
        for opaque in opaque.iter().copied() {
            for nth in 0.. {
                match run(looks, who, opaque, nth) {
                    None => break,
                    Some(Ok(())) => cases += 1,
                    Some(Err(text)) => wrong.push(text),
                }
            }
        }
    }
    cases
}

#[test]
fn what_a_transaction_sees_is_of_one_moment() {
    if !is_root() {
        return;
    }
    let mut wrong = Vec::new();
    let mut cases = 0;
    for look in LOOKS.iter().chain(CHANGES) {
        let (first, last) = (LOOKS[1], LOOKS[2]);
        // Something was seen before, or not: then nothing says that the transaction has lost.
        cases += sweep(&[first, *look], &[true], &mut wrong);
        cases += sweep(&[*look, last], &[true, false], &mut wrong);
    }
    if std::env::var_os("SYSTX_LONG").is_some() {
        for one in LOOKS {
            for other in LOOKS.iter().chain(CHANGES) {
                cases += sweep(&[*one, *other], &[true], &mut wrong);
            }
        }
    }
    eprintln!("{cases} cases");
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
}
