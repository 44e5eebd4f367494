//! Why an attempt did not commit.

/// Why an attempt of an optimistic section was undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Another thread touched what the attempt had touched, and one of the two wrote.
    Conflict,
    /// The attempt touched more than the processor can track.
    Capacity,
    /// The section asked for mutual exclusion: it does I/O (`Tx::io`), or enters an
    /// exclusive section of another lock.
    NeedExclusive,
    /// The section entered an optimistic section of another lock without passing its transaction
    /// on ([`crate::CxLock::optimistic_in`]), or the processor's limit of nesting was reached.
    Nested,
    /// An exclusive section was in the lock.
    Locked,
    /// The section panicked.
    Panicked,
    /// Nothing that the processor names: an interrupt, a page fault, a system call.
    Other,
}

impl Cause {
    /// All causes, in the order of [`Cause::index`].
    pub const ALL: [Self; 7] = [
        Self::Conflict,
        Self::Capacity,
        Self::NeedExclusive,
        Self::Nested,
        Self::Locked,
        Self::Panicked,
        Self::Other,
    ];

    /// Its place in [`Cause::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The code that tells of it in an explicit abort; `None` if sections do not cause it.
    pub(crate) const fn code(self) -> Option<u8> {
        match self {
            Self::NeedExclusive => Some(0xe1),
            Self::Nested => Some(0xe2),
            Self::Locked => Some(0xe3),
            Self::Panicked => Some(0xe4),
            Self::Conflict | Self::Capacity | Self::Other => None,
        }
    }

    /// The cause in the status word of an aborted hardware transaction.
    ///
    /// Bit 0: explicit, with the code in bits 24 to 31; 2: conflict; 3: capacity; 5: nested.
    #[must_use]
    pub fn of_status(status: u32) -> Self {
        if status & 1 != 0 {
            let code = (status >> 24) as u8;
            return Self::ALL
                .into_iter()
                .find(|cause| cause.code() == Some(code))
                .unwrap_or(Self::Other);
        }
        match status {
            s if s & (1 << 3) != 0 => Self::Capacity,
            s if s & (1 << 2) != 0 => Self::Conflict,
            s if s & (1 << 5) != 0 => Self::Nested,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_word_has_one_cause() {
        for cause in Cause::ALL {
            assert_eq!(Cause::ALL[cause.index()], cause);
            if let Some(code) = cause.code() {
                assert_eq!(Cause::of_status(u32::from(code) << 24 | 1), cause);
            }
        }
        assert_eq!(Cause::of_status(0), Cause::Other);
        assert_eq!(Cause::of_status(1 << 1 | 1 << 2), Cause::Conflict);
        assert_eq!(Cause::of_status(1 << 3 | 1 << 2), Cause::Capacity);
        assert_eq!(Cause::of_status(1 << 5), Cause::Nested);
        assert_eq!(Cause::of_status(0xff00_0001), Cause::Other, "a code of somebody else");
    }
}
