//! libsystx from other languages: the programs in `examples/` move amounts between two files, three
//! of each at a time, and no update is lost.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use systx_e2e::lab::{LIBRARY, SONAME, built, find_program, tool};
use systx_e2e::run::{Limits, finish};
use systx_e2e::{Lab, lab, skip};

const PROGRAMS: usize = 3;
const TIMES: i64 = 20;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directory of libsystx.so.
fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let library = BUILT.get_or_init(|| built(&["--lib"], LIBRARY));
    library.parent().expect("a directory").to_owned()
}

/// Ways in which a daemon makes transactions lose without an opponent.
const ABORTS: [&str; 3] = ["once", "each", "20111"];

/// In each way, with a lab of its own.
macro_rules! aborts {
    ($check:expr) => {
        for aborts in ABORTS {
            let lab = lab!();
            $check(&lab, aborts);
        }
    };
}

/// Guards a directory by a daemon whose transactions lose so.
fn mount(lab: &Lab, aborts: &str) {
    let mut mount = lab.systx(["mount", "guarded"]);
    mount.env("SYSTX_INJECT_ABORTS", aborts);
    finish(mount, Limits::default(), lab).ok();
}

/// Runs several of a program at once on one directory.
fn contend(lab: &Lab, program: impl Fn(&Path) -> Command) {
    contend_with(lab, "", program);
}

/// The same, where transactions lose as well without an opponent.
fn contend_with(lab: &Lab, aborts: &str, program: impl Fn(&Path) -> Command) {
    let dir = lab.path("guarded");
    // There each takes several attempts.
    let times = if aborts.is_empty() { TIMES } else { 8 };
    std::fs::create_dir(&dir).unwrap();
    lab.write("guarded/a", "1000");
    lab.write("guarded/b", "0");
    mount(lab, aborts);
    let start = |_| program(&dir).arg(times.to_string()).stderr(Stdio::piped()).spawn().unwrap();
    let running: Vec<Child> = (0..PROGRAMS).map(start).collect();
    for child in running {
        let done = child.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let number = |name: &str| lab.read(format!("guarded/{name}")).trim().parse::<i64>().unwrap();
    let moved = times * PROGRAMS as i64;
    assert_eq!((number("a"), number("b")), (1000 - moved, moved));
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["umount", "guarded"]).ok();
}

/// Compiles an example.
fn compiled(lab: &Lab, name: &str) -> PathBuf {
    let (library, program) = (library(), lab.outside().join(name));
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"]).arg(&program);
    cc.arg(root().join(format!("examples/{name}.c")));
    cc.arg("-I").arg(root().join("crates/lib/include"));
    cc.arg("-L").arg(&library).arg("-lsystx").arg(format!("-Wl,-rpath,{}", library.display()));
    tool(&mut cc).unwrap_or_else(|why| panic!("{why}"));
    program
}

