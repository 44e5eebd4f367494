//! What open moments see of what is changed ([`crate::moments`]).

use super::{Cover, State};
use crate::error::Result;
use crate::format::Ino;
use crate::moments::Layer;
use crate::object::Object;
use crate::ops::Ops;
use crate::txn::Txn;
use std::sync::Arc;
use systx_base::Time;

impl State {
    /// A moment begins: the tree as everybody sees it now.
    pub fn begin_moment(&mut self) -> Arc<Layer> {
        let at = (&mut self.usage, &self.tree.env.geometry);
        self.tree.moments.begin(&self.tree.veil.above, self.next_ino, at)
    }

    /// Looks at the tree as it was.
    ///
    /// # Errors
    /// [`crate::Error::GivenUp`]; what `look` says.
    pub fn look_at<T>(
        &mut self,
        layer: &Layer,
        look: impl FnOnce(&mut Ops<'_>) -> Result<T>,
    ) -> Result<T> {
        self.tree.trim(super::OBJECTS);
        let State { tree, usage, .. } = self;
        let now = Time::default();
        layer.read(usage, |txn| look(&mut Ops { tree, txn, maker: None, now }))
    }

    /// Before a transaction is installed that can be.
    ///
    /// # Errors
    /// What reading the volume can say.
    pub fn keep_changed(&mut self, txn: &Txn) -> Result<()> {
        self.tree.moments.tidy(&mut self.usage);
        if !self.tree.moments.is_open() {
            return Ok(());
        }
        let old = Cover::of(self, txn)?.into_old();
        let at = (&mut self.usage, &self.tree.env.geometry);
        self.tree.moments.change(&old, self.limits.kept_max, at);
        Ok(())
    }

    /// An object is about to be gone.
    pub fn keep_removed(&mut self, ino: Ino, object: &Object) {
        let at = (&mut self.usage, &self.tree.env.geometry);
        self.tree.moments.remove(ino, object, self.limits.kept_max, at);
    }
}
