//! Any bytes as a write set; what decodes means the same when it is encoded again.
#![no_main]

use systx_base::codec::{Decoder, Encoder};
use systx_store::writeset::WriteSet;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(set) = WriteSet::decode(&mut Decoder::new(bytes)) else { return };
    let _ = set.check();
    let mut e = Encoder::new();
    set.encode(&mut e);
    let again = WriteSet::decode(&mut Decoder::new(&e.finish())).expect("own encoding");
    assert_eq!(format!("{set:?}"), format!("{again:?}"));
});
