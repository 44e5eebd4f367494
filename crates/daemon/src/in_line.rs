//! A begin that waits for its turn, as others see it.

use std::sync::Arc;
use systx_base::{Time, TxnId};
use systx_txn::Part;
use systx_vfs::scope::{Claims, Declared};
use systx_vfs::volume::Volume;

/// One in line, as others see it.
#[derive(Clone)]
pub struct Waiting {
    /// The transaction that it will be.
    pub id: TxnId,
    /// Since when.
    pub since: Time,
    pub(crate) declared: Arc<Vec<Declared>>,
    pub(crate) claims: Arc<Claims>,
}

impl Waiting {
    /// The path that a part of its scope was declared by, as it is on the host.
    pub fn path(&self, volume: &Volume, part: &Part) -> Vec<u8> {
        let of = self.claims.iter().find(|(claim, _)| claim.part == *part);
        let declared = of.and_then(|(_, of)| self.declared.get(*of));
        let names = declared.map(|d| d.names.join(&b"/"[..])).unwrap_or_default();
        [&volume.mount_path, &b"/"[..], &names].concat()
    }
}
