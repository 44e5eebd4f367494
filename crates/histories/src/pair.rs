//! Two programs, one against the other: the second is a process of its own, told to stop by the end
//! of its standard input.

use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The other program, while it runs.
pub struct Other {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// Starts it and waits until it says that it is ready.
    ///
    /// # Errors
    /// That it cannot be started, or ends before it is ready.
    pub fn start(mut command: Command) -> Result<Other> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("it has an output")?;
        let mut other = Other { child, input, output: BufReader::new(output) };
        other.line().context("the other program ended before it began")?;
        Ok(other)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let n = self.output.read_line(&mut line)?;
        anyhow::ensure!(n > 0, "nothing more was said");
        Ok(line.trim().to_owned())
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

/// In the other program: says that it is ready; true once it has to stop.
pub fn until_told() -> Arc<AtomicBool> {
    println!("ready");
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    stop
}
