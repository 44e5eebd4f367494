//! Runtimes of languages inside a transaction of a thread: the test suites that CPython has for
//! files and processes, and a Java program whose garbage collector works all the time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use systx_e2e::lab::{LIBRARY, built, find_program, tool};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Lab, lab, long, skip};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directory of libsystx.so.
fn library() -> PathBuf {
    let library = built(&["--lib"], LIBRARY);
    library.parent().expect("a directory").to_owned()
}

/// A Python that has its own tests, which distributions have in a package of its own.
fn python_with_tests() -> Option<PathBuf> {
    let candidates = [find_program("python3"), Some("/usr/bin/python3".into())];
    candidates.into_iter().flatten().find_map(|python| {
        let asks = "import sys, test.test_os, test.test_shutil; print(sys.executable)";
        let told = tool(Command::new(python).args(["-c", asks])).ok()?;
        Some(PathBuf::from(told.trim())).filter(|p| p.is_file())
    })
}

/// What is otherwise inside, and why.
const EXCEPTIONS: &[(&str, &str)] = &[
    // They want two or more free descriptors in a row behind a new one, and are skipped where
    // libsystx's are there.
    ("test.test_os.FileTests.test_closerange", "skipped"),
    ("test.test_os.TestInvalidFD.test_closerange", "skipped"),
];

/// What came of each test.
type Results = BTreeMap<String, String>;

struct CPython<'a> {
    lab: &'a Lab,
    python: PathBuf,
    library: PathBuf,
}

impl CPython<'_> {
    /// Runs tests or modules of them in a directory of the volume.
    fn run(&self, dir: &str, how: &str, tests: &[String]) -> Results {
        let out = self.lab.outside().join("results.json");
        let mut command = self.lab.command(&self.python);
        command.arg("-B").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpython.py"));
        command.arg(&out).arg(how).args(tests).current_dir(self.lab.path(dir));
        command.env("SYSTX_LIBRARY", self.library.join("libsystx.so"));
        command.env("PYTHONPATH", root().join("bindings/python"));
        let done = finish(command, Limits::seconds(1200), self.lab);
        assert_eq!(done.code, 0, "{how}: {done}\n{}", self.lab.daemon_log());
        let text = std::fs::read_to_string(&out).expect("the results");
        std::fs::remove_file(&out).expect("it is ours");
        serde_json::from_str(&text).expect("JSON")
    }
}

/// Whatever passes on the host's file system passes in a transaction, which leaves nothing; it
/// commits if no test kills a process.
fn suites_of_cpython(modules: &[&str], at_least: usize) {
    let lab = lab!();
    let Some(python) = python_with_tests() else {
        skip!("no python3 here has its tests (Debian: libpython3.11-testsuite)");
    };
    let cpython = CPython { lab: &lab, python, library: library() };
    for dir in ["plain", "guarded"] {
        std::fs::create_dir(lab.path(dir)).unwrap();
    }
    lab.do_systx(["mount", "guarded"]).ok();
    let both = |tests: &[String]| {
        let host = cpython.run("plain", "plain", tests);
        let inside = cpython.run("guarded", "transaction", tests);
        assert!(host.keys().eq(inside.keys()), "other tests: {host:?} {inside:?}");
        let differ: Vec<String> = (host.iter())
            .filter(|(test, came)| inside[*test] != **came)
            .filter(|(test, _)| !EXCEPTIONS.contains(&(test.as_str(), inside[*test].as_str())))
            .map(|(test, came)| format!("{test}: {came} on the host, here {}", inside[test]))
            .collect();
        (host, differ)
    };
    let all: Vec<String> = modules.iter().map(|m| format!("test.{m}")).collect();
    let (host, differ) = both(&all);
    let passed = host.values().filter(|came| *came == "ok").count();
    assert!(passed >= at_least, "hardly any test passes on the host: {host:?}");
    // Some look at clocks: once more, alone.
    let again: Vec<String> =
        differ.iter().filter_map(|d| Some(d.split(": ").next()?.to_owned())).collect();
    let differ = if again.is_empty() { differ } else { both(&again).1 };
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["umount", "guarded"]).ok();
    let left: Vec<_> = std::fs::read_dir(lab.path("guarded")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn python_tests_of_files_pass_inside_a_transaction() {
    suites_of_cpython(&["test_posix", "test_tempfile", "test_shutil"], 200);
}

#[test]
fn python_tests_of_the_system_pass_inside_a_transaction() {
    suites_of_cpython(&["test_os"], 200);
}

#[test]
fn python_tests_of_processes_and_signals_pass_inside_a_transaction() {
    if !long() {
        skip!("takes minutes: SYSTX_LONG=1");
    }
    suites_of_cpython(&["test_subprocess", "test_signal"], 200);
}
