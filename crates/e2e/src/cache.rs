//! Things from package registries that the suites work on, fetched once per machine.
//!
//! Where a registry does not answer, or answers slowly, a test is skipped with the reason, and
//! soon: a fetch has a few minutes, and one that failed is not tried again by the next test, nor by
//! those of the next quarter of an hour.
//!
//! They are kept in `$XDG_CACHE_HOME/systx-tests` (`~/.cache/systx-tests`), outside the repository.
//! Each is fetched into a directory by the side, which is renamed when it is complete: a killed
//! fetch leaves nothing that looks complete.  A second process waits for the first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a fetch may take.
const LIMIT: &str = "400";
/// How long one that failed is not tried again.
const NOT_AGAIN: Duration = Duration::from_secs(900);

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
    let failed = place.join(format!("{name}.failed"));
    let age = failed.metadata().and_then(|m| m.modified()).ok().and_then(|m| m.elapsed().ok());
    if age.is_some_and(|age| age < NOT_AGAIN) {
        return Err(fs::read_to_string(&failed).unwrap_or_default());
    }
    let partial = place.join(format!("{name}.partial"));
    let _ = fs::remove_dir_all(&partial);
    fs::create_dir_all(&partial).map_err(|e| format!("{}: {e}", partial.display()))?;
    if let Err(why) = fetch(&partial) {
        let _ = fs::remove_dir_all(&partial);
        let _ = fs::write(&failed, &why);
        return Err(why);
    }
    let _ = fs::remove_file(&failed);
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

/// Runs a fetching script in a directory, for at most [`LIMIT`] seconds.
///
/// # Errors
/// What it said last.
pub fn shell(dir: &Path, script: &str) -> Result<(), String> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT, "sh", "-ec", script]).current_dir(dir);
    crate::lab::tool(&mut command).map(drop).map_err(|e| {
        let tail: Vec<_> = e.lines().rev().take(3).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("; ")
    })
}
