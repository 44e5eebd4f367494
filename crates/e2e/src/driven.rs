//! A program with transactions of threads that does what it is told, line by line.

use crate::Lab;
use crate::cases::{line, started};
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command};

/// One that runs: `systx-e2e-threads driven DIR`.
pub struct Driven {
    child: Child,
    say: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Driven {
    /// Starts it by this command, to which its words are added, and waits until it listens.
    #[track_caller]
    pub fn start(lab: &Lab, mut command: Command, dir: &Path) -> Driven {
        command.arg("driven").arg(dir);
        let (mut child, mut out) = started(command);
        assert_eq!(line(&mut out), "ready", "{}", lab.daemon_log());
        let say = child.stdin.take();
        Driven { child, say, out }
    }

    /// Says these words, and does not wait.
    pub fn tell(&mut self, words: &str) {
        let say = self.say.as_mut().expect("it listens");
        writeln!(say, "{words}").expect("it reads");
    }

    /// The answer to what it was told first and has not answered.
    pub fn answer(&mut self) -> String {
        line(&mut self.out)
    }

    /// Its answer to these words.
    pub fn does(&mut self, words: &str) -> String {
        self.tell(words);
        self.answer()
    }

    /// All of it, each with this answer.
    #[track_caller]
    pub fn all(&mut self, acts: &[(&str, &str)]) {
        for (words, answer) in acts {
            assert_eq!(self.does(words), *answer, "{words}");
        }
    }

    /// Its end, after which it has done what it should.
    pub fn ends(mut self) {
        self.say = None;
        assert_eq!(self.answer(), "ok");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // Of a test that has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
