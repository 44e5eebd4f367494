//! Which files a run only appends to, behind what others append: logs.

use crate::classes::{argument, rule};
use crate::ignore_file::Ignored;
use std::path::Path;
use systx_protocol::{Class, Rule};

/// Logs as text, by what writes them; not wtmp, lastlog and journals, which are records of fixed
/// places.
const LOGS: [&str; 11] = [
    "/var/log/**/*.log",
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/secure",
    "/var/log/maillog",
    "/var/log/cron",
    "/var/log/debug",
    "/var/log/mail.err",
    "/var/log/mail.info",
    "/var/log/mail.warn",
    "!/var/log/journal/**",
];

/// All patterns for a command in `cwd`, the last one that matches counts.
pub fn rules(cwd: &Path, ignored: &Ignored, given: &[String], none: bool) -> Vec<Rule> {
    if none {
        return Vec::new();
    }
    let rule = |pattern: &str, from: &str| rule(Class::AppendMerge, pattern, from);
    let built_in = LOGS.iter().map(|p| rule(p, "built in"));
    let from_files = ignored.merge.iter().map(|(p, from)| rule(p, &from.display().to_string()));
    let options = given.iter().filter_map(|p| argument(p, cwd));
    built_in.chain(from_files).chain(options.map(|p| rule(&p, "--merge"))).collect()
}
