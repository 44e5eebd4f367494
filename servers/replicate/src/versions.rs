//! When each path, and the names of each directory, last changed: as far back as a request may be
//! old.

use crate::model::Hash;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use systx_protocol::certify::{Key, Offer};

/// So many heights back a request may have read.
pub const WINDOW: u64 = 256;

/// See the module.
#[derive(Default)]
pub struct Versions {
    changed: HashMap<Key, u64>,
    blocks: VecDeque<Block>,
}

struct Block {
    height: u64,
    keys: Vec<Key>,
    /// Of these, once it was asked for.
    hash: Option<Hash>,
}

impl Versions {
    /// Whether a request of this height may be in a block; else what is in its way.
    ///
    /// # Errors
    /// What has changed since.
    pub fn certify(&self, offer: &Offer, read_at: u64, block: u64) -> Result<(), Key> {
        if read_at >= block || read_at + WINDOW < block {
            return Err(Key::At(Vec::new()));
        }
        let newer = |key: &&Key| self.changed.get(*key).is_some_and(|height| *height > read_at);
        if let Some(key) = offer.reads.iter().find(newer) {
            return Err(key.clone());
        }
        // Of the names of a directory it says something only to who has listed them.
        let writes = offer.writes();
        let found = writes.iter().filter(|key| matches!(key, Key::At(_))).find(newer);
        found.map_or(Ok(()), |key| Err(key.clone()))
    }

    /// A block, or a request of it, has changed these.
    pub fn add(&mut self, block: u64, keys: &[Key]) {
        self.changed.extend(keys.iter().map(|key| (key.clone(), block)));
        match self.blocks.back_mut() {
            Some(last) if last.height == block => {
                last.keys.extend_from_slice(keys);
                last.hash = None;
            }
            _ => self.blocks.push_back(Block { height: block, keys: keys.to_vec(), hash: None }),
        }
        // As the slots in the directory: the one of this block was that of the one before.
        while self.blocks.front().is_some_and(|first| first.height + WINDOW <= block) {
            let Some(Block { height, keys: old, .. }) = self.blocks.pop_front() else { break };
            for key in old {
                if self.changed.get(&key) == Some(&height) {
                    self.changed.remove(&key);
                }
            }
        }
    }

    /// What a block has changed.
    pub fn of(&self, block: u64) -> Vec<Key> {
        let found = self.blocks.iter().find(|one| one.height == block);
        found.map(|one| one.keys.clone()).unwrap_or_default()
    }

    /// What all blocks have changed that count.
    pub fn all(&self) -> Vec<(u64, Vec<Key>)> {
        self.blocks.iter().map(|one| (one.height, one.keys.clone())).collect()
    }

    /// The hash of that.
    pub fn digest(&mut self) -> Hash {
        let mut all = Sha256::new();
        for Block { height, keys, hash } in &mut self.blocks {
            all.update(height.to_le_bytes());
            all.update(hash.get_or_insert_with(|| {
                let block = Offer { txn: *height, reads: keys.clone(), ..Offer::default() };
                Sha256::digest(block.encode()).into()
            }));
        }
        all.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;
    use systx_protocol::certify::Source;

    fn makes(path: &str, reads: &[Key]) -> Offer {
        let placed = vec![(path.as_bytes().to_vec(), Source::File)];
        Offer { reads: reads.to_vec(), placed, ..Offer::default() }
    }

    #[test]
    fn what_was_read_or_is_written_must_not_have_changed_since() {
        let at = |path: &str| Key::At(path.into());
        let mut versions = Versions::default();
        versions.add(5, &makes("d/a", &[]).writes());
        assert_eq!(versions.certify(&makes("d/b", &[at("d")]), 4, 6), Ok(()));
        assert_eq!(versions.certify(&makes("d/a", &[]), 4, 6), Err(at("d/a")));
        assert_eq!(versions.certify(&makes("d/a", &[]), 5, 6), Ok(()));
        assert_eq!(versions.certify(&makes("e", &[at("d/a")]), 4, 6), Err(at("d/a")));
        let listed = Key::Names("d".into());
        assert_eq!(versions.certify(&makes("e", from_ref(&listed)), 4, 6), Err(listed.clone()));
        assert_eq!(versions.certify(&makes("e", from_ref(&listed)), 5, 6), Ok(()));
    }

    #[test]
    fn what_is_too_old_or_of_the_future_is_a_conflict() {
        let mut versions = Versions::default();
        versions.add(5, &makes("a", &[]).writes());
        versions.add(5 + WINDOW + 1, &makes("b", &[]).writes());
        assert!(!versions.changed.contains_key(&Key::At("a".into())));
        assert!(versions.certify(&makes("c", &[]), 5, 5 + WINDOW + 1).is_err());
        assert!(versions.certify(&makes("c", &[]), 9, 9).is_err());
        assert_eq!(versions.certify(&makes("c", &[]), 6, 6 + WINDOW), Ok(()));
    }
}
