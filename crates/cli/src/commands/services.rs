//! What a run wanted of service managers: caught in it, kept with its commit, and done afterwards.
//!
//! `systx services` lists what was not done yet, does it, or forgets it.

use crate::args::{Services, ServicesArg};
use crate::context;
use crate::output::{self, Out};
use crate::problem::{ERROR, Problem};
use crate::stand_in::{self, BOOTED, RIGHTS, SERVICES};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{BufRead, IsTerminal};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use systx_base::TxnId;
use systx_protocol::call;
use systx_protocol::client::Client;
use systx_protocol::{Action, Deferred, HostPath, Settle};
use systx_session::Fill;
use systx_session::stand_in::{DIR, LIST, StandIns};

/// What became of an action.
#[derive(Debug, Serialize)]
pub struct Done {
    /// The command.
    pub action: Action,
    /// `done`, `failed`, `waits`, `dropped`.
    pub state: &'static str,
}

/// The stand-ins of a run, for what is installed here.
pub fn stand_ins() -> StandIns {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let rights = RIGHTS.iter().filter(|_| !systx_session::privileged());
    let wanted = SERVICES.iter().chain(rights);
    let names = wanted.filter(|n| stand_in::find(n, &path).is_some()).map(|n| (*n).to_owned());
    match std::env::current_exe() {
        Ok(program) => StandIns { program, names: names.collect() },
        Err(_) => StandIns::default(),
    }
}

/// What they need in the private /run.
pub fn fill() -> Vec<Fill> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Only who could do it outside may put something on the list.
    let list = Fill { path: LIST.into(), content: Some(Vec::new()), mode: 0o600, owner };
    let mut all = vec![list];
    if Path::new(BOOTED).is_dir() {
        // Scripts ask by this directory whether systemd runs.
        all.push(Fill { path: BOOTED.into(), content: None, mode: 0o755, owner: (0, 0) });
    }
    all
}

/// `PATH` with the stand-ins first.  Who has none gets none: a shell that finds no `PATH` has one
/// of its own.
pub fn path(these: &StandIns) -> Option<(OsString, OsString)> {
    if these.names.is_empty() {
        return None;
    }
    let path = std::env::var_os("PATH")?;
    let mut with = OsString::from(DIR);
    with.push(":");
    with.push(path);
    Some(("PATH".into(), with))
}

/// The list that a run has left, without what is none of it and without repetition.
pub fn parse(lines: &[Vec<u8>]) -> Vec<Action> {
    let mut actions: Vec<Action> = Vec::new();
    for line in lines {
        let Ok(action) = serde_json::from_slice::<Action>(line) else { continue };
        let known = action.first().is_some_and(|name| {
            SERVICES.iter().any(|s| name.0 == s.as_bytes())
                && action.iter().all(|word| !word.0.contains(&0))
        });
        // Everything is there by then: one look at the units is enough.
        let reload = action.len() <= 3 && action.last() == Some(&HostPath::from("daemon-reload"));
        let again = actions.last() == Some(&action) || reload && actions.contains(&action);
        if known && !again {
            actions.push(action);
        }
    }
    actions
}

/// Sentences about a list whose transaction is not committed.
pub fn tell_dropped(out: Out, actions: &[Action], kept: bool) {
    for action in actions {
        let command = output::command(action);
        match kept {
            true => out.say(&format!("waits for the commit: {command}")),
            false => out.say(&format!("not done, since nothing was committed: {command}")),
        }
    }
}

