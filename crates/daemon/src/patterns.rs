//! What is never committed, and what others may append to: lines in gitignore(5) syntax.
//!
//! A line stands in a file (or on a command line given in a directory), and means paths below that
//! directory. The client makes it absolute, so that the daemon, which knows neither files nor
//! directories of the client, gets a list of patterns rooted at `/`: one with a slash at its start
//! or middle names a path, one without matches at any depth, a matched directory takes everything
//! below it along, and `!` brings back what no matched directory holds.

use crate::protocol::{Failure, FailureKind};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use systx_vfs::growing::MayGrow;

/// Compiled patterns.
#[derive(Clone, Debug)]
pub struct Patterns {
    set: Gitignore,
    /// All that can match is below one of these, which end in a slash.
    tops: Vec<Vec<u8>>,
}

impl Default for Patterns {
    fn default() -> Self {
        Patterns { set: Gitignore::empty(), tops: Vec::new() }
    }
}

/// The directory below which all paths are that match a pattern: it is before the first sign that
/// means another one.
fn top(pattern: &str) -> Vec<u8> {
    let plain = match pattern.find(['*', '?', '[', '{', '\\']) {
        Some(sign) => &pattern[..sign],
        // A pattern for directories ends in a slash, and names the directory before it.
        None => pattern.trim_end_matches('/'),
    };
    plain[..plain.rfind('/').map_or(0, |at| at + 1)].into()
}

impl MayGrow for Patterns {
    fn any_in(&self, dir: &[u8]) -> bool {
        let dir = [dir.strip_suffix(b"/").unwrap_or(dir), b"/"].concat();
        self.tops.iter().any(|top| dir.starts_with(top))
    }
    fn is_one(&self, path: &[u8]) -> bool {
        self.matches(path)
    }
}

impl Patterns {
    /// Compiles anchored patterns.
    ///
    /// # Errors
    /// One of them is not valid.
    pub fn compile(patterns: &[String]) -> Result<Patterns, Failure> {
        let invalid = |pattern: &str, why: &str| {
            Failure::new(FailureKind::Invalid, format!("invalid pattern `{pattern}`: {why}"))
                .hint("patterns have the syntax of gitignore(5)")
        };
        let mut builder = GitignoreBuilder::new("/");
        let mut tops = Vec::new();
        for pattern in patterns {
            let body = pattern.strip_prefix('!').unwrap_or(pattern);
            if !body.starts_with('/') || body.trim_matches('/').is_empty() {
                return Err(invalid(pattern, "not anchored"));
            }
            if !pattern.starts_with('!') {
                tops.push(top(body));
            }
            builder.add_line(None, pattern).map_err(|e| invalid(pattern, &e.to_string()))?;
        }
        let set = builder.build().map_err(|e| invalid("", &e.to_string()))?;
        tops.sort();
        tops.dedup();
        Ok(Patterns { set, tops })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Whether changes of this absolute path are left out of the commit.
    pub fn drops(&self, path: &[u8]) -> bool {
        self.matches(path)
    }

    /// Whether a pattern matches this absolute path, or a directory that it is in.
    pub fn matches(&self, path: &[u8]) -> bool {
        self.which(path).is_some()
    }

    /// The pattern by which [`Patterns::matches`], as it was compiled.
    pub fn which(&self, path: &[u8]) -> Option<&str> {
        if self.set.is_empty() {
            return None;
        }
        let path = Path::new(OsStr::from_bytes(path));
        // A pattern for directories (`target/`) also matches the directory's own name; and below a
        // matched directory nothing is brought back.
        let by = |p: &Path, is_dir| match self.set.matched(p, is_dir) {
            Match::Ignore(glob) => Some(glob.original()),
            Match::None | Match::Whitelist(_) => None,
        };
        let mut dirs = path.ancestors().filter(|p| *p != Path::new("/"));
        by(path, false).or_else(|| dirs.find_map(|p| by(p, true)))
    }
}

#[cfg(test)]
mod tests;
