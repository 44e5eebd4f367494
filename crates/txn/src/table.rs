//! The conflict table: which transaction holds which object, and how.
//!
//! One record for each inode (attributes, size, list, pages) and one for each name, made at the
//! first access and dropped with the last holder. About 150 bytes for a file of which entry,
//! attributes and size are held. Every transaction keeps the list of records that it touches, so
//! that its end costs what it touched.
//!
//! The table knows what is held, not who is still running: the engine leaves the holds of a
//! transaction that has lost in the table until its owner ends it (losing must cost the winner
//! nothing), and passes over them.
//!
//! Writing an entry also writes the list of its directory.  The four states of a list in TxOS
//! (SOSP'09, Table 3) follow from its holders: `notx` nobody, `read` readers only, `write` writers
//! only (any number), `exclusive` one transaction that does both.
//!
//! Invariants, checked by [`Table::check`] in tests:
//! - T1 a record exists if and only if somebody holds something of it.
//! - T2 a record is in a transaction's list exactly once, if and only if the transaction holds
//!   something of it.
//! - T3 whoever writes an entry writes the list of its directory.

use crate::hold::{Cell, Flags, Hold, Lists, Slot};
use crate::index::{Index, Slab};
use crate::object::{Object, ObjectRef};
use crate::pages::{PageHolds, missing};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use systx_base::Oid;

#[derive(Debug, Default)]
struct Inode {
    oid: u64,
    attr: Cell,
    size: Cell,
    list: Cell,
    /// Position in [`Table::pages`] plus one; 0: no page is held.
    pages: u32,
}

#[derive(Debug, Default)]
struct Entry {
    dir: u64,
    name: Box<[u8]>,
    hash: u32,
    cell: Cell,
}

/// Position of a record: an inode's, or with the top bit an entry's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Record(u32);

const ENTRY: u32 = 1 << 31;

/// Where an object's holders are, if it has any.  Valid until the table changes.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The entry's record for an entry, else the inode's.
    main: Option<u32>,
    /// For an entry that is to be written: the record of its directory.
    dir: Option<u32>,
}

/// What [`Table::record`] added to a workset.
#[derive(Default)]
pub(crate) struct Added {
    /// Records that the transaction had not touched before.
    pub(crate) records: [Option<Record>; 2],
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

impl Added {
    fn record(&mut self, record: Record) {
        let free = self.records.iter_mut().find(|r| r.is_none());
        *free.expect("an access touches at most two records") = Some(record);
    }

