//! The guard for Python: it registers maps that Python code made, and returns what could not be read.

use std::path::PathBuf;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use super::{faults, take_unread, Guard};
use crate::door::os_error;

/// The registration of a map that Python made. It must go before the map does.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct MapGuard(Guard);

#[pymethods]
impl MapGuard {
    /// Registers the map `mapped` of the whole file `path`. `writable`: as the map is.
    #[new]
    #[pyo3(signature = (mapped, path, writable = false))]
    fn new(mapped: &Bound<'_, PyAny>, path: PathBuf, writable: bool) -> PyResult<MapGuard> {
        // The buffer is let go of at once: a map that is looked at cannot be closed.
        let buffer = PyBuffer::<u8>::get(mapped)?;
        let (begin, bytes) = (buffer.buf_ptr() as usize, buffer.len_bytes());
        drop(buffer);
        let guard = Guard::new(&path, begin, bytes, writable).map_err(|error| os_error(&error, &path))?;
        Ok(MapGuard(guard))
    }

    /// spoils(at, size) -> bool: one of `size` bytes from `at` on could not be read. Asked after they were read.
    fn spoils(&self, at: usize, size: usize) -> bool {
        self.0.spoils(at, size)
    }
}

/// map_faults() -> int: how often a page of a registered map could not be read, in this process.
#[pyfunction]
fn map_faults() -> u64 {
    faults()
}

/// take_unread(folder) -> [(path, offset, bytes, writable)]: of files below `folder`, what could not be read where
/// it was mapped; a range is told again
/// when there is more of its map, or when its map was made again.
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
