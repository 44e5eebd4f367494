//! The two super blocks: how they are read, made whole again, and changed when a volume grows.

use crate::device::{self, Device};
use crate::error::{Error, Result, Structure};
use crate::format::{BLOCK, Geometry, Super};

/// Reads the super block, or its copy.
///
/// # Errors
/// [`Error::NotAVolume`], [`Error::Corrupt`] if neither can be used; [`Error::Io`].
pub fn read_super(dev: &dyn Device) -> Result<Super> {
    let read = |at: u64, what| -> Result<Super> {
        let mut block = vec![0; BLOCK];
        device::read(dev, at, &mut block)?;
        let found = Super::decode(&block, what, at)?;
        if found.blocks > dev.blocks() {
            return Err(Error::corrupt(what, at, "the device is smaller than the volume"));
        }
        Ok(found)
    };
    let last = dev.blocks().checked_sub(1).ok_or(Error::NotAVolume("no blocks"))?;
    read(0, Structure::Super).or_else(|first| match read(last, Structure::SuperCopy) {
        Ok(copy) => Ok(copy),
        Err(_) => Err(first),
    })
}

/// Writes a super block again that is not there or damaged, from the other one.
///
/// # Errors
/// What the device says.
pub fn mend(dev: &dyn Device, sup: &Super) -> Result<()> {
    for (at, what) in [(0, Structure::Super), (sup.blocks - 1, Structure::SuperCopy)] {
        let mut block = vec![0; BLOCK];
        let is_read = dev.read(at, &mut block).is_ok();
        if !is_read || Super::decode(&block, what, at).ok().as_ref() != Some(sup) {
            dev.write_durable(at, &sup.encode())?;
        }
    }
    Ok(())
}

/// Makes a volume that nobody has open as large as its device.  Returns what it was and what it is.
///
/// The first super block decides.  Its new copy, in what is then the last block, is durable before
/// it changes, so that one of both is whole at any time.  The segments that come to it have never
/// been used, and no usage table has to say so.  A device that has grown without this is fine.
///
/// # Errors
/// [`Error::NotAVolume`], [`Error::Corrupt`], [`Error::Io`]; [`Error::Invalid`] if the device is
/// too large for segments of this size.  Nothing has changed then.
pub fn grow(dev: &dyn Device) -> Result<(Super, Super)> {
    let before = read_super(dev)?;
    let Geometry { segment_blocks, cluster, .. } = before.geometry;
    let geometry = Geometry::new(dev.blocks(), segment_blocks, cluster)?;
    let after = Super { geometry, blocks: dev.blocks(), ..before.clone() };
    let block = after.encode();
    dev.write(after.blocks - 1, &block)?;
    dev.sync()?;
    dev.write_durable(0, &block)?;
    Ok((before, after))
}
