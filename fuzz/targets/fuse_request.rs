//! Any bytes as the body of any FUSE request: an operation or a refusal, never a panic.
#![no_main]

use systx_fuse::decode::decode;
use systx_fuse::wire::Opcode;

libfuzzer_sys::fuzz_target!(|input: (u8, u8, &[u8])| {
    let (opcode, fixed, bytes) = input;
    let Some(opcode) = Opcode::from_wire(opcode.into()) else { return };
    let (fixed, data) = bytes.split_at(usize::from(fixed).min(bytes.len()));
    let _ = decode(opcode, fixed, data);
});
