//! What docs/ARCHITECTURE.md says of the code itself: crates depend downward only, no file is so
//! long that nobody reads it, and `unsafe` is where its name says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use systx_e2e::lab::tool;

/// Crates from the bottom up. A crate may use those of lower ranks only; `e2e` and `histories` use
/// what everybody uses, the built program and the library.
const RANKS: &[(&str, u32)] = &[
    ("cxlock", 0),
    ("systx-abi", 0),
    ("systx-calls", 0),
    ("libsystx", 1),
    ("systx-e2e", 2),
    ("systx-histories", 2),
    ("systx-structure", 0),
    ("systx-base", 0),
    ("systx-protocol", 1),
    ("systx-store", 1),
    ("systx-lfs", 1),
    ("systx-txn", 1),
    ("systx-session", 1),
    ("systx-sim", 2),
    ("systx-metatm", 2),
    ("systx-lfs-store", 2),
    ("systx-vfs", 3),
    ("systx-guard", 4),
    ("systx-fuse", 5),
    ("systx-lfs-view", 5),
    ("systx-commit", 6),
    ("systx-daemon", 7),
    ("systx", 8),
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

/// The commands speak to the daemon in the protocol; only `systx daemon`, which becomes one, may
/// reach into it.
#[test]
fn commands_know_nothing_of_the_daemons_insides() {
    let ours =
        sources().into_iter().filter(|(path, _)| path.starts_with(root().join("crates/cli")));
    let reach = |(path, text): &(PathBuf, String)| {
        text.contains("systx_daemon") && !path.ends_with("commands/daemon.rs")
    };
    let wrong: Vec<PathBuf> = ours.filter(reach).map(|(path, _)| path).collect();
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

/// A suite that nobody runs proves nothing.
#[test]
fn every_suite_is_run_by_the_test_script() {
    let script = std::fs::read_to_string(root().join("test")).expect("the script");
    let lists = script.lines().filter_map(|line| line.split_once("suites=\"")?.1.split('"').next());
    let mut named: Vec<String> =
        lists.flat_map(str::split_whitespace).filter(|n| *n != "$suites").map(Into::into).collect();
    let files = std::fs::read_dir(root().join("crates/e2e/tests")).expect("a directory");
    let mut suites: Vec<String> = files
        .filter_map(|e| {
            e.expect("an entry").file_name().to_str()?.strip_suffix(".rs").map(Into::into)
        })
        .collect();
    named.sort();
    suites.sort();
    assert_eq!(named, suites, "./test against crates/e2e/tests");
}

/// The functions that a header declares.
fn declared(header: &str) -> Vec<String> {
    let declares = |line: &&str| line.ends_with(");") && !line.starts_with([' ', '/', '#', '}']);
    let name = |line: &str| {
        let before = line.split('(').next().unwrap_or_default();
        before.rsplit([' ', '*']).next().unwrap_or_default().to_owned()
    };
    header.lines().filter(declares).map(name).collect()
}

/// The words in capitals that name an error.
fn errors(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let named =
        |w: &&str| w.len() >= 3 && w.starts_with('E') && w.bytes().all(|b| b.is_ascii_uppercase());
    words.filter(named).collect()
}

/// Each function of libsystx is in the header, in the library and on a page of section 3 with all
/// the parts such a page has; the errors that docs/LIBRARY.md names are on it.
#[test]
fn every_function_of_libsystx_has_a_page() {
    let lib = root().join("crates/lib");
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    let header = read(lib.join("include/systx.h"));
    let mut functions = declared(&header);
    functions.sort();
    assert!(functions.len() >= 9, "{functions:?}");
    let defined = read(lib.join("src/c_unsafe.rs"));
    let mut exported: Vec<String> = (defined.lines())
        .filter(|line| line.starts_with("pub ") && line.contains("extern \"C\" fn "))
        .filter_map(|line| line.split(" fn ").nth(1)?.split('(').next().map(Into::into))
        .collect();
    exported.sort();
    assert_eq!(functions, exported, "systx.h against c_unsafe.rs");
    let told = read(root().join("docs/LIBRARY.md"));
    let mut wrong = Vec::new();
    let begin = read(lib.join("man/xbegin.3"));
    for flag in header.lines().filter_map(|l| l.strip_prefix("#define SYSTX_")) {
        // Those with a value.
        let (flag, value) = flag.split_once(' ').unwrap_or_default();
        if !value.is_empty() && !begin.lines().any(|l| l == format!(".B SYSTX_{flag}")) {
            wrong.push(format!("xbegin: the flag SYSTX_{flag} is not on its page"));
        }
    }
    for function in &functions {
        let page = read(lib.join(format!("man/{function}.3")));
        // A page may be about several.
        let page = match page.trim_end().strip_prefix(".so man3/") {
            Some(other) => read(lib.join("man").join(other)),
            None => page,
        };
        let title = page.lines().skip_while(|l| *l != ".SH NAME").nth(1).unwrap_or_default();
        let names = title.split(" \\- ").next().unwrap_or_default();
        if !names.split(", ").any(|name| name == function) {
            wrong.push(format!("{function}: the page's name is {title:?}"));
        }
        let sections: Vec<&str> = page.lines().filter_map(|l| l.strip_prefix(".SH ")).collect();
        let mut wanted = vec!["NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUE"];
        if !page.contains("It never fails.") {
            wanted.push("ERRORS");
        }
        wanted.extend(sections.contains(&"NOTES").then_some("NOTES"));
        wanted.push("SEE ALSO");
        if sections != wanted || !page.starts_with(".TH ") {
            wrong.push(format!("{function}: sections {sections:?}"));
        }
        let synopsis = page.lines().filter(|l| l.starts_with(".BI "));
        if !synopsis.map(|l| l.to_owned()).any(|l| l.contains(&format!(" {function}("))) {
            wrong.push(format!("{function}: not in the synopsis"));
        }
        let item = told.split("\n- ").find(|item| item.starts_with(&format!("`{function}`: ")));
        let item = item.map(|item| item.split("\n\n").next().unwrap_or_default());
        for error in item.map(errors).unwrap_or_default() {
            if !page.lines().any(|l| l.starts_with(".B ") && l.contains(error)) {
                wrong.push(format!("{function}: docs/LIBRARY.md has {error}, the page has not"));
            }
        }
        for other in page.lines().filter_map(|l| l.strip_prefix(".BR ")?.split(" (3)").next()) {
            if page.contains(&format!(".BR {other} (3)")) && !functions.iter().any(|f| f == other) {
                wrong.push(format!("{function}: refers to {other}(3), which is not there"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let pages = std::fs::read_dir(lib.join("man")).expect("a directory");
    for page in pages.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")) {
        let function = page.strip_suffix(".3").unwrap_or_default();
        assert!(functions.iter().any(|f| f == function), "{page} is about nothing");
    }
}

#[test]
fn pages_of_libsystx_are_well_formed() {
    let pages = std::fs::read_dir(root().join("crates/lib/man")).expect("a directory");
    let mut pages: Vec<PathBuf> = pages.map(|e| e.expect("an entry").path()).collect();
    // What only leads to another page has no form.
    pages.retain(|p| !std::fs::read_to_string(p).expect("UTF-8").starts_with(".so "));
    assert_eq!(systx_e2e::pages::complaints(&pages), "");
}