/// What was compiled with the first header of [`SONAME`] must go on with any later library of that
/// name: a function that goes, a number that changes, or a structure whose members move needs
/// another name.
const PROMISED: &str = r#"
#include <stddef.h>
#include <systx.h>
#define IS(what, value) _Static_assert((what) == (value), #what)
IS(SYSTX_READ_ONLY, 1); IS(SYSTX_SNAPSHOT, 2); IS(SYSTX_RETRY, 4); IS(SYSTX_NONBLOCK, 8);
IS(SYSTX_RELAXED, 64); IS(SYSTX_DESCRIPTORS, 1 << 16); IS(SYSTX_SIGNALS_HELD, 1 << 17);
IS(SYSTX_SIGNALS_DEFERRED, 1 << 18); IS(SYSTX_SIGNALS_SPECULATIVE, 1 << 19);
IS(SYSTX_PIPES_HELD, 1 << 20); IS(SYSTX_OUTPUT_HELD, 1 << 21);
IS(SYSTX_UNSUPPORTED_ABORT, 1 << 22); IS(SYSTX_UNSUPPORTED_ERROR, 1 << 23);
IS(SYSTX_UNSUPPORTED_WARN, 1 << 24);
IS(SYSTX_NONE, 0); IS(SYSTX_OPEN, 1); IS(SYSTX_LOST, 2); IS(SYSTX_COMMITTED, 3);
IS(SYSTX_ABORTED, 4); IS(SYSTX_FAILED, 5); IS(SYSTX_WRITE, 0); IS(SYSTX_READ, 1);
IS(sizeof(struct systx_status), 24 + 1032 + 496);
IS(offsetof(struct systx_status, retries), 4); IS(offsetof(struct systx_status, id), 8);
IS(offsetof(struct systx_status, opponent), 16); IS(offsetof(struct systx_status, path), 24);
IS(offsetof(struct systx_status, words), 24 + 1032);
IS(sizeof(struct systx_path), 16); IS(offsetof(struct systx_path, access), 8);
IS(sizeof(struct systx_begin), 32); IS(offsetof(struct systx_begin, paths), 4);
IS(offsetof(struct systx_begin, order), 8); IS(offsetof(struct systx_begin, number), 16);
IS(offsetof(struct systx_begin, scope), 24);
int (*const all[])(unsigned) = {xbegin, systx_patience};
int (*const none[])(void) = {xend, xabort};
int (*const use)(const char *) = systx_use;
int (*const at)(const char *, unsigned) = systx_begin_at;
int (*const ordered)(unsigned, const char *, uint64_t) = xbegin_ordered;
int (*const scoped)(unsigned, const struct systx_path *, uint32_t) = xbegin_scoped;
int (*const with)(const char *, const struct systx_begin *) = systx_begin_with;
int (*const reset)(const char *, const char *, uint64_t) = systx_reset_order;
int (*const next)(const char *, const char *, uint64_t *) = systx_next_order;
uint64_t (*const ids[])(void) = {xpause, xid};
int (*const resume)(uint64_t) = xresume;
int (*const status)(struct systx_status *) = xstatus;
int main(void) { return xid() == 0 && xend() == -1 ? 0 : 1; }
"#;

#[test]
fn what_was_linked_with_the_library_goes_on_with_later_ones() {
    let lab = lab!();
    for program in ["cc", "readelf"] {
        if find_program(program).is_none() {
            skip!("there is no {program}");
        }
    }
    let (library, out) = (library(), lab.outside());
    std::fs::write(out.join("promised.c"), PROMISED).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(out.join("promised"));
    cc.arg(out.join("promised.c")).arg("-I").arg(root().join("crates/lib/include"));
    cc.arg("-L").arg(&library).arg("-lsystx").arg(format!("-Wl,-rpath,{}", library.display()));
    tool(&mut cc).unwrap_or_else(|why| panic!("{why}"));
    tool(&mut Command::new(out.join("promised"))).unwrap_or_else(|why| panic!("{why}"));
    // It asks for the interface, not for a file.
    let needs = Command::new("readelf").arg("-d").arg(out.join("promised")).output().unwrap();
    let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
    let asks = |line: &&str| line.contains("NEEDED") && line.contains(&format!("[{SONAME}]"));
    assert_eq!(needs.lines().filter(asks).count(), 1, "{needs}");
}

fn contend_in_c(example: &str) {
    let lab = lab!();
    if find_program("cc").is_none() {
        skip!("there is no C compiler");
    }
    let program = compiled(&lab, example);
    contend(&lab, |dir| {
        let mut command = lab.command(&program);
        command.arg(dir);
        command
    });
}

#[test]
fn c_programs_lose_no_update() {
    contend_in_c("transfer");
}

/// The scoped ones end with the first attempt that fails.
#[test]
fn c_programs_with_a_scope_need_one_attempt() {
    contend_in_c("scoped");
}

