//! A reference interpreter of write sets: a tree in memory, and the outcomes applied to it one by
//! one, in the plainest way.

use super::{Bytes, Seen, Tree, find_twins};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use systx_base::{Kind, Time};
use systx_store::io::{HostId, Stamp};
use systx_store::writeset::{Content, Data, Ix, NewKind, Origin, WriteSet};

/// One object.
#[derive(Clone, Debug)]
pub struct Inode {
    pub ino: u64,
    pub seen: Seen,
    pub names: BTreeMap<Vec<u8>, usize>,
}

/// A tree; the first inode is the root.
#[derive(Clone, Debug)]
pub struct Model {
    pub inodes: Vec<Inode>,
}

impl Model {
    /// What is in a directory of the host.
    pub fn of_host(root: &Path) -> Model {
        let tree = super::host_tree(root);
        let of_root = Seen {
            kind: Kind::Dir,
            mode: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            data: Bytes(vec![]),
            xattrs: BTreeMap::new(),
            mtime: None,
            twin: None,
        };
        let ino = std::fs::metadata(root).expect("root").ino();
        let mut model =
            Model { inodes: vec![Inode { ino, seen: of_root, names: BTreeMap::new() }] };
        let mut at: BTreeMap<String, usize> = [(String::new(), 0)].into();
        for (path, seen) in tree {
            let (dir, name) = path.rsplit_once('/').expect("a leading slash");
            let meta = std::fs::symlink_metadata(root.join(&path[1..])).expect("stat");
            let known = model.inodes.iter().position(|i| i.ino == meta.ino());
            let ix = known.unwrap_or_else(|| {
                model.inodes.push(Inode { ino: meta.ino(), seen, names: BTreeMap::new() });
                model.inodes.len() - 1
            });
            model.inodes[at[dir]].names.insert(name.as_bytes().to_vec(), ix);
            at.insert(path, ix);
        }
        model
    }

    /// The tree, with link counts as the names say.
    pub fn tree(&self) -> Tree {
        fn go(
            model: &Model,
            dir: usize,
            prefix: &str,
            out: &mut Tree,
            inos: &mut BTreeMap<String, u64>,
        ) {
            assert!(prefix.len() < 1000, "a cycle");
            for (name, ix) in &model.inodes[dir].names {
                let path = format!("{prefix}/{}", String::from_utf8_lossy(name));
                out.insert(path.clone(), Seen { twin: None, ..model.inodes[*ix].seen.clone() });
                inos.insert(path.clone(), *ix as u64);
                if model.inodes[*ix].seen.kind == Kind::Dir {
                    go(model, *ix, &path, out, inos);
                }
            }
        }
        let (mut out, mut inos) = (Tree::new(), BTreeMap::new());
        go(self, 0, "", &mut out, &mut inos);
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for ino in inos.values() {
            *counts.entry(*ino).or_default() += 1;
        }
        for (path, seen) in &mut out {
            if seen.kind == Kind::Dir {
                let names = self.inodes[inos[path] as usize].names.values();
                let dirs = names.filter(|ix| self.inodes[**ix].seen.kind == Kind::Dir);
                seen.nlink = 2 + dirs.count() as u32;
            } else {
                seen.nlink = counts[&inos[path]];
            }
        }
        find_twins(&mut out, &inos);
        out
    }

