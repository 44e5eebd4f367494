//! `systx enter`: runs a command, or a shell, inside an open transaction, which stays open.

use crate::args::Enter;
use crate::commands::run::{end_as, environment, fill, serve, wish};
use crate::output::Out;
use crate::problem::{FAILED, Problem};
use crate::{classes, context};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use systx_base::TxnId;
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::{Entered, FailureKind};
use systx_session::plan::Wish;
use systx_session::stand_in::StandIns;
use systx_session::{Backing, Ended, Leftovers, Listen, PlaceToRun, Spec, Started};

/// Enters it.
///
/// # Errors
/// There is no such transaction, or its view cannot be made.
pub fn enter(args: &Enter, out: Out) -> Result<i32, Problem> {
    let mut client = context::connect()?;
    let id = context::resolve_open(&mut client, &args.id)?;
    let status = client.ask(&call::Status { id })?.listed;
    let Entered { volume, others, live, mounted, unprotected } = client.ask(&call::Enter { id })?;
    let argv = if args.argv.is_empty() {
        let shell = std::env::var_os("SHELL").filter(|s| !s.is_empty());
        vec![shell.unwrap_or_else(|| OsString::from("/bin/sh"))]
    } else {
        args.argv.clone()
    };
    // A view for this visit alone.
    let ours = live.is_none() && mounted.is_none();
    // Where the transaction was begun; it may exist only inside.
    let cwd = match &args.directory {
        Some(dir) => std::env::current_dir()?.join(dir),
        None => status.cwd.as_path().to_owned(),
    };
    let wish = wish(&volume, &others, &cwd, false, (&[], &unprotected));
    let rules = classes::places(&wish.private, false);
    let backing = mounted.map_or(Backing::Fuse, |path| Backing::Directory(path.as_path().into()));
    let (place, known) = place(live, backing, wish);
    let limits = systx_session::Limits::default();
    let spec = Spec { argv, env: environment(id, Some(&cwd)), cwd, place, watch: false, limits };
    let mut serve_it = serve(&mut client, id, rules, out);
    let started = systx_session::start(&spec, &mut serve_it);
    drop(serve_it);
    let mut started = match started {
        Ok(started) => started,
        Err(e) => {
            if ours {
                let _ = client.ask(&call::Leave { id });
            }
            return Err(e.into());
        }
    };
    let ended = wait(&mut started, &client, id)?;
    if let Err(errno) = started.sync() {
        out.warn(&format!("writing back shared mappings: {errno}"));
    }
    if live.is_none() {
        for path in started.private_remains(&known).iter().take(5) {
            out.say(&format!("dropped, was private to this visit: {}", path.display()));
        }
    }
    if ours {
        match client.ask(&call::Leave { id }) {
            Err(f) if f.kind == FailureKind::NotFound => {
                out.say(&format!("transaction {id} was ended from outside meanwhile"));
            }
            other => other?,
        }
    }
    Ok(end_as(started, ended, ended.code().unwrap_or(FAILED)))
}

/// Where the command runs, and what is in it that is private to it.
fn place(live: Option<u32>, backing: Backing, wish: Wish) -> (PlaceToRun, Vec<PathBuf>) {
    if let Some(pid) = live {
        return (PlaceToRun::ViewOf(pid), Vec::new());
    }
    let fill = fill();
    let known = fill.iter().map(|f| f.path.clone()).collect();
    let stand_ins = StandIns::default();
    (PlaceToRun::NewView { backing, wish, fill, no_net: false, stand_ins }, known)
}

/// Waits for the command, and ends what it has left behind.
fn wait(started: &mut Started, client: &Client, id: TxnId) -> Result<Ended, Problem> {
    let listen = Listen { daemon: Some(client.as_fd()), ..Listen::default() };
    let failed = |e| Problem::new(format!("waiting for the command: {e}"));
    let mut ended = started.wait(&listen).map_err(failed)?;
    if ended != Ended::DaemonGone {
        let settled = started.settle(Leftovers::Kill, &listen).map_err(failed)?;
        ended = settled.interrupted.unwrap_or(ended);
    }
    match ended {
        Ended::DaemonGone => {
            Err(Problem::new(format!("the daemon ended; transaction {id} is lost")))
        }
        ended => Ok(ended),
    }
}
