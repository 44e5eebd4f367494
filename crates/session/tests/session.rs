//! Sessions with real processes.  The client must have one thread, so there is no test harness:
//! this program is the tests, and as `client …` the client of one session.
//!
//! The view's root is a directory of the host (`Backing::Directory`): everything but FUSE.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use systx_session::plan::Wish;
use systx_session::{Backing, Leftovers, Listen, PlaceToRun, Spec};

/// `client VOLUME CWD LEFTOVERS TIMEOUT_MS CMD…`; reports on stderr, one fact a line.
fn client(args: &[OsString]) -> i32 {
    let text = |i: usize| args[i].to_str().expect("text").to_owned();
    let volume = PathBuf::from(text(0));
    let spec = Spec {
        watch: true,
        limits: Default::default(),
        argv: args[4..].to_vec(),
        env: vec![("SYSTX_TEST".into(), "1".into())],
        cwd: PathBuf::from(text(1)),
        place: PlaceToRun::NewView {
            backing: Backing::Directory(volume.clone()),
            wish: Wish {
                others: vec![],
                volume,
                passthrough: vec![],
                unprotected: vec![],
                private: vec![("/run".into(), 0o755), ("/dev/shm".into(), 0o1777)],
                guarded: vec![],
            },
            fill: vec![systx_session::Fill {
                path: "/run/deep/er/file".into(),
                content: Some(b"filled".to_vec()),
                mode: 0o640,
                owner: (0, 0),
            }],
            no_net: std::env::var_os("NO_NET").is_some(),
            stand_ins: Default::default(),
        },
    };
    let mut serve = |_, _| Ok(());
    let mut started = match systx_session::start(&spec, &mut serve) {
        Ok(started) => started,
        Err(e) => {
            eprintln!("error {e}");
            return e.exit_code();
        }
    };
    let timeout: u64 = text(3).parse().expect("number");
    let deadline = (timeout > 0).then(|| Instant::now() + Duration::from_millis(timeout));
    let listen = Listen { deadline, watch: true, ..Listen::default() };
    let ended = started.wait(&listen).expect("wait");
    let leftovers = match text(2).as_str() {
        "wait" => Leftovers::Wait,
        _ => Leftovers::Kill,
    };
    let settled = started.settle(leftovers, &listen).expect("settle");
    started.sync().expect("sync");
    eprintln!("ended {ended:?}");
    for p in &settled.ended {
        eprintln!("leftover {}", p.name);
    }
    for path in started.private_remains(&["/run/deep/er/file".into()]) {
        eprintln!("private {}", path.display());
    }
    for s in started.sightings() {
        eprintln!("saw {} {}", s.process, s.what);
    }
    settled.interrupted.unwrap_or(ended).code().unwrap_or(124)
}

struct Case {
    volume: &'static str,
    cwd: &'static str,
    leftovers: &'static str,
    timeout: u64,
    /// Run the client as this uid.
    uid: Option<u32>,
}

/// After this, something that has to happen is taken never to happen.
const HANG: Duration = Duration::from_secs(300);

const PLAIN: Case = Case { volume: "/", cwd: "/", leftovers: "kill", timeout: 0, uid: None };

impl Case {
    fn command(&self, argv: &[&str]) -> Command {
        let me = std::env::current_exe().expect("exe");
        let mut c = Command::new(me);
        c.arg("client").args([self.volume, self.cwd, self.leftovers]);
        c.arg(self.timeout.to_string()).args(argv);
        if let Some(uid) = self.uid {
            c.uid(uid).gid(uid);
        }
        c
    }
    fn run(&self, argv: &[&str]) -> Output {
        self.command(argv).stdin(Stdio::null()).output().expect("client")
    }
    fn sh(&self, script: &str) -> Output {
        self.run(&["sh", "-c", script])
    }
}

fn out(o: &Output) -> String {
    String::from_utf8_lossy(&o.stdout).into_owned()
}
fn err(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}
fn code(o: &Output) -> i32 {
    o.status.code().unwrap_or_else(|| panic!("client ended by {:?}: {}", o.status.signal(), err(o)))
}

fn exit_codes_and_argv() {
    assert_eq!(code(&PLAIN.run(&["true"])), 0);
    assert_eq!(code(&PLAIN.sh("exit 7")), 7);
    assert_eq!(code(&PLAIN.sh("kill -SEGV $$")), 128 + 11);
    let missing = PLAIN.run(&["no-such-command-anywhere"]);
    assert_eq!(code(&missing), 127);
    assert_eq!(err(&missing).trim(), "error no-such-command-anywhere: command not found");
    assert_eq!(code(&PLAIN.run(&["/etc/passwd"])), 126);
    let args = PLAIN.run(&["printf", "%s|", "a b", "", "$HOME", "'"]);
    assert_eq!(out(&args), "a b||$HOME|'|");
    assert_eq!(out(&PLAIN.sh("echo $SYSTX_TEST")), "1\n");
    let nowhere = Case { cwd: "/no/such/dir", ..PLAIN }.run(&["true"]);
    assert_eq!(code(&nowhere), 125);
    assert!(err(&nowhere).contains("cannot change to /no/such/dir"), "{}", err(&nowhere));
}

