//! The commands for log-structured volumes.

use super::size;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

/// Below the help of mkfs.
pub const MKFS_HELP: &str = "\
A file that is not there is made, with --size.  What holds anything but zeros is not written over
without --force, and what is mounted or in use never.  All of the space is taken at once.";

/// Below the help of send.
pub const SEND_HELP: &str = "\
Examples:
  systx send disk.img monday > monday.stream                     all of it
  systx send disk.img tuesday --since monday > tuesday.stream    what has changed since
  systx mkfs copy.img --size 10G; systx receive copy.img < monday.stream";

/// The volume alone.
#[derive(Clone, Debug, Args)]
pub struct Image {
    /// The image, or block device
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
}

/// `systx fsck`.
#[derive(Clone, Debug, Args)]
pub struct Fsck {
    /// Which.
    #[command(flatten)]
    pub image: Image,
    /// If the log breaks off before its end: give up what was committed behind that, so that the
    /// volume can be opened again
    #[arg(long)]
    pub cut_log: bool,
}

/// `systx mkfs`.
#[derive(Clone, Debug, Args)]
pub struct Mkfs {
    /// Where.
    #[command(flatten)]
    pub image: Image,
    /// How large the image is to be (bytes, or 100M, 10G, 1T) [default: as it is]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// A name for persons
    #[arg(long, value_name = "LABEL", default_value = "")]
    pub label: String,
    /// Whether the cleaner compresses what is cold
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Compress::Off)]
    pub compression: Compress,
    /// How large a segment is to be, a power of two from 64K to 64M [default: by the volume's size]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment: Option<u64>,
    /// How much of a file is written together, a power of two from 4K to 64K
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "4K")]
    pub page: u64,
    /// Also over what is there: it is lost
    #[arg(short, long)]
    pub force: bool,
}

/// How a volume compresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Compress {
    /// Not at all
    Off,
    /// By zstd
    Zstd,
}

/// `systx grow`.
#[derive(Clone, Debug, Args)]
pub struct Grow {
    /// Which.
    #[command(flatten)]
    pub image: Image,
    /// How large the image is to be (bytes, or 100M, 10G, 1T), or, with a +, by how much larger
    /// [default: all that FILE has]
    #[arg(value_name = "SIZE", value_parser = growth)]
    pub size: Option<Growth>,
}

/// How large an image is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// So large.
    To(u64),
    /// So much larger.
    By(u64),
}

/// `10G`, `+10G`.
fn growth(text: &str) -> Result<Growth, String> {
    match text.strip_prefix('+') {
        Some(more) => size(more).map(Growth::By),
        None => size(text).map(Growth::To),
    }
}

/// `systx send`.
#[derive(Clone, Debug, Args)]
pub struct Send {
    /// Which.
    #[command(flatten)]
    pub image: Image,
    /// The snapshot [default: the latest]
    #[arg(value_name = "SNAPSHOT")]
    pub snapshot: Option<String>,
    /// Only what has changed since this earlier snapshot, which the receiver has
    #[arg(long, value_name = "SNAPSHOT")]
    pub since: Option<String>,
}

/// `systx receive`.
#[derive(Clone, Debug, Args)]
pub struct Receive {
    /// Which.
    #[command(flatten)]
    pub image: Image,
}

/// `systx snapshots`.
#[derive(Clone, Debug, Args)]
pub struct Snapshots {
    /// The image or block device, or the directory that it is mounted on
    #[arg(value_name = "FILE|DIR")]
    pub volume: PathBuf,
    /// Remove all but those that the following options keep, and those that are mounted
    #[arg(long, requires = "kept")]
    pub prune: bool,
    /// With --prune: say what would be removed
    #[arg(short = 'n', long, requires = "prune")]
    pub dry_run: bool,
    /// Keep the latest N
    #[arg(long, value_name = "N", default_value_t = 0, group = "kept", requires = "prune")]
    pub last: usize,
    /// Keep the latest of each of the last N hours that have one (UTC)
    #[arg(long, value_name = "N", default_value_t = 0, group = "kept", requires = "prune")]
    pub hourly: usize,
    /// … of the last N days
    #[arg(long, value_name = "N", default_value_t = 0, group = "kept", requires = "prune")]
    pub daily: usize,
    /// … of the last N weeks
    #[arg(long, value_name = "N", default_value_t = 0, group = "kept", requires = "prune")]
    pub weekly: usize,
    /// … of the last N months
    #[arg(long, value_name = "N", default_value_t = 0, group = "kept", requires = "prune")]
    pub monthly: usize,
}

/// `systx snapshot`.
#[derive(Clone, Debug, Args)]
pub struct Snapshot {
    /// The image or block device, or the directory that it is mounted on
    #[arg(value_name = "FILE|DIR")]
    pub volume: PathBuf,
    /// Name of the snapshot
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Remove it: the space that it alone keeps is given back
    #[arg(short, long)]
    pub delete: bool,
}

/// What to clean first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CleanPolicy {
    /// The emptiest segments: most space at once
    Greedy,
    /// Space and age against cost: what has been quiet for long may be fuller
    CostBenefit,
    /// No segments, but files that are scattered: they are written again in order
    Idle,
}

/// `systx clean`.
#[derive(Clone, Debug, Args)]
pub struct Clean {
    /// Which.
    #[command(flatten)]
    pub image: Image,
    /// What to clean first
    #[arg(long, value_enum, value_name = "POLICY", default_value = "cost-benefit")]
    pub policy: CleanPolicy,
    /// Stop when so much of the segments is free [default: when no more can be gained]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub until: Option<u32>,
}

/// `20%`, `20`.
fn percent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u32>().ok();
    number.filter(|n| *n <= 100).ok_or_else(|| "not a part: give 0% to 100%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_to_a_size_or_by_one() {
        assert_eq!(growth("5M"), Ok(Growth::To(5 << 20)));
        assert_eq!(growth("+5M"), Ok(Growth::By(5 << 20)));
        assert!(["+", "++5M", "-5M", "+5%"].iter().all(|text| growth(text).is_err()));
    }

    #[test]
    fn parts_are_percent() {
        assert_eq!((percent("20%"), percent("0")), (Ok(20), Ok(0)));
        assert!(["101%", "-1", "x", "%", ""].iter().all(|text| percent(text).is_err()));
    }
}
