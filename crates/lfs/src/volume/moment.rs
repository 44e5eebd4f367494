//! A moment of an open volume, as whoever reads it has it.

use super::Volume;
use crate::error::Result;
use crate::moments::Layer;
use crate::ops::Ops;
use std::sync::Arc;

/// The committed tree as it was when it began, whatever is changed since.  It is gone when it is
/// dropped.
///
/// It is in nobody's way: before somebody would be refused room for its sake it is given up, and
/// answers [`crate::Error::GivenUp`] from then on.  It is not on the medium.
pub struct Moment {
    volume: Arc<Volume>,
    layer: Arc<Layer>,
}

impl Volume {
    /// This moment: what [`Volume::look`] would show.
    pub fn moment(self: &Arc<Self>) -> Moment {
        let layer = self.state.lock().begin_moment();
        Moment { volume: Arc::clone(self), layer }
    }
}

impl Moment {
    /// Looks at the tree; whatever would change it says [`crate::Error::ReadOnly`].
    ///
    /// # Errors
    /// [`crate::Error::GivenUp`]; what `look` says.
    pub fn look<T>(&self, look: impl FnOnce(&mut Ops<'_>) -> Result<T>) -> Result<T> {
        self.volume.state.lock().look_at(&self.layer, look)
    }

    /// Whether it was given up: others needed the room of what was kept for it.
    pub fn is_given_up(&self) -> bool {
        self.layer.is_given_up(&self.volume.state.lock().usage)
    }
}
