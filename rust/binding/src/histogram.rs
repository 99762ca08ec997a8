//! A histogram that Rust and Python fill alike.

use std::sync::Arc;

use ferrule_core::histogram::Histogram;
use pyo3::prelude::*;

#[pyclass(frozen, name = "Histogram", module = "ferrule._core")]
pub struct PyHistogram(pub Arc<Histogram>);

#[pymethods]
impl PyHistogram {
    #[new]
    fn new(edges: Vec<f64>) -> Self {
        Self(Arc::new(Histogram::new(&edges)))
    }

    fn observe(&self, seconds: f64) {
        self.0.observe(seconds, 1);
    }

    fn snapshot(&self) -> (Vec<u64>, f64) {
        self.0.snapshot()
    }
}
