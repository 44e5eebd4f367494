//! What a run does that reaches outside of its files: services that are to be restarted, programs
//! that give other rights, and what the configuration says is isolated.
//!
//! No service manager runs here. A script stands for systemctl; a mount namespace of the test's own
//! has a /run in which systemd seems to have booted the machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use systx_e2e::lab::{chmod, executable, find_program, tool};
use systx_e2e::run::{Limits, eventually, finish};
use systx_e2e::{FAILED, Finished, Lab, lab, skip};

/// A lab with commands of a service manager in `outside/bin`, which write what they did to
/// `outside/calls`.
struct Manager {
    lab: Lab,
}

impl Manager {
    fn new(lab: Lab) -> Manager {
        let out = lab.outside();
        let (out, vol) = (out.display(), lab.root());
        let vol = vol.display();
        // What it does to files, as systemctl enable; what it is asked; what it does to services.
        let script = format!(
            "#!/bin/sh\n\
             name=$(basename \"$0\")\n\
             [ \"$SYSTEMD_OFFLINE\" = 1 ] && {{ echo \"$@\" >> {vol}/enabled; exit; }}\n\
             case \"$*\" in is-active*|*status*) echo \"asked: $*\"; exit 3;; esac\n\
             echo \"$name $* [$(cat {vol}/unit)]\" >> {out}/calls || exit 4\n\
             case \"$*\" in *broken*) test -e {vol}/repaired;; esac\n"
        );
        fs::create_dir(lab.outside().join("bin")).expect("ours");
        for name in ["systemctl", "service", "invoke-rc.d"] {
            let path = lab.outside().join("bin").join(name);
            executable(&path, &script);
        }
        lab.write("unit", "old\n");
        Manager { lab }
    }

