//! `systx snapshot`: keeps the tree of a log-structured volume under a name.

use super::snapshots::{mounted, of_mounted};
use crate::args::Snapshot;
use crate::image;
use crate::output::Out;
use crate::problem::Problem;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::path::Path;
use systx_protocol::{HostPath, MountedVolume, SnapshotChange};

#[derive(Serialize)]
struct Kept {
    file: HostPath,
    name: String,
    deleted: bool,
}

/// Makes or removes it.
///
/// # Errors
/// It is no volume, or in use; the name is taken, or not there; there is no space.
pub fn snapshot(args: &Snapshot, out: Out) -> Result<i32, Problem> {
    let path = args.volume.as_path();
    match mounted(path)? {
        Some(at) => in_mounted(&at, args)?,
        None => in_image(path, args)?,
    }
    let kept = Kept { file: HostPath::from(path), name: args.name.clone(), deleted: args.delete };
    if out.json {
        out.json("snapshot", &kept);
    } else {
        let what = if args.delete { "removed" } else { "made" };
        out.say(&format!("{}: {what} snapshot {:?}", path.display(), args.name));
    }
    Ok(0)
}

fn in_image(path: &Path, args: &Snapshot) -> Result<(), Problem> {
    let volume = image::open(path)?;
    let done = match args.delete {
        true => volume.remove_snapshot(&args.name),
        false => volume.snapshot(&args.name),
    };
    done.map_err(|e| image::cannot_snapshot(path, &args.name, e))?;
    volume.close().map_err(|e| image::cannot(path, e))
}

fn in_mounted(at: &MountedVolume, args: &Snapshot) -> Result<(), Problem> {
    let name = args.name.clone();
    if args.delete {
        return of_mounted(at, SnapshotChange::Remove(name)).map(drop);
    }
    if at.snapshot.is_none() {
        // What programs have stored through mappings is only in the kernel until then.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let flushed =
            rustix::fs::open(at.dir.as_path(), flags, Mode::empty()).and_then(rustix::fs::syncfs);
        flushed.map_err(|e| image::about(at.dir.as_path(), format!("cannot be flushed: {e}")))?;
    }
    of_mounted(at, SnapshotChange::Make(name)).map(drop)
}
