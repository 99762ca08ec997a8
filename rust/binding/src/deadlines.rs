//! How long a streamed response may be silent, and how long it may take.

use pyo3::prelude::*;

/// Seconds; one object for all responses of a pool.
#[pyclass(frozen, module = "ferrule._core")]
pub struct StreamDeadlines {
    pub ping_after_s: f64,
    pub first_event_s: f64,
    pub idle_s: f64,
    pub total_s: f64,
}

#[pymethods]
impl StreamDeadlines {
    #[new]
    #[pyo3(signature = (*, ping_after_s, first_event_s, idle_s, total_s))]
    fn new(ping_after_s: f64, first_event_s: f64, idle_s: f64, total_s: f64) -> Self {
        Self { ping_after_s, first_event_s, idle_s, total_s }
    }
}
