//! Operations by path, as a volume does them and as a naive model does.

use super::{Dump, bytes, some};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeMap;
use systx_base::Kind;
use systx_lfs::format::{Ino, ROOT};
use systx_lfs::{Error, Ops, Rename, SetAttrs, SetXattr, Shape};

/// Paths that acts are about: few, so that acts meet.
pub const PATHS: [&str; 10] = ["a", "b", "x", "a/x", "a/y", "b/x", "b/a", "a/d", "a/d/x", "b/d"];

const PAGE: u64 = systx_lfs::format::BLOCK as u64;

#[derive(Clone, Copy, Debug)]
pub enum Act {
    Make(usize, Kind),
    Write(usize, u64, usize, u64),
    Size(usize, u64),
    Punch(usize, u64, u64),
    Remove(usize),
    Rename(usize, usize, Rename),
    Link(usize, usize),
    Xattr(usize, u8, Option<u16>),
    Chmod(usize, u32),
    /// Some whole pages of one file go to another one.
    Take(usize, usize, u64, u64),
}

pub fn act() -> impl Strategy<Value = Act> {
    let path = || 0..PATHS.len();
    let kind = prop_oneof![
        4 => Just(Kind::File), 4 => Just(Kind::Dir), 1 => Just(Kind::Symlink), 1 => Just(Kind::Fifo)
    ];
    let how = prop_oneof![
        4 => Just(Rename::Replace),
        1 => Just(Rename::NoReplace),
        2 => Just(Rename::Exchange),
        1 => Just(Rename::Whiteout),
        1 => Just(Rename::WhiteoutNoReplace),
    ];
    prop_oneof![
        4 => (path(), kind).prop_map(|(p, k)| Act::Make(p, k)),
        5 => (path(), 0..20_000u64, 1..9_000usize, any::<u64>())
            .prop_map(|(p, at, n, s)| Act::Write(p, at, n, s >> 16)),
        2 => (path(), 0..20_000u64).prop_map(|(p, n)| Act::Size(p, n)),
        1 => (path(), 0..20_000u64, 1..9_000u64).prop_map(|(p, at, n)| Act::Punch(p, at, n)),
        3 => path().prop_map(Act::Remove),
        3 => (path(), path(), how).prop_map(|(a, b, h)| Act::Rename(a, b, h)),
        2 => (path(), path()).prop_map(|(a, b)| Act::Link(a, b)),
        2 => (path(), 0..3u8, proptest::option::of(0..900u16))
            .prop_map(|(p, n, v)| Act::Xattr(p, n, v)),
        1 => (path(), 0..0o7777u32).prop_map(|(p, m)| Act::Chmod(p, m)),
        3 => (path(), path(), 0..4u64, 1..4u64).prop_map(|(a, b, p, n)| Act::Take(a, b, p, n)),
    ]
}

fn split(path: usize) -> (Vec<&'static [u8]>, &'static [u8]) {
    let mut parts: Vec<&[u8]> = PATHS[path].split('/').map(str::as_bytes).collect();
    let name = parts.pop().expect("a path has a name");
    (parts, name)
}

fn place(ops: &mut Ops<'_>, path: usize) -> Result<(Ino, &'static [u8]), Error> {
    let (parents, name) = split(path);
    let mut at = ROOT;
    for part in parents {
        at = ops.lookup(at, part)?.ino;
    }
    Ok((at, name))
}

fn find(ops: &mut Ops<'_>, path: usize) -> Result<Ino, Error> {
    let (dir, name) = place(ops, path)?;
    Ok(ops.lookup(dir, name)?.ino)
}

fn shape(kind: Kind) -> Shape {
    match kind {
        Kind::Symlink => Shape::symlink(b"target"),
        kind => Shape::new(kind, 0o640),
    }
}