/// Several programs at once, each with a share of the numbers: the log has all of them in order.
fn in_order(lab: &Lab, aborts: &str, program: impl Fn(&Path) -> Command) {
    const NUMBERS: usize = 24;
    let dir = lab.path("guarded");
    std::fs::create_dir(&dir).unwrap();
    mount(lab, aborts);
    let start = |first: usize| {
        let mut command = program(&dir);
        command.args([first, PROGRAMS, NUMBERS].map(|n| n.to_string()));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // Whoever has the first number starts last.
    let running: Vec<Child> = (0..PROGRAMS).rev().map(start).collect();
    for child in running {
        let done = child.wait_with_output().unwrap();
        let told = [done.stdout, done.stderr].concat();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&told));
    }
    let want: String = (0..NUMBERS).map(|n| format!("{n}\n")).collect();
    assert_eq!(lab.read("guarded/log"), want);
    lab.do_systx(["umount", "guarded"]).ok();
}

#[test]
fn c_programs_commit_in_order() {
    let lab = lab!();
    if find_program("cc").is_none() {
        skip!("there is no C compiler");
    }
    let program = compiled(&lab, "ordered");
    in_order(&lab, "", |dir| {
        let mut command = lab.command(&program);
        command.arg(dir);
        command
    });
}

#[test]
fn python_programs_commit_in_order() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let library = library().join("libsystx.so");
    in_order(&lab, "", |dir| {
        let mut command = lab.command("python3");
        command.arg("-B").arg(root().join("examples/ordered.py")).arg(dir);
        command.env("SYSTX_LIBRARY", &library);
        command.env("PYTHONPATH", root().join("bindings/python"));
        command
    });
}

fn contend_in_python(example: &str) {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let library = library().join("libsystx.so");
    contend(&lab, |dir| {
        let mut command = lab.command("python3");
        command.arg("-B").arg(root().join(format!("examples/{example}.py"))).arg(dir);
        command.env("SYSTX_LIBRARY", &library);
        command.env("PYTHONPATH", root().join("bindings/python"));
        command
    });
}

#[test]
fn python_programs_lose_no_update() {
    contend_in_python("transfer");
}

#[test]
fn python_programs_with_a_scope_need_one_attempt() {
    contend_in_python("scoped");
}

/// Compiles a Java program and the binding, with its native half.
struct Java {
    out: PathBuf,
}

