//! The numbers that orders are at: a file for each of them, written with the commit that uses one
//! up.

use crate::own::{self, Own, clear};
use systx_base::codec::{DecodeError, Decoder, Encoder};
use systx_base::{OrderName, OrderStep, Orders, Remembered, Time};
use systx_lfs::{Error, Ops, Result};

fn file_name(order: &OrderName) -> Vec<u8> {
    use std::fmt::Write;
    let mut name = format!("{:x}.", order.owner);
    for byte in &order.name {
        // Writing to a string does not fail.
        let _ = write!(name, "{byte:02x}");
    }
    name.into_bytes()
}

/// What a commit says of an order is in its transaction.
pub(crate) fn put(ops: &mut Ops<'_>, own: &Own, step: &OrderStep, at: Time) -> Result<()> {
    let name = file_name(&step.order);
    if step.next == 0 {
        return clear(ops, own.orders, &name);
    }
    let mut e = Encoder::new();
    e.u32(step.order.owner);
    e.bytes(&step.order.name);
    e.u64(step.next);
    e.time(at);
    own::write(ops, own.orders, &name, &e.finish()).map(drop)
}

fn get(bytes: &[u8]) -> std::result::Result<Remembered, DecodeError> {
    let mut d = Decoder::new(bytes);
    let order = OrderName { owner: d.u32()?, name: d.bytes()?.into() };
    let step = OrderStep { order, next: d.u64()? };
    Ok(Remembered { step, at: d.time()? })
}

/// All that the volume remembers.
pub(crate) fn read(ops: &mut Ops<'_>, own: &Own) -> Result<Orders> {
    let mut all = Vec::new();
    for (_, link) in ops.list(own.orders, None, usize::MAX)? {
        let bytes = own::read(ops, link.ino)?;
        all.push(get(&bytes).map_err(|_| Error::Invalid("the number of an order"))?);
    }
    Ok(Orders::remembered(all))
}
