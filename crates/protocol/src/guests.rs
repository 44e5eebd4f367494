//! How a guest finds root's daemon: the socket that lets any user connect.

use crate::{Failure, FailureKind};
use rustix::net::sockopt::socket_peercred;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Names the directory of the guests' socket, for tests.
pub const DIR_VARIABLE: &str = "SYSTX_GUESTS_DIR";
/// Where root's daemon expects guests.
const DIR: &str = "/run/systx-0-guests";

/// The socket in a directory for guests, for one mount namespace.
#[must_use]
pub fn socket(dir: &Path, namespace: u64) -> PathBuf {
    dir.join(format!("{namespace}.sock"))
}

/// Connects a guest to root's daemon; `None` if there is none that takes guests.
///
/// # Errors
/// Something poses as root's daemon.
pub fn connect() -> Result<Option<UnixStream>, Failure> {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let dir = std::env::var_os(DIR_VARIABLE).map_or_else(|| PathBuf::from(DIR), PathBuf::from);
    let failed =
        |e: &io::Error| Failure::new(FailureKind::Io, format!("cannot use {}: {e}", dir.display()));
    let meta = match std::fs::symlink_metadata(&dir) {
        Err(e) if e.kind() == NotFound => return Ok(None),
        other => other.map_err(|e| failed(&e))?,
    };
    let posing = || {
        let text = format!(
            "{} is not root's alone: who made it could pose as root's daemon",
            dir.display()
        );
        Failure::new(FailureKind::Invalid, text)
    };
    if !meta.is_dir() || meta.uid() != 0 || meta.mode() & 0o022 != 0 {
        return Err(posing());
    }
    let namespace = std::fs::metadata("/proc/self/ns/mnt").map_err(|e| failed(&e))?.ino();
    let stream = match UnixStream::connect(socket(&dir, namespace)) {
        Err(e) if matches!(e.kind(), NotFound | ConnectionRefused) => return Ok(None),
        other => other.map_err(|e| failed(&e))?,
    };
    let by = socket_peercred(&stream).map_err(|e| failed(&e.into()))?;
    if by.uid.as_raw() != 0 { Err(posing()) } else { Ok(Some(stream)) }
}
