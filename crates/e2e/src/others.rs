//! Test suites of others, as published Rust packages, and what their results are measured against.

use crate::cache;
use crate::lab::{Lab, find_program};
use crate::run::Finished;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A published Rust program, at a fixed version.
///
/// # Errors
/// Why it cannot be had, for the skip message.
pub fn crate_program(name: &str, version: &str) -> Result<PathBuf, String> {
    if let Some(found) = find_program(name) {
        return Ok(found);
    }
    let dir = cache::get(&format!("{name}-{version}"), |dir| {
        cache::shell(
            dir,
            &format!(
                "env -u CARGO_TARGET_DIR cargo install -q --debug --locked --root . --target-dir build --version {version} {name} && rm -rf build"
            ),
        )
    })?;
    Ok(dir.join("bin").join(name))
}

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["games", "games"]]
"#;

/// What passes on the host and cannot on FUSE, with the reason.
const KNOWN: &[(&str, &str)] = &[(
    "link::link_count_max",
    "asks pathconf for the most links, and libc answers by file system type: 127 for one it does not know",
)];

/// Outcome by test name.
fn pjdfstest_results(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with(char::is_whitespace) && line.contains("::"))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.next()?.to_owned()))
        })
        .collect()
}

/// A script that runs pjdfstest below the working directory; writes its configuration.
///
/// # Errors
/// As [`crate_program`].
pub fn pjdfstest(lab: &Lab) -> Result<String, String> {
    let program = crate_program("pjdfstest", "0.2.2")?;
    let config = lab.outside().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).map_err(|e| format!("{}: {e}", config.display()))?;
    let (program, config) = (program.display(), config.display());
    Ok(format!("mkdir p; chmod 777 p; {program} -c {config} -p p"))
}

/// Fails the test if anything passes on the host and not here.
#[track_caller]
pub fn assert_pjdfstest_as_on_the_host(host: &Finished, ours: &Finished) {
    let (host_results, results) = (pjdfstest_results(&host.out), pjdfstest_results(&ours.out));
    assert!(host_results.len() > 300, "{host}");
    let worse: Vec<_> = host_results
        .iter()
        .filter(|(_, outcome)| *outcome == "ok")
        .filter(|(name, _)| results.get(*name).is_none_or(|o| o != "ok"))
        .map(|(name, _)| name.as_str())
        .filter(|name| KNOWN.iter().all(|(known, _)| known != name))
        .collect();
    let passed = results.values().filter(|o| *o == "ok").count();
    eprintln!(
        "pjdfstest: {} tests, {passed} passed, {} worse than the host",
        results.len(),
        worse.len()
    );
    assert!(worse.is_empty(), "pass on the host, not here: {worse:#?}\n{ours}");
}

/// Where the programs of a PostgreSQL server are.
pub fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<_> = versions.flatten().map(|v| v.path().join("bin")).collect();
    found.sort();
    found.pop().filter(|bin| bin.join("initdb").exists() && bin.join("pgbench").exists())
}
