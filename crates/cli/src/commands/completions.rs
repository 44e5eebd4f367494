//! `systx completions`: a completion script for a shell.

use crate::args::{Cli, Completions};
use crate::output;
use crate::problem::Problem;
use clap::CommandFactory;

/// Prints it.
///
/// # Errors
/// None.
pub fn completions(args: &Completions) -> Result<i32, Problem> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "systx", &mut script);
    output::print_bytes(&script);
    Ok(0)
}
