//! Expands globs against the file system, for paths that are not isolated.

use globset::{GlobBuilder, GlobMatcher};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What an absolute glob names now; sorted, links resolved, each once.  `*`, `?` and `[…]` do not
/// match a slash, nor a dot at the start of a name; `{a,b}` is one of several.
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
    if !segment.contains(['*', '?', '[', '{', '\\']) {
        let path = dir.join(segment);
        return if path.symlink_metadata().is_ok() { vec![path] } else { Vec::new() };
    }
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let Some(matcher) = matcher(segment) else { return Vec::new() };
    let wanted = |name: &OsString| {
        let hidden = name.as_bytes().first() == Some(&b'.') && !segment.starts_with('.');
        !hidden && matcher.is_match(name)
    };
    entries.flatten().map(|e| e.file_name()).filter(wanted).map(|n| dir.join(n)).collect()
}

/// Quotes a path, so that as a glob it names only itself.
pub fn quote(path: &Path) -> String {
    let mut out = String::new();
    for c in path.as_os_str().to_string_lossy().chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A segment as a matcher of names; one that is no valid glob names only itself, as in a shell.
fn matcher(segment: &str) -> Option<GlobMatcher> {
    let glob = |text: &str| {
        let built = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
        built.ok().map(|glob| glob.compile_matcher())
    };
    glob(segment).or_else(|| glob(&quote(Path::new(segment))))
}

/// A path that a user gave, perhaps with signs of a glob: absolute, and as the kernel knows it,
/// without symbolic links as far as it is plain.
pub fn real(glob: &str, cwd: &Path) -> String {
    let text = absolute(OsStr::new(glob), cwd);
    let plain = text.find(['*', '?', '[', '{', '\\']).unwrap_or(text.trim_end_matches('/').len());
    let Some(slash) = text[..plain].rfind('/').filter(|at| *at > 0) else { return text };
    match std::fs::canonicalize(&text[..slash]) {
        Ok(dir) => format!("{}{}", quote(&dir), &text[slash..]),
        Err(_) => text,
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
        let m = |g: &str, n: &str| matcher(g).is_some_and(|m| m.is_match(n));
        assert!(m("*.o", "a.o") && m("a?c", "abc") && m("[a-c]*", "bx") && m("\\*", "*"));
        assert!(!m("*.o", "a.oo") && !m("[!a]", "a") && !m("a", "ab") && m("[x", "[x"));
        assert!(!m(&"*a".repeat(40), &"a".repeat(39)));
    }

    #[test]
    fn a_path_is_what_the_kernel_calls_it() {
        let dir = std::fs::canonicalize(std::env::temp_dir()).unwrap();
        let dir = dir.join(format!("systx-real-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("a[1]/b")).unwrap();
        std::os::unix::fs::symlink("a[1]", dir.join("link")).unwrap();
        let base = dir.display();
        let at = |glob: &str| real(glob, &dir);
        assert_eq!(at(&format!("{base}/link/x*")), format!("{base}/a\\[1\\]/x*"));
        assert_eq!(at(&format!("{base}/link/b/")), format!("{base}/a\\[1\\]/b/"));
        assert_eq!(at("nowhere/*"), format!("{base}/nowhere/*"));
        assert_eq!(at("/*"), "/*");
        std::fs::remove_dir_all(&dir).unwrap();
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
