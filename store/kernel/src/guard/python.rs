//! The guard for Python: registers maps that Python code made, and returns the ranges that could not be read.

use std::path::PathBuf;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use super::{faults, take_unread, Guard};
use crate::door::os_error;

/// The registration of a map that Python made. Drop it before the map.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct MapGuard(Guard);

#[pymethods]
impl MapGuard {
    /// Registers the map `mapped` of the whole file `path`. `writable`: as the map is.
    #[new]
    #[pyo3(signature = (mapped, path, writable = false))]
    fn new(mapped: &Bound<'_, PyAny>, path: PathBuf, writable: bool) -> PyResult<MapGuard> {
        // The buffer is released at once: Python cannot close a map with an exported buffer.
        let buffer = PyBuffer::<u8>::get(mapped)?;
        let (begin, bytes) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        drop(buffer);
        let guard = Guard::new(&path, begin, bytes, writable).map_err(|error| os_error(&error, &path))?;
        Ok(MapGuard(guard))
    }

    /// spoils(at, size) -> bool: whether one of these bytes could not be read. Call it after reading them.
    fn spoils(&self, at: usize, size: usize) -> bool {
        self.0.spoils(at, size)
    }
}

/// map_faults() -> int: how often a page of a registered map could not be read, in this process.
#[pyfunction]
fn map_faults() -> u64 {
    faults()
}

/// take_unread(folder) -> [(path, offset, bytes, writable)]: the mapped ranges of files below `folder` that could not
/// be read. A range is reported again when its map has more of them, or when its map was made again.
#[pyfunction(name = "take_unread")]
fn py_take_unread(folder: PathBuf) -> Vec<(PathBuf, u64, u64, bool)> {
    let row = |range: super::Unread| (range.path, range.offset, range.bytes, range.writable);
    take_unread(&folder).into_iter().map(row).collect()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<MapGuard>()?;
    module.add_function(wrap_pyfunction!(map_faults, module)?)?;
    module.add_function(wrap_pyfunction!(py_take_unread, module)?)
}
