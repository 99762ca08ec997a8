//! JSON read one level at a time: members and elements stay raw until they are read in turn.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::types::ChunkFault;

pub(super) type Parsed<T> = Result<T, ChunkFault>;

/// A value that is not null.
pub(super) fn some(raw: &str) -> Option<&str> {
    (raw != "null").then_some(raw)
}

pub(super) fn unquote(raw: &str) -> Option<&str> {
    raw.strip_prefix('"')?.strip_suffix('"')
}

/// Calls back with each member of the object `raw`: its name and its still raw value.
pub(super) fn members<'a>(
    what: &'static str,
    raw: &'a str,
    on_member: &mut dyn FnMut(&str, &'a str),
) -> Parsed<()> {
    if !raw.trim_start_matches(JSON_BLANKS).starts_with('{') {
        serde_json::from_str::<serde::de::IgnoredAny>(raw)?;
        return Err(ChunkFault::Shape { member: what, expected: "an object" });
    }
    let mut json = serde_json::Deserializer::from_str(raw);
    json.deserialize_map(Members(on_member))?;
    Ok(json.end()?)
}

/// The elements of the array `raw`, still raw.
pub(super) fn elements<'a>(what: &'static str, raw: &'a str) -> Parsed<Vec<&'a str>> {
    if !raw.starts_with('[') {
        return Err(ChunkFault::Shape { member: what, expected: "an array" });
    }
    let elements: Vec<&RawValue> = serde_json::from_str(raw)?;
    Ok(elements.into_iter().map(RawValue::get).collect())
}

const JSON_BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

struct Members<'f, 'a>(&'f mut dyn FnMut(&str, &'a str));

impl<'de> Visitor<'de> for Members<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Key)? {
            let value: &'de RawValue = map.next_value()?;
            (self.0)(&key, value.get());
        }
        Ok(())
    }
}

/// Borrowed when nothing in it is escaped.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(key.into())
    }

    fn visit_str<E>(self, key: &str) -> Result<Self::Value, E> {
        Ok(key.to_owned().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(raw: &str) -> Result<Vec<(String, &str)>, String> {
        let mut read = Vec::new();
        members("it", raw, &mut |key, value| read.push((key.to_owned(), value)))
            .map_err(|fault| fault.to_string())?;
        Ok(read)
    }

    #[test]
    fn values_stay_raw() {
        let members = read(r#" {"a": {"b" : [1, 2]}, "\u0063" :null} "#).unwrap();
        assert_eq!(members, [("a".to_owned(), r#"{"b" : [1, 2]}"#), ("c".to_owned(), "null")]);
        assert_eq!(elements("it", r#"[ 1, "x" , {}]"#).unwrap(), ["1", r#""x""#, "{}"]);
    }

    #[test]
    fn other_shapes_are_named() {
        assert_eq!(read("[1]").unwrap_err(), "`it` of the chunk is not an object");
        assert_eq!(
            elements("it", "{}").unwrap_err().to_string(),
            "`it` of the chunk is not an array"
        );
        for broken in ["{", "{} {}", "{\"a\"}", ""] {
            assert!(read(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn null_is_absent() {
        assert_eq!((some("null"), some("0")), (None, Some("0")));
        assert_eq!((unquote("\"x\""), unquote("x")), (Some("x"), None));
    }
}
