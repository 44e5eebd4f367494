//! What `systx` is inside a run under the names of service managers' commands (see
//! [`systx_session::stand_in`]).
//!
//! A service manager runs outside and sees only what is committed. So what acts on services is put
//! on a list, to be done after the commit, and succeeds; what only changes files
//! (`systemctl enable`) is done at once by the real program, as in any root that is not booted;
//! what asks is asked of the real program.

use crate::output::aside;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use systx_protocol::{Action, HostPath};
use systx_session::stand_in::{DIR, LIST};

/// What is caught, where it is installed.
pub const SERVICES: [&str; 3] = ["systemctl", "service", "invoke-rc.d"];
/// Where root of systemd's own notes is while it runs.
pub const BOOTED: &str = "/run/systemd/system";

/// Programs that get other rights, which has no effect in an ordinary user's view.
pub const RIGHTS: [&str; 4] = ["sudo", "su", "doas", "pkexec"];

/// The name under which this process was started, if it is that of a stand-in.
pub fn name() -> Option<&'static str> {
    let own = std::env::args_os().next()?;
    let own = Path::new(&own).file_name()?.to_owned();
    SERVICES.into_iter().chain(RIGHTS).find(|n| *n == own)
}

/// Is `name`; gives its exit code, if it does not become the real one.
pub fn be(name: &str) -> i32 {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if RIGHTS.contains(&name) {
        aside(&format!(
            "systx: {name} gives no other rights inside a run of an ordinary user; \
             for a run with root's rights: sudo systx run -- CMD"
        ));
        return become_real(name, &args);
    }
    let words: Vec<String> = args.iter().map(|a| a.to_string_lossy().into_owned()).collect();
    let what = match name {
        "systemctl" if !Path::new(BOOTED).is_dir() => What::Real,
        "systemctl" => systemctl(&words),
        "service" => service(&words),
        _ => invoke_rc_d(&words),
    };
    match what {
        What::Real => become_real(name, &args),
        What::Later => later(&[action(name, args)]),
        What::FilesThen(real, after) => {
            let Some(mut program) = real_program(name) else { return missing(name) };
            match program.args(&real).env("SYSTEMD_OFFLINE", "1").status() {
                Ok(status) if status.success() => {
                    let to_action = |words: Vec<String>| words.into_iter().map(OsString::from);
                    let actions: Vec<Action> =
                        after.into_iter().map(|a| action(name, to_action(a))).collect();
                    if actions.is_empty() { 0 } else { later(&actions) }
                }
                Ok(status) => status.code().unwrap_or(1),
                Err(e) => {
                    aside(&format!("{name}: {e}"));
                    126
                }
            }
        }
    }
}

/// What becomes of one call.
#[derive(Debug, PartialEq, Eq)]
enum What {
    /// The real program does it.
    Real,
    /// It is done after the commit.
    Later,
    /// The real program changes files with these arguments; if it succeeds, these are done after
    /// the commit.
    FilesThen(Vec<String>, Vec<Vec<String>>),
}

/// Words of systemctl that act on what runs.
const ACTING: [&str; 37] = [
    "start",
    "stop",
    "restart",
    "try-restart",
    "condrestart",
    "reload",
    "reload-or-restart",
    "try-reload-or-restart",
    "reload-or-try-restart",
    "force-reload",
    "condreload",
    "condstop",
    "isolate",
    "kill",
    "clean",
    "freeze",
    "thaw",
    "set-property",
    "reset-failed",
    "daemon-reload",
    "daemon-reexec",
    "set-environment",
    "unset-environment",
    "import-environment",
    "cancel",
    "default",
    "rescue",
    "emergency",
    "halt",
    "poweroff",
    "reboot",
    "soft-reboot",
    "kexec",
    "suspend",
    "hibernate",
    "exit",
    "log-level",
];

/// Words of systemctl that change files, and what `--now` adds.
const FILES: [(&str, Option<&str>); 12] = [
    ("enable", Some("start")),
    ("disable", Some("stop")),
    ("reenable", Some("restart")),
    ("mask", Some("stop")),
    ("unmask", None),
    ("preset", None),
    ("preset-all", None),
    ("link", None),
    ("revert", None),
    ("add-wants", None),
    ("add-requires", None),
    ("set-default", None),
];

/// Options of systemctl whose value may be the next word.
const WITH_VALUE: [&str; 24] = [
    "-t",
    "--type",
    "-p",
    "--property",
    "-P",
    "-s",
    "--signal",
    "-n",
    "--lines",
    "-o",
    "--output",
    "-H",
    "--host",
    "-M",
    "--machine",
    "--root",
    "--image",
    "--state",
    "--job-mode",
    "--kill-who",
    "--kill-whom",
    "--what",
    "--preset-mode",
    "--when",
];

