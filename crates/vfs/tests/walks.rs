//! Transactions, undos and redos, one after the other: each undo of the newest transaction that is
//! not undone gives the tree before it, each redo of the newest undo the tree after, however they
//! follow each other.
//!
//! `SYSTX_CASES=N` runs N walks of each kind, `SYSTX_SEED` begins elsewhere, `SYSTX_MOVES_DIR` has
//! them in another directory than one in memory.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "../../lfs-store/tests/volume/mod.rs"]
mod volume;

use common::bed::{Act, Bed, Dice, Ground, Open, same};
use common::*;
use rustix::io::Errno;
use std::collections::HashSet;
use std::sync::Arc;
use systx_base::{Kind, Time, TxnId};
use systx_lfs::Clock;
use systx_lfs::device::MemDevice;
use systx_lfs_store::VolumeStore;
use systx_store::io::Class;
use systx_store::writeset::WriteSet;
use systx_store::{CommitMeta, Nobody, Store, TxnKind};
use systx_txn::Isolation;
use systx_vfs::api::{Calls, RenameHow, SetAttr, SetTime, SetXattr};
use systx_vfs::freeze::Everything;
use systx_vfs::volume::Volume;

/// How long a walk is.
const STEPS: usize = 40;

/// A call of a transaction.
#[derive(Clone, Debug)]
enum Call {
    Act(Act),
    Truncate(String, u16),
    Xattr(String, u8),
    /// Sets the modification time.
    Time(String, u8),
    /// Removes all that is there, as `rm -r` does.
    Clear(String),
}

impl Call {
    fn run(&self, twin: &Twin) -> Result<(), Errno> {
        let (Call::Truncate(path, _) | Call::Xattr(path, _) | Call::Time(path, _)) = self else {
            return match self {
                Call::Act(act) => act.in_view(twin),
                Call::Clear(path) => clear(twin, path),
                _ => Ok(()),
            };
        };
        let entry = twin.walk(path)?;
        if entry.attr.kind != Kind::File {
            return Err(Errno::INVAL);
        }
        let set = match self {
            Call::Truncate(_, len) => SetAttr { size: Some((*len).into()), ..SetAttr::default() },
            Call::Time(_, secs) => {
                let to = SetTime::To(Time { secs: (*secs).into(), nanos: 7 });
                SetAttr { mtime: Some(to), ..SetAttr::default() }
            }
            Call::Xattr(_, fill) => {
                let value = [*fill; 3];
                return twin.0.setxattr(
                    CALLER,
                    entry.node,
                    b"user.b",
                    &value,
                    SetXattr::Any,
                    false,
                );
            }
            Call::Act(_) | Call::Clear(_) => return Ok(()),
        };
        twin.0.setattr(CALLER, entry.node, set).map(drop)
    }
}

fn clear(twin: &Twin, path: &str) -> Result<(), Errno> {
    let (up, name) = twin.parent(path)?;
    let top = twin.walk(path)?;
    if top.attr.kind != Kind::Dir {
        return twin.0.unlink(CALLER, up, name);
    }
    let mut names = Vec::new();
    twin.0.readdir(top.node, 0, true, &mut |e| {
        if e.name != b"." && e.name != b".." {
            names.push(String::from_utf8_lossy(e.name).into_owned());
        }
        true
    })?;
    names.iter().try_for_each(|name| clear(twin, &format!("{path}/{name}")))?;
    twin.0.rmdir(CALLER, up, name)
}

/// What there may be, to choose from: paths, and whether they are directories.
#[derive(Clone, Default)]
struct Paths(Vec<(String, bool)>);

impl Paths {
    fn of(tree: &Tree) -> Paths {
        let item = |(path, seen): (&String, &Seen)| (path[1..].to_owned(), seen.kind == Kind::Dir);
        Paths(tree.iter().map(item).collect())
    }

    fn of_kind(&self, is_dir: bool) -> Vec<String> {
        self.0.iter().filter(|(_, dir)| *dir == is_dir).map(|(path, _)| path.clone()).collect()
    }

