//! Directories that change places, exhaustively: from every tree to every other one, by a
//! transaction, its undo and its redo, with every death of the process and power cuts between.
//!
//! A case has a number of directories.  Each stays, goes, or comes; those of the first tree have
//! names of their own, and in the last tree each has a place anywhere, under a new name or under
//! one that something had there before.  What is the same but for names is looked at once.

#![allow(clippy::unwrap_used)]

mod common;

use common::{budget, seed};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Result;
use systx_base::{Kind, Time};
use systx_sim::model::{Draft, Id, Item, Model};
use systx_sim::suite::{self, Bench, How, Stats};
use systx_sim::{Profile, Rng};
use systx_store::io::Io;

/// The root is number 0.
const ROOT: usize = 0;
const KEY: &[u8] = b"user.k";

/// What becomes of a directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fate {
    Stays,
    Goes,
    Comes,
}
use Fate::*;

/// The parent of each directory from 1 on.
type Parents = Vec<usize>;

/// The first tree: parents stand before what is in them, and `Comes` last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct First {
    fates: Vec<Fate>,
    /// Of those that are there.
    parents: Parents,
}

/// The last tree: for each directory that is there, its parent and whose former name it has, if
/// anybody's.
#[derive(Clone, Debug)]
struct Last {
    places: BTreeMap<usize, (usize, Option<usize>)>,
}

/// Every list of `len` choices.
fn choices<T: Clone>(len: usize, each: &dyn Fn(usize) -> Vec<T>) -> Vec<Vec<T>> {
    (0..len).fold(vec![Vec::new()], |lists, i| {
        let extend =
            |list: Vec<T>| each(i).into_iter().map(move |choice| [&list[..], &[choice]].concat());
        lists.into_iter().flat_map(extend).collect()
    })
}

impl First {
    /// All of `count` directories, those that differ in their names only once.
    fn all(count: usize) -> Vec<First> {
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        for there in 0..=count {
            for some in choices(there, &|_| vec![Stays, Goes]) {
                for parents in choices(there, &|i| (ROOT..=i).collect()) {
                    let mut fates = some.clone();
                    fates.resize(count, Comes);
                    let first = First { fates, parents };
                    if seen.insert(first.shape(ROOT)) {
                        all.push(first);
                    }
                }
            }
        }
        all
    }

    /// What is below a directory, whatever the names.
    fn shape(&self, top: usize) -> String {
        let mut below: Vec<String> = self.children(top).map(|dir| self.shape(dir)).collect();
        below.sort();
        let fate = top.checked_sub(1).map(|i| self.fates[i]);
        format!("{fate:?}({})", below.concat())
    }

    fn children(&self, of: usize) -> impl Iterator<Item = usize> {
        (1..).zip(&self.parents).filter(move |(_, parent)| **parent == of).map(|(dir, _)| dir)
    }

    /// All trees that it may become.
    fn lasts(&self) -> Vec<Last> {
        let there: Vec<usize> =
            (1..).zip(&self.fates).filter(|(_, fate)| **fate != Goes).map(|(dir, _)| dir).collect();
        let parents = choices(there.len(), &|_| {
            [ROOT].into_iter().chain(there.iter().copied()).collect::<Vec<_>>()
        });
        let mut lasts = Vec::new();
        for parents in parents {
            let of: BTreeMap<usize, usize> =
                there.iter().copied().zip(parents.iter().copied()).collect();
            let ends = |dir: &usize| {
                (0..=there.len()).try_fold(*dir, |at, _| of.get(&at).copied()).is_none()
            };
            if !there.iter().all(ends) {
                continue;
            }
            let names = choices(there.len(), &|i| {
                [None].into_iter().chain(self.children(parents[i]).map(Some)).collect::<Vec<_>>()
            });
            for names in names {
                let taken: Vec<usize> = names.iter().flatten().copied().collect();
                if taken.iter().collect::<BTreeSet<_>>().len() == taken.len() {
                    let places = parents.iter().copied().zip(names);
                    let places = there.iter().copied().zip(places).collect();
                    lasts.push(Last { places });
                }
            }
        }
        lasts
    }

