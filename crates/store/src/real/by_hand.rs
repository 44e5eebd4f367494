//! What some file systems have no call for.

use super::{read_full, write_all};
use crate::io::Handle;
use std::io::{Error, Result};

/// [`crate::io::Io::punch_hole`] where there are no holes.
pub(super) fn fill_with_zeros(h: &Handle, offset: u64, len: u64) -> Result<()> {
    let zeros = [0u8; 65536];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(zeros.len() as u64);
        write_all(h, &zeros[..n as usize], offset + done)?;
        done += n;
    }
    Ok(())
}

/// [`crate::io::Io::copy_range`] where the kernel has no shorter way.
pub(super) fn copy_by_hand(
    from: &Handle,
    mut src: u64,
    to: &Handle,
    mut dst: u64,
    len: u64,
) -> Result<()> {
    let mut buf = vec![0; 256 * 1024];
    let mut left = len;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(buf.len()).min(buf.len());
        let got = read_full(from, &mut buf[..wanted], src)?;
        if got == 0 {
            return Err(Error::from(std::io::ErrorKind::UnexpectedEof));
        }
        write_all(to, &buf[..got], dst)?;
        src += got as u64;
        dst += got as u64;
        left -= got as u64;
    }
    Ok(())
}