impl Java {
    fn new(lab: &Lab, program: &str) -> Result<Java, String> {
        for needed in ["cc", "javac"] {
            find_program(needed).ok_or(format!("there is no {needed}"))?;
        }
        let (library, out) = (library(), lab.outside().join("java"));
        std::fs::create_dir(&out).unwrap();
        let mut javac = Command::new("javac");
        javac.args(["-Xlint:all", "-Werror", "-h"]).arg(&out).arg("-d").arg(&out);
        javac.arg(root().join("bindings/java/systx/SystemTransaction.java"));
        tool(javac.arg(root().join(program))).unwrap_or_else(|why| panic!("{why}"));
        let mut home = Command::new("java");
        home.args(["-XshowSettings:properties", "-version"]);
        let shown = home.output().unwrap().stderr;
        let shown = String::from_utf8_lossy(&shown);
        let home = shown.lines().find_map(|l| l.trim().strip_prefix("java.home = ")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o"]);
        cc.arg(out.join("libsystx_jni.so")).arg(root().join("bindings/java/systx_jni.c"));
        cc.arg("-I")
            .arg(root().join("crates/lib/include"))
            .arg("-I")
            .arg(format!("{home}/include"));
        cc.arg("-I").arg(format!("{home}/include/linux")).arg("-I").arg(&out);
        cc.arg("-L").arg(&library).arg("-lsystx").arg(format!("-Wl,-rpath,{}", library.display()));
        tool(&mut cc).unwrap_or_else(|why| panic!("{why}"));
        Ok(Java { out })
    }

    fn command(&self, lab: &Lab, options: &[&str], class: &str) -> Command {
        let mut command = lab.command("java");
        command.args(options).arg("-cp").arg(&self.out);
        command.arg(format!("-Djava.library.path={}", self.out.display())).arg(class);
        command
    }
}

fn contend_in_java(class: &str) {
    let lab = lab!();
    let java = match Java::new(&lab, &format!("examples/{class}.java")) {
        Ok(java) => java,
        Err(why) => skip!("{why}"),
    };
    contend(&lab, |dir| {
        // Small heaps: the collector works meanwhile.
        let mut command = java.command(&lab, &["-Xmx16m"], class);
        command.arg(dir);
        command
    });
}

#[test]
fn java_programs_lose_no_update() {
    contend_in_java("Transfer");
}

#[test]
fn java_programs_with_a_scope_need_one_attempt() {
    contend_in_java("Scoped");
}

/// A transaction of which a part is one of its own: the part is never committed alone, also where
/// the outer one goes on after that has failed.
#[test]
fn inner_transactions_of_java_are_part_of_the_outer_one() {
    let home = lab!();
    let java = match Java::new(&home, "crates/e2e/tests/Nested.java") {
        Ok(java) => java,
        Err(why) => skip!("{why}"),
    };
    aborts!(|lab: &Lab, aborts| contend_with(lab, aborts, |dir| {
        let mut command = java.command(lab, &["-Xmx16m"], "Nested");
        command.arg(dir);
        command
    }));
}

#[test]
fn inner_transactions_of_python_are_part_of_the_outer_one() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    let nested = "../crates/e2e/tests/nested.py";
    aborts!(|lab: &Lab, aborts| contend_with(lab, aborts, |dir| python(lab, nested, dir)));
}

/// What a program is told: why, not only an errno; its own exception, in a child as well; and
/// before anything is done what cannot be atomic.
#[test]
fn what_python_programs_are_told_says_why() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    std::fs::create_dir(lab.path("guarded")).unwrap();
    lab.do_systx(["mount", "guarded"]).ok();
    let told = python(&lab, "../crates/e2e/tests/told.py", &lab.path("guarded"));
    finish(told, Limits::default(), &lab).ok();
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["umount", "guarded"]).ok();
}

/// Each collector of the JVM stops and moves what a thread in a transaction has.
#[test]
fn java_transactions_go_on_while_garbage_is_collected() {
    let lab = lab!();
    let java = match Java::new(&lab, "crates/e2e/tests/Collect.java") {
        Ok(java) => java,
        Err(why) => skip!("{why}"),
    };
    std::fs::create_dir(lab.path("guarded")).unwrap();
    lab.do_systx(["mount", "guarded"]).ok();
    let rounds = if std::env::var_os("SYSTX_LONG").is_some() { 500 } else { 20 };
    for collector in ["-XX:+UseSerialGC", "-XX:+UseParallelGC", "-XX:+UseG1GC"] {
        let mut command = java.command(&lab, &["-Xmx48m", collector], "Collect");
        command.arg(lab.path("guarded")).arg(rounds.to_string());
        let done = finish(command, Limits::seconds(240), &lab).ok();
        let collections: u32 = done.out.trim().parse().unwrap();
        assert!(collections >= rounds, "{collector}: {done}");
    }
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["umount", "guarded"]).ok();
}

/// Go with what its builds need, nothing of it from the network.
struct Go {
    program: PathBuf,
    library: PathBuf,
    /// Compiled packages, and libsystx as `scripts/install-lib` leaves it.
    place: PathBuf,
}

