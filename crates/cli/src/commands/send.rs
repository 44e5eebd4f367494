//! `systx send`: a snapshot, or what lies between two, as a stream.

use crate::args::Send;
use crate::image::{self, Apart};
use crate::output::{self, Out};
use crate::problem::{Problem, USAGE};
use serde::Serialize;
use std::io::{BufWriter, IsTerminal};
use systx_lfs::{Error, send as write};
use systx_protocol::HostPath;

#[derive(Serialize)]
struct Sent {
    file: HostPath,
    snapshot: String,
    since: Option<String>,
    bytes: u64,
}

/// Writes it to standard output.
///
/// # Errors
/// It is no volume, damaged, or in use; there is no such snapshot; nobody reads the output.
pub fn send(args: &Send, out: Out) -> Result<i32, Problem> {
    let path = args.image.file.as_path();
    let to = std::io::stdout().lock();
    if to.is_terminal() {
        return Err(Problem::new("a stream is nothing for a terminal")
            .hint("send it to a file (> FILE) or to a program (| ssh HOST systx receive …)")
            .code(USAGE));
    }
    let volume = image::open_to_read(path)?;
    let snapshots = volume.snapshots();
    let latest = || snapshots.last().map(|s| s.name.clone());
    let Some(snapshot) = args.snapshot.clone().or_else(latest) else {
        let why = "it has no snapshot, and a snapshot is what is sent";
        return Err(image::about(path, why).hint("systx snapshot FILE NAME makes one"));
    };
    for name in [Some(&snapshot), args.since.as_ref()].into_iter().flatten() {
        if !snapshots.iter().any(|s| s.name == *name) {
            return Err(image::cannot_snapshot(path, name, Error::NotFound));
        }
    }
    let mut to = Apart::new(BufWriter::with_capacity(1 << 20, to));
    let bytes = write(&volume, &snapshot, args.since.as_deref(), &mut to).map_err(|e| match to
        .error
        .take()
    {
        Some(e) => Problem::new(format!("standard output: {e}"))
            .hint("what was written is not a whole stream: no volume receives it"),
        None => image::cannot(path, e),
    })?;
    let sent = Sent { file: HostPath::from(path), snapshot, since: args.since.clone(), bytes };
    if out.json {
        out.json_aside("sent", &sent);
    } else {
        let since = sent.since.as_ref().map_or(String::new(), |name| format!(" since {name:?}"));
        out.say(&format!("sent {:?}{since}: {}", sent.snapshot, output::size(bytes)));
    }
    Ok(0)
}
