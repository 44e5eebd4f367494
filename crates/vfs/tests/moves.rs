//! Directories, files and links that change places: what random renames and exchanges in a view
//! leave, committed and installed, is what the same calls leave on the host; undone it is as it
//! was, and redone as it became.  Half of the commits are cut off by a death of the process, and
//! finished by recovery.
//!
//! `SYSTX_CASES=N` runs N cases of each kind, `SYSTX_MOVES_DIR` has them in another directory than
//! one in memory, `SYSTX_SEED` begins elsewhere.

#![allow(clippy::unwrap_used)]

mod common;

use common::bed::{Act, Bed, Dice, Ground, Open, same};
use common::*;
use rustix::io::Errno;
use std::path::Path;
use systx_base::{Kind, TxnId};
use systx_store::io::{Class, Stamp};
use systx_store::writeset::{Attrs, Content, Ix, Object, Origin, WriteSet};
use systx_store::{TxnKind, UndoError};
use systx_vfs::api::RenameHow;
use systx_vfs::freeze::{Everything, Frozen, Selection};
use systx_vfs::volume::Volume;

/// What is there: directories, the root first, and the rest.
fn paths(root: &Path) -> (Vec<String>, Vec<String>) {
    let (mut dirs, mut rest) = (vec![String::new()], Vec::new());
    let mut at = 0;
    while let Some(dir) = dirs.get(at).cloned() {
        at += 1;
        let mut names: Vec<_> = std::fs::read_dir(root.join(&dir))
            .unwrap()
            .map(|item| item.unwrap())
            .map(|item| (item.file_name().into_string().unwrap(), item.file_type().unwrap()))
            .filter(|(name, _)| name != STATE)
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, kind) in names {
            let path = below(&dir, &name);
            if kind.is_dir() { dirs.push(path) } else { rest.push(path) }
        }
    }
    (dirs, rest)
}

fn below(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// One of five names, which are short, or as long as a name can be.
fn name(dice: &mut Dice, long: bool) -> String {
    ["a", "b", "c", "d", "e"][dice.below(5)].repeat(if long { 255 } else { 1 })
}

/// What calls are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// A tree to begin with, in what may be a lower layer: a file of several names loses them one
    /// by one there where systx is not, and a whiteout would be one.
    Below,
    /// More of it.
    Above,
    /// What the transaction does.
    Moving,
}

/// A call that may well succeed.
fn act(dice: &mut Dice, root: &Path, why: For, long: bool) -> Act {
    let (dirs, rest) = paths(root);
    let all: Vec<String> = dirs[1..].iter().chain(&rest).cloned().collect();
    loop {
        let fill = dice.below(255) as u8;
        let new = below(dice.of(&dirs).unwrap(), &name(dice, long));
        let dir = dice.of(&dirs[1..]).cloned();
        let other = dice.of(&dirs[1..]).cloned();
        let file = dice.of(&rest).cloned();
        let any = dice.of(&all).cloned();
        let how = match dice.below(16) {
            0 if why != For::Below => RenameHow::Whiteout,
            1 if why != For::Below => RenameHow::WhiteoutNoReplace,
            0..4 => RenameHow::NoReplace,
            _ => RenameHow::Replace,
        };
        let exchange = |(a, b)| Act::Rename(a, b, RenameHow::Exchange);
        // The last ones move.
        let weights = if why == For::Moving { 32 } else { 16 };
        let act = match dice.below(weights) {
            0..2 => Some(Act::Mkdir(new)),
            2 => Some(Act::File(new, fill)),
            3 => Some(Act::Symlink(new)),
            4..6 => file.filter(|_| why != For::Below).map(|file| Act::Link(file, new)),
            6 => file.map(Act::Unlink),
            7..9 => dir.map(Act::Rmdir),
            9 => file.map(|file| Act::Write(file, fill)),
            10 => any.map(|any| Act::Chmod(any, 0o700 | fill as u32 & 0o77)),
            11..16 if why != For::Moving => Some(Act::Mkdir(new)),
            11..14 => any.map(|any| Act::Rename(any, new, how)),
            14..23 => dir.map(|dir| Act::Rename(dir, new, how)),
            23..30 => dir.zip(other).map(exchange),
            _ => dir.zip(any).map(exchange),
        };
        if let Some(act) = act {
            return act;
        }
    }
}

