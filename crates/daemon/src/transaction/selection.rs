//! What of a view is committed.

use crate::patterns::Patterns;
use crate::protocol::HostPath;
use crate::volume::OpenVolume;
use systx_protocol::is_below;
use systx_vfs::freeze::Selection;

/// Everything but what is never committed.
pub(super) struct Committed<'a> {
    pub(super) patterns: &'a Patterns,
    pub(super) volume: &'a OpenVolume,
}

impl Selection for Committed<'_> {
    fn takes(&self, path: &[u8]) -> bool {
        !self.patterns.drops(&self.volume.absolute(path))
    }
}

/// What lies below some paths.
pub(super) struct Below<'a> {
    pub(super) patterns: &'a Patterns,
    pub(super) paths: &'a [HostPath],
    pub(super) volume: &'a OpenVolume,
}

impl Below<'_> {
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|top| is_below(path, &top.0))
    }
}

impl Selection for Below<'_> {
    fn takes(&self, path: &[u8]) -> bool {
        let absolute = self.volume.absolute(path);
        self.has(&absolute) && !self.patterns.drops(&absolute)
    }
}
