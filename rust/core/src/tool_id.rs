//! Ids of tool calls: which ids of a backend are safe for clients, and replacements for the others.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Longer backend ids are not embedded: the client gets a fresh id.
const ORIGINAL_ID_LIMIT_BYTES: usize = 256;
const SAFE_PREFIXES: [&str; 3] = ["chatcmpl-tool-", "call_", "toolu_"];

/// The id a client sees for call `number` of message `message_id`, made when the backend's own is
/// not safe to show.
///
/// Form: `toolu_` + 18 hex digits (14 from the message id, 4 the call's number), and, when the
/// backend gave an id, `_` + that id in unpadded base64url, so that the request side can restore it
/// from the tool result alone.
pub fn tool_id(message_id: &str, number: u16, original: &str) -> String {
    let hash = fnv1a(message_id.as_bytes()) & 0x00ff_ffff_ffff_ffff;
    let mut id = format!("toolu_{hash:014x}{number:04x}");
    if !original.is_empty() && original.len() <= ORIGINAL_ID_LIMIT_BYTES {
        id.push('_');
        URL_SAFE_NO_PAD.encode_string(original, &mut id);
    }
    id
}

/// True for ids that clients get unchanged: safe characters, and random enough to be unique in a
/// conversation. `call_0`, `functions.f:0` and Mistral's nine characters are not.
pub fn is_safe_id(id: &str) -> bool {
    if is_made_id(id) || id.len() > ORIGINAL_ID_LIMIT_BYTES {
        return false;
    }
    if SAFE_PREFIXES.iter().any(|prefix| {
        id.strip_prefix(prefix)
            .is_some_and(|rest| rest.len() >= 16 && rest.bytes().all(|b| b.is_ascii_alphanumeric()))
    }) {
        return true;
    }
    let clean = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    // A long name with a counter is clean and long, yet repeats in every turn: require a run that
    // looks random.
    let random =
        id.split(['_', '-']).any(|run| run.len() >= 12 && run.bytes().any(|b| b.is_ascii_digit()));
    clean && id.len() >= 20 && random
}

/// True for the long form of [`tool_id`]: passed on, it would be decoded as an id of the gateway.
fn is_made_id(id: &str) -> bool {
    id.strip_prefix("toolu_").and_then(|rest| rest.split_at_checked(18)).is_some_and(
        |(digits, rest)| {
            rest.starts_with('_')
                && digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        },
    )
}

/// FNV-1a, 64 bit.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_ids_are_shown_as_they_are() {
        for id in [
            "chatcmpl-tool-9aca3e53f4fcd58d",
            "call_9d3bfe187bbb3cee",
            "call_0123456789abcdef01234567",
            "toolu_01A09q90qw90lq917835lq9",
            "Ab3Cd5Ef7Gh9Ij1Kl3Mn5Op7Qr9St1Uv",
            "3f2c8a1e-1111-4222-8333-9d3bfe187bbb",
        ] {
            assert!(is_safe_id(id), "{id}");
        }
    }

    #[test]
    fn c05_ids_that_repeat_over_turns_are_not() {
        for id in [
            "",
            "call_0",
            "c1",
            "functions.get_weather:0",
            "get_weather:12",
            "a1B2c3D4e",
            "get_weather_forecast_today_0",
            "call_9d3bfe187bbb3c\u{e9}e0000",
            &tool_id("msg_1", 0, "call_0"),
            &"a1".repeat(200),
        ] {
            assert!(!is_safe_id(id), "{id}");
        }
    }

    #[test]
    fn made_ids_carry_the_original() {
        let id = tool_id("msg_0f", 1, "functions.get_weather:0");
        let (head, original) = id.split_at(6 + 18);
        assert!(head.starts_with("toolu_") && head.ends_with("0001"), "{id}");
        assert_eq!(
            URL_SAFE_NO_PAD.decode(original.strip_prefix('_').unwrap()).unwrap(),
            b"functions.get_weather:0"
        );
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
        assert_eq!(tool_id("msg_0f", 1, "").len(), 6 + 18);
        assert_eq!(tool_id("msg_0f", 1, &"x".repeat(257)).len(), 6 + 18);
        assert_ne!(tool_id("msg_0f", 1, ""), tool_id("msg_10", 1, ""));
        assert_ne!(tool_id("msg_0f", 1, ""), tool_id("msg_0f", 2, ""));
    }
}
