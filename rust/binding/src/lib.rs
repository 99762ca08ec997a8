//! ferrule._core: the Python API of ferrule-core. The only crate that depends on PyO3.

#![warn(unsafe_code)]

mod client_writer;
mod clock;
mod connection;
mod deadlines;
mod effects;
mod histogram;
mod io;
mod options;
mod poller;
mod state;
mod stream;
mod tokenizer;
mod translator;

use pyo3::prelude::*;

/// The indices of `backends` (name, weight), in the order in which `key` prefers them.
#[pyfunction]
fn rank(key: &[u8], backends: Vec<(String, f64)>) -> Vec<usize> {
    ferrule_core::affinity::rank(
        key,
        backends.iter().map(|(name, weight)| (name.as_str(), *weight)),
    )
}

/// `gil_used`: the module's objects have locks, but the asyncio transports and futures that they
/// call are not safe without the GIL, and no lock order was audited for free threading.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rank, module)?)?;
    module.add_function(wrap_pyfunction!(translator::fold, module)?)?;
    module.add_function(wrap_pyfunction!(translator::translate_reply, module)?)?;
    module.add_function(wrap_pyfunction!(translator::backend_error, module)?)?;
    module.add_class::<stream::ResponseStream>()?;
    module.add_class::<histogram::PyHistogram>()?;
    module.add_class::<deadlines::StreamDeadlines>()?;
    module.add_class::<options::PyOutcome>()?;
    module.add_class::<options::ResponseEnd>()?;
    module.add_class::<options::ResponsePolicy>()?;
    module.add_class::<options::ResponseSpec>()?;
    module.add_class::<options::ResponseOptions>()?;
    module.add_class::<poller::Poller>()?;
    module.add_class::<connection::UpstreamConnection>()?;
    module.add_class::<tokenizer::PyTokenizer>()?;
    module.add_class::<translator::PyTranslator>()?;
    Ok(())
}
