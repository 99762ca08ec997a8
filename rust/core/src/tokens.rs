//! The gateway's own tokenizers: count the tokens of a text, exactly enough for limits and
//! estimates.
//!
//! Long texts are counted in parts, which keeps time linear and memory bounded for any text; a
//! boundary between parts may add a token.

use thiserror::Error;

/// Long enough that cutting changes a count by less than a thousandth.
const PART_BYTES: usize = 8 << 10;
/// How far before the end of a part a line end or blank is searched for.
const CUT_WINDOW_BYTES: usize = 1 << 10;

#[derive(Debug, Error)]
pub enum TokenizerError {
    #[error("`{name}` is neither o200k_base nor cl100k_base nor a tokenizer.json: {reason}")]
    Unusable { name: String, reason: String },
}

pub struct Tokenizer {
    vocabulary: Vocabulary,
}

enum Vocabulary {
    OpenAi(&'static bpe_openai::Tokenizer),
    HuggingFace(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// `name`: `o200k_base`, `cl100k_base`, or the path of a `tokenizer.json`. Reads and unpacks
    /// the vocabulary: a tenth of a second.
    pub fn load(name: &str) -> Result<Self, TokenizerError> {
        let vocabulary = match name {
            "o200k_base" => Vocabulary::OpenAi(bpe_openai::o200k_base()),
            "cl100k_base" => Vocabulary::OpenAi(bpe_openai::cl100k_base()),
            path => Vocabulary::HuggingFace(Box::new(from_file(path)?)),
        };
        Ok(Self { vocabulary })
    }

    /// Tokens of all texts together, without the special tokens that a chat template adds.
    pub fn count(&self, texts: &[&str]) -> usize {
        // The slowest texts, at 1 MB/s, repeat one symbol: there a part equals the one before it.
        let mut last = ("", 0);
        let mut total = 0;
        for part in texts.iter().flat_map(|text| TextParts(text)) {
            if part != last.0 {
                last = (part, self.count_part(part));
            }
            total += last.1;
        }
        total
    }

    fn count_part(&self, part: &str) -> usize {
        match &self.vocabulary {
            Vocabulary::OpenAi(bpe) => bpe.count(part),
            // Four bytes per token is the average of English; few models cannot encode some text.
            Vocabulary::HuggingFace(model) => model
                .encode_fast(part, false)
                .map_or(part.len().div_ceil(4), |encoding| encoding.len()),
        }
    }
}

fn from_file(path: &str) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let unusable = |error: tokenizers::Error| TokenizerError::Unusable {
        name: path.to_owned(),
        reason: error.to_string(),
    };
    let mut model = tokenizers::Tokenizer::from_file(path).map_err(unusable)?;
    // Files made for training truncate and pad every text to one length.
    model.with_truncation(None).map_err(unusable)?.with_padding(None);
    Ok(model)
}

/// A text in parts of at most `PART_BYTES`, cut after a line or before a blank where there is one.
struct TextParts<'a>(&'a str);

impl<'a> Iterator for TextParts<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.0.is_empty() {
            return None;
        }
        let (part, rest) = self.0.split_at(cut(self.0));
        self.0 = rest;
        Some(part)
    }
}

fn cut(text: &str) -> usize {
    if text.len() <= PART_BYTES {
        return text.len();
    }
    let window_start = PART_BYTES - CUT_WINDOW_BYTES;
    let window = &text.as_bytes()[window_start..PART_BYTES];
    let after_line = memchr::memrchr(b'\n', window).map(|at| at + 1);
    if let Some(at) = after_line.or_else(|| memchr::memrchr(b' ', window)) {
        return window_start + at;
    }
    (window_start..=PART_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn count(name: &str, text: &str) -> usize {
        Tokenizer::load(name).unwrap().count(&[text])
    }

    #[test]
    fn counts_are_those_of_tiktoken() {
        for (text, cl100k, o200k) in [
            ("", 0, 0),
            ("tiktoken is great!", 6, 6),
            ("antidisestablishmentarianism", 6, 6),
            ("2 + 2 = 4", 7, 7),
            ("お誕生日おめでとう", 9, 8),
        ] {
            assert_eq!(count("cl100k_base", text), cl100k, "{text}");
            assert_eq!(count("o200k_base", text), o200k, "{text}");
        }
    }

    #[test]
    fn texts_are_counted_apart_and_summed() {
        let tokenizer = Tokenizer::load("o200k_base").unwrap();
        assert_eq!(
            tokenizer.count(&["tik", "token", ""]),
            tokenizer.count(&["tik"]) + tokenizer.count(&["token"])
        );
        assert_eq!(tokenizer.count(&[]), 0);
    }

    #[test]
    fn long_texts_count_about_the_same_as_in_one_part() {
        let prose =
            "Nothing is sent to the client before the backend's first event.\n    fn main() {}\n"
                .repeat(2000);
        let whole = bpe_openai::o200k_base().count(prose.as_str());
        let tokens = count("o200k_base", &prose);
        assert!(tokens.abs_diff(whole) <= prose.len() / PART_BYTES, "{tokens} for {whole}");
        assert_eq!(count("o200k_base", &"a".repeat(1 << 20)), 1 << 17);
    }

    #[test]
    fn parts_are_short_and_complete() {
        for text in [
            "=".repeat(100_000),
            " ".repeat(100_000),
            "北".repeat(40_000),
            "word ".repeat(20_000),
            "line\n".repeat(20_000),
        ] {
            let parts: Vec<&str> = TextParts(&text).collect();
            assert_eq!(parts.concat(), text);
            assert!(parts.iter().all(|part| !part.is_empty() && part.len() <= PART_BYTES));
            assert!(parts.len() <= 1 + text.len() / (PART_BYTES - CUT_WINDOW_BYTES));
        }
    }

    #[test]
    fn a_tokenizer_file_counts_past_its_own_truncation() {
        let file = r#"{"version":"1.0","truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
            "padding":{"strategy":{"Fixed":9},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"?"},
            "added_tokens":[],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
            "model":{"type":"WordLevel","vocab":{"?":0,"a":1},"unk_token":"?"}}"#;
        let path =
            std::env::temp_dir().join(format!("ferrule-tokenizer-{}.json", std::process::id()));
        std::fs::write(&path, file).unwrap();
        let tokenizer = Tokenizer::load(path.to_str().unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tokenizer.unwrap().count(&["a b a", "a"]), 4);
    }

    #[test]
    fn unknown_names_say_what_is_known() {
        let error = Tokenizer::load("p50k_base").err().unwrap().to_string();
        assert!(
            error.starts_with(
                "`p50k_base` is neither o200k_base nor cl100k_base nor a tokenizer.json: "
            ),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_text_can_be_counted(text in any::<String>()) {
            let tokens = count("o200k_base", &text);
            prop_assert!(tokens <= text.len());
            prop_assert_eq!(tokens == 0, text.is_empty());
        }
    }
}
