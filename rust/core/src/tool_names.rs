//! Tool names on the way back: the client gets the name it declared, whatever the backend was given.
//!
//! Names that backends refuse were mapped on the way there (`ferrule.messages.tool_names`).

use std::borrow::Cow;

use crate::text::decode;

/// `name`: escaped, as the backend sent it; `mapping`: (name upstream, name the client knows).
/// Harmony models leak channel markup behind a name: `<|channel|>commentary`.
pub fn client_name<'a>(name: &'a str, mapping: &'a [(String, String)]) -> Cow<'a, str> {
    let end = name.find("<|").unwrap_or(name.len());
    let name = decode(&name[..end]);
    match mapping.iter().find(|(upstream, _)| *upstream == name) {
        Some((_, client)) => Cow::Borrowed(client),
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_back_to_what_the_client_knows() {
        let mapping = [("short".to_owned(), "mcp__srv.tool/long".to_owned())];
        for (name, client) in [
            ("short", "mcp__srv.tool/long"),
            ("short<|channel|>commentary", "mcp__srv.tool/long"),
            ("other", "other"),
            ("caf\\u00e9", "café"),
        ] {
            assert_eq!(client_name(name, &mapping), client, "{name}");
        }
    }
}
