//! Calls: what a client asks of the daemon, and what is answered.
//!
//! All that concerns one call follows from its entry in the table below: how it is called and
//! travels, what the client asks ([`crate::client::Client::ask`]), the method that answers it
//! ([`Calls`]), whether guests may ask it ([`GuestCalls`]).  So a new one is an entry, and a method
//! in the daemon.
//!
//! On the wire a request is `{"request":NAME,"args":…}` and its answer `{"reply":NAME,"value":…}`,
//! both without what has nothing in it; or the answer is `{"reply":"failed","value":…}`.

use super::wire::WireError;
use super::{
    Asker, Attach, Attached, Begin, BeginOpen, Begun, BegunOpen, Change, Collected, Conflict,
    Entered, Failure, FailureKind, Finish, Gc, GuardedDir, HostPath, Inspected, Listed, LogEntry,
    Mount, MountVolume, Mounted, MountedVolume, Outcome, Place, Protect, Protection, Recovered,
    Settle, Snapshots, Target, Umount, Undo, Undone, Unmounted, VERSION, Version, VolumeActivity,
    VolumeSnapshot, id_text,
};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use systx_base::TxnId;

/// What can be asked: the arguments, and what is known of all calls of this kind.
pub trait Call: Serialize + DeserializeOwned {
    /// What it is called.
    const NAME: &'static str;
    /// What its answer is called, which may be that of others, too.
    const ANSWER: &'static str;
    /// What is answered.
    type Answer: Serialize + DeserializeOwned;
}

