//! `systx begin`: begins a transaction that is a directory.

use crate::args::{Begin, IsolationArg, TransportArg};
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use systx_daemon::protocol::{BeginOpen, HostPath, Isolation, Place, Transport};

/// Begins it.
///
/// # Errors
/// The directory is not there, or its view cannot be made.
pub fn begin(args: &Begin, out: Out) -> Result<i32, Problem> {
    let mut client = context::connect()?;
    let named = args.directory.display();
    let directory = std::fs::canonicalize(&args.directory)
        .map_err(|e| Problem::new(format!("cannot find {named}: {e}")))?;
    if !directory.is_dir() {
        return Err(Problem::new(format!("{named} is not a directory")));
    }
    let store = match &args.store {
        Some(dir) => Some(HostPath::from(std::env::current_dir()?.join(dir))),
        None => None,
    };
    let retry = match &args.retry {
        Some(id) => Some(context::resolve_open(&mut client, id)?),
        None => None,
    };
    let begun = client.begin_open(BeginOpen {
        retry,
        place: Place { cwd: HostPath::from(directory), root: None, store },
        isolation: match args.isolation {
            IsolationArg::Serializable => Isolation::Serializable,
            IsolationArg::Snapshot => Isolation::Snapshot,
        },
        read_only: args.read_only,
        nice: args.nice.unwrap_or_else(|| rustix::process::getpriority_process(None).unwrap_or(0)),
        transport: match args.transport {
            TransportArg::Auto => Transport::Auto,
            TransportArg::IoUring => Transport::IoUring,
            TransportArg::Dev => Transport::Dev,
        },
    })?;
    if out.json {
        out.json("begun", &begun);
        return Ok(0);
    }
    for note in &begun.notes {
        out.say(note);
    }
    let mut line = format!("{} ", begun.id).into_bytes();
    line.extend_from_slice(&begun.path.0);
    line.push(b'\n');
    output::print_bytes(&line);
    let id = begun.id;
    out.hint(&format!(
        "work below that path; systx diff {id}; systx commit {id}; systx abort {id}"
    ));
    Ok(0)
}
