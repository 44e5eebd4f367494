//! What is never committed: lines in gitignore(5) syntax.
//!
//! A line stands in a file (or on a command line given in a directory), and means paths below that
//! directory.  [`anchor`] makes it absolute, so that the daemon, which knows neither files nor
//! directories of the client, gets a list of patterns rooted at `/`: one with a slash at its start or
//! middle names a path, one without matches at any depth, a matched directory takes everything below
//! it along, and `!` brings back what no matched directory holds.

use crate::protocol::{Failure, FailureKind};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Compiled patterns.
#[derive(Clone, Debug)]
pub struct Patterns {
    set: Gitignore,
}

impl Default for Patterns {
    fn default() -> Self {
        Patterns { set: Gitignore::empty() }
    }
}

/// Makes a line absolute; `None` for blank lines and comments.  `everywhere`: a name without a slash
/// is meant at any depth of the whole root, not only below `dir` (options of the command line).
pub fn anchor(line: &str, dir: &Path, everywhere: bool) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let (not, body) = match line.strip_prefix('!') {
        Some(body) => ("!", body),
        None => ("", line),
    };
    // Trailing blanks do not count unless the last is quoted.
    let bare = body.trim_end_matches(' ');
    let quoted = bare.len() < body.len() && bare.ends_with('\\');
    let body = if quoted { &body[..=bare.len()] } else { bare };
    let path = body.trim_start_matches('/');
    if path.is_empty() {
        return None;
    }
    let rooted = body.trim_end_matches('/').contains('/');
    let mut out = String::from(not);
    if rooted || !everywhere {
        for c in dir.to_string_lossy().trim_end_matches('/').chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
    }
    out.push_str(if rooted { "/" } else { "/**/" });
    out.push_str(path);
    Some(out)
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
        for pattern in patterns {
            let body = pattern.strip_prefix('!').unwrap_or(pattern);
            if !body.starts_with('/') || body.trim_matches('/').is_empty() {
                return Err(invalid(pattern, "not anchored"));
            }
            builder.add_line(None, pattern).map_err(|e| invalid(pattern, &e.to_string()))?;
        }
        let set = builder.build().map_err(|e| invalid("", &e.to_string()))?;
        Ok(Patterns { set })
    }

    /// Whether changes of this absolute path are left out of the commit.
    pub fn drops(&self, path: &[u8]) -> bool {
        if self.set.is_empty() {
            return false;
        }
        let path = Path::new(OsStr::from_bytes(path));
        // A pattern for directories (`target/`) also matches the directory's own name; and below a
        // matched directory nothing is brought back.
        let holds = |p: &Path, is_dir| self.set.matched(p, is_dir).is_ignore();
        holds(path, false) || path.ancestors().any(|p| p != Path::new("/") && holds(p, true))
    }
}

#[cfg(test)]
mod tests;
