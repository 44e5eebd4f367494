//! The last part of a commit, from the reservation to the release: reserve, mark and invalidate in guarded
//! directories, decide, make durable, install.  Before the decision every failure leaves things as they were.

use crate::protocol::{self, Failure, FailureKind, HostPath};
use crate::volume::OpenVolume;
use rustix::io::Errno;
use std::collections::HashSet;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use systx_base::TxnId;
use systx_store::io::Stamp;
use systx_store::writeset::{Ix, Origin, WriteSet};
use systx_store::{
    ApplyError, CommitError, CommitMeta, Committed, Outside, OutsideChange, Ready, ReserveError,
};
use systx_vfs::growing::{Appended, Merged};
use systx_vfs::publication::{NotDecided, UnderWay};

/// What an installation left.
pub struct Installed {
    /// The versions after it.
    pub stamps: Vec<(Ix, Stamp)>,
    /// What outsiders had put in the way.
    pub outside: Vec<protocol::OutsideChange>,
    /// Sentences for the user.
    pub notes: Vec<String>,
}

/// Why nothing was installed.
pub enum NotInstalled {
    /// Another transaction won before the decision.
    Lost,
    /// Outsiders changed these paths after validation.
    Outside(Vec<HostPath>),
    /// The store cannot.
    Failed(Failure),
    /// It is decided, and may be durable: the rest is done later, or by recovery.
    Unfinished(Failure),
}

/// A commit that cannot lose any more: what is left needs the disk only.  Requests about what it changes are held until
/// it is in place.
pub struct Decided {
    ready: Ready,
    of: Unwritten,
}

/// What the end of a commit needs beside its record.
struct Unwritten {
    volume: Arc<OpenVolume>,
    id: TxnId,
    under_way: UnderWay,
    /// The versions that it has met.
    origins: Vec<Option<Stamp>>,
    notes: Vec<String>,
}

/// From the reservation to the decision: reserve, mark and invalidate in guarded directories, decide.  What is `appended`
/// goes behind the ends of now.
///
/// # Errors
/// Nothing was committed.
pub fn decide(
    volume: &Arc<OpenVolume>,
    id: TxnId,
    writes: WriteSet,
    appended: &[Appended],
    meta: CommitMeta,
) -> Result<Decided, NotInstalled> {
    let engine = &volume.vol.engine;
    let reservation = volume.store.reserve(&writes).map_err(|e| no_room(volume, e))?;
    let mut tried = HashSet::new();
    let publication = loop {
        if let Err(failure) = finish_late(volume, &mut tried) {
            tracing::error!(%failure, "what is late");
        }
        let publication = volume.vol.publish(id, &writes);
        // One that this had to wait for may have failed.
        if volume.store.late().iter().all(|late| tried.contains(&late.lsn)) {
            break publication;
        }
    };
    publication.decide(|| engine.decide(id)).map_err(|e| match e {
        NotDecided::Lost(_) => NotInstalled::Lost,
        NotDecided::Kernel(errno) => NotInstalled::Failed(not_published(errno)),
    })?;
    // Another transaction may have installed since this one was frozen.  None that is under way meets it.
    let (set, notes) = match carried_forward(volume, writes, appended) {
        Ok(forward) => forward,
        Err(changed) => {
            engine.abort(id);
            return Err(changed);
        }
    };
    volume.vol.keep_past(&set);
    let under_way = publication.into_under_way();
    let origins = set.objects.iter().map(|o| stamp_of(&o.origin)).collect();
    let ready = Ready { reservation, set, meta };
    let of = Unwritten { volume: Arc::clone(volume), id, under_way, origins, notes };
    Ok(Decided { ready, of })
}

impl Decided {
    /// From the decision to the release: make durable, install.  `placed` is called before the release, with the versions
    /// after the installation.
    ///
    /// # Errors
    /// The store failed, or somebody outside was faster.
    pub fn finish(self, placed: impl FnOnce(&[(Ix, Stamp)])) -> Result<Installed, NotInstalled> {
        // Who has heard of an earlier commit, and that is its program at least, does not find this one without it after
        // a power cut.
        let Decided { ready: Ready { reservation, set, meta }, of } = self;
        of.volume.vol.wait_durable();
        let written = of.volume.store.commit(reservation, set, meta);
        Written { of, written }.place(placed)
    }

    /// Its program goes on before it is durable: it is to be finished by [`write_all`].
    pub fn relax(&self) {
        self.of.under_way.relax();
    }
}

/// A commit whose record is on the disk, or cannot be.
pub struct Written {
    of: Unwritten,
    written: Result<Committed, CommitError>,
}

/// Makes several commits of one volume durable, with one wait for the disk, in their order.
pub fn write_all(several: Vec<Decided>) -> Vec<Written> {
    let (ready, unwritten): (Vec<_>, Vec<_>) =
        several.into_iter().map(|Decided { ready, of }| (ready, of)).unzip();
    let Some(store) = unwritten.first().map(|of| Arc::clone(&of.volume.store)) else {
        return Vec::new();
    };
    let written = store.commit_group(ready);
    unwritten.into_iter().zip(written).map(|(of, written)| Written { of, written }).collect()
}

