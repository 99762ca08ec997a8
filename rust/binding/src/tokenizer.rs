//! The gateway's tokenizers; they count without the GIL.

use ferrule_core::tokens::Tokenizer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, name = "Tokenizer", module = "ferrule._core")]
pub struct PyTokenizer(Tokenizer);

#[pymethods]
impl PyTokenizer {
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        Tokenizer::load(name).map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn count(&self, py: Python<'_>, texts: Vec<String>) -> usize {
        py.detach(|| self.0.count(&texts.iter().map(String::as_str).collect::<Vec<_>>()))
    }
}
