//! `systx df`: how full a log-structured volume is.

use crate::args::Image;
use crate::image;
use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use systx_base::shown;
use systx_protocol::HostPath;

#[derive(Serialize)]
struct Space {
    file: HostPath,
    label: String,
    id: String,
    /// Bytes of the whole volume.
    size: u64,
    /// Bytes that may be in use.
    total: u64,
    used: u64,
    available: u64,
    free_segments: u32,
    #[serde(flatten)]
    layout: Layout,
    snapshots: usize,
}

/// What `mkfs` was told.
#[derive(Serialize)]
struct Layout {
    segments: u32,
    segment_size: u64,
    /// How much of a file is written together.
    page_size: u64,
    /// `off` or `zstd`.
    compression: &'static str,
}

/// Shows it.
///
/// # Errors
/// It is no volume, cannot be read, or is in use.
pub fn df(args: &Image, out: Out) -> Result<i32, Problem> {
    let path = args.file.as_path();
    let volume = image::open_to_read(path)?;
    let ((id, geometry), space) = (volume.identity(), volume.space());
    let segment_size = image::bytes(geometry.segment_blocks.into());
    let space = Space {
        file: HostPath::from(path),
        label: volume.label().to_owned(),
        id: image::hex(&id),
        size: segment_size * u64::from(geometry.segments),
        total: image::bytes(space.total),
        used: image::bytes(space.used),
        available: image::bytes(space.total.saturating_sub(space.used)),
        free_segments: space.free_segments,
        layout: Layout {
            segments: geometry.segments,
            segment_size,
            page_size: image::bytes(geometry.cluster.into()),
            compression: volume.compression().name(),
        },
        snapshots: volume.snapshots().len(),
    };
    if out.json {
        out.json("space", &space);
        return Ok(0);
    }
    let row = |cells: [&str; 7]| {
        let [label, size, used, available, percent, free, snapshots] = cells;
        format!(
            "{label:<16} {size:>10} {used:>10} {available:>10} {percent:>5} {free:>14} \
             {snapshots:>9}\n"
        )
    };
    let percent = (space.used * 100).div_ceil(space.total.max(1));
    let label = if space.label.is_empty() { "-" } else { &*shown(space.label.as_bytes()) };
    let free = format!("{} of {}", space.free_segments, space.layout.segments);
    output::print(&row(["LABEL", "SIZE", "USED", "AVAIL", "USE%", "FREE SEGMENTS", "SNAPSHOTS"]));
    output::print(&row([
        label,
        &output::size(space.size),
        &output::size(space.used),
        &output::size(space.available),
        &format!("{percent}%"),
        &free,
        &space.snapshots.to_string(),
    ]));
    Ok(0)
}