/// Installs libsystx below `to`, by links.  Another process may be doing the same.
fn prefix(library: &Path, to: &Path) {
    let config = to.join("lib/pkgconfig");
    std::fs::create_dir_all(&config).unwrap();
    let include = root().join("crates/lib/include").canonicalize().unwrap();
    let so = library.join(LIBRARY);
    let soname = format!("lib/{SONAME}");
    let links = [(so.clone(), "lib/libsystx.so"), (so, &soname), (include, "include")];
    for (target, name) in links {
        let name = to.join(name);
        if std::fs::read_link(&name).ok().as_ref() != Some(&target) {
            let _ = std::fs::remove_file(&name);
            let _ = std::os::unix::fs::symlink(target, name);
        }
    }
    let text = std::fs::read_to_string(root().join("crates/lib/systx.pc.in")).unwrap();
    std::fs::write(config.join("systx.pc"), text.replace("@PREFIX@", to.to_str().unwrap()))
        .unwrap();
}

impl Go {
    fn new() -> Result<Go, String> {
        let usual = Some(PathBuf::from("/usr/local/go/bin/go")).filter(|p| p.is_file());
        let program = find_program("go").or(usual).ok_or("there is no Go")?;
        for needed in ["cc", "pkg-config"] {
            find_program(needed).ok_or(format!("there is no {needed}"))?;
        }
        // As bindings/go/go.mod asks for; what is developed on has no such number.
        let version = tool(Command::new(&program).arg("version"))?;
        let minor = version.split("go1.").nth(1).and_then(|v| v.split(['.', ' ', 'r', 'b']).next());
        if minor.and_then(|v| v.parse().ok()).is_some_and(|v: u32| v < 19) {
            return Err(format!("Go is too old: {}", version.trim()));
        }
        let library = library();
        // One place for all builds: the compiled package remembers where it was told that the
        // library is.
        let place = library.join("go");
        static MADE: OnceLock<()> = OnceLock::new();
        MADE.get_or_init(|| prefix(&library, &place.join("prefix")));
        Ok(Go { program, library, place })
    }