fn systemctl(words: &[String]) -> What {
    let mut rest = words.iter().enumerate();
    let mut verb = None;
    while let Some((i, word)) = rest.next() {
        // Another machine or another root: not about what is here.
        let elsewhere = ["-H", "-M", "--host", "--machine", "--root", "--image"];
        if elsewhere.iter().any(|e| word == e || word.starts_with(&format!("{e}="))) {
            return What::Real;
        }
        if WITH_VALUE.contains(&word.as_str()) {
            rest.next();
        } else if !word.starts_with('-') {
            verb = Some((i, word.as_str()));
            break;
        }
    }
    let Some((_, verb)) = verb else { return What::Real };
    if ACTING.contains(&verb) {
        return What::Later;
    }
    let Some((_, with_now)) = FILES.iter().find(|(v, _)| *v == verb) else { return What::Real };
    let real: Vec<String> = words.iter().filter(|w| *w != "--now").cloned().collect();
    let scope: Vec<String> = words
        .iter()
        .filter(|w| ["--user", "--global", "--system"].contains(&w.as_str()))
        .cloned()
        .collect();
    // For all users: no manager of theirs is told, as outside.
    if scope.iter().any(|s| s == "--global") {
        return What::Real;
    }
    let mut after = Vec::new();
    if !words.iter().any(|w| w == "--no-reload") {
        after.push([scope.clone(), vec!["daemon-reload".into()]].concat());
    }
    if let (Some(now), true) = (with_now, words.iter().any(|w| w == "--now")) {
        let units = units(words, verb);
        after.push([scope, vec![(*now).to_owned(), "--".into()], units].concat());
    }
    What::FilesThen(real, after)
}

/// What follows a verb and is no option.
fn units(words: &[String], verb: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut after = words.iter().skip_while(|w| *w != verb).skip(1);
    while let Some(word) = after.next() {
        if WITH_VALUE.contains(&word.as_str()) {
            after.next();
        } else if !word.starts_with('-') {
            found.push(word.clone());
        }
    }
    found
}

/// Words of init scripts that act on what runs.
const INIT: [&str; 9] = [
    "start",
    "stop",
    "restart",
    "reload",
    "force-reload",
    "try-restart",
    "condrestart",
    "force-stop",
    "rotate",
];

fn service(words: &[String]) -> What {
    let mut plain = words.iter().filter(|w| !w.starts_with("--"));
    match (plain.next(), plain.next()) {
        (Some(_), Some(what)) if INIT.contains(&what.as_str()) => What::Later,
        (Some(_), None) if words.iter().any(|w| w == "--full-restart") => What::Later,
        _ => What::Real,
    }
}

fn invoke_rc_d(words: &[String]) -> What {
    if words.iter().any(|w| w == "--query" || w == "--help") {
        return What::Real;
    }
    service(words)
}

fn action(name: &str, args: impl IntoIterator<Item = OsString>) -> Action {
    let args = args.into_iter().map(HostPath::from);
    [HostPath::from(name)].into_iter().chain(args).collect()
}

/// Puts actions on the list.
fn later(actions: &[Action]) -> i32 {
    let mut lines = Vec::new();
    for action in actions {
        if serde_json::to_writer(&mut lines, action).is_err() {
            return 1;
        }
        lines.push(b'\n');
    }
    let open = std::fs::OpenOptions::new()
        .append(true)
        .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
        .open(LIST);
    // One call: what several processes append stays apart.
    if let Err(e) = open.and_then(|mut list| list.write_all(&lines)) {
        aside(&format!(
            "systx: this cannot be put on the list of what is done after the commit: {e}"
        ));
        return 1;
    }
    for action in actions {
        aside(&format!("systx: after the commit: {}", crate::output::command(action)));
    }
    0
}

fn real_program(name: &str) -> Option<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let real = find(name, &path)?;
    let mut command = Command::new(real);
    command.arg0(name);
    Some(command)
}

/// Where a command is, outside of our own directory.
pub fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    let usual = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    std::env::split_paths(path)
        .chain(usual.map(PathBuf::from))
        .filter(|dir| dir != Path::new(DIR))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

fn become_real(name: &str, args: &[OsString]) -> i32 {
    let Some(mut command) = real_program(name) else { return missing(name) };
    let e = command.args(args).exec();
    aside(&format!("{name}: {e}"));
    126
}

fn missing(name: &str) -> i32 {
    aside(&format!("{name}: not found"));
    127
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_acts_is_told_from_what_asks_and_what_changes_files() {
        let what = |line: &str| systemctl(&words(line));
        for line in ["restart nginx", "--quiet --system daemon-reload", "-s HUP kill x", "reboot"] {
            assert_eq!(what(line), What::Later, "{line}");
        }
        for line in
            ["is-active x", "", "--version", "status x", "-H a restart x", "--root=/x enable y"]
        {
            assert_eq!(what(line), What::Real, "{line}");
        }
        let reload = words("daemon-reload");
        assert_eq!(what("enable a"), What::FilesThen(words("enable a"), vec![reload.clone()]));
        assert_eq!(
            what("--now enable a b"),
            What::FilesThen(words("enable a b"), vec![reload, words("start -- a b")])
        );
        assert_eq!(
            what("--user disable --now a"),
            What::FilesThen(
                words("--user disable a"),
                vec![words("--user daemon-reload"), words("--user stop -- a")]
            )
        );
        assert_eq!(service(&words("cron restart")), What::Later);
        assert_eq!(service(&words("cron status")), What::Real);
        assert_eq!(service(&words("--status-all")), What::Real);
        assert_eq!(invoke_rc_d(&words("--quiet cron start")), What::Later);
        assert_eq!(invoke_rc_d(&words("--query cron start")), What::Real);
    }
}
