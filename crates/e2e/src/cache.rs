//! Things from package registries that the suites work on, fetched once per machine.
//!
//! They are kept in `$XDG_CACHE_HOME/systx-tests` (`~/.cache/systx-tests`), outside the repository.
//! Each is fetched into a directory by the side, which is renamed when it is complete: a killed
//! fetch leaves nothing that looks complete.  A second process waits for the first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory `name` of the cache, filled by `fetch` if it is not there yet.
///
/// # Errors
/// Why it cannot be had, for the skip message.
pub fn get(name: &str, fetch: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let place = place()?;
    let ready = place.join(name);
    let lock = fs::File::create(place.join(format!("{name}.lock"))).map_err(|e| e.to_string())?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|e| e.to_string())?;
    if ready.is_dir() {
        return Ok(ready);
    }
    let partial = place.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(|e| format!("{}: {e}", partial.display()))?;
    fetch(&partial)?;
    fs::rename(&partial, &ready).map_err(|e| e.to_string())?;
    Ok(ready)
}

fn place() -> Result<PathBuf, String> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .ok_or("neither XDG_CACHE_HOME nor HOME is set")?;
    let place = base.join("systx-tests");
    fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    Ok(place)
}

/// Runs a fetching script in a directory, for at most ten minutes.
///
/// # Errors
/// What it said last.
pub fn shell(dir: &Path, script: &str) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args(["600", "sh", "-ec", script]).current_dir(dir);
    crate::lab::tool(&mut command).map(drop).map_err(|e| {
        let tail: Vec<_> = e.lines().rev().take(3).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("; ")
    })
}