impl Written {
    /// Installs, and releases.  `placed` is called before the release, with the versions after the installation.
    ///
    /// # Errors
    /// As [`Decided::finish`].
    pub fn place(self, placed: impl FnOnce(&[(Ix, Stamp)])) -> Result<Installed, NotInstalled> {
        let Written { of: Unwritten { volume, id, under_way, origins, notes }, written } = self;
        let engine = &volume.vol.engine;
        let result = written.map_err(|e| not_committed(&volume, e)).and_then(|committed| {
            let ids = origins.iter().flatten().map(|stamp| stamp.id);
            volume.vol.installing(ids, || {
                let before = versions(&volume, &origins);
                let done = volume.store.apply(committed.lsn).map_err(not_applied);
                let moves =
                    done.as_ref().map_or_else(|_| Vec::new(), |r| moves(&before, &r.stamps));
                under_way.replaced(&moves);
                (done, moves)
            })
        });
        let report = match result {
            Ok(report) => report,
            Err(error) => {
                // Where the store could not even install it, whoever waits sees what is there; the
                // store refuses what meets it until it is finished.
                engine.abort(id);
                return Err(error);
            }
        };
        let stamp = |(i, stamp): (usize, &Option<Stamp>)| Some((Ix(i as u32), (*stamp)?));
        let stamps: Vec<_> = report.stamps.iter().enumerate().filter_map(stamp).collect();
        placed(&stamps);
        engine.installed(id);
        drop(under_way);
        volume.checkpoints.soon(&volume.store);
        Ok(Installed {
            stamps,
            outside: report.outside.iter().map(|c| outside_change(&volume, c)).collect(),
            notes,
        })
    }
}

/// [`decide`] and [`Decided::finish`].
///
/// # Errors
/// Nothing was committed.  (If the store fails after the commit point, the failure says so.)
pub fn install(
    volume: &Arc<OpenVolume>,
    id: TxnId,
    writes: WriteSet,
    appended: &[Appended],
    meta: CommitMeta,
) -> Result<Installed, NotInstalled> {
    decide(volume, id, writes, appended, meta)?.finish(|_| ())
}

/// Installs what is decided and could not be installed then, but for what is `tried` already.  As every commit it goes
/// through the kernel's caches first: they may have what was there meanwhile.  Which are in place now.
///
/// # Errors
/// One of them cannot be installed now either.
pub(crate) fn finish_late(
    volume: &Arc<OpenVolume>,
    tried: &mut HashSet<u64>,
) -> Result<Vec<TxnId>, Failure> {
    let mut finished = Vec::new();
    for late in volume.store.late() {
        if !tried.insert(late.lsn) {
            continue;
        }
        let publication = volume.vol.publish(late.txn(), late.set());
        let decided = publication.decide(|| Ok::<(), Infallible>(()));
        if let Err(NotDecided::Kernel(errno)) = decided {
            return Err(not_published(errno));
        }
        let under_way = publication.into_under_way();
        let ids = late.set().objects.iter().filter_map(|o| Some(stamp_of(&o.origin)?.id));
        // Whoever has met what was there meanwhile has met something else: its versions are not carried forward.
        let done = volume.vol.installing(ids, || (volume.store.apply(late.lsn), Vec::new()));
        match done {
            Ok(_) => finished.push(late.txn()),
            // Somebody else was faster.
            Err(ApplyError::Unknown(_)) => {}
            Err(error) => return Err(unfinished(&error)),
        }
        drop(under_way);
        volume.checkpoints.soon(&volume.store);
    }
    Ok(finished)
}

/// What versions have become by our own installations.  In an installation: others may have changed names in the
/// same directories while this one waited for the disk.
pub(crate) fn versions(volume: &OpenVolume, origins: &[Option<Stamp>]) -> Vec<Option<Stamp>> {
    origins.iter().map(|stamp| stamp.map(|stamp| volume.vol.current(stamp))).collect()
}

/// The versions that an installation has moved.
pub(crate) fn moves(before: &[Option<Stamp>], after: &[Option<Stamp>]) -> Vec<(Stamp, Stamp)> {
    before.iter().zip(after).filter_map(|(before, after)| Some(((*before)?, (*after)?))).collect()
}

/// The write set with the stamps that our own installations have left since it was made, and what is appended behind
/// what others have appended since; also what the user should know of that.
pub(crate) fn carried_forward(
    volume: &OpenVolume,
    mut writes: WriteSet,
    appended: &[Appended],
) -> Result<(WriteSet, Vec<String>), NotInstalled> {
    for object in &mut writes.objects {
        if let Origin::Host { stamp, .. } = &mut object.origin {
            *stamp = volume.vol.current(*stamp);
        }
    }
    let changed = |paths: Vec<Vec<u8>>| {
        let absolute = |path: &Vec<u8>| HostPath(volume.absolute(path));
        NotInstalled::Outside(paths.iter().map(absolute).collect())
    };
    let merged = volume.vol.rebase_appended(&mut writes, appended).map_err(changed)?;
    let say = |Merged { path, between }: &Merged| {
        let path = HostPath(volume.absolute(path));
        format!("merged: {path}: others had appended {between} bytes, which come first")
    };
    Ok((writes, merged.iter().map(say).collect()))
}