fn the_root_is_as_planned() {
    let o = Case { cwd: "/usr", ..PLAIN }.sh(
        "pwd; ls /run; cat /run/deep/er/file; echo; stat -c %a /run /dev/shm /run/deep/er/file;
         readlink /proc/self/root; test -c /dev/null && echo x > /dev/null && echo dev;
         ls /proc/self/fd; echo left > /run/left; mkdir /dev/shm/d; echo > /dev/shm/d/f",
    );
    assert_eq!(code(&o), 0, "{}", err(&o));
    // No descriptor but those that a plain command inherits from this test.
    let plain = Command::new("sh")
        .args(["-c", "ls /proc/self/fd"])
        .stdin(Stdio::null())
        .output()
        .expect("sh");
    let expect = format!("/usr\ndeep\nfilled\n755\n1777\n640\n/\ndev\n{}", out(&plain));
    assert_eq!(out(&o), expect);
    let e = err(&o);
    assert!(e.contains("private /run/left\n") && e.contains("private /dev/shm/d/f\n"), "{e}");
    assert!(!e.contains("private /run/deep"), "{e}");
    assert!(!std::path::Path::new("/run/left").exists());
}

fn a_directory_as_volume_leaves_the_rest_read_only() {
    let tree = std::env::temp_dir().join(format!("systx-session-{}", std::process::id()));
    std::fs::create_dir(&tree).expect("mkdir");
    let volume: &'static str = Box::leak(tree.to_str().expect("text").to_owned().into_boxed_str());
    let o = Case { volume, cwd: volume, ..PLAIN }
        .sh("echo yes > inside && cat inside; echo no > /etc/systx-test-outside; echo $?");
    let _ = std::fs::remove_file("/etc/systx-test-outside");
    let kept = std::fs::read_to_string(tree.join("inside"));
    std::fs::remove_dir_all(&tree).expect("rmdir");
    assert_eq!(kept.expect("written"), "yes\n");
    assert!(err(&o).contains("Read-only file system"), "{}", err(&o));
    assert!(out(&o).starts_with("yes\n") && !out(&o).ends_with("\n0\n"), "{}", out(&o));
}

