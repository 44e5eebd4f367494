//! What the documents show happens: every fenced block of README.md and docs/*.md is run, checked,
//! or says why not.
//!
//! The word behind the fence says what a block is:
//! - `console`: commands after `$ `, each with what it prints, standard error included. They run in
//!   their order, in one shell for the whole document, on a file system of their own, which is /srv
//!   in the text. Ids, times and the place of views may be others; `…` stands for any text, and
//!   alone on a line for any lines.
//! - `synopsis`: a command to a line; each of them exists.
//! - `gitignore`: a .systxignore file, which is taken without a remark.
//! - Behind any other block stands `(Not run by the tests: WHY.)`.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use systx_e2e::{Lab, lab};

const NOT_RUN: &str = "(Not run by the tests: ";
/// In front of a command's exit code.
const END: &str = "\u{1}end of it ";
const LIMIT: Duration = Duration::from_secs(60);

struct Block {
    file: PathBuf,
    line: usize,
    kind: String,
    lines: Vec<String>,
    /// The first line behind it that is not empty.
    after: String,
}

fn documents() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
    let docs = fs::read_dir(top.join("docs")).expect("docs").flatten().map(|e| e.path());
    let mut all: Vec<_> = docs.filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    all.push(top.join("README.md"));
    all.sort();
    all
}

fn blocks(file: &Path) -> Vec<Block> {
    let text = fs::read_to_string(file).expect("a document");
    let lines: Vec<&str> = text.lines().collect();
    let (mut all, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        let Some(kind) = lines[at].trim().strip_prefix("```") else {
            at += 1;
            continue;
        };
        let end = (at + 1..lines.len()).find(|i| lines[*i].trim() == "```");
        let end = end.unwrap_or_else(|| panic!("{}:{}: never ends", file.display(), at + 1));
        let after = lines[end + 1..].iter().find(|l| !l.trim().is_empty()).unwrap_or(&"");
        all.push(Block {
            file: file.to_owned(),
            line: at + 1,
            kind: kind.trim().to_owned(),
            lines: lines[at + 1..end].iter().map(|l| (*l).to_owned()).collect(),
            after: (*after).to_owned(),
        });
        at = end + 1;
    }
    all
}

fn of_kind(kind: &str) -> Vec<Block> {
    let all = documents().into_iter().flat_map(|file| blocks(&file));
    all.filter(|block| block.kind == kind).collect()
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let mut wrong = Vec::new();
    for block in documents().iter().flat_map(|file| blocks(file)) {
        let run = ["console", "synopsis", "gitignore"].contains(&block.kind.as_str());
        if !run && !block.after.starts_with(NOT_RUN) {
            wrong.push(format!("{}:{}", block.file.display(), block.line));
        }
    }
    assert!(wrong.is_empty(), "neither run nor marked `{NOT_RUN}WHY.)`:\n{}", wrong.join("\n"));
}

#[test]
fn every_command_of_a_synopsis_exists() {
    let lab = lab!();
    let mut checked = 0;
    for block in of_kind("synopsis") {
        for line in block.lines.iter().filter(|line| line.starts_with("systx ")) {
            let usage = line.split("  ").next().unwrap_or_default();
            // `systx list | status [ID]`: a word behind a bar is a command.
            for part in usage.trim_start_matches("systx ").split(" | ") {
                let word = part.split_whitespace().next().unwrap_or_default();
                lab.do_systx([word, "--help"]).ok();
                checked += 1;
            }
        }
    }
    assert!(checked > 20, "{checked}");
}

#[test]
fn every_example_of_an_ignore_file_is_taken() {
    let blocks = of_kind("gitignore");
    assert!(!blocks.is_empty());
    for block in blocks {
        let lab = lab!();
        lab.write(".systxignore", block.lines.join("\n") + "\n");
        let done = lab.do_systx(["config"]).ok();
        assert!(!done.err.contains("cannot be used"), "{}: {done}", block.line);
    }
}

