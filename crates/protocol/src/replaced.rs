//! Small files that are replaced as a whole: a reader, and a start after a crash, find the old
//! content or the new one.

use std::fs::{File, Permissions};
use std::io::{Error, Result, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a file with this mode under a name of its own and renames it; durable on return. Threads
/// and processes may do it at once: the last one wins.
///
/// # Errors
/// Of the file system; then the old content is there.
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let here = || Error::other(format!("{} is in no directory", path.display()));
    let (dir, name) = path.parent().zip(path.file_name()).ok_or_else(here)?;
    // A name that others use at the same time would be renamed by whoever comes first.
    let mut new = tempfile::Builder::new().prefix(name).suffix(".part").tempfile_in(dir)?;
    new.as_file().set_permissions(Permissions::from_mode(mode))?;
    new.write_all(bytes)?;
    new.as_file().sync_all()?;
    new.persist(path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_may_replace_it_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for n in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..200 {
                        replace(path, &[n; 100], 0o640).unwrap();
                        let found = std::fs::read(path).unwrap();
                        assert!(found.len() == 100 && found.iter().all(|b| *b == found[0]));
                    }
                });
            }
        });
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
    }
}
