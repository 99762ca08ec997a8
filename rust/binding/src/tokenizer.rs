//! The gateway's own tokenizers, counting without the GIL.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "ferrule._core")]
pub struct Tokenizer(ferrule_core::tokens::Tokenizer);

#[pymethods]
impl Tokenizer {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        ferrule_core::tokens::Tokenizer::load(name)
            .map(Self)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn count(&self, py: Python<'_>, texts: Vec<String>) -> usize {
        py.detach(|| self.0.count(&texts.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}
