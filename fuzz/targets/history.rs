//! Any bytes as a history file, a journal record's body, or a super block whose sum is right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| systx_store::fuzzing::history(bytes));
