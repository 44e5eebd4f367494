//! The overlay against plain bytes: random calls in both forms, on new files and over bases with
//! holes, then what the write set makes of the base.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use systx_store::writeset::{self, Data, Extent, SlotId};

const P: usize = PAGE as usize;

/// A base in memory; runs of whole zero pages are its holes.
struct Bytes(Vec<u8>);

impl Base for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = self.0.len().min(offset as usize);
        let n = buf.len().min(self.0.len() - from);
        buf[..n].copy_from_slice(&self.0[from..from + n]);
        Ok(n)
    }
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let is_data = |page: &[u8]| page.iter().any(|b| *b != 0);
        let mut pages = self.0.chunks(P).enumerate().skip(offset as usize / P);
        let Some((first, _)) = pages.find(|(_, page)| is_data(page)) else { return Ok(None) };
        let run = self.0[first * P..].chunks(P).take_while(|page| is_data(page)).count();
        let end = ((first + run) * P).min(self.0.len());
        let start = (first as u64 * PAGE).max(offset);
        Ok((start < end as u64).then_some((start, end as u64)))
    }
}

/// A staging slot in memory, page by page, so that huge offsets cost nothing.
struct MemSlot {
    id: u64,
    state: Mutex<(BTreeMap<u64, Vec<u8>>, u64)>,
    /// Calls that still succeed; negative: no limit.
    good: Arc<AtomicI64>,
}

impl MemSlot {
    fn step(&self) -> io::Result<()> {
        let left = self.good.load(Ordering::Relaxed);
        if left == 0 {
            return Err(Errno::NOSPC.into());
        }
        self.good.store(left - 1, Ordering::Relaxed);
        Ok(())
    }
    fn len(&self) -> u64 {
        self.state.lock().unwrap().1
    }
}

impl Staging for MemSlot {
    fn id(&self) -> SlotId {
        SlotId(self.id)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state.lock().unwrap();
        let n = buf.len().min(state.1.saturating_sub(offset) as usize);
        for (i, byte) in buf[..n].iter_mut().enumerate() {
            let at = offset + i as u64;
            *byte = state.0.get(&(at / PAGE)).map_or(0, |page| page[(at % PAGE) as usize]);
        }
        Ok(n)
    }
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let failed = self.step();
        // A failing write still leaves half of its bytes behind.
        let n = if failed.is_err() { data.len() / 2 } else { data.len() };
        let mut state = self.state.lock().unwrap();
        for (i, byte) in data[..n].iter().enumerate() {
            let at = offset + i as u64;
            state.0.entry(at / PAGE).or_insert_with(|| vec![0; P])[(at % PAGE) as usize] = *byte;
        }
        state.1 = state.1.max(offset + n as u64);
        failed
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.lock().unwrap();
        state.0.split_off(&len.div_ceil(PAGE));
        if let Some(page) = state.0.get_mut(&(len / PAGE)) {
            page[(len % PAGE) as usize..].fill(0);
        }
        state.1 = len;
        Ok(())
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.step()?;
        assert!(offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE));
        let mut state = self.state.lock().unwrap();
        state.0.retain(|page, _| !(offset / PAGE..(offset + len) / PAGE).contains(page));
        Ok(())
    }
}

/// Slots in memory.
struct Slots {
    next: AtomicU64,
    good: Arc<AtomicI64>,
    all: Mutex<BTreeMap<u64, Arc<MemSlot>>>,
}

impl Slots {
    fn new() -> Self {
        let good = Arc::new(AtomicI64::new(-1));
        Slots { next: AtomicU64::new(1), good, all: Mutex::new(BTreeMap::new()) }
    }
    fn get(&self, id: SlotId) -> Arc<MemSlot> {
        self.all.lock().unwrap()[&id.0].clone()
    }
    fn staged(&self) -> usize {
        self.all.lock().unwrap().len()
    }
}

impl Spill for Slots {
    fn stage(&self) -> io::Result<Slot> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new((BTreeMap::new(), 0));
        let slot = Arc::new(MemSlot { id, state, good: self.good.clone() });
        slot.step()?;
        self.all.lock().unwrap().insert(id, slot.clone());
        Ok(slot)
    }
}

