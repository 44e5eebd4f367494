//! A volume in a file or on a block device.

use super::{Aligned, Device, range};
use crate::format::BLOCK;
use rustix::fs::{Advice, FlockOperation, IFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes that are written at once while a new image is filled with zeros.
const FILL: usize = 1 << 20;

/// A file or block device.  Reads go through the kernel's cache, writes past it where the file
/// system lets them: a durable write is then one request with no flush of what others wrote.
pub struct FileDevice {
    file: File,
    /// What it shows, if it is a loop device, which is locked as well: the volume has two paths.
    shown: Vec<File>,
    direct: Option<OwnedFd>,
    blocks: u64,
}

impl FileDevice {
    /// Opens an image or a block device, for one process at a time.
    ///
    /// # Errors
    /// `WouldBlock` if another process has it open as a volume; `ResourceBusy` if it is mounted,
    /// also as a loop device; else what open(2) says.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A block device that is mounted, or part of another one, says EBUSY.
        let flags = if is_block_device(path)? { OFlags::EXCL } else { OFlags::empty() };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        if shown_in_use(&file)? {
            return Err(Errno::BUSY.into());
        }
        Self::from_file(file, path)
    }

    /// As [`FileDevice::open`], but only to be read; writes say `BadFileDescriptor`.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn open_to_read(path: &Path) -> io::Result<Self> {
        is_block_device(path)?;
        let file = OpenOptions::new().read(true).open(path)?;
        let (blocks, shown) = lock(&file)?;
        Ok(FileDevice { file, shown, direct: None, blocks })
    }

    /// Makes a new image of `bytes` bytes, written once with zeros: a later write then never has
    /// to allocate, which makes it several times faster. A file system that copies on write is told
    /// not to, since each write would allocate there all the same, and fail once it is full.
    ///
    /// # Errors
    /// `AlreadyExists`, or what the file system says, such as that it is full.
    pub fn create(path: &Path, bytes: u64) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        // Btrfs takes it of an empty file alone; others do not know it.
        if let Ok(flags) = rustix::fs::ioctl_getflags(&file) {
            let _ = rustix::fs::ioctl_setflags(&file, flags | IFlags::NOCOW);
        }
        let mut device = Self::from_file(file, path)?;
        device.fill(0, bytes)?;
        Ok(device)
    }

    /// Makes an image longer, of zeros that are written.
    ///
    /// # Errors
    /// `InvalidInput` if it is a block device or not shorter; what the file system says, such as
    /// that it is full.  The image is as long as it was then.
    pub fn extend(&mut self, bytes: u64) -> io::Result<()> {
        let before = self.file.metadata()?;
        if !before.is_file() || before.len() >= bytes {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it cannot be made longer"));
        }
        self.fill(before.len(), bytes).inspect_err(|_| {
            let _ = self.file.set_len(before.len());
        })
    }

    /// Makes all of an image, `bytes` bytes long then, zeros that are written.
    ///
    /// # Errors
    /// What the file system says, such as that it is full.
    pub fn clear(&mut self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)?;
        self.fill(0, bytes)
    }

    /// Writes zeros from one byte to another.
    fn fill(&mut self, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; FILL];
        let mut at = from;
        while at < to {
            let n = (to - at).min(FILL as u64) as usize;
            self.file.write_all_at(&zeros[..n], at)?;
            at += n as u64;
        }
        self.file.sync_all()?;
        self.blocks = to / BLOCK as u64;
        Ok(())
    }

    fn from_file(file: File, path: &Path) -> io::Result<Self> {
        let (blocks, shown) = lock(&file)?;
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(direct) => {
                // The path may have become another file in the meantime.
                let (a, b) = (rustix::fs::fstat(&direct)?, rustix::fs::fstat(&file)?);
                ((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)).then_some(direct)
            }
            Err(Errno::INVAL) => None,
            Err(e) => return Err(e.into()),
        };
        Ok(FileDevice { file, shown, direct, blocks })
    }

    fn put(&self, at: u64, from: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        range(self.blocks, at, from.len())?;
        let aligned = from.as_ptr().align_offset(BLOCK) == 0;
        if self.direct.is_some() && !aligned {
            let mut copy = Aligned::new(from.len());
            copy.copy_from_slice(from);
            return self.put_all(at, &copy, flags);
        }
        self.put_all(at, from, flags)
    }

    fn put_all(&self, at: u64, from: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        let mut done = 0;
        while done < from.len() {
            let rest = [IoSlice::new(&from[done..])];
            let offset = at * BLOCK as u64 + done as u64;
            let n = match &self.direct {
                Some(direct) => rustix::io::pwritev2(direct, &rest, offset, flags),
                None => rustix::io::pwritev2(&self.file, &rest, offset, flags),
            };
            match n {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // What a short direct write leaves may not be aligned: whole blocks count.
                Ok(n) if n < from.len() - done && n < BLOCK => {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Ok(n) if n < from.len() - done => done += n / BLOCK * BLOCK,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

/// Whether it is a block device; what is neither that nor a file is refused.
fn is_block_device(path: &Path) -> io::Result<bool> {
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(kind.is_block_device());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device"))
}

/// Locks an image or a device for one process, with what a loop device shows.  Returns its number
/// of blocks, and the latter.
fn lock(file: &File) -> io::Result<(u64, Vec<File>)> {
    let only = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
    only(file)?;
    let mut shown: Vec<File> = Vec::new();
    while let Some(below) = shown_by(shown.last().unwrap_or(file))? {
        only(&below)?;
        shown.push(below);
    }
    Ok((rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))? / BLOCK as u64, shown))
}

/// The file that a loop device, or a part of one, shows; none if this process cannot get there by
/// its path: then no volume was opened by that path either.
fn shown_by(device: &File) -> io::Result<Option<File>> {
    let found = device.metadata()?;
    if !found.file_type().is_block_device() {
        return Ok(None);
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let known = |at: &str| backing(Path::new(&format!("/sys/dev/block/{major}:{minor}/{at}")));
    let Some(path) = known("").or_else(|| known("../")) else { return Ok(None) };
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    Ok(OpenOptions::new().read(true).custom_flags(flags).open(path).ok())
}

/// The path that a loop device shows, by the kernel's directory of it; none of other devices.
fn backing(device: &Path) -> Option<OsString> {
    let mut path = std::fs::read(device.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path))
}

/// Whether a loop device shows a file and is mounted, or a part of another device; false also if
/// this process may not open that device.
fn shown_in_use(file: &File) -> io::Result<bool> {
    let of = |file: &std::fs::Metadata| (file.dev(), file.ino());
    let is = of(&file.metadata()?);
    for device in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let shown = backing(&device.path()).and_then(|path| std::fs::metadata(path).ok());
        if shown.is_some_and(|shown| of(&shown) == is) {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            let path = Path::new("/dev").join(device.file_name());
            if matches!(rustix::fs::open(path, flags, Mode::empty()), Err(Errno::BUSY)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl Drop for FileDevice {
    /// The lock belongs to the open file, of which a child that is being spawned has a copy:
    /// closing alone would leave it.
    fn drop(&mut self) {
        for file in self.shown.iter().chain([&self.file]) {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

impl Device for FileDevice {
    fn blocks(&self) -> u64 {
        self.blocks
    }
    fn read(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        range(self.blocks, at, to.len())?;
        self.file.read_exact_at(to, at * BLOCK as u64)
    }
    fn soon(&self, at: u64, blocks: u64) {
        // No length would be all of the rest.
        let Some(len) = NonZeroU64::new(blocks.saturating_mul(BLOCK as u64)) else { return };
        let offset = at.saturating_mul(BLOCK as u64);
        let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
    }
    fn write(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.put(at, from, ReadWriteFlags::empty())
    }
    fn write_durable(&self, at: u64, from: &[u8]) -> io::Result<()> {
        self.put(at, from, ReadWriteFlags::DSYNC)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_descriptor_keeps_nobody_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 4 * BLOCK as u64).unwrap();
        let copy = device.file.try_clone().unwrap();
        drop(device);
        FileDevice::open(&path).expect("nobody uses it");
        drop(copy);
    }
}