    fn build(&self, io: &dyn Io) -> Result<()> {
        let mut dirs = vec![io.root()];
        for (dir, parent) in (1..).zip(&self.parents) {
            let (at, name) = (dirs[*parent].clone(), old_name(dir));
            io.mkdir(&at, &name, 0o755)?;
            io.set_xattr(&at, &name, KEY, &[dir as u8])?;
            dirs.push(io.open_dir(&at, &name)?);
        }
        io.sync_fs()
    }

    fn bench(&self, profile: Profile) -> Bench<'static> {
        Bench::over(profile, &suite::plain, |io| self.build(io)).unwrap()
    }

    /// The transaction that makes the last tree.
    fn draft(&self, before: &Model, last: &Last) -> Draft {
        let mut after = before.clone();
        let mut ids: Vec<Id> = vec![systx_sim::model::ROOT];
        for (dir, parent) in (1..).zip(&self.parents) {
            ids.push(before.clone().items()[&ids[*parent]].entries[&old_name(dir)]);
        }
        for dir in ids.len()..=self.fates.len() {
            ids.push(after.add(made(dir)));
        }
        for item in after.items().values_mut() {
            item.entries.clear();
        }
        for (dir, (parent, name)) in &last.places {
            let name = name.map_or_else(|| format!("new{dir}").into_bytes(), old_name);
            let parent = after.items().get_mut(&ids[*parent]).unwrap();
            assert_eq!(parent.entries.insert(name, ids[*dir]), None);
        }
        Draft::between(before, after)
    }
}

fn old_name(dir: usize) -> Vec<u8> {
    vec![b'a' + dir as u8]
}

fn made(dir: usize) -> Item {
    Item {
        kind: Kind::Dir,
        mode: 0o755,
        uid: 0,
        gid: 0,
        mtime: Time::default(),
        rdev: 0,
        bytes: Vec::new(),
        xattrs: BTreeMap::from([(KEY.to_vec(), vec![dir as u8])]),
        entries: BTreeMap::new(),
    }
}

/// All cases of `count` directories, or about one in `every`, each with its undo and redo; with
/// every crash of it, or none.
fn cases(count: usize, every: usize, profile: Profile, how: Option<How>) -> Stats {
    let started = std::time::Instant::now();
    let mut stats = Stats::default();
    let mut rng = Rng::new(seed());
    for first in First::all(count) {
        let bench = first.bench(profile);
        for last in first.lasts() {
            if rng.below(every) > 0 {
                continue;
            }
            let draft = first.draft(bench.base(), &last);
            let done = match how {
                Some(how) => bench.draft(draft, &How { undo: true, ..how }),
                None => bench.undisturbed(draft, &How { undo: true, ..How::deaths() }),
            };
            match done {
                Ok(one) => stats.add(one),
                Err(e) => panic!("{:?}: {first:?}\n{last:?}\n{e}", profile.class),
            }
        }
    }
    println!("{count} directories, {:?}: {stats:?} in {:?}", profile.class, started.elapsed());
    stats
}

const CLASSES: [Profile; 2] = [Profile::STRONG, Profile::WEAK];

/// So that with a budget of `full` it is all of them.
fn one_in(full: u64) -> usize {
    full.div_ceil(budget()) as usize
}

#[test]
fn any_tree_becomes_any_other_and_back() {
    for profile in CLASSES {
        for (count, every) in [(1, 1), (2, 1), (3, 1), (4, one_in(10)), (5, one_in(1000))] {
            cases(count, every, profile, None);
        }
    }
}

#[test]
fn a_process_may_die_at_every_step() {
    for profile in CLASSES {
        for (count, every) in [(1, 1), (2, 1), (3, one_in(10)), (4, one_in(1000))] {
            cases(count, every, profile, Some(How::deaths()));
        }
    }
}

#[test]
fn the_power_may_fail_at_every_step() {
    for profile in CLASSES {
        for (count, every) in [(1, 1), (2, 1), (3, one_in(10)), (4, one_in(1000))] {
            let how = How { checkpoint: true, ..How::power_cuts(10, seed()) };
            cases(count, every, profile, Some(how));
        }
    }
}
