//! The file of the numbers that orders are at ([`Orders`]), for what the journal has let go of.
//!
//! Each commit in an order says in its record which number comes next. The table in memory is what
//! the file said, and after that each record of the journal. Before a super block is written that
//! lets records go, the table goes into a new version of the file. There are two files, written in
//! turn, and the super block names the version that counts, so that one is never written over.

use crate::error::{OpenError, open_io, shown};
use crate::io::{Io, Open};
use crate::layout::{Layout, ensure_file, found, read_first};
use crate::writeset::codec::{get_order, put_order};
use std::io::Result;
use std::sync::Arc;
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::sync::{Mutex, rank};
use systx_base::{OrderStep, Orders, Remembered, Time};

const NAMES: [&[u8]; 2] = [b"orders.0", b"orders.1"];
const MAGIC: u32 = u32::from_le_bytes(*b"SXO1");
/// A file is no longer: many users with as many orders as each may have.
const LONGEST: u64 = 64 << 20;

/// The table of an open store, and how much of it is in the file.
pub(crate) struct Numbers {
    pub table: Arc<Orders>,
    /// As [`Orders::all`] counts.
    written: Mutex<u64>,
}

/// Which version of the file a super block names.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub store: u64,
    pub number: u64,
}

/// A version of the file that no super block names yet.
pub(crate) struct Version {
    /// What the super block has to say.
    pub number: u64,
    changes: u64,
}

impl Numbers {
    /// Nothing is remembered.
    pub fn none() -> Numbers {
        Numbers::of(Orders::default())
    }

    fn of(table: Orders) -> Numbers {
        let written = Mutex::new(rank::LEAF, table.all().0);
        Numbers { table: Arc::new(table), written }
    }

    /// A record is durable that says this of an order.
    pub fn take(&self, step: Option<&OrderStep>, at: Time) {
        if let Some(step) = step {
            self.table.take(step, at);
        }
    }

    /// What the file has that the super block names.
    pub fn load(
        io: &dyn Io,
        layout: &Layout,
        named: Named,
    ) -> std::result::Result<Numbers, OpenError> {
        if named.number == 0 {
            return Ok(Numbers::none());
        }
        let name = NAMES[(named.number % 2) as usize];
        let read = || -> Result<Option<Vec<u8>>> {
            let Some(file) = found(io.open_file(&layout.state, name, Open::Read))? else {
                return Ok(None);
            };
            read_first(io, &file, LONGEST)
        };
        let bytes = read().map_err(open_io(&layout.path))?.unwrap_or_default();
        match decode(&bytes) {
            Ok((store, number, all)) if (store, number) == (named.store, named.number) => {
                Ok(Numbers::of(Orders::remembered(all)))
            }
            _ => Err(OpenError::Damaged {
                path: shown(&layout.path),
                what: format!("the numbers of the orders, {}", shown(name)),
            }),
        }
    }

    /// Writes what has changed since the version that the super block names, if anything has. The
    /// caller syncs, and writes a super block that names it.
    pub fn write(&self, io: &dyn Io, layout: &Layout, named: Named) -> Result<Version> {
        let (changes, all) = self.table.all();
        if changes == *self.written.lock() {
            return Ok(Version { number: named.number, changes });
        }
        let number = named.number + 1;
        let bytes = encode(named.store, number, &all);
        let file = ensure_file(io, &layout.state, NAMES[(number % 2) as usize])?;
        io.write_at(&file, &bytes, 0)?;
        io.set_len(&file, bytes.len() as u64)?;
        Ok(Version { number, changes })
    }

    /// The super block that names it is written.
    pub fn written(&self, version: &Version) {
        *self.written.lock() = version.changes;
    }
}

fn encode(store: u64, number: u64, all: &[Remembered]) -> Vec<u8> {
    let mut e = Encoder::new();
    e.u32(MAGIC);
    e.u64(store);
    e.u64(number);
    e.seq(all, |e, one| {
        put_order(e, &one.step);
        e.time(one.at);
    });
    let mut bytes = e.finish();
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> std::result::Result<(u64, u64, Vec<Remembered>), DecodeError> {
    let split = bytes.split_last_chunk::<4>();
    let valid = split.filter(|(body, crc)| u32::from_le_bytes(**crc) == crc32c::crc32c(body));
    let Some((body, _)) = valid else {
        return Err(DecodeError::Invalid { what: "checksum of orders", at: 0, found: 0 });
    };
    let mut d = Decoder::new(body);
    let magic = d.u32()?;
    if magic != MAGIC {
        return Err(d.invalid("format of orders", magic.into()));
    }
    let (store, number) = (d.u64()?, d.u64()?);
    let all = d.seq(|d| Ok(Remembered { step: get_order(d)?, at: d.time()? }))?;
    Ok((store, number, all))
}

/// For the fuzz targets: what is read as orders means the same when it is written again.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_made_up(bytes: &[u8]) {
    let Ok((store, number, all)) = decode(bytes) else { return };
    let again = decode(&encode(store, number, &all)).expect("own encoding");
    assert_eq!(again, (store, number, all));
}

#[cfg(test)]
mod tests;
