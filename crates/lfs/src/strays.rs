//! Files with pages that lie where a summary says that another file's do.
//!
//! A summary says for each block which page of which file it is, and the cleaner asks that file.
//! When a commit moves a page to another file and leaves it where it is, the summary is as it was.
//! So such files are known by name, and the cleaner asks them, too.  Where their pages lie is found
//! out when it first asks.  A file that is named without need costs a look.  One that was missed
//! would keep its segments from being freed, which is all: what is in use is counted.

use crate::format::Ino;
use std::collections::{BTreeMap, BTreeSet};

/// Such files, and the segments in which they may have such pages.
#[derive(Default)]
pub struct Strays {
    /// By file; `None` is not known yet.
    files: BTreeMap<Ino, Option<BTreeSet<u32>>>,
    /// By segment.
    segments: BTreeMap<u32, BTreeSet<Ino>>,
}

impl Strays {
    /// Those that a checkpoint names.
    pub fn of(inos: impl IntoIterator<Item = Ino>) -> Strays {
        let files = inos.into_iter().map(|ino| (ino, None)).collect();
        Strays { files, segments: BTreeMap::new() }
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// All files.
    pub fn inos(&self) -> BTreeSet<Ino> {
        self.files.keys().copied().collect()
    }

    /// Whether a file is one of them.
    pub fn has(&self, ino: Ino) -> bool {
        self.files.contains_key(&ino)
    }

    /// A file has such a page in a segment.
    pub fn note(&mut self, ino: Ino, segment: u32) {
        if let Some(known) = self.files.entry(ino).or_insert_with(|| Some(BTreeSet::new())) {
            known.insert(segment);
            self.segments.entry(segment).or_default().insert(ino);
        }
    }

    /// All segments in which a file has any; without one it is none of them.
    pub fn set(&mut self, ino: Ino, segments: BTreeSet<u32>) {
        self.forget(ino);
        if segments.is_empty() {
            return;
        }
        for segment in &segments {
            self.segments.entry(*segment).or_default().insert(ino);
        }
        self.files.insert(ino, Some(segments));
    }

    /// A file is gone, or has no such page.
    pub fn forget(&mut self, ino: Ino) {
        for segment in self.files.remove(&ino).flatten().into_iter().flatten() {
            if let Some(files) = self.segments.get_mut(&segment) {
                files.remove(&ino);
                if files.is_empty() {
                    self.segments.remove(&segment);
                }
            }
        }
    }

    /// Files of which nobody knows yet where they have them.
    pub fn unknown(&self) -> Vec<Ino> {
        self.files.iter().filter(|(_, known)| known.is_none()).map(|(ino, _)| *ino).collect()
    }

    /// Files that may have such pages in a segment.
    pub fn of_segment(&self, segment: u32) -> Vec<Ino> {
        self.segments.get(&segment).into_iter().flatten().copied().collect()
    }
}
