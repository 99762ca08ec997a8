//! Stop reasons, usage and error kinds: what a reply came to. Each is mapped once, here.

/// Token counts as the backend reports them, before they are split the Anthropic way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Part of `prompt_tokens` that was read from a prefix cache.
    pub cached_tokens: u64,
    pub reasoning_tokens: Option<u64>,
}
