//! Any bytes as segments of a journal, with sums that are right: recovery reads, stops or refuses.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_store::fuzzing::journal(bytes));
