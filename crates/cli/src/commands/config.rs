//! `systx config`: what of a run in this place is isolated how, and where each rule comes from.

use crate::args::Config;
use crate::classes::{self, rule};
use crate::commands::run::{others, wish};
use crate::commands::{protect, services};
use crate::output::{self, Out};
use crate::problem::Problem;
use crate::{context, glob};
use serde::Serialize;
use std::path::PathBuf;
use systx_protocol::{Class, HostPath, Rule, VolumeFacts};
use systx_session::mountinfo;

/// One rule, and what it means.
#[derive(Debug, Serialize)]
struct ShownRule {
    #[serde(flatten)]
    rule: Rule,
    meaning: &'static str,
}

#[derive(Debug, Serialize)]
struct Shown {
    /// The working directory that it holds for.
    directory: HostPath,
    /// Where the file system that holds it is mounted: the one that a transaction from here works
    /// on first.
    file_system: HostPath,
    /// Further ones that a run covers, if their stores can be used.
    further: Vec<HostPath>,
    rules: Vec<ShownRule>,
    /// Commands that are caught and done after the commit.
    deferred_commands: Vec<String>,
}

/// Shows it.
///
/// # Errors
/// The working directory or the mount table cannot be read.
pub fn config(args: &Config, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let cwd = place.cwd.as_path().to_owned();
    let ignored = classes::ignored(&args.classes, &cwd, out);
    let facts = volume(place.root.as_ref().unwrap_or(&place.cwd))?;
    let through = args.classes.passthrough.iter().map(|given| glob::absolute(given.as_ref(), &cwd));
    let through = through.chain(ignored.passthrough.iter().cloned());
    let through: Vec<_> = through.flat_map(|pattern| glob::expand(&pattern)).collect();
    let further: Vec<_> =
        others(&place, &through).iter().filter_map(|root| volume(root).ok()).collect();
    let private = wish(&facts, &further, &cwd, args.classes.private_tmp, (&[], &[])).private;
    let mut rules = classes::places(&private, args.classes.private_tmp);
    for (pattern, from) in ignored.passthrough.iter().zip(&ignored.from.1) {
        let from = from.display().to_string();
        rules.push(rule(Class::Passthrough, pattern.as_str(), &from));
    }
    for pattern in &args.classes.passthrough {
        rules.push(rule(Class::Passthrough, pattern.as_str(), "--passthrough"));
    }
    rules.extend(
        protect::marks()?
            .into_iter()
            .map(|path| rule(Class::Unprotected, path, "systx protect off")),
    );
    rules.extend(classes::patterns(&cwd, &ignored, &args.classes));
    let shown_rule = |rule| ShownRule { meaning: classes::meaning(&rule), rule };
    let rules = rules.into_iter().map(shown_rule).collect();
    let shown = Shown {
        directory: place.cwd,
        file_system: facts.root,
        further: further.into_iter().map(|facts| facts.root).collect(),
        rules,
        deferred_commands: services::stand_ins().names,
    };
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
        let ShownRule { rule, meaning } = r;
        let path = rule.path.display().into_owned();
        // It may be a path as well.
        let from = systx_base::shown(rule.from.as_bytes()).into_owned();
        [rule.class.name().to_owned(), path, (*meaning).to_owned(), from]
    }));
    let mut text = format!("file system: {}, of {}\n", shown.file_system, shown.directory);
    if !shown.further.is_empty() {
        let further = shown.further.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        text.push_str(&format!("further ones of a run: {further}\n"));
    }
    text.push_str(&columns(&rows));
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