    /// Builds in a directory of this repository.
    fn build(&self, what: &[&str], place: &str, out: &Path) {
        let mut go = Command::new(&self.program);
        go.args(what).args(["-trimpath", "-buildvcs=false", "-o"]).arg(out).arg(".");
        go.current_dir(root().join(place));
        // The packages of the language itself are compiled once.
        go.env("GOCACHE", self.place.join("build")).env("GOPATH", self.place.join("path"));
        go.envs([("GOENV", "off"), ("GOFLAGS", ""), ("GOPROXY", "off"), ("GOWORK", "off")]);
        go.envs([("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "1"), ("CC", "cc")]);
        go.env("PKG_CONFIG_PATH", self.place.join("prefix/lib/pkgconfig"));
        tool(&mut go).unwrap_or_else(|why| panic!("{what:?} in {place}: {why}"));
    }

    fn command(&self, lab: &Lab, program: &Path) -> Command {
        let mut command = lab.command(program);
        command.env("LD_LIBRARY_PATH", &self.library);
        command
    }
}

fn contend_in_go(place: &str) {
    let lab = lab!();
    let go = match Go::new() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let program = lab.outside().join("transfer");
    go.build(&["build"], place, &program);
    contend(&lab, |dir| {
        let mut command = go.command(&lab, &program);
        command.arg(dir);
        command
    });
}

#[test]
fn go_programs_lose_no_update() {
    contend_in_go("examples/go");
}

#[test]
fn go_programs_with_a_scope_need_one_attempt() {
    contend_in_go("examples/go/scoped");
}

#[test]
fn go_programs_commit_in_order() {
    let lab = lab!();
    let go = match Go::new() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let program = lab.outside().join("ordered");
    go.build(&["build"], "examples/go/ordered", &program);
    in_order(&lab, "", |dir| {
        let mut command = go.command(&lab, &program);
        command.arg(dir);
        command
    });
}

/// The package's own tests: threads, panics, children, and contention while goroutines are
/// preempted and garbage is collected.
#[test]
fn the_go_package_passes_its_tests() {
    let lab = lab!();
    let go = match Go::new() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let program = lab.outside().join("systx.test");
    go.build(&["test", "-c"], "bindings/go", &program);
    let dir = lab.path("guarded");
    std::fs::create_dir(&dir).unwrap();
    lab.do_systx(["mount", "guarded"]).ok();
    let mut command = go.command(&lab, &program);
    command.args(["-test.v", "-test.timeout=900s"]).env("SYSTX_TEST_DIR", &dir);
    command.env("GODEBUG", "asyncpreemptoff=0");
    let done = finish(command, Limits::seconds(930), &lab).ok();
    assert!(!done.out.contains("SKIP") && done.out.matches("--- PASS").count() >= 9, "{done}");
    assert!(lab.open_ids().is_empty());
    lab.do_systx(["umount", "guarded"]).ok();
}

#[test]
fn rust_programs_lose_no_update() {
    let lab = lab!();
    let program = built(&["--example", "transfer"], "examples/transfer");
    contend(&lab, |dir| {
        let mut command = lab.command(&program);
        command.arg(dir);
        command
    });
}

/// The same program with a lock file and in transactions: subscriptions of several at once all
/// arrive, and nothing else is left.
#[test]
fn a_program_with_a_lock_file_becomes_one_with_transactions() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    lock_file(&lab, "");
}

fn lock_file(lab: &Lab, aborts: &str) {
    let library = library().join("libsystx.so");
    let dir = lab.path("guarded");
    std::fs::create_dir(&dir).unwrap();
    let example = |name: &str, args: &[&str]| {
        let mut command = lab.command("python3");
        command.arg("-B").arg(root().join("examples/lockfile").join(name)).arg(&dir).args(args);
        command.env("SYSTX_LIBRARY", &library);
        command.env("PYTHONPATH", root().join("bindings/python"));
        command
    };
    let all = |name: &str, what: &str, addresses: &[String]| {
        let start = |a: &String| example(name, &[what, a]).stderr(Stdio::piped()).spawn().unwrap();
        let running: Vec<Child> = addresses.iter().map(start).collect();
        for child in running {
            let done = child.wait_with_output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
    };
    let addresses: Vec<String> = (0..6).map(|n| format!("member{n}@example.org")).collect();
    lab.write("guarded/members", "");
    lab.write("guarded/count", "0");
    all("before.py", "subscribe", &addresses);
    all("before.py", "unsubscribe", &addresses[..3]);
    tool(&mut example("before.py", &["check"])).unwrap();
    mount(lab, aborts);
    all("after.py", "subscribe", &addresses[..3]);
    all("after.py", "unsubscribe", &addresses[3..]);
    tool(&mut example("after.py", &["check"])).unwrap();
    let mut left: Vec<String> = lab.read("guarded/members").lines().map(Into::into).collect();
    left.sort();
    assert_eq!(left, addresses[..3]);
    lab.do_systx(["umount", "guarded"]).ok();
    let mut names: Vec<_> =
        std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["count", "members"]);
}

/// An example in Python.
fn python(lab: &Lab, name: &str, dir: &Path) -> Command {
    let mut command = lab.command("python3");
    command.arg("-B").arg(root().join("examples").join(name)).arg(dir);
    command.env("SYSTX_LIBRARY", library().join("libsystx.so"));
    command.env("PYTHONPATH", root().join("bindings/python"));
    command
}

/// A program with its directory.
fn on(lab: &Lab, program: &Path, dir: &Path) -> Command {
    let mut command = lab.command(program);
    command.arg(dir);
    command
}

#[test]
fn aborts_are_told_as_lost_conflicts() {
    let lab = lab!();
    lab.write("a", "old");
    let mut run = lab.systx(["run", "--", "sh", "-c", "echo new > a"]);
    run.env("SYSTX_INJECT_ABORTS", "once");
    let lost = finish(run, Limits::default(), &lab);
    assert_ne!(lost.code, 0, "{lost}");
    assert!(lost.err.contains("a test: SYSTX_INJECT_ABORTS is set"), "{lost}");
    assert_eq!(lab.read("a"), "old");
    // The next attempt keeps its age, which is what lets it through.
    lab.run(&["--retries", "1"], "echo new > a").ok();
    assert_eq!(lab.read("a"), "new\n");
}

#[test]
fn aborts_of_c_programs_lose_no_update_nor_order() {
    if find_program("cc").is_none() {
        skip!("there is no C compiler");
    }
    aborts!(|lab: &Lab, aborts| {
        let program = compiled(lab, "transfer");
        contend_with(lab, aborts, |dir| on(lab, &program, dir));
    });
    aborts!(|lab: &Lab, aborts| {
        let program = compiled(lab, "ordered");
        in_order(lab, aborts, |dir| on(lab, &program, dir));
    });
}

#[test]
fn aborts_of_rust_programs_lose_no_update() {
    let program = built(&["--example", "transfer"], "examples/transfer");
    aborts!(|lab: &Lab, aborts| contend_with(lab, aborts, |dir| on(lab, &program, dir)));
}

#[test]
fn aborts_of_python_programs_lose_no_update_nor_order() {
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    aborts!(|lab: &Lab, aborts| {
        contend_with(lab, aborts, |dir| python(lab, "transfer.py", dir));
    });
    aborts!(|lab: &Lab, aborts| {
        in_order(lab, aborts, |dir| python(lab, "ordered.py", dir));
    });
    aborts!(lock_file);
}

#[test]
fn aborts_of_java_programs_lose_no_update() {
    let home = lab!();
    let java = match Java::new(&home, "examples/Transfer.java") {
        Ok(java) => java,
        Err(why) => skip!("{why}"),
    };
    aborts!(|lab: &Lab, aborts| contend_with(lab, aborts, |dir| {
        let mut command = java.command(lab, &["-Xmx16m"], "Transfer");
        command.arg(dir);
        command
    }));
}

#[test]
fn aborts_of_go_programs_lose_no_update() {
    let home = lab!();
    let go = match Go::new() {
        Ok(go) => go,
        Err(why) => skip!("{why}"),
    };
    let program = home.outside().join("transfer");
    go.build(&["build"], "examples/go", &program);
    aborts!(|lab: &Lab, aborts| contend_with(lab, aborts, |dir| {
        let mut command = go.command(lab, &program);
        command.arg(dir);
        command
    }));
}

/// What `bench/library` measures, with tiny numbers: each part of it checks its own work.
#[test]
fn the_benchmarks_of_the_library_work() {
    let lab = lab!();
    if find_program("python3").is_none() {
        skip!("there is no python3");
    }
    library();
    let example = built(&["--example", "bench_library"], "examples/bench_library");
    // Beside the library and the directory of the example.
    let binary = example.parent().and_then(Path::parent).expect("a directory").join("systx");
    if binary != lab.binary() {
        skip!("the program under test is not beside the library");
    }
    let results = lab.outside().join("results");
    let mut bench = lab.command(root().join("bench/library"));
    bench.args(["--quick", "--rounds", "1", "--dir"]).arg(lab.root());
    bench.arg("--results").arg(&results).arg("--binary").arg(&binary);
    finish(bench, Limits::seconds(150), &lab).ok();
    let raw = std::fs::read_to_string(results.join("raw.csv")).unwrap();
    for part in ["empty", "calls", "region", "update", "mixes"] {
        let rows = raw.lines().filter(|row| row.starts_with(&format!("{part},"))).count();
        assert!(rows >= 10, "{part}: {rows} rows\n{raw}");
    }
    // Each side of each mix has got something done.
    let done: Vec<&str> = raw.lines().filter(|row| row.contains(", commits\"")).collect();
    let nothing = done.iter().any(|row| row.ends_with(",0.000"));
    assert!(done.len() == 2 * 3 * 9 && !nothing, "{done:#?}");
    assert!(lab.open_ids().is_empty());
}
