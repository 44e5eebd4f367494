//! What is in the directory, in memory: enough to tell whether a request can be installed, and for
//! the hash of all of it, which is one of the content alone.

use crate::{OWN, wrong};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_protocol::certify::{Content, Offer, Set, Source, parent};

/// A hash.
pub type Hash = [u8; 32];
/// Longest file, bytes.
const LEN_MAX: u64 = 64 << 20;
/// Longest name, bytes.
const NAME_MAX: usize = 255;
const BUCKETS: usize = 4096;
const TOP: usize = 64;

/// Of what kind an object is, with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file, by the hash of its content.
    File(Hash),
    /// A directory.
    Dir,
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// What it is.
    pub kind: Kind,
    /// Permissions; of a link they mean nothing.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Extended attributes; of a link none.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Why a request was not done.
#[derive(Debug)]
pub enum Failed {
    /// It cannot be: each replica finds that.
    Refused(String),
    /// This replica cannot tell: the others would go on without it, to another state.
    Here(io::Error),
}

impl From<String> for Failed {
    fn from(why: String) -> Failed {
        Failed::Refused(why)
    }
}

/// Objects that a request has made or changed, as they are after it.
pub type Changed = Vec<(Vec<u8>, Leaf)>;

/// Paths that objects got, with those that they had.
type Moves = Vec<(Vec<u8>, Vec<u8>)>;

fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

impl Leaf {
    fn new(kind: Kind) -> Leaf {
        Leaf { kind, mode: 0o600, owner: (0, 0), xattrs: BTreeMap::new() }
    }

    fn hash(&self, path: &[u8]) -> Hash {
        let mut hash = Sha256::new();
        part(&mut hash, path);
        match &self.kind {
            Kind::File(content) => {
                hash.update([0]);
                hash.update(content);
            }
            Kind::Dir => hash.update([1]),
            Kind::Symlink(target) => {
                hash.update([2]);
                part(&mut hash, target);
            }
        }
        // A link has no permissions of its own.
        let mode = if matches!(self.kind, Kind::Symlink(_)) { 0 } else { self.mode };
        for number in [mode, self.owner.0, self.owner.1] {
            hash.update(number.to_le_bytes());
        }
        for (key, value) in &self.xattrs {
            part(&mut hash, key);
            part(&mut hash, value);
        }
        hash.finalize().into()
    }
}

/// The directory.
pub struct Model {
    dir: PathBuf,
    leaves: BTreeMap<Vec<u8>, Leaf>,
    /// The hashes of leaves, spread by the hash of the path.
    buckets: Vec<BTreeMap<Vec<u8>, Hash>>,
    sums: Vec<Option<Hash>>,
    /// What the requests of this block have moved, in their order: files are read where the last
    /// block has left them.
    moved: Vec<Moves>,
}

fn bucket(path: &[u8]) -> usize {
    let hash = Sha256::digest(path);
    (usize::from(hash[0]) << 8 | usize::from(hash[1])) % BUCKETS
}

impl Model {
    /// Of what is there.
    ///
    /// # Errors
    /// It cannot be read, or has something else than files, directories and links.
    pub fn read(dir: &Path) -> io::Result<Model> {
        let mut model = Model {
            dir: dir.to_owned(),
            leaves: BTreeMap::new(),
            buckets: vec![BTreeMap::new(); BUCKETS],
            sums: vec![None; BUCKETS],
            moved: Vec::new(),
        };
        let mut todo = vec![Vec::new()];
        while let Some(above) = todo.pop() {
            for entry in std::fs::read_dir(model.at(&above))? {
                let name = entry?.file_name();
                if above.is_empty() && name == OWN {
                    continue;
                }
                let path = join(&above, name.as_bytes());
                let leaf = model.look(&path)?;
                if leaf.kind == Kind::Dir {
                    todo.push(path.clone());
                }
                model.put(path, Some(leaf));
            }
        }
        Ok(model)
    }

    /// Where a path is.
    pub fn at(&self, path: &[u8]) -> PathBuf {
        self.dir.join(std::ffi::OsStr::from_bytes(path))
    }

    /// The block is in its place.
    pub fn is_placed(&mut self) {
        self.moved.clear();
    }