    fn count(&mut self, before: Flags, added: Flags) {
        let reads = Flags::READ.and(Flags::SOFT);
        self.reads += u64::from(added.any(reads) && !before.any(reads));
        self.writes += u64::from(added.any(Flags::WRITE) && !before.any(Flags::WRITE));
    }
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(crate) struct Table {
    inodes: Slab<Inode>,
    inode_index: Index,
    entries: Slab<Entry>,
    entry_index: Index,
    lists: Lists,
    pages: Slab<PageHolds>,
    /// Keyed, since names are chosen by programs.  Nothing observable depends on the key.
    hasher: RandomState,
}

/// Fibonacci hashing: object numbers are handed out by the daemon, mostly one after another.
fn inode_hash(oid: u64) -> u32 {
    (oid.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Table {
    // ---- finding ----------------------------------------------------------------------------

    fn entry_hash(&self, dir: u64, name: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        dir.hash(&mut hasher);
        hasher.write(name);
        hasher.finish() as u32
    }

    fn find_inode(&self, oid: Oid) -> Option<u32> {
        self.inode_index.find(inode_hash(oid.0), |at| self.inodes[at].oid == oid.0)
    }

    fn find_entry(&self, dir: Oid, name: &[u8]) -> Option<u32> {
        let hash = self.entry_hash(dir.0, name);
        self.entry_index.find(hash, |at| {
            let e = &self.entries[at];
            e.dir == dir.0 && *e.name == *name
        })
    }

    /// Finds an object, for a read or a write of it.
    pub(crate) fn locate(&self, o: ObjectRef<'_>, write: bool) -> Place {
        match o {
            ObjectRef::Entry { dir, name } => Place {
                main: self.find_entry(dir, name),
                dir: if write { self.find_inode(dir) } else { None },
            },
            _ => Place { main: self.find_inode(o.oid()), dir: None },
        }
    }

    fn cell(&self, o: ObjectRef<'_>, at: u32) -> &Cell {
        match o {
            ObjectRef::Entry { .. } => &self.entries[at].cell,
            ObjectRef::List(_) => &self.inodes[at].list,
            ObjectRef::Attr(_) => &self.inodes[at].attr,
            ObjectRef::Size(_) | ObjectRef::Pages { .. } => &self.inodes[at].size,
        }
    }

    fn page_holds(&self, inode: u32) -> Option<&PageHolds> {
        self.inodes[inode].pages.checked_sub(1).map(|at| &self.pages[at])
    }

    /// How a transaction holds an object; of pages, the kinds in which it holds all of them.
    pub(crate) fn held(&self, slot: Slot, o: ObjectRef<'_>, place: Place) -> Flags {
        let Some(at) = place.main else { return Flags::NONE };
        let ObjectRef::Pages { first, last, .. } = o else {
            return self.cell(o, at).flags(slot, &self.lists);
        };
        let Some(holds) = self.page_holds(at) else { return Flags::NONE };
        let mine = holds.iter().filter(|h| h.slot == slot && h.runs.covers(first, last));
        mine.fold(Flags::NONE, |all, h| all.and(h.kind))
    }

    /// Whether a transaction holds any part of an object in one of these ways.
    pub(crate) fn holds_any(
        &self,
        slot: Slot,
        kinds: Flags,
        o: ObjectRef<'_>,
        place: Place,
    ) -> bool {
        let Some(at) = place.main else { return false };
        let ObjectRef::Pages { first, last, .. } = o else {
            return self.cell(o, at).flags(slot, &self.lists).any(kinds);
        };
        let holds = self.page_holds(at).into_iter().flat_map(PageHolds::iter);
        holds.filter(|h| h.slot == slot && h.kind.any(kinds)).any(|h| h.runs.meets(first, last))
    }

    /// Calls `f` for every holder of an object and how it is held, the asking transaction included;
    /// for a write of an entry also for those who listed the directory.  Writers of a list do not
    /// disturb each other and are left out where `write` is set.  Stops when `f` returns false.
    pub(crate) fn holders(
        &self,
        o: ObjectRef<'_>,
        place: Place,
        write: bool,
        mut f: impl FnMut(Slot, Flags) -> bool,
    ) {
        let list = matches!(o, ObjectRef::List(_));
        let mut cell = |cell: &Cell, list: bool| {
            let hide = if list && write { Flags::WRITE.0 } else { 0 };
            let seen =
                cell.holds(&self.lists).iter().map(|h| (h.slot(), Flags(h.flags().0 & !hide)));
            seen.filter(|(_, flags)| !flags.is_none()).all(|(slot, flags)| f(slot, flags))
        };
        if let Some(dir) = place.dir
            && !cell(&self.inodes[dir].list, true)
        {
            return;
        }
        let Some(at) = place.main else { return };
        if let ObjectRef::Pages { first, last, .. } = o {
            let holds = self.page_holds(at).into_iter().flat_map(PageHolds::iter);
            let mut met = holds.filter(|h| h.runs.meets(first, last));
            met.all(|h| f(h.slot, h.kind));
        } else {
            cell(self.cell(o, at), list);
        }
    }

    // ---- holding ----------------------------------------------------------------------------

    fn ensure_inode(&mut self, oid: Oid, found: Option<u32>) -> u32 {
        found.unwrap_or_else(|| {
            let at = self.inodes.insert(Inode { oid: oid.0, ..Inode::default() });
            assert!(at < ENTRY, "memory ends before two billion records");
            self.inode_index.insert(inode_hash(oid.0), at);
            at
        })
    }

    fn ensure_entry(&mut self, dir: Oid, name: &[u8], found: Option<u32>) -> u32 {
        found.unwrap_or_else(|| {
            let hash = self.entry_hash(dir.0, name);
            let entry = Entry { dir: dir.0, name: name.into(), hash, cell: Cell::default() };
            let at = self.entries.insert(entry);
            assert!(at < ENTRY, "memory ends before two billion records");
            self.entry_index.insert(hash, at);
            at
        })
    }

    fn touches_inode(&self, slot: Slot, at: u32) -> bool {
        let i = &self.inodes[at];
        [&i.attr, &i.size, &i.list].iter().any(|c| !c.flags(slot, &self.lists).is_none())
            || self.page_holds(at).is_some_and(|holds| holds.iter().any(|h| h.slot == slot))
    }

    /// Notes that a transaction holds an object; of several kinds at once only for what is no page.
    pub(crate) fn record(
        &mut self,
        slot: Slot,
        o: ObjectRef<'_>,
        place: Place,
        flags: Flags,
    ) -> Added {
        let mut added = Added::default();
        if let ObjectRef::Entry { dir, name } = o {
            let at = self.ensure_entry(dir, name, place.main);
            let before = self.entries[at].cell.flags(slot, &self.lists);
            if before.is_none() {
                added.record(Record(at | ENTRY));
            }
            added.count(before, flags);
            self.entries[at].cell.add(slot, flags, &mut self.lists);
            if flags.any(Flags::WRITE) {
                // Counts as part of the entry, not as a write of its own.
                let (reads, writes) = (added.reads, added.writes);
                self.record_inode(slot, ObjectRef::List(dir), place.dir, Flags::WRITE, &mut added);
                (added.reads, added.writes) = (reads, writes);
            }
        } else {
            self.record_inode(slot, o, place.main, flags, &mut added);
        }
        added
    }

    fn record_inode(
        &mut self,
        slot: Slot,
        o: ObjectRef<'_>,
        found: Option<u32>,
        flags: Flags,
        added: &mut Added,
    ) {
        let at = self.ensure_inode(o.oid(), found);
        if !self.touches_inode(slot, at) {
            added.record(Record(at));
        }
        let inode = &mut self.inodes[at];
        let cell = match o {
            ObjectRef::Pages { first, last, .. } => {
                if inode.pages == 0 {
                    inode.pages = self.pages.insert(PageHolds::default()) + 1;
                }
                if self.pages[inode.pages - 1].add(slot, flags, first, last) {
                    added.count(Flags::NONE, flags);
                }
                return;
            }
            ObjectRef::Attr(_) => &mut inode.attr,
            ObjectRef::Size(_) => &mut inode.size,
            ObjectRef::List(_) | ObjectRef::Entry { .. } => &mut inode.list,
        };
        added.count(cell.flags(slot, &self.lists), flags);
        cell.add(slot, flags, &mut self.lists);
    }

    // ---- going stale ------------------------------------------------------------------------

    /// Marks soft reads of an object as out of date where `affects` says so, and reports them once.
    pub(crate) fn make_stale(
        &mut self,
        o: ObjectRef<'_>,
        affects: &dyn Fn(Slot) -> bool,
        report: &mut Vec<(Slot, Object)>,
    ) {
        let place = self.locate(o, true);
        if let (ObjectRef::Entry { dir, .. }, Some(_)) = (o, place.dir) {
            self.make_stale(ObjectRef::List(dir), affects, report);
        }
        let Some(at) = place.main else { return };
        if let ObjectRef::Pages { oid, first, last } = o {
            self.make_pages_stale(oid, at, (first, last), affects, report);
            return;
        }
        let cell = self.cell(o, at);
        let soft = cell.holds(&self.lists).iter().filter(|h| {
            h.flags().any(Flags::SOFT) && !h.flags().any(Flags::STALE) && affects(h.slot())
        });
        let soft: Vec<Slot> = soft.map(|h| h.slot()).collect();
        for slot in soft {
            let cell = match o {
                ObjectRef::Entry { .. } => &mut self.entries[at].cell,
                ObjectRef::List(_) => &mut self.inodes[at].list,
                ObjectRef::Attr(_) => &mut self.inodes[at].attr,
                ObjectRef::Size(_) | ObjectRef::Pages { .. } => &mut self.inodes[at].size,
            };
            cell.add(slot, Flags::STALE, &mut self.lists);
            report.push((slot, o.to_object()));
        }
    }

    fn make_pages_stale(
        &mut self,
        oid: Oid,
        inode: u32,
        (first, last): (u64, u64),
        affects: &dyn Fn(Slot) -> bool,
        report: &mut Vec<(Slot, Object)>,
    ) {
        let Some(pages) = self.inodes[inode].pages.checked_sub(1) else { return };
        let holds = &mut self.pages[pages];
        let soft = holds.iter().filter(|h| h.kind == Flags::SOFT && affects(h.slot));
        let soft: Vec<(Slot, Vec<(u64, u64)>)> =
            soft.map(|h| (h.slot, h.runs.within(first, last))).collect();
        for (slot, runs) in soft {
            for (a, b) in runs {
                for (first, last) in missing(holds.get(slot, Flags::STALE), a, b) {
                    report.push((slot, Object::Pages { oid, first, last }));
                    holds.add(slot, Flags::STALE, first, last);
                }
            }
        }
    }

    // ---- ending -----------------------------------------------------------------------------

    /// What a transaction holds of a record.
    pub(crate) fn held_of(&self, slot: Slot, record: Record) -> Vec<(Object, Flags)> {
        if record.0 & ENTRY != 0 {
            let e = &self.entries[record.0 & !ENTRY];
            let object = Object::Entry { dir: Oid(e.dir), name: e.name.clone() };
            return vec![(object, e.cell.flags(slot, &self.lists))];
        }
        let i = &self.inodes[record.0];
        let oid = Oid(i.oid);
        let cells = [
            (Object::Attr(oid), &i.attr),
            (Object::Size(oid), &i.size),
            (Object::List(oid), &i.list),
        ];
        let cells = cells.into_iter().map(|(o, cell)| (o, cell.flags(slot, &self.lists)));
        let mut all: Vec<_> = cells.filter(|(_, flags)| !flags.is_none()).collect();
        for hold in self.page_holds(record.0).into_iter().flat_map(PageHolds::iter) {
            if hold.slot == slot {
                let runs = hold.runs.iter();
                all.extend(
                    runs.map(|(first, last)| (Object::Pages { oid, first, last }, hold.kind)),
                );
            }
        }
        all
    }

    /// The inode of a record, if a transaction holds its length or pages of it.
    pub(crate) fn file_of(&self, slot: Slot, record: Record) -> Option<Oid> {
        if record.0 & ENTRY != 0 {
            return None;
        }
        let inode = &self.inodes[record.0];
        let pages = || self.page_holds(record.0).is_some_and(|p| p.iter().any(|h| h.slot == slot));
        let held = !inode.size.flags(slot, &self.lists).is_none() || pages();
        held.then_some(Oid(inode.oid))
    }

    /// Takes a transaction out of a record, and drops the record if it was the last.
    pub(crate) fn release(&mut self, slot: Slot, record: Record) {
        if record.0 & ENTRY != 0 {
            let at = record.0 & !ENTRY;
            let entry = &mut self.entries[at];
            entry.cell.remove(slot, &mut self.lists);
            if entry.cell.is_empty() {
                let hash = entry.hash;
                self.entry_index.remove(hash, at);
                self.entries.remove(at);
            }
            return;
        }
        let at = record.0;
        let inode = &mut self.inodes[at];
        for cell in [&mut inode.attr, &mut inode.size, &mut inode.list] {
            cell.remove(slot, &mut self.lists);
        }
        if let Some(pages) = inode.pages.checked_sub(1) {
            self.pages[pages].remove(slot);
            if self.pages[pages].is_empty() {
                self.pages.remove(pages);
                inode.pages = 0;
            }
        }
        let cells = [inode.attr, inode.size, inode.list];
        if inode.pages == 0 && cells.iter().all(|c| c.is_empty()) {
            let hash = inode_hash(inode.oid);
            self.inode_index.remove(hash, at);
            self.inodes.remove(at);
        }
    }

    // ---- counting ---------------------------------------------------------------------------

    /// Inodes and entries that somebody holds.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.inodes.len(), self.entries.len())
    }

    /// Heap memory, about; goes through all records.
    pub(crate) fn bytes(&self) -> usize {
        // An allocation of n bytes takes n + 8, in steps of 16, at least 32.
        let heap = |n: usize| if n == 0 { 0 } else { (n + 8).next_multiple_of(16).max(32) };
        let slabs = self.inodes.bytes() + self.entries.bytes() + self.lists.bytes();
        let indexes = self.inode_index.bytes() + self.entry_index.bytes();
        let names = self.entries.iter().map(|e| heap(e.name.len())).sum::<usize>();
        let lists =
            self.lists.iter().map(|l| heap(l.capacity() * size_of::<Hold>())).sum::<usize>();
        let pages = self.pages.iter().map(|p| heap(p.bytes())).sum::<usize>();
        slabs + indexes + names + lists + pages + self.pages.bytes()
    }
}

#[cfg(test)]
impl Table {
    /// Panics if an invariant is broken; `worksets` are the lists of all transactions.
    pub(crate) fn check(&self, worksets: &[(Slot, &[Record])]) {
        use std::collections::{BTreeMap, BTreeSet};
        let mut touched: BTreeMap<Record, BTreeSet<Slot>> = BTreeMap::new();
        for (slot, records) in worksets {
            for record in *records {
                let new = touched.entry(*record).or_default().insert(*slot);
                assert!(new, "T2: {record:?} is twice in the list of {slot}");
                let held = self.held_of(*slot, *record);
                assert!(held.iter().any(|(_, f)| !f.is_none()), "T2: {slot} holds no {record:?}");
                for (object, flags) in held {
                    if let (Object::Entry { dir, .. }, true) = (&object, flags.any(Flags::WRITE)) {
                        let list = ObjectRef::List(*dir);
                        let list = self.held(*slot, list, self.locate(list, true));
                        assert!(list.any(Flags::WRITE), "T3: {object:?} without its list");
                    }
                }
            }
        }
        assert_eq!(touched.len(), self.inodes.len() + self.entries.len(), "T1");
        for (record, slots) in touched {
            let holders: BTreeSet<Slot> = if record.0 & ENTRY != 0 {
                let cell = &self.entries[record.0 & !ENTRY].cell;
                cell.holds(&self.lists).iter().map(|h| h.slot()).collect()
            } else {
                let i = &self.inodes[record.0];
                let cells = [&i.attr, &i.size, &i.list];
                let cells = cells.into_iter().flat_map(|c| c.holds(&self.lists)).map(|h| h.slot());
                let pages = self.page_holds(record.0).into_iter().flat_map(PageHolds::iter);
                cells.chain(pages.map(|h| h.slot)).collect()
            };
            assert_eq!(holders, slots, "T2: holders of {record:?}");
        }
    }
}
