//! Reaching a node of one's own mount by its number.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use systx_base::NodeId;

/// `FILEID_INO64_GEN` of `linux/exportfs.h`.
const INO64_GEN: i32 = 0x81;

/// `struct file_handle` as fs/fuse makes it (`fuse_encode_fh`).
#[repr(C)]
struct NodeHandle {
    bytes: u32,
    kind: i32,
    node_high: u32,
    node_low: u32,
    generation: u32,
}

/// An `O_PATH` descriptor of a node that the kernel has in memory, without a request to anybody;
/// where nodes are found by number (`Users::ManyByNumber`), of any.
///
/// # Errors
/// `ESTALE` if it has not; `EPERM` without the right to open by handle.
pub(crate) fn open_node(mount: BorrowedFd<'_>, node: NodeId) -> Result<OwnedFd, Errno> {
    open(mount, node, libc::O_PATH)
}

/// The same of a regular file, for reading: a request where opens make messages.
///
/// # Errors
/// As there, and those of open(2).
pub(crate) fn open_node_to_read(mount: BorrowedFd<'_>, node: NodeId) -> Result<OwnedFd, Errno> {
    open(mount, node, libc::O_RDONLY | libc::O_NONBLOCK)
}

fn open(mount: BorrowedFd<'_>, node: NodeId, how: libc::c_int) -> Result<OwnedFd, Errno> {
    let mut handle = NodeHandle {
        bytes: 12,
        kind: INO64_GEN,
        node_high: (node.0 >> 32) as u32,
        node_low: node.0 as u32,
        generation: 0,
    };
    let flags = how | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: the structure has the kernel's layout, with the 12 bytes that it announces, and lives
    // for the whole call.
    let fd = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), (&raw mut handle).cast(), flags) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
