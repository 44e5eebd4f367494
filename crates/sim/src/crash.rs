//! What a power cut may leave. Changes that no sync has covered yet are kept as *units*, each with
//! its versions in time order; a crash state takes one version of every unit (or none: what the
//! disk had), independently of the others. This is ALICE's abstract persistence model, in two
//! strengths:
//!
//! | unit | [`Class::Strong`] | [`Class::Weak`] |
//! |---|---|---|
//! | names | one unit: a prefix of all namespace calls, each of them atomic | one unit for each (directory, name); a rename is an independent add and remove |
//! | inode | comes with the call that made it | one unit: it exists, is freed, or is freed and its blocks overwritten by strangers |
//! | attributes, length | one unit for each inode | the same |
//! | extended attributes | one unit for each inode | the same |
//! | page | one unit for each page; may be torn at 512 bytes | the same; a freed page may hold garbage |
//!
//! After choosing, [`State::repair`] does what mounting does.  Nothing at all happens to
//! [`Class::Memory`]: it only knows the death of processes.
//!
//! It is enough to look right before each sync takes effect: units only grow between syncs, so that
//! the states of every earlier instant are among those of the sync that follows it.

use crate::state::{Body, Inode, Meta, PAGE, Page, State, Xattrs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systx_store::io::Class;

/// How adverse the simulated file system is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Profile {
    /// What it promises.
    pub class: Class,
    /// Strong: syncing a file also persists every name given before (as ext4, xfs and btrfs do, and
    /// POSIX does not ask).
    pub fsync_persists_names: bool,
    /// Weak: syncing a file persists its length, attributes and new blocks (kernels with the 2026
    /// fix of fsync for ext4 without a journal). Without it only what overwrites old blocks counts.
    pub fsync_persists_inode: bool,
    /// The times that a namespace call moves implicitly are units of their own, too.  Off in
    /// exhaustive runs: it doubles the states for each directory.
    pub implicit_times: bool,
}

impl Profile {
    /// The most adverse journaled file system.
    pub const STRONG: Profile = Profile {
        class: Class::Strong,
        fsync_persists_names: false,
        fsync_persists_inode: true,
        implicit_times: false,
    };
    /// The most adverse file system without a journal.
    pub const WEAK: Profile = Profile {
        class: Class::Weak,
        fsync_persists_names: false,
        fsync_persists_inode: false,
        implicit_times: false,
    };
    /// A file system in memory.
    pub const MEMORY: Profile = Profile { class: Class::Memory, ..Profile::STRONG };
}

/// Something that persists or does not, independently of every other unit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Unit {
    /// Strong: all namespace calls.
    Namespace,
    /// Weak: whether an inode exists.
    Life(u64),
    /// Attributes of an inode.
    Meta(u64),
    /// Extended attributes of an inode.
    Xattrs(u64),
    /// A page of a file.
    Page(u64, u64),
    /// Weak: an entry of a directory.
    Entry(u64, Vec<u8>),
}

/// Whether a weak file system's inode exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It is in the inode table.
    Live,
    /// Freed in memory only, but its blocks already belong to somebody else.
    Scrambled,
    /// Freed.
    Freed,
}

/// An entry that a namespace call set: directory, name, and what it names from then on.
pub type Entry = (u64, Vec<u8>, Option<u64>);

/// A version of a unit, as an absolute state; only namespace calls add to those before.
#[derive(Clone)]
pub enum Change {
    /// One namespace call.
    Namespace(Vec<Entry>),
    /// Existence.
    Life(Life),
    /// Attributes.
    Meta(Meta),
    /// All extended attributes.
    Xattrs(Arc<Xattrs>),
    /// A page; `None` is a hole.
    Page(Option<Arc<Page>>),
    /// What a name names.
    Entry(Option<u64>),
}

/// A change and its place in time.
#[derive(Clone)]
pub struct Version {
    /// Rises with every mutating call.
    pub seq: u64,
    /// The state.
    pub change: Change,
}

/// The disk: what is durable, and what may be.
#[derive(Clone)]
pub struct Disk {
    /// Durable, possibly with inodes that nothing names.
    pub image: State,
    /// Not yet covered by a sync.
    pub pending: BTreeMap<Unit, Vec<Version>>,
    /// The rules.
    pub profile: Profile,
}

