//! `systx doctor`: what this machine allows, and what to do where it does not.

use crate::args::Doctor;
use crate::output::Out;
use crate::problem::{ERROR, Problem};
use crate::{context, output};
use serde::Serialize;
use std::path::Path;
use systx_protocol::call;
use systx_protocol::runtime::Runtime;

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Slow,
    Missing,
}

#[derive(Serialize)]
struct Check {
    what: &'static str,
    level: Level,
    found: String,
    hint: Option<String>,
}

/// Checks, and prints what was found; 1 if something necessary is missing.
///
/// # Errors
/// A directory is not there.
pub fn doctor(args: &Doctor, out: Out) -> Result<i32, Problem> {
    let place = context::place(&args.place)?;
    let mut checks = vec![kernel(), device(), privilege()];
    if args.fix {
        checks.push(switch_on(args.permanent));
    }
    checks.extend([uring(), memory_locks(), dead_views(), daemon()]);
    checks.push(volume(place));
    if out.json {
        out.json("checks", &checks);
    } else {
        for check in &checks {
            let mark = match check.level {
                Level::Ok => "ok     ",
                Level::Slow => "slow   ",
                Level::Missing => "missing",
            };
            output::print(&format!("{mark}  {}: {}\n", check.what, check.found));
            if let Some(hint) = &check.hint {
                output::print(&format!("         {hint}\n"));
            }
        }
    }
    let missing = checks.iter().any(|c| c.level == Level::Missing);
    Ok(if missing { ERROR } else { 0 })
}

fn check(what: &'static str, level: Level, found: impl Into<String>) -> Check {
    Check { what, level, found: found.into(), hint: None }
}

impl Check {
    fn hint(mut self, hint: impl Into<String>) -> Check {
        self.hint = Some(hint.into());
        self
    }
}

fn setting(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>());
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    };
    match version {
        v if v < (6, 1) => check("kernel", Level::Missing, release).hint("Linux 6.1 is needed"),
        v if v < (6, 13) => check("kernel", Level::Ok, release)
            .hint("before 6.13 changes within one tick cannot be told apart: more false conflicts"),
        _ => check("kernel", Level::Ok, release),
    }
}

fn device() -> Check {
    let path = Path::new("/dev/fuse");
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, rustix::fs::Mode::empty()) {
        Ok(_) => check("/dev/fuse", Level::Ok, "can be opened"),
        Err(e) => check("/dev/fuse", Level::Missing, std::io::Error::from(e).to_string()).hint(
            "as root: modprobe fuse; in a container: --device /dev/fuse; its mode is usually 0666",
        ),
    }
}

