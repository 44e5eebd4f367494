//! The terminal that the client and CMD share.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::Termios;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A terminal's state, to be put back after a killed program.
pub(crate) struct Terminal {
    fd: OwnedFd,
    /// The client's group was in the foreground.
    foreground: bool,
    modes: Termios,
}

impl Terminal {
    pub(crate) fn save() -> Option<Terminal> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()?;
        let modes = rustix::termios::tcgetattr(&fd).ok()?;
        let foreground =
            rustix::termios::tcgetpgrp(&fd).is_ok_and(|g| g == rustix::process::getpgrp());
        Some(Terminal { fd, foreground, modes })
    }

    /// Takes the terminal back from a group that no longer exists; with `modes` also its modes,
    /// which a program that was killed could not put back.
    pub(crate) fn put_back(&self, modes: bool) {
        // SIGTTOU is blocked.
        if self.foreground {
            let group = rustix::process::getpgrp();
            if rustix::termios::tcgetpgrp(&self.fd) != Ok(group) {
                let _ = rustix::termios::tcsetpgrp(&self.fd, group);
            }
            if modes {
                let now = rustix::termios::OptionalActions::Now;
                let _ = rustix::termios::tcsetattr(&self.fd, now, &self.modes);
            }
        }
    }
}

/// What is typed at a terminal, read without waiting for it.
///
/// A read that follows poll(2) may have to wait all the same. `^C` empties the terminal's buffer
/// after it has sent the signal (`isig`, drivers/tty/n_tty.c), and `n_tty_poll` takes no lock: in
/// the middle of it, the terminal looks as if a line were there. The signal that has come with it
/// is blocked here, and would not end such a wait.
pub(crate) struct Typed(OwnedFd);

impl Typed {
    /// Opens a terminal anew: that reads do not wait would hold for everybody who has the same
    /// open file.
    ///
    /// # Errors
    /// It cannot be opened, and there is no controlling terminal in its place.
    pub(crate) fn at(terminal: BorrowedFd<'_>) -> Result<Typed, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
        let again = open(&format!("/proc/self/fd/{}", terminal.as_raw_fd()));
        // After su(1) the terminal still belongs to the user before.
        again.or_else(|_| open("/dev/tty")).map(Typed)
    }

    /// The next line; `None` at the end of input.
    ///
    /// # Errors
    /// `AGAIN`: there is none yet. Others: the terminal is gone.
    pub(crate) fn line(&self) -> Result<Option<String>, Errno> {
        let mut line = [0; 256];
        let n = rustix::io::read(&self.0, &mut line)?;
        Ok((n > 0).then(|| String::from_utf8_lossy(&line[..n]).into_owned()))
    }
}

impl AsFd for Typed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

    #[test]
    fn a_read_that_finds_nothing_typed_does_not_wait() {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&keyboard).unwrap();
        unlockpt(&keyboard).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let terminal = ioctl_tiocgptpeer(&keyboard, flags).unwrap();
        let typed = Typed::at(terminal.as_fd()).unwrap();
        assert_eq!(typed.line(), Err(Errno::AGAIN));
        rustix::io::write(&keyboard, b"half").unwrap();
        assert_eq!(typed.line(), Err(Errno::AGAIN), "no line yet");
        rustix::io::write(&keyboard, b" a line\n\x04").unwrap();
        assert_eq!(typed.line().unwrap().as_deref(), Some("half a line\n"));
        assert_eq!(typed.line(), Ok(None), "the end of input");
        assert_eq!(typed.line(), Err(Errno::AGAIN));
        // Everybody else who has the terminal open waits as before.
        let of_others = rustix::fs::fcntl_getfl(&terminal).unwrap();
        assert!(!of_others.contains(OFlags::NONBLOCK));
        drop(keyboard);
        assert!(matches!(typed.line(), Ok(None) | Err(Errno::IO)), "the terminal is gone");
    }
}
