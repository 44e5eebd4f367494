//! Little-endian encoder and bounds-checked decoder of the on-disk formats.  A decoder never panics
//! and never allocates more than its input could describe, whatever bytes it is given.

use crate::id::Time;
use thiserror::Error;

/// Why bytes could not be decoded.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ended inside a value.
    #[error("input ends at byte {at}, {wanted} more bytes expected")]
    Truncated {
        /// Offset of the value.
        at: usize,
        /// Bytes missing.
        wanted: usize,
    },
    /// A tag, length or flag has a value that the format does not define.
    #[error("invalid {what} {found} at byte {at}")]
    Invalid {
        /// What was being decoded.
        what: &'static str,
        /// Offset of the value.
        at: usize,
        /// The value found.
        found: u64,
    },
}

/// Appends values to a buffer.
#[derive(Default, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }
    /// The encoded bytes.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
    /// Bytes encoded so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
    /// Whether nothing was encoded yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
    /// One byte.
    pub fn u8(&mut self, v: u8) {
        self.bytes.push(v);
    }
    /// Four bytes.
    pub fn u32(&mut self, v: u32) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    /// Eight bytes.
    pub fn u64(&mut self, v: u64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    /// Eight bytes, two's complement.
    pub fn i64(&mut self, v: i64) {
        self.bytes.extend_from_slice(&v.to_le_bytes());
    }
    /// Twelve bytes: seconds, nanoseconds.
    pub fn time(&mut self, t: Time) {
        self.i64(t.secs);
        self.u32(t.nanos);
    }
    /// A `u32` length, then the bytes.
    ///
    /// # Panics
    /// If the slice is 4 GiB or longer: callers split larger data into extents.
    pub fn bytes(&mut self, v: &[u8]) {
        self.u32(u32::try_from(v.len()).expect("extents are split below 4 GiB"));
        self.bytes.extend_from_slice(v);
    }
    /// A presence byte, then the value if there is one.
    pub fn option<T>(&mut self, v: Option<T>, put: impl FnOnce(&mut Self, T)) {
        match v {
            None => self.u8(0),
            Some(v) => {
                self.u8(1);
                put(self, v);
            }
        }
    }
    /// A `u32` count, then each item.
    ///
    /// # Panics
    /// If there are 2³² items or more.
    pub fn seq<T>(&mut self, items: &[T], mut put: impl FnMut(&mut Self, &T)) {
        self.u32(u32::try_from(items.len()).expect("fewer than 2^32 items"));
        for item in items {
            put(self, item);
        }
    }
}

/// Reads values from a slice.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decoder { bytes, at: 0 }
    }
    /// Offset of the next value.
    pub fn position(&self) -> usize {
        self.at
    }
    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }
    /// The error for a value that was read at `at` and makes no sense.
    pub fn invalid(&self, what: &'static str, found: u64) -> DecodeError {
        DecodeError::Invalid { what, at: self.at, found }
    }
    fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(DecodeError::Truncated { at: self.at, wanted: n - self.remaining() });
        };
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }
    /// One byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_le_bytes)
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_le_bytes)
    }
    /// Eight bytes, two's complement.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_le_bytes)
    }
    /// Twelve bytes: seconds, nanoseconds.
    pub fn time(&mut self) -> Result<Time, DecodeError> {
        let secs = self.i64()?;
        let nanos = self.u32()?;
        if nanos >= 1_000_000_000 {
            return Err(self.invalid("nanoseconds", nanos.into()));
        }
        Ok(Time { secs, nanos })
    }
    /// A `u32` length, then that many bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let n = self.u32()?;
        self.take(n as usize)
    }
    /// A presence byte, then perhaps a value.
    pub fn option<T>(
        &mut self,
        get: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        match self.u8()? {
            0 => Ok(None),
            1 => get(self).map(Some),
            other => Err(self.invalid("presence byte", other.into())),
        }
    }
    /// A `u32` count, then each item.
    pub fn seq<T>(
        &mut self,
        mut get: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()? as usize;
        // Every item takes at least one byte, so a count above the rest is nonsense, not a reason
        // to allocate.
        if count > self.remaining() {
            return Err(DecodeError::Truncated { at: self.at, wanted: count - self.remaining() });
        }
        let mut items = Vec::with_capacity(count.min(4096));
        for _ in 0..count {
            items.push(get(self)?);
        }
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip() {
        let mut e = Encoder::new();
        e.u8(7);
        e.u32(8);
        e.u64(9);
        e.i64(-10);
        e.time(Time { secs: -1, nanos: 5 });
        e.bytes(b"name");
        e.option(Some(3u32), |e, v| e.u32(v));
        e.option(None::<u32>, |e, v| e.u32(v));
        e.seq(&[1u8, 2, 3], |e, v| e.u8(*v));
        let bytes = e.finish();
        let mut d = Decoder::new(&bytes);
        assert_eq!(d.u8(), Ok(7));
        assert_eq!(d.u32(), Ok(8));
        assert_eq!(d.u64(), Ok(9));
        assert_eq!(d.i64(), Ok(-10));
        assert_eq!(d.time(), Ok(Time { secs: -1, nanos: 5 }));
        assert_eq!(d.bytes(), Ok(&b"name"[..]));
        assert_eq!(d.option(|d| d.u32()), Ok(Some(3)));
        assert_eq!(d.option(|d| d.u32()), Ok(None));
        assert_eq!(d.seq(|d| d.u8()), Ok(vec![1, 2, 3]));
        assert_eq!(d.remaining(), 0);
    }

    #[test]
    fn hostile_input_is_an_error_not_a_panic_or_an_allocation() {
        assert!(Decoder::new(&[1, 2]).u32().is_err());
        assert!(Decoder::new(&u32::MAX.to_le_bytes()).bytes().is_err());
        assert!(Decoder::new(&u32::MAX.to_le_bytes()).seq(|d| d.u8()).is_err());
        assert!(Decoder::new(&[9]).option(|d| d.u8()).is_err());
        let mut e = Encoder::new();
        e.i64(0);
        e.u32(1_000_000_000);
        assert!(Decoder::new(&e.finish()).time().is_err());
    }
}
