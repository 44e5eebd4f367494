//! Changes as text: name-status, `--stat`, and unified diffs with git's extended headers, which
//! `git apply` takes (`-p1 --directory=/ --unsafe-paths`: the paths are the real ones).
//!
//! What git has no words for (directories, owners, times, extended attributes, special files)
//! stands in lines that begin with `#`, before a `diff --git` line, where git overlooks it.

use crate::output;
use crate::problem::Problem;
use similar::udiff::UnifiedDiffHunk;
use similar::{ChangeTag, TextDiff};
use std::fmt::Write as _;
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::{Change, ChangeKind, Content, Side, Target, Version};

/// Files longer than this are not compared line by line.
const LIMIT: u64 = 16 << 20;
/// What a comparison may take; beyond, it gets coarser.
const DIFF_TIME: std::time::Duration = std::time::Duration::from_secs(5);

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

/// Where contents come from.
pub struct Contents<'a> {
    client: Option<&'a mut Client>,
    target: Option<Target>,
}

impl<'a> Contents<'a> {
    /// From the daemon.
    pub fn new(client: &'a mut Client, target: Target) -> Self {
        Contents { client: Some(client), target: Some(target) }
    }

    fn get(&mut self, change: &Change, version: Version) -> Result<Content, Problem> {
        let (side, path) = match version {
            Version::Old => (&change.old, change.from.as_ref().unwrap_or(&change.path)),
            Version::New => (&change.new, &change.path),
        };
        let Some(side) = side else { return Ok(Content::default()) };
        match side.mode & S_IFMT {
            S_IFLNK => {
                let bytes = side.target.clone().map(|t| t.0).unwrap_or_default();
                Ok(Content { total: bytes.len() as u64, bytes, unknown: false })
            }
            S_IFREG if side.size == 0 => Ok(Content::default()),
            S_IFREG => match (&mut self.client, &self.target) {
                // Asked for by the path under which the change is listed, on both sides.
                (Some(client), Some(target)) => {
                    let _ = path;
                    let (target, path) = (target.clone(), change.path.clone());
                    let call = call::Content { target, path, version, limit: LIMIT };
                    Ok(client.content(&call)?)
                }
                _ => Ok(Content { unknown: true, ..Content::default() }),
            },
            _ => Ok(Content::default()),
        }
    }
}

/// `M`, `A`, …, as git has them.
pub fn letter(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Added => 'A',
        ChangeKind::Deleted => 'D',
        ChangeKind::Renamed => 'R',
        ChangeKind::Retyped => 'T',
        ChangeKind::Modified | ChangeKind::Attributes => 'M',
    }
}

/// A letter and a path a line; `nul`: fields and lines end with NUL and nothing is quoted.
pub fn name_status(changes: &[Change], nul: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let separator = if nul { b'\0' } else { b'\t' };
    for change in changes {
        out.push(letter(change.kind) as u8);
        out.push(separator);
        if let Some(from) = change.from.as_ref().filter(|_| change.kind == ChangeKind::Renamed) {
            out.extend(name(&from.0, nul));
            out.push(separator);
        }
        out.extend(name(&change.path.0, nul));
        if change.dropped && !nul {
            out.extend(b"\t(excluded: not committed)");
        }
        out.push(if nul { b'\0' } else { b'\n' });
    }
    out
}

/// A path a line.
pub fn name_only(changes: &[Change], nul: bool) -> Vec<u8> {
    let end = if nul { b'\0' } else { b'\n' };
    changes.iter().flat_map(|c| name(&c.path.0, nul).into_iter().chain([end])).collect()
}

fn name(path: &[u8], raw: bool) -> Vec<u8> {
    if raw { path.to_vec() } else { quote(path).into_bytes() }
}

/// As git: in double quotes with C escapes if there is anything unusual.
fn quote(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.chars().any(|c| c.is_control() || c == '"' || c == '\\') => {
            return text.to_owned();
        }
        _ => {}
    }
    let mut out = String::from("\"");
    for b in path {
        match b {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(*b as char);
            }
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            0x20..=0x7e => out.push(*b as char),
            _ => {
                let _ = write!(out, "\\{b:03o}");
            }
        }
    }
    out.push('"');
    out
}

