//! A whole tree read through [`Io`], as plain values: what a program could find out about it,
//! except for inode numbers, change times and access times.

use std::collections::BTreeMap;
use std::io::Result;
use systx_base::{Gid, Kind, Time, Uid};
use systx_store::io::{Handle, HostId, Io, Open};

/// Path from the root, without a leading slash; the root itself is empty.
pub type Path = Vec<u8>;

/// Every object by path.
pub type Tree = BTreeMap<Path, Node>;

/// What one path shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: Kind,
    /// Permission and set-id bits.
    pub mode: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Last change of data; zero for a directory, whose time moves implicitly.
    pub mtime: Time,
    /// Number of names; zero for a directory, where file systems differ.
    pub nlink: u32,
    /// Device number.
    pub rdev: u64,
    /// Bytes of a file, target of a symbolic link.
    pub bytes: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, of the same inode.
    pub same_as: Path,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Node { kind, mode, uid, gid, nlink, .. } = self;
        write!(
            f,
            "{kind:?} {mode:o} {uid}:{gid} links {nlink} {}.{}",
            self.mtime.secs, self.mtime.nanos
        )?;
        if *kind == Kind::File {
            write!(f, " {}", brief(&self.bytes))?;
        } else if !self.bytes.is_empty() {
            write!(f, " -> {}", String::from_utf8_lossy(&self.bytes))?;
        }
        for (key, value) in &self.xattrs {
            write!(f, " {}={}", String::from_utf8_lossy(key), brief(value))?;
        }
        if *nlink > 1 {
            write!(f, " = {}", String::from_utf8_lossy(&self.same_as))?;
        }
        Ok(())
    }
}

/// Runs of equal bytes, for messages.
fn brief(bytes: &[u8]) -> String {
    let runs: Vec<String> = bytes
        .chunk_by(|a, b| a == b)
        .take(8)
        .map(|run| format!("{:02x}*{}", run[0], run.len()))
        .collect();
    format!("[{} bytes: {}]", bytes.len(), runs.join(" "))
}

/// Reads everything; a path that `skip` is true for is left out with all below it, and names there
/// do not count as links.
pub fn read(io: &dyn Io, skip: &dyn Fn(&[u8]) -> bool) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut seen = BTreeMap::new();
    let root = io.root();
    let node = node(io, &root, b"", &Path::new(), &mut seen)?;
    tree.insert(Path::new(), node);
    descend(io, &root, &Path::new(), skip, &mut tree, &mut seen)?;
    let mut named: BTreeMap<Path, u32> = BTreeMap::new();
    for node in tree.values() {
        *named.entry(node.same_as.clone()).or_default() += 1;
    }
    if tree.values().any(|n| n.nlink > named[&n.same_as]) {
        let mut left_out = BTreeMap::new();
        count_links(io, &root, &Path::new(), skip, false, &mut left_out)?;
        for (id, path) in &seen {
            let links = left_out.get(id).copied().unwrap_or(0);
            for node in tree.values_mut().filter(|n| n.same_as == *path) {
                node.nlink = node.nlink.saturating_sub(links);
            }
        }
    }
    Ok(tree)
}

/// Counts the names that each inode has in what is left out.
fn count_links(
    io: &dyn Io,
    dir: &Handle,
    path: &Path,
    skip: &dyn Fn(&[u8]) -> bool,
    inside: bool,
    count: &mut BTreeMap<HostId, u32>,
) -> Result<()> {
    let mut names = Vec::new();
    io.list(dir, &mut |item| {
        names.push(item.name.to_vec());
        true
    })?;
    for name in names {
        let below = join(path, &name);
        let inside = inside || skip(&below);
        let stat = io.stat_at(dir, &name)?;
        if stat.kind == Kind::Dir {
            count_links(io, &io.open_dir(dir, &name)?, &below, skip, inside, count)?;
        } else if inside {
            *count.entry(stat.id).or_default() += 1;
        }
    }
    Ok(())
}

fn join(path: &Path, name: &[u8]) -> Path {
    let mut below = path.clone();
    if !below.is_empty() {
        below.push(b'/');
    }
    below.extend_from_slice(name);
    below
}

fn descend(
    io: &dyn Io,
    dir: &Handle,
    path: &Path,
    skip: &dyn Fn(&[u8]) -> bool,
    tree: &mut Tree,
    seen: &mut BTreeMap<HostId, Path>,
) -> Result<()> {
    let mut names = Vec::new();
    io.list(dir, &mut |item| {
        names.push(item.name.to_vec());
        true
    })?;
    names.sort();
    for name in names {
        let below = join(path, &name);
        if skip(&below) {
            continue;
        }
        let node = node(io, dir, &name, &below, seen)?;
        let is_dir = node.kind == Kind::Dir;
        tree.insert(below.clone(), node);
        if is_dir {
            descend(io, &io.open_dir(dir, &name)?, &below, skip, tree, seen)?;
        }
    }
    Ok(())
}

fn node(
    io: &dyn Io,
    dir: &Handle,
    name: &[u8],
    path: &Path,
    seen: &mut BTreeMap<HostId, Path>,
) -> Result<Node> {
    let stat = io.stat_at(dir, name)?;
    let bytes = match stat.kind {
        Kind::File => {
            let file = io.open_file(dir, name, Open::Read)?;
            let mut bytes = vec![0; usize::try_from(stat.size).unwrap_or(0)];
            let got = io.read_at(&file, &mut bytes, 0)?;
            bytes.truncate(got);
            bytes
        }
        Kind::Symlink => io.read_link(dir, name)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for key in io.list_xattr(dir, name)? {
        let value = io.get_xattr(dir, name, &key)?;
        xattrs.insert(key, value);
    }
    let is_dir = stat.kind == Kind::Dir;
    Ok(Node {
        kind: stat.kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        mtime: if is_dir { Time::default() } else { stat.mtime },
        nlink: if is_dir { 0 } else { stat.nlink },
        rdev: stat.rdev,
        bytes,
        xattrs,
        same_as: seen.entry(stat.id).or_insert_with(|| path.clone()).clone(),
    })
}

/// The first differences of two trees, one a line; empty if there are none.
pub fn diff(left: &Tree, right: &Tree) -> String {
    let mut text = String::new();
    let paths: std::collections::BTreeSet<&Path> = left.keys().chain(right.keys()).collect();
    for path in paths {
        let (l, r) = (left.get(path), right.get(path));
        if l != r {
            let name = String::from_utf8_lossy(path);
            text += &format!("/{name}:\n    found {l:?}\n    model {r:?}\n");
        }
    }
    text
}
