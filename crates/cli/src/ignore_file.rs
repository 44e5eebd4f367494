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
//! that it can take back (`!`) what those above say. A file counts only if it belongs to the user
//! or to root: otherwise whoever can write in a directory could make the user's commands work on
//! the originals. So does a symbolic link with that name, which would choose among root's files;
//! and what is read is what was looked at, not what has that name a moment later.

use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use systx_protocol::patterns;

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
        match open(&path) {
            Ok(Some(Found::Trusted(mut file))) => {
                let mut text = String::new();
                match file.read_to_string(&mut text) {
                    Ok(_) => parse(&text, dir, &mut ignored),
                    Err(e) => ignored.notes.push(format!("{} cannot be read: {e}", path.display())),
                }
            }
            Ok(Some(Found::Foreign)) => {
                ignored.notes.push(format!("{} belongs to someone else: not used", path.display()));
            }
            Ok(None) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => ignored.notes.push(format!("{} cannot be read: {e}", path.display())),
        }
    }
    ignored
}

enum Found {
    Trusted(File),
    Foreign,
}

/// The file with that name, looked at and open; `None` if that is no regular file.
fn open(path: &Path) -> Result<Option<Found>, Errno> {
    let named =
        openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    // A fifo with that name is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = if is_link(&named)? {
        if is_foreign(&named)? {
            return Ok(Some(Found::Foreign));
        }
        let target = OsString::from_vec(readlinkat(&named, c"", Vec::new())?.into_bytes());
        let target = path.parent().unwrap_or(Path::new("/")).join(target);
        openat(CWD, target, flags, Mode::empty())
    } else {
        openat(CWD, path, flags | OFlags::NOFOLLOW, Mode::empty())
    };
    let file = match file {
        // A socket, or what nobody may read.
        Err(Errno::ACCESS) if is_foreign(&named)? => return Ok(Some(Found::Foreign)),
        Err(Errno::NXIO) => return Ok(None),
        other => other?,
    };
    if !is(&file, rustix::fs::FileType::RegularFile)? {
        return Ok(None);
    }
    Ok(Some(if is_foreign(&file)? { Found::Foreign } else { Found::Trusted(file.into()) }))
}

fn is(file: &OwnedFd, kind: rustix::fs::FileType) -> Result<bool, Errno> {
    Ok(rustix::fs::FileType::from_raw_mode(fstat(file.as_fd())?.st_mode) == kind)
}

fn is_link(file: &OwnedFd) -> Result<bool, Errno> {
    is(file, rustix::fs::FileType::Symlink)
}

fn is_foreign(file: &OwnedFd) -> Result<bool, Errno> {
    let uid = fstat(file.as_fd())?.st_uid;
    Ok(uid != 0 && uid != rustix::process::geteuid().as_raw())
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

    #[test]
    fn files_of_others_do_not_count_and_neither_do_links_of_others_to_ones_own() {
        let dir = tempfile::tempdir().unwrap();
        let (file, theirs) = (dir.path().join("file"), dir.path().join("theirs"));
        let named = dir.path().join(NAME);
        std::fs::write(&file, "*.o\n").unwrap();
        std::fs::write(&theirs, "*.theirs\n").unwrap();
        let counts = || (read(dir.path()).no_commit.len(), read(dir.path()).notes.len());
        assert_eq!(counts(), (0, 0), "none");
        std::os::unix::fs::symlink("file", &named).unwrap();
        assert_eq!(counts(), (1, 0), "one's own link to one's own file");
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can give a file away");
            return;
        }
        std::os::unix::fs::lchown(&named, Some(12031), None).unwrap();
        assert_eq!(counts(), (0, 1), "another's link to one's own file");
        std::fs::remove_file(&named).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12031), None).unwrap();
        std::os::unix::fs::symlink("theirs", &named).unwrap();
        assert_eq!(counts(), (0, 1), "one's own link to another's file");
        std::fs::rename(&theirs, &named).unwrap();
        assert_eq!(counts(), (0, 1), "another's file");
        std::fs::remove_file(&named).unwrap();
        std::fs::create_dir(&named).unwrap();
        assert_eq!(counts(), (0, 0), "no file");
    }
}
