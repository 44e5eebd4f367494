//! `systx clean`: gives space of a log-structured volume back.

use crate::args::{Clean, CleanPolicy};
use crate::image;
use crate::output::{self, Out};
use crate::problem::Problem;
use serde::Serialize;
use systx_lfs::{CostBenefit, Greedy, Packed, Volume};
use systx_protocol::HostPath;

/// Objects that are looked at for scattered ones at once.
const LOOK: usize = 10_000;

#[derive(Serialize)]
struct Cleaned {
    file: HostPath,
    /// Bytes that were written again.
    moved: u64,
    /// Segments that were emptied.
    emptied: u32,
    /// Files that were written again in order.
    coalesced: u64,
    /// Bytes that were compressed, and that these became.
    compressed: u64,
    compressed_to: u64,
    segments: u32,
    free_before: u32,
    free: u32,
}

/// Cleans it.
///
/// # Errors
/// It is no volume, in use, or fails.
pub fn clean(args: &Clean, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    let volume = image::open(path)?;
    let segments = volume.identity().1.segments;
    let until = args.until.map_or(u32::MAX, |percent| {
        u32::try_from((u64::from(segments) * u64::from(percent)).div_ceil(100)).unwrap_or(u32::MAX)
    });
    let free_before = volume.space().free_segments;
    let (mut coalesced, mut packed) = (0, Packed::default());
    let done = match args.policy {
        CleanPolicy::Greedy => volume.clean(&Greedy, until),
        CleanPolicy::CostBenefit => volume.clean(&CostBenefit, until),
        CleanPolicy::Idle => idle(&volume).map(|(files, pages)| {
            (coalesced, packed) = (files, pages);
            systx_lfs::Cleaned::default()
        }),
    };
    let done = done.map_err(|e| image::cannot(path, e))?;
    let (moved, emptied) = (image::bytes(done.moved), done.segments);
    volume.checkpoint().map_err(|e| image::cannot(path, e))?;
    let free = volume.space().free_segments;
    volume.close().map_err(|e| image::cannot(path, e))?;
    let file = HostPath::from(path);
    let (compressed, compressed_to) = (image::bytes(packed.pages), image::bytes(packed.blocks));
    let cleaned = Cleaned {
        file,
        moved,
        emptied,
        coalesced,
        compressed,
        compressed_to,
        segments,
        free_before,
        free,
    };
    if out.json {
        out.json("cleaned", &cleaned);
        return Ok(0);
    }
    let what = match args.policy {
        CleanPolicy::Idle if packed.pages > 0 => format!(
            "{coalesced} scattered files are in order, {} became {}",
            output::size(compressed),
            output::size(compressed_to)
        ),
        CleanPolicy::Idle => format!("{coalesced} scattered files are in order"),
        _ => format!("{emptied} segments emptied, {} moved", output::size(moved)),
    };
    out.say(&format!(
        "{}: {what}; {free} of {segments} segments are free, {free_before} were",
        path.display()
    ));
    if args.policy != CleanPolicy::Idle && args.until.is_some() && free < until {
        out.hint("no more can be gained: what is in use, or kept by snapshots, fills the rest");
    }
    Ok(0)
}

/// What the cleaner does in idle times: files come into order, and what is cold is compressed, with
/// whatever these files are in now.
fn idle(volume: &Volume) -> systx_lfs::Result<(u64, Packed)> {
    let coalesced = coalesce(volume)?;
    volume.checkpoint()?;
    Ok((coalesced, volume.pack()?))
}

/// Writes all scattered files again.  Returns how many.
fn coalesce(volume: &Volume) -> systx_lfs::Result<u64> {
    let (mut done, mut from) = (0, 0);
    // A file that stays scattered, for want of space, ends it.
    let mut last = None;
    loop {
        let (worst, next) = volume.coalesce(from, LOOK, &|| false)?;
        match (worst, next) {
            (Some(worst), _) if last != Some(worst) => {
                last = Some(worst);
                done += 1;
            }
            (_, Some(next)) => (from, last) = (next, None),
            (_, None) => return Ok(done),
        }
    }
}