/// What kind of thing differs how.
enum Body {
    /// The same content.
    Same,
    /// Not text, or too long.
    Binary { old: u64, new: u64 },
    /// Lines.
    Text { old: Vec<u8>, new: Vec<u8> },
    /// One side is no longer known.
    Unknown,
}

fn body(change: &Change, contents: &mut Contents<'_>) -> Result<Body, Problem> {
    if !change.content && change.kind != ChangeKind::Added && change.kind != ChangeKind::Deleted {
        return Ok(Body::Same);
    }
    let total = |side: &Option<Side>| side.as_ref().map_or(0, |s| s.size);
    if total(&change.old).max(total(&change.new)) > LIMIT {
        return Ok(Body::Binary { old: total(&change.old), new: total(&change.new) });
    }
    let old = contents.get(change, Version::Old)?;
    let new = contents.get(change, Version::New)?;
    if old.unknown || new.unknown {
        return Ok(Body::Unknown);
    }
    // As git: a NUL among the first bytes.
    let binary = |bytes: &[u8]| bytes.iter().take(8000).any(|b| *b == 0);
    if binary(&old.bytes) || binary(&new.bytes) {
        return Ok(Body::Binary { old: old.total, new: new.total });
    }
    if old.bytes == new.bytes {
        return Ok(Body::Same);
    }
    Ok(Body::Text { old: old.bytes, new: new.bytes })
}

/// Compares by lines as git and patch(1) count them, which end with a line feed: a carriage return
/// is a byte like any other.
fn compared<'t, R>(
    old: &'t [u8],
    new: &'t [u8],
    look: impl FnOnce(&TextDiff<'t, 't, '_, [u8]>) -> R,
) -> R {
    let ends = |byte: &u8| *byte == b'\n';
    let old: Vec<&[u8]> = old.split_inclusive(ends).collect();
    let new: Vec<&[u8]> = new.split_inclusive(ends).collect();
    look(&TextDiff::configure().timeout(DIFF_TIME).diff_slices(&old, &new))
}

fn git_mode(side: &Side) -> Option<String> {
    match side.mode & S_IFMT {
        // git knows two modes of files; the patch says the whole truth where it differs.
        S_IFREG => Some(format!("100{:03o}", side.mode & 0o777)),
        S_IFLNK => Some("120000".into()),
        _ => None,
    }
}

fn kind_of(mode: u32) -> &'static str {
    match mode & S_IFMT {
        S_IFREG => "file",
        S_IFDIR => "directory",
        S_IFLNK => "symbolic link",
        0o010_000 => "fifo",
        0o140_000 => "socket",
        0o020_000 => "character device",
        0o060_000 => "block device",
        _ => "object",
    }
}

/// The same, of which device.
fn device(side: &Side) -> String {
    let kind = kind_of(side.mode);
    let (major, minor) = (rustix::fs::major(side.rdev), rustix::fs::minor(side.rdev));
    match side.mode & S_IFMT {
        0o020_000 | 0o060_000 => format!("{kind} {major}:{minor}"),
        _ => kind.to_owned(),
    }
}

/// One change as a unified diff.
///
/// # Errors
/// Content cannot be had.
pub fn unified(change: &Change, contents: &mut Contents<'_>) -> Result<Vec<u8>, Problem> {
    let mut out = remarks(change).into_bytes();
    let in_git = |side: &Option<Side>| side.as_ref().and_then(git_mode);
    let (old_mode, new_mode) = (in_git(&change.old), in_git(&change.new));
    if old_mode.is_none() && new_mode.is_none() {
        return Ok(out);
    }
    // git changes a type by removing and making.
    if change.kind == ChangeKind::Retyped {
        let gone = Change { kind: ChangeKind::Deleted, new: None, content: true, ..change.clone() };
        let made = Change {
            kind: ChangeKind::Added,
            old: None,
            from: None,
            content: true,
            ..change.clone()
        };
        for (part, mode) in [(gone, &old_mode), (made, &new_mode)] {
            if mode.is_some() {
                out.extend(unified_part(&part, mode.as_ref(), mode.as_ref(), contents)?);
            }
        }
        return Ok(out);
    }
    out.extend(unified_part(change, old_mode.as_ref(), new_mode.as_ref(), contents)?);
    Ok(out)
}

