//! The per-message loops of the store, over buffers and small objects.
//!
//! No threads, no policy, no sockets: Python decides when each of these runs, and on which thread.

pub mod door;
pub mod encode;
pub mod frame;
pub mod hash;
pub mod log;
pub mod reply;

use pyo3::prelude::*;

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    door::register(module)?;
    hash::register(module)?;
    log::register(module)?;
    Ok(())
}