    fn look(&self, path: &[u8]) -> io::Result<Leaf> {
        let at = self.at(path);
        let meta = std::fs::symlink_metadata(&at)?;
        let kind = if meta.is_dir() {
            Kind::Dir
        } else if meta.is_symlink() {
            Kind::Symlink(std::fs::read_link(&at)?.as_os_str().as_bytes().to_vec())
        } else if meta.is_file() && meta.nlink() == 1 {
            Kind::File(Sha256::digest(std::fs::read(&at)?).into())
        } else {
            return Err(wrong(format!("{} cannot be replicated", at.display())));
        };
        let xattrs = if meta.is_symlink() { BTreeMap::new() } else { xattrs(&at)? };
        Ok(Leaf { kind, mode: meta.mode() & 0o7777, owner: (meta.uid(), meta.gid()), xattrs })
    }

    /// The hash of all.
    pub fn root(&mut self) -> Hash {
        let mut tops = Sha256::new();
        for top in 0..TOP {
            let mut mid = Sha256::new();
            for at in top * (BUCKETS / TOP)..(top + 1) * (BUCKETS / TOP) {
                let sum = *self.sums[at].get_or_insert_with(|| {
                    let mut sum = Sha256::new();
                    self.buckets[at].values().for_each(|hash| sum.update(hash));
                    sum.finalize().into()
                });
                mid.update(sum);
            }
            tops.update(mid.finalize());
        }
        tops.finalize().into()
    }

    fn put(&mut self, path: Vec<u8>, leaf: Option<Leaf>) -> Option<Leaf> {
        let at = bucket(&path);
        self.sums[at] = None;
        match leaf {
            Some(leaf) => {
                self.buckets[at].insert(path.clone(), leaf.hash(&path));
                self.leaves.insert(path, leaf)
            }
            None => {
                self.buckets[at].remove(&path);
                self.leaves.remove(&path)
            }
        }
    }

    fn is_dir(&self, path: &[u8]) -> bool {
        path.is_empty() || self.leaves.get(path).is_some_and(|leaf| leaf.kind == Kind::Dir)
    }

    /// An object with all below it.
    fn subtree(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let below = join(path, b"");
        let within = self.leaves.range(below.clone()..).map(|(path, _)| path);
        let within = within.take_while(|path| path.starts_with(&below)).cloned();
        self.leaves.contains_key(path).then(|| path.to_vec()).into_iter().chain(within).collect()
    }

    /// Does what a request asks for; it changes nothing if it cannot be done.
    ///
    /// # Errors
    /// Why not.
    pub fn apply(&mut self, offer: &Offer) -> Result<Changed, Failed> {
        let mut undo = Vec::new();
        self.moved.push(Vec::new());
        let done = self.try_to_apply(offer, &mut undo);
        if done.is_err() {
            for (path, leaf) in undo.into_iter().rev() {
                self.put(path, leaf);
            }
            self.moved.pop();
        }
        done
    }