    /// A call has succeeded.
    fn note(&mut self, call: &Call) {
        let is_at = |path: &str, top: &str| {
            path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match call {
            Call::Act(Act::Mkdir(path)) => self.0.push((path.clone(), true)),
            Call::Act(Act::File(path, _) | Act::Symlink(path) | Act::Link(_, path)) => {
                self.0.push((path.clone(), false));
            }
            Call::Act(Act::Unlink(path) | Act::Rmdir(path)) | Call::Clear(path) => {
                self.0.retain(|(known, _)| !is_at(known, path));
            }
            Call::Act(Act::Rename(from, to, how)) => {
                if *how != RenameHow::Exchange {
                    self.0.retain(|(known, _)| !is_at(known, to));
                }
                for (known, _) in &mut self.0 {
                    let (old, new) = if is_at(known, from) { (from, to) } else { (to, from) };
                    if is_at(known, old) {
                        known.replace_range(..old.len(), new);
                    }
                }
            }
            _ => {}
        }
    }

    /// A call that may well succeed.
    fn call(&self, dice: &mut Dice) -> Call {
        let (dirs, rest) = (self.of_kind(true), self.of_kind(false));
        let all: Vec<String> = dirs.iter().chain(&rest).cloned().collect();
        loop {
            let fill = dice.below(255) as u8;
            let name = ["a", "b", "c", "d", "e"][dice.below(5)];
            let new = match dice.below(dirs.len() + 1).checked_sub(1) {
                Some(dir) => format!("{}/{name}", dirs[dir]),
                None => name.to_owned(),
            };
            let file = dice.of(&rest).cloned();
            let [any, other] = [(); 2].map(|()| dice.of(&all).cloned());
            let moved = |(a, b)| Call::Act(Act::Rename(a, b, RenameHow::Replace));
            let swapped = |(a, b)| Call::Act(Act::Rename(a, b, RenameHow::Exchange));
            let call = match dice.below(28) {
                0..4 => Some(Call::Act(Act::Mkdir(new))),
                4..7 => Some(Call::Act(Act::File(new, fill))),
                7 => Some(Call::Act(Act::Symlink(new))),
                8..11 => file.map(|file| Call::Act(Act::Link(file, new))),
                11 => file.map(|file| Call::Act(Act::Unlink(file))),
                12..14 => any.map(Call::Clear),
                14..17 => file.map(|file| Call::Act(Act::Write(file, fill))),
                17 => any.map(|any| Call::Act(Act::Chmod(any, 0o700 | u32::from(fill) & 0o77))),
                18 => file.map(|file| Call::Truncate(file, u16::from(fill) * 70)),
                19 => file.map(|file| Call::Xattr(file, fill)),
                20 => file.map(|file| Call::Time(file, fill)),
                21..25 => any.zip(Some(new)).map(moved),
                25 => any.zip(other).map(moved),
                _ => any.zip(other).map(swapped),
            };
            if let Some(call) = call {
                return call;
            }
        }
    }
}

/// A step of a walk.
#[derive(Clone, Debug)]
enum Step {
    Run(Vec<Call>),
    Undo,
    Redo,
    /// The store lets go of its journal.
    Checkpoint,
    /// And is opened anew.
    Reopen,
}

impl Step {
    /// The next one, without calls.
    fn random(dice: &mut Dice) -> Step {
        match dice.below(100) {
            0..45 => Step::Run(Vec::new()),
            45..72 => Step::Undo,
            72..94 => Step::Redo,
            94..98 => Step::Checkpoint,
            _ => Step::Reopen,
        }
    }
}

/// Where walks are.
#[derive(Clone, Copy, Debug)]
enum Where {
    Bed(Bed),
    Volume,
}

/// A place of a walk.
enum Place {
    Dir { bed: Bed, open: Option<Open>, ground: Ground },
    Volume { dev: Arc<MemDevice>, clock: Clock, store: Option<Arc<VolumeStore>> },
}

/// Time goes on where it was when the volume was open before.
fn open_on(dev: &Arc<MemDevice>, clock: &Clock) -> Option<Arc<VolumeStore>> {
    let config = systx_lfs_store::Config { clock: clock.clone(), ..volume::config() };
    Some(systx_lfs_store::open(dev.clone(), config, &Nobody).unwrap())
}

impl Place {
    /// `None` where it cannot be had.
    fn new(at: Where) -> Option<Place> {
        Some(match at {
            Where::Bed(bed) => {
                let ground = Ground::new(bed, &[])?;
                let open = Some(Open::new(&ground.inside(), bed, 1).unwrap());
                Place::Dir { bed, open, ground }
            }
            Where::Volume => {
                let dev = Arc::new(MemDevice::new(8192));
                volume::make(dev.clone());
                let clock = volume::clock();
                Place::Volume { store: open_on(&dev, &clock), clock, dev }
            }
        })
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Place::Dir { open, .. } => open.as_ref().unwrap().store.clone(),
            Place::Volume { store, .. } => store.clone().unwrap(),
        }
    }

