//! A histogram that Rust and Python fill alike.

use std::sync::Arc;

use pyo3::prelude::*;

#[pyclass(frozen, module = "ferrule._core")]
pub struct Histogram(pub Arc<ferrule_core::histogram::Histogram>);

#[pymethods]
impl Histogram {
    #[new]
    fn new(edges: Vec<f64>) -> Self {
        Self(Arc::new(ferrule_core::histogram::Histogram::new(&edges)))
    }

    fn observe(&self, seconds: f64) {
        self.0.observe(seconds, 1);
    }

    fn snapshot(&self) -> (Vec<u64>, f64) {
        self.0.snapshot()
    }
}