    fn try_to_apply(
        &mut self,
        offer: &Offer,
        undo: &mut Vec<(Vec<u8>, Option<Leaf>)>,
    ) -> Result<Changed, Failed> {
        let mut taken = Vec::new();
        for path in &offer.taken {
            check(path)?;
            let mut objects = Vec::new();
            for inside in self.subtree(path) {
                let leaf = self.put(inside.clone(), None);
                undo.push((inside.clone(), leaf.clone()));
                objects.extend(leaf.map(|leaf| (inside[path.len()..].to_vec(), leaf)));
            }
            if objects.is_empty() {
                return Err(format!("{} is not there", shown(path)).into());
            }
            taken.push(objects);
        }
        for (path, source) in &offer.placed {
            check(path)?;
            if self.leaves.contains_key(path) || !self.is_dir(parent(path)) {
                return Err(format!("{} cannot be placed", shown(path)).into());
            }
            let objects = match source {
                Source::Taken(n) => {
                    let n = *n as usize;
                    let objects = taken.get_mut(n).map(std::mem::take).unwrap_or_default();
                    if objects.is_empty() {
                        return Err(format!("{} was not taken", shown(path)).into());
                    }
                    let moves = self.moved.last_mut();
                    moves.into_iter().for_each(|m| m.push((path.clone(), offer.taken[n].clone())));
                    objects
                }
                Source::File => vec![(vec![], Leaf::new(Kind::File(Sha256::digest(b"").into())))],
                Source::Dir => vec![(vec![], Leaf::new(Kind::Dir))],
                Source::Symlink(to) => vec![(vec![], Leaf::new(Kind::Symlink(to.clone())))],
            };
            for (rest, leaf) in objects {
                let inside = [path.as_slice(), &rest].concat();
                undo.push((inside.clone(), None));
                self.put(inside, Some(leaf));
            }
        }
        for set in &offer.set {
            check(&set.path)?;
            let leaf = self.leaves.get(&set.path).cloned();
            let leaf = leaf.ok_or_else(|| format!("{} is not there", shown(&set.path)))?;
            let new = self.set(set, leaf.clone())?;
            undo.push((set.path.clone(), Some(leaf)));
            self.put(set.path.clone(), Some(new));
        }
        let new = offer.placed.iter().filter(|(_, source)| !matches!(source, Source::Taken(_)));
        let paths: BTreeSet<&Vec<u8>> =
            new.map(|(path, _)| path).chain(offer.set.iter().map(|set| &set.path)).collect();
        let changed =
            paths.into_iter().map(|path| Some((path.clone(), self.leaves.get(path)?.clone())));
        Ok(changed.flatten().collect())
    }

    /// What an object becomes.
    fn set(&self, set: &Set, mut leaf: Leaf) -> Result<Leaf, Failed> {
        leaf.mode = set.mode.map_or(leaf.mode, |mode| mode & 0o7777);
        leaf.owner = set.owner.unwrap_or(leaf.owner);
        if matches!(leaf.kind, Kind::Symlink(_)) && !set.xattrs.is_empty() {
            let text = format!("{} is a link, which has no attributes here", shown(&set.path));
            return Err(text.into());
        }
        for (key, value) in &set.xattrs {
            match value {
                Some(value) => leaf.xattrs.insert(key.clone(), value.clone()),
                None => {
                    let gone = leaf.xattrs.remove(key);
                    Some(gone.ok_or_else(|| format!("{} has none", shown(&set.path)))?)
                }
            };
        }
        if let Some(content) = &set.content {
            let Kind::File(old) = leaf.kind else {
                return Err(format!("{} is no file", shown(&set.path)).into());
            };
            let bytes = self.content(content, &set.path, old)?;
            leaf.kind = Kind::File(Sha256::digest(bytes).into());
        }
        Ok(leaf)
    }

    /// The new content of a file, of whose old one the hash is `old`.
    fn content(&self, content: &Content, path: &[u8], old: Hash) -> Result<Vec<u8>, Failed> {
        let long = || "a file is longer than 64 MiB".to_owned();
        if content.len > LEN_MAX {
            return Err(long().into());
        }
        let len = content.len as usize;
        let mut bytes = Vec::new();
        if content.keep > 0 && old != Hash::from(Sha256::digest(b"")) {
            bytes = self.old_content(path, old).map_err(Failed::Here)?;
            bytes.truncate(content.keep.min(content.len) as usize);
        }
        bytes.resize(len, 0);
        for run in &content.runs {
            let from = usize::try_from(run.offset).map_err(|_| long())?;
            let to = from.checked_add(run.bytes.len()).filter(|to| *to <= len).ok_or_else(long)?;
            bytes[from..to].copy_from_slice(&run.bytes);
        }
        Ok(bytes)
    }

    /// The content of a file as the last block has left it: what a block writes it writes once.
    fn old_content(&self, path: &[u8], hash: Hash) -> io::Result<Vec<u8>> {
        let was = self.moved.iter().rev().fold(path.to_vec(), |path, moves| was(moves, &path));
        let named = |e: &dyn std::fmt::Display| wrong(format!("{}: {e}", shown(&was)));
        let bytes = std::fs::read(self.at(&was)).map_err(|e| named(&e))?;
        match Hash::from(Sha256::digest(&bytes)) == hash {
            true => Ok(bytes),
            false => Err(named(&"it is not what the last block has left")),
        }
    }
}