impl Disk {
    /// A disk that holds `image` and has nothing pending.
    pub fn new(image: State, profile: Profile) -> Disk {
        Disk { image, pending: BTreeMap::new(), profile }
    }

    /// Notes a change that happened in memory.
    pub fn push(&mut self, unit: Unit, seq: u64, change: Change) {
        if self.profile.class == Class::Memory {
            return;
        }
        let versions = self.pending.entry(unit).or_default();
        // Within one call only the last state of a unit can reach the disk on its own.
        if !matches!(change, Change::Life(_)) && versions.last().is_some_and(|v| v.seq == seq) {
            versions.pop();
        }
        versions.push(Version { seq, change });
    }

    /// Makes the newest version of `unit` durable.
    pub fn flush(&mut self, unit: &Unit) {
        if let Some(versions) = self.pending.remove(unit) {
            apply(&mut self.image, unit, &versions, Pick::whole(versions.len()));
        }
    }

    /// Strong: makes namespace calls durable up to the last one that `wanted` is true for.
    pub fn flush_namespace(&mut self, wanted: impl Fn(&Entry) -> bool) {
        let Some(calls) = self.pending.get_mut(&Unit::Namespace) else { return };
        let hit = |v: &Version| matches!(&v.change, Change::Namespace(e) if e.iter().any(&wanted));
        let Some(last) = calls.iter().rposition(hit) else { return };
        let done: Vec<Version> = calls.drain(..=last).collect();
        if calls.is_empty() {
            self.pending.remove(&Unit::Namespace);
        }
        apply(&mut self.image, &Unit::Namespace, &done, Pick::whole(done.len()));
    }

    /// Makes everything durable.
    pub fn flush_all(&mut self, now: &State) {
        self.pending.clear();
        self.image = now.clone();
        let unnamed: Vec<u64> =
            now.inodes.iter().filter(|(_, i)| i.nlink == 0).map(|(ino, _)| *ino).collect();
        for ino in unnamed {
            if let Some(inode) = self.image.get_mut(ino) {
                inode.live = false;
            }
        }
    }

    /// The disk refuses dirty pages, all but what `choice` says, and the kernel drops them: what is
    /// read from now on is what the disk has.  Everything else stays dirty.
    pub fn lose_pages(&mut self, now: &mut State, choice: &Choice) {
        let pages = |unit: &Unit| matches!(unit, Unit::Page(..));
        let picks: BTreeMap<Unit, Pick> =
            self.pending.keys().cloned().zip(choice.picks.iter().copied()).collect();
        let all = std::mem::take(&mut self.pending);
        let (lost, kept): (BTreeMap<_, _>, _) = all.into_iter().partition(|(unit, _)| pages(unit));
        self.pending = kept;
        for (unit, versions) in lost {
            apply(
                &mut self.image,
                &unit,
                &versions,
                picks.get(&unit).copied().unwrap_or(Pick::NONE),
            );
            if let Unit::Page(ino, n) = unit {
                set_page(now, ino, n, page_of(&self.image, ino, n));
            }
        }
    }

    /// The states that a power cut now may leave: their number.
    pub fn count(&self) -> u64 {
        self.pending.values().fold(1u64, |n, v| n.saturating_mul(v.len() as u64 + 1))
    }

    /// The state after a power cut in which `choice` was persisted.
    pub fn crash(&self, choice: &Choice) -> State {
        let mut image = self.image.clone();
        for ((unit, versions), pick) in self.pending.iter().zip(&choice.picks) {
            apply(&mut image, unit, versions, *pick);
        }
        image.repair(self.profile.class == Class::Weak, choice.reverse);
        image
    }

    /// Which states to look at: all of them if there are no more than `plan.exhaustive`, and each
    /// page torn; else a sample of at most `plan.budget`.
    pub fn choices(&self, plan: &Plan) -> Vec<Choice> {
        if self.count() <= plan.exhaustive { self.all() } else { self.sample(plan) }
    }

    fn all(&self) -> Vec<Choice> {
        let lens: Vec<usize> = self.pending.values().map(Vec::len).collect();
        let mut all = Vec::new();
        let mut picks = vec![Pick::NONE; lens.len()];
        loop {
            // Both outcomes of a doubly named directory are seen, if not in every combination.
            all.push(Choice { picks: picks.clone(), reverse: all.len() % 2 == 1 });
            let Some(digit) = (0..lens.len()).find(|d| picks[*d].version < lens[*d]) else {
                break;
            };
            picks[..digit].fill(Pick::NONE);
            picks[digit].version += 1;
        }
        let mut torn = Sampled::new(usize::MAX);
        self.tears(&mut torn, &picks);
        all.extend(torn.list);
        all
    }

