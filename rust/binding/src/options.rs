//! Reply options from Python, outcomes to Python.

use ferrule_core::options::{Options, Reasoning};
use ferrule_core::outcome::{self, StopReason};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "ferrule._core")]
pub struct ResponseOptions(pub Options);

#[pymethods]
impl ResponseOptions {
    #[new]
    #[pyo3(signature = (*, message_id, model, reasoning="thinking", display_omitted=false, signature_prefix="ferrule1.", stop_reasons=None,
        report_stop_sequence=true, close_block_on_error=true, tool_names=Vec::new(), single_tool_call=false, split_think=false,
        max_tokens=None, context_window=None, discard_output=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python, one per knob")]
    fn new(
        message_id: &str,
        model: &str,
        reasoning: &str,
        display_omitted: bool,
        signature_prefix: &str,
        stop_reasons: Option<Vec<String>>,
        report_stop_sequence: bool,
        close_block_on_error: bool,
        tool_names: Vec<(String, String)>,
        single_tool_call: bool,
        split_think: bool,
        max_tokens: Option<u64>,
        context_window: Option<u64>,
        discard_output: bool,
    ) -> PyResult<Self> {
        let reasoning = Reasoning::parse(reasoning).ok_or_else(|| {
            PyValueError::new_err(format!(
                "reasoning: {reasoning:?} is none of thinking, text, drop"
            ))
        })?;
        let stop_reasons = stop_reasons
            .map(|names| names.iter().filter_map(|name| StopReason::parse(name)).collect());
        Ok(Self(Options {
            reasoning,
            display_omitted,
            signature_prefix: signature_prefix.to_owned(),
            stop_reasons,
            report_stop_sequence,
            close_block_on_error,
            tool_names,
            single_tool_call,
            split_think,
            max_tokens,
            context_window,
            discard_output,
            ..Options::new(message_id, model)
        }))
    }
}

#[pyclass(frozen, get_all, module = "ferrule._core")]
pub struct Outcome {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_tokens: u64,
    stop_reason: Option<&'static str>,
    has_usage: bool,
    fault_kind: Option<&'static str>,
    fault_message: Option<String>,
    fault_status: Option<u16>,
}

impl From<outcome::Outcome> for Outcome {
    fn from(outcome: outcome::Outcome) -> Self {
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
