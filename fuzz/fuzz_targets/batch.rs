//! A JSON array of whatever there is: every member is judged as if it had come alone.
//!
//! An input is the members, with a NUL byte between two of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| backstop::fuzzing::batch(input));
