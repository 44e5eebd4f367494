//! `systx snapshots`: what a log-structured volume keeps of its past.

use crate::args::Image;
use crate::image;
use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use systx_base::Time;

#[derive(Serialize)]
struct Listed {
    name: String,
    time: Stamp,
    /// Bytes of the segments that it keeps, with others or alone.
    keeps: u64,
    /// The volume that it was received from.
    of: Option<String>,
}

#[derive(Serialize)]
struct Stamp {
    secs: i64,
    nanos: u32,
}

/// Lists them, oldest first.
///
/// # Errors
/// It is no volume, cannot be read, or is in use.
pub fn snapshots(args: &Image, out: Out) -> Result<i32, Problem> {
    let path = args.file.as_path();
    let volume = image::open_to_read(path)?;
    let segment = image::bytes(volume.identity().1.segment_blocks.into());
    let all: Vec<Listed> = (volume.snapshots().into_iter())
        .map(|s| Listed {
            name: s.name,
            time: Stamp { secs: s.time.secs, nanos: s.time.nanos },
            keeps: segment * u64::from(s.segments),
            of: s.origin.map(|(id, _)| image::hex(&id)),
        })
        .collect();
    if out.json {
        out.json("snapshots", &all);
        return Ok(0);
    }
    if all.is_empty() {
        out.say(&format!("{}: no snapshots", path.display()));
    }
    for s in &all {
        let of = s.of.as_ref().map_or(String::new(), |id| format!("  received from {id}"));
        let time = output::time(Time { secs: s.time.secs, nanos: s.time.nanos });
        let keeps = output::size(s.keeps);
        output::print(&format!("{time}  {keeps:>9}  {}{of}\n", s.name));
    }
    Ok(0)
}
