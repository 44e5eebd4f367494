//! A directory tree as a value.
//!
//! Everything that a user can see of a file is in it: type, permission bits, owner, size, content,
//! extended attributes and ACLs, which names are links to one file, targets of symbolic links,
//! device numbers; times and the layout of holes on request.  Directory sizes are not: they depend
//! on the directory's past.  systx's own directory and lost+found are left out.

use rustix::fs::{AtFlags, CWD, FileType, SeekFrom};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What of a tree is captured beyond the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// Modification times.
    pub times: bool,
    /// Where regular files have holes.
    pub holes: bool,
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    content: Content,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first name of the same file, if it has several.
    linked: Option<PathBuf>,
    nlink: u64,
    rdev: u64,
    mtime: Option<(i64, i64)>,
    holes: Option<Vec<(u64, u64)>>,
}

#[derive(Clone, PartialEq, Eq)]
enum Content {
    None,
    /// Of small files and links: shown when trees differ.
    Bytes(Vec<u8>),
    /// Of large ones.
    Hash(u64, u64),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Content::None => f.write_str("-"),
            Content::Bytes(b) => write!(f, "{:?}", String::from_utf8_lossy(b)),
            Content::Hash(a, b) => write!(f, "#{a:016x}{b:016x}"),
        }
    }
}

/// A directory tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<PathBuf, Entry>,
}

impl Tree {
    /// The tree below `root`, and `root` itself as the empty path.
    pub fn capture(root: impl AsRef<Path>) -> Tree {
        Tree::capture_with(root, Detail::default())
    }

    /// With more detail.
    pub fn capture_with(root: impl AsRef<Path>, detail: Detail) -> Tree {
        let mut walk = Walk { detail, entries: BTreeMap::new(), first_names: BTreeMap::new() };
        let root = root.as_ref();
        walk.add(root, PathBuf::new()).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
        Tree { entries: walk.entries }
    }

    /// Number of files, the root included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.entries.len() <= 1
    }

    /// All names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().map(PathBuf::as_path)
    }

    /// Without what the predicate names.
    #[must_use]
    pub fn without(mut self, drop: impl Fn(&Path) -> bool) -> Tree {
        self.entries.retain(|path, _| !drop(path));
        self
    }

    /// What differs, in words; empty if nothing does.
    pub fn differences(&self, other: &Tree) -> Vec<String> {
        let mut out = Vec::new();
        for (path, a) in &self.entries {
            match other.entries.get(path) {
                None => out.push(format!("only left:  {} ({})", path.display(), a.kind)),
                Some(b) if a != b => out.push(format!("{}: {}", path.display(), a.against(b))),
                Some(_) => {}
            }
        }
        for (path, b) in &other.entries {
            if !self.entries.contains_key(path) {
                out.push(format!("only right: {} ({})", path.display(), b.kind));
            }
        }
        out
    }

    /// Fails the test if there is any difference, and lists the first of them.
    #[track_caller]
    pub fn assert_same(&self, other: &Tree, what: &str) {
        let found = self.differences(other);
        let shown = found.iter().take(40).cloned().collect::<Vec<_>>().join("\n  ");
        assert!(found.is_empty(), "{what}: {} differences\n  {shown}", found.len());
    }
}

impl Entry {
    fn against(&self, other: &Entry) -> String {
        let mut parts = Vec::new();
        let mut say = |what: &str, a: String, b: String| {
            if a != b {
                parts.push(format!("{what} {a} / {b}"));
            }
        };
        say("type", self.kind.into(), other.kind.into());
        say("mode", format!("{:o}", self.mode), format!("{:o}", other.mode));
        say("owner", format!("{:?}", self.owner), format!("{:?}", other.owner));
        say("size", self.size.to_string(), other.size.to_string());
        say("content", shown(&self.content), shown(&other.content));
        say("xattrs", format!("{:?}", self.xattrs), format!("{:?}", other.xattrs));
        say("linked with", format!("{:?}", self.linked), format!("{:?}", other.linked));
        say("links", self.nlink.to_string(), other.nlink.to_string());
        say("device", format!("{:x}", self.rdev), format!("{:x}", other.rdev));
        say("mtime", format!("{:?}", self.mtime), format!("{:?}", other.mtime));
        say("data at", format!("{:?}", self.holes), format!("{:?}", other.holes));
        parts.join(", ")
    }
}

fn shown(content: &Content) -> String {
    let text = format!("{content:?}");
    if text.len() > 300 { text.chars().take(300).collect::<String>() + "…" } else { text }
}

type Inode = (u64, u64);

