//! Starting the daemon on demand, with real processes: this test program is, like `systx`, both
//! the client and (as `daemon …`) the daemon.  Hence no test harness.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use systx_base::TxnId;
use systx_daemon::spawn;
use systx_protocol::call::{Reply, Request};
use systx_protocol::*;

/// Has nothing open, so the daemon may end at any time.
struct Empty;

impl Control for Empty {
    fn answer(&self, _: &mut Asker, request: &Request) -> Result<Reply, Failure> {
        Err(Failure::new(FailureKind::Unsupported, request.name))
    }
    fn client_gone(&self, _: TxnId) {}
    fn idle(&self) -> bool {
        true
    }
    fn shutdown(&self) {}
}

fn daemon(args: impl Iterator<Item = std::ffi::OsString>) -> i32 {
    let (part, dir) = runtime::arguments(args).expect("arguments");
    if part == runtime::Part::Detach {
        spawn::detach(&dir).expect("detach");
        return 0;
    }
    let fails = dir.join("fail").exists();
    let made = spawn::serve(&dir, |_| {
        if fails {
            return Err(Failure::new(FailureKind::Store, "as if the store were damaged"));
        }
        Ok(Arc::new(Empty) as Arc<dyn Control>)
    });
    i32::from(made.is_err())
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("systx-spawn-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs this program as a client of `dir`; what it prints.
fn client(dir: &Path) -> std::process::Child {
    std::process::Command::new("/proc/self/exe")
        .arg("client")
        .env(runtime::DIR_VARIABLE, dir)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("spawn")
}

fn said(child: std::process::Child) -> String {
    let out = child.wait_with_output().expect("wait");
    String::from_utf8(out.stdout).expect("text").trim().to_owned()
}

fn stat_field(pid: &str, field: usize) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let rest = &stat[stat.rfind(')').expect("comm") + 2..];
    rest.split(' ').nth(field - 3).expect("field").to_owned()
}

fn end(dir: &Path, pid: &str) {
    let pid_n: i32 = pid.parse().expect("pid");
    let raw = rustix::process::Pid::from_raw(pid_n).expect("pid");
    let fd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()).expect("pidfd");
    rustix::process::kill_process(raw, rustix::process::Signal::TERM).expect("kill");
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
    let n = rustix::event::poll(&mut fds, Some(&limit)).expect("poll");
    assert_eq!(n, 1, "the daemon of {} did not end on SIGTERM", dir.display());
}

fn many_starters_get_one_daemon() {
    let dir = Dir::new("race");
    let children: Vec<_> = (0..8).map(|_| client(&dir.0)).collect();
    let pids: Vec<String> = children.into_iter().map(said).collect();
    assert!(pids[0].parse::<u32>().is_ok(), "{pids:?}");
    assert!(pids.iter().all(|p| *p == pids[0]), "{pids:?}");
    let pid = &pids[0];
    // Detached: own session, no terminal, not our child, nothing inherited but the three.
    assert_ne!(stat_field(pid, 6), stat_field("self", 6), "same session");
    assert_ne!(stat_field(pid, 4), std::process::id().to_string(), "our child");
    let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).expect("cwd");
    assert_eq!(cwd, Path::new("/"));
    let mode = std::fs::metadata(&dir.0).expect("dir").permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    // After its end, the next one is started.
    end(&dir.0, pid);
    let next = said(client(&dir.0));
    assert!(next.parse::<u32>().is_ok() && next != *pid, "{next}");
    end(&dir.0, &next);
}

fn a_killed_daemon_is_replaced() {
    let dir = Dir::new("killed");
    let pid = said(client(&dir.0));
    let raw = rustix::process::Pid::from_raw(pid.parse().expect("pid")).expect("pid");
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).expect("kill");
    let start = Instant::now();
    let next = said(client(&dir.0));
    assert!(next.parse::<u32>().is_ok() && next != pid, "{next}");
    assert!(start.elapsed() < Duration::from_secs(300));
    end(&dir.0, &next);
}

/// A keeper and a client, say, have started one each.
fn a_daemon_that_is_not_needed_any_more_leaves_its_client_to_the_other() {
    let dir = Dir::new("spare");
    let pid = said(client(&dir.0));
    let mut spare = std::process::Command::new("/proc/self/exe");
    spare.args(["daemon", "--serve", "--dir"]).arg(&dir.0);
    let out = spare.output().expect("output");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ready\n");
    assert!(out.status.success());
    assert_eq!(said(client(&dir.0)), pid);
    end(&dir.0, &pid);
}

fn a_daemon_that_cannot_start_says_why() {
    let dir = Dir::new("fails");
    std::fs::create_dir(&dir.0).expect("mkdir");
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o700)).expect("chmod");
    std::fs::write(dir.0.join("fail"), "").expect("write");
    assert_eq!(said(client(&dir.0)), "Store: as if the store were damaged");
}

fn a_directory_open_to_others_is_refused() {
    let dir = Dir::new("open");
    std::fs::create_dir(&dir.0).expect("mkdir");
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let text = said(client(&dir.0));
    assert!(text.contains("is open to others (mode 0755)"), "{text}");
}

fn main() {
    let mut args = std::env::args_os();
    args.next();
    match args.next().as_deref().and_then(|a| a.to_str()) {
        Some("daemon") => std::process::exit(daemon(args)),
        Some("client") => match runtime::connect_or_start() {
            Ok(client) => println!("{}", client.daemon().pid),
            Err(f) => println!("{:?}: {f}", f.kind),
        },
        _ => {
            many_starters_get_one_daemon();
            a_killed_daemon_is_replaced();
            a_daemon_that_is_not_needed_any_more_leaves_its_client_to_the_other();
            a_daemon_that_cannot_start_says_why();
            a_directory_open_to_others_is_refused();
            // As other test binaries say that they came to their end.
            println!("test result: ok. 5 passed; 0 failed; 0 ignored");
        }
    }
}