    /// Applies a write set; returns what the store would report: the version of every object after
    /// it.
    pub fn apply(&mut self, writes: &WriteSet) -> Result<Vec<Option<Stamp>>, String> {
        let before = self.clone();
        let mut at: Vec<usize> = Vec::new();
        for object in &writes.objects {
            at.push(match &object.origin {
                Origin::Root => 0,
                Origin::Host { parent, name, kind, stamp } => {
                    let dir = &before.inodes[at[parent.0 as usize]];
                    let found = dir.names.get(name);
                    let ix =
                        *found.ok_or_else(|| format!("no {:?}", String::from_utf8_lossy(name)))?;
                    let inode = &before.inodes[ix];
                    if inode.ino != stamp.id().number() || inode.seen.kind != *kind {
                        return Err(format!("{:?} is another", String::from_utf8_lossy(name)));
                    }
                    ix
                }
                Origin::Grave { .. } => return Err("a view has no grave".into()),
                Origin::New(kind) => {
                    let ino = (1 << 40) + self.inodes.len() as u64;
                    self.inodes.push(Inode { ino, seen: fresh(kind), names: BTreeMap::new() });
                    self.inodes.len() - 1
                }
            });
        }
        for bind in &writes.binds {
            let name = String::from_utf8_lossy(&bind.name);
            let dir = at[bind.dir.0 as usize];
            let old = before.inodes.get(dir).and_then(|d| d.names.get(&bind.name)).copied();
            if old != bind.displaces.map(|ix| at[ix.0 as usize]) {
                return Err(format!("{name:?} displaces something else: {bind:?}"));
            }
            match bind.target {
                Some(ix) => self.inodes[dir].names.insert(bind.name.clone(), at[ix.0 as usize]),
                None => self.inodes[dir].names.remove(&bind.name),
            };
            self.inodes[dir].seen.mtime = None;
        }
        for (ix, object) in at.iter().zip(&writes.objects) {
            let seen = &mut self.inodes[*ix].seen;
            content(&mut seen.data.0, &object.content)?;
            if object.content != Content::Keep {
                seen.mtime = None;
            }
            seen.mode = object.attrs.mode.unwrap_or(seen.mode);
            (seen.uid, seen.gid) = object.attrs.owner.unwrap_or((seen.uid, seen.gid));
            if let Some(to) = object.attrs.mtime {
                seen.mtime = super::explicit(to.secs);
            }
            for (key, value) in &object.xattrs {
                let key = String::from_utf8_lossy(key).into_owned();
                match value {
                    Some(value) => drop(seen.xattrs.insert(key, Bytes(value.clone()))),
                    None => drop(seen.xattrs.remove(&key)),
                }
            }
        }
        let reachable = self.reachable();
        let stamp = |(i, ix): (usize, &usize)| {
            let inode = &self.inodes[*ix];
            let time = Time { secs: 2_000_000_000 + i as i64, nanos: 1 };
            let born = match &writes.objects[i].origin {
                Origin::Host { stamp, .. } => stamp.id().born().unwrap_or_default(),
                _ => Time::default(),
            };
            let (id, length) = (HostId::new(inode.ino, born), inode.seen.data.0.len() as u64);
            reachable[*ix].then_some(Stamp::new(id, time, time, length))
        };
        Ok(at.iter().enumerate().map(stamp).collect())
    }

    fn reachable(&self) -> Vec<bool> {
        let mut found = vec![false; self.inodes.len()];
        let mut todo = vec![0];
        while let Some(ix) = todo.pop() {
            if !std::mem::replace(&mut found[ix], true) {
                todo.extend(self.inodes[ix].names.values());
            }
        }
        found
    }

    /// The objects of the stamps that a report names, as [`systx_vfs::view::View::rebase`] takes
    /// them.
    pub fn pairs(stamps: &[Option<Stamp>]) -> Vec<(Ix, Stamp)> {
        let pairs = (0..).map(Ix).zip(stamps);
        pairs.filter_map(|(ix, stamp)| stamp.map(|stamp| (ix, stamp))).collect()
    }
}

fn fresh(kind: &NewKind) -> Seen {
    let (kind, data, rdev) = match kind {
        NewKind::File => (Kind::File, vec![], 0),
        NewKind::Dir => (Kind::Dir, vec![], 0),
        NewKind::Symlink(target) => (Kind::Symlink, target.clone(), 0),
        NewKind::Special { kind, rdev } => (*kind, vec![], *rdev),
    };
    Seen {
        kind,
        mode: 0o777,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev,
        data: Bytes(data),
        xattrs: BTreeMap::new(),
        mtime: None,
        twin: None,
    }
}

fn content(data: &mut Vec<u8>, content: &Content) -> Result<(), String> {
    let (len, keep, extents) = match content {
        Content::Keep => return Ok(()),
        Content::Patch { len, keep, extents } => (*len, *keep, extents),
        Content::Whole { len, extents } => (*len, 0, extents),
        Content::Slot(_) => return Err("nothing is spilled here".into()),
    };
    data.truncate(keep as usize);
    data.resize(len as usize, 0);
    for extent in extents {
        let at = extent.offset as usize;
        match &extent.data {
            Data::Inline(bytes) => data[at..at + bytes.len()].copy_from_slice(bytes),
            Data::Hole { len } => data[at..at + *len as usize].fill(0),
            Data::Slot { .. } => return Err("nothing is spilled here".into()),
        }
    }
    Ok(())
}
