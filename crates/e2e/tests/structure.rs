//! What docs/ARCHITECTURE.md says of the code itself: crates depend downward only, no file is so long that
//! nobody reads it, and `unsafe` is where its name says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use systx_e2e::lab::tool;

/// Crates from the bottom up.  A crate may use those of lower ranks only; `e2e` and `histories` use what
/// everybody uses, the built program and the library.
const RANKS: &[(&str, u32)] = &[
    ("systx-abi", 0),
    ("systx-calls", 0),
    ("libsystx", 1),
    ("systx-e2e", 2),
    ("systx-histories", 0),
    ("systx-base", 0),
    ("systx-store", 1),
    ("systx-txn", 1),
    ("systx-session", 1),
    ("systx-sim", 2),
    ("systx-vfs", 2),
    ("systx-fuse", 3),
    ("systx-daemon", 4),
    ("systx", 5),
];

/// Lines before the tests of a file.
const LONGEST: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn crates_depend_downward_only() {
    let ranks: BTreeMap<&str, u32> = RANKS.iter().copied().collect();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(root());
    let told: serde_json::Value =
        serde_json::from_str(&tool(&mut cargo).expect("cargo metadata")).expect("JSON");
    let packages = told["packages"].as_array().expect("packages");
    assert!(packages.len() >= RANKS.len(), "{packages:?}");
    let mut wrong = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let Some(rank) = ranks.get(name) else {
            wrong.push(format!("{name} has no rank in this test's table"));
            continue;
        };
        for used in package["dependencies"].as_array().expect("dependencies") {
            // One of ours, also by a path outside the table.
            let (other, dev) = (used["name"].as_str().expect("a name"), &used["kind"] == "dev");
            if used["path"].is_null() {
                continue;
            }
            if ranks.get(other).is_none_or(|other| other >= rank) {
                let how = if dev { "its tests use" } else { "uses" };
                wrong.push(format!("{name} {how} {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// All Rust files of the workspace.
fn sources() -> Vec<(PathBuf, String)> {
    let mut todo = vec![root().join("crates"), root().join("fuzz")];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry.expect("a listing");
            let (path, kind) = (entry.path(), entry.file_type().expect("a type"));
            if kind.is_dir() && entry.file_name() != "target" {
                todo.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                found.push((path, text));
            }
        }
    }
    assert!(found.len() > 100, "{} files", found.len());
    found
}

/// The program without comments and what stands in quotes.
fn code(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if quoted => drop(chars.next()),
            '"' => quoted = !quoted,
            '/' if !quoted && chars.peek() == Some(&'/') => break,
            c if !quoted => code.push(c),
            _ => {}
        }
    }
    code
}

#[test]
fn no_file_is_too_long() {
    let length = |text: &str| text.lines().take_while(|l| !l.starts_with("#[cfg(test)]")).count();
    let long: Vec<_> = sources()
        .iter()
        .map(|(path, text)| (path.display().to_string(), length(text)))
        .filter(|(_, lines)| *lines > LONGEST)
        .collect();
    assert!(long.is_empty(), "more than {LONGEST} lines before the tests: {long:#?}");
}

#[test]
fn unsafe_is_where_the_name_says_so() {
    let is_word = |line: &str| {
        let code = code(line);
        // Not the lints that speak of it.
        code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
    };
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (path, text) in sources() {
        let said = path.file_stem().is_some_and(|n| n.to_string_lossy().ends_with("_unsafe"));
        for (i, line) in text.lines().enumerate().filter(|(_, line)| is_word(line)) {
            seen += 1;
            if !said {
                wrong.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
            }
        }
    }
    assert!(seen > 10, "the test looks for the wrong thing");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
