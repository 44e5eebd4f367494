//! One write that is durable when it returns.

use super::{File, proc_path};
use rustix::fs::{self as sys, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, Result};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

/// Alignment that `O_DIRECT` needs at most.
const ALIGN: usize = 4096;

/// See [`crate::io::Io::write_durable`].
pub(super) fn write(file: &File, data: &[u8], offset: u64) -> Result<()> {
    systx_base::sync::record::io();
    if !data.len().is_multiple_of(ALIGN) || !offset.is_multiple_of(ALIGN as u64) {
        return Err(Errno::INVAL);
    }
    let direct = file.direct.get_or_init(|| {
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        sys::open(&proc_path(file.fd.as_fd(), b"")[..], flags, Mode::empty()).ok()
    });
    if let Some(direct) = direct {
        match write_direct(direct, data, offset) {
            // Refused before anything was written: alignment or flags that this file system
            // does not take.  Any other error is the device's and is never papered over.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {}
            other => return other,
        }
    }
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(&file.fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(if done == 0 { e } else { in_part(e) }),
        }
    }
    sys::fdatasync(&file.fd).map_err(in_part)
}

fn write_direct(direct: &OwnedFd, data: &[u8], offset: u64) -> Result<()> {
    let mut space = Vec::new();
    let data =
        if data.as_ptr().align_offset(ALIGN) == 0 { data } else { aligned(&mut space, data) };
    let mut done = 0;
    while done < data.len() {
        let rest = [IoSlice::new(&data[done..])];
        let n = rustix::io::pwritev2(direct, &rest, offset + done as u64, ReadWriteFlags::DSYNC)
            .map_err(|e| if done == 0 { e } else { in_part(e) })?;
        if n == 0 || !n.is_multiple_of(ALIGN) {
            return Err(Errno::IO);
        }
        done += n;
    }
    Ok(())
}

/// An error when some of it may be written: that there is no room would say that nothing is.
fn in_part(e: Errno) -> Errno {
    if matches!(e, Errno::NOSPC | Errno::DQUOT) { Errno::IO } else { e }
}

/// The part of `data` from the first aligned byte of `space` on; copies `data` there.
fn aligned<'a>(space: &'a mut Vec<u8>, data: &[u8]) -> &'a [u8] {
    space.resize(data.len() + ALIGN, 0);
    let skip = space.as_ptr().align_offset(ALIGN);
    let slice = &mut space[skip..skip + data.len()];
    slice.copy_from_slice(data);
    slice
}
