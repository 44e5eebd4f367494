//! `systx mkfs`: a new log-structured volume.

use crate::args::{Compress, Mkfs};
use crate::image;
use crate::output::{self, Out};
use crate::problem::{CONFLICT, Problem};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use systx_lfs::device::{Device, FileDevice};
use systx_lfs::format::{BLOCK, CLUSTER_MAX, Compression, Geometry};
use systx_lfs::{Format, fitting, mkfs as make};
use systx_protocol::HostPath;

/// Bytes at either end of a device that are looked at.
const ENDS: u64 = 1 << 20;

#[derive(Serialize)]
struct Made {
    file: HostPath,
    label: String,
    size: u64,
    segments: u32,
    segment_size: u64,
    page_size: u64,
    /// `off` or `zstd`.
    compression: &'static str,
}

/// Makes it.
///
/// # Errors
/// There is something already, it is in use, or there is no space.
pub fn mkfs(args: &Mkfs, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    let say = |why: &str| image::about(path, why);
    if args.label.len() > 255 {
        return Err(say("a label has at most 255 bytes"));
    }
    let (geometry, device) = match std::fs::metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => create(args)?,
        Err(e) => return Err(image::cannot_open(path, &e)),
        Ok(found) if found.file_type().is_block_device() && args.size.is_some() => {
            return Err(say("a block device is as large as it is")
                .hint("leave --size out: the volume takes all of it"));
        }
        Ok(found) if found.is_file() || found.file_type().is_block_device() => over(args)?,
        Ok(_) => {
            return Err(say("neither a file nor a block device")
                .hint("name an image file, which need not be there yet, or a device"));
        }
    };
    let size = image::bytes(device.blocks());
    let format = Format {
        segment_blocks: geometry.segment_blocks,
        cluster: geometry.cluster,
        id: image::random()?,
        label: args.label.clone(),
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        compression: match args.compression {
            Compress::Off => Compression::Off,
            Compress::Zstd => Compression::Zstd,
        },
    };
    make(device, &format, image::clock()).map_err(|e| image::cannot(path, e))?;
    let made = Made {
        file: HostPath::from(path),
        label: args.label.clone(),
        size,
        segments: geometry.segments,
        segment_size: image::bytes(geometry.segment_blocks.into()),
        page_size: image::bytes(geometry.cluster.into()),
        compression: format.compression.name(),
    };
    if out.json {
        out.json("made", &made);
    } else {
        let pages = match geometry.cluster {
            1 => String::new(),
            _ => format!(", pages of {}", output::size(made.page_size)),
        };
        out.say(&format!(
            "made a log-structured volume of {} in {}: {} segments of {}{pages}",
            output::size(size),
            path.display(),
            made.segments,
            output::size(made.segment_size),
        ));
    }
    Ok(0)
}

/// How a volume of this size is divided.
fn geometry(args: &Mkfs, bytes: u64) -> Result<Geometry, Problem> {
    let (path, blocks) = (args.image.file.as_path(), bytes / BLOCK as u64);
    let cluster = u32::try_from(args.page / BLOCK as u64).unwrap_or(0);
    if !args.page.is_power_of_two() || !(1..=CLUSTER_MAX).contains(&cluster) {
        let size = output::size(args.page);
        return Err(image::about(path, format!("{size} is no size for a page"))
            .hint("a power of two from 4K to 64K"));
    }
    let Some(segment) = args.segment else {
        return fitting(blocks, cluster).map_err(|e| {
            let (size, least) = (output::size(bytes), 2 * (cluster / 4).max(1));
            image::about(path, format!("{size} is no size for a volume: {e}"))
                .hint(format!("the smallest volume has {least}M"))
        });
    };
    let size = output::size(segment);
    let Some(of) = u32::try_from(segment / BLOCK as u64).ok().filter(|_| segment.is_power_of_two())
    else {
        return Err(image::about(path, format!("{size} is no size for a segment"))
            .hint("a power of two from 64K to 64M"));
    };
    Geometry::new(blocks, of, cluster).map_err(|e| {
        image::about(path, format!("{size} is no size for a segment of this volume: {e}"))
            .hint("leave --segment out: the size then fits the volume")
    })
}

