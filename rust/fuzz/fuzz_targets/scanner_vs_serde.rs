//! The quick reader of chunks accepts nothing that serde refuses, and both give the same answer.
#![no_main]

use ferrule_core::chunk::{read, read_with_serde};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match (read(data), read_with_serde(data)) {
        (Ok(read), Ok(parsed)) => assert_eq!(read, parsed),
        (read, parsed) => assert!(read.is_err() && parsed.is_err(), "{read:?} but {parsed:?}"),
    }
});
