//! `systx snapshot`: keeps the tree of a log-structured volume under a name.

use crate::args::Snapshot;
use crate::image;
use crate::output::Out;
use crate::problem::Problem;
use serde::Serialize;
use systx_protocol::HostPath;

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
    let path = args.image.file.as_path();
    let volume = image::open(path)?;
    let done = match args.delete {
        true => volume.remove_snapshot(&args.name),
        false => volume.snapshot(&args.name),
    };
    done.map_err(|e| image::cannot_snapshot(path, &args.name, e))?;
    volume.close().map_err(|e| image::cannot(path, e))?;
    let kept = Kept { file: HostPath::from(path), name: args.name.clone(), deleted: args.delete };
    if out.json {
        out.json("snapshot", &kept);
    } else {
        let what = if args.delete { "removed" } else { "made" };
        out.say(&format!("{}: {what} snapshot {:?}", path.display(), args.name));
    }
    Ok(0)
}