/// Does what a committed transaction wanted done, or not, and says so.
pub fn carry_out(
    client: &mut Client,
    id: TxnId,
    actions: &[Action],
    how: ServicesArg,
    out: Out,
) -> Vec<Done> {
    let how = match how {
        ServicesArg::Ask if !ask(actions, out) => None,
        ServicesArg::Ask => Some(ServicesArg::Run),
        other => Some(other),
    };
    let mut done = Vec::new();
    for action in actions {
        let command = output::command(action);
        let state = match how {
            None => {
                out.say(&format!("not done yet: {command}"));
                "waits"
            }
            Some(ServicesArg::Skip) => {
                out.say(&format!("not done (--services=skip): {command}"));
                "dropped"
            }
            Some(_) => {
                out.say(&format!("after the commit: {command}"));
                match execute(action) {
                    Ok(()) => "done",
                    Err(why) => {
                        out.warn(&format!("{command}: {why}"));
                        "failed"
                    }
                }
            }
        };
        done.push(Done { action: action.clone(), state });
    }
    let left: Vec<Action> = done
        .iter()
        .filter(|d| matches!(d.state, "waits" | "failed"))
        .map(|d| d.action.clone())
        .collect();
    if !left.is_empty() {
        out.hint(&format!(
            "systx services --run {id} does it, systx services --drop {id} forgets it"
        ));
    }
    if left.len() < done.len()
        && let Err(e) = client.ask(&Settle { place: None, id, left })
    {
        out.warn(&format!("it was done, but the list still has it: {e}"));
    }
    done
}

fn ask(actions: &[Action], out: Out) -> bool {
    let stdin = std::io::stdin();
    if actions.is_empty() || out.json || !stdin.is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    for action in actions {
        output::aside(&format!("  {}", output::command(action)));
    }
    output::aside_bytes(b"systx: the run wanted this done after its commit; now? [y/N] ");
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).is_ok()
        && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

fn execute(action: &[HostPath]) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt;
    let os = |word: &HostPath| std::ffi::OsStr::from_bytes(&word.0).to_owned();
    let (Some(name), args) = (action.first(), action.get(1..).unwrap_or_default()) else {
        return Ok(());
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program =
        stand_in::find(&name.display(), &path).ok_or_else(|| format!("there is no {name} here"))?;
    let mut command = Command::new(program);
    command.args(args.iter().map(os)).stdin(Stdio::null());
    // Standard output is the command's own.
    if let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned() {
        command.stdout(Stdio::from(stderr));
    }
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

/// `systx services`.
///
/// # Errors
/// The store cannot be used, or nothing waits by that id.
pub fn services(args: &Services, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut client = context::connect()?;
    let waiting = client.ask(&call::Deferred(Some(place)))?;
    let wanted = args.run.as_ref().or(args.drop.as_ref());
    let Some(prefix) = wanted else {
        if out.json {
            out.json("services", &waiting);
        } else if waiting.is_empty() {
            out.say("nothing waits to be done");
        } else {
            output::print(&waiting.iter().map(lines).collect::<String>());
        }
        return Ok(0);
    };
    let ids: Vec<TxnId> = waiting.iter().map(|d| d.id).collect();
    let id = context::resolve(prefix, &ids, "waiting")
        .map_err(|p| p.hint("`systx services` lists what waits"))?;
    let actions: Vec<Action> =
        waiting.into_iter().filter(|d| d.id == id).flat_map(|d| d.actions).collect();
    let how = if args.run.is_some() { ServicesArg::Run } else { ServicesArg::Skip };
    let done = carry_out(&mut client, id, &actions, how, out);
    if out.json {
        out.json("services", &done);
    }
    Ok(if done.iter().any(|d| d.state == "failed") { ERROR } else { 0 })
}

/// What waits of one transaction, a line an action.
pub fn lines(d: &Deferred) -> String {
    d.actions.iter().map(|a| format!("{}  {}\n", d.id, output::command(a))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_only_what_is_caught_and_no_repetition() {
        let lines: Vec<Vec<u8>> = [
            r#"["systemctl","daemon-reload"]"#,
            r#"["systemctl","restart","a"]"#,
            r#"["systemctl","restart","a"]"#,
            r#"["rm","-rf","/"]"#,
            r#"not json"#,
            r#"[]"#,
            r#"["systemctl","daemon-reload"]"#,
            r#"["systemctl","stop","a"]"#,
            r#"["systemctl","restart","a"]"#,
        ]
        .iter()
        .map(|l| l.as_bytes().to_vec())
        .collect();
        let told: Vec<String> = parse(&lines).iter().map(|a| output::command(a)).collect();
        let wanted = [
            "systemctl daemon-reload",
            "systemctl restart a",
            "systemctl stop a",
            "systemctl restart a",
        ];
        assert_eq!(told, wanted);
    }
}
