//! `systx daemon`: the daemon itself.  Started by the other commands, not by hand.

use crate::log_limit::{LogLimit, to_stderr};
use crate::problem::Problem;
use std::ffi::OsString;
use std::sync::Arc;
use systx_daemon::keeper;
use systx_daemon::ledger::Ledger;
use systx_daemon::spawn;
use systx_protocol::places::STATE_VARIABLE;
use systx_protocol::runtime::{self, Part, Runtime};
use systx_protocol::{Control, Failure, FailureKind};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Becomes the daemon.
///
/// # Errors
/// It cannot; whoever started it was told.
pub fn daemon(args: &[OsString]) -> Result<i32, Problem> {
    let (part, dir) = runtime::arguments(args.iter().cloned())?;
    runtime::take_name();
    match part {
        Part::Detach => {
            spawn::detach(&dir)?;
            return Ok(0);
        }
        Part::Keep => {
            keeper::keep(&dir)?;
            return Ok(0);
        }
        Part::Serve => {}
    }
    let filter = tracing_subscriber::EnvFilter::try_from_env("SYSTX_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        // It would say on stderr, or panic, that stderr is full.
        .log_internal_errors(false);
    // The limit is asked after the filter.
    let limited = tracing_subscriber::registry().with(LogLimit::new(to_stderr)).with(filter);
    limited.with(lines).init();
    spawn::serve(&dir, control)?;
    Ok(0)
}

fn control(runtime: Runtime) -> Result<Arc<dyn Control>, Failure> {
    let inject = spawn::inject()?;
    let ledger = Ledger::find(Some(runtime.dir())).map_err(|e| {
        Failure::new(FailureKind::Io, format!("no place to note which stores are here: {e}"))
            .hint(format!("name one with {}", STATE_VARIABLE))
    })?;
    Ok(systx_daemon::daemon::Daemon::start(Some(runtime), ledger, inject))
}
