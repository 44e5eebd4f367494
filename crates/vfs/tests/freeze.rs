//! What a view freezes is what happened in it: the write set of random calls, applied by a
//! reference interpreter, gives the tree that the same calls give on the host; a part of it gives
//! that part, and the rest gives the rest.

#![allow(clippy::unwrap_used)]

mod common;

use common::model::Model;
use common::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use systx_base::Kind;
use systx_store::writeset::{Emptied, Ix, NewKind, Origin, WriteSet};
use systx_vfs::changes::{Change, Status};
use systx_vfs::freeze::{Everything, Selection};

/// Both sides after the same calls.
struct Ran {
    _dirs: [tempfile::TempDir; 2],
    host: Tree,
    before: Model,
    twin: Twin,
}

fn ran(ops: &[Op]) -> Ran {
    let dirs = [scratch(), scratch()];
    populate(dirs[0].path()).expect("populate");
    populate(dirs[1].path()).expect("populate");
    let twin = Twin::over(dirs[0].path());
    let host = Host(dirs[1].path().to_path_buf());
    for op in ops {
        assert_eq!(host.run(op), twin.run(op), "{op:?}");
    }
    let (host, before) = (host_tree(dirs[1].path()), Model::of_host(dirs[0].path()));
    Ran { _dirs: dirs, host, before, twin }
}

type Listings = BTreeMap<String, BTreeSet<String>>;

/// The directories that a write set removes, with what it says was in them.
fn told_as_gone(writes: &WriteSet) -> Listings {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let names = |dir: &Emptied| dir.names.keys().map(|name| text(name)).collect();
    writes.emptied.iter().map(|dir| (format!("/{}", text(&dir.path)), names(dir))).collect()
}

/// The same, from the names that go and the tree before: a directory that was in one that goes and
/// has no new name goes with it.
fn gone(writes: &WriteSet, before: &Tree) -> Listings {
    // Parents come first.
    let mut paths: Vec<Option<String>> = Vec::new();
    for object in &writes.objects {
        paths.push(match &object.origin {
            Origin::Root => Some(String::new()),
            Origin::Host { parent, name, .. } => paths[parent.0 as usize]
                .as_ref()
                .map(|up| format!("{up}/{}", String::from_utf8_lossy(name))),
            _ => None,
        });
    }
    let known: BTreeMap<String, Ix> =
        (0..).map(Ix).zip(paths).filter_map(|(ix, path)| Some((path?, ix))).collect();
    let is_target = |ix: Ix| writes.binds.iter().any(|bind| bind.target == Some(ix));
    let is_displaced = |ix: Ix| writes.binds.iter().any(|bind| bind.displaces == Some(ix));
    let goes = |dir: &str| {
        let up = |dir: &str| dir.rsplit_once('/').map(|(up, _)| up.to_owned());
        let mut at = Some(dir.to_owned());
        while let Some(dir) = at.filter(|dir| !dir.is_empty()) {
            match known.get(&dir) {
                Some(ix) if is_target(*ix) => return false,
                Some(ix) if is_displaced(*ix) => return true,
                _ => at = up(&dir),
            }
        }
        false
    };
    let inside = |dir: &str| {
        let below = |path: &String| path.strip_prefix(&format!("{dir}/")).map(str::to_owned);
        before.keys().filter_map(below).filter(|name| !name.contains('/')).collect()
    };
    let dirs = before.iter().filter(|(_, seen)| seen.kind == Kind::Dir).map(|(path, _)| path);
    dirs.filter(|dir| goes(dir)).map(|dir| (dir.clone(), inside(dir))).collect()
}