/// A new image.  If it cannot be made as large as it should be, it is not there.
fn create(args: &Mkfs) -> Result<(Geometry, Arc<dyn Device>), Problem> {
    let path = args.image.file.as_path();
    let missing = || image::about(path, "there is no such file").hint("--size 10G makes an image");
    let size = args.size.ok_or_else(missing)?;
    let geometry = geometry(args, size)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    room(path, parent, size)?;
    let device = FileDevice::create(path, size).map_err(|e| {
        if e.kind() != std::io::ErrorKind::AlreadyExists {
            let _ = std::fs::remove_file(path);
        }
        image::cannot_open(path, &e)
    })?;
    Ok((geometry, Arc::new(device)))
}

/// Whether the file system has room for `bytes` more, before it is filled up in vain.
///
/// # Errors
/// It has not.
pub fn room(path: &Path, on: &Path, bytes: u64) -> Result<(), Problem> {
    let found =
        rustix::fs::statvfs(on).map_err(|e| image::cannot_open(path, &std::io::Error::from(e)))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if free >= bytes {
        return Ok(());
    }
    let (needs, free) = (output::size(bytes), output::size(free));
    let why = format!("{needs} more are needed, and {free} are free there");
    Err(image::about(path, why).hint("take a smaller size, or another file system"))
}

/// A file or device that is there.
fn over(args: &Mkfs) -> Result<(Geometry, Arc<dyn Device>), Problem> {
    let path = args.image.file.as_path();
    let failed = |e: std::io::Error| image::cannot_open(path, &e);
    let mut device = FileDevice::open(path).map_err(failed)?;
    let file = File::open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !args.force
        && let Some(what) = holds(&file).map_err(failed)?
    {
        return Err(image::about(path, format!("it is not empty: it has {what}"))
            .hint("another file or device; or --force, after which all of that is lost")
            .code(CONFLICT));
    }
    let size = args.size.unwrap_or(image::bytes(device.blocks()));
    if size == 0 {
        return Err(image::about(path, "it has no bytes").hint("--size 10G makes it so large"));
    }
    let geometry = geometry(args, size)?;
    if found.is_file() {
        room(path, path, size.saturating_sub(found.blocks() * 512))?;
        device.clear(size).map_err(failed)?;
    }
    Ok((geometry, Arc::new(device)))
}

/// What a file or device has that is not zeros, in words.
fn holds(file: &File) -> std::io::Result<Option<&'static str>> {
    let is_file = file.metadata()?.is_file();
    let len = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    let mut head = vec![0; len.min(70 << 10) as usize];
    file.read_exact_at(&mut head, 0)?;
    if let Some(known) = known(&head) {
        return Ok(Some(known));
    }
    let mut buffer = vec![0; ENDS as usize];
    let mut at = 0;
    while at < len {
        if is_file {
            // Holes are zeros.
            match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => at = data,
                Err(rustix::io::Errno::NXIO) => return Ok(None),
                Err(_) => {}
            }
        } else if at >= ENDS && at + ENDS < len {
            // What uses a device leaves a mark at one of its ends.
            at = len - ENDS;
        }
        let n = (len - at).min(ENDS) as usize;
        file.read_exact_at(&mut buffer[..n], at)?;
        if buffer[..n].iter().any(|b| *b != 0) {
            return Ok(Some("data"));
        }
        at += n as u64;
    }
    Ok(None)
}

/// What these bytes begin.
fn known(head: &[u8]) -> Option<&'static str> {
    const MARKS: [(usize, &[u8], &str); 9] = [
        (0, b"SYSTXLFS", "a log-structured volume of systx"),
        (0, b"XFSB", "an xfs file system"),
        (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
        (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
        (4086, b"SWAPSPACE2", "swap space"),
        (65600, b"_BHRfS_M", "a btrfs file system"),
        (512, b"LABELONE", "an LVM physical volume"),
        (512, b"EFI PART", "a partition table"),
        (510, b"\x55\xaa", "a partition table, or a FAT file system"),
    ];
    let is = |(at, mark, _): &&(usize, &[u8], &str)| {
        head.get(*at..*at + mark.len()).is_some_and(|found| found == *mark)
    };
    MARKS.iter().find(is).map(|(.., what)| *what)
}
