//! Requests and replies as they travel.

use super::{
    Attach, Attached, Begin, BeginOpen, Begun, BegunOpen, Change, Collected, Conflict, Deferred,
    Entered, Failure, Finish, Gc, GuardedDir, HostPath, Inspected, Listed, LogEntry, Mount,
    MountVolume, Mounted, MountedVolume, Outcome, Place, Progress, Protect, Protection, Recovered,
    Settle, Snapshots, Status, Target, Umount, Undo, Undone, Unmounted, Version, VolumeActivity,
    VolumeSnapshot, id_text,
};
use serde::{Deserialize, Serialize};
use systx_base::TxnId;

/// Every request, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", content = "args", rename_all = "snake_case")]
pub enum Request {
    /// First on every connection.
    Hello {
        /// [`super::VERSION`] of the client.
        version: u32,
        /// Release of the client, for messages.
        release: String,
    },
    /// [`super::Control::begin`]; with the doorbell's descriptor.
    Begin(Begin),
    /// [`super::Control::begin_open`].
    BeginOpen(BeginOpen),
    /// [`super::Control::attach`]; with the FUSE descriptor.
    Attach(Attach),
    /// [`super::Control::finish`].
    Finish(Finish),
    /// [`super::Control::doom`].
    Doom {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// [`super::Control::wait_for`].
    WaitFor {
        /// For which transaction.
        #[serde(with = "id_text")]
        id: TxnId,
        /// At most this long.
        limit_ms: u64,
    },
    /// [`super::Control::list`].
    List,
    /// [`super::Control::top`].
    Top,
    /// [`super::Control::status`].
    Status {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// [`super::Control::diff`].
    Diff {
        /// Of what.
        target: Target,
        /// Only these and what is below them; all if empty.
        paths: Vec<HostPath>,
    },
    /// [`super::Control::content`].
    Content {
        /// Of what.
        target: Target,
        /// [`Change::path`].
        path: HostPath,
        /// Which side.
        version: Version,
        /// At most this many bytes.
        limit: u64,
    },
    /// [`super::Control::commit`].
    Commit {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
        /// Only these and what is below them; all if empty.
        paths: Vec<HostPath>,
    },
    /// [`super::Control::abort`].
    Abort {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// [`super::Control::enter`].
    Enter {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// [`super::Control::leave`].
    Leave {
        /// Which.
        #[serde(with = "id_text")]
        id: TxnId,
    },
    /// [`super::Control::log`].
    Log {
        /// Which volume.
        place: Place,
        /// At most this many, the latest first; all if `None`.
        limit: Option<u64>,
        /// Only what changed something there.
        paths: Vec<HostPath>,
    },
    /// [`super::Control::deferred`].
    Deferred(Option<Place>),
    /// [`super::Control::settle`].
    Settle(Settle),
    /// [`super::Control::undo`].
    Undo(Undo),
    /// [`super::Control::redo`].
    Redo(Undo),
    /// [`super::Control::recover`].
    Recover {
        /// Which store.
        place: Place,
        /// Also if this machine does not know it.
        trusted: bool,
    },
    /// [`super::Control::gc`].
    Gc(Gc),
    /// [`super::Control::inspect`].
    Inspect(Place),
    /// [`super::Control::mount`].
    Mount(Mount),
    /// [`super::Control::umount`].
    Umount(Umount),
    /// [`super::Control::guarded`].
    Guarded,
    /// [`super::Control::mount_volume`].
    MountVolume(MountVolume),
    /// [`super::Control::volumes`].
    Volumes,
    /// [`super::Control::snapshots`].
    Snapshots(Snapshots),
    /// [`super::Control::protect`].
    Protect(Protect),
    /// How far the request is that another connection waits for.
    Progress {
        /// What the daemon called that connection in its hello.
        connection: u64,
    },
    /// Ends the daemon once nothing is open.
    Shutdown {
        /// Also if transactions are open, which abort, and directories guarded, which are
        /// unmounted.
        force: bool,
    },
}

/// Every reply, as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", content = "value", rename_all = "snake_case")]
#[allow(missing_docs)] // each variant answers the request whose method returns that type
pub enum Reply {
    Hello {
        version: u32,
        release: String,
        pid: u32,
        /// Its number, for [`Request::Progress`]; 0 if it has none.
        #[serde(default)]
        connection: u64,
    },
    Begun(Begun),
    BegunOpen(BegunOpen),
    Attached(Attached),
    Outcome(Outcome),
    Doom(Option<Conflict>),
    Ended(bool),
    List(Vec<Listed>),
    Top(Vec<VolumeActivity>),
    Status(Box<Status>),
    Changes(Vec<Change>),
    /// The bytes travel beside the JSON.
    Content {
        total: u64,
        unknown: bool,
    },
    Entered(Entered),
    Log(Vec<LogEntry>),
    Deferred(Vec<Deferred>),
    Undone(Undone),
    Recovered(Recovered),
    Collected(Collected),
    Inspected(Inspected),
    Mounted(Mounted),
    Unmounted(Unmounted),
    Guarded(Vec<GuardedDir>),
    MountedVolume(MountedVolume),
    Volumes(Vec<MountedVolume>),
    Snapshots(Vec<VolumeSnapshot>),
    Protection(Vec<Protection>),
    /// `None`: nothing that takes long is under way.
    Progress(Option<Progress>),
    Done,
    Failed(Failure),
}
