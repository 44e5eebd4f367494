//! What of a run is not isolated as everything else is, by path, and who says so: for the run
//! itself, and for whoever wants to see it.

use crate::args::Classes;
use crate::glob;
use crate::ignore_file::{self, Ignored};
use crate::merging;
use crate::output::Out;
use std::path::{Path, PathBuf};
use systx_protocol::patterns;
use systx_protocol::{Class, HostPath, Rule, RuleInUse};

/// So many paths of one class and source are named without `-v`.
const SHOWN: usize = 3;

/// One rule.
pub fn rule(class: Class, path: impl Into<HostPath>, from: &str) -> Rule {
    Rule { class, path: path.into(), from: from.into() }
}

/// The private places of a view, and what in it is the kernel's own.
pub fn places(private: &[(PathBuf, u32)], private_tmp: bool) -> Vec<Rule> {
    let from = |path: &Path| match path.to_str() {
        Some("/tmp") if private_tmp => "--private-tmp",
        Some("/tmp") => "built in: not part of the volume",
        _ => "built in",
    };
    let private = private.iter();
    let private = private.map(|(path, _)| rule(Class::Private, path.as_path(), from(path)));
    let kernels = ["/proc", "/sys", "/dev"].into_iter();
    private.chain(kernels.map(|path| rule(Class::Passthrough, path, "built in"))).collect()
}

/// What the ignore files say for a command in `cwd`, if they are to count; warns of what in them
/// cannot be used.
pub fn ignored(wanted: &Classes, cwd: &Path, out: Out) -> Ignored {
    if wanted.no_ignore {
        return Ignored::default();
    }
    let ignored = ignore_file::read(cwd);
    for note in &ignored.notes {
        out.warn(note);
    }
    ignored
}

/// What a command in `cwd` changes and does not commit, and what it merges.
pub fn patterns(cwd: &Path, ignored: &Ignored, wanted: &Classes) -> Vec<Rule> {
    let files = ignored.no_commit.iter().zip(&ignored.from.0);
    let files =
        files.map(|(p, from)| rule(Class::NoCommit, p.as_str(), &from.display().to_string()));
    let given = wanted.exclude.iter().filter_map(|p| argument(p, cwd));
    let given = given.map(|p| rule(Class::NoCommit, p.as_str(), "--exclude"));
    files.chain(given).chain(merging::rules(cwd, ignored, &wanted.merge, wanted.no_merge)).collect()
}

/// A pattern of the command line, anchored.
pub fn argument(pattern: &str, cwd: &Path) -> Option<String> {
    let (not, path) = match pattern.strip_prefix('!') {
        Some(path) => ("!", path),
        None => ("", pattern),
    };
    match path.starts_with('/') {
        true => patterns::anchor_argument(&format!("{not}{}", glob::real(path, cwd)), cwd),
        false => patterns::anchor_argument(pattern, cwd),
    }
}

/// A sentence for each pattern that begins with a slash and names nothing, where the working
/// directory has something of that name: in a .systxignore file that is what it would mean.
pub fn doubts(exclude: &[String], cwd: &Path) -> Vec<String> {
    let mut out = Vec::new();
    for pattern in exclude.iter().filter(|p| p.starts_with('/')) {
        let here = pattern.trim_start_matches('/');
        let at = |path: &str| !glob::expand(path).is_empty();
        if !at(&glob::real(pattern, cwd)) && at(&format!("{}/{here}", glob::quote(cwd))) {
            out.push(format!("--exclude {pattern} names nothing; here it would be ./{here}"));
        }
    }
    out
}

/// What a class means, in words.
pub fn meaning(rule: &Rule) -> &'static str {
    match rule.class {
        Class::Private => "empty in the run, dropped at the end",
        Class::Passthrough if rule.from == "built in" => "the kernel's own, as it is",
        Class::Passthrough => "not isolated: CMD works on the original",
        Class::Unprotected => "not protected: outside of all transactions",
        Class::NoCommit => "seen in the run, not committed",
        Class::AppendMerge => "appended behind what others append meanwhile",
    }
}

/// The rules that hold for a transaction, a line for each class and source:
/// `private: /run, /dev/shm (built in)`.
pub fn lines(rules: &[RuleInUse], out: Out) -> Vec<String> {
    let of = |r: &RuleInUse| (r.rule.class, r.rule.from.clone());
    let mut kinds: Vec<(Class, String)> = Vec::new();
    for rule in rules {
        if !kinds.contains(&of(rule)) {
            kinds.push(of(rule));
        }
    }
    let line = |(class, from): (Class, String)| {
        let all: Vec<_> = rules.iter().filter(|r| of(r) == (class, from.clone())).collect();
        let most = if out.verbose > 0 { all.len() } else { SHOWN };
        let mut paths =
            all.iter().take(most).map(|r| r.rule.path.to_string()).collect::<Vec<_>>().join(", ");
        let more = all.len().saturating_sub(most);
        if more > 0 {
            paths += &format!(" and {more} more");
        }
        let used: u64 = all.iter().filter_map(|r| r.used).sum();
        let used = match used {
            0 => String::new(),
            1 => "; 1 path so far".into(),
            n => format!("; {n} paths so far"),
        };
        format!("{}: {paths} ({from}){used}", class.name())
    };
    kinds.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_some_paths_of_one_source_and_counts_the_rest_and_what_was_used() {
        let used =
            |class, path: &str, from: &str, used| RuleInUse { rule: rule(class, path, from), used };
        let merge = |path, n| used(Class::AppendMerge, path, "built in", Some(n));
        let rules = [
            used(Class::Private, "/run", "built in", None),
            used(Class::NoCommit, "/w/*.o", "/w/.systxignore", Some(0)),
            merge("/a", 0),
            merge("/b", 1),
            used(Class::NoCommit, "/x", "--exclude", Some(1)),
            merge("/c", 0),
            merge("/d", 4),
        ];
        let out = Out { json: false, verbose: 0, quiet: false };
        let expected = [
            "private: /run (built in)",
            "no-commit: /w/*.o (/w/.systxignore)",
            "append-merge: /a, /b, /c and 1 more (built in); 5 paths so far",
            "no-commit: /x (--exclude); 1 path so far",
        ];
        assert_eq!(lines(&rules, out), expected);
        let all = lines(&rules, Out { verbose: 1, ..out });
        assert_eq!(all[2], "append-merge: /a, /b, /c, /d (built in); 5 paths so far");
    }
}