const BEYOND_QUOTA: &str = "nothing was committed; remove some files (`systx gc` removes what undo keeps), or have the quota raised";

pub(crate) fn no_room(volume: &OpenVolume, mut error: ReserveError) -> NotInstalled {
    if let ReserveError::Xattr(refused) = &mut error {
        refused.path = volume.absolute(&refused.path);
    }
    let kind = match &error {
        ReserveError::NoSpace { .. } | ReserveError::NoInodes { .. } | ReserveError::Xattr(_) => {
            FailureKind::Space
        }
        ReserveError::Quota { .. } => FailureKind::Quota,
        ReserveError::Poisoned(_) => FailureKind::Store,
        ReserveError::Io(_) => FailureKind::Io,
        ReserveError::Invalid(_) => FailureKind::Internal,
    };
    let failure = Failure::new(kind, error.to_string());
    NotInstalled::Failed(match (&error, kind) {
        (ReserveError::Xattr(_), _) => {
            failure.hint("nothing was committed; no file there can have such attributes")
        }
        (ReserveError::NoInodes { .. }, _) => failure
            .hint("nothing was committed; remove some files (`systx gc` removes what undo keeps)"),
        (_, FailureKind::Quota) => failure.hint(BEYOND_QUOTA),
        (_, FailureKind::Space) => failure
            .hint("nothing was committed; free some space (`systx gc` frees what undo keeps)"),
        _ => failure,
    })
}

pub(crate) fn not_published(errno: Errno) -> Failure {
    let text =
        format!("the kernel's caches of a guarded directory could not be invalidated: {errno}");
    Failure::new(FailureKind::Io, text).hint("nothing was committed; try again")
}

pub(crate) fn not_committed(volume: &OpenVolume, error: CommitError) -> NotInstalled {
    let kind = match &error {
        CommitError::Changed { paths } => {
            let paths = paths.iter().map(|p| HostPath(volume.absolute(p))).collect();
            return NotInstalled::Outside(paths);
        }
        CommitError::Io(e) if e.kind() == io::ErrorKind::StorageFull => FailureKind::Space,
        CommitError::Io(e) if e.kind() == io::ErrorKind::QuotaExceeded => FailureKind::Quota,
        CommitError::Io(_) => FailureKind::Io,
        CommitError::Invalid(_) | CommitError::Overlaps | CommitError::UnknownSlot => {
            FailureKind::Internal
        }
        CommitError::Blocked { .. } | CommitError::Poisoned(_) => FailureKind::Store,
        CommitError::InDoubt(_) => {
            let failure = Failure::new(FailureKind::Store, error.to_string());
            return NotInstalled::Unfinished(failure.hint(
                "the next daemon finds out: end this one, then `systx recover`, and `systx log` shows whether it is committed",
            ));
        }
    };
    let failure = Failure::new(kind, error.to_string());
    NotInstalled::Failed(match kind {
        FailureKind::Quota => failure.hint(BEYOND_QUOTA),
        _ => failure,
    })
}

pub(crate) fn not_applied(error: ApplyError) -> NotInstalled {
    NotInstalled::Unfinished(unfinished(&error))
}

/// It is committed, and not in place.
fn unfinished(error: &ApplyError) -> Failure {
    let (text, hint) = match error {
        ApplyError::Io { .. } => {
            (error.to_string(), "`systx recover` tries again, and so does the next commit there")
        }
        ApplyError::Poisoned(_) | ApplyError::Later | ApplyError::Unknown(_) => (
            format!("the transaction is committed, but not in place yet: {error}"),
            "the next daemon installs it: end this one, then `systx recover`",
        ),
    };
    Failure::new(FailureKind::Store, text).hint(hint)
}

/// An outsider's change that an installation or a recovery met.
pub(crate) fn outside_change(volume: &OpenVolume, c: &OutsideChange) -> protocol::OutsideChange {
    let what = match c.what {
        Outside::Appeared => "something had appeared at this name".to_owned(),
        Outside::Changed => "had been changed".to_owned(),
        Outside::Gone => "was gone".to_owned(),
        Outside::Refused(errno) => {
            format!("could not be written: {}", io::Error::from_raw_os_error(errno))
        }
        Outside::NoXattr { ref key, errno } => {
            let (key, why) = (HostPath(key.clone()), io::Error::from_raw_os_error(errno));
            format!("could not be given its extended attribute {key}: {why}")
        }
    };
    protocol::OutsideChange {
        path: HostPath(volume.absolute(&c.path)),
        saved: c.kept_as.as_ref().map(|p| HostPath(volume.absolute(p))),
        what,
    }
}

pub(crate) fn stamp_of(origin: &Origin) -> Option<Stamp> {
    match origin {
        Origin::Host { stamp, .. } | Origin::Grave { stamp, .. } => Some(*stamp),
        Origin::Root | Origin::New(_) => None,
    }
}