/// Does it on a volume.
pub fn run(ops: &mut Ops<'_>, act: Act) -> Result<(), Error> {
    match act {
        Act::Make(path, kind) => {
            let (dir, name) = place(ops, path)?;
            ops.create(dir, name, &shape(kind)).map(drop)
        }
        Act::Write(path, at, len, seed) => {
            let ino = find(ops, path)?;
            ops.write(ino, at, &some(seed, len))
        }
        Act::Size(path, size) => {
            let ino = find(ops, path)?;
            ops.set_attrs(ino, &SetAttrs { size: Some(size), ..SetAttrs::default() })
        }
        Act::Punch(path, at, len) => {
            let ino = find(ops, path)?;
            ops.punch(ino, at, len)
        }
        Act::Remove(path) => {
            let (dir, name) = place(ops, path)?;
            match ops.unlink(dir, name) {
                Err(Error::IsDir) => ops.rmdir(dir, name).map(drop),
                other => other.map(drop),
            }
        }
        Act::Rename(a, b, how) => {
            let (a, b) = (place(ops, a)?, place(ops, b)?);
            ops.rename(a, b, how)
        }
        Act::Link(a, b) => {
            let a = find(ops, a)?;
            let (dir, name) = place(ops, b)?;
            ops.link(a, dir, name)
        }
        Act::Xattr(path, name, value) => {
            let ino = find(ops, path)?;
            let name = [b'n', b'0' + name];
            match value {
                Some(len) => ops.set_xattr(ino, &name, &bytes(3, len.into()), SetXattr::Any),
                None => ops.remove_xattr(ino, &name),
            }
        }
        Act::Chmod(path, mode) => {
            let ino = find(ops, path)?;
            ops.set_attrs(ino, &SetAttrs { mode: Some(mode), ..SetAttrs::default() })
        }
        Act::Take(a, b, first, n) => {
            let (a, b) = (find(ops, a)?, find(ops, b)?);
            ops.read(b, 0, 0)?;
            ops.read(a, 0, 0)?;
            let last = (ops.attrs(a)?.size / PAGE).min(first + n);
            if a == b || first >= last {
                return Ok(());
            }
            let size = Some(ops.attrs(b)?.size.max(last * PAGE));
            ops.set_attrs(b, &SetAttrs { size, ..SetAttrs::default() })?;
            for page in first..last {
                if !ops.take((a, page), (b, page))? {
                    let content = ops.read(a, page * PAGE, PAGE as usize)?;
                    ops.write(b, page * PAGE, &content)?;
                }
            }
            ops.punch(a, first * PAGE, (last - first) * PAGE)
        }
    }
}

/// A tree of plain values.
#[derive(Clone, Debug)]
pub struct Model {
    objects: BTreeMap<u64, Thing>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Thing {
    kind: Kind,
    mode: u32,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, u64>,
}

impl Thing {
    fn new(kind: Kind, mode: u32) -> Thing {
        let (content, xattrs, entries) = Default::default();
        Thing { kind, mode, content, xattrs, entries }
    }
}

/// Type, mode, number of names, content and attributes of each path.
pub type Plain = BTreeMap<String, (Kind, u32, u32, Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>)>;

/// What of a dump a model knows.
pub fn plain(dump: &Dump) -> Plain {
    let seen = dump.iter().map(|(path, s)| {
        let a = &s.attrs;
        (path.clone(), (a.kind, a.mode, a.nlink, s.content.clone(), s.xattrs.clone()))
    });
    seen.collect()
}

impl Model {
    pub fn new() -> Model {
        Model { objects: [(1, Thing::new(Kind::Dir, 0o755))].into(), next: 2 }
    }

    fn dir(&self, path: usize) -> Result<(u64, &'static [u8]), Errno> {
        let (parents, name) = split(path);
        let mut at = 1;
        for part in parents {
            at = self.entry(at, part)?.ok_or(Errno::NOENT)?;
        }
        Ok((at, name))
    }

    fn entry(&self, dir: u64, name: &[u8]) -> Result<Option<u64>, Errno> {
        let dir = &self.objects[&dir];
        if dir.kind != Kind::Dir {
            return Err(Errno::NOTDIR);
        }
        Ok(dir.entries.get(name).copied())
    }

    fn find(&self, path: usize) -> Result<u64, Errno> {
        let (dir, name) = self.dir(path)?;
        self.entry(dir, name)?.ok_or(Errno::NOENT)
    }

    fn bind(&mut self, dir: u64, name: &[u8], to: Option<u64>) {
        let entries = &mut self.objects.get_mut(&dir).expect("a directory").entries;
        match to {
            Some(to) => drop(entries.insert(name.to_vec(), to)),
            None => drop(entries.remove(name)),
        }
    }

    fn make(&mut self, thing: Thing) -> u64 {
        self.next += 1;
        self.objects.insert(self.next, thing);
        self.next
    }

    fn below(&self, top: u64, ino: u64) -> bool {
        top == ino || self.objects[&top].entries.values().any(|e| self.below(*e, ino))
    }

