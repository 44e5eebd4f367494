//! `.systxignore`: what a directory's owner wants kept out of transactions.
//!
//! ```text
//! # gitignore syntax; relative to the directory of this file
//! *.pyc                 # not committed: changes are private to the run and then dropped
//! /target
//!
//! [passthrough]         # not isolated: the command works on the originals
//! /.cache
//!
//! [no-commit]           # back to the first meaning
//! *.swp
//!
//! [append-merge]        # others may append to it meanwhile: see SEMANTICS.md
//! /logs/*.log
//! ```
//!
//! The files of the working directory and of all directories above it count, the nearest last, so
//! that it can take back (`!`) what those above say.  A file counts only if it belongs to the user
//! or to root: otherwise whoever can write in a directory could make the user's commands work on the
//! originals.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use systx_daemon::patterns;

/// Name of the file.
pub const NAME: &str = ".systxignore";

/// What the files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// Anchored patterns of what is not committed.
    pub no_commit: Vec<String>,
    /// Absolute globs of what is not isolated.
    pub passthrough: Vec<String>,
    /// Anchored patterns of files that others may append to, and the file that each is from.
    pub merge: Vec<(String, PathBuf)>,
    /// What could not be used.
    pub notes: Vec<String>,
    /// The file that each pattern is from: of `no_commit`, then of `passthrough`.
    pub from: (Vec<PathBuf>, Vec<PathBuf>),
}

/// Reads the files that count for a command in `cwd`.
pub fn read(cwd: &Path) -> Ignored {
    let mut ignored = Ignored::default();
    let mut dirs: Vec<&Path> = cwd.ancestors().collect();
    dirs.reverse();
    for dir in dirs {
        let path: PathBuf = dir.join(NAME);
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        if !meta.is_file() {
            continue;
        }
        if meta.uid() != 0 && meta.uid() != rustix::process::geteuid().as_raw() {
            ignored.notes.push(format!("{} belongs to someone else: not used", path.display()));
            continue;
        }
        match std::fs::read_to_string(&path) {
            Ok(text) => parse(&text, dir, &mut ignored),
            Err(e) => ignored.notes.push(format!("{} cannot be read: {e}", path.display())),
        }
    }
    ignored
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    NoCommit,
    Passthrough,
    AppendMerge,
}

fn parse(text: &str, dir: &Path, ignored: &mut Ignored) {
    let mut section = Section::NoCommit;
    for line in text.lines() {
        match line.trim() {
            "[passthrough]" => section = Section::Passthrough,
            "[no-commit]" => section = Section::NoCommit,
            "[append-merge]" => section = Section::AppendMerge,
            _ => {
                let Some(pattern) = patterns::anchor(line, dir, false) else { continue };
                if section == Section::AppendMerge {
                    ignored.merge.push((pattern, dir.join(NAME)));
                } else if section == Section::NoCommit {
                    ignored.no_commit.push(pattern);
                    ignored.from.0.push(dir.join(NAME));
                } else if pattern.starts_with('!') || pattern.contains("/**/") {
                    ignored.notes.push(format!(
                        "{}: `{}` cannot be used under [passthrough]: name a path, as in /{}",
                        dir.join(NAME).display(),
                        line.trim(),
                        line.trim().trim_start_matches('!')
                    ));
                } else {
                    ignored.passthrough.push(pattern);
                    ignored.from.1.push(dir.join(NAME));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_with_meanings_of_their_own() {
        let text = "*.o\n# c\n\n[passthrough]\n/.cache\n!x\n*.deep\n[no-commit]\n/out\n\
                    [append-merge]\n/a.log\n";
        let mut i = Ignored::default();
        parse(text, Path::new("/w"), &mut i);
        assert_eq!(i.no_commit, ["/w/**/*.o", "/w/out"]);
        assert_eq!(i.passthrough, ["/w/.cache"]);
        assert_eq!(i.merge, [("/w/a.log".to_owned(), PathBuf::from("/w/.systxignore"))]);
        assert_eq!(i.notes.len(), 2);
    }
}