    /// All prefixes in time, drop-one, keep-one, drop-pairs, tears, then random ones.
    fn sample(&self, plan: &Plan) -> Vec<Choice> {
        let lens: Vec<usize> = self.pending.values().map(Vec::len).collect();
        let full: Vec<Pick> = lens.iter().map(|n| Pick::whole(*n)).collect();
        let none = vec![Pick::NONE; lens.len()];
        let mut rng = Rng::new(plan.seed);
        let mut out = Sampled::new(usize::MAX);
        out.add(&none);
        out.add(&full);
        self.prefixes(&mut out);
        for (base, other) in [(&full, &none), (&none, &full)] {
            for (at, pick) in other.iter().enumerate() {
                out.with(base, &[(at, *pick)]);
            }
        }
        self.tears(&mut out, &full);
        // Room for the rest: where there are too many of these, the seed chooses.
        out.thin(plan.budget / 2, &mut rng);
        out.budget = plan.budget * 3 / 4;
        for _ in 0..plan.budget / 4 {
            let (a, b) = (rng.below(lens.len()), rng.below(lens.len()));
            out.with(&full, &[(a, Pick::NONE), (b, Pick::NONE)]);
        }
        out.budget = plan.budget;
        // Bounded by tries, not by finds: few distinct states may be left.
        for _ in 0..plan.budget {
            let bias = rng.below(5);
            let pick = |n: &usize| match rng.below(4) {
                r if r < bias => Pick::whole(*n),
                0 | 1 => Pick::NONE,
                _ => Pick { version: rng.below(*n + 1), torn: rng.below(3 * TEARS) % TEARS },
            };
            let picks = lens.iter().map(pick).collect::<Vec<_>>();
            out.add(&picks);
        }
        out.list
    }

    fn prefixes(&self, out: &mut Sampled) {
        let times: BTreeSet<u64> = self.pending.values().flatten().map(|v| v.seq).collect();
        for time in times {
            let upto = |v: &Vec<Version>| Pick::whole(v.partition_point(|v| v.seq <= time));
            let picks: Vec<Pick> = self.pending.values().map(upto).collect();
            out.add(&picks);
        }
    }

    fn tears(&self, out: &mut Sampled, full: &[Pick]) {
        for (at, unit) in self.pending.keys().enumerate() {
            if matches!(unit, Unit::Page(..)) {
                for torn in 1..TEARS {
                    out.with(full, &[(at, Pick { torn, ..full[at] })]);
                }
            }
        }
    }
}

/// Sectors of a page.
const TEARS: usize = PAGE / 512;

/// How many crash states to look at, and which.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Look at all states if there are at most so many.
    pub exhaustive: u64,
    /// Otherwise at so many.
    pub budget: usize,
    /// Of the random part.
    pub seed: u64,
}

impl Plan {
    /// Everything up to 4096 states, then `budget`.
    pub fn new(budget: usize, seed: u64) -> Plan {
        Plan { exhaustive: 4096, budget, seed }
    }
}

/// How far one unit came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pick {
    /// 0: what the disk had; n: its n-th version.
    pub version: usize,
    /// For a page: only the first so many sectors are of this version, the rest of the one before.
    /// 0: it is whole.
    pub torn: usize,
}

impl Pick {
    /// Nothing of it.
    pub const NONE: Pick = Pick { version: 0, torn: 0 };
    /// The `n`-th version.
    pub fn whole(n: usize) -> Pick {
        Pick { version: n, torn: 0 }
    }
}

/// One crash state of a [`Disk`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Choice {
    /// For each unit, in order.
    pub picks: Vec<Pick>,
    /// See [`State::repair`].
    pub reverse: bool,
}

struct Sampled {
    list: Vec<Choice>,
    seen: BTreeSet<Vec<Pick>>,
    budget: usize,
}

