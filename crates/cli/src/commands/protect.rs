//! `systx protect`: what is protected by transactions, and what is outside of them.

use crate::args::Protect;
use crate::commands::mount;
use crate::context;
use crate::output::{self, Out};
use crate::problem::{Problem, USAGE};
use std::path::Path;
use systx_protocol::{self as protocol, HostPath, Protection};

/// Shows it, or changes it.
///
/// # Errors
/// There is no such path, it cannot be marked, or the daemon does not answer.
pub fn protect(args: &Protect, out: Out) -> Result<i32, Problem> {
    let (path, change) = wanted(args)?;
    let about = protocol::Protect {
        path: path
            .map(|path| std::env::current_dir().map(|cwd| cwd.join(path)))
            .transpose()?
            .map(HostPath::from),
        change,
        mnt_ns: mount::namespace()?,
    };
    let listed = about.path.is_none();
    let found = context::connect()?.ask(&about)?;
    if out.json {
        match found.first().filter(|_| !listed) {
            Some(one) => out.json("protection", one),
            None => out.json("protections", &found),
        }
        return Ok(0);
    }
    for one in &found {
        let line = sentence(one);
        if change.is_some() {
            out.say(&line)
        } else {
            output::print(&format!("{line}\n"))
        }
        one.notes.iter().for_each(|note| out.say(note));
    }
    if found.is_empty() {
        out.say("everything is protected");
    }
    Ok(0)
}

/// What is marked, and there.
///
/// # Errors
/// The list cannot be used, or the daemon does not answer.
pub(super) fn marks() -> Result<Vec<HostPath>, Problem> {
    let about = protocol::Protect { path: None, change: None, mnt_ns: 0 };
    let all = context::connect()?.ask(&about)?;
    Ok(all.into_iter().filter(|one| !one.protected).map(|one| one.path).collect())
}

/// Of what, and what is to be done.
fn wanted(args: &Protect) -> Result<(Option<&Path>, Option<bool>), Problem> {
    let change = match args.first.as_deref().and_then(Path::to_str) {
        Some("on") => Some(true),
        Some("off") => Some(false),
        _ => None,
    };
    match (&args.first, &args.path, change) {
        (_, Some(path), Some(_)) => Ok((Some(path), change)),
        (_, None, Some(on)) => {
            let word = if on { "on" } else { "off" };
            Err(Problem::new(format!("which PATH is to be protected, {word}?"))
                .hint(format!("systx protect {word} PATH; a file of that name is ./{word}"))
                .code(USAGE))
        }
        (Some(first), Some(_), None) => {
            let first = first.display();
            Err(Problem::new(format!("{first} is neither on nor off"))
                .hint("systx protect on|off PATH; systx protect PATH")
                .code(USAGE))
        }
        (first, _, None) => Ok((first.as_deref(), None)),
    }
}

fn sentence(one: &Protection) -> String {
    let Protection { path, protected, mark, .. } = one;
    match (protected, mark) {
        (true, None) => format!("{path}: protected"),
        (true, Some(_)) => format!("{path}: protected; what was marked is not there any more"),
        (false, Some(mark)) if mark != path => format!("{path}: not protected, as {mark}"),
        (false, _) => format!("{path}: not protected"),
    }
}