struct Walk {
    detail: Detail,
    entries: BTreeMap<PathBuf, Entry>,
    first_names: BTreeMap<Inode, PathBuf>,
}

impl Walk {
    /// Adds what is at `place` under the name `relative`.  Depth first in the order of names, so
    /// that the first name of a file is the same for equal trees.  Directories are entered by
    /// descriptor: a path may be longer than the kernel takes.
    fn add(&mut self, place: &Path, relative: PathBuf) -> std::io::Result<()> {
        let (mut entry, inode) = capture_one(place, self.detail)?;
        let is_dir = entry.kind == "directory";
        if !is_dir && entry.nlink > 1 {
            let first = self.first_names.entry(inode).or_insert_with(|| relative.clone());
            entry.linked = Some(first.clone());
        }
        self.entries.insert(relative.clone(), entry);
        if !is_dir {
            return Ok(());
        }
        let dir = fs::File::open(place)?;
        let place = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        let mut names = Vec::new();
        for entry in fs::read_dir(&place)? {
            names.push(entry?.file_name());
        }
        names.sort();
        let at_root = relative.as_os_str().is_empty();
        for name in names {
            if !(at_root && (name == ".systx" || name == "lost+found")) {
                self.add(&place.join(&name), relative.join(&name))?;
            }
        }
        Ok(())
    }
}

fn capture_one(path: &Path, detail: Detail) -> std::io::Result<(Entry, Inode)> {
    let meta = fs::symlink_metadata(path)?;
    let file_type = FileType::from_raw_mode(meta.mode());
    let kind = match file_type {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "char device",
        FileType::BlockDevice => "block device",
        FileType::Unknown => "unknown",
    };
    let is_device = kind.ends_with("device");
    let is_dir = kind == "directory";
    let content = match kind {
        "file" => file_content(path, meta.len())?,
        "symlink" => Content::Bytes(fs::read_link(path)?.into_os_string().into_vec()),
        _ => Content::None,
    };
    let entry = Entry {
        kind,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        size: if is_dir { 0 } else { meta.len() },
        content,
        xattrs: xattrs(path)?,
        linked: None,
        nlink: if is_dir { 0 } else { meta.nlink() },
        rdev: if is_device { meta.rdev() } else { 0 },
        mtime: (detail.times && !is_dir).then(|| (meta.mtime(), meta.mtime_nsec())),
        holes: (detail.holes && kind == "file").then(|| data_ranges(path, meta.len())),
    };
    Ok((entry, (meta.dev(), meta.ino())))
}

fn file_content(path: &Path, len: u64) -> std::io::Result<Content> {
    if len <= 4096 {
        return fs::read(path).map(Content::Bytes);
    }
    let mut file = fs::File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    let (mut a, mut b) = (0xcbf2_9ce4_8422_2325_u64, 0x9e37_79b9_7f4a_7c15_u64);
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(Content::Hash(a, b));
        }
        // Words, not bytes: the trees have many megabytes.
        for chunk in buffer[..n].chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let word = u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56;
            a = (a ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
            b = (b.rotate_left(7) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        }
    }
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut out = BTreeMap::new();
    let mut names = vec![0u8; 65536];
    let n = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(n) => n,
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(out),
        Err(e) => return Err(e.into()),
    };
    for name in names[..n].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 65536];
        let n = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(n);
        out.insert(name.to_vec(), value);
    }
    Ok(out)
}

/// The parts of a file that are not holes, in units of 4096 bytes.
fn data_ranges(path: &Path, len: u64) -> Vec<(u64, u64)> {
    let Ok(file) = fs::File::open(path) else { return Vec::new() };
    let mut out = Vec::new();
    let mut at = 0;
    while at < len {
        let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) else { break };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap_or(len);
        out.push((start / 4096, end.div_ceil(4096)));
        at = end.max(start + 1);
    }
    out
}

/// The birth time and inode of a file: to tell whether it is still the same one.
pub fn identity(path: &Path) -> (u64, i64, u32) {
    let flags = rustix::fs::StatxFlags::INO | rustix::fs::StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags).expect("statx");
    (stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
}

/// A path as JSON prints it.
pub fn json_path(value: &serde_json::Value) -> Option<PathBuf> {
    match value {
        serde_json::Value::String(s) => Some(PathBuf::from(s)),
        serde_json::Value::Array(bytes) => {
            let bytes = bytes.iter().map(|b| b.as_u64().map(|b| b as u8));
            Some(PathBuf::from(OsString::from_vec(bytes.collect::<Option<Vec<u8>>>()?)))
        }
        _ => None,
    }
}
