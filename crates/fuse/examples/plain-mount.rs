//! Guards a directory: mounts a plain view of it over itself until standard input ends.  Prints
//! `ready` when programs may begin.  Needs root and /dev/fuse.
//! `cargo run -p systx-fuse --example plain-mount -- DIR`
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::path::PathBuf;

#[path = "../tests/guarded/mod.rs"]
mod guarded;

fn main() -> std::io::Result<()> {
    let dir = std::env::args_os().nth(1).map(PathBuf::from).ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::InvalidInput, "usage: plain-mount DIR")
    })?;
    let mount = guarded::Guarded::unwatched(&dir)?;
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(mount);
    Ok(())
}