/// What the store makes of a base: the meaning of `writeset::Content`, word for word.
fn install(content: &writeset::Content, base: &[u8], slots: &Slots) -> Vec<u8> {
    let read_slot = |slot: SlotId, at: u64, len: u64| {
        let mut bytes = vec![0; len as usize];
        assert_eq!(slots.get(slot).read_at(&mut bytes, at).unwrap() as u64, len, "slot too short");
        bytes
    };
    let overlay = |mut bytes: Vec<u8>, extents: &[Extent]| {
        let mut last = 0;
        for extent in extents {
            assert!(extent.offset >= last && !extent.data.is_empty(), "order of extents");
            last = extent.offset + extent.data.len();
            assert!(last <= bytes.len() as u64, "extent beyond the length");
            let to = &mut bytes[extent.offset as usize..last as usize];
            match &extent.data {
                Data::Inline(data) => to.copy_from_slice(data),
                Data::Slot { slot, at, len } => to.copy_from_slice(&read_slot(*slot, *at, *len)),
                Data::Hole { .. } => to.fill(0),
            }
        }
        bytes
    };
    match content {
        writeset::Content::Keep => base.to_vec(),
        writeset::Content::Patch { len, keep, extents } => {
            assert!(keep <= len && *keep <= base.len() as u64);
            let mut bytes = base[..*keep as usize].to_vec();
            bytes.resize(*len as usize, 0);
            overlay(bytes, extents)
        }
        writeset::Content::Whole { len, extents } => overlay(vec![0; *len as usize], extents),
        writeset::Content::Slot(id) => read_slot(*id, 0, slots.get(*id).len()),
    }
}

/// A content beside what it has to be.
struct Pair {
    content: Content,
    model: Vec<u8>,
    base: Option<Bytes>,
    slots: Slots,
    budget: Budget,
}

impl Pair {
    fn new(base: Option<Vec<u8>>, limit: u64) -> Self {
        let content = match &base {
            Some(bytes) => Content::over(bytes.len() as u64),
            None => Content::new_file(),
        };
        let model = base.clone().unwrap_or_default();
        let budget = Budget::new(limit);
        Pair { content, model, base: base.map(Bytes), slots: Slots::new(), budget }
    }

