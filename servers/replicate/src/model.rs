//! What is in the directory, in memory: enough to tell whether a request can be installed, and for
//! the hash of all of it, which is one of the content alone.

use crate::{OWN, limits, wrong};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_base::Kind as Type;
use systx_protocol::certify::{Content, Key, Offer, Set, Source, parent};

/// A hash.
pub type Hash = [u8; 32];
/// Longest file, bytes.
const LEN_MAX: u64 = 64 << 20;
/// Most names of one object: each change of it is a change of all of them.
const NAMES_MAX: usize = 1000;
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
    /// A FIFO, socket or device, with the number of that.
    Special(Type, u64),
}

/// One object, as one of its names has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// What it is.
    pub kind: Kind,
    /// Permissions; of a link they mean nothing.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// All names of an object that has had several have this number; else it is 0.
    group: u64,
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

/// What a request does.
#[derive(Debug)]
pub struct Applied {
    /// The objects.
    pub changed: Changed,
    /// All names of those of them that have several.
    pub names: Vec<Key>,
}

/// What was at a path.
type Undo = Vec<(Vec<u8>, Option<Leaf>)>;

/// Paths that objects got, with those that they had.
type Moves = Vec<(Vec<u8>, Vec<u8>)>;

fn part(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

impl Leaf {
    fn new(kind: Kind) -> Leaf {
        Leaf { kind, mode: 0o600, owner: (0, 0), xattrs: BTreeMap::new(), group: 0 }
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
            Kind::Special(kind, rdev) => {
                hash.update([3]);
                hash.update(kind.mode_bits().to_le_bytes());
                hash.update(rdev.to_le_bytes());
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

/// The hash of a further name of what `first` names.
fn hash_of_name(path: &[u8], first: &[u8]) -> Hash {
    let mut hash = Sha256::new();
    part(&mut hash, path);
    hash.update([4]);
    part(&mut hash, first);
    hash.finalize().into()
}

/// The directory.
pub struct Model {
    dir: PathBuf,
    leaves: BTreeMap<Vec<u8>, Leaf>,
    /// The names of objects that have, or have had, several.
    groups: HashMap<u64, BTreeSet<Vec<u8>>>,
    last_group: u64,
    /// The hashes of leaves, spread by the hash of the path.
    buckets: Vec<BTreeMap<Vec<u8>, Hash>>,
    sums: Vec<Option<Hash>>,
    /// What the requests of this block have moved, in their order: files are read where the last
    /// block has left them.
    moved: Vec<Moves>,
}

/// What is there.
fn look(at: &Path, meta: &std::fs::Metadata) -> io::Result<Leaf> {
    let kind = match Type::from_mode(meta.mode()) {
        Some(Type::Dir) => Kind::Dir,
        Some(Type::Symlink) => {
            Kind::Symlink(std::fs::read_link(at)?.as_os_str().as_bytes().to_vec())
        }
        Some(Type::File) => Kind::File(Sha256::digest(std::fs::read(at)?).into()),
        Some(kind) => Kind::Special(kind, meta.rdev()),
        None => return Err(wrong(format!("{} cannot be replicated", at.display()))),
    };
    let (mode, owner) = (meta.mode() & 0o7777, (meta.uid(), meta.gid()));
    Ok(Leaf { kind, mode, owner, xattrs: xattrs(at)?, group: 0 })
}

fn bucket(path: &[u8]) -> usize {
    let hash = Sha256::digest(path);
    (usize::from(hash[0]) << 8 | usize::from(hash[1])) % BUCKETS
}

impl Model {
    /// Of an empty directory.
    pub fn empty(dir: &Path) -> Model {
        Model {
            dir: dir.to_owned(),
            leaves: BTreeMap::new(),
            groups: HashMap::new(),
            last_group: 0,
            buckets: vec![BTreeMap::new(); BUCKETS],
            sums: vec![None; BUCKETS],
            moved: Vec::new(),
        }
    }

    /// The names that are in the directory itself.
    pub fn tops(&self) -> Vec<Vec<u8>> {
        self.leaves.keys().filter(|path| !path.contains(&b'/')).cloned().collect()
    }

    /// Of what is there.
    ///
    /// # Errors
    /// It cannot be read, or what is in it has a name elsewhere.
    pub fn read(dir: &Path) -> io::Result<Model> {
        let mut model = Model::empty(dir);
        // Objects with several names: the number of each, and how many names are to be met.
        let mut several: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
        let mut todo = vec![Vec::new()];
        while let Some(above) = todo.pop() {
            for entry in std::fs::read_dir(model.at(&above))? {
                let name = entry?.file_name();
                if above.is_empty() && name == OWN {
                    continue;
                }
                let path = join(&above, name.as_bytes());
                let at = model.at(&path);
                let meta = std::fs::symlink_metadata(&at)?;
                let mut leaf = look(&at, &meta)?;
                if !meta.is_dir() && meta.nlink() > 1 {
                    let new = model.last_group + 1;
                    let known = several.entry((meta.dev(), meta.ino()));
                    let (group, left) = known.or_insert((new, meta.nlink()));
                    *left = left.saturating_sub(1);
                    leaf.group = *group;
                    model.last_group = model.last_group.max(*group);
                }
                if leaf.kind == Kind::Dir {
                    todo.push(path.clone());
                }
                model.put(path, Some(leaf));
            }
        }
        let found = |group: u64| model.groups.get(&group)?.first().map(|path| model.at(path));
        if let Some(at) =
            several.values().find_map(|(group, left)| found(*group).filter(|_| *left > 0))
        {
            let text = format!("{} has a name outside of the directory", at.display());
            return Err(wrong(format!("{text}, and cannot be replicated")));
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
        let group = |leaf: &Option<Leaf>| leaf.as_ref().map_or(0, |leaf| leaf.group);
        let new = group(&leaf);
        let old = match leaf {
            Some(leaf) => self.leaves.insert(path.clone(), leaf),
            None => self.leaves.remove(&path),
        };
        let was = group(&old);
        if was != new {
            self.regroup(&path, was, false);
            self.regroup(&path, new, true);
        }
        self.hash(&path);
        old
    }

    /// A name is of a group from now on, or not any more. The first name of a group has the hash of
    /// the object, and the others have one of the first.
    fn regroup(&mut self, path: &[u8], group: u64, is_in: bool) {
        if group == 0 {
            return;
        }
        let names = self.groups.entry(group).or_default();
        let first = names.first().cloned();
        let _ = if is_in { names.insert(path.to_vec()) } else { names.remove(path) };
        let stale = if names.first() == first.as_ref() {
            Vec::new()
        } else {
            Vec::from_iter(names.clone())
        };
        if names.is_empty() {
            self.groups.remove(&group);
        }
        stale.iter().for_each(|path| self.hash(path));
    }

    /// Computes the hash of a name anew.
    fn hash(&mut self, path: &[u8]) {
        let at = bucket(path);
        self.sums[at] = None;
        let Some(leaf) = self.leaves.get(path) else {
            self.buckets[at].remove(path);
            return;
        };
        let first = self.groups.get(&leaf.group).and_then(BTreeSet::first);
        let hash = match first.filter(|first| first.as_slice() != path) {
            Some(first) => hash_of_name(path, first),
            None => leaf.hash(path),
        };
        self.buckets[at].insert(path.to_vec(), hash);
    }

    /// All names of what a path names.
    fn names(&self, path: &[u8], leaf: &Leaf) -> Vec<Vec<u8>> {
        let all = self.groups.get(&leaf.group).map(|names| names.iter().cloned().collect());
        all.unwrap_or_else(|| vec![path.to_vec()])
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
    pub fn apply(&mut self, offer: &Offer) -> Result<Applied, Failed> {
        let mut undo = Vec::new();
        self.moved.push(Vec::new());
        let done = self.try_to_apply(offer, &mut undo);
        match done {
            Ok(()) => Ok(self.applied(offer, &undo)),
            Err(failed) => {
                for (path, leaf) in undo.into_iter().rev() {
                    self.put(path, leaf);
                }
                self.moved.pop();
                Err(failed)
            }
        }
    }

    fn applied(&self, offer: &Offer, undo: &Undo) -> Applied {
        let new = offer.placed.iter().filter(|(_, source)| !matches!(source, Source::Taken(_)));
        let paths: BTreeSet<&Vec<u8>> =
            new.map(|(path, _)| path).chain(offer.set.iter().map(|set| &set.path)).collect();
        let changed = paths
            .into_iter()
            .filter_map(|path| Some((path.clone(), self.leaves.get(path)?.clone())));
        let touched = undo.iter().flat_map(|(path, old)| [old.as_ref(), self.leaves.get(path)]);
        let groups: BTreeSet<u64> = touched.flatten().map(|leaf| leaf.group).collect();
        let names = groups.iter().filter_map(|group| self.groups.get(group)).flatten();
        Applied { changed: changed.collect(), names: names.cloned().map(Key::At).collect() }
    }

    /// As [`Model::put`], to be taken back.
    fn replace(&mut self, path: Vec<u8>, leaf: Option<Leaf>, undo: &mut Undo) -> Option<Leaf> {
        let old = self.put(path.clone(), leaf);
        undo.push((path, old.clone()));
        old
    }

    fn try_to_apply(&mut self, offer: &Offer, undo: &mut Undo) -> Result<(), Failed> {
        let mut taken = Vec::new();
        for path in &offer.taken {
            limits::path(path)?;
            let mut objects = Vec::new();
            for inside in self.subtree(path) {
                let leaf = self.replace(inside.clone(), None, undo);
                objects.extend(leaf.map(|leaf| (inside[path.len()..].to_vec(), leaf)));
            }
            if objects.is_empty() {
                return Err(format!("{} is not there", shown(path)).into());
            }
            taken.push(objects);
        }
        for (path, source) in &offer.placed {
            limits::path(path)?;
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
                Source::Link(to) => vec![(vec![], self.another_name(path, to, undo)?)],
                new => vec![(vec![], Leaf::new(made(new)?))],
            };
            for (rest, leaf) in objects {
                let inside = [path.as_slice(), &rest].concat();
                limits::path(&inside)?;
                self.replace(inside, Some(leaf), undo);
            }
        }
        for set in &offer.set {
            limits::path(&set.path)?;
            let leaf = self.leaves.get(&set.path).cloned();
            let leaf = leaf.ok_or_else(|| format!("{} is not there", shown(&set.path)))?;
            let names = self.names(&set.path, &leaf);
            let new = self.set(set, leaf)?;
            for name in names {
                self.replace(name, Some(new.clone()), undo);
            }
        }
        Ok(())
    }

    /// What `path` is to name, which `to` names already.
    fn another_name(&mut self, path: &[u8], to: &[u8], undo: &mut Undo) -> Result<Leaf, Failed> {
        limits::path(to)?;
        let leaf = self.leaves.get(to).cloned().filter(|leaf| leaf.kind != Kind::Dir);
        let mut leaf = leaf.ok_or_else(|| format!("{} cannot have another name", shown(to)))?;
        if leaf.group == 0 {
            self.last_group += 1;
            leaf.group = self.last_group;
            self.replace(to.to_vec(), Some(leaf.clone()), undo);
        }
        if self.groups.get(&leaf.group).is_some_and(|names| names.len() >= NAMES_MAX) {
            return Err(format!("{} has {NAMES_MAX} names already", shown(to)).into());
        }
        // Its content is where it was before the request.
        if let Some(moves) = self.moved.last_mut() {
            let before = was(moves, to);
            moves.push((path.to_vec(), before));
        }
        Ok(leaf)
    }

    /// What an object becomes.
    fn set(&self, set: &Set, mut leaf: Leaf) -> Result<Leaf, Failed> {
        leaf.mode = set.mode.map_or(leaf.mode, |mode| mode & 0o7777);
        leaf.owner = set.owner.unwrap_or(leaf.owner);
        limits::set(set, &leaf.kind)?;
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

/// The hash of a replica: of its content, and of when what changed last.
pub fn combined(content: Hash, versions: Hash) -> Hash {
    Sha256::new().chain_update(content).chain_update(versions).finalize().into()
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

/// A new object of its own.
fn made(source: &Source) -> Result<Kind, String> {
    Ok(match source {
        Source::Dir => Kind::Dir,
        Source::Symlink(to) => {
            limits::target(to)?;
            Kind::Symlink(to.clone())
        }
        Source::Special { kind, rdev } => {
            limits::device(*kind, *rdev)?;
            Kind::Special(*kind, *rdev)
        }
        _ => Kind::File(Sha256::digest(b"").into()),
    })
}

/// For a sentence.
pub fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// A path of a name below another one.
pub fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
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
mod tests;
