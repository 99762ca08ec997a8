//! Settings of a response from Python, and its result for Python.

use std::sync::Arc;

use ferrule_core::chat_passthrough::{ChatOptions, ChatPassthrough};
use ferrule_core::options::{Options, Reasoning};
use ferrule_core::outcome::Outcome;
use ferrule_core::response_reader::ResponseMode;
use ferrule_core::stop_reason::StopReason;
use ferrule_core::translator::Translator;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The settings shared by all responses of a model. Their defaults are the dialects', in Python.
#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponsePolicy(Options);

#[pymethods]
impl ResponsePolicy {
    #[new]
    #[pyo3(signature = (*, signature_prefix, stop_reasons, report_stop_sequence,
        close_block_on_error, split_think, context_window))]
    fn new(
        signature_prefix: &str,
        stop_reasons: Option<Vec<String>>,
        report_stop_sequence: bool,
        close_block_on_error: bool,
        split_think: bool,
        context_window: Option<u64>,
    ) -> PyResult<Self> {
        let stop_reasons = stop_reasons.map(|names| names.iter().map(|name| parse(name)).collect());
        Ok(Self(Options {
            signature_prefix: signature_prefix.into(),
            stop_reasons: stop_reasons.transpose()?,
            report_stop_sequence,
            close_block_on_error,
            split_think,
            context_window,
            ..Options::default()
        }))
    }
}

fn parse(name: &str) -> PyResult<StopReason> {
    StopReason::parse(name)
        .ok_or_else(|| PyValueError::new_err(format!("stop_reasons: {name:?} is no stop reason")))
}

/// One response: its model's policy, and what the request fixed.
#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponseOptions(pub Arc<Options>);

#[pymethods]
impl ResponseOptions {
    #[new]
    #[pyo3(signature = (policy, *, message_id, model, reasoning, display_omitted=false,
        tool_names=Vec::new(), single_tool_call=false, max_tokens=None, discard_output=false,
        budget_tokens=None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        policy: &ResponsePolicy,
        message_id: String,
        model: String,
        reasoning: &str,
        display_omitted: bool,
        tool_names: Vec<(String, String)>,
        single_tool_call: bool,
        max_tokens: Option<u64>,
        discard_output: bool,
        budget_tokens: Option<u64>,
    ) -> PyResult<Self> {
        let reasoning = Reasoning::parse(reasoning).ok_or_else(|| {
            PyValueError::new_err(format!(
                "reasoning: {reasoning:?} is none of thinking, text, drop"
            ))
        })?;
        Ok(Self(Arc::new(Options {
            message_id,
            model,
            reasoning,
            display_omitted,
            tool_names,
            single_tool_call,
            max_tokens,
            discard_output,
            budget_tokens,
            ..policy.0.clone()
        })))
    }
}

/// The form in which a response reaches the client; `begin` starts it anew for each attempt.
#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponseSpec(Form);

enum Form {
    Events(Arc<Options>),
    Aggregated(Arc<Options>),
    Chat(ChatOptions),
    Buffered,
}

#[pymethods]
impl ResponseSpec {
    /// Messages events, streamed.
    #[staticmethod]
    fn events(options: &ResponseOptions) -> Self {
        Self(Form::Events(Arc::clone(&options.0)))
    }

    /// A whole message, out of a response that the backend streams.
    #[staticmethod]
    fn aggregated(options: &ResponseOptions) -> Self {
        Self(Form::Aggregated(Arc::clone(&options.0)))
    }

    /// Chat completion chunks, passed on.
    #[staticmethod]
    fn chat(model_json: String, hide_usage: bool) -> Self {
        Self(Form::Chat(ChatOptions { model_json, hide_usage }))
    }

    /// The body as it is, collected.
    #[staticmethod]
    fn buffered() -> Self {
        Self(Form::Buffered)
    }
}

impl ResponseSpec {
    pub fn begin(&self) -> ResponseMode {
        let translator = |options| Box::new(Translator::new(Arc::clone(options)));
        match &self.0 {
            Form::Events(options) => ResponseMode::Events(translator(options)),
            Form::Aggregated(options) => {
                ResponseMode::Aggregated(translator(options), Box::default())
            }
            Form::Chat(options) => {
                ResponseMode::Chat(Box::new(ChatPassthrough::new(options.clone())))
            }
            Form::Buffered => ResponseMode::Buffered,
        }
    }
}

/// How a response ended.
#[pyclass(eq, frozen, hash, module = "ferrule._core", rename_all = "SCREAMING_SNAKE_CASE")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResponseEnd {
    /// It was streamed, or aggregated, to its end.
    Complete,
    /// Its body was collected: the whole response that was asked for, or an error's.
    Collected,
    /// It carried an error, ended early or was not a valid response.
    Broken,
    /// The backend closed before it sent anything.
    NoResponse,
    /// The reasoning reached its budget: `begin_continuation` is next.
    BudgetSpent,
    /// The backend was silent for too long.
    Silent,
    /// All attempts together took too long.
    Overtime,
    /// `fail` was called.
    Failed,
    /// `abort` was called.
    Aborted,
}

#[pyclass(frozen, get_all, name = "Outcome", module = "ferrule._core")]
pub struct PyOutcome {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    stop_reason: Option<&'static str>,
    has_usage: bool,
    fault_kind: Option<&'static str>,
    fault_message: Option<String>,
    fault_status: Option<u16>,
}

impl From<Outcome> for PyOutcome {
    fn from(outcome: Outcome) -> Self {
        let fault = outcome.fault;
        Self {
            input_tokens: outcome.usage.input_tokens,
            output_tokens: outcome.usage.output_tokens,
            cache_read_tokens: outcome.usage.cache_read_tokens,
            stop_reason: outcome.stop_reason.map(StopReason::as_str),
            has_usage: outcome.has_usage,
            fault_kind: fault.as_ref().map(|fault| fault.kind.as_str()),
            fault_status: fault.as_ref().map(|fault| fault.kind.status()),
            fault_message: fault.map(|fault| fault.message),
        }
    }
}