/// The host's root does not stay on top of the new one, where `/..` and setns would find it.
fn the_old_root_is_gone() {
    let tree = std::env::temp_dir().join(format!("systx-old-root-{}", std::process::id()));
    std::fs::create_dir(&tree).expect("mkdir");
    let volume: &'static str = Box::leak(tree.to_str().expect("text").to_owned().into_boxed_str());
    let script = "awk '$5 == \"/\"' /proc/self/mountinfo | wc -l;
        [ \"$(stat -c %i%d /..)\" = \"$(stat -c %i%d /)\" ] && echo same";
    let at_root = PLAIN.sh(script);
    let elsewhere = Case { volume, cwd: volume, ..PLAIN }.sh(script);
    std::fs::remove_dir_all(&tree).expect("rmdir");
    assert_eq!(out(&at_root), "1\nsame\n", "{}", err(&at_root));
    assert_eq!(out(&elsewhere), "1\nsame\n", "{}", err(&elsewhere));
}

fn leftovers_are_ended_even_daemons() {
    let start = Instant::now();
    // It has its name when it executes it, which takes a while after the shell has made the
    // process.
    let o = PLAIN.sh("setsid sh -c 'trap \"\" TERM; exec sleep 1000' >/dev/null 2>&1 & \
         until [ $(cat /proc/$!/comm) = sleep ]; do :; done; exit 3");
    assert_eq!(code(&o), 3);
    assert!(err(&o).contains("leftover sleep"), "{}", err(&o));
    assert!(start.elapsed() < HANG);
    // Those that end by themselves in the grace are not mentioned.
    let o = PLAIN.sh("(sleep 0.02) & exit 0");
    assert!(!err(&o).contains("leftover"), "{}", err(&o));
    // With `wait`, they are waited for.
    let o = Case { leftovers: "wait", ..PLAIN }
        .sh("(setsid sh -c 'sleep 1.5; echo late' &) ; echo early");
    assert_eq!(out(&o), "early\nlate\n");
    assert!(!err(&o).contains("leftover"), "{}", err(&o));
}

fn a_time_limit_ends_the_whole_tree() {
    let start = Instant::now();
    let o = Case { timeout: 300, ..PLAIN }
        .sh("setsid sleep 1000 & trap '' TERM; while :; do sleep 1000; done");
    assert!(err(&o).contains("ended TimedOut"), "{}", err(&o));
    assert!(start.elapsed() < HANG);
}

/// Waits for a line that CMD prints once it is ready.
fn ready(child: &mut Child) -> std::process::ChildStdout {
    let mut stdout = child.stdout.take().expect("piped");
    let mut byte = [0];
    while stdout.read(&mut byte).expect("read") == 1 && byte[0] != b'\n' {}
    stdout
}

fn signals_to_the_client_reach_the_command() {
    for (signal, name) in [
        (libc::SIGTERM, "TERM"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGINT, "INT"),
    ] {
        let script = format!(
            "trap 'echo got {name}; exit 9' {name}; echo ready; while :; do sleep 0.05; done"
        );
        let mut child = PLAIN
            .command(&["sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        let mut stdout = ready(&mut child);
        signal_to(child.id(), signal);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("read");
        assert_eq!(
            (rest.as_str(), child.wait().expect("wait").code()),
            (&*format!("got {name}\n"), Some(9))
        );
    }
}

fn a_signal_while_leftovers_are_awaited_is_not_a_success() {
    let mut child = Case { leftovers: "wait", ..PLAIN }
        .command(&["sh", "-c", "sh -c 'echo ready; exec sleep 1000' & exit 0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn");
    let stdout = ready(&mut child);
    // CMD itself is gone once its leftover is the client's own child.
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let deadline = Instant::now() + HANG;
    while Instant::now() < deadline {
        let list = std::fs::read_to_string(&children).unwrap_or_default();
        let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm"));
        if list.split_whitespace().all(|p| name(p).is_ok_and(|n| n == "sleep\n")) {
            break;
        }
        std::thread::yield_now();
    }
    signal_to(child.id(), libc::SIGTERM);
    drop(stdout);
    let out = child.wait_with_output().expect("wait");
    assert_eq!(out.status.code(), Some(128 + 15), "{}", err(&out));
}

fn a_killed_client_takes_the_command_along() {
    let mut child = PLAIN
        .command(&["sh", "-c", "echo ready; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let mut stdout = ready(&mut child);
    signal_to(child.id(), libc::SIGKILL);
    child.wait().expect("wait");
    // The end of file comes when `cat`, whose input stays open here, is gone.
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("read");
}

fn signal_to(pid: u32, signal: i32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("pid")).expect("pid");
    let signal = rustix::process::Signal::from_named_raw(signal).expect("signal");
    rustix::process::kill_process(pid, signal).expect("kill");
}

/// A shell on a pseudo terminal that runs the client as a job.
struct Pty {
    master: std::fs::File,
    shell: Child,
    said: String,
}

impl Pty {
    fn new() -> Pty {
        use rustix::pty::*;
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("openpt");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        let name = ptsname(&master, Vec::new()).expect("ptsname");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let slave: OwnedFd =
            rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty()).expect("open");
        // `setsid -c` makes the terminal the controlling one.
        let shell = Command::new("setsid")
            .args(["-c", "bash", "--norc", "--noprofile", "-i"])
            .env("PS1", "")
            .env("PS2", "")
            .stdin(slave.try_clone().expect("dup"))
            .stdout(slave.try_clone().expect("dup"))
            .stderr(slave)
            .spawn()
            .expect("bash");
        let mut pty = Pty { master: std::fs::File::from(master), shell, said: String::new() };
        pty.type_line("stty -echo; set +o history; PS1=; echo be''gin");
        pty.expect("begin");
        pty
    }
    fn type_line(&mut self, line: &str) {
        self.master.write_all(line.as_bytes()).expect("write");
        self.master.write_all(b"\n").expect("write");
    }
    fn key(&mut self, key: u8) {
        self.master.write_all(&[key]).expect("write");
    }
    fn expect(&mut self, what: &str) {
        let deadline = Instant::now() + HANG;
        while !self.said.contains(what) {
            let left = deadline.saturating_duration_since(Instant::now());
            let limit = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                self.master.as_fd(),
                rustix::event::PollFlags::IN,
            )];
            let n = rustix::event::poll(&mut fds, Some(&limit)).expect("poll");
            assert!(n > 0, "no {what:?} on the terminal; it said {:?}", self.said);
            let mut buf = [0; 4096];
            let n = self.master.read(&mut buf).unwrap_or(0);
            assert!(n > 0, "terminal closed before {what:?}; it said {:?}", self.said);
            self.said.push_str(&String::from_utf8_lossy(&buf[..n]));
        }
        let end = self.said.find(what).expect("found") + what.len();
        self.said.drain(..end);
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn job_control_passes_through() {
    let me = std::env::current_exe().expect("exe");
    let run = format!("{} client / / kill 0", me.display());
    let mut pty = Pty::new();
    // ^C goes to the command, which decides; the client lives on and reports its code.
    pty.type_line(&format!("{run} sh -c 'trap \"echo caught; exit 5\" INT; echo re\"\"ady; while :; do sleep 0.05; done'; echo code=$?"));
    pty.expect("ready");
    pty.key(3);
    pty.expect("caught");
    pty.expect("code=5");
    // ^C ends a command that does not handle it.
    pty.type_line(&format!("{run} sh -c 'echo re\"\"ady; exec sleep 1000'; echo code=$?"));
    pty.expect("ready");
    pty.key(3);
    pty.expect("code=130");
    // ^Z stops both; fg continues both, and the terminal is the command's again.
    pty.type_line(&format!("{run} sh -c 'echo re\"\"ady; read x; echo x=$x'"));
    pty.expect("ready");
    pty.key(26);
    pty.expect("Stopped");
    pty.type_line("jobs -s | grep -c cli''ent; fg");
    pty.expect("1");
    pty.expect("client");
    pty.type_line("hello");
    pty.expect("x=hello");
    // isatty, and the window is the terminal's own.
    pty.type_line("stty rows 33 cols 77");
    pty.type_line(&format!("{run} sh -c 'test -t 0 && test -t 1 && stty size'; echo code=$?"));
    pty.expect("33 77");
    pty.expect("code=0");
    // An interactive shell inside has job control of its own.
    pty.type_line(&format!("{run} bash --norc -i"));
    pty.type_line("PS1=; sleep 1000 & jobs; kill %1; wait; exit 4");
    pty.expect("Running");
    pty.type_line("echo co''de=$?");
    pty.expect("code=4");
}

fn as_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        println!("session: already an ordinary user, skipped the switch");
        return;
    }
    if std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|s| s.trim() == "0")
    {
        println!("session: no user namespaces here, skipped");
        return;
    }
    let case = Case { uid: Some(65534), cwd: "/usr", ..PLAIN };
    let o = case.sh("id -u; id -g; pwd; echo x > /dev/shm/f; stat -c %u /dev/shm/f; cat /run/deep/er/file; exit 6");
    assert_eq!(code(&o), 6, "{}", err(&o));
    assert_eq!(out(&o), "65534\n65534\n/usr\n65534\nfilled");
    assert!(err(&o).contains("private /dev/shm/f"), "{}", err(&o));
    // It has no more rights than outside, and nested user namespaces work.
    let o = case.sh("cat /etc/shadow >/dev/null 2>&1 || echo denied; unshare -Ur id -u");
    assert_eq!(out(&o), "denied\n0\n", "{}", err(&o));
}

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|a| a == "client") {
        std::process::exit(client(&args[1..]));
    }
    // The ordinary user must be able to execute this program.
    let tests: [(&str, fn()); 11] = [
        ("exit_codes_and_argv", exit_codes_and_argv),
        ("the_root_is_as_planned", the_root_is_as_planned),
        (
            "a_directory_as_volume_leaves_the_rest_read_only",
            a_directory_as_volume_leaves_the_rest_read_only,
        ),
        ("the_old_root_is_gone", the_old_root_is_gone),
        ("leftovers_are_ended_even_daemons", leftovers_are_ended_even_daemons),
        ("a_time_limit_ends_the_whole_tree", a_time_limit_ends_the_whole_tree),
        ("signals_to_the_client_reach_the_command", signals_to_the_client_reach_the_command),
        (
            "a_signal_while_leftovers_are_awaited_is_not_a_success",
            a_signal_while_leftovers_are_awaited_is_not_a_success,
        ),
        ("a_killed_client_takes_the_command_along", a_killed_client_takes_the_command_along),
        ("job_control_passes_through", job_control_passes_through),
        ("as_an_ordinary_user", as_an_ordinary_user),
    ];
    let mut passed = 0;
    let only = args.first().and_then(|a| a.to_str().map(str::to_owned));
    for (name, test) in tests {
        if only.as_deref().is_none_or(|o| name.contains(o) || o.starts_with('-')) {
            let start = Instant::now();
            test();
            println!("test {name} ... ok ({} ms)", start.elapsed().as_millis());
            passed += 1;
        }
    }
    // As other test binaries say that they came to their end.
    println!("test result: ok. {passed} passed; 0 failed; 0 ignored");
}