fn unified_part(
    change: &Change,
    old_mode: Option<&String>,
    new_mode: Option<&String>,
    contents: &mut Contents<'_>,
) -> Result<Vec<u8>, Problem> {
    let body = body(change, contents)?;
    let from = change.from.as_ref().unwrap_or(&change.path);
    let renamed = change.kind == ChangeKind::Renamed;
    let mut head = String::new();
    match change.kind {
        ChangeKind::Added => {
            let _ = writeln!(head, "new file mode {}", new_mode.map_or("100644", |m| m));
        }
        ChangeKind::Deleted => {
            let _ = writeln!(head, "deleted file mode {}", old_mode.map_or("100644", |m| m));
        }
        _ => {
            if let (Some(old), Some(new)) = (old_mode, new_mode)
                && old != new
            {
                let _ = writeln!(head, "old mode {old}\nnew mode {new}");
            }
        }
    }
    if renamed {
        let index = similarity(&body);
        let (old, new) = (git_name(&from.0), git_name(&change.path.0));
        let _ = writeln!(head, "similarity index {index}%\nrename from {old}\nrename to {new}");
    }
    let lines = lines(change, &from.0, &body);
    if head.is_empty() && lines.is_empty() {
        return Ok(Vec::new());
    }
    let (a, b) = (side_name("a", &from.0), side_name("b", &change.path.0));
    let mut out = format!("diff --git {a} {b}\n{head}").into_bytes();
    out.extend(lines);
    Ok(out)
}

/// In rename lines git has no leading slash (it strips nothing there).
fn git_name(path: &[u8]) -> String {
    quote(path.strip_prefix(b"/").unwrap_or(path))
}

fn side_name(side: &str, path: &[u8]) -> String {
    let mut name = side.as_bytes().to_vec();
    name.extend_from_slice(path);
    quote(&name)
}

fn similarity(body: &Body) -> u32 {
    match body {
        Body::Same => 100,
        Body::Text { old, new } => (compared(old, new, |diff| diff.ratio()) * 100.0) as u32,
        Body::Binary { .. } | Body::Unknown => 50,
    }
}

fn lines(change: &Change, from: &[u8], body: &Body) -> Vec<u8> {
    let null = || "/dev/null".to_owned();
    let a = if change.old.is_none() { null() } else { side_name("a", from) };
    let b = if change.new.is_none() { null() } else { side_name("b", &change.path.0) };
    match body {
        Body::Same => Vec::new(),
        Body::Unknown => b"# the content is no longer known\n".to_vec(),
        Body::Binary { old, new } => {
            format!("Binary files {a} and {b} differ\n# {old} -> {new} bytes\n").into_bytes()
        }
        Body::Text { old, new } => {
            let mut out = format!("--- {a}\n+++ {b}\n").into_bytes();
            compared(old, new, |diff| {
                diff.unified_diff().iter_hunks().for_each(|h| hunk(&h, &mut out))
            });
            out
        }
    }
}

fn hunk<'t>(hunk: &UnifiedDiffHunk<'_, 't, 't, '_, [u8]>, out: &mut Vec<u8>) {
    out.extend(format!("{}\n", hunk.header()).bytes());
    for change in hunk.iter_changes() {
        out.extend(change.tag().to_string().bytes());
        out.extend(change.value());
        if !change.value().ends_with(b"\n") {
            out.extend(b"\n\\ No newline at end of file\n");
        }
    }
}

