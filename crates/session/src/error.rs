//! What can keep a command from starting, said so that a person knows what to do.

use crate::mountinfo::ParseError;
use crate::plan::PlanError;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// A step of the new process that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Which, for instance `mount the view`.
    pub step: String,
    /// On what.
    pub path: Option<PathBuf>,
    /// Why.
    pub errno: Errno,
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {}", self.step)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {}", std::io::Error::from(self.errno))
    }
}

/// No session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The host's mounts cannot be read.
    #[error("cannot read /proc/self/mountinfo: {0}")]
    Mounts(#[source] std::io::Error),
    /// They were read but not understood.
    #[error(transparent)]
    Mountinfo(#[from] ParseError),
    /// No view can be made of them.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Making the view failed.
    #[error("{0}")]
    Setup(Failed),
    /// CMD is not there (127) or cannot be executed (126).
    #[error("{}: {}", .path.display(), exec_words(.errno))]
    Exec {
        /// What was looked for.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
    /// The view is not served.
    #[error("{0}")]
    Attach(Box<dyn std::error::Error + Send + Sync>),
    /// A system call of the client itself.
    #[error("{what}: {errno}")]
    Call {
        /// Which.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
}

fn exec_words(errno: &Errno) -> String {
    match *errno {
        Errno::NOENT => "command not found".to_owned(),
        e => std::io::Error::from(e).to_string(),
    }
}

impl SessionError {
    /// The exit code that env(1), timeout(1) and podman-run(1) give: 127 not found, 126 not
    /// executable, 125 everything else.
    pub fn exit_code(&self) -> i32 {
        match self {
            SessionError::Exec { errno: Errno::NOENT, .. } => 127,
            SessionError::Exec { .. } => 126,
            _ => 125,
        }
    }

    /// What the person could do, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            SessionError::Setup(failed) => hint_for(failed),
            SessionError::Plan(PlanError::NoRoot) => {
                Some("run systx outside of the chroot, or in a container with its own root".into())
            }
            _ => None,
        }
    }
}

/// Names of the steps that have hints.
pub(crate) mod step {
    pub(crate) const OPEN_FUSE: &str = "open";
    pub(crate) const USER_NAMESPACE: &str = "make a user namespace";
    pub(crate) const MAP_IDS: &str = "write";
    pub(crate) const MOUNT_NAMESPACE: &str = "make a mount namespace";
    pub(crate) const NETWORK_NAMESPACE: &str = "make a network namespace";
    pub(crate) const MOUNT_VIEW: &str = "mount the view";
    pub(crate) const CHDIR: &str = "change to";
    pub(crate) const EXEC: &str = "execute";
}

fn hint_for(failed: &Failed) -> Option<String> {
    let fuse = failed.path.as_deref() == Some(Path::new("/dev/fuse"));
    match (failed.step.as_str(), failed.errno) {
        (step::OPEN_FUSE, Errno::NOENT | Errno::NODEV | Errno::NXIO) if fuse => Some(
            "load the kernel module (as root: modprobe fuse); in a container pass the device \
             through, for instance --device /dev/fuse"
                .into(),
        ),
        (step::OPEN_FUSE, Errno::ACCESS | Errno::PERM) if fuse => Some(
            "/dev/fuse must be readable and writable for you (usually mode 0666); in a container \
             the device must be allowed, for instance --device /dev/fuse"
                .into(),
        ),
        (step::USER_NAMESPACE | step::MAP_IDS, errno) => Some(user_namespace_hint(errno)),
        // AppArmor lets the namespace be made and then forbids everything in it.
        (
            step::MOUNT_NAMESPACE | step::NETWORK_NAMESPACE | step::MOUNT_VIEW,
            errno @ (Errno::PERM | Errno::ACCESS),
        ) if !rustix::process::geteuid().is_root() => Some(user_namespace_hint(errno)),
        (step::MOUNT_VIEW, Errno::NODEV) => {
            Some("this kernel has no FUSE (as root: modprobe fuse)".into())
        }
        (step::MOUNT_VIEW, Errno::PERM) => Some(
            "mounting FUSE in a user namespace is not allowed here; run as root, or in a \
             container with CAP_SYS_ADMIN"
                .into(),
        ),
        (_, Errno::MFILE) => {
            Some("too few descriptors are allowed, a run takes 32: ulimit -n".into())
        }
        (step::CHDIR, Errno::ACCESS) => {
            Some("the directory is closed to you; change to another one, or name it: -C DIR".into())
        }
        (step::CHDIR, Errno::NOENT) => {
            Some("the directory is not part of the view; use -C DIR or --root DIR".into())
        }
        _ => None,
    }
}

/// Which of the usual switches is off.
fn user_namespace_hint(errno: Errno) -> String {
    let setting = |path: &str| std::fs::read_to_string(path).map(|s| s.trim().to_owned());
    let is = |path: &str, value: &str| setting(path).is_ok_and(|s| s == value);
    if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        return "user namespaces are off for ordinary users; as root: \
                sysctl kernel.unprivileged_userns_clone=1; or run systx as root"
            .into();
    }
    if is("/proc/sys/user/max_user_namespaces", "0") || errno == Errno::NOSPC {
        return "the limit of user namespaces is reached; as root: \
                sysctl user.max_user_namespaces=10000; or run systx as root"
            .into();
    }
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "AppArmor restricts user namespaces; as root: \
                sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give systx a profile \
                with the line `userns,`; or run systx as root"
            .into();
    }
    "user namespaces are not allowed here (a container's seccomp filter does this; podman and \
     docker: --security-opt seccomp=unconfined); or run systx as root"
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(step: &str, path: &str, errno: Errno) -> SessionError {
        SessionError::Setup(Failed { step: step.into(), path: Some(path.into()), errno })
    }

    #[test]
    fn failures_read_well_and_say_what_to_do() {
        let e = setup(step::OPEN_FUSE, "/dev/fuse", Errno::NOENT);
        assert_eq!(e.to_string(), "cannot open /dev/fuse: No such file or directory (os error 2)");
        assert!(e.hint().is_some_and(|h| h.contains("modprobe fuse")));
        assert_eq!(e.exit_code(), 125);
        assert!(setup(step::USER_NAMESPACE, "", Errno::PERM).hint().is_some());
        assert!(setup("else", "/x", Errno::PERM).hint().is_none());
    }

    #[test]
    fn exec_failures_have_the_codes_of_the_shell() {
        let e = |errno| SessionError::Exec { path: "x".into(), errno };
        assert_eq!(e(Errno::NOENT).exit_code(), 127);
        assert_eq!(e(Errno::ACCESS).exit_code(), 126);
        assert_eq!(e(Errno::NOENT).to_string(), "x: command not found");
    }
}
