//! Any bytes as the root record of a log-structured volume.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_lfs::fuzzing::root(bytes));