/// Where what is at a path now was before.
fn was(moved: &Moves, path: &[u8]) -> Vec<u8> {
    let inside = |new: &[u8]| match path.strip_prefix(new)? {
        rest if rest.is_empty() || rest[0] == b'/' => Some(rest.to_vec()),
        _ => None,
    };
    let found =
        moved.iter().rev().find_map(|(new, old)| Some([old.clone(), inside(new)?].concat()));
    found.unwrap_or_else(|| path.to_vec())
}

/// What comes from elsewhere must not lead out of the directory, nor be what no file system has: a
/// block with that in it could never be put in place.
fn check(path: &[u8]) -> Result<(), String> {
    let odd = |name: &[u8]| {
        matches!(name, b"" | b"." | b"..") || name.contains(&0) || name.len() > NAME_MAX
    };
    let own = path.split(|b| *b == b'/').next() == Some(OWN.as_bytes());
    if own || path.split(|b| *b == b'/').any(odd) {
        return Err(format!("{} is not replicated", shown(path)));
    }
    Ok(())
}

/// For a sentence.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, b"/", name].concat() }
}

/// The extended attributes of what is there.
///
/// # Errors
/// They cannot be read.
pub fn xattrs(at: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 1 << 16];
    let len = match rustix::fs::llistxattr(at, &mut names[..]) {
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let mut all = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::lgetxattr(at, name, &mut value[..])?;
        value.truncate(len);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systx_protocol::certify::Run;

    fn placed(path: &[u8], source: Source) -> Offer {
        Offer { placed: vec![(path.to_vec(), source)], ..Offer::default() }
    }

    #[test]
    fn a_request_that_leads_out_of_the_directory_is_refused_and_changes_nothing() {
        let dir = std::env::temp_dir().join(format!("systx-replicate.{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let model = Model::read(&dir);
        std::fs::remove_dir(&dir).unwrap();
        let mut model = model.unwrap();
        model.apply(&placed(b"l", Source::Symlink(b"/etc".to_vec()))).unwrap();
        let root = model.root();
        let long = [b'x'; 256];
        for path in [
            &b""[..],
            b".",
            b"..",
            b"../x",
            b"/etc/x",
            b"a//b",
            b"x\0",
            b".replicate/1",
            b"l/x",
            &long,
        ] {
            assert!(model.apply(&placed(path, Source::File)).is_err(), "{}", shown(path));
            let taken = Offer { taken: vec![path.to_vec()], ..Offer::default() };
            assert!(model.apply(&taken).is_err(), "{}", shown(path));
        }
        let content = Some(Content { len: 1, keep: 0, runs: vec![] });
        let through = Set { path: b"l".to_vec(), content, ..Set::default() };
        assert!(model.apply(&Offer { set: vec![through], ..Offer::default() }).is_err());
        let xattrs = vec![(b"user.none".to_vec(), None)];
        let none = Set { path: b"l".to_vec(), xattrs, ..Set::default() };
        assert!(model.apply(&Offer { set: vec![none], ..Offer::default() }).is_err());
        assert_eq!(model.root(), root);
    }

    /// A directory of this test's own, with these files.
    fn with(name: &str, files: &[(&str, &str)], test: impl FnOnce(&Path, Model)) {
        let dir = std::env::temp_dir().join(format!("systx-{name}.{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        for (path, content) in files {
            std::fs::create_dir_all(dir.join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.join(path), content).unwrap();
        }
        let model = Model::read(&dir).unwrap();
        test(&dir, model);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// One more byte behind the old content.
    fn append(path: &[u8], len: u64) -> Offer {
        let runs = vec![Run { offset: len, bytes: b"!".to_vec() }];
        let content = Some(Content { len: len + 1, keep: len, runs });
        Offer { set: vec![Set { path: path.into(), content, ..Set::default() }], ..<_>::default() }
    }

    /// What one replica cannot read is no reason to refuse: the others would accept it.
    #[test]
    fn a_replica_that_cannot_read_does_not_refuse() {
        with("unread", &[("a", "one"), ("b", "two")], |dir, mut model| {
            let root = model.root();
            std::fs::remove_file(dir.join("a")).unwrap();
            std::fs::write(dir.join("b"), "2").unwrap();
            for path in [b"a", b"b"] {
                assert!(matches!(model.apply(&append(path, 3)), Err(Failed::Here(_))));
            }
            assert_eq!(model.root(), root);
        });
    }

    /// Requests of one block that move a file one after another, and one that changes it then.
    #[test]
    fn what_a_block_moves_is_read_where_the_last_block_has_left_it() {
        with("moved", &[("d/a", "one"), ("e", "two")], |_, mut model| {
            let moved = |from: &[u8], to: &[u8]| Offer {
                taken: vec![from.to_vec()],
                placed: vec![(to.to_vec(), Source::Taken(0))],
                ..Offer::default()
            };
            for (from, to) in [(&b"d"[..], &b"f"[..]), (b"e", b"d"), (b"f", b"e"), (b"e/a", b"g")] {
                model.apply(&moved(from, to)).unwrap();
            }
            let changed = model.apply(&append(b"g", 3)).unwrap();
            let hash = Hash::from(Sha256::digest(b"one!"));
            assert_eq!(changed[0].1.kind, Kind::File(hash));
            model.apply(&append(b"d", 3)).unwrap();
        });
    }

    /// A start would not find it, and say that the directory is damaged.
    #[test]
    fn attributes_of_a_link_are_refused() {
        with("link", &[], |_, mut model| {
            model.apply(&placed(b"l", Source::Symlink(b"x".to_vec()))).unwrap();
            let xattrs = vec![(b"trusted.a".to_vec(), Some(b"1".to_vec()))];
            let one = Set { path: b"l".to_vec(), xattrs, ..Set::default() };
            let done = model.apply(&Offer { set: vec![one], ..Offer::default() });
            assert!(matches!(done, Err(Failed::Refused(_))));
        });
    }

    /// A list of access: what one user, the group and all others may.
    fn list(user: u8) -> Vec<u8> {
        let entry = |tag: u8, may: u8, id: [u8; 4]| [&[tag, 0, may, 0][..], &id].concat();
        let nobody = [255; 4];
        let entries = [
            entry(1, 7, nobody),
            entry(2, user, [9, 0, 0, 0]),
            entry(4, 5, nobody),
            entry(16, 7, nobody),
            entry(32, 0, nobody),
        ];
        [&[2, 0, 0, 0][..], &entries.concat()].concat()
    }

    /// Lists of access that directories hand on, set-id bits and capabilities that a write takes.
    #[test]
    fn what_is_installed_is_what_a_start_finds() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root gives files away");
            return;
        }
        with("installed", &[("old", "one"), ("d/x", "")], |dir, mut model| {
            let set = |path: &[u8], mode, xattrs: Vec<(&str, Vec<u8>)>| Set {
                path: path.into(),
                mode,
                xattrs: xattrs.into_iter().map(|(k, v)| (k.into(), Some(v))).collect(),
                ..Set::default()
            };
            let cap = [&[1, 0, 0, 2][..], &[0, 4, 0, 0], &[0; 12]].concat();
            let mut owned = set(b"old", Some(0o6755), vec![("security.capability", cap)]);
            owned.owner = Some((9, 9));
            let hands_on = vec![("system.posix_acl_default", list(6))];
            let first =
                Offer { set: vec![owned, set(b"d", Some(0o2770), hands_on)], ..<_>::default() };
            let second = Offer {
                placed: vec![
                    (b"d/new".to_vec(), Source::File),
                    (b"d/below".to_vec(), Source::Dir),
                    (b"d/below/l".to_vec(), Source::Symlink(b"x".to_vec())),
                ],
                set: vec![
                    set(b"d/new", Some(0o4711), vec![("user.a", b"1".to_vec())]),
                    append(b"old", 3).set.remove(0),
                ],
                ..Offer::default()
            };
            for offer in [first, second] {
                let changed = model.apply(&offer).unwrap();
                std::fs::create_dir_all(dir.join(OWN).join("taken")).unwrap();
                crate::install::install(dir, &offer, &changed).unwrap();
                model.is_placed();
            }
            // A link has no permissions of its own.
            let hashes = |model: &Model| -> Vec<_> {
                model.leaves.iter().map(|(path, leaf)| (shown(path), leaf.hash(path))).collect()
            };
            assert_eq!(hashes(&Model::read(dir).unwrap()), hashes(&model));
        });
    }
}
