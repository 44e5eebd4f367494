//! The daemon's side of the control connections.

use super::call::{Reply, Request};
use super::{Asker, Failure};
use systx_base::TxnId;

/// The daemon, as those know it who serve its connections.  Methods are called from one thread per
/// connection, concurrently; each may take as long as it needs.
pub trait Control: Send + Sync {
    /// Answers a request of the user whose daemon it is: [`super::call::Calls::call`].
    ///
    /// # Errors
    /// What is said instead of an answer.
    fn answer(&self, asker: &mut Asker, request: &Request) -> Result<Reply, Failure>;
    /// The client that began this run, or a visit to it, is gone without ending it: end what
    /// still runs in its view; a run aborts, a visited transaction stays kept.
    fn client_gone(&self, id: TxnId);
    /// True while nothing is open, guarded or mounted: the daemon may exit.
    fn idle(&self) -> bool;
    /// The daemon is about to exit: abort what is open, unmount what is guarded, close the stores.
    fn shutdown(&self);
}
