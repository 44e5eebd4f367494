//! What is never committed: patterns in gitignore(5) syntax, matched against absolute host paths.  A
//! pattern with a slash at its start or middle is rooted at `/`; one without matches at any depth; a
//! matched directory takes everything below it along; `!` brings back.

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

impl Patterns {
    /// Compiles.
    ///
    /// # Errors
    /// A pattern is not valid.
    pub fn compile(patterns: &[String]) -> Result<Patterns, Failure> {
        let mut builder = GitignoreBuilder::new("/");
        let invalid = |error: ignore::Error| {
            Failure::new(FailureKind::Invalid, format!("invalid pattern: {error}"))
                .hint("patterns have the syntax of gitignore(5)")
        };
        for pattern in patterns {
            builder.add_line(None, pattern).map_err(invalid)?;
        }
        Ok(Patterns { set: builder.build().map_err(invalid)? })
    }

    /// Whether changes of this absolute path are left out of the commit.
    pub fn drops(&self, path: &[u8]) -> bool {
        if self.set.is_empty() {
            return false;
        }
        let path = Path::new(OsStr::from_bytes(path));
        // A directory pattern (`target/`) must match the directory's own name too.
        self.set.matched_path_or_any_parents(path, false).is_ignore()
            || self.set.matched(path, true).is_ignore()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drops(patterns: &[&str], path: &str) -> bool {
        let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        Patterns::compile(&patterns).expect("valid").drops(path.as_bytes())
    }

    #[test]
    fn patterns_match_as_in_gitignore() {
        assert!(!drops(&[], "/a"));
        assert!(drops(&["*.o"], "/src/x.o"));
        assert!(!drops(&["*.o"], "/src/x.c"));
        assert!(drops(&["target/"], "/p/target/debug/x"));
        assert!(drops(&["target/"], "/p/target"));
        assert!(drops(&["/var/cache"], "/var/cache/apt/x"));
        assert!(!drops(&["/var/cache"], "/srv/var/cache/x"));
        assert!(!drops(&["*.o", "!keep.o"], "/keep.o"));
    }

    #[test]
    fn an_invalid_pattern_is_refused() {
        assert!(Patterns::compile(&["a[".into()]).is_err());
    }
}
