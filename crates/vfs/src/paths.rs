//! Paths of what is known by a descriptor.

use crate::api::Reply;
use rustix::fs;
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A path that means what a descriptor refers to, for calls that take no descriptor.
pub fn path_of(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

/// The path that leads from one directory to another one below it, both of one mount; empty if they
/// are the same.
///
/// # Errors
/// `ENOENT`: it is removed, or not below.
pub fn path_below(root: BorrowedFd<'_>, dir: BorrowedFd<'_>) -> Reply<Vec<u8>> {
    let path = |fd| Ok::<_, Errno>(fs::readlink(path_of(fd), Vec::new())?.into_bytes());
    // Of what is removed it ends in " (deleted)", which no name then is, or another inode's.
    let (root, path) = (path(root)?, path(dir)?);
    let rest = path.strip_prefix(&*root).ok_or(Errno::NOENT)?;
    match rest.strip_prefix(b"/") {
        Some(rest) => Ok(rest.to_vec()),
        None if rest.is_empty() || root == b"/" => Ok(rest.to_vec()),
        None => Err(Errno::NOENT),
    }
}
