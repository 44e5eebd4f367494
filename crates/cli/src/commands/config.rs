//! `systx config`: what of a run in this place is isolated how, and where each rule comes from.

use crate::args::Config;
use crate::commands::run::wish;
use crate::commands::services;
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::{context, ignore_file, merging};
use serde::Serialize;
use std::path::PathBuf;
use systx_daemon::patterns;
use systx_daemon::protocol::{HostPath, VolumeFacts};
use systx_session::mountinfo;

/// One rule.
#[derive(Debug, Serialize)]
struct Rule {
    /// How what matches is treated.
    class: &'static str,
    /// A path or a pattern.
    path: HostPath,
    /// What it means.
    meaning: &'static str,
    /// Who says so.
    from: String,
}

#[derive(Debug, Serialize)]
struct Shown {
    /// The working directory that it holds for.
    directory: HostPath,
    rules: Vec<Rule>,
    /// Commands that are caught and done after the commit.
    deferred_commands: Vec<String>,
}

const PRIVATE: &str = "empty in the run, dropped at the end";
const AS_IS: &str = "the kernel's own, as it is";
const THROUGH: &str = "not isolated: CMD works on the original";
const NO_COMMIT: &str = "seen in the run, not committed";
const MERGED: &str = "appended behind what others append meanwhile";

/// Shows it.
///
/// # Errors
/// The working directory or the mount table cannot be read.
pub fn config(args: &Config, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let cwd = place.cwd.as_path().to_owned();
    let ignored = match args.no_ignore {
        true => ignore_file::Ignored::default(),
        false => ignore_file::read(&cwd),
    };
    for note in &ignored.notes {
        out.warn(note);
    }
    let facts = volume(place.root.as_ref().unwrap_or(&place.cwd))?;
    let mut rules = Vec::new();
    let rule = |class, path, meaning, from: &str| Rule { class, path, meaning, from: from.into() };
    for (path, _) in wish(&facts, &[], &cwd, args.private_tmp, &[]).private {
        let from = match path.to_str() {
            Some("/tmp") if args.private_tmp => "--private-tmp",
            Some("/tmp") => "built in: not part of the volume",
            _ => "built in",
        };
        rules.push(rule("private", path.into(), PRIVATE, from));
    }
    for path in ["/proc", "/sys", "/dev"] {
        rules.push(rule("passthrough", path.into(), AS_IS, "built in"));
    }
    for (pattern, from) in ignored.passthrough.iter().zip(&ignored.from.1) {
        let from = from.display().to_string();
        rules.push(rule("passthrough", pattern.as_str().into(), THROUGH, &from));
    }
    for pattern in &args.passthrough {
        rules.push(rule("passthrough", pattern.as_str().into(), THROUGH, "--passthrough"));
    }
    for (pattern, from) in ignored.no_commit.iter().zip(&ignored.from.0) {
        let from = from.display().to_string();
        rules.push(rule("no-commit", pattern.as_str().into(), NO_COMMIT, &from));
    }
    for pattern in args.exclude.iter().filter_map(|p| patterns::anchor(p, &cwd, true)) {
        rules.push(rule("no-commit", pattern.as_str().into(), NO_COMMIT, "--exclude"));
    }
    for r in merging::rules(&cwd, &ignored, &args.merge, args.no_merge) {
        rules.push(rule("append-merge", r.pattern.as_str().into(), MERGED, &r.from));
    }
    let shown =
        Shown { directory: place.cwd, rules, deferred_commands: services::stand_ins().names };
    if out.json {
        out.json("config", &shown);
        return Ok(0);
    }
    output::print(&text(&shown));
    Ok(0)
}

fn text(shown: &Shown) -> String {
    let mut rows = vec![["class", "path", "meaning", "from"].map(str::to_owned)];
    rows.extend(shown.rules.iter().map(|r| {
        [r.class.to_owned(), r.path.display().into_owned(), r.meaning.to_owned(), r.from.clone()]
    }));
    let mut text = columns(&rows);
    if !shown.deferred_commands.is_empty() {
        let names = shown.deferred_commands.join(", ");
        text.push_str(&format!("caught, and done after the commit: {names}\n"));
    }
    text
}

/// Rows with columns as wide as their widest cell.
fn columns(rows: &[[String; 4]]) -> String {
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let line = |[a, b, c, d]: &[String; 4]| {
        let [x, y, z] = widths;
        format!("{a:<x$}  {b:<y$}  {c:<z$}  {d}\n")
    };
    rows.iter().map(line).collect()
}

/// The volume that holds a directory, as far as the rules depend on it.
fn volume(dir: &HostPath) -> Result<VolumeFacts, Problem> {
    use std::os::unix::fs::MetadataExt;
    let read = |e: std::io::Error| Problem::new(format!("{dir}: {e}"));
    let dev = std::fs::metadata(dir.as_path()).map_err(read)?.dev();
    let text = std::fs::read("/proc/self/mountinfo").map_err(read)?;
    let mounts = mountinfo::parse(&text).unwrap_or_default();
    let depth = |m: &&mountinfo::Mount| m.at.components().count();
    let root: PathBuf = mounts
        .iter()
        .filter(|m| dir.as_path().starts_with(&m.at) && m.fs != "fuse.systx")
        .max_by_key(depth)
        .map_or_else(|| PathBuf::from("/"), |m| m.at.clone());
    let root = HostPath::from(root);
    Ok(VolumeFacts { store: root.clone(), root, dev, guarded: Vec::new() })
}