    fn is_file(&self, ino: u64) -> Result<(), Errno> {
        match self.objects[&ino].kind {
            Kind::File => Ok(()),
            Kind::Dir => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    fn file(&mut self, path: usize) -> Result<&mut Thing, Errno> {
        let ino = self.find(path)?;
        self.is_file(ino)?;
        Ok(self.objects.get_mut(&ino).expect("it is bound"))
    }

    /// Does it.
    pub fn run(&mut self, act: Act) -> Result<(), Errno> {
        match act {
            Act::Make(path, kind) => {
                let (dir, name) = self.dir(path)?;
                if self.entry(dir, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                let shape = shape(kind);
                let mut thing = Thing::new(kind, shape.mode);
                thing.content = shape.target;
                let ino = self.make(thing);
                self.bind(dir, name, Some(ino));
            }
            Act::Write(path, at, len, seed) => {
                let content = &mut self.file(path)?.content;
                let at = at as usize;
                content.resize(content.len().max(at + len), 0);
                content[at..at + len].copy_from_slice(&some(seed, len));
            }
            Act::Size(path, size) => self.file(path)?.content.resize(size as usize, 0),
            Act::Punch(path, at, len) => {
                let content = &mut self.file(path)?.content;
                let end = content.len().min((at + len) as usize);
                content[end.min(at as usize)..end].fill(0);
            }
            Act::Remove(path) => {
                let (dir, name) = self.dir(path)?;
                let ino = self.entry(dir, name)?.ok_or(Errno::NOENT)?;
                if !self.objects[&ino].entries.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                self.bind(dir, name, None);
            }
            Act::Rename(a, b, how) => return self.rename(a, b, how),
            Act::Link(a, b) => {
                let ino = self.find(a)?;
                let (dir, name) = self.dir(b)?;
                if self.objects[&dir].kind != Kind::Dir {
                    return Err(Errno::NOTDIR);
                }
                if self.objects[&ino].kind == Kind::Dir {
                    return Err(Errno::ISDIR);
                }
                if self.entry(dir, name)?.is_some() {
                    return Err(Errno::EXIST);
                }
                self.bind(dir, name, Some(ino));
            }
            Act::Xattr(path, name, value) => {
                let ino = self.find(path)?;
                let xattrs = &mut self.objects.get_mut(&ino).expect("it is bound").xattrs;
                let name = vec![b'n', b'0' + name];
                match value {
                    Some(len) => drop(xattrs.insert(name, bytes(3, len.into()))),
                    None => drop(xattrs.remove(&name).ok_or(Errno::NODATA)?),
                }
            }
            Act::Chmod(path, mode) => {
                let ino = self.find(path)?;
                self.objects.get_mut(&ino).expect("it is bound").mode = mode;
            }
            Act::Take(a, b, first, n) => {
                let (a, b) = (self.find(a)?, self.find(b)?);
                self.is_file(b)?;
                self.is_file(a)?;
                let from = &mut self.objects.get_mut(&a).expect("it is bound").content;
                let last = (from.len() as u64 / PAGE).min(first + n);
                if a == b || first >= last {
                    return Ok(());
                }
                let range = (first * PAGE) as usize..(last * PAGE) as usize;
                let taken = from[range.clone()].to_vec();
                from[range.clone()].fill(0);
                let to = &mut self.objects.get_mut(&b).expect("it is bound").content;
                to.resize(to.len().max(range.end), 0);
                to[range].copy_from_slice(&taken);
            }
        }
        Ok(())
    }

    fn rename(&mut self, a: usize, b: usize, how: Rename) -> Result<(), Errno> {
        let (from, to) = (self.dir(a)?, self.dir(b)?);
        for (dir, _) in [from, to] {
            if self.objects[&dir].kind != Kind::Dir {
                return Err(Errno::NOTDIR);
            }
        }
        let source = self.entry(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let target = self.entry(to.0, to.1)?;
        if self.below(source, to.0) {
            return Err(Errno::INVAL);
        }
        if how == Rename::Exchange {
            let target = target.ok_or(Errno::NOENT)?;
            if self.below(target, from.0) {
                return Err(Errno::INVAL);
            }
            self.bind(from.0, from.1, Some(target));
            self.bind(to.0, to.1, Some(source));
            return Ok(());
        }
        if let Some(target) = target {
            if matches!(how, Rename::NoReplace | Rename::WhiteoutNoReplace) {
                return Err(Errno::EXIST);
            }
            if source == target {
                return Ok(());
            }
            let is_dir = |ino: u64| self.objects[&ino].kind == Kind::Dir;
            match (is_dir(source), is_dir(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ if !self.objects[&target].entries.is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.bind(from.0, from.1, None);
        self.bind(to.0, to.1, Some(source));
        if matches!(how, Rename::Whiteout | Rename::WhiteoutNoReplace) {
            let whiteout = self.make(Thing::new(Kind::CharDev, 0));
            self.bind(from.0, from.1, Some(whiteout));
        }
        Ok(())
    }

    /// All of it.
    pub fn plain(&self) -> Plain {
        let mut all = Plain::new();
        let mut todo = vec![(String::new(), 1)];
        let bound = |ino: u64| {
            self.objects.values().flat_map(|t| t.entries.values()).filter(|e| **e == ino).count()
        };
        // What is not reachable any longer has no names either.
        let mut reached = self.clone();
        let mut live = std::collections::BTreeSet::new();
        let mut next = vec![1];
        while let Some(ino) = next.pop() {
            if live.insert(ino) {
                next.extend(self.objects[&ino].entries.values());
            }
        }
        reached.objects.retain(|ino, _| live.contains(ino));
        while let Some((path, ino)) = todo.pop() {
            let thing = &reached.objects[&ino];
            let subdirs =
                thing.entries.values().filter(|e| self.objects[e].kind == Kind::Dir).count();
            let nlink = if thing.kind == Kind::Dir { 2 + subdirs } else { bound(ino) };
            for (name, entry) in &thing.entries {
                todo.push((format!("{path}/{}", String::from_utf8_lossy(name)), *entry));
            }
            let seen =
                (thing.kind, thing.mode, nlink as u32, thing.content.clone(), thing.xattrs.clone());
            all.insert(path, seen);
        }
        all
    }
}
