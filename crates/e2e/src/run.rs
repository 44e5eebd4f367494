//! Starting `systx` and waiting for it, never without a limit.
//!
//! [`finish`] runs a command to its end and collects what it printed.  [`Shell`] is a shell inside
//! a run that the test drives line by line: a line is sent, its output and exit code come back, so
//! the test knows that it has happened, and that the next thing has not.

use crate::Lab;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this, something that has to happen is taken never to happen. The one place for it: a hang
/// must fail, and a machine that is ten times slower, and busy with other things, must not.
pub const HANG: Duration = Duration::from_secs(300);

/// Waits for something that happens by itself, and tells nobody when it does.
#[track_caller]
pub fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG;
    while !is() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How long things may take: never less than [`HANG`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From start to end.
    pub total: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { total: HANG }
    }
}

impl Limits {
    /// So many seconds, for what takes minutes.
    pub fn seconds(seconds: u64) -> Limits {
        Limits { total: HANG.max(Duration::from_secs(seconds)) }
    }
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code; 128 + n if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Standard output as it came.
    pub bytes: Vec<u8>,
    /// From start to end.
    pub took: Duration,
    /// For failure messages.
    pub what: String,
}

impl Finished {
    /// Fails the test unless it ended with this code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Finished {
        assert!(self.code == code, "expected exit code {code}\n{self}");
        self
    }

    /// Fails the test unless it ended with 0.
    #[track_caller]
    pub fn ok(self) -> Finished {
        self.expect(0)
    }

    /// Fails the test unless standard error has this text.
    #[track_caller]
    pub fn says(self, text: &str) -> Finished {
        assert!(self.err.contains(text), "expected {text:?} on stderr\n{self}");
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("no JSON ({e})\n{self}"))
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Finished { code, out, err, took, what, .. } = self;
        let (out, err) = (shortened(out), shortened(err));
        write!(f, "{what}\nended with {code} after {took:?}\n-- stdout\n{out}\n-- stderr\n{err}")
    }
}

fn shortened(text: &str) -> String {
    const KEEP: usize = 6000;
    if text.len() <= 2 * KEEP {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let (head, tail) = (&bytes[..KEEP], &bytes[bytes.len() - KEEP..]);
    format!("{}\n[…]\n{}", String::from_utf8_lossy(head), String::from_utf8_lossy(tail))
}

/// Ids in `list --json`, `log --json` and the like, in the order of the output.
pub fn ids(json: &serde_json::Value) -> Vec<String> {
    match json {
        serde_json::Value::Array(items) => items.iter().flat_map(ids).collect(),
        serde_json::Value::Object(map) => match map.get("id").and_then(|id| id.as_str()) {
            Some(id) => vec![id.to_owned()],
            None => map.values().flat_map(ids).collect(),
        },
        _ => Vec::new(),
    }
}

/// Runs a command to its end.
pub fn finish(mut command: Command, limits: Limits, lab: &Lab) -> Finished {
    let what = format!("{command:?}");
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
    Running::new(child, what, limits).finish(lab)
}

/// A command that was started; what it prints is collected meanwhile.
pub struct Running {
    child: Child,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
    what: String,
    begun: Instant,
    limits: Limits,
}

impl Running {
    /// Starts it.
    pub fn start(mut command: Command, limits: Limits) -> Running {
        let what = format!("{command:?}");
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        Running::new(child, what, limits)
    }

    fn new(mut child: Child, what: String, limits: Limits) -> Running {
        let out = child.stdout.take().map(collect);
        let err = child.stderr.take().map(collect);
        Running { child, out, err, what, begun: Instant::now(), limits }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// It has ended.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().expect("own child").is_some()
    }

    /// Waits for its end.
    pub fn finish(mut self, lab: &Lab) -> Finished {
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty());
        let in_time = match pidfd {
            Ok(fd) => wait_readable(&fd, self.begun + self.limits.total),
            Err(_) => true, // already reaped by `ended`
        };
        if !in_time {
            let stacks = stacks(&lab.processes());
            lab.kill_all();
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!(
                "no end after {:?}: {}\n-- where its processes were\n{stacks}\n-- stdout\n{}\n-- \
                 stderr\n{}\n-- daemon\n{}",
                self.limits.total,
                self.what,
                text(self.out.take()).1,
                text(self.err.take()).1,
                lab.daemon_log()
            );
        }
        let status = self.child.wait().expect("own child");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        let took = self.begun.elapsed();
        let (bytes, out) = text(self.out.take());
        let (_, mut err) = text(self.err.take());
        // Our own failure: the daemon may know more, and its log goes with the lab.
        if code == 125 {
            let said = lab.daemon_log();
            if !said.is_empty() {
                err.push_str(&format!("-- daemon\n{said}"));
            }
        }
        Finished { code, out, err, bytes, took, what: self.what }
    }
}

fn stacks(pids: &[u32]) -> String {
    let mut out = String::new();
    for pid in pids {
        let read = |name: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let (line, wchan) = (read("cmdline"), read("wchan"));
        out.push_str(&format!("{pid} {line} in {wchan}\n"));
    }
    out
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

fn text(from: Option<JoinHandle<Vec<u8>>>) -> (Vec<u8>, String) {
    let bytes = from.map(|t| t.join().expect("reader")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (bytes, text)
}

/// Waits until a descriptor is readable (a pidfd: until the process has ended); false if the
/// deadline came first.
pub fn wait_readable(fd: &impl AsFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => panic!("poll: {e}"),
        }
    }
}

