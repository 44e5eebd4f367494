//! Flips in a checkpoint and the super blocks of a log-structured volume, with sums that are right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_lfs::fuzzing::fixed(bytes));