    fn view(&self) -> Twin {
        match self {
            Place::Dir { open, .. } => open.as_ref().unwrap().view().1,
            Place::Volume { store, .. } => {
                let store = store.as_ref().unwrap();
                let hidden = HashSet::from_iter(store.own_object());
                let vol = Volume::alone(store.tree(), Vec::new(), hidden).unwrap();
                Twin(open_view(&Arc::new(vol), 7, Isolation::Serializable))
            }
        }
    }

    /// What is there, as undo takes it back: without times of directories, and without counts of
    /// names, of which the graveyard has some.
    fn now(&self) -> Tree {
        let mut tree = match self {
            Place::Dir { ground, .. } => host_tree(&ground.inside()),
            Place::Volume { .. } => view_tree(&self.view().0),
        };
        for seen in tree.values_mut() {
            seen.nlink = 0;
            if seen.kind == Kind::Dir {
                seen.mtime = None;
            }
        }
        tree
    }

    fn reopen(&mut self) {
        match self {
            Place::Dir { bed, open, ground } => {
                drop(open.take());
                *open = Some(Open::new(&ground.inside(), *bed, 1).unwrap());
            }
            Place::Volume { dev, clock, store } => {
                drop(store.take());
                *store = open_on(dev, clock);
            }
        }
    }
}

/// What a step took back or brought, with the trees before and after the transaction.
#[derive(Clone)]
struct Taken {
    txn: TxnId,
    before: Tree,
    after: Tree,
}

struct Walk {
    place: Place,
    now: Tree,
    txn: u64,
    done: Vec<Taken>,
    undone: Vec<Taken>,
}

impl Walk {
    fn new(at: Where) -> Option<Walk> {
        let place = Place::new(at)?;
        Some(Walk { now: place.now(), place, txn: 0, done: Vec::new(), undone: Vec::new() })
    }

    fn commit(&mut self, writes: &WriteSet, kind: TxnKind) -> Result<TxnId, String> {
        self.txn += 1;
        let meta = CommitMeta { kind, ..volume::meta(TxnId(self.txn)) };
        let store = self.place.store();
        let room = store.reserve(writes).map_err(|e| format!("no room: {e}"))?;
        let committed = store.commit(room, writes.clone(), meta);
        let committed = committed.map_err(|e| format!("not committed: {e}"))?;
        let report = store.apply(committed.lsn).map_err(|e| format!("not installed: {e}"))?;
        same(&Vec::new(), &report.outside)?;
        Ok(TxnId(self.txn))
    }

    /// Takes a transaction back; `want` is to be there then.
    fn back(&mut self, of: TxnId, want: &Tree, kind: TxnKind) -> Result<TxnId, String> {
        let store = self.place.store();
        let undo = store.undo_set(of).map_err(|e| format!("{kind:?}: {e} {e:?}"))?;
        let told = format!("{kind:?}\n{}", brief(&undo.set));
        let txn = self.commit(&undo.set, kind).map_err(|e| told.clone() + &e)?;
        self.now = self.place.now();
        difference(want, &self.now).map_or(Ok(txn), |e| Err(told + &e))
    }