    /// A script on a machine that systemd has booted, or not; `systx` is in the path.
    fn sh(&self, booted: bool, script: &str) -> Finished {
        // The daemon of another mount namespace would have the store.
        self.lab.kill_all();
        let run = if booted { "/run/systemd/system" } else { "/run/other" };
        let binary = self.lab.binary();
        let path = format!(
            "{}:{}:{}",
            self.lab.outside().join("bin").display(),
            binary.parent().expect("a directory").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut command = self.lab.command("unshare");
        let setup = format!(
            "mount -t tmpfs -o mode=755 systx-e2e /run && mkdir -p {run} && cd {} && {script}",
            self.lab.root().display()
        );
        command.args(["--mount", "--propagation", "private", "sh", "-c", &setup]);
        command.env("PATH", path);
        finish(command, Limits::default(), &self.lab)
    }

    /// What was done, line by line.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.lab.outside().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

macro_rules! manager {
    () => {{
        if find_program("unshare").is_none() {
            skip!("no unshare (package util-linux)");
        }
        Manager::new(lab!())
    }};
}

#[test]
fn actions_on_services_wait_for_the_commit_and_then_see_it() {
    let m = manager!();
    let calls = m.lab.outside().join("calls");
    let inside = format!(
        "set -e; systemctl stop a; echo new > unit; systemctl daemon-reload; systemctl --quiet restart a; \
         systemctl daemon-reload; service cron restart; invoke-rc.d --quiet cron start; systemctl enable --now b; \
         systemctl is-active a || echo code $?; test ! -e {}; test -d /run/systemd/system",
        calls.display()
    );
    let done = m.sh(true, &format!("systx run -- sh -c '{inside}'")).ok();
    // Questions are answered by the real one, now.
    assert_eq!(done.out, "asked: is-active a\ncode 3\n", "{done}");
    let wanted = [
        "systemctl stop a",
        "systemctl daemon-reload",
        "systemctl --quiet restart a",
        "service cron restart",
        "invoke-rc.d --quiet cron start",
        "systemctl start -- b",
    ];
    let after: Vec<String> = wanted.iter().map(|w| format!("{w} [new]")).collect();
    assert_eq!(m.calls(), after, "{done}");
    // What only changes files is part of the transaction, by the real program.
    assert_eq!(m.lab.read("enabled"), "enable b\n");
    for action in wanted {
        assert!(done.err.contains(&format!("systx: after the commit: {action}\n")), "{done}");
    }
    assert!(!done.err.contains("dropped, was private"), "{done}");
}

#[test]
fn nothing_is_done_for_a_run_that_is_not_committed() {
    let m = manager!();
    let script = "systx run -- sh -c 'echo new > unit; systemctl restart a; exit 3'";
    let done = m.sh(true, script).expect(3);
    assert!(
        done.err.contains("not done, since nothing was committed: systemctl restart a"),
        "{done}"
    );
    let script = "systx run --services=skip --json -- sh -c 'echo new > unit; systemctl restart a'";
    let done = m.sh(true, script).ok();
    let last = done.err.lines().last().unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert_eq!(report["run"]["services"][0]["state"], "dropped", "{done}");
    assert_eq!(report["run"]["services"][0]["action"][1], "restart", "{done}");
    assert_eq!(m.sh(true, "systx services --json").ok().json()["services"], serde_json::json!([]));
    assert_eq!(m.calls(), [""; 0]);
    assert_eq!(m.lab.read("unit"), "new\n");
}

#[test]
fn what_waits_outlives_client_and_daemon_until_it_is_done_or_dropped() {
    let m = manager!();
    // One transaction changes files, the other only wants something done.
    let script = "systx run --services=ask -- sh -c 'echo new > unit; systemctl restart broken; systemctl restart a' && \
                  systx run --services=ask -- systemctl reload c && systx status && systx log";
    let done = m.sh(true, script).ok();
    assert!(done.err.contains("systx: not done yet: systemctl restart a\n"), "{done}");
    assert!(
        done.out
            .contains("not done yet: systemctl restart broken, not done yet: systemctl restart a"),
        "{done}"
    );
    assert_eq!(m.calls(), [""; 0]);
    let told = m.sh(true, "systx services --json").ok().json();
    let of = |what: &str| {
        let all = told["services"].as_array().expect("a list").clone();
        let one = all.iter().find(|d| d["actions"].to_string().contains(what)).expect("waits");
        one["id"].as_str().expect("an id").to_owned()
    };
    let (files, only) = (of("broken"), of("reload"));
    // What fails stays on the list, the rest does not.
    let script = format!(
        "systx services --run {files}; echo code $?; systx services --drop {only} && systx services"
    );
    let done = m.sh(true, &script).ok();
    assert_eq!(done.out, format!("code 1\n{files}  systemctl restart broken\n"), "{done}");
    assert_eq!(m.calls(), ["systemctl restart broken [new]", "systemctl restart a [new]"]);
    m.lab.write("repaired", "");
    let done =
        m.sh(true, &format!("systx services --run {files} && systx services && systx log")).ok();
    assert!(done.err.contains("nothing waits") && !done.out.contains("not done yet"), "{done}");
    assert_eq!(m.calls().len(), 3);
    let again = m.sh(true, &format!("systx services --run {files}"));
    assert!(again.code == 1 && again.err.contains("no waiting transaction"), "{again}");
}

#[test]
fn a_kept_transaction_keeps_what_it_wants_done() {
    let m = manager!();
    let script = "systx run --on-exit=keep -- sh -c 'echo new > unit; systemctl restart a' && \
                  systx status && systx commit $(systx list | cut -d\" \" -f1) && systx services";
    let done = m.sh(true, script).ok();
    assert!(done.err.contains("waits for the commit: systemctl restart a"), "{done}");
    assert!(done.out.contains("  after it   systemctl restart a\n"), "{done}");
    assert_eq!(m.calls(), ["systemctl restart a [new]"], "{done}");
}

#[test]
fn the_real_commands_can_be_replaced_and_are_used_where_nothing_is_caught() {
    let m = manager!();
    // Where systemd has not booted the machine, systemctl does what it does there.
    let script = "systx run -- sh -c 'echo new > unit; systemctl restart a'; echo code $?";
    let done = m.sh(false, script).ok();
    assert_eq!(done.out, "code 4\n", "it cannot write its log in the run: {done}");
    assert_eq!(m.calls(), [""; 0]);
    // A new version of the command itself: what a package manager does.
    let bin = m.lab.outside().join("bin").join("systemctl");
    let own = m.lab.path("bin");
    fs::create_dir(&own).expect("ours");
    tool(Command::new("cp").arg(bin).arg(own.join("systemctl"))).expect("a copy");
    let script = "PATH=$PWD/bin:$PATH; systx run -- sh -c 'systemctl restart a && cp bin/systemctl bin/new && mv bin/new bin/systemctl && rm -r bin'";
    let done = m.sh(true, script).ok();
    assert_eq!(m.calls(), ["systemctl restart a [old]"], "{done}");
    assert!(!m.lab.has("bin"));
}

#[test]
fn who_may_not_do_it_puts_nothing_on_the_list() {
    let m = manager!();
    if find_program("setpriv").is_none() {
        skip!("no setpriv (package util-linux)");
    }
    let as_other = "setpriv --reuid=12041 --regid=12041 --clear-groups";
    let script = format!(
        "systx run -- sh -c '{as_other} systemctl restart a; echo code $?; \
         echo \"[\\\"systemctl\\\",\\\"restart\\\",\\\"b\\\"]\" | {as_other} tee -a /run/systx/deferred; \
         echo \"[\\\"touch\\\",\\\"$PWD/bad\\\"]\" >> /run/systx/deferred'"
    );
    let done = m.sh(true, &script).ok();
    assert!(done.out.starts_with("code 1\n"), "{done}");
    assert_eq!(m.calls(), [""; 0], "{done}");
    assert!(!m.lab.has("bad"), "{done}");
}

#[test]
fn an_ordinary_user_is_told_what_sudo_inside_means() {
    let lab = lab!().as_user();
    let bin = lab.path("bin");
    fs::create_dir(&bin).expect("ours");
    lab.give(&bin);
    let sudo = lab.path("bin/sudo");
    executable(&sudo, "#!/bin/sh\necho real \"$@\"\nexit 7\n");
    lab.give(&sudo);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let run = |args: &[&str]| -> Finished {
        let mut command = lab.systx(args);
        command.env("PATH", &path);
        finish(command, Limits::default(), &lab)
    };
    let done = run(&["run", "--", "sudo", "-n", "true"]);
    if done.code == FAILED {
        skip!("no view for an ordinary user here: {}", done.err);
    }
    assert_eq!(done.out, "real -n true\n", "{done}");
    let done = done.expect(7).says("sudo systx run -- CMD");
    assert!(!done.err.contains("not caught"), "{done}");
}

#[test]
fn the_configuration_says_what_is_isolated_and_who_says_so() {
    let lab = lab!();
    lab.write("p/here", "");
    lab.write(".systxignore", "*.pyc\n[passthrough]\n/p\n");
    let done = lab.do_systx(["config", "--json", "--exclude", "./x", "--private-tmp"]).ok();
    let json = done.json();
    let rules = json["config"]["rules"].as_array().expect("rules");
    let has = |class: &str, path: PathBuf, from: &str| {
        let path = path.display().to_string();
        rules.iter().any(|r| r["class"] == class && r["path"] == *path && r["from"] == from)
    };
    let file = lab.path(".systxignore").display().to_string();
    assert!(has("private", "/run".into(), "built in"), "{done}");
    assert!(has("private", "/tmp".into(), "--private-tmp"), "{done}");
    assert!(has("passthrough", "/dev".into(), "built in"), "{done}");
    assert!(has("passthrough", lab.path("p"), &file), "{done}");
    assert!(has("no-commit", lab.path("**/*.pyc"), &file), "{done}");
    assert!(has("no-commit", lab.path("x"), "--exclude"), "{done}");
    let text = lab.do_systx(["config", "--no-ignore"]).ok();
    assert!(text.out.contains("/run") && !text.out.contains("pyc"), "{text}");
    // Which places are private depends on all file systems that a run covers: /tmp is not, where it
    // is a part of one.
    let mut several = lab.systx(["config", "--json"]);
    several.env_remove("SYSTX_ONE_FILE_SYSTEM");
    let several = finish(several, Limits::default(), &lab).ok().json();
    let has = |list: &str, key: &str, path: &str| {
        let list = several["config"][list].as_array().expect("a list");
        list.iter().any(|item| if key.is_empty() { item == path } else { item[key] == path })
    };
    let dev =
        |path: &str| std::fs::metadata(path).map(|m| std::os::unix::fs::MetadataExt::dev(&m)).ok();
    let part = has("further", "", "/") && dev("/tmp") == dev("/");
    assert_eq!(has("rules", "path", "/tmp"), !part, "{several}");
    assert_eq!(several["config"]["file_system"], lab.root().display().to_string());
}

/// Python: succeeds if this process may have a supervisor asked about calls; it has none then.
const PROBE: &str = "import ctypes, platform, struct\n\
    number = {'x86_64': 317, 'aarch64': 277, 'riscv64': 277}[platform.machine()]\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
    program = ctypes.create_string_buffer(struct.pack('H6xQ', 1, ctypes.addressof(allow)))\n\
    raise SystemExit(libc.syscall(number, 1, 8, program) < 0)\n";

macro_rules! watched {
    () => {
        if find_program("python3").is_none() {
            skip!("no python3");
        }
        let probe = std::process::Command::new("python3").args(["-c", PROBE]).output();
        if !probe.is_ok_and(|done| done.status.success()) {
            skip!("nobody is asked about calls here (seccomp user notification)");
        }
    };
}

/// Python: listens at a path, in the background once it does.
const LISTEN: &str = "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(64)\n\
    if os.fork() == 0:\n\x20   null = os.open('/dev/null', os.O_RDWR); [os.dup2(null, n) for n in (0, 1, 2)]\n\
    \x20   while True: s.accept()[0].close()\n";

/// Python: connects to a path once and says how that went.
const CONNECT: &str = "import socket, sys; s = socket.socket(socket.AF_UNIX)\n\
    try: s.connect(sys.argv[1]); print('connected')\n\
    except OSError as e: print(type(e).__name__)\n";

#[test]
fn who_is_talked_to_outside_is_named_however_short_it_was() {
    watched!();
    let m = manager!();
    fs::write(m.lab.outside().join("listen"), LISTEN).expect("ours");
    fs::write(m.lab.outside().join("connect"), CONNECT).expect("ours");
    let out = m.lab.outside();
    let (listen, connect) = (out.join("listen"), out.join("connect"));
    let (listen, connect) = (listen.display(), connect.display());
    // Outside, at a place that is known; and one that the run makes itself, which concerns nobody.
    let script = format!(
        "python3 {listen} /run/docker.sock && \
         systx run --passthrough /run/docker.sock -- sh -c 'python3 {connect} /run/docker.sock; \
         python3 {listen} /run/own.sock; python3 {connect} /run/own.sock; python3 {connect} /run/none.sock' && \
         systx run -- python3 {connect} /run/docker.sock && \
         systx run --json -- python3 {connect} /run/docker.sock"
    );
    let done = m.sh(true, &script).ok();
    let wanted = "connected\nconnected\nFileNotFoundError\nFileNotFoundError\nFileNotFoundError\n";
    assert_eq!(done.out, wanted, "{done}");
    assert!(
        done.err.contains(
            "not part of the transaction: python3 talked to /run/docker.sock (docker: containers,"
        ),
        "{done}"
    );
    assert!(done.err.contains("python3 wanted /run/docker.sock (docker)"), "{done}");
    assert!(!done.err.contains("to /run/own.sock") && !done.err.contains("none.sock"), "{done}");
    assert!(done.err.contains("dropped, was private to this run: /run/own.sock\n"), "{done}");
    let last = done.err.lines().last().unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
    assert!(report["run"]["out_of_reach"][0].to_string().contains("docker.sock"), "{done}");
    assert_eq!(report["run"]["reached_outside"], serde_json::json!([]), "{done}");
}

/// Python: listens at a path, and writes what the kernel tells of who connects; at another path
/// with room for one, of which it lets the first in when it is told to; and at a third one for
/// datagrams.
const SERVE: &str = "import os, socket, struct, sys, threading\n\
    def at(path, kind=socket.SOCK_STREAM):\n\
    \x20   s = socket.socket(socket.AF_UNIX, kind); s.bind(path); os.chmod(path, 0o777); return s\n\
    many, one, dgram = at('many'), at('one'), at('dgram', socket.SOCK_DGRAM); many.listen(64); one.listen(0)\n\
    shut = at('shut'); shut.listen(1); os.chmod('shut', 0o700)\n\
    def serve():\n\
    \x20   while True:\n\
    \x20       c = many.accept()[0]\n\
    \x20       _, uid, gid = struct.unpack('iii', c.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))\n\
    \x20       c.sendall(f'{uid} {gid}'.encode()); c.close()\n\
    threading.Thread(target=serve, daemon=True).start()\n\
    print('up', flush=True)\n\
    sys.stdin.readline(); one.accept(); one.accept(); print('let in', flush=True)\n\
    print(dgram.recv(100).decode(), flush=True); sys.stdin.readline()\n";

/// Python: connects by a path, an absolute one, a link and a relative one, and tells what it is
/// told.
const ASK: &str = "import os, socket, sys\n\
    def ask(path, kind=socket.SOCK_STREAM, blocking=True):\n\
    \x20   s = socket.socket(socket.AF_UNIX, kind); s.setblocking(blocking)\n\
    \x20   try: s.connect(path)\n\
    \x20   except OSError as e: return type(e).__name__\n\
    \x20   return s\n\
    what = sys.argv[1]\n\
    if what == 'who': print(*(r if isinstance(r, str) else r.recv(99).decode() for r in map(ask, sys.argv[2:])), sep=', ')\n\
    if what == 'full': first = ask('one'); print(ask('one', blocking=False)); print('waits', flush=True); ask('one'); print('in')\n\
    if what == 'dgram': ask('dgram', socket.SOCK_DGRAM).send(b'a datagram')\n";

/// One that ordinary users may execute, too.
const PYTHON: &str = "/usr/bin/python3";

/// What programs of a run are told by, and tell, sockets of the host that lie where the run sees a
/// view.
fn talk(lab: &Lab, as_others: bool) {
    let (serve, ask) = (lab.outside().join("serve"), lab.outside().join("ask"));
    fs::write(&serve, SERVE).expect("ours");
    fs::write(&ask, ASK).expect("ours");
    let ask = ask.display();
    let here = lab.root().display().to_string();
    lab.native("ln -s many link; mkdir closed sub; ln -s ../many sub/link").ok();
    let mut command = lab.command(PYTHON);
    command.arg(&serve);
    let mut server = systx_e2e::run::Dialogue::start(lab, command);
    server.wait_for("up");
    let own = lab.native("echo $(id -u) $(id -g)").ok().out.trim().to_owned();
    let who = |paths: &str| lab.run(&[], &format!("{PYTHON} {ask} who {paths}")).ok();
    let done = who(&format!("many {here}/many link sub/../sub/link nothing"));
    assert_eq!(done.out, format!("{own}, {own}, {own}, {own}, FileNotFoundError\n"), "{done}");
    assert!(done.err.contains(&format!("talked to {here}/many")), "{done}");
    // One that the run has put there is its own, and nobody's elsewhere.
    let script = format!(
        "rm many; {PYTHON} -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"many\")'; {PYTHON} {ask} who many"
    );
    let done = lab.run(&["--on-exit=abort"], &script);
    assert_eq!(done.out, "ConnectionRefusedError\n", "{done}");
    if as_others {
        let other = format!("setpriv --reuid=65534 --regid=65533 --clear-groups {PYTHON}");
        let script = format!(
            "mv many closed/; chmod 711 closed; {other} {ask} who shut closed/many; \
             chmod 700 closed; {other} {ask} who closed/many"
        );
        // A socket that was moved is another one, since it is not at that place on the host.
        let done = lab.run(&["--on-exit=abort"], &script);
        assert_eq!(
            done.out, "PermissionError, ConnectionRefusedError\nPermissionError\n",
            "{done}"
        );
        let done = lab.run(&[], &format!("{other} {ask} who many")).ok();
        assert_eq!(done.out, "65534 65533\n", "{done}");
    }
    let mut full = lab.systx(["run", "--", PYTHON]);
    full.arg(lab.outside().join("ask")).arg("full");
    let mut full = systx_e2e::run::Dialogue::start(lab, full);
    full.wait_for("BlockingIOError");
    full.wait_for("waits");
    server.send("let in\n");
    full.wait_for("in");
    full.close();
    server.wait_for("let in");
    lab.run(&[], &format!("{PYTHON} {ask} dgram")).ok();
    server.wait_for("a datagram");
    server.close();
    // Nobody listens any more, and the kernel's word for that is passed on.
    assert_eq!(who("many").out, "ConnectionRefusedError\n");
}

#[test]
fn sockets_of_the_host_are_reached_where_the_run_sees_a_view() {
    watched!();
    if !std::path::Path::new(PYTHON).exists() {
        skip!("no /usr/bin/python3");
    }
    talk(&lab!(), find_program("setpriv").is_some());
}

#[test]
fn sockets_of_the_host_are_reached_by_ordinary_users() {
    watched!();
    if !std::path::Path::new(PYTHON).exists() {
        skip!("no /usr/bin/python3");
    }
    talk(&lab!().as_user(), false);
}

/// Python: a filter of its own, then many threads that connect; then what was asked for.
const BUSY: &str = "import ctypes, os, socket, struct, sys, threading\n\
    path = sys.argv[1]; s = socket.socket(socket.AF_UNIX); s.bind(path); s.listen(512)\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n\
    program = ctypes.create_string_buffer(struct.pack('H6xQ', 1, ctypes.addressof(allow)))\n\
    assert libc.prctl(38, 1, 0, 0, 0) == 0\n\
    assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()\n\
    bad = []\n\
    def work():\n\
    \x20   for _ in range(25):\n\
    \x20       c = socket.socket(socket.AF_UNIX)\n\
    \x20       try: c.connect(path)\n\
    \x20       except OSError as e: bad.append(e)\n\
    \x20       c.close()\n\
    threads = [threading.Thread(target=work) for _ in range(8)]\n\
    [t.start() for t in threads]; [t.join() for t in threads]\n\
    print('bad', bad, flush=True)\n\
    while len(sys.argv) > 2:\n\
    \x20   c = socket.socket(socket.AF_UNIX)\n\
    \x20   try: c.connect(path)\n\
    \x20   except OSError: pass\n\
    \x20   c.close(); s.accept()[0].close()\n";

#[test]
fn filters_threads_and_descendants_go_on_as_without_it() {
    watched!();
    let lab = lab!();
    let busy = lab.write("busy", BUSY);
    let busy = busy.display();
    let done = lab
        .run(
            &[],
            &format!(
                "python3 {busy} a.sock && {{ python3 {busy} b.sock & }}; wait; python3 {busy} c.sock"
            ),
        )
        .ok();
    assert_eq!(done.out.matches("bad []\n").count(), 3, "{done}");
    assert!(!done.err.contains(".sock"), "{done}");
}

#[test]
fn nobody_hangs_when_the_client_that_is_asked_dies() {
    watched!();
    let lab = lab!();
    let busy = lab.write("busy", BUSY);
    let mut command = lab.systx(["run", "--", "python3"]);
    command.arg(&busy).args(["a.sock", "forever"]);
    let mut run = systx_e2e::run::Dialogue::start(&lab, command);
    run.wait_for("bad []");
    let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let clients: Vec<u32> = lab
        .processes()
        .into_iter()
        .filter(|pid| name(*pid) == "systx\n" && !lab.daemons().contains(pid))
        .collect();
    systx_e2e::lab::signal(&clients, rustix::process::Signal::KILL);
    eventually("the command ends with its client", || {
        !lab.processes().iter().any(|pid| name(*pid).starts_with("python3"))
    });
    run.close();
}

#[test]
fn a_set_id_program_of_an_ordinary_user_is_named() {
    watched!();
    let lab = lab!().as_user();
    let program = lab.path("other-rights");
    tool(Command::new("cp").arg("/bin/true").arg(&program)).expect("a copy");
    chmod(&program, 0o4755);
    let done = lab.run(&[], "./other-rights; sh -c ./other-rights");
    if done.code == FAILED {
        skip!("no view for an ordinary user here: {}", done.err);
    }
    let done = done.ok();
    assert!(
        done.err.contains(&format!("ran {} with the user's own rights", program.display())),
        "{done}"
    );
}

#[test]
fn what_a_run_may_write_is_bounded_in_memory_and_on_disk() {
    let lab = lab!();
    lab.write("old", "x".repeat(200_000));
    // Small files in memory, a large one on disk, one that is written again and again, and room
    // that comes back.
    let script = "head -c 3000000 /dev/zero > big || echo refused; : > big; \
                  for i in 1 2 3 4 5; do head -c 900000 /dev/zero > again || echo no; done; : > again; \
                  for i in $(seq 60); do head -c 20000 old > small.$i || { echo full at $i; break; }; done 2>/dev/null; \
                  cat small.1 | wc -c";
    let done = lab.run(&["--limit-size", "1000000"], script);
    let told = done.says("--limit-size").ok();
    let lines: Vec<&str> = told.out.lines().collect();
    assert_eq!(lines.first(), Some(&"refused"), "{told}");
    let full = lines.get(1).and_then(|l| l.strip_prefix("full at ")).and_then(|n| n.parse().ok());
    assert!(full.is_some_and(|n: u32| (25..=51).contains(&n)), "{told}");
    assert_eq!(lines.get(2), Some(&"20000"), "{told}");
    let quiet = lab.run(&["--limit-size", "1M", "--json"], "head -c 900000 /dev/zero > fits").ok();
    assert!(quiet.err.contains("\"limited\":false"), "{quiet}");
    assert_eq!(lab.path("fits").metadata().expect("committed").len(), 900_000);
}

#[test]
fn processes_have_limits_of_memory_time_and_number() {
    let lab = lab!();
    let done =
        lab.run(&["--limit-memory", "3G", "--limit-time", "90"], "ulimit -v; ulimit -t").ok();
    assert_eq!(done.out, "3145728\n90\n", "{done}");
    // Told by SIGXCPU, which ends it.
    let done = lab.run_argv(&["--limit-time", "1"], &["sh", "-c", "while :; do :; done"]);
    assert_eq!(done.code, 128 + 24, "{done}");
    let refused = lab.run(&["--limit-processes", "5"], "true").expect(FAILED);
    assert!(refused.err.contains("root"), "{refused}");
    let lab = lab!().as_user();
    let done = lab.run(
        &["--limit-processes", "5"],
        "for i in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo all; kill $(jobs -p)",
    );
    if done.code == FAILED {
        skip!("no view for an ordinary user here: {}", done.err);
    }
    assert!(!done.out.contains("all"), "{done}");
}