/// A list of changes that can be read.
fn show(changes: &[Change]) -> String {
    let line = |c: &Change| format!("{} {:?}\n", String::from_utf8_lossy(&c.path), c.status);
    changes.iter().map(line).collect()
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(400), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn everything_frozen_is_everything_done(ops in proptest::collection::vec(op(), 1..40)) {
        prop_assume!(is_root());
        let Ran { host, before, twin, .. } = &ran(&ops);
        let frozen = twin.0.freeze(&Everything);
        prop_assert_eq!(frozen.writes.check(), Ok(()));
        prop_assert_eq!(frozen.left_out.len(), 0);
        prop_assert_eq!(told_as_gone(&frozen.writes), gone(&frozen.writes, &before.tree()));
        let mut after = before.clone();
        let applied = after.apply(&frozen.writes);
        prop_assert!(applied.is_ok(), "{:?}\n{}", applied, brief(&frozen.writes));
        prop_assert_eq!(differ(host, &after.tree()), None);
        prop_assert!(!frozen.is_empty() || differ(host, &before.tree()).is_none());
    }

    #[test]
    fn a_part_and_then_the_rest(
        ops in proptest::collection::vec(op(), 1..30),
        picked in proptest::collection::btree_set(0..PATHS.len(), 1..4),
    ) {
        prop_assume!(is_root());
        let Ran { host, before, twin, .. } = &ran(&ops);
        let part = Below(&picked);
        let changes = twin.0.changes();
        let frozen = twin.0.freeze(&part);
        prop_assert_eq!(frozen.writes.check(), Ok(()));
        let mut after = before.clone();
        let applied = after.apply(&frozen.writes);
        prop_assert!(applied.is_ok(), "{:?}\n{}", applied, brief(&frozen.writes));
        let between = after.tree();
        for change in changes.iter().filter(|c| part.takes(&c.path[1..])) {
            let path = String::from_utf8_lossy(&change.path).into_owned();
            // What is there now came along with a directory that was moved, and is not picked.
            let succeeded = change.status == Status::Deleted
                && !changes.iter().any(|c| c.path == change.path && c.status != Status::Deleted);
            let same = taken(host.get(&path)) == taken(between.get(&path))
                || (succeeded && !between.contains_key(&path));
            prop_assert!(same, "{} is not as it should be: {}", path, brief(&frozen.writes));
        }
        twin.0.rebase(&frozen, &Model::pairs(&applied.expect("checked")));
        let rest = twin.0.freeze(&Everything);
        prop_assert_eq!(rest.writes.check(), Ok(()));
        let applied = after.apply(&rest.writes);
        prop_assert!(
            applied.is_ok(), "{:?}\nfirst {}\nthen {}", applied, brief(&frozen.writes), brief(&rest.writes)
        );
        prop_assert_eq!(differ(host, &after.tree()), None);
        twin.0.rebase(&rest, &Model::pairs(&applied.expect("checked")));
        let none = twin.0.freeze(&Everything);
        prop_assert!(none.is_empty(), "{}", brief(&none.writes));
        prop_assert_eq!(twin.0.changes().len(), 0);
    }

    /// Without links and renames nothing depends on anything but the directories above it, so what
    /// is not picked stays exactly as it was.
    #[test]
    fn what_is_not_picked_stays(
        ops in proptest::collection::vec(op(), 1..30),
        picked in proptest::collection::btree_set(0..PATHS.len(), 1..3),
    ) {
        prop_assume!(is_root());
        let moves = |op: &Op| matches!(op, Op::Rename(..) | Op::Link(..) | Op::Unnamed(..));
        let ops: Vec<Op> = ops.into_iter().filter(|op| !moves(op)).collect();
        let Ran { before, twin, .. } = &ran(&ops);
        let part = Below(&picked);
        let frozen = twin.0.freeze(&part);
        let mut after = before.clone();
        let applied = after.apply(&frozen.writes);
        prop_assert!(applied.is_ok(), "{:?}\n{}", applied, brief(&frozen.writes));
        let (old, new) = (before.tree(), after.tree());
        for (path, seen) in &old {
            // d/f and e/f are one file.
            let file = |path: &str| if path == "/e/f" { "/d/f".into() } else { path.to_owned() };
            let near = part.takes(&path.as_bytes()[1..]) || part.takes(&file(path).as_bytes()[1..])
                || (path == "/d/f" && part.takes(b"e/f"));
            let above = PATHS.iter().enumerate().any(|(i, p)| {
                picked.contains(&i) && p.starts_with(&format!("{}/", &path[1..]))
            });
            if !near && !above {
                prop_assert_eq!(Some(seen), new.get(path), "{}: {}", path, brief(&frozen.writes));
            } else if above && !near {
                let was = new.get(path).map(|s| (s.kind, s.mode, s.uid, s.gid, &s.xattrs));
                let is = Some((seen.kind, seen.mode, seen.uid, seen.gid, &seen.xattrs));
                // A directory that was removed and made again comes as it is now.
                prop_assert!(was == is || frozen.writes.objects.iter().any(|o| {
                    matches!(o.origin, Origin::New(NewKind::Dir))
                }), "{}: {}", path, brief(&frozen.writes));
            }
        }
    }

    #[test]
    fn changes_explain_the_difference(ops in proptest::collection::vec(op(), 1..40)) {
        prop_assume!(is_root());
        let Ran { host, before, twin, .. } = &ran(&ops);
        let changes = twin.0.changes();
        let explained = explained(&before.tree(), host, &changes);
        prop_assert!(explained.is_ok(), "{}\n{}", explained.unwrap_err(), show(&changes));
    }
}

