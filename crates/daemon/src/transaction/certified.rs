//! The commit of a transaction by a certifier (decision 0049): here it is offered, and dropped.

use super::{Ended, Lives, Transaction, refused};
use crate::certify::{self, Certifier, VERDICT};
use crate::describe::Opponents;
use crate::offer;
use crate::protocol::certify::Offer;
use crate::protocol::{Outcome, Summary};
use std::path::Path;
use std::sync::Arc;
use systx_protocol::modes::Way;
use systx_vfs::freeze::Frozen;

impl Transaction {
    /// Who has to be asked about what it has changed, if it is not that one's own.
    pub fn certifier(&self) -> Option<Arc<Certifier>> {
        if self.terms.read_only {
            return None;
        }
        let halls = self.parts().flat_map(|part| part.volume.halls());
        let all: Vec<_> = halls.filter_map(|hall| hall.conflicts.certifier.clone()).collect();
        if all.is_empty() {
            return None;
        }
        let found = certify::of_paths(all, &self.changes())?;
        let own = self.terms.lives == Lives::Thread && found.is_asked_by(self.terms.whose.client);
        (!own).then_some(found)
    }

    /// What it offers, if everybody who was asked agrees with it; still open.
    ///
    /// # Errors
    /// How it ends.
    pub fn offered(
        &self,
        dir: &Path,
        opponents: &dyn Opponents,
    ) -> Result<(Offer, Summary), Box<Outcome>> {
        let checked = self.check(opponents)?;
        let failed = |failure| Box::new(refused(failure));
        if let Some(certifier) = self.certifier().filter(|c| c.dir != dir) {
            return Err(failed(certifier.not_asked(Way::Several)));
        }
        let engine = &self.volume.vol.engine;
        let changed: Vec<&(&Transaction, Frozen)> =
            checked.parts.iter().filter(|(_, frozen)| !frozen.is_empty()).collect();
        match &changed[..] {
            [(part, frozen)] if engine.place_in_order(self.id).is_none() => {
                let offer = offer::of(self.id, dir, &part.view, frozen).map_err(failed)?;
                Ok((offer, checked.summary))
            }
            _ => {
                let dir = dir.to_owned();
                let certifier = Certifier { dir, socket: std::path::PathBuf::new() };
                Err(failed(certifier.not_asked(Way::Several)))
            }
        }
    }

    /// Has it committed by who has to be asked, if there is somebody.
    pub(super) fn commit_by_certifier(&self, opponents: &dyn Opponents) -> Option<Ended> {
        let certifier = self.certifier()?;
        let asking = match certifier.approach() {
            Ok(asking) => asking,
            Err(failure) => return Some(Ended::Refused(refused(failure))),
        };
        let (offer, summary) = match self.offered(&certifier.dir, opponents) {
            Ok(offered) => offered,
            Err(outcome) => return Some(Ended::Refused(*outcome)),
        };
        // Whoever installs it must not wait for it.
        self.abort();
        self.let_writers_in();
        let told = match asking.offer(&offer) {
            Ok(mut awaited) => awaited.wait(Some(VERDICT)),
            Err(error) => Some(Err(error)),
        };
        let outcome = match told {
            Some(verdict) => certifier.outcome(self.id, summary, verdict),
            None => certifier.unknown(self.id),
        };
        Some(match outcome {
            done @ Outcome::Committed { .. } => Ended::Committed(done),
            other => Ended::Refused(other),
        })
    }
}
