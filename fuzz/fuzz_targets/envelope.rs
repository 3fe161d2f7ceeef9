//! One delivery in each form in which the sidecar can hand it over.
//!
//! An input is the body alone, or `name=value` pairs and then the body, each behind the last with a
//! NUL byte between them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| backstop::fuzzing::envelope(input));
