//! `systx receive`: applies a stream to a log-structured volume, all of it or nothing.

use crate::args::Receive;
use crate::image::{self, Apart};
use crate::output::Out;
use crate::problem::{Problem, USAGE};
use serde::Serialize;
use std::io::{BufReader, IsTerminal};
use systx_lfs::{Error, receive as apply};
use systx_protocol::HostPath;

#[derive(Serialize)]
struct Received {
    file: HostPath,
    snapshot: String,
    /// The volume that it is from.
    of: String,
    /// Whether it was only what had changed since an earlier one.
    difference: bool,
}

/// Reads it from standard input.
///
/// # Errors
/// The stream is damaged or not for this volume; there is no space.  Nothing has changed then.
pub fn receive(args: &Receive, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    let from = std::io::stdin().lock();
    if from.is_terminal() {
        return Err(Problem::new("a stream does not come from a terminal")
            .hint("read it from a file (< FILE) or from a program (ssh HOST systx send … |)")
            .code(USAGE));
    }
    let volume = image::open(path)?;
    let mut from = Apart::new(BufReader::with_capacity(1 << 20, from));
    let header = apply(&volume, &mut from).map_err(|e| match (from.error.take(), e) {
        (Some(e), _) => Problem::new(format!("standard input: {e}")),
        (None, Error::NotFound) => {
            let why = "the snapshot that the difference starts from is not there";
            image::about(path, why).hint("receive the streams in the order in which they were sent")
        }
        (None, Error::Exists) => {
            let why = "it has a snapshot of the name of the stream's already";
            image::about(path, why)
                .hint("systx snapshots FILE lists them; was the stream received before?")
        }
        (None, e @ Error::Unfit(_)) => image::about(path, e).hint(
            "a whole stream is for a volume that was never mounted (systx mkfs, over this one with \
             --force), a difference for one that is as its snapshot",
        ),
        (None, e) => image::cannot(path, e),
    })?;
    volume.close().map_err(|e| image::cannot(path, e))?;
    let received = Received {
        file: HostPath::from(path),
        snapshot: header.name,
        of: image::hex(&header.id),
        difference: header.since.is_some(),
    };
    if out.json {
        out.json("received", &received);
    } else {
        let how = if received.difference { "as a difference" } else { "whole" };
        out.say(&format!("{}: received {:?}, {how}", path.display(), received.snapshot));
    }
    Ok(0)
}