/// Commits a part of what a view has done, which goes on.
fn commit_part(open: &Open, vol: &Volume, twin: &Twin, frozen: &Frozen) -> Result<(), String> {
    let before: Vec<Option<Stamp>> = frozen.writes.objects.iter().map(stamp_of).collect();
    let ids: Vec<_> = before.iter().flatten().map(|stamp| stamp.id()).collect();
    let done = vol.installing(ids, || {
        let done = open.commit(&frozen.writes, 1, TxnKind::Run);
        let stamps = done.iter().flat_map(|done| &done.1).flatten();
        let moves = before.iter().zip(stamps).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        let moves = moves.collect();
        (done, moves)
    })?;
    let stamps = (0..).map(Ix).zip(done.1.ok_or("not installed")?);
    let stamps: Vec<_> = stamps.filter_map(|(ix, stamp)| Some((ix, stamp?))).collect();
    twin.0.rebase(frozen, &stamps);
    same(&Vec::new(), &twin.0.validate())
}

fn stamp_of(object: &Object) -> Option<Stamp> {
    match &object.origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}

/// What lies at or below some paths.
struct At<'a>(&'a [String]);

impl Selection for At<'_> {
    fn takes(&self, path: &[u8]) -> bool {
        self.0.iter().any(|at| {
            let rest = path.strip_prefix(at.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        })
    }
}

/// A case: what is there (of that, in a lower layer), what is done in the view, what of it is
/// committed when half is done, after how many calls of the other commit its process dies, and
/// whether the machine starts anew then.
#[derive(Clone, Debug)]
struct Case {
    lower: Vec<Act>,
    upper: Vec<Act>,
    acts: Vec<Act>,
    part: Vec<String>,
    death: Option<usize>,
    boot: u8,
}

/// What a case has covered.
#[derive(Default, Debug)]
struct Seen {
    cases: u32,
    /// In which the process died before all was installed.
    deaths: u32,
    /// In which a part was committed first.
    parts: u32,
    /// In which directories got new places.
    moved: u32,
    /// That the host itself could not go on with.
    stale: u32,
    /// Calls, and those that succeeded.
    calls: [u32; 2],
}

impl Case {
    fn random(seed: u64) -> Case {
        let mut dice = Dice(seed);
        let tree = common::scratch();
        let long = dice.below(6) == 0;
        let mut some = |count: usize, why: For| {
            let count = dice.below(count) + 1;
            let mut acts = Vec::new();
            for _ in 0..count {
                let act = act(&mut dice, tree.path(), why, long);
                // Few of those that fail: they say little.
                if act.on_host(tree.path()).is_ok() || dice.below(8) == 0 {
                    acts.push(act);
                }
            }
            acts
        };
        // What is in a lower layer cannot be moved.
        let (lower, upper) = if seed.is_multiple_of(3) { (24, 12) } else { (4, 24) };
        let (lower, upper) = (some(lower, For::Below), some(upper, For::Above));
        let acts = some(24, For::Moving);
        let picked = paths(tree.path());
        let picked: Vec<String> = picked.0.into_iter().skip(1).chain(picked.1).collect();
        let part = (0..dice.below(3)).filter_map(|_| dice.of(&picked).cloned()).collect();
        let death = Some(dice.below(300)).filter(|_| seed.is_multiple_of(2));
        Case { lower, upper, acts, part, death, boot: dice.below(2) as u8 }
    }