    fn base(&self) -> OptBase<'_> {
        self.base.as_ref().map(|b| b as &dyn Base)
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let Pair { content, base, slots, budget, .. } = self;
        let base = base.as_ref().map(|b| b as &dyn Base);
        content.write(base, slots, budget, offset, data).unwrap();
        model_write(&mut self.model, offset, data);
    }

    fn truncate(&mut self, len: u64) {
        let Pair { content, slots, budget, .. } = self;
        content.truncate(None, slots, budget, len).unwrap();
        self.model.resize(len as usize, 0);
    }

    /// Everything that can be asked agrees with the model.
    fn check(&self) {
        assert_eq!(self.content.len(), self.model.len() as u64);
        let mut bytes = vec![0xEE; self.model.len() + 10];
        let n = self.content.read(self.base(), 0, &mut bytes).unwrap();
        assert_eq!(n, self.model.len());
        if let Some(at) = (0..n).find(|&i| bytes[i] != self.model[i]) {
            panic!("byte {at} is {:#x}, should be {:#x}", bytes[at], self.model[at]);
        }
        self.check_seek();
        self.check_invariants();
        let old = self.base.as_ref().map_or(&[][..], |b| &b.0);
        let frozen = self.content.freeze();
        assert!(install(&frozen.content, old, &self.slots) == self.model, "{:?}", self.content);
        if !self.content.is_changed() {
            assert_eq!(frozen.content, writeset::Content::Keep);
        }
        for slot in &frozen.slots {
            assert_eq!(self.slots.get(slot.id()).len(), self.content.len(), "length of the slot");
        }
        self.check_pages(old);
    }

    /// C1, C2 and C4 of the module.
    fn check_invariants(&self) {
        let c = &self.content;
        assert!(c.keep <= c.len && c.keep <= c.base_len.unwrap_or(0), "C1");
        for page in c.holes.iter().flatten() {
            assert!(page * PAGE < c.keep && !c.is_private(page), "C2: page {page}");
        }
        c.each_private(|run| assert!((run.end - 1) * PAGE < c.len, "C4: pages {run:?}"));
        if let Form::Memory(segments) = &c.form {
            assert_eq!(self.budget.used(), segments.capacity());
            for (start, bytes) in segments.iter() {
                assert!(start + bytes.len() as u64 <= c.len, "C4: bytes at {start}");
            }
        }
    }

    /// Seeking from the start partitions the file, and nothing but zeros lies in holes.
    fn check_seek(&self) {
        let len = self.content.len();
        let mut at = 0;
        while at < len {
            let data = self.content.seek_data(self.base(), at).unwrap().unwrap_or(len);
            assert!(data >= at && data <= len);
            let hole = &self.model[at as usize..data as usize];
            assert!(hole.iter().all(|b| *b == 0), "data in the hole at {at}..{data}");
            if data == len {
                break;
            }
            at = self.content.seek_hole(self.base(), data).unwrap().unwrap();
            assert!(at > data && at <= len, "no data at {data}..{at}");
        }
        assert_eq!(self.content.seek_data(self.base(), len).unwrap(), None);
        assert_eq!(self.content.seek_hole(self.base(), len).unwrap(), None);
    }

    /// Pages that are not reported as changed are those of the base; a read that is said to need
    /// none of the base works without it.
    fn check_pages(&self, old: &[u8]) {
        let mut changed = vec![false; self.model.len().max(old.len()).div_ceil(P)];
        for run in self.content.changed_pages() {
            for page in run {
                changed[page as usize] = true;
            }
        }
        for (page, changed) in changed.iter().enumerate() {
            let end = ((page + 1) * P).min(self.model.len()).min(old.len());
            if !changed && page * P < end {
                assert!(self.model[page * P..end] == old[page * P..end], "page {page} changed");
            }
            let offset = (page * P) as u64;
            let needed = !self.content.base_pages_needed(offset, PAGE).is_empty();
            let alone = self.content.read(None, offset, &mut [0; P]);
            assert_eq!(needed, alone.is_err(), "page {page} and the base");
        }
    }
}

fn model_write(model: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let end = offset as usize + data.len();
    if data.is_empty() {
        return;
    }
    if model.len() < end {
        model.resize(end, 0);
    }
    model[offset as usize..end].copy_from_slice(data);
}

#[derive(Clone, Debug)]
enum Op {
    Write(u64, usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Allocate(u64, u64, bool),
    Collapse(u64, u64),
    Insert(u64, u64),
}

/// Offsets near page boundaries, where mistakes live.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..40_000,
        (0u64..10, 0u64..5).prop_map(|(page, d)| (page * PAGE + d).saturating_sub(2)),
        (0u64..10).prop_map(|page| page * PAGE),
    ]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..200, 0u64..20_000, (0u64..5).prop_map(|n| n * PAGE)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (offset(), length(), 1u8..).prop_map(|(o, n, b)| Op::Write(o, n as usize, b)),
        3 => offset().prop_map(Op::Truncate),
        2 => (offset(), length()).prop_map(|(o, n)| Op::Punch(o, n)),
        1 => (offset(), length(), any::<bool>()).prop_map(|(o, n, k)| Op::Zero(o, n, k)),
        1 => (offset(), length(), any::<bool>()).prop_map(|(o, n, k)| Op::Allocate(o, n, k)),
        1 => (0u64..8, 0u64..4).prop_map(|(o, n)| Op::Collapse(o * PAGE, n * PAGE)),
        1 => (0u64..8, 0u64..4).prop_map(|(o, n)| Op::Insert(o * PAGE, n * PAGE)),
    ]
}

