//! What other stores ask of an open volume about joint commits.

use crate::commit::decision_name;
use crate::error::io_error;
use crate::open::VolumeStore;
use crate::own;
use std::io;
use systx_base::codec::Decoder;
use systx_lfs::Error;
use systx_store::record::Commit;
use systx_store::{Joint, Outcome};

impl VolumeStore {
    /// What became of a joint commit for which this volume decides; not of one that is under way.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn outcome(&self, joint: &Joint) -> io::Result<Outcome> {
        let decided = self.volume.look(|ops| {
            match ops.lookup(self.own.decisions, &decision_name(joint.id)) {
                Ok(link) => Ok(Some(own::read(ops, link.ino)?)),
                Err(Error::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let Some(bytes) = decided.map_err(io_error)? else { return Ok(Outcome::Aborted) };
        let commit = Commit::decode(&mut Decoder::new(&bytes)).map_err(io::Error::other)?;
        // Noted on both sides: it names the store that asks, as that names it.
        let same = |j: Joint| j.decides() && j.id == joint.id && j.members == joint.members;
        let is_it = commit.joint.is_some_and(same);
        Ok(if is_it { Outcome::Committed } else { Outcome::Aborted })
    }

    /// Whether this volume may still ask for the decision about a joint commit: it has a prepared
    /// part of it.
    ///
    /// # Errors
    /// What reading the volume says.
    pub fn is_undecided(&self, id: u64) -> io::Result<bool> {
        let prepared = self.volume.look(|ops| {
            let all = ops.list(self.own.prepared, None, usize::MAX)?;
            all.into_iter().map(|(_, link)| own::read(ops, link.ino)).collect::<Result<Vec<_>, _>>()
        });
        for bytes in prepared.map_err(io_error)? {
            let commit = Commit::decode(&mut Decoder::new(&bytes)).map_err(io::Error::other)?;
            if commit.joint.is_some_and(|joint| joint.id == id) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
