//! `systx diff`: what a transaction changed.

use crate::args::{Diff, DiffFormat};
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::{context, render};
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::{Change, Target};

/// Shows it.
///
/// # Errors
/// There is no such transaction, or the daemon does not answer.
pub fn diff(args: &Diff, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let paths = context::absolute_paths(&args.paths)?;
    let (mut client, target) = match context::find_open(&args.id) {
        Ok((client, id)) => (client, Target::Open { id }),
        Err(open) => {
            let mut client = context::connect()?;
            match context::resolve_committed(&mut client, &args.id, &place) {
                Ok(id) => (client, Target::Committed { place, id }),
                Err(_) => return Err(open),
            }
        }
    };
    let changes = client.ask(&call::Diff { target: target.clone(), paths })?;
    if out.json {
        out.json("changes", &changes);
    } else {
        show(&mut client, &target, &changes, args.format)?;
    }
    Ok(i32::from(args.exit_code && !changes.is_empty()))
}

/// Prints changes in the wanted form.
///
/// # Errors
/// Content cannot be had.
pub fn show(
    client: &mut Client,
    target: &Target,
    changes: &[Change],
    format: DiffFormat,
) -> Result<(), Problem> {
    if format.name_status {
        output::print_bytes(&render::name_status(changes, format.nul));
    } else if format.name_only {
        output::print_bytes(&render::name_only(changes, format.nul));
    } else {
        let mut contents = render::Contents::new(client, target.clone());
        if format.stat {
            let text = render::stat(changes, &mut contents)?;
            output::print_bytes(&text);
        } else {
            for change in changes {
                let text = render::unified(change, &mut contents)?;
                output::print_bytes(&text);
            }
        }
    }
    Ok(())
}