impl Sampled {
    fn new(budget: usize) -> Sampled {
        Sampled { list: Vec::new(), seen: BTreeSet::new(), budget }
    }
    fn add(&mut self, picks: &[Pick]) {
        if self.list.len() < self.budget && self.seen.insert(picks.to_vec()) {
            self.list.push(Choice { picks: picks.to_vec(), reverse: self.list.len() % 2 == 1 });
        }
    }
    /// Keeps the first two and a random choice of the others, `limit` together.
    fn thin(&mut self, limit: usize, rng: &mut Rng) {
        for at in 2..self.list.len().min(limit) {
            let other = at + rng.below(self.list.len() - at);
            self.list.swap(at, other);
        }
        self.list.truncate(limit.max(2));
    }
    fn with(&mut self, base: &[Pick], changes: &[(usize, Pick)]) {
        let mut picks = base.to_vec();
        for (at, pick) in changes {
            picks[*at] = *pick;
        }
        self.add(&picks);
    }
}

/// Brings `unit` of a disk image to the version that `pick` names.
fn apply(image: &mut State, unit: &Unit, versions: &[Version], pick: Pick) {
    let Some(newest) = pick.version.checked_sub(1).and_then(|v| versions.get(v)) else { return };
    match (unit, &newest.change) {
        (Unit::Namespace, _) => {
            for version in &versions[..pick.version] {
                let Change::Namespace(entries) = &version.change else { continue };
                for (dir, name, target) in entries {
                    set_entry(image, *dir, name, *target);
                }
            }
        }
        (Unit::Entry(dir, name), Change::Entry(target)) => set_entry(image, *dir, name, *target),
        (Unit::Life(ino), Change::Life(life)) => set_life(image, *ino, *life),
        (Unit::Meta(ino), Change::Meta(meta)) => {
            if let Some(inode) = image.get_mut(*ino) {
                inode.meta = *meta;
            }
        }
        (Unit::Xattrs(ino), Change::Xattrs(xattrs)) => {
            if let Some(inode) = image.get_mut(*ino) {
                inode.xattrs = xattrs.clone();
            }
        }
        (Unit::Page(ino, n), Change::Page(page)) => {
            let page = if pick.torn == 0 {
                page.clone()
            } else {
                let before = match pick.version.checked_sub(2).map(|v| &versions[v].change) {
                    Some(Change::Page(before)) => before.clone(),
                    _ => page_of(image, *ino, *n),
                };
                tear(before, page.clone(), pick.torn)
            };
            set_page(image, *ino, *n, page);
        }
        _ => unreachable!("a unit has versions of its own kind"),
    }
}

fn set_entry(image: &mut State, dir: u64, name: &[u8], target: Option<u64>) {
    if let Some(entries) = image.get_mut(dir).and_then(Inode::entries_mut) {
        match target {
            Some(ino) => entries.insert(name.to_vec(), ino),
            None => entries.remove(name),
        };
    }
}

fn set_life(image: &mut State, ino: u64, life: Life) {
    let Some(inode) = image.get_mut(ino) else { return };
    inode.live = life != Life::Freed;
    if let (Life::Scrambled, Body::File { pages, .. }) = (life, &mut inode.body) {
        for page in pages.values_mut() {
            *page = Page::garbage();
        }
    }
}

fn page_of(image: &State, ino: u64, n: u64) -> Option<Arc<Page>> {
    match &image.get(ino)?.body {
        Body::File { pages, .. } => pages.get(&n).cloned(),
        _ => None,
    }
}

fn set_page(image: &mut State, ino: u64, n: u64, page: Option<Arc<Page>>) {
    if let Some(Body::File { pages, reserved }) = image.get_mut(ino).map(|i| &mut i.body) {
        reserved.remove(&n);
        match page {
            Some(page) => pages.insert(n, page),
            None => pages.remove(&n),
        };
    }
}

fn tear(before: Option<Arc<Page>>, after: Option<Arc<Page>>, sectors: usize) -> Option<Arc<Page>> {
    // A block that is not there is not written in part.
    let after = after?;
    let mut bytes = before.map_or([0; PAGE], |p| *p.bytes());
    let cut = sectors.min(TEARS) * 512;
    bytes[..cut].copy_from_slice(&after.bytes()[..cut]);
    Some(Page::new(bytes))
}

/// A small random generator (splitmix64): the same numbers for the same seed, everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        systx_base::mix(self.0)
    }
    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.draw() % n as u64) as usize }
    }
}
