//! Two programs, one against the other: the second is a process of its own, told to stop by the end
//! of its standard input. It counts what it has done in memory that both have, so that the first
//! knows what happened in the middle of something.

use anyhow::{Context, Result};
use rustix::fs::MemfdFlags;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// In the environment of the other program: its descriptor of the count.
const COUNT: &str = "SYSTX_HISTORIES_COUNT";

/// The other program, while it runs.
pub struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Eight bytes: how much it has done.
    count: File,
}

impl Other {
    /// Starts it and waits until it says that it is ready.
    ///
    /// # Errors
    /// That it cannot be started, or ends before it is ready.
    pub fn start(mut command: Command) -> Result<Other> {
        // Without CLOEXEC: whatever is started in between (setpriv) hands it on.
        let count = rustix::fs::memfd_create("count", MemfdFlags::empty())?;
        let count = File::from(count);
        count.write_all_at(&0_u64.to_ne_bytes(), 0)?;
        command.env(COUNT, count.as_raw_fd().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("it has an output")?;
        let mut other = Other { child, input, output: BufReader::new(output), count };
        other.line().context("the other program ended before it began")?;
        Ok(other)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let n = self.output.read_line(&mut line)?;
        anyhow::ensure!(n > 0, "nothing more was said");
        Ok(line.trim().to_owned())
    }

    /// How much it has done so far.
    ///
    /// # Errors
    /// As of pread(2).
    pub fn done(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        self.count.read_exact_at(&mut count, 0)?;
        Ok(u64::from_ne_bytes(count))
    }

    /// Whether it has ended by itself.
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it; the number that it prints at its end.
    ///
    /// # Errors
    /// That it failed, or printed no number.
    pub fn stop(mut self) -> Result<u64> {
        self.input = None;
        let line = self.line().context("the other program failed")?;
        self.child.wait()?;
        line.parse().with_context(|| format!("the other program said {line:?}"))
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// What the other program did in the middle of transactions: without that a round shows nothing.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Busy {
    /// Rounds in which it did something between the begin and the end of the work, in any of the
    /// attempts.
    pub disturbed: u64,
    /// What it did there, in all rounds.
    pub meanwhile: u64,
    #[serde(skip)]
    this_round: u64,
}

/// The place in the work where something has to come in between.
pub type Middle<'a> = &'a dyn Fn() -> io::Result<()>;

/// How long it is waited for something to come in between: longer than a program waits for its turn
/// on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

impl Busy {
    /// Does the work of one attempt. To `meet`, it waits in its middle until the other program has
    /// done something since it began, if nothing was done in an earlier attempt of the round.
    ///
    /// # Errors
    /// Those of the work.
    pub fn while_at<T>(
        &mut self,
        other: &Other,
        meet: bool,
        work: impl FnOnce(Middle<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let before = other.done()?;
        let waits = meet && self.this_round == 0;
        let middle = || {
            let late = Instant::now() + PATIENCE;
            while waits && other.done()? == before && Instant::now() < late {
                std::thread::sleep(Duration::from_micros(10));
            }
            Ok(())
        };
        let worked = work(&middle);
        self.this_round += other.done()? - before;
        worked
    }

    /// The attempts up to here were a round.
    pub fn round(&mut self) {
        let n = std::mem::take(&mut self.this_round);
        self.meanwhile += n;
        self.disturbed += u64::from(n > 0);
    }
}

/// In the other program: what it was told, and tells.
pub struct Told {
    stop: Arc<AtomicBool>,
    count: File,
}

impl Told {
    /// Says that it is ready.
    ///
    /// # Errors
    /// That nobody has started it as [`Other`].
    pub fn new() -> Result<Told> {
        let count = std::env::var(COUNT).context("this is not for itself")?;
        // By name, since nobody else owns the descriptor.
        let count = File::options().write(true).open(format!("/proc/self/fd/{count}"))?;
        println!("ready");
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        std::thread::spawn(move || {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            told.store(true, Ordering::Relaxed);
        });
        Ok(Told { stop, count })
    }

    /// It has to stop.
    pub fn to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How much it has done.
    ///
    /// # Errors
    /// As of pwrite(2).
    pub fn done(&self, count: u64) -> io::Result<()> {
        self.count.write_all_at(&count.to_ne_bytes(), 0)
    }
}
