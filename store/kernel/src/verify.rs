//! Checks of a whole store: the loops over records, units and entries of `store/verify` and of audits.

pub mod files;
pub mod findings;
pub mod in_log;
mod index;
mod log;
mod queues;
pub mod step;

use std::path::PathBuf;

use pyo3::prelude::*;

/// Files of one size that form one range of bytes, as Python passes them: the folder, bytes of a file, the first bytes of
/// the files, and what makes their bytes readable.
pub type FilesOf = (PathBuf, u64, Vec<u64>, Option<Py<PyAny>>);

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    findings::register(module)?;
    queues::register(module)?;
    step::register(module)?;
    log::register(module)?;
    index::register(module)?;
    in_log::register(module)
}
