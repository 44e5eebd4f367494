//! What everybody has who works on the tree and in the store's directory.

use crate::io::{Class, Io};
use crate::layout::Layout;
use crate::staging::Pool;
use std::io::Error;
use std::sync::Arc;

/// What an installation works with, and who prepares one.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub io: &'a dyn Io,
    pub layout: &'a Layout,
    pub pool: &'a Pool,
    pub class: Class,
    /// Whether this is an overlay file system, see [`crate::overlay`].
    pub overlay: bool,
}

/// What an open store has of it.
pub(crate) struct Ground {
    pub io: Arc<dyn Io>,
    pub layout: Layout,
    pub pool: Arc<Pool>,
    pub class: Class,
    pub overlay: bool,
}

impl Ground {
    pub fn env(&self) -> Env<'_> {
        let Ground { io, layout, pool, class, overlay } = self;
        Env { io: &**io, layout, pool, class: *class, overlay: *overlay }
    }
}

/// Whether an error concerns the whole store, so that going on makes no sense.
pub(crate) fn is_fatal(e: &Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            libc::EIO
                | libc::ENOSPC
                | libc::EDQUOT
                | libc::EROFS
                | libc::ENOMEM
                | libc::EMFILE
                | libc::ENFILE
        ) | None
    )
}

/// Whether it has this errno.
pub(crate) fn is(e: &Error, code: i32) -> bool {
    e.raw_os_error() == Some(code)
}
