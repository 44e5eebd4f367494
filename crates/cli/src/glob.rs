//! Expands globs against the file system, for paths that are not isolated.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What an absolute glob names now; sorted, links resolved, each once.  `*`, `?` and `[…]` do not
/// match a slash, nor a dot at the start of a name.
pub fn expand(glob: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for segment in glob.split('/').filter(|s| !s.is_empty()) {
        found = found.iter().flat_map(|dir| step(dir, segment)).collect();
    }
    let mut real: Vec<PathBuf> =
        found.iter().filter_map(|p| std::fs::canonicalize(p).ok()).collect();
    real.sort();
    real.dedup();
    real
}

fn step(dir: &Path, segment: &str) -> Vec<PathBuf> {
    if !segment.contains(['*', '?', '[', '\\']) {
        let path = dir.join(segment);
        return if path.symlink_metadata().is_ok() { vec![path] } else { Vec::new() };
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let wanted = |name: &OsString| {
        let name = name.as_bytes();
        let hidden = name.first() == Some(&b'.') && !segment.starts_with('.');
        !hidden && matches(segment.as_bytes(), name)
    };
    entries.flatten().map(|e| e.file_name()).filter(wanted).map(|n| dir.join(n)).collect()
}

/// Quotes a path, so that as a glob it names only itself.
pub fn quote(path: &Path) -> String {
    let mut out = String::new();
    for c in path.as_os_str().to_string_lossy().chars() {
        if matches!(c, '*' | '?' | '[' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// One name against one segment.
fn matches(glob: &[u8], name: &[u8]) -> bool {
    let (mut g, mut n) = (0, 0);
    // Where to go on after the last star took one byte more.
    let mut again: Option<(usize, usize)> = None;
    loop {
        if g == glob.len() && n == name.len() {
            return true;
        }
        if glob.get(g) == Some(&b'*') {
            again = Some((g + 1, n));
            g += 1;
            continue;
        }
        match (name.get(n).and_then(|byte| one(&glob[g..], *byte)), again) {
            (Some(used), _) => {
                g += used;
                n += 1;
            }
            (None, Some((star, taken))) if taken < name.len() => {
                again = Some((star, taken + 1));
                g = star;
                n = taken + 1;
            }
            (None, _) => return false,
        }
    }
}

/// Whether the first item of a glob, which is not a star, matches a byte: how long the item is.
fn one(glob: &[u8], byte: u8) -> Option<usize> {
    match *glob.first()? {
        b'?' => Some(1),
        b'\\' if glob.len() > 1 => (glob[1] == byte).then_some(2),
        b'[' => match class(glob, byte) {
            Some((matched, used)) => matched.then_some(used),
            // Not closed: an ordinary character.
            None => (byte == b'[').then_some(1),
        },
        c => (c == byte).then_some(1),
    }
}

/// `[abc]`, `[a-z]`, `[!…]`, with `]` as an ordinary character right after the start.
fn class(glob: &[u8], byte: u8) -> Option<(bool, usize)> {
    let negated = matches!(glob.get(1), Some(b'!' | b'^'));
    let start = if negated { 2 } else { 1 };
    let mut at = start;
    let mut matched = false;
    loop {
        let low = *glob.get(at)?;
        if low == b']' && at > start {
            return Some((matched != negated, at + 1));
        }
        let mut high = low;
        if glob.get(at + 1) == Some(&b'-') && !matches!(glob.get(at + 2), None | Some(b']')) {
            high = *glob.get(at + 2)?;
            at += 2;
        }
        matched |= (low..=high).contains(&byte);
        at += 1;
    }
}

/// A glob that a user gave, made absolute.
pub fn absolute(glob: &OsStr, cwd: &Path) -> String {
    let text = glob.to_string_lossy();
    if text.starts_with('/') { text.into_owned() } else { format!("{}/{text}", quote(cwd)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_match_as_in_a_shell() {
        let m = |g: &str, n: &str| matches(g.as_bytes(), n.as_bytes());
        assert!(m("*.o", "a.o") && m("a?c", "abc") && m("[a-c]*", "bx") && m("\\*", "*"));
        assert!(!m("*.o", "a.oo") && !m("[!a]", "a") && !m("a", "ab") && m("[x", "[x"));
        assert!(!m(&"*a".repeat(40), &"a".repeat(39)));
    }

    #[test]
    fn what_exists_is_found() {
        let dir = std::env::temp_dir().join(format!("systx-glob-[{}]", std::process::id()));
        std::fs::create_dir_all(dir.join("x/.hidden")).unwrap();
        std::fs::write(dir.join("x/one.sock"), "").unwrap();
        std::os::unix::fs::symlink("one.sock", dir.join("x/two.sock")).unwrap();
        let found = expand(&absolute(OsStr::new("?/*.sock"), &dir));
        let none = expand(&absolute(OsStr::new("x/*/y"), &dir));
        let all = expand(&absolute(OsStr::new("x/*"), &dir));
        let real = std::fs::canonicalize(dir.join("x/one.sock")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        // The link leads to the same file.
        assert_eq!(found, [real]);
        assert!(none.is_empty());
        assert_eq!(all.len(), 1);
    }
}
