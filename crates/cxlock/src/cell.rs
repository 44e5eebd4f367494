//! The data of sections: cells of at most eight bytes.

use crate::hardware::Hardware;
use crate::sync::AtomicU64;
use crate::tx::{Reader, Tx};
use std::fmt;
use std::marker::PhantomData;

/// A value that fits into a cell.
pub trait Word: Copy {
    /// The value as bits.
    fn to_bits(self) -> u64;
    /// The value of such bits; only ever called with what [`Word::to_bits`] gave.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! unsigned_words {
    ($($t:ty),*) => {$(
        impl Word for $t {
            fn to_bits(self) -> u64 {
                self as u64
            }
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
        }
    )*};
}
unsigned_words!(u8, u16, u32, u64, usize, i8, i16, i32, i64, isize);

impl Word for bool {
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
    fn from_bits(bits: u64) -> Self {
        bits != 0
    }
}

impl Word for char {
    fn to_bits(self) -> u64 {
        u64::from(u32::from(self))
    }
    fn from_bits(bits: u64) -> Self {
        u32::try_from(bits).ok().and_then(Self::from_u32).unwrap_or(Self::REPLACEMENT_CHARACTER)
    }
}

impl Word for f32 {
    fn to_bits(self) -> u64 {
        u64::from(self.to_bits())
    }
    fn from_bits(bits: u64) -> Self {
        Self::from_bits(bits as u32)
    }
}

impl Word for f64 {
    fn to_bits(self) -> u64 {
        self.to_bits()
    }
    fn from_bits(bits: u64) -> Self {
        Self::from_bits(bits)
    }
}

/// An index, or none: for links between elements of an array.
impl Word for Option<u32> {
    fn to_bits(self) -> u64 {
        self.map_or(u64::MAX, u64::from)
    }
    fn from_bits(bits: u64) -> Self {
        u32::try_from(bits).ok()
    }
}

/// A value in the data of a lock, read and written by sections.
///
/// Where the processor has transactions a cell is one load or one store.  A cell belongs to the
/// lock whose data it is in, and is reached through the sections of that lock.
///
/// ```
/// use cxlock::{CxLock, TxCell};
/// let lock = CxLock::new([TxCell::new(1u64), TxCell::new(2)]);
/// let sum = lock.optimistic(|t, cells| {
///     cells[0].set(t, cells[0].get(t) + 1);
///     cells[0].get(t) + cells[1].get(t)
/// });
/// assert_eq!(sum, 4);
/// ```
///
/// A cell that does not live as long as the section cannot be written in it, since it may have to
/// be put back:
///
/// ```compile_fail
/// use cxlock::{CxLock, TxCell};
/// let lock = CxLock::new(());
/// lock.optimistic(|t, ()| {
///     let short = TxCell::new(1u64);
///     short.set(t, 2);
/// });
/// ```
///
/// Nor can a reference into the data leave the section:
///
/// ```compile_fail
/// use cxlock::{CxLock, TxCell};
/// let lock = CxLock::new(TxCell::new(1u64));
/// let cell = lock.optimistic(|_, cell| cell);
/// ```
pub struct TxCell<W> {
    pub(crate) word: AtomicU64,
    holds: PhantomData<fn(W) -> W>,
}

impl<W: Word> TxCell<W> {
    /// A cell with a value.
    #[must_use]
    pub fn new(value: W) -> Self {
        Self { word: AtomicU64::new(value.to_bits()), holds: PhantomData }
    }

    /// The value, in a section.
    #[inline]
    pub fn get<H: Hardware>(&self, t: &Reader<'_, H>) -> W {
        W::from_bits(t.load(&self.word))
    }

    /// Sets the value, in a section that may write.
    #[inline]
    pub fn set<'t, H: Hardware>(&'t self, t: &Tx<'t, '_, H>, value: W) {
        t.store(&self.word, value.to_bits());
    }

    /// Sets the value to what becomes of it, and returns that.
    #[inline]
    pub fn update<'t, H: Hardware>(&'t self, t: &Tx<'t, '_, H>, to: impl FnOnce(W) -> W) -> W {
        let value = to(self.get(t));
        self.set(t, value);
        value
    }

    /// The value, for the only one who has the cell.
    #[must_use]
    pub fn into_inner(self) -> W {
        W::from_bits(self.word.load(crate::sync::Ordering::Relaxed))
    }
}

impl<W: Word + Default> Default for TxCell<W> {
    fn default() -> Self {
        Self::new(W::default())
    }
}

/// The value is not shown: to look at it needs a section.
impl<W> fmt::Debug for TxCell<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxCell").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn same<W: Word + PartialEq + fmt::Debug>(value: W) {
        assert_eq!(W::from_bits(value.to_bits()), value);
        assert_eq!(TxCell::new(value).into_inner(), value);
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 3 } else { 256 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn a_word_is_what_was_put_in(a: u64, b: i64, c: char, d: Option<u32>, e: bool, f: i8) {
            same(a);
            same(b);
            same(c);
            same(d);
            same(e);
            same(f);
            same(a as u16);
            same(b as i32);
            same(f64::from(f));
            same(f32::from(f));
        }
    }
}