/// What git has no words for.
fn remarks(change: &Change) -> String {
    let mut out = String::new();
    let path = quote(&change.path.0);
    let mut remark = |text: String| {
        let _ = writeln!(out, "# {path}: {text}");
    };
    if change.dropped {
        remark("excluded, will not be committed".into());
    }
    match (&change.old, &change.new) {
        (None, Some(new)) => {
            let special = git_mode(new).is_some() && new.mode & 0o7000 != 0;
            let made = match new.mode & S_IFMT {
                S_IFREG if special => Some(format!("mode {:04o}", new.mode & 0o7777)),
                S_IFREG | S_IFLNK => None,
                _ => Some(format!("new {} (mode {:04o})", device(new), new.mode & 0o7777)),
            };
            made.into_iter().for_each(&mut remark);
            let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
            if (new.uid, new.gid) != own {
                remark(format!("owner {}:{}", new.uid, new.gid));
            }
        }
        (Some(old), None) if git_mode(old).is_none() => {
            remark(format!("deleted {}", kind_of(old.mode)));
        }
        (Some(old), Some(new)) => {
            if change.kind == ChangeKind::Retyped {
                remark(format!("{} -> {}", kind_of(old.mode), kind_of(new.mode)));
            }
            if let Some(from) = &change.from
                && git_mode(new).is_none()
            {
                remark(format!("{} renamed from {}", kind_of(new.mode), quote(&from.0)));
            }
            let special = (old.mode | new.mode) & 0o7000 != 0;
            if old.mode != new.mode && (git_mode(new).is_none() || special) {
                remark(format!("mode {:04o} -> {:04o}", old.mode & 0o7777, new.mode & 0o7777));
            }
            if (old.uid, old.gid) != (new.uid, new.gid) {
                remark(format!("owner {}:{} -> {}:{}", old.uid, old.gid, new.uid, new.gid));
            }
            let only_time = change.kind == ChangeKind::Attributes && change.xattrs.is_empty();
            if only_time && old.mtime != new.mtime {
                let (before, after) = (output::time(old.mtime), output::time(new.mtime));
                remark(format!("modification time {before} -> {after}"));
            }
        }
        _ => {}
    }
    for xattr in &change.xattrs {
        remark(format!("extended attribute {} differs", quote(&xattr.0)));
    }
    out
}

/// Paths with the number of changed lines, and a last line with the sum.
///
/// # Errors
/// Content cannot be had.
pub fn stat(changes: &[Change], contents: &mut Contents<'_>) -> Result<Vec<u8>, Problem> {
    const BAR: usize = 40;
    let mut rows: Vec<(String, Row)> = Vec::new();
    for change in changes {
        let name = match &change.from {
            Some(from) if change.kind == ChangeKind::Renamed => {
                format!("{} => {}", quote(&from.0), quote(&change.path.0))
            }
            _ => quote(&change.path.0),
        };
        rows.push((name, row(change, contents)?));
    }
    let width = rows.iter().map(|(n, _)| n.chars().count()).max().unwrap_or(0);
    let most = rows.iter().map(|(_, r)| r.plus + r.minus).max().unwrap_or(0).max(1);
    let mut out = String::new();
    let (mut plus, mut minus) = (0, 0);
    for (name, row) in &rows {
        plus += row.plus;
        minus += row.minus;
        let scale = |n: usize| if most <= BAR { n } else { (n * BAR).div_ceil(most) };
        let pad = width - name.chars().count();
        let what = match &row.words {
            Some(words) => words.clone(),
            None => format!(
                "{} {}{}",
                row.plus + row.minus,
                "+".repeat(scale(row.plus)),
                "-".repeat(scale(row.minus))
            ),
        };
        let _ = writeln!(out, " {name}{} | {what}", " ".repeat(pad));
    }
    let s = if rows.len() == 1 { "" } else { "s" };
    let _ = writeln!(out, " {} path{s} changed, +{plus} -{minus} lines", rows.len());
    Ok(out.into_bytes())
}

struct Row {
    plus: usize,
    minus: usize,
    words: Option<String>,
}

fn row(change: &Change, contents: &mut Contents<'_>) -> Result<Row, Problem> {
    let words = |text: String| Row { plus: 0, minus: 0, words: Some(text) };
    let special = |side: &Option<Side>| side.as_ref().is_some_and(|s| git_mode(s).is_none());
    if special(&change.old) || special(&change.new) {
        let mode = change.new.as_ref().or(change.old.as_ref()).map_or(0, |s| s.mode);
        return Ok(words(kind_of(mode).into()));
    }
    Ok(match body(change, contents)? {
        Body::Same => words("0".into()),
        Body::Unknown => words("?".into()),
        Body::Binary { old, new } => words(format!("Bin {old} -> {new} bytes")),
        Body::Text { old, new } => {
            let (mut plus, mut minus) = (0, 0);
            compared(&old, &new, |diff| {
                for change in diff.iter_all_changes() {
                    match change.tag() {
                        ChangeTag::Insert => plus += 1,
                        ChangeTag::Delete => minus += 1,
                        ChangeTag::Equal => {}
                    }
                }
            });
            Row { plus, minus, words: None }
        }
    })
}

#[cfg(test)]
mod tests;
