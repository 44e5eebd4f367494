//! Any entries as the next piece of a log-structured volume, with sums that are right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_lfs::fuzzing::log(bytes));
