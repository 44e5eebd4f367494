//! Any bytes as a message of the control connection, in either direction.
#![no_main]

use systx_protocol::{Reply, Request};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = serde_json::from_slice::<Request>(bytes);
    let _ = serde_json::from_slice::<Reply>(bytes);
});
