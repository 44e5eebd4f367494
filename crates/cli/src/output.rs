//! What is said, and how: results on stdout, everything else on stderr behind `systx:`; with
//! `--json` one object whose `schema` number changes whenever a field changes its meaning or goes.

use crate::args::Global;
use crate::problem::Problem;
use jiff::Timestamp;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use systx_base::{Time, TxnId, shown, shown_lines};
use systx_protocol::{Held, HeldAs, Holder, HostPath, Opponent, Summary};

/// Version of the JSON output.
pub const SCHEMA: u32 = 1;

/// How to speak.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// As JSON.
    pub json: bool,
    /// More, 0 to …
    pub verbose: u8,
    /// Errors only.
    pub quiet: bool,
}

impl Out {
    /// As the user wants it.
    pub fn new(global: &Global) -> Out {
        Out { json: global.json, verbose: global.verbose, quiet: global.quiet }
    }

    /// Something the user should know.
    pub fn say(&self, text: &str) {
        if !self.quiet && !self.json {
            aside(&format!("systx: {text}"));
        }
    }
    /// Something that only the curious want to know.
    pub fn detail(&self, text: &str) {
        if self.verbose > 0 {
            self.say(text);
        }
    }
    /// Something that is not as it should be.
    pub fn warn(&self, text: &str) {
        if !self.json {
            painted("systx: warning:", YELLOW, text);
        }
    }
    /// A next step.
    pub fn hint(&self, text: &str) {
        if !self.quiet && !self.json {
            painted("hint:", CYAN, text);
        }
    }
    /// What went wrong.  As JSON on stdout, or on stderr for commands whose stdout is CMD's.
    pub fn problem(&self, problem: &Problem, stdout_is_theirs: bool) {
        if self.json {
            if stdout_is_theirs {
                self.json_aside("error", problem);
            } else {
                self.json("error", problem);
            }
            return;
        }
        painted("systx:", RED, &without_numbers(&problem.message));
        let unnamed = |p: &&HostPath| !problem.message.contains(&*p.display());
        for path in problem.paths.iter().filter(unnamed) {
            aside(&format!("systx:   {path}"));
        }
        for holder in &problem.holders {
            aside(&format!("systx:   {}", self::holder(holder)));
        }
        if let Some(hint) = &problem.hint {
            self.hint(hint);
        }
    }
    /// The result of a command as JSON on stdout.
    pub fn json(&self, name: &str, value: &impl Serialize) {
        put(format!("{}\n", json_text(name, value)).as_bytes());
    }
    /// Two of them in one document.
    pub fn json_both(&self, one: (&str, &impl Serialize), other: (&str, &impl Serialize)) {
        let mut map = json_map(one.0, one.1);
        map.extend(json_map(other.0, other.1));
        put(format!("{}\n", serde_json::Value::Object(map)).as_bytes());
    }
    /// The same on stderr, for run.
    pub fn json_aside(&self, name: &str, value: &impl Serialize) {
        aside_bytes(format!("{}\n", json_text(name, value)).as_bytes());
    }
}

/// A message without the numbers of errors, which its words say: `Permission denied (os error 13)`.
fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => {
                out.push_str(rest)
            }
            _ => out.push_str(&format!(" (os error {part}")),
        }
    }
    out
}

fn json_text(name: &str, value: &impl Serialize) -> String {
    serde_json::Value::Object(json_map(name, value)).to_string()
}

fn json_map(name: &str, value: &impl Serialize) -> serde_json::Map<String, serde_json::Value> {
    let mut map = serde_json::Map::new();
    map.insert("schema".into(), SCHEMA.into());
    let value = serde_json::to_value(value).unwrap_or(serde_json::Value::Null);
    map.insert(name.into(), value);
    map
}

/// A line on stderr, of which everything is shown ([`shown`]).  Where nobody can read it any more
/// (a closed pipe, a full disk), it is not said: what was done stays done, and the exit code tells
/// of it.
pub fn aside(text: &str) {
    aside_bytes(format!("{}\n", shown(text.as_bytes())).as_bytes());
}

/// The same after a word in a color.
fn painted(word: &str, color: &str, text: &str) {
    let word = paint(word, color);
    aside_bytes(format!("{word} {}\n", shown(text.as_bytes())).as_bytes());
}

/// As [`aside`], without the end of the line, and as it is.
pub fn aside_bytes(bytes: &[u8]) {
    let _ = std::io::stderr().lock().write_all(bytes);
}

/// Writes lines to stdout, of which everything is shown ([`shown_lines`]); a reader that went away
/// ends the program quietly.
pub fn print(text: &str) {
    put(shown_lines(text.as_bytes()).as_bytes());
}