/// A shell inside a run, driven line by line.
pub struct Shell<'a> {
    lab: &'a Lab,
    child: Option<Running>,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

const MARK: &str = "\u{1}systx-e2e-done";

impl<'a> Shell<'a> {
    /// Starts `command`, which must end up in a shell that reads its standard input.
    pub fn start(lab: &'a Lab, mut command: Command) -> Shell<'a> {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let input = child.stdin.take();
        let out = child.stdout.take().expect("piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut line = Vec::new();
            while out.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let child = Some(Running::new(child, what, Limits::default()));
        Shell { lab, child, input, lines }
    }

    /// Sends a script and waits until it is done; its output (both kinds) and its exit code.
    #[track_caller]
    pub fn try_eval(&mut self, script: &str) -> Option<(String, i32)> {
        let input = self.input.as_mut().expect("the shell was ended");
        let sent = writeln!(input, "{{ {script}\n}} 2>&1 </dev/null; echo '{MARK}' $?");
        sent.and_then(|()| input.flush()).ok()?;
        let deadline = Instant::now() + HANG;
        let mut out = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => match line.split_once(MARK) {
                    Some((rest, code)) => {
                        out.push_str(rest);
                        return Some((out, code.trim().parse().expect("exit code")));
                    }
                    None => out.push_str(&line),
                },
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    let stacks = stacks(&self.lab.processes());
                    self.lab.kill_all();
                    panic!("no answer to {script:?}; so far: {out}\n{stacks}");
                }
            }
        }
    }

    /// Sends a script that must succeed; its output.
    #[track_caller]
    pub fn eval(&mut self, script: &str) -> String {
        match self.try_eval(script) {
            Some((out, 0)) => out,
            Some((out, code)) => panic!("{script:?} in the run ended with {code}: {out}"),
            None => panic!("the run ended before {script:?} was done\n{}", self.finished()),
        }
    }

    /// Pid of `systx run`.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("not ended").pid()
    }

    /// Sends `systx run` a signal.
    pub fn signal(&self, signal: Signal) {
        self.child.as_ref().expect("not ended").signal(signal);
    }

    /// Ends the shell with this code, and waits for the end of the run.
    #[track_caller]
    pub fn exit(mut self, code: i32) -> Finished {
        if let Some(input) = self.input.as_mut() {
            let _ = writeln!(input, "exit {code}");
        }
        self.finished()
    }

    /// Ends the shell without waiting.
    pub fn begin_exit(&mut self, code: i32) {
        if let Some(mut input) = self.input.take() {
            let _ = writeln!(input, "exit {code}");
        }
    }

    /// Waits for the end of the run.
    #[track_caller]
    pub fn finished(&mut self) -> Finished {
        self.input = None;
        let mut done = self.child.take().expect("waited for twice").finish(self.lab);
        done.out = self.lines.iter().collect();
        done
    }
}

impl Drop for Shell<'_> {
    fn drop(&mut self) {
        self.input = None; // end of file ends the shell
        if let Some(child) = self.child.take() {
            if std::thread::panicking() {
                self.lab.kill_all();
            } else {
                child.finish(self.lab);
            }
        }
    }
}

/// A program that is talked to without knowing where its answers end: a terminal, say.
pub struct Dialogue<'a> {
    lab: &'a Lab,
    child: Option<Running>,
    input: Option<ChildStdin>,
    bytes: Receiver<Vec<u8>>,
    seen: String,
}

impl<'a> Dialogue<'a> {
    /// Starts it.
    pub fn start(lab: &'a Lab, mut command: Command) -> Dialogue<'a> {
        let what = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {what}: {e}"));
        let input = child.stdin.take();
        let mut out = child.stdout.take().expect("piped");
        let (send, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n) = out.read(&mut buffer) {
                if n == 0 || send.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        let child = Some(Running::new(child, what, Limits::default()));
        Dialogue { lab, child, input, bytes, seen: String::new() }
    }

    /// Types something.
    pub fn send(&mut self, text: &str) {
        let input = self.input.as_mut().expect("not closed");
        input.write_all(text.as_bytes()).and_then(|()| input.flush()).expect("it still reads");
    }

    /// The program itself.
    pub fn child(&mut self) -> &mut Running {
        self.child.as_mut().expect("not closed")
    }

    /// Waits until it has printed this; everything up to there.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> String {
        let deadline = Instant::now() + HANG;
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(more) => self.seen.push_str(&String::from_utf8_lossy(&more)),
                Err(e) => {
                    self.lab.kill_all();
                    panic!("{text:?} was never printed ({e}); but: {}", self.seen);
                }
            }
        }
    }

    /// Closes its input and waits for its end.
    pub fn close(mut self) -> Finished {
        self.input = None;
        let mut done = self.child.take().expect("closed once").finish(self.lab);
        done.out = std::mem::take(&mut self.seen);
        for more in self.bytes.iter() {
            done.out.push_str(&String::from_utf8_lossy(&more));
        }
        done
    }
}

impl Drop for Dialogue<'_> {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.lab.kill_all();
        }
    }
}