fn privilege() -> Check {
    if systx_session::privileged() {
        return check("privilege", Level::Ok, "CAP_SYS_ADMIN: no user namespace needed");
    }
    let off = [
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    for (path, value, remedy) in off {
        if setting(path).as_deref() == Some(value) {
            return check("user namespaces", Level::Missing, format!("{path} is {value}"))
                .hint(format!("as root: sysctl {remedy}; or run systx as root"));
        }
    }
    check("user namespaces", Level::Ok, "allowed by the kernel's settings")
}

fn uring() -> Check {
    let what = "FUSE over io_uring";
    let slow = |found: String| check(what, Level::Slow, found);
    let remedy = "as root: systx doctor --fix (--permanent to keep it after a boot), or \
                  fuse.enable_uring=Y on the kernel command line";
    match setting(SWITCH).as_deref() {
        Some("Y" | "1") => {}
        Some(other) => return slow(format!("switched off ({other})")).hint(remedy),
        None => return slow("not in this kernel (from 6.14 on)".into()),
    }
    match setting("/proc/sys/kernel/io_uring_disabled").as_deref() {
        Some("2") => slow("io_uring is switched off".into())
            .hint("as root: sysctl kernel.io_uring_disabled=0"),
        Some("1") if !systx_session::privileged() => slow("io_uring is for root only".into())
            .hint("as root: sysctl kernel.io_uring_disabled=0"),
        _ => check(what, Level::Ok, "available"),
    }
}

/// The kernel's switch for FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Read by systemd-tmpfiles(8) at each boot, whether FUSE is a module or not.
const AT_BOOT: &str = "/etc/tmpfiles.d/systx.conf";

/// Switches FUSE over io_uring on.
fn switch_on(permanent: bool) -> Check {
    let what = "switching on";
    if let Err(e) = std::fs::write(SWITCH, "Y\n") {
        return check(what, Level::Slow, format!("{SWITCH}: {e}"))
            .hint("only root can, and only a kernel from 6.14 on has it");
    }
    if !permanent {
        return check(what, Level::Ok, "FUSE over io_uring is on until the next boot");
    }
    let line = format!("# Made by systx doctor --fix --permanent.\nw {SWITCH} - - - - Y\n");
    match std::fs::write(AT_BOOT, line) {
        Ok(()) => check(what, Level::Ok, format!("on, and at each boot, by {AT_BOOT}")),
        Err(e) => check(what, Level::Slow, format!("on until the next boot; {AT_BOOT}: {e}"))
            .hint("without systemd: fuse.enable_uring=Y on the kernel command line"),
    }
}

/// Mounts whose daemon is gone.
fn dead_views() -> Check {
    let what = "mounts";
    let table = systx_session::mountinfo::here().unwrap_or_default();
    let ours: Vec<_> = table.into_iter().filter(|m| m.fs == "fuse.systx").map(|m| m.at).collect();
    // A daemon that runs looks after its mounts; one that hangs would not answer a question about
    // them.
    let runs = Runtime::find().is_ok_and(|r| !matches!(r.connect(), Ok(None)));
    let dead = |at: &&std::path::PathBuf| {
        matches!(rustix::fs::statfs(*at), Err(rustix::io::Errno::NOTCONN))
    };
    let dead: Vec<String> = if runs {
        Vec::new()
    } else {
        ours.iter().filter(dead).map(|at| at.display().to_string()).collect()
    };
    if dead.is_empty() {
        return check(what, Level::Ok, ours.len().to_string());
    }
    check(what, Level::Slow, format!("nobody serves {}", dead.join(", ")))
        .hint(
            "a new daemon brings guarded directories back and clears its user's views away: systx list; others: \
             umount --lazy (of an ordinary user: fusermount3 -u -z)",
        )
}

fn memory_locks() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let files = limit.maximum.map_or("unlimited".to_owned(), |n| n.to_string());
    match limit.maximum {
        Some(n) if n < 4096 => check("open files", Level::Slow, files).hint("ulimit -Hn 65536"),
        _ => check("open files", Level::Ok, files),
    }
}

fn daemon() -> Check {
    match Runtime::find() {
        Err(f) => {
            let c = check("daemon", Level::Missing, f.message);
            Check { hint: f.hint, ..c }
        }
        Ok(runtime) => match runtime.connect() {
            Ok(Some(client)) => {
                let d = client.daemon();
                let found = format!("runs (pid {}, systx {})", d.pid, d.release);
                check("daemon", Level::Ok, found)
                    .hint(format!("its log: {}", runtime.log().display()))
            }
            Ok(None) => check("daemon", Level::Ok, "not running; started on demand"),
            Err(f) => {
                let c = check("daemon", Level::Missing, f.message);
                Check { hint: f.hint, ..c }
            }
        },
    }
}

fn volume(place: systx_protocol::Place) -> Check {
    let what = "volume";
    let looked = context::connect().and_then(|mut c| Ok(c.ask(&call::Inspect(place))?));
    match looked {
        Ok(i) => {
            let mut found =
                format!("{}: {}; store {} ({})", i.root, i.class, i.store, output::size(i.bytes));
            for note in &i.notes {
                found.push_str(&format!("; {note}"));
            }
            let c = check(what, Level::Ok, found);
            if i.pending > 0 {
                return c.hint(format!("{} transactions wait for: systx recover", i.pending));
            }
            c
        }
        Err(p) => {
            let c = check(what, Level::Missing, p.message);
            Check { hint: p.hint, ..c }
        }
    }
}