/// As [`print()`], where the reader may be a program: as it is, but on a terminal.
pub fn print_bytes(bytes: &[u8]) {
    match std::io::stdout().is_terminal() {
        true => put(shown_lines(bytes).as_bytes()),
        false => put(bytes),
    }
}

fn put(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(crate::problem::ERROR);
    }
}

const RED: &str = "31";
const YELLOW: &str = "33";
const CYAN: &str = "36";

fn paint(text: &str, color: &str) -> String {
    let wanted = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
    if wanted { format!("\u{1b}[{color}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// `3 added, 1 modified; 1.2 MB`; `nothing` if so.
pub fn summary(s: &Summary) -> String {
    let parts: Vec<String> = [
        (s.added, "added"),
        (s.modified, "modified"),
        (s.deleted, "deleted"),
        (s.renamed, "renamed"),
        (s.attributes, "with other attributes"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
    .collect();
    match (parts.is_empty(), s.bytes) {
        (true, _) => "nothing changed".into(),
        (false, 0) => parts.join(", "),
        (false, bytes) => format!("{}; {}", parts.join(", "), size(bytes)),
    }
}

/// True if a transaction changed nothing.
pub fn is_empty(s: &Summary) -> bool {
    *s == Summary { bytes: s.bytes, ..Summary::default() }
}

/// `512 bytes`, `1.2 MB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} bytes");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A command as one would type it.
pub fn command(argv: &[HostPath]) -> String {
    argv.iter().map(|a| quote(&a.display())).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The same, short enough for a line.
pub fn short_command(argv: &[HostPath], most: usize) -> String {
    let text = command(argv);
    if text.chars().count() <= most {
        return text;
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Against whom, for a sentence.
pub fn opponent(o: &Opponent) -> String {
    match o {
        Opponent::Transaction { id: TxnId(0), .. } => "another user's transaction".into(),
        Opponent::Transaction { id, argv, .. } if argv.is_empty() => format!("transaction {id}"),
        Opponent::Transaction { id, argv, .. } => {
            format!("transaction {id} ({})", short_command(argv, 60))
        }
        Opponent::Outside { what, .. } => format!("a program outside ({what})"),
    }
}

/// `1234 (bash): working directory /srv/mail, open /srv/mail/log`.
pub fn holder(h: &Holder) -> String {
    const MOST: usize = 3;
    let one = |held: &Held| {
        let how = match held.how {
            HeldAs::Descriptor => "open",
            HeldAs::Directory => "working directory",
            HeldAs::Root => "root directory",
            HeldAs::Program => "program",
            HeldAs::Map => "mapped",
        };
        format!("{how} {}", held.path)
    };
    let mut held: Vec<String> = h.held.iter().take(MOST).map(one).collect();
    match h.held.len().saturating_sub(MOST) {
        0 => {}
        more => held.push(format!("and {more} more")),
    }
    format!("{} ({}): {}", h.pid, h.command, held.join(", "))
}

/// `2026-11-21 02:40:10Z`.
pub fn time(t: Time) -> String {
    match Timestamp::from_second(t.secs) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        // Of a damaged record.
        Err(_) => format!("{} s", t.secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_in_words() {
        let text =
            without_numbers("cannot open /x: Permission denied (os error 13); or (os error y");
        assert_eq!(text, "cannot open /x: Permission denied; or (os error y");
    }

    #[test]
    fn times_are_dates() {
        let at = |secs| time(Time { secs, nanos: 0 });
        assert_eq!(at(0), "1970-01-01 00:00:00Z");
        assert_eq!(at(951_827_696), "2000-02-29 12:34:56Z");
        assert_eq!(at(-1), "1969-12-31 23:59:59Z");
    }

    #[test]
    fn sizes_and_summaries() {
        assert_eq!(size(999), "999 bytes");
        assert_eq!(size(1_250_000), "1.2 MB");
        assert_eq!(size(999_999), "1.0 MB");
        let s = Summary { added: 3, deleted: 1, bytes: 2000, ..Summary::default() };
        assert_eq!(summary(&s), "3 added, 1 deleted; 2.0 kB");
        assert!(is_empty(&Summary { bytes: 7, ..Summary::default() }) && !is_empty(&s));
    }

    #[test]
    fn commands_are_quoted_where_need_be() {
        let argv: Vec<HostPath> = ["sh", "-c", "echo 'x'", ""].map(HostPath::from).to_vec();
        assert_eq!(command(&argv), "sh -c 'echo '\\''x'\\''' ''");
        assert_eq!(short_command(&argv, 6), "sh -c…");
    }
}