    fn run(&self, bed: Bed, seen: &mut Seen) -> Result<(), String> {
        let Some(ground) = Ground::new(bed, &self.lower) else {
            println!("SKIPPED: an overlay cannot be mounted here");
            return Ok(());
        };
        let (inside, native) = (ground.inside(), ground.native());
        for side in [&inside, &native] {
            self.upper.iter().for_each(|act| _ = act.on_host(side));
            mark(side);
        }
        let first = host_tree(&inside);
        let open = Open::new(&inside, bed, 1)?;
        let (vol, twin) = open.view();
        // An object of which the kernel tells two numbers is two to the view: what a part does to
        // one of its names is an outside change of the other.
        let two = matches!(bed, Bed::Overlay(",userxattr")) && has_links_to_links(&inside);
        let whole = self.part.is_empty() || two;
        let half = if whole { 0 } else { self.acts.len() / 2 };
        if !both(&self.acts[..half], &native, &twin, seen)? {
            return Ok(());
        }
        let part = twin.0.freeze(&At(if whole { &[] } else { &self.part }));
        if !whole {
            let at = |e| format!("{}part: {e}", brief(&part.writes));
            commit_part(&open, &vol, &twin, &part).map_err(at)?;
            matches(&host_tree(&native), &view_tree(&twin.0)).map_err(at)?;
            seen.parts += u32::from(!part.is_empty());
        }
        let before = host_tree(&inside);
        let on = both(&self.acts[half..], &native, &twin, seen);
        if !on.map_err(|e| brief(&part.writes) + &e)? {
            return Ok(());
        }
        let after = host_tree(&native);
        matches(&after, &view_tree(&twin.0)).map_err(|e| format!("the view: {e}"))?;
        let writes = twin.0.freeze(&Everything).writes;
        drop(twin);
        let at = |what: &str| format!("{}then\n{}{what}: ", brief(&part.writes), brief(&writes));
        seen.cases += 1;
        seen.moved += u32::from(writes.binds.iter().any(|bind| {
            let target = bind.target.map(|ix| &writes.objects[ix.0 as usize].origin);
            matches!(target, Some(Origin::Host { kind: Kind::Dir, .. }))
        }));
        open.io.die_after(self.death.unwrap_or(usize::MAX));
        let (committed, installed) =
            open.commit(&writes, 2, TxnKind::Run).map_err(|e| at("") + &e)?;
        let mut now = open;
        if installed.is_none() {
            seen.deaths += 1;
            drop(now);
            now = Open::new(&inside, bed, 1 + self.boot).map_err(|e| at("recovery") + &e)?;
            let found = host_tree(&inside);
            if !committed && matches(&before, &found).is_ok() {
                return Ok(());
            }
            matches(&after, &found).map_err(|e| at("recovered") + &e)?;
        }
        now.io.die_after(usize::MAX);
        matches(&after, &host_tree(&inside)).map_err(|e| at("committed") + &e)?;
        let (whole, part) = (lost(&writes), lost(&part.writes));
        let mut steps = vec![(2, &before, &whole), (3, &after, &whole), (4, &before, &whole)];
        // On an overlay, what is changed again is touched first, and is another version then.
        if half > 0 && matches!(bed, Bed::Dir(_)) {
            steps.push((1, &first, &part));
        }
        and_back(&now, &inside, &steps).map_err(|e| at("") + &e)
    }

    /// The same failure with fewer calls.
    fn smaller(mut self, bed: Bed) -> Case {
        let fails = |case: &Case| case.run(bed, &mut Seen::default()).is_err();
        let parts: [fn(&mut Case) -> &mut Vec<Act>; 3] =
            [|c| &mut c.acts, |c| &mut c.upper, |c| &mut c.lower];
        for part in parts {
            let mut i = part(&mut self).len();
            while i > 0 {
                i -= 1;
                let mut less = self.clone();
                part(&mut less).remove(i);
                if fails(&less) {
                    self = less;
                }
            }
        }
        self
    }
}

/// Files that are changed and lose every name that the transaction met.  Under another one they
/// live on with the change, and undo finds it only if nobody died meanwhile; else it says so.
fn lost(writes: &WriteSet) -> Vec<Vec<u8>> {
    let bound = |ix: usize| writes.binds.iter().any(|b| b.target == Some(Ix(ix as u32)));
    let gone = |ix: usize| writes.binds.iter().any(|b| b.displaces == Some(Ix(ix as u32)));
    let objects = writes.objects.iter().enumerate();
    objects
        .filter_map(|(ix, object)| {
            let changed = object.attrs != Attrs::default() || object.content != Content::Keep;
            let (mut at, mut removed, mut path) = (ix, gone(ix) && !bound(ix), Vec::new());
            while let Origin::Host { parent, name, .. } = &writes.objects[at].origin {
                path.splice(0..0, [&name[..], b"/"].concat());
                at = parent.0 as usize;
                removed |= !bound(ix) && gone(at) && !bound(at);
            }
            path.pop();
            (changed && removed).then_some(path)
        })
        .collect()
}

/// The same calls on the host and in the view.  Whether the host went on: an overlay that is
/// mounted by a user says `ESTALE` of some links to a symbolic link of a lower layer, and then says
/// nothing of what a view should do.
fn both(acts: &[Act], native: &Path, twin: &Twin, seen: &mut Seen) -> Result<bool, String> {
    for act in acts {
        let (want, got) = (act.on_host(native), act.in_view(twin));
        if want == Err(Errno::STALE) {
            seen.stale += 1;
            return Ok(false);
        }
        same(&want, &got).map_err(|e| format!("{act:?}: {e}"))?;
        seen.calls[0] += 1;
        seen.calls[1] += u32::from(want.is_ok());
    }
    Ok(true)
}

