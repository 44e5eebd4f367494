//! `systx exec`: becomes a program that uses libsystx without privilege.

use crate::args::Exec;
use crate::problem::Problem;

/// Becomes it.
///
/// # Errors
/// The namespaces cannot be made, or the program not executed.
pub fn exec(args: &Exec) -> Result<i32, Problem> {
    Err(systx_session::become_server(&args.argv).into())
}
