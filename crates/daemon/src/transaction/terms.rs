//! What a transaction is begun with.

use crate::patterns::Patterns;
use crate::protocol::{self, HostPath};
use crate::urgency::LastThread;
use std::time::Duration;

/// Who lives in the view of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lives {
    /// A command and its descendants, which end before the commit.
    Command,
    /// Whoever goes to its path.  The view goes on after the commit, see [`systx_guard::retired`].
    AtPath,
    /// A thread of a program that goes on.  So does the view after the commit; and after a lost
    /// conflict the program must not see two moments, see [`systx_vfs::view::ViewConfig::opaque`].
    Thread,
}

/// What a transaction was begun with.
#[derive(Clone)]
pub struct Terms {
    /// The command.
    pub argv: Vec<HostPath>,
    /// The client's working directory.
    pub cwd: HostPath,
    /// How its reads are protected.
    pub isolation: protocol::Isolation,
    /// Nothing will be committed.
    pub read_only: bool,
    /// What is not committed.
    pub patterns: Patterns,
    /// Which files others may append to, beside it.
    pub merged: Patterns,
    /// Who runs it.
    pub whose: Whose,
    /// How the view is served.
    pub transport: protocol::Transport,
    /// Who lives in its view.
    pub lives: Lives,
    /// Bytes that its new content may take.
    pub limit_bytes: Option<u64>,
    /// Its begin fails (`Busy`) rather than wait for anybody.
    pub at_once: bool,
    /// How long a read of content may wait for a transaction to which it would lose.
    pub patience: Duration,
}

/// Whose a transaction is.
#[derive(Clone)]
pub struct Whose {
    /// The user.
    pub uid: u32,
    /// The client process, or the thread; 0 if its end means nothing, or it is in another pid
    /// namespace.
    pub client: u32,
    /// Whose urgency it has.
    pub thread: LastThread,
    /// Another user's than the daemon.
    pub guest: bool,
}

impl Terms {
    /// Of a transaction about which nothing more was said: serializable, everything is committed,
    /// without limits, and it waits for nobody.
    pub fn new(lives: Lives, argv: Vec<HostPath>, cwd: HostPath, whose: Whose) -> Terms {
        Terms {
            argv,
            cwd,
            isolation: protocol::Isolation::default(),
            read_only: false,
            patterns: Patterns::default(),
            merged: Patterns::default(),
            whose,
            transport: protocol::Transport::default(),
            lives,
            limit_bytes: None,
            at_once: false,
            patience: Duration::ZERO,
        }
    }
}