#[test]
fn what_documents_show_is_what_happens() {
    let mut wrong = Vec::new();
    for file in documents() {
        let blocks: Vec<Block> =
            blocks(&file).into_iter().filter(|b| b.kind == "console").collect();
        if blocks.is_empty() {
            continue;
        }
        let lab = lab!();
        let mut session = Session::start(&lab);
        for block in &blocks {
            for command in commands(block) {
                let got = session.run(&command.text);
                if let Err(why) = session.compare(&command.shown, &got) {
                    wrong.push(format!("{}:{}: {why}", file.display(), command.line));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A command of a transcript.
struct Command {
    line: usize,
    text: String,
    /// What it prints.
    shown: Vec<String>,
}

fn commands(block: &Block) -> Vec<Command> {
    let mut all: Vec<Command> = Vec::new();
    for (i, line) in block.lines.iter().enumerate() {
        if let Some(text) = line.strip_prefix("$ ") {
            let line = block.line + 1 + i;
            all.push(Command { line, text: text.to_owned(), shown: Vec::new() });
        } else if let Some(more) = line.strip_prefix("> ")
            && let Some(last) = all.last_mut().filter(|last| last.shown.is_empty())
        {
            last.text.push('\n');
            last.text.push_str(more);
        } else if let Some(last) = all.last_mut() {
            last.shown.push(line.clone());
        } else {
            panic!("{}:{}: no command before this", block.file.display(), block.line + 1 + i);
        }
    }
    all
}

/// One shell, in which a document's commands run.
struct Session<'a> {
    lab: &'a Lab,
    shell: Child,
    input: ChildStdin,
    output: Receiver<String>,
    /// What the document calls a transaction, and what it is called here.
    ids: HashMap<String, String>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

impl<'a> Session<'a> {
    fn start(lab: &'a Lab) -> Session<'a> {
        let mut command = lab.command("bash");
        let own = lab.binary();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", own.parent().expect("a directory").display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut shell = command.spawn().expect("bash");
        let input = shell.stdin.take().expect("a pipe");
        let lines = BufReader::new(shell.stdout.take().expect("a pipe"));
        let (send, output) = channel();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let mut session = Session { lab, shell, input, output, ids: HashMap::new() };
        // The tests run as root, or as somebody who may not become root.
        session.say("sudo() { \"$@\"; }; exec 2>&1");
        session
    }

    fn say(&mut self, text: &str) {
        writeln!(self.input, "{text}").expect("the shell listens");
    }

    /// Runs a command; what it prints.  The shell has its exit code.
    fn run(&mut self, text: &str) -> Vec<String> {
        let quoted = self.here(text).replace('\'', "'\\''");
        self.say(&format!("eval '{quoted}' < /dev/null"));
        self.say(&format!("__code=$?; echo; echo '{END}'$__code; (exit $__code)"));
        let mut lines = Vec::new();
        loop {
            match self.output.recv_timeout(LIMIT) {
                Ok(line) if line.starts_with(END) => break,
                Ok(line) => lines.push(self.there(&line)),
                Err(why) => panic!("`{text}`: {why}; so far: {lines:#?}"),
            }
        }
        // The one of the `echo`, or the end of a line.
        if lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    }

    /// A command of the document as it is here.
    fn here(&self, text: &str) -> String {
        let mut out = text.replace("/srv", &self.lab.root().display().to_string());
        out = out.replace("/run/systx-0/views", &self.views());
        for (theirs, ours) in &self.ids {
            // Also where it is shortened.
            for len in (3..=theirs.len()).rev() {
                out = replace_word(&out, &theirs[..len], ours);
            }
        }
        out
    }

    /// A line that was printed here as it would be in the document.
    fn there(&self, line: &str) -> String {
        line.replace(&self.views(), "/run/systx-0/views")
            .replace(&self.lab.root().display().to_string(), "/srv")
    }

    fn views(&self) -> String {
        let dir = self.lab.root();
        format!("{}/run/views", dir.parent().expect("the lab's directory").display())
    }

    /// Whether the shown lines are what was printed, and which ids they mean.
    fn compare(&mut self, shown: &[String], got: &[String]) -> Result<(), String> {
        let differ = |why: &str| {
            Err(format!("{why}\nshown:\n{}\nprinted:\n{}", shown.join("\n"), got.join("\n")))
        };
        let mut rest = got.iter();
        let mut skip = false;
        for line in shown {
            if line.trim() == "…" {
                skip = true;
                continue;
            }
            let found = if skip {
                rest.find(|got| self.matches(line, got)).is_some()
            } else {
                rest.next().is_some_and(|got| self.matches(line, got))
            };
            if !found {
                return differ(&format!("not so: {line}"));
            }
            skip = false;
        }
        if !skip && rest.next().is_some() {
            return differ("more is printed");
        }
        Ok(())
    }

    fn matches(&mut self, shown: &str, got: &str) -> bool {
        let (theirs, ours) = (ids(shown), ids(got));
        let mut line = without_times(shown);
        if theirs.len() == ours.len() {
            for (theirs, ours) in theirs.iter().zip(&ours) {
                let known = self.ids.entry(theirs.clone()).or_insert_with(|| ours.clone());
                line = replace_word(&line, theirs, known);
            }
        }
        glob(&line, &without_times(got))
    }
}

/// Whether a text is what a line with `…` in it means.
fn glob(line: &str, text: &str) -> bool {
    let mut parts = line.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The words of eight hexadecimal digits.
fn ids(line: &str) -> Vec<String> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    let is_id = |w: &&str| w.len() == 8 && w.chars().all(|c| c.is_ascii_hexdigit());
    words.filter(is_id).map(str::to_owned).collect()
}

fn replace_word(text: &str, from: &str, to: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        out.push_str(if word == from { to } else { &word });
        word.clear();
        if c != '\0' {
            out.push(c);
        }
    }
    out
}

/// With every digit of a time as the same one.
fn without_times(line: &str) -> String {
    let chars: Vec<char> = line.chars().collect();
    let like = "dddd-dd-dd dd:dd:ddZ";
    let mut out = chars.clone();
    for at in 0..chars.len().saturating_sub(like.len() - 1) {
        let is = |(i, l): (usize, char)| match l {
            'd' => chars[at + i].is_ascii_digit(),
            other => chars[at + i] == other,
        };
        if like.chars().enumerate().all(is) {
            for i in 0..like.len() {
                if chars[at + i].is_ascii_digit() {
                    out[at + i] = '0';
                }
            }
        }
    }
    out.into_iter().collect()
}

#[test]
fn lines_are_compared_as_they_are_meant() {
    assert!(glob("a…c", "abbc") && glob("…", "") && glob("a", "a") && !glob("a…c", "ab"));
    assert!(glob("x (process …) y…", "x (process 12) yes") && !glob("a…b…c", "acb"));
    assert_eq!(ids("undone: 61bfbc03 (x), 12345678."), ["61bfbc03", "12345678"]);
    assert_eq!(replace_word("diff 61b 61bf", "61b", "X"), "diff X 61bf");
    let time = "at 2026-11-21 02:40:10Z, 17";
    assert_eq!(without_times(time), "at 0000-00-00 00:00:00Z, 17");
}