/// A base with data and holes that does not end at a page boundary.
fn base() -> impl Strategy<Value = Option<Vec<u8>>> {
    let pages = prop::collection::vec(any::<bool>(), 0..9);
    prop::option::weighted(
        0.7,
        (pages, 0usize..P).prop_map(|(pages, cut)| {
            let mut bytes = Vec::new();
            for (i, data) in pages.iter().enumerate() {
                bytes.extend(std::iter::repeat_n(if *data { 0x80 + i as u8 } else { 0 }, P));
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            bytes
        }),
    )
}

/// Does `op` to the content; to the model only if it succeeds.
fn apply(pair: &mut Pair, op: &Op) -> io::Result<()> {
    let size = pair.model.len() as u64;
    let Pair { content, base, slots, budget, model } = pair;
    let base = base.as_ref().map(|b| b as &dyn Base);
    let zero = |model: &mut Vec<u8>, from: u64, n: u64| {
        let end = (from + n).min(model.len() as u64);
        if from < end {
            model[from as usize..end as usize].fill(0);
        }
    };
    match *op {
        Op::Write(o, n, byte) => {
            let data: Vec<u8> = (0..n).map(|i| byte.wrapping_add((i / 7) as u8) | 1).collect();
            content.write(base, slots, budget, o, &data)?;
            model_write(model, o, &data);
        }
        Op::Truncate(len) => {
            content.truncate(base, slots, budget, len)?;
            model.resize(len as usize, 0);
        }
        Op::Punch(o, n) => {
            content.punch_hole(base, slots, budget, o, n)?;
            zero(model, o, n);
        }
        Op::Zero(o, n, keep) => {
            content.zero_range(base, slots, budget, o, n, keep)?;
            zero(model, o, n);
            if !keep {
                model.resize(size.max(o + n) as usize, 0);
            }
        }
        Op::Allocate(o, n, keep) => {
            content.allocate(o, n, keep)?;
            if !keep {
                model.resize(size.max(o + n) as usize, 0);
            }
        }
        Op::Collapse(o, n) => {
            content.collapse_range(base, slots, budget, o, n)?;
            model.drain(o as usize..(o + n) as usize);
        }
        Op::Insert(o, n) => {
            content.insert_range(base, slots, budget, o, n)?;
            model.splice(o as usize..o as usize, std::iter::repeat_n(0, n as usize));
        }
    }
    Ok(())
}

/// Whether fallocate(2) refuses it.
fn is_refused(op: &Op, size: u64) -> bool {
    match *op {
        Op::Punch(_, n) | Op::Zero(_, n, _) | Op::Allocate(_, n, _) => n == 0,
        Op::Collapse(o, n) => n == 0 || o + n >= size,
        Op::Insert(o, n) => n == 0 || o >= size,
        Op::Write(..) | Op::Truncate(_) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Whatever a program does, it reads back what it wrote, and the commit makes exactly that.
    #[test]
    fn agrees_with_plain_bytes(
        base in base(),
        // No memory at all, a little, or plenty: spilled at once, on the way, never.
        limit in prop_oneof![Just(0u64), Just(16_384), Just(1 << 20)],
        ops in prop::collection::vec(op(), 1..24),
    ) {
        let mut pair = Pair::new(base, limit);
        pair.check();
        for op in &ops {
            let refused = is_refused(op, pair.model.len() as u64);
            match apply(&mut pair, op) {
                Ok(()) => prop_assert!(!refused, "{:?} succeeded", op),
                Err(e) => {
                    prop_assert!(refused, "{:?}: {}", op, e);
                    prop_assert_eq!(e.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
                }
            }
            pair.check();
        }
        let budget = pair.budget.clone();
        drop(pair);
        prop_assert_eq!(budget.used(), 0);
    }

    /// A full disk under the slots: calls fail, but nothing that was there is lost or damaged.
    #[test]
    fn survives_a_full_disk(
        base in base(),
        ops in prop::collection::vec(op(), 1..16),
        good in 0i64..30,
    ) {
        let mut pair = Pair::new(base, 0);
        pair.slots.good.store(good, Ordering::Relaxed);
        for op in &ops {
            let before = pair.model.clone();
            if apply(&mut pair, op).is_ok() {
                continue;
            }
            // A failed write or zeroing may have done a part of itself: inside its range every
            // byte is the old one or the new one; outside of it nothing moved.
            let now = pair.content.len();
            prop_assert_eq!(now, before.len() as u64, "{:?} changed the length", op);
            let mut bytes = vec![0; now as usize];
            pair.content.read(pair.base(), 0, &mut bytes).unwrap();
            let touched = match *op {
                Op::Write(o, n, _) => o..o + n as u64,
                Op::Punch(o, n) | Op::Zero(o, n, _) => o..o + n,
                _ => 0..0,
            };
            for (i, byte) in bytes.iter().enumerate() {
                prop_assert!(
                    *byte == before[i] || touched.contains(&(i as u64)),
                    "{:?} damaged byte {}", op, i
                );
            }
            pair.model = bytes;
            if good % 2 == 0 {
                // Some of the space comes back.
                pair.slots.good.store(good, Ordering::Relaxed);
            }
        }
        pair.slots.good.store(-1, Ordering::Relaxed);
        let old = pair.base.as_ref().map_or(&[][..], |b| &b.0);
        let frozen = pair.content.freeze();
        prop_assert!(install(&frozen.content, old, &pair.slots) == pair.model);
        let end = pair.model.len() as u64;
        pair.write(end + 5000, b"after");
        pair.write(1, b"x");
        pair.truncate(end + 20_000);
        let old = pair.base.as_ref().map_or(&[][..], |b| &b.0);
        let frozen = pair.content.freeze();
        prop_assert!(install(&frozen.content, old, &pair.slots) == pair.model);
    }
}

const PLENTY: u64 = 64 << 20;

#[test]
fn an_untouched_file_is_kept() {
    for base in [None, Some(vec![]), Some(vec![1; 5000])] {
        let mut pair = Pair::new(base, PLENTY);
        assert!(!pair.content.is_changed());
        pair.write(7, b"");
        let len = pair.content.len();
        pair.truncate(len);
        assert!(!pair.content.is_changed());
        pair.check();
    }
}

#[test]
fn one_byte_in_a_large_file_costs_a_page() {
    let mut pair = Pair::new(Some(vec![3; 1 << 20]), PLENTY);
    pair.write(500_000, b"!");
    assert_eq!(pair.budget.used(), PAGE);
    assert_eq!(pair.content.changed_pages().collect::<Vec<_>>(), vec![122..123]);
    let writeset::Content::Patch { len, keep, extents } = pair.content.freeze().content else {
        panic!("not a patch");
    };
    assert_eq!((len, keep, extents.len()), (1 << 20, 1 << 20, 1));
    assert_eq!((extents[0].offset, extents[0].data.len()), (122 * PAGE, PAGE));
    pair.check();
}

#[test]
fn a_small_new_file_costs_its_bytes() {
    let mut pair = Pair::new(None, PLENTY);
    pair.write(0, &[1; 100]);
    assert_eq!(pair.budget.used(), 100);
    assert_eq!(pair.content.allocated(), PAGE);
    let whole = writeset::Content::Whole {
        len: 100,
        extents: vec![Extent { offset: 0, data: Data::Inline(vec![1; 100]) }],
    };
    assert_eq!(pair.content.freeze().content, whole);
    assert!(std::mem::size_of::<Content>() <= 160, "{}", std::mem::size_of::<Content>());
}

#[test]
fn what_was_cut_off_never_comes_back() {
    for limit in [0, PLENTY] {
        let mut pair = Pair::new(Some(vec![7; 3 * P + 9]), limit);
        pair.truncate(PAGE + 5);
        pair.truncate(3 * PAGE);
        pair.check();
        pair.write(PAGE + 100, b"x");
        pair.truncate(PAGE + 50);
        pair.truncate(2 * PAGE);
        pair.check();
        let writeset::Content::Patch { keep, .. } = pair.content.freeze().content else {
            panic!("not a patch");
        };
        assert_eq!(keep, PAGE + 5);
    }
}

#[test]
fn a_file_rewritten_from_empty_is_whole() {
    let mut pair = Pair::new(Some(vec![7; 3 * P]), PLENTY);
    pair.truncate(0);
    assert!(matches!(
        pair.content.freeze().content,
        writeset::Content::Whole { len: 0, ref extents } if extents.is_empty()
    ));
    pair.write(0, b"new");
    assert!(matches!(pair.content.freeze().content, writeset::Content::Whole { len: 3, .. }));
    assert!(pair.content.base_pages_needed(0, 10).is_empty());
    pair.check();
}

#[test]
fn a_large_new_file_becomes_its_slot() {
    let mut pair = Pair::new(None, PLENTY);
    let block = vec![5; 100_000];
    for i in 0..6u64 {
        pair.write(i * 100_000, &block);
    }
    assert!(pair.content.is_spilled());
    assert_eq!((pair.slots.staged(), pair.budget.used()), (1, 0));
    let frozen = pair.content.freeze();
    assert_eq!(frozen.content, writeset::Content::Slot(SlotId(1)));
    assert_eq!(frozen.slots.len(), 1);
    pair.check();
}

#[test]
fn a_large_patch_names_ranges_of_its_slot() {
    let mut pair = Pair::new(Some(vec![9; 600_000]), PLENTY);
    pair.write(100_000, &vec![1; 300_000]);
    pair.write(500_001, &[2; 3]);
    assert!(pair.content.is_spilled());
    let writeset::Content::Patch { extents, .. } = pair.content.freeze().content else {
        panic!("not a patch");
    };
    assert_eq!(extents.len(), 2);
    assert!(extents.iter().all(|e| matches!(e.data, Data::Slot { at, .. } if at == e.offset)));
    pair.check();
}

#[test]
fn a_full_budget_sends_files_to_slots() {
    let slots = Slots::new();
    let budget = Budget::new(10_000);
    let mut files: Vec<Content> = (0..5).map(|_| Content::new_file()).collect();
    for file in &mut files {
        file.write(None, &slots, &budget, 0, &[1; 4000]).unwrap();
    }
    assert_eq!(files.iter().filter(|f| f.is_spilled()).count(), 3);
    assert_eq!(budget.used(), 8000);
    files.truncate(1);
    assert_eq!(budget.used(), 4000);
}

/// Whoever still has a discarded content holds neither memory nor room.
#[test]
fn what_is_discarded_gives_memory_and_slots_back() {
    let slots = Slots::new();
    let budget = Budget::new(u64::MAX);
    let (mut small, mut large) = (Content::new_file(), Content::over(0));
    small.write(None, &slots, &budget, 0, &[1; 4000]).unwrap();
    large.write(None, &slots, &budget, 0, &[1; 2 * SPILL as usize]).unwrap();
    let held = || slots.all.lock().unwrap().values().map(Arc::strong_count).sum::<usize>();
    assert_eq!((large.is_spilled(), held(), budget.used()), (true, 2, 4000));
    small.discard();
    large.discard();
    assert_eq!((large.is_spilled(), held(), budget.used()), (false, 1, 0));
}

#[test]
fn huge_offsets_cost_one_page() {
    for limit in [0, PLENTY] {
        let (slots, budget) = (Slots::new(), Budget::new(limit));
        let mut file = Content::new_file();
        let far = 1u64 << 40;
        file.write(None, &slots, &budget, far + 3, b"far").unwrap();
        assert_eq!(file.len(), far + 6);
        assert_eq!(file.allocated(), PAGE);
        assert_eq!(file.seek_data(None, 0).unwrap(), Some(far));
        assert_eq!(file.seek_hole(None, 0).unwrap(), Some(0));
        assert_eq!(file.seek_hole(None, far).unwrap(), Some(far + 6));
        let mut buf = [9; 8];
        assert_eq!(file.read(None, far, &mut buf).unwrap(), 6);
        assert_eq!(&buf[..6], b"\0\0\0far");
        file.punch_hole(None, &slots, &budget, 0, u64::MAX / 4).unwrap();
        assert_eq!(file.seek_data(None, 0).unwrap(), None);
    }
}

#[test]
fn too_long_is_refused_at_once() {
    struct Short(Slots);
    impl Spill for Short {
        fn stage(&self) -> io::Result<Slot> {
            self.0.stage()
        }
        fn max_len(&self, _: u64) -> u64 {
            1 << 20
        }
    }
    let (spill, budget) = (Short(Slots::new()), Budget::new(PLENTY));
    let mut file = Content::new_file();
    let too_big =
        |r: io::Result<()>| r.unwrap_err().raw_os_error() == Some(Errno::FBIG.raw_os_error());
    assert!(too_big(file.write(None, &spill, &budget, (1 << 20) - 1, b"ab")));
    assert!(too_big(file.write(None, &spill, &budget, u64::MAX, b"ab")));
    assert!(too_big(file.truncate(None, &spill, &budget, (1 << 20) + 1)));
    assert!(too_big(file.zero_range(None, &spill, &budget, u64::MAX, 2, true)));
    assert!(too_big(file.allocate(u64::MAX - 5, 10, true)));
    assert!(!file.is_changed());
    file.truncate(None, &spill, &budget, 1 << 20).unwrap();
}

#[test]
fn a_write_takes_only_partly_overwritten_pages_from_the_base() {
    let mut pair = Pair::new(Some(vec![1; 10 * P]), PLENTY);
    let for_write = |c: &Content, o, n| c.base_pages_for_write(o, n);
    assert!(for_write(&pair.content, 0, 2 * PAGE).is_empty());
    assert_eq!(for_write(&pair.content, 1, 2 * PAGE), vec![0..1, 2..3]);
    assert_eq!(for_write(&pair.content, 1, 2), vec![0..1]);
    assert_eq!(for_write(&pair.content, 9 * PAGE, 10 * PAGE), vec![]);
    assert_eq!(pair.content.base_pages_needed(PAGE - 1, 2), vec![0..2]);
    pair.write(PAGE, b"x");
    assert!(for_write(&pair.content, PAGE + 7, 9).is_empty());
    assert_eq!(pair.content.base_pages_needed(0, u64::MAX), vec![0..1, 2..10]);
}

#[test]
fn allocated_space_follows_the_changes() {
    let mut pair = Pair::new(Some(vec![1; 10 * P]), PLENTY);
    assert_eq!(pair.content.allocated(), 10 * PAGE);
    pair.content.set_base_allocated(4 * PAGE);
    assert_eq!(pair.content.allocated(), 4 * PAGE);
    pair.content.set_base_allocated(10 * PAGE);
    pair.write(5 * PAGE, b"x");
    assert_eq!(pair.content.allocated(), 10 * PAGE);
    apply(&mut pair, &Op::Punch(0, 2 * PAGE)).unwrap();
    assert_eq!(pair.content.allocated(), 8 * PAGE);
    apply(&mut pair, &Op::Allocate(0, PAGE, true)).unwrap();
    assert_eq!(pair.content.allocated(), 9 * PAGE);
    apply(&mut pair, &Op::Allocate(20 * PAGE, PAGE, true)).unwrap();
    assert_eq!(pair.content.allocated(), 10 * PAGE);
    assert_eq!(pair.content.len(), 10 * PAGE);
    pair.truncate(3 * PAGE);
    assert_eq!(pair.content.allocated(), 2 * PAGE);
}

#[test]
fn holes_of_the_base_stay_holes() {
    let mut bytes = vec![1; 5 * P];
    bytes[P..2 * P].fill(0);
    bytes[3 * P..4 * P].fill(0);
    let mut pair = Pair::new(Some(bytes), PLENTY);
    let seek = |p: &Pair, from| {
        let data = p.content.seek_data(p.base(), from).unwrap();
        (data, p.content.seek_hole(p.base(), from).unwrap())
    };
    assert_eq!(seek(&pair, 0), (Some(0), Some(PAGE)));
    assert_eq!(seek(&pair, PAGE + 1), (Some(2 * PAGE), Some(PAGE + 1)));
    assert_eq!(seek(&pair, 2 * PAGE), (Some(2 * PAGE), Some(3 * PAGE)));
    assert_eq!(seek(&pair, 4 * PAGE), (Some(4 * PAGE), Some(5 * PAGE)));
    apply(&mut pair, &Op::Insert(0, PAGE)).unwrap();
    assert_eq!(seek(&pair, 0), (Some(PAGE), Some(0)));
    assert_eq!(seek(&pair, PAGE), (Some(PAGE), Some(2 * PAGE)));
    assert_eq!(pair.content.allocated(), 3 * PAGE);
}

#[test]
fn a_base_that_shrank_reads_as_zeros() {
    let content = Content::over(100);
    let mut buf = [7; 100];
    assert_eq!(content.read(Some(&Bytes(vec![1; 10])), 0, &mut buf).unwrap(), 100);
    assert_eq!((buf[9], buf[10], buf[99]), (1, 0, 0));
}
