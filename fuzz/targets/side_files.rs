//! Any bytes as what lies beside a store's journal: a decision about a joint commit, and the mark.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_store::fuzzing::side_files(bytes));