/// Takes transactions back, one after the other: which, what is to be there then, and of what it
/// may be said that it is lost.
fn and_back(open: &Open, root: &Path, steps: &[(u64, &Tree, &Vec<Vec<u8>>)]) -> Result<(), String> {
    for ((txn, want, lost), next) in steps.iter().zip(3..) {
        let of = TxnId(*txn);
        let undo = match open.store.undo_set(of) {
            Err(UndoError::Overlap(paths)) if paths.iter().all(|path| lost.contains(path)) => {
                return Ok(());
            }
            // Where no time of birth tells a number that was given again.
            Err(UndoError::Gone { path, .. }) if lost.contains(&path) => return Ok(()),
            undo => undo.map_err(|e| format!("undo of {txn}: {e}"))?,
        };
        let told = format!("undone {txn}\n{}", brief(&undo.set));
        let done = open.commit(&undo.set, next, TxnKind::Undo { of });
        let done = done.map_err(|e| format!("{told}{e}"))?;
        same(&(true, true), &(done.0, done.1.is_some())).map_err(|e| format!("{told}{e}"))?;
        matches(want, &host_tree(root)).map_err(|e| format!("{told}{e}"))?;
    }
    Ok(())
}

/// Whether there is a symbolic link of several names.
fn has_links_to_links(root: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let all = paths(root).1;
    let looks = all.iter().map(|path| std::fs::symlink_metadata(root.join(path)).unwrap());
    looks.into_iter().any(|look| look.is_symlink() && look.nlink() > 1)
}

/// Gives each directory something to know it by.
fn mark(root: &Path) {
    for dir in &paths(root).0[1..] {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(root.join(dir), "user.a", dir.as_bytes(), flags).unwrap();
    }
}

fn matches(want: &Tree, got: &Tree) -> Result<(), String> {
    let plain = |tree: &Tree| {
        let mut tree = tree.clone();
        tree.values_mut().for_each(|seen| {
            // The graveyard keeps names in directories that were removed; an overlay does not count
            // what is in a directory.
            (seen.mtime, seen.nlink) = (None, 0);
            if seen.kind == Kind::Symlink {
                // On an overlay that is mounted by a user, natively a link to one is another one.
                seen.twin = None;
            }
        });
        tree
    };
    difference(&plain(want), &plain(got)).map_or(Ok(()), Err)
}

