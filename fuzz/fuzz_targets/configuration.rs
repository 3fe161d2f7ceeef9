//! Any environment: it is read or refused, and what is refused is not repeated.
//!
//! An input is `NAME=value` pairs with a NUL byte between two of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| backstop::fuzzing::configuration(input));
