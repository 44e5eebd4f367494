//! The paths of a scope, as the daemon wants them: from the guarded directory on, without symbolic
//! links.

use crate::options::Declared;
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use systx_abi as abi;

/// Most symbolic links that the last name of a path leads over.
const LINKS: usize = 40;

/// What is told of a scope, for a guarded directory mounted at `at`; also the way to where the
/// thread works, which it looks up as it begins.
///
/// `EXDEV`: not below the directory; `E2BIG`: too many paths; those of looking them up.
pub fn told(declared: &[Declared<'_>], at: &Path) -> Result<Vec<abi::Scope>, Errno> {
    let at = real(at)?;
    let mut paths = Vec::new();
    for Declared { path, write } in declared {
        let how = if *write { abi::scope::WRITE } else { abi::scope::READ };
        let mut path = placed(path)?;
        for link in 0.. {
            let target = rustix::fs::readlink(&path, Vec::new());
            let how = if target.is_ok() { abi::scope::READ } else { how };
            paths.push((below(&path, &at)?, how));
            match target {
                Ok(_) if link == LINKS => return Err(Errno::LOOP),
                Ok(target) => {
                    let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
                    path = placed(&path.parent().unwrap_or(&at).join(target))?;
                }
                Err(_) => break,
            }
        }
    }
    if let Some(here) = crate::seat::here().and_then(|here| real(&here).ok())
        && let Ok(way) = below(&here, &at)
    {
        paths.push((way, abi::scope::WAY));
    }
    if paths.len() > abi::SCOPE_MAX {
        return Err(Errno::TOOBIG);
    }
    let tell = |(n, (path, how)): (usize, (Vec<u8>, u32))| {
        let mut told = abi::Scope {
            how,
            first: u32::from(n == 0),
            path_len: path.len() as u32,
            reserved: 0,
            path: [0; abi::SCOPE_PATH_MAX],
        };
        told.path.get_mut(..path.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&path);
        Ok(told)
    };
    paths.into_iter().enumerate().map(tell).collect()
}

fn real(path: &Path) -> Result<PathBuf, Errno> {
    let real = std::fs::canonicalize(path);
    real.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// A path whose last name alone may be a symbolic link, or nothing. Of names on the way that are
/// not there, the first is what counts.
fn placed(path: &Path) -> Result<PathBuf, Errno> {
    let last = match path.components().next_back() {
        Some(Component::Normal(last)) => last,
        Some(_) => return real(path),
        None => return Err(Errno::NOENT),
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    match real(dir) {
        Ok(dir) => Ok(dir.join(last)),
        Err(Errno::NOENT) => placed(dir),
        Err(e) => Err(e),
    }
}

fn below(path: &Path, at: &Path) -> Result<Vec<u8>, Errno> {
    let below = path.strip_prefix(at).map_err(|_| Errno::XDEV)?;
    Ok(below.as_os_str().as_bytes().to_vec())
}
