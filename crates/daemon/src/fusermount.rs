//! Mounts by fusermount3(1), which is set-id root: how an ordinary user's daemon gets a view or a
//! volume into the name space.
//!
//! 1. The program gets one end of a socket pair as its standard input, and its number in
//!    `_FUSE_COMMFD`.
//! 2. It opens /dev/fuse, mounts that on a directory of the user's, and sends the descriptor.
//! 3. It ends. Such a mount is the user's alone, without set-id programs and devices, and the
//!    kernel lets nobody else in.
//!
//! It is waited for with a limit: a place that does not answer must not stop the daemon.

use crate::protocol::{Failure, FailureKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = "fusermount3";

/// It makes a few system calls.
const LIMIT: Duration = Duration::from_secs(60);

/// As much of what it says as is passed on.
const SAID_MAX: u64 = 1000;

/// What it says of a mount that somebody uses, in the words of the C locale.
const BUSY: &str = "Device or resource busy";

/// What is mounted.
pub(crate) struct What<'a> {
    /// In words.
    pub called: &'static str,
    /// As mount tables are to call it.
    pub source: &'a [u8],
    /// Nothing can be changed through it.
    pub read_only: bool,
    /// What helps where it cannot be done.
    pub instead: &'static str,
}

impl What<'_> {
    fn options(&self) -> OsString {
        let mut options = b"fsname=".to_vec();
        for byte in self.source {
            // A comma would begin the next option.
            if matches!(byte, b',' | b'\\') {
                options.push(b'\\');
            }
            options.push(*byte);
        }
        options.extend_from_slice(b",subtype=systx,default_permissions");
        if self.read_only {
            options.extend_from_slice(b",ro");
        }
        OsString::from_vec(options)
    }
}

/// Mounts something on a directory; the device by which it is served.
///
/// # Errors
/// There is no such program, or it refuses.
pub(crate) fn mount(at: &Path, what: &What<'_>) -> Result<OwnedFd, Failure> {
    let refused = |why: String| {
        let text = format!("cannot mount {}: {why}", what.called);
        Failure::new(FailureKind::Unsupported, text)
    };
    let broken = |e: Errno| refused(e.to_string());
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(broken)?;
    let mut command = Command::new(PROGRAM);
    command.arg("-o").arg(what.options()).arg("--").arg(at).env("_FUSE_COMMFD", "0").stdin(theirs);
    match finish(command) {
        Ok(None) => {}
        Ok(Some(said)) => return Err(refused(said).hint(what.instead)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(refused(format!("only root may mount, and there is no {PROGRAM}"))
                .hint(format!("install it (package fuse3); {}", what.instead)));
        }
        Err(e) => return Err(refused(format!("{PROGRAM}: {e}")).hint(what.instead)),
    }
    device(&ours).map_err(broken)?.ok_or_else(|| {
        let _ = unmount(at, true);
        refused(format!("{PROGRAM} has sent no descriptor"))
    })
}

/// Takes a mount of this user out of the name space, whether it is served or not; `lazily`: also
/// if somebody uses it.
///
/// # Errors
/// There is no such program; or it refuses, as it has said, with `ResourceBusy` for what is in use.
pub(crate) fn unmount(at: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(PROGRAM);
    let how: &[&str] = if lazily { &["-u", "-z", "--"] } else { &["-u", "--"] };
    command.args(how).arg(at).stdin(Stdio::null());
    match finish(command)? {
        None => Ok(()),
        Some(said) if said.ends_with(BUSY) => {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, said))
        }
        Some(said) => Err(io::Error::other(said)),
    }
}

/// Runs it to its end: what it said if it failed.
fn finish(mut command: Command) -> io::Result<Option<String>> {
    command.env("LC_ALL", "C").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // The other end of a socket pair, which nobody is to hold but the program.
    drop(command);
    let ended = wait(Pid::from_child(&child));
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait()?;
    if status.success() {
        return Ok(None);
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take().filter(|_| ended) {
        stderr.take(SAID_MAX).read_to_end(&mut said)?;
    }
    let said = String::from_utf8_lossy(&said).trim().replace('\n', "; ");
    Ok(Some(match (ended, said.is_empty()) {
        (false, _) => format!("{PROGRAM} does not end"),
        (true, true) => format!("{PROGRAM} ended with {status}"),
        (true, false) => said,
    }))
}

/// False if a process has not ended within the limit.
fn wait(pid: Pid) -> bool {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return true };
    let until = Instant::now() + LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => {}
            Ok(0) => return false,
            Ok(_) | Err(_) => return true,
        }
    }
}

/// The descriptor that has been sent, if one has.
fn device(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, flags) {
        Err(Errno::AGAIN | Errno::CONNRESET) => return Ok(None),
        other => other?,
    };
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::os::fd::AsFd;

    #[test]
    fn a_program_that_fails_is_quoted() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null());
            finish(command).unwrap()
        };
        assert_eq!(run("true"), None);
        let said = run("echo one >&2; echo two >&2; exit 1").unwrap();
        assert_eq!(said, "one; two");
        assert!(run("exit 3").unwrap().contains("exit status: 3"));
    }

    #[test]
    fn the_name_of_an_image_is_no_option() {
        let of = |source: &[u8], read_only| {
            let what = What { called: "it", source, read_only, instead: "" };
            what.options().into_string().unwrap()
        };
        let rest = ",subtype=systx,default_permissions";
        assert_eq!(of(b"systx", false), format!("fsname=systx{rest}"));
        assert_eq!(of(b"/a,suid\\", true), format!("fsname=/a\\,suid\\\\{rest},ro"));
    }

    #[test]
    fn a_descriptor_is_taken_and_its_absence_told() {
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair().unwrap();
        assert!(device(&ours).unwrap().is_none(), "nothing was sent");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [theirs.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let bytes = [rustix::io::IoSlice::new(b"\0")];
        sendmsg(&theirs, &bytes, &mut control, SendFlags::empty()).unwrap();
        assert!(device(&ours).unwrap().is_some());
        drop(theirs);
        assert!(device(&ours).unwrap().is_none(), "the end");
    }
}
