//! Commits that are decided and could not be installed then.

use crate::steps::stamp_of;
use crate::{Site, Stopped};
use std::collections::HashSet;
use std::convert::Infallible;
use systx_base::TxnId;
use systx_guard::publication::NotDecided;
use systx_store::ApplyError;

/// Installs what is late, but for what is `tried` already.  As every commit it goes through the
/// kernel's caches first: they may have what was there meanwhile.  The transactions that are in
/// place now.
///
/// # Errors
/// One of them cannot be installed now either.
pub fn finish_late(site: &Site, tried: &mut HashSet<u64>) -> Result<Vec<TxnId>, Stopped> {
    let mut finished = Vec::new();
    let Some(store) = site.store.if_open() else { return Ok(finished) };
    for late in store.late() {
        if !tried.insert(late.lsn) {
            continue;
        }
        let publication = site.vol.publish(late.txn, &late.set);
        let decided = publication.decide(|| Ok::<(), Infallible>(()));
        if let Err(NotDecided::Kernel(errno)) = decided {
            return Err(Stopped::NotPublished(errno));
        }
        let under_way = publication.into_under_way();
        let ids = late.set.objects.iter().filter_map(|o| Some(stamp_of(&o.origin)?.id()));
        // A view that has met what was there meanwhile has met something else: its versions are
        // not carried forward.
        let done = site.vol.installing(ids, || (store.apply(late.lsn), Vec::new()));
        match done {
            Ok(_) => finished.push(late.txn),
            // Another thread was faster.
            Err(ApplyError::Unknown(_)) => {}
            Err(error) => return Err(Stopped::NotPlaced(error)),
        }
        drop(under_way);
        site.checkpoints.soon(&store);
    }
    Ok(finished)
}
