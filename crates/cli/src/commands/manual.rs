//! `systx manual`: the man pages of the commands.

use crate::args::{Cli, Manual};
use crate::problem::Problem;
use clap::CommandFactory;

/// Writes them into a directory, which is made if it is not there.
///
/// # Errors
/// The directory cannot be written to.
pub fn manual(args: &Manual) -> Result<i32, Problem> {
    std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.dir))
        .map_err(|e| {
            Problem::new(format!("cannot write man pages to {}: {e}", args.dir.display()))
        })?;
    Ok(0)
}
