//! Translation without I/O: for tests, tools and responses that are not streamed.

use std::sync::Arc;

use ferrule_core::translator::Translator;
use ferrule_core::{failure, reply, translator};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::options::{PyOutcome, ResponseOptions};

#[pyclass(name = "Translator", module = "ferrule._core")]
pub struct PyTranslator(Translator);

#[pymethods]
impl PyTranslator {
    #[new]
    fn new(options: &ResponseOptions) -> Self {
        Self(Translator::new(Arc::clone(&options.0)))
    }

    fn feed<'py>(&mut self, py: Python<'py>, data: &[u8]) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        self.0.feed(data, &mut out);
        PyBytes::new(py, &out)
    }

    fn finish<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut out = Vec::new();
        self.0.finish(&mut out);
        PyBytes::new(py, &out)
    }

    #[getter]
    fn outcome(&self) -> PyOutcome {
        self.0.stream().outcome().into()
    }
}

#[pyfunction]
pub fn fold<'py>(
    py: Python<'py>,
    options: &ResponseOptions,
    body: &[u8],
) -> (Bound<'py, PyBytes>, PyOutcome) {
    let (message, outcome) = translator::fold(Arc::clone(&options.0), body);
    (PyBytes::new(py, &message), outcome.into())
}

#[pyfunction]
pub fn translate_reply<'py>(
    py: Python<'py>,
    options: &ResponseOptions,
    body: &[u8],
) -> (Bound<'py, PyBytes>, PyOutcome) {
    let (message, outcome) = reply::translate(Arc::clone(&options.0), body);
    (PyBytes::new(py, &message), outcome.into())
}

/// A backend's HTTP error → (status, error type, message, whether the backend is shutting down).
#[pyfunction]
pub fn backend_error(status: u16, body: &[u8]) -> (u16, &'static str, String, bool) {
    let failure = failure::backend_error(status, body);
    (failure.kind.status(), failure.kind.as_str(), failure.message, failure.is_draining)
}