/// An entry is `NAME(ARGUMENTS) -> ANSWER as "what that is called"`, and for calls of guests what
/// they may ask it of.  The arguments are a struct: one that is there already, or whose fields
/// follow; `;` is one without any.
macro_rules! calls {
    (daemon { $($daemon:tt)* } connection { $($connection:tt)* }) => {
        calls!(@call $($daemon)* $($connection)*);
        calls!(@answer $($daemon)*);
    };
    (@call $(
        $(#[$doc:meta])*
        $name:ident($Args:ident $($shape:tt)*) -> $answer:ty as $tag:literal $(of $guests:ident)?;
    )*) => {
        $(
            calls!(@args $name $Args $($shape)*);
            impl Call for $Args {
                const NAME: &'static str = stringify!($name);
                const ANSWER: &'static str = $tag;
                type Answer = $answer;
            }
        )*
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
    (@answer $(
        $(#[$doc:meta])*
        $name:ident($Args:ident $($shape:tt)*) -> $answer:ty as $tag:literal $(of $guests:ident)?;
    )*) => {
        /// What the daemon answers, one method for each call.
        pub trait Calls {
            $(
                $(#[$doc])*
                fn $name(&self, asker: &mut Asker, call: $Args) -> Result<$answer, Failure>;
            )*

            /// Has a request answered by the method that is called so.
            ///
            /// # Errors
            /// It is not understood, is none for this trait; or what the method says.
            fn call(&self, asker: &mut Asker, request: &Request) -> Result<Reply, Failure> {
                match request.name {
                    $(<$Args as Call>::NAME => {
                        request.answered(|call: $Args| self.$name(asker, call))
                    })*
                    _ => Err(Failure::new(FailureKind::Invalid, "request out of step")),
                }
            }
        }

        /// What the daemon answers to guests: the calls for which the table says so.
        pub trait GuestCalls {
            $($(
                #[doc = concat!("As [`Calls::", stringify!($name), "`].")]
                #[doc = concat!("Of: ", stringify!($guests), ".")]
                ///
                /// # Errors
                /// As there; or it is not for this guest.
                fn $name(&self, asker: &mut Asker, call: $Args) -> Result<$answer, Failure>;
            )?)*

            /// As [`Calls::call`].
            ///
            /// # Errors
            /// As there; also if no guest may ask that.
            fn guest_call(&self, asker: &mut Asker, request: &Request) -> Result<Reply, Failure> {
                match request.name {
                    $($(<$Args as Call>::NAME => {
                        const _: &str = stringify!($guests);
                        request.answered(|call: $Args| self.$name(asker, call))
                    })?)*
                    _ => Err(not_for_guests()),
                }
            }
        }
    };
    (@args $name:ident $Args:ident) => {};
    (@args $name:ident $Args:ident $($shape:tt)*) => {
        #[doc = concat!("Arguments of the call `", stringify!($name), "`.")]
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $Args $($shape)*
    };
}

calls! {
    daemon {
        /// Begins a transaction; with the doorbell's descriptor, which is rung when it has lost.
        ///
        /// # Errors
        /// The volume or its store cannot be used.
        begin(Begin) -> Begun as "begun";

        /// Begins a transaction that belongs to no client and has a path; from guests with the
        /// directory that it is to show, open.
        ///
        /// # Errors
        /// The volume or its store cannot be used, or the view cannot be mounted.
        begin_open(BeginOpen) -> BegunOpen as "begun_open" of guarded_directories;

        /// Serves the view over the FUSE descriptor that comes with it.  For a run, and for a visit
        /// after [`Calls::enter`].
        ///
        /// # Errors
        /// The kernel does not speak a FUSE that we can use, or the transaction is not there.
        attach(Attach) -> Attached as "attached";

        /// Ends a run.  The view is no longer used by anyone.  With what nobody needs any more and
        /// is slow to close (a directory of each of its views, a watch): the daemon closes it when
        /// the client is gone, so that this one need not wait for the kernel.
        ///
        /// # Errors
        /// The transaction is not there.  Reasons not to commit are outcomes.
        finish(Finish) -> Outcome as "outcome";

        /// Why the transaction lost, if it did. Programs outside count as well, so its end has to
        /// follow.
        ///
        /// # Errors
        /// The transaction is not there.
        doom(Doom {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
        }) -> Option<Conflict> as "doom";

        /// Waits until the transaction has ended or the time passed; true if it has ended.
        ///
        /// # Errors
        /// None that matters: an unknown transaction has ended.
        wait_for(WaitFor {
            /// For which transaction.
            #[serde(with = "id_text")]
            pub id: TxnId,
            /// At most this long.
            pub limit_ms: u64,
        }) -> bool as "ended";

        /// Every open transaction.
        ///
        /// # Errors
        /// Internal faults only.
        list(List;) -> Vec<Listed> as "list" of own_transactions;

        /// What goes on, volume by volume.
        ///
        /// # Errors
        /// Internal faults only.
        top(Top;) -> Vec<VolumeActivity> as "top";

        /// One open transaction.
        ///
        /// # Errors
        /// The transaction is not there.
        status(Status {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
        }) -> super::Status as "status" of own_transactions;

        /// What changed, sorted by path.
        ///
        /// # Errors
        /// The transaction is not there, a path is outside the volume.
        diff(Diff {
            /// Of what.
            pub target: Target,
            /// Only these and what is below them; all if empty.
            pub paths: Vec<HostPath>,
        }) -> Vec<Change> as "changes" of own_transactions;

        /// Content of a regular file that changed, before or after.  The bytes travel beside the
        /// answer ([`Asker::beside`]).
        ///
        /// # Errors
        /// The transaction is not there, the path is not one of its changes, I/O.
        content(Content {
            /// Of what.
            pub target: Target,
            /// [`Change::path`].
            pub path: HostPath,
            /// Which side.
            pub version: Version,
            /// At most this many bytes.
            pub limit: u64,
        }) -> super::Content as "content" of own_files_in_own_transactions;

        /// Commits a kept transaction, or the part of it below the paths (a new transaction with
        /// the same reads; the rest stays kept).
        ///
        /// # Errors
        /// It is not there, it still runs, a path is outside the volume or does not name a change.
        commit(Commit {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
            /// Only these and what is below them; all if empty.
            pub paths: Vec<HostPath>,
        }) -> Outcome as "outcome" of own_transactions;

        /// Drops an open transaction, whose owner is told who asked; a running one is doomed and
        /// its processes are ended.
        ///
        /// # Errors
        /// It is not there, or it was decided already.
        abort(Abort {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
        }) -> Outcome as "outcome" of own_transactions;

        /// Begins a visit to a kept or running transaction.
        ///
        /// # Errors
        /// It is not there, or it is being committed.
        enter(Enter {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
        }) -> Entered as "entered";

        /// Ends a visit that was begun with [`Calls::enter`] and had its own view.
        ///
        /// # Errors
        /// The transaction is not there.
        leave(Leave {
            /// Which.
            #[serde(with = "id_text")]
            pub id: TxnId,
        }) -> () as "done";

        /// Committed transactions, the latest first; of those that changed something at one of the
        /// paths, if there are some.
        ///
        /// # Errors
        /// The store cannot be used.
        log(Log {
            /// Which volume.
            pub place: Place,
            /// At most this many, the latest first; all if `None`.
            pub limit: Option<u64>,
            /// Only what changed something there.
            pub paths: Vec<HostPath>,
        }) -> Vec<LogEntry> as "log";

        /// What committed transactions wanted done outside, and nobody has done yet; on all open
        /// volumes, if `None`.
        ///
        /// # Errors
        /// The store cannot be used.
        deferred(Deferred(pub Option<Place>);) -> Vec<super::Deferred> as "deferred";

        /// Some of it was done, or is not wanted any more.
        ///
        /// # Errors
        /// The store cannot be used.
        settle(Settle) -> () as "done";

        /// Undoes a committed transaction, as a new transaction.
        ///
        /// # Errors
        /// It is not there, cannot be undone any more, or later changes overlap.
        undo(Undo) -> Undone as "undone";

        /// Undoes an undo.
        ///
        /// # Errors
        /// As [`Calls::undo`].
        redo(Redo(pub Undo);) -> Undone as "undone";

        /// Finishes or discards what a crash left in a store.
        ///
        /// # Errors
        /// The store cannot be used.
        recover(Recover {
            /// Which store.
            pub place: Place,
            /// Also if this machine does not know it.
            pub trusted: bool,
        }) -> Recovered as "recovered";

        /// Bounds the space of a store.
        ///
        /// # Errors
        /// The store cannot be used.
        gc(Gc) -> Collected as "collected";

        /// Facts about a volume for `doctor`.
        ///
        /// # Errors
        /// The volume cannot be used.
        inspect(Inspect(pub Place);) -> Inspected as "inspected";

        /// Guards a directory: from now on every process that opens through its path goes through
        /// the daemon.
        ///
        /// # Errors
        /// It cannot be guarded (not root, not a directory, guarded already, ...).
        mount(Mount) -> Mounted as "mounted";

        /// Ends that.
        ///
        /// # Errors
        /// It is not guarded, or cannot be unmounted.
        umount(Umount) -> Unmounted as "unmounted";

        /// The guarded directories.
        ///
        /// # Errors
        /// Internal faults only.
        guarded(Guarded;) -> Vec<GuardedDir> as "guarded";

        /// Mounts a log-structured volume, or a snapshot of one.
        ///
        /// # Errors
        /// It is none, is mounted already, is damaged, or cannot be mounted there; there is no such
        /// snapshot.
        mount_volume(MountVolume) -> MountedVolume as "mounted_volume";

        /// The log-structured volumes that are mounted.
        ///
        /// # Errors
        /// Internal faults only.
        volumes(Volumes;) -> Vec<MountedVolume> as "volumes";

        /// The snapshots of a volume that is mounted, oldest first, after a change to them.
        ///
        /// # Errors
        /// It is not mounted; the name is taken, not there, in use, or cannot be one; no space.
        snapshots(Snapshots) -> Vec<VolumeSnapshot> as "snapshots";

        /// Whether something is protected, after a change of that for the transactions that begin
        /// from then on.
        ///
        /// # Errors
        /// There is nothing, it cannot be left unprotected, or it is so with a directory above it.
        protect(Protect) -> Vec<Protection> as "protection";
    }
    // These do not get as far as `Calls`.
    connection {
        /// First on every connection.
        hello(Hello {
            /// [`VERSION`] of the client.
            pub version: u32,
            /// Release of the client, for messages.
            pub release: String,
        }) -> Greeting as "hello";

        /// How far the request is that another connection waits for; `None`: nothing that takes
        /// long is under way.
        progress(Progress {
            /// What the daemon called that connection in its hello.
            pub connection: u64,
        }) -> Option<super::Progress> as "progress";

        /// Ends the daemon once nothing is open.
        shutdown(Shutdown {
            /// Also if transactions are open, which abort, and directories guarded, which are
            /// unmounted.
            pub force: bool,
        }) -> () as "done";
    }
}

/// What guests are told who ask for something else.
#[must_use]
pub fn not_for_guests() -> Failure {
    Failure::new(FailureKind::Unsupported, "another user's daemon does not do that for you")
}

/// What the daemon says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// Its protocol.
    pub version: u32,
    /// Its release.
    pub release: String,
    /// Its process id.
    pub pid: u32,
    /// What it calls this connection, for [`Progress`]; 0 if it has no name for it.
    #[serde(default)]
    pub connection: u64,
}

impl Hello {
    /// Of this program.
    #[must_use]
    pub fn ours() -> Hello {
        Hello { version: VERSION, release: env!("CARGO_PKG_VERSION").to_owned() }
    }
}

impl Greeting {
    /// Of this program.
    #[must_use]
    pub fn ours(connection: u64) -> Greeting {
        let Hello { version, release } = Hello::ours();
        Greeting { version, release, pid: std::process::id(), connection }
    }
}

/// Of what has no size there is nothing to say.
fn body<T: Serialize>(value: &T) -> Result<Option<Box<RawValue>>, WireError> {
    let says = size_of::<T>() != 0;
    Ok(says.then(|| serde_json::value::to_raw_value(value)).transpose()?)
}

fn read<T: DeserializeOwned>(body: Option<&RawValue>) -> serde_json::Result<T> {
    serde_json::from_str(body.map_or("null", RawValue::get))
}

/// The name of one of the calls.
type Name = &'static str;

fn known<'de, D: Deserializer<'de>>(name: D) -> Result<Name, D::Error> {
    let name = String::deserialize(name)?;
    let found = NAMES.iter().find(|known| **known == name);
    found.copied().ok_or_else(|| D::Error::custom(format!("there is no request `{name}`")))
}

/// A request as it travels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// [`Call::NAME`].
    #[serde(rename = "request", deserialize_with = "known")]
    pub name: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Box<RawValue>>,
}

impl Request {
    /// Asks that.
    ///
    /// # Errors
    /// It has no form in JSON.
    pub fn new<C: Call>(call: &C) -> Result<Request, WireError> {
        Ok(Request { name: C::NAME, args: body(call)? })
    }

    /// What is asked, which is a call of this kind.
    ///
    /// # Errors
    /// It is none.
    pub fn read<C: Call>(&self) -> Result<C, Failure> {
        read(self.args.as_deref())
            .map_err(|e| Failure::new(FailureKind::Invalid, format!("request not understood: {e}")))
    }

    /// Whether it is the first one of a program that speaks as this one does.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.name == Hello::NAME && self.read::<Hello>().is_ok_and(|it| it.version == VERSION)
    }

    /// The reply, if that answers what is asked.
    ///
    /// # Errors
    /// It is not understood; or what is said instead of an answer.
    pub fn answered<C: Call>(
        &self,
        by: impl FnOnce(C) -> Result<C::Answer, Failure>,
    ) -> Result<Reply, Failure> {
        Ok(Reply::new::<C>(&by(self.read()?)?)?)
    }
}

/// What a reply is called that says why there is no answer.
const FAILED: &str = "failed";

/// A reply as it travels.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    #[serde(rename = "reply")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Box<RawValue>>,
}

impl Reply {
    /// Answers a call of this kind.
    ///
    /// # Errors
    /// It has no form in JSON.
    pub fn new<C: Call>(answer: &C::Answer) -> Result<Reply, WireError> {
        Ok(Reply { name: C::ANSWER.to_owned(), value: body(answer)? })
    }

    /// Says why there is no answer.
    ///
    /// # Errors
    /// It has no form in JSON.
    pub fn failed(failure: &Failure) -> Result<Reply, WireError> {
        Ok(Reply { name: FAILED.to_owned(), value: body(failure)? })
    }

    /// The answer to a call of this kind.
    ///
    /// # Errors
    /// There is none; it is not understood, or one to another call.
    pub fn read<C: Call>(&self) -> Result<C::Answer, Failure> {
        let value = self.value.as_deref();
        match &*self.name {
            name if name == C::ANSWER => Ok(read(value).map_err(WireError::from)?),
            FAILED => Err(read(value).map_err(WireError::from)?),
            name => {
                let text = format!("the daemon gave an answer out of step: {name}");
                Err(Failure::new(FailureKind::Internal, text))
            }
        }
    }
}
