//! `systx begin`: begins a transaction that is a directory.

use crate::args::{Begin, IsolationArg, TransportArg};
use crate::context;
use crate::output::{self, Out};
use crate::problem::Problem;
use rustix::fs::{Mode, OFlags};
use std::os::fd::AsFd;
use systx_protocol::{BeginOpen, HostPath, Isolation, Place, Transport};

/// Begins it.
///
/// # Errors
/// The directory is not there, or its view cannot be made.
pub fn begin(args: &Begin, out: Out) -> Result<i32, Problem> {
    let named = args.directory.display();
    let directory = std::fs::canonicalize(&args.directory)
        .map_err(|e| Problem::new(format!("cannot find {named}: {e}")))?;
    if !directory.is_dir() {
        return Err(Problem::new(format!("{named} is not a directory")));
    }
    let guest = match context::is_of_another_daemon(&directory) {
        true => context::connect_as_guest()?,
        false => None,
    };
    let is_guest = guest.is_some();
    let mut client = match guest {
        Some(client) => client,
        None => context::connect()?,
    };
    let opened = if is_guest {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Some(
            rustix::fs::open(&directory, flags, Mode::empty())
                .map_err(|e| Problem::new(format!("cannot open {named}: {e}")))?,
        )
    } else {
        None
    };
    let store = match &args.store {
        Some(dir) => Some(HostPath::from(std::env::current_dir()?.join(dir))),
        None => None,
    };
    let retry = match &args.retry {
        Some(id) => Some(context::resolve_open(&mut client, id)?),
        None => None,
    };
    let wanted = BeginOpen {
        retry,
        place: Place { cwd: HostPath::from(directory), root: None, store },
        isolation: match args.isolation {
            IsolationArg::Serializable => Isolation::Serializable,
            IsolationArg::Snapshot => Isolation::Snapshot,
        },
        read_only: args.read_only,
        nice: args.nice,
        policy: args.policy.map(Into::into),
        transport: match args.transport {
            TransportArg::Auto => Transport::Auto,
            TransportArg::IoUring => Transport::IoUring,
            TransportArg::Dev => Transport::Dev,
        },
    };
    let begun = match &opened {
        Some(directory) => client.ask_with(&wanted, &[directory.as_fd()])?,
        None => client.ask(&wanted)?,
    };
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