    /// A transaction with the calls that `next` names, one after the other.
    fn run(&mut self, mut next: impl FnMut(&Paths) -> Option<Call>) -> Result<(), String> {
        let (twin, mut paths) = (self.place.view(), Paths::of(&self.now));
        while let Some(call) = next(&paths) {
            if call.run(&twin).is_ok() {
                paths.note(&call);
            }
        }
        let frozen = twin.0.freeze(&Everything);
        drop(twin);
        if frozen.is_empty() {
            return Ok(());
        }
        let txn = self.commit(&frozen.writes, TxnKind::Run).map_err(|e| format!("run: {e}"))?;
        let after = self.place.now();
        let before = std::mem::replace(&mut self.now, after.clone());
        self.done.push(Taken { txn, before, after });
        self.undone.clear();
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Run(calls) => {
                let mut calls = calls.iter();
                self.run(|_| calls.next().cloned())
            }
            Step::Undo => {
                let Some(last) = self.done.pop() else { return Ok(()) };
                let txn = self.back(last.txn, &last.before, TxnKind::Undo { of: last.txn })?;
                self.undone.push(Taken { txn, ..last });
                Ok(())
            }
            Step::Redo => {
                let Some(last) = self.undone.pop() else { return Ok(()) };
                let txn = self.back(last.txn, &last.after, TxnKind::Redo { of: last.txn })?;
                self.done.push(Taken { txn, ..last });
                Ok(())
            }
            Step::Checkpoint => self.place.store().checkpoint().map_err(|e| e.to_string()),
            Step::Reopen => {
                self.step(&Step::Checkpoint)?;
                self.place.reopen();
                difference(&self.now, &self.place.now()).map_or(Ok(()), Err)
            }
        }
    }
}

/// A walk as random as `seed`: what was done, and what became of it.
fn random(at: Where, seed: u64) -> (Vec<Step>, Result<(), String>) {
    let (mut dice, mut steps) = (Dice(seed), Vec::new());
    let Some(mut walk) = Walk::new(at) else { return (steps, Ok(())) };
    for _ in 0..STEPS {
        let mut step = Step::random(&mut dice);
        let done = match &mut step {
            Step::Run(calls) => {
                let mut left = 1 + dice.below(12);
                walk.run(|paths| {
                    left = left.checked_sub(1)?;
                    calls.push(paths.call(&mut dice));
                    calls.last().cloned()
                })
            }
            step => walk.step(step),
        };
        steps.push(step);
        if done.is_err() {
            return (steps, done);
        }
    }
    (steps, Ok(()))
}

fn again(at: Where, steps: &[Step]) -> Result<(), String> {
    let Some(mut walk) = Walk::new(at) else { return Ok(()) };
    steps.iter().try_for_each(|step| walk.step(step))
}

/// The same failure with fewer steps and calls.
fn smaller(at: Where, mut steps: Vec<Step>) -> Vec<Step> {
    let fails = |steps: &[Step]| again(at, steps).is_err();
    for i in (0..steps.len()).rev() {
        let mut less = steps.clone();
        less.remove(i);
        if fails(&less) {
            steps = less;
        }
    }
    for i in 0..steps.len() {
        let count = if let Step::Run(calls) = &steps[i] { calls.len() } else { 0 };
        for call in (0..count).rev() {
            let mut less = steps.clone();
            if let Step::Run(calls) = &mut less[i] {
                calls.remove(call);
            }
            if fails(&less) {
                steps = less;
            }
        }
    }
    steps
}

fn many(at: Where, count: u32) {
    if !is_root() {
        println!("SKIPPED: needs root");
        return;
    }
    let first = std::env::var("SYSTX_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    for seed in (first..).take(cases(count) as usize) {
        let (steps, Err(e)) = random(at, seed) else { continue };
        let steps = smaller(at, steps);
        let e = again(at, &steps).err().unwrap_or(e);
        panic!("{at:?}, seed {seed}: {steps:#?}\n{e}");
    }
}

#[test]
fn undos_and_redos_go_back_and_forth_on_a_journaled_file_system() {
    many(Where::Bed(Bed::Dir(Class::Strong)), 40);
}

#[test]
fn undos_and_redos_go_back_and_forth_on_a_file_system_without_a_journal() {
    many(Where::Bed(Bed::Dir(Class::Weak)), 40);
}

#[test]
fn undos_and_redos_go_back_and_forth_on_a_volume() {
    many(Where::Volume, 40);
}