/// What a picked path must have in common with the whole: names of the same file may be left out.
fn taken(seen: Option<&Seen>) -> Option<(Kind, u32, u32, u32, &Bytes, u64)> {
    seen.map(|s| (s.kind, s.mode, s.uid, s.gid, &s.data, s.rdev))
}

/// Whether a list of changes says all that differs between two trees, and nothing else.
fn explained(old: &Tree, new: &Tree, changes: &[Change]) -> Result<(), String> {
    let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let below = |path: &str, top: &str| path == top || path.starts_with(&format!("{top}/"));
    // Renames first: where each old path is now.
    let mut moves: Vec<(String, String)> = Vec::new();
    for change in changes {
        if let Status::Renamed(from) = &change.status {
            moves.push((text(from), text(&change.path)));
        }
    }
    let now = |path: &str| {
        // The innermost move counts.
        let best = moves.iter().filter(|(from, _)| below(path, from)).max_by_key(|m| m.0.len());
        match best {
            Some((from, to)) => format!("{to}{}", &path[from.len()..]),
            None => path.to_owned(),
        }
    };
    let listed = |path: &str| changes.iter().find(|c| text(&c.path) == path);
    for change in changes {
        let path = text(&change.path);
        let exists = new.contains_key(&path);
        let fits = match &change.status {
            Status::Added => exists && change.old.is_none() && change.new.is_some(),
            Status::Deleted => old.contains_key(&path) && change.new.is_none(),
            Status::Renamed(from) => exists && old.contains_key(&text(from)) && path != text(from),
            // In a moved directory the old path is another.
            Status::Modified | Status::TypeChanged => exists && change.old.is_some(),
        };
        if !fits {
            return Err(format!("{path} is listed without reason"));
        }
    }
    let mut places = BTreeSet::new();
    for change in changes {
        let deleted = change.status == Status::Deleted;
        if !places.insert((text(&change.path), deleted)) {
            return Err(format!("{} is listed twice", text(&change.path)));
        }
    }
    let mut arrived = BTreeSet::new();
    for (path, seen) in old {
        let to = now(path);
        match new.get(&to) {
            // Deleted with a directory, unless it had been moved out of that one.
            _ if changes.iter().any(|c| {
                let gone = text(&c.path);
                let left =
                    |(from, _): &(String, String)| below(path, from) && from.len() > gone.len();
                c.status == Status::Deleted && below(path, &gone) && !moves.iter().any(left)
            }) => {}
            Some(_) if listed(&to).is_some() => drop(arrived.insert(to)),
            Some(after) => {
                let same = (seen.kind, seen.mode, seen.uid, seen.gid, &seen.data, &seen.xattrs)
                    == (after.kind, after.mode, after.uid, after.gid, &after.data, &after.xattrs);
                let linked = after.twin.is_some() || after.nlink > 1 || seen.nlink > 1;
                if !same && !linked {
                    return Err(format!("{path} differs at {to}"));
                }
                arrived.insert(to);
            }
            // Something else has the path of what was deleted in a moved directory.
            None if listed(path).is_some() => {}
            None => return Err(format!("{path} is gone from {to}")),
        }
    }
    for path in new.keys() {
        if !arrived.contains(path) && listed(path).is_none() {
            return Err(format!("{path} came from nowhere"));
        }
    }
    Ok(())
}
