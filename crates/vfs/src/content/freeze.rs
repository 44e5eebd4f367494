//! From private content to the form in which the store takes it.

use super::{Content, Form, Slot, Source};
use systx_store::writeset::{self, Data, Extent, SlotId};

/// What goes into the write set.
pub struct FrozenContent {
    /// The content as the store takes it.
    pub content: writeset::Content,
    /// The slots that it names: to be kept until the write set is committed.
    pub slots: Vec<Slot>,
}

impl std::fmt::Debug for FrozenContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let slots: Vec<SlotId> = self.slots.iter().map(|slot| slot.id()).collect();
        f.debug_struct("FrozenContent")
            .field("content", &self.content)
            .field("slots", &slots)
            .finish()
    }
}

impl Content {
    /// The content in the form of a write set.
    ///
    /// - Unchanged: `Keep`.
    /// - Some of the old bytes still count: `Patch`, exact to the page.
    /// - None of them does, or the file is new: `Whole`; `Slot` if all of it already is in one.
    pub fn freeze(&self) -> FrozenContent {
        let none = |content| FrozenContent { content, slots: Vec::new() };
        if !self.is_changed() {
            return none(writeset::Content::Keep);
        }
        if self.keep == 0 && self.len == 0 {
            return none(writeset::Content::Whole { len: 0, extents: Vec::new() });
        }
        if self.keep > 0 {
            let extents = self.extents();
            let content = writeset::Content::Patch { len: self.len, keep: self.keep, extents };
            return FrozenContent { content, slots: self.slots() };
        }
        let content = match &self.form {
            Form::Slot(spilled) if !spilled.torn => writeset::Content::Slot(spilled.slot.id()),
            _ => writeset::Content::Whole { len: self.len, extents: self.extents() },
        };
        FrozenContent { content, slots: self.slots() }
    }

    fn slots(&self) -> Vec<Slot> {
        match &self.form {
            Form::Memory(_) => Vec::new(),
            Form::Slot(spilled) => vec![spilled.slot.clone()],
        }
    }

    /// All private runs and all holes cut into the base, ascending.
    fn extents(&self) -> Vec<Extent> {
        let mut extents = Vec::new();
        for (source, range) in self.walk(0, self.len) {
            match source {
                Source::Base => {}
                Source::Zero if range.start >= self.keep => {}
                Source::Zero => {
                    // Beyond `keep` the base does not count anyway.
                    let len = range.end.min(self.keep) - range.start;
                    extents.push(Extent { offset: range.start, data: Data::Hole { len } });
                }
                Source::Private => match &self.form {
                    Form::Memory(_) => extents.push(self.inline(range.start, range.end)),
                    Form::Slot(spilled) => {
                        let data = Data::Slot {
                            slot: spilled.slot.id(),
                            at: range.start,
                            len: range.end - range.start,
                        };
                        extents.push(Extent { offset: range.start, data });
                    }
                },
            }
        }
        extents
    }

    /// The bytes of one run in memory.  What its last page has beyond the stored bytes is zeros
    /// and is left out where it would read as zeros anyway, so a small file costs its bytes only.
    fn inline(&self, start: u64, end: u64) -> Extent {
        let mut bytes = Vec::new();
        if let Form::Memory(segments) = &self.form {
            let stored = segments.stored_until(start).min(end);
            let needed = stored.max(end.min(self.keep));
            bytes = vec![0; usize::try_from(needed - start).unwrap_or(0)];
            segments.read(start, &mut bytes);
        }
        Extent { offset: start, data: Data::Inline(bytes) }
    }
}