fn many(bed: Bed, count: u32) {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let first = std::env::var("SYSTX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    let mut seen = Seen::default();
    for seed in (first..).take(cases(count) as usize) {
        let case = Case::random(seed);
        if let Err(e) = case.run(bed, &mut seen) {
            let case = case.smaller(bed);
            let e = case.run(bed, &mut seen).err().unwrap_or(e);
            panic!("{bed:?}, seed {seed}: {case:#?}\n{e}");
        }
    }
    println!("{bed:?}: {seen:?}");
    assert!(seen.stale == 0 || matches!(bed, Bed::Overlay(_)), "no overlay: {seen:?}");
}

#[test]
fn trees_change_as_they_do_without_systx_on_a_journaled_file_system() {
    many(Bed::Dir(Class::Strong), 200);
}

#[test]
fn trees_change_as_they_do_without_systx_on_a_file_system_without_a_journal() {
    many(Bed::Dir(Class::Weak), 200);
}

#[test]
fn trees_change_as_they_do_without_systx_on_an_overlay() {
    many(Bed::Overlay(""), 100);
}

#[test]
fn trees_change_as_they_do_without_systx_on_a_users_overlay() {
    many(Bed::Overlay(",userxattr"), 50);
}

fn link(from: &str, to: &str) -> Act {
    Act::Link(from.into(), to.into())
}

fn rename(from: &str, to: &str) -> Act {
    Act::Rename(from.into(), to.into(), RenameHow::Replace)
}

/// Calls on a path each.
fn each(act: fn(String) -> Act, paths: &[&str]) -> Vec<Act> {
    paths.iter().map(|path| act((*path).into())).collect()
}

/// The calls below and above, what is done, and what is committed half way, on an overlay.
fn on_an_overlay(kinds: &[&'static str], [lower, upper, acts]: [Vec<Act>; 3], part: &[&str]) {
    let part = part.iter().map(|path| (*path).into()).collect();
    let case = Case { lower, upper, acts, part, death: None, boot: 0 };
    for kind in kinds {
        if let Err(e) = case.run(Bed::Overlay(kind), &mut Seen::default()) {
            panic!("overlay{kind}: {case:#?}\n{e}");
        }
    }
}

/// What the kernel tells of an object on an overlay is not always one number: seeds 278, 301 and
/// 1915 of `,userxattr` and 15117 of the usual kind, made smaller.
#[test]
fn an_object_of_which_an_overlay_tells_two_numbers_comes_back() {
    use Act::{File, Mkdir, Symlink, Unlink};
    let dirs = |paths: &[&str]| each(Mkdir, paths);
    let kinds = &["", ",userxattr"];
    let swap = |from: &str, to: &str| Act::Rename(from.into(), to.into(), RenameHow::Exchange);
    let below = |dirs: Vec<Act>, link: &str| [dirs, each(Symlink, &[link])].concat();
    on_an_overlay(
        kinds,
        [below(dirs(&["a"]), "c"), vec![link("c", "a/d")], each(Unlink, &["c"])],
        &[],
    );
    on_an_overlay(
        kinds,
        [
            below(vec![], "b"),
            [dirs(&["a", "e"]), vec![link("b", "a/c")]].concat(),
            vec![
                rename("a", "d"),
                swap("e", "d"),
                Mkdir("d/b".into()),
                swap("d/b", "e"),
                Unlink("d/b/c".into()),
            ],
        ],
        &[],
    );
    on_an_overlay(
        kinds,
        [
            below(vec![], "c"),
            [dirs(&["b"]), vec![link("c", "a")]].concat(),
            vec![Mkdir("b/a".into()), swap("b/a", "a"), Unlink("c".into())],
        ],
        &[],
    );
    on_an_overlay(
        kinds,
        [
            [below(dirs(&["b", "b/c", "b/b"]), "d"), vec![File("b/b/a".into(), 88)]].concat(),
            vec![Mkdir("b/c/a".into()), link("b/b/a", "b/c/a/e")],
            vec![link("d", "b/c/a/d"), Unlink("d".into())],
        ],
        &["b"],
    );
}

/// A part of a transaction removes a directory of the lower layer.  What that moves the version of
/// is no outside change to the rest: seed 55754, made smaller, and files with other names.
#[test]
fn the_rest_goes_on_with_what_a_part_has_raised_and_carried() {
    use Act::{Chmod, Mkdir, Rmdir, Symlink, Unlink, Write};
    let check = |upper: Vec<Act>, first: Vec<Act>, mut rest: Vec<Act>, part: &[&str]| {
        // The part is what is done when half is done.
        let fill = first.len().checked_sub(rest.len()).unwrap();
        rest.extend((0..fill).map(|n| Mkdir(format!("fill{n}"))));
        on_an_overlay(&[""], [each(Mkdir, &["e"]), upper, [first, rest].concat()], part);
    };
    let chmod = |path: &str| Chmod(path.into(), 0o711);
    let gone = || vec![Unlink("e/x".into()), Rmdir("e".into())];
    // In a directory that leaves the removed one.
    check(
        [each(Mkdir, &["d", "e/c"]), each(Symlink, &["e/c/d"])].concat(),
        vec![Unlink("e/c/d".into()), rename("e/c", "a"), rename("d", "e")],
        vec![],
        &["d"],
    );
    let makes: [fn(String) -> Act; 2] = [|path| Act::File(path, 7), Symlink];
    for make in makes {
        let two = || vec![make("e/x".into()), link("e/x", "y")];
        // Another name that is not known yet, and one that is.
        check(two(), gone(), vec![rename("y", "z")], &["e"]);
        let met = [vec![rename("y", "f"), rename("f", "y")], gone()].concat();
        check(two(), met, vec![rename("y", "z")], &["e"]);
        // All names go.
        check(two(), [each(Unlink, &["y"]), gone()].concat(), vec![], &[]);
    }
    // Changed by the rest; by the part and the rest.
    let two = || vec![Act::File("e/x".into(), 7), link("e/x", "y")];
    let again = || vec![Write("y".into(), 3), chmod("y")];
    check(two(), gone(), again(), &["e"]);
    check(two(), [vec![chmod("e/x"), chmod("y")], gone()].concat(), again(), &["e"]);
    check(two(), [vec![chmod("e/x"), chmod("y")], gone()].concat(), again(), &["e", "y"]);
}
