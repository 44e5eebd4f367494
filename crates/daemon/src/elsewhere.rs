//! Stores on other file systems, as the recovery of one asks for them.
//!
//! A record says where the others were, for people to read.  It never says where to look: a store
//! is looked for where this machine's own [`crate::ledger`] has it, and at the top of every local
//! file system, and only one that is in the ledger counts; or it is a log-structured volume that
//! is mounted.  What is found nowhere there is waited
//! for.

use crate::ledger::Ledger;
use crate::mounts;
use crate::volume::open_root;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use systx_protocol::stores::STORE_DIR;
use systx_store::real::RealIo;
use systx_store::{Joint, Member, Outcome, Outcomes, Owner, Store, is_undecided, outcome};

/// Looking at others never waits for a server.
const LOCAL: [&str; 10] =
    ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "tmpfs", "overlay"];

/// The stores of one user, on everything that is mounted.
pub struct Elsewhere<'a> {
    /// Whose stores are believed.
    pub owner: Owner,
    /// Which.
    pub ledger: &'a Ledger,
}

/// A place where a store may be: a mounted file system, and a path below its root.
struct Spot {
    io: RealIo,
    below: Vec<u8>,
    store: PathBuf,
}

impl Outcomes for Elsewhere<'_> {
    fn outcome(&self, joint: &Joint) -> Outcome {
        let Some(decider) = joint.decider() else { return Outcome::Unknown };
        if let Some((_, image)) = self.ledger.images.find(decider.store) {
            return image.outcome(joint).unwrap_or_else(|error| {
                tracing::error!(%error, "a decision cannot be read");
                Outcome::Unknown
            });
        }
        let ask = |spot: Spot| outcome(&spot.io, &spot.below, Some(self.owner), joint);
        let answers = self.spots(decider).map(ask);
        answers.into_iter().find(|o| *o != Outcome::Unknown).unwrap_or(Outcome::Unknown)
    }
}

/// This process's.
pub(crate) fn own() -> Owner {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    Owner { uid: uid.as_raw(), gid: gid.as_raw() }
}

impl Elsewhere<'_> {
    /// Where a store is now.
    pub fn find(&self, member: &Member) -> Option<PathBuf> {
        if let Some((at, _)) = self.ledger.images.find(member.store) {
            return Some(at);
        }
        let here = |spot: &Spot| {
            systx_store::is_there(&spot.io, &spot.below, Some(self.owner), member.store)
        };
        self.spots(member).find(here).map(|spot| spot.store)
    }

    /// Lets a store forget what no other store can ask for any more. The stores that are not there
    /// and may.
    pub fn settle(&self, store: &dyn Store) -> Vec<Member> {
        let decisions = store.decisions().unwrap_or_else(|error| {
            tracing::warn!(%error, "decisions cannot be read");
            Vec::new()
        });
        let mut absent: Vec<Member> = Vec::new();
        for decision in decisions {
            let mut wanted = false;
            for member in &decision.others {
                if let Some((_, image)) = self.ledger.images.find(member.store) {
                    wanted |= image.is_undecided(decision.id).unwrap_or(true);
                    continue;
                }
                let mut there = false;
                let mut waits = true;
                for Spot { io, below, .. } in self.spots(member) {
                    let owner = Some(self.owner);
                    there |= systx_store::is_there(&io, &below, owner, member.store);
                    waits &= is_undecided(&io, &below, owner, member.store, decision.id);
                }
                wanted |= waits;
                if waits && !there && !absent.contains(member) {
                    absent.push(member.clone());
                }
            }
            if !wanted && let Err(error) = store.forget_decision(decision.id) {
                tracing::warn!(%error, "a decision is kept");
            }
        }
        absent
    }

    /// Where a store may be; nowhere, if this machine does not know it.
    fn spots(&self, member: &Member) -> impl Iterator<Item = Spot> {
        let table = mounts::here().unwrap_or_default();
        let local = || table.iter().filter(|m| is_local(m));
        let mut places: Vec<(PathBuf, PathBuf)> = Vec::new();
        if let Some(path) = self.ledger.path_of(member.store) {
            let noted = mounts::holding(&table, &path).filter(|m| is_local(m));
            places.extend(noted.map(|m| (m.at.clone(), path)));
            for place in local().map(|m| (m.at.clone(), m.at.join(STORE_DIR))) {
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        places.into_iter().filter_map(|(mount, store)| {
            // Before anything is opened: most have none.
            std::fs::symlink_metadata(&store).ok().filter(std::fs::Metadata::is_dir)?;
            let below = store.strip_prefix(&mount).ok()?.as_os_str().as_bytes().to_vec();
            let io = RealIo::from_dir(open_root(&mount).ok()?).ok()?;
            Some(Spot { io, below, store })
        })
    }
}

/// Whether it is a mount of a file system on which there can be a store.
pub(crate) fn is_local(mount: &mounts::Mount) -> bool {
    LOCAL.contains(&mount.fs.as_str())
}

/// For messages: the path that a record has, of which nothing reaches a terminal but letters.
pub fn named(member: &Member) -> String {
    let path = String::from_utf8_lossy(&member.path);
    path.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}
