//! Any bytes as each structure of a log-structured volume by itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_lfs::fuzzing::structures(bytes));
