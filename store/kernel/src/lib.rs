//! The per-message loops of the store, over buffers and small objects.
//!
//! No threads, no policy, no sockets: Python decides when each of these runs, and on which thread.

pub mod convert;
pub mod dispatch;
pub mod door;
pub mod encode;
pub mod entry;
pub mod exported;
pub mod ext;
pub mod fault;
pub mod folder;
pub mod frame;
pub mod gentle;
pub mod guard;
pub mod hash;
pub mod index;
pub mod ledger;
pub mod log;
pub mod maps;
pub mod meter;
mod named;
pub mod packed;
pub mod pull;
pub mod queue;
pub mod record;
pub mod reply;
pub mod scan;
pub mod scrub;
pub mod select;
pub mod signature;
pub mod timer;
pub mod verify;

use pyo3::prelude::*;

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    door::register(module)?;
    hash::register(module)?;
    index::register(module)?;
    log::register(module)?;
    meter::register(module)?;
    ledger::register(module)?;
    fault::register(module)?;
    guard::register(module)?;
    scan::register(module)?;
    scrub::register(module)?;
    timer::register(module)?;
    dispatch::register(module)?;
    convert::register(module)?;
    pull::register(module)?;
    queue::register(module)?;
    verify::register(module)?;
    Ok(())
}
