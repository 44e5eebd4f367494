//! What a store is told of an order beside its commits.

use crate::{Site, Stopped};
use std::sync::Arc;
use systx_store::CommitMeta;
use systx_store::writeset::WriteSet;

/// Makes durable which number comes next in an order (`meta.order`), which nobody may join
/// meanwhile.
///
/// # Errors
/// [`Stopped::NoStore`], [`Stopped::NoRoom`], and those of a record.
pub fn set_order(site: &Arc<Site>, meta: CommitMeta) -> Result<(), Stopped> {
    // What its program has committed before.
    site.vol.wait_durable();
    let store = site.store.lease().map_err(|error| Stopped::no_store(site, error))?;
    let set = WriteSet::nothing();
    let room = store.reserve(&set).map_err(Stopped::NoRoom)?;
    let written = store.commit(room, set, meta);
    let committed = written.map_err(|e| Stopped::by_store(e, |path| site.absolute(path)))?;
    store.apply(committed.lsn).map_err(Stopped::NotPlaced)?;
    site.checkpoints.soon(&store);
    Ok(())
}
