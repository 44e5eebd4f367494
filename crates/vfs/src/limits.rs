//! What one view may take of the process that serves it: for views of users who are not that
//! process's own.

use crate::api::Reply;
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// At most so much of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewLimits {
    /// Objects met and made.
    pub objects: usize,
    /// Names of directories that were listed.
    pub names: usize,
    /// Bytes of extended attributes and link targets that were set, over all its life.
    pub bytes: usize,
    /// Holders of file locks.
    pub locks: usize,
}

impl ViewLimits {
    /// No limits.
    pub const NONE: ViewLimits =
        ViewLimits { objects: usize::MAX, names: usize::MAX, bytes: usize::MAX, locks: usize::MAX };
}

/// What a view has taken.
pub(crate) struct Taken {
    limits: ViewLimits,
    names: AtomicUsize,
    bytes: AtomicUsize,
}

impl Taken {
    pub fn new(limits: ViewLimits) -> Taken {
        Taken { limits, names: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    /// There are so many objects, and one more is wanted.
    pub fn object(&self, there: usize) -> Reply<()> {
        if there >= self.limits.objects { Err(Errno::NOMEM) } else { Ok(()) }
    }

    /// So many names more.
    pub fn names(&self, more: usize) -> Reply<()> {
        add(&self.names, more, self.limits.names, Errno::NOMEM)
    }

    /// So many bytes more.
    pub fn bytes(&self, more: usize) -> Reply<()> {
        add(&self.bytes, more, self.limits.bytes, Errno::DQUOT)
    }

    /// Whether holders of locks have to be counted.
    pub fn limits_locks(&self) -> bool {
        self.limits.locks != usize::MAX
    }

    /// So many holders of locks are there.
    pub fn lock(&self, there: usize) -> Reply<()> {
        if there >= self.limits.locks { Err(Errno::NOLCK) } else { Ok(()) }
    }
}

fn add(counter: &AtomicUsize, more: usize, limit: usize, errno: Errno) -> Reply<()> {
    let fits = |now: usize| now.checked_add(more).filter(|sum| *sum <= limit);
    counter.fetch_update(Relaxed, Relaxed, fits).map(drop).map_err(|_| errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_error_and_what_does_not_fit_is_not_counted() {
        let taken = Taken::new(ViewLimits { objects: 2, names: 5, bytes: 10, locks: 1 });
        assert_eq!((taken.object(1), taken.object(2)), (Ok(()), Err(Errno::NOMEM)));
        assert_eq!((taken.names(5), taken.names(1)), (Ok(()), Err(Errno::NOMEM)));
        assert_eq!((taken.bytes(11), taken.bytes(10)), (Err(Errno::DQUOT), Ok(())));
        assert_eq!((taken.lock(0), taken.lock(1)), (Ok(()), Err(Errno::NOLCK)));
        let free = Taken::new(ViewLimits::NONE);
        assert_eq!((free.names(usize::MAX), free.names(1)), (Ok(()), Err(Errno::NOMEM)));
    }
}
