//! `systx grow`: a log-structured volume becomes larger.

use crate::args::{Grow, Growth};
use crate::commands::mkfs;
use crate::image;
use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use std::path::Path;
use systx_lfs::device::{Device, FileDevice};
use systx_lfs::{grow as enlarge, mend_super, read_super};
use systx_protocol::HostPath;

#[derive(Serialize)]
struct Grown {
    file: HostPath,
    before: u64,
    size: u64,
    segments: u32,
}

/// Grows the image, and the volume in it.
///
/// # Errors
/// It is no volume, in use, or there is no space; a volume does not shrink.
pub fn grow(args: &Grow, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    let mut device = FileDevice::open(path).map_err(|e| image::cannot_open(path, &e))?;
    // What is last in a longer file is no super block until the volume has grown: the first one
    // has to be right.
    let sup = read_super(&device).map_err(|e| image::cannot(path, e))?;
    mend_super(&device, &sup).map_err(|e| image::cannot(path, e))?;
    if let Some(size) = args.size {
        extend(&mut device, path, size)?;
    }
    if device.blocks() == sup.blocks && args.size.is_none() {
        return Err(image::about(path, "the volume has all of it already")
            .hint("give the new size of an image; make a device larger first (lvextend, …)"));
    }
    let (before, after) = enlarge(&device).map_err(|e| image::cannot(path, e))?;
    let grown = Grown {
        file: HostPath::from(path),
        before: image::bytes(before.blocks),
        size: image::bytes(after.blocks),
        segments: after.geometry.segments,
    };
    if out.json {
        out.json("grown", &grown);
    } else {
        let (was, is) = (output::size(grown.before), output::size(grown.size));
        out.say(&format!("{}: the volume had {was} and has {is}", path.display()));
    }
    Ok(0)
}

fn extend(device: &mut FileDevice, path: &Path, size: Growth) -> Result<(), Problem> {
    let say = |why: String| image::about(path, why);
    let found = std::fs::metadata(path).map_err(|e| image::cannot_open(path, &e))?;
    if !found.is_file() {
        return Err(say("a block device is as large as it is".into())
            .hint("leave the size out: the volume takes all of it"));
    }
    let has = found.len();
    let size = match size {
        Growth::To(size) => size,
        Growth::By(more) => has.saturating_add(more),
    };
    if size < has {
        let (has, size) = (output::size(has), output::size(size));
        return Err(say(format!("it has {has}, and {size} is less: a volume does not shrink"))
            .hint("systx mkfs a smaller image, then systx send and systx receive"));
    }
    if size > has {
        mkfs::room(path, path, size - has)?;
        device.extend(size).map_err(|e| image::cannot_open(path, &e))?;
    }
    Ok(())
}
