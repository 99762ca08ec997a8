//! A whole reply, and an error's body: a message or nothing, never a crash, and always words for
//! the client.
#![no_main]

use ferrule_core::failure::backend_error;
use ferrule_core::message::Options;
use ferrule_core::reply::translate;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|input: &[u8]| {
    let [status, body @ ..] = input else { return };
    let status = 400 + u16::from(*status);
    let (message, outcome) = translate(Options::new("msg_1", "m"), body);
    assert_eq!(message.is_empty(), outcome.fault.is_some());
    if !message.is_empty() {
        let message: Value = serde_json::from_slice(&message).expect("the message is JSON");
        assert!(
            message["content"].is_array()
                && message["stop_reason"].is_string()
                && message["usage"]["output_tokens"].is_u64()
        );
    }
    let failure = backend_error(status, body);
    assert!((400..600).contains(&failure.status) && !failure.message.is_empty());
    assert!(
        !failure.message.contains(|c: char| c.is_control() && c != '\n'),
        "{:?}",
        failure.message
    );
});
