//! Rows for Python: the capsules of Arrow's C data interface, which pyarrow imports without a copy.

use arrow_array::ffi::{to_ffi, FFI_ArrowArray};
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::ArrowError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// (schema, array)
pub type Capsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

/// Created without the GIL, passed to Python with it.
pub struct Exported(Result<(FFI_ArrowSchema, FFI_ArrowArray), ArrowError>);

impl Exported {
    pub fn new(batch: RecordBatch) -> Exported {
        let schema = FFI_ArrowSchema::try_from(batch.schema_ref().as_ref());
        let array = to_ffi(&StructArray::from(batch).into_data()).map(|(array, _)| array);
        Exported(schema.and_then(|schema| Ok((schema, array?))))
    }

    pub fn capsules(self, py: Python<'_>) -> PyResult<Capsules<'_>> {
        let (schema, array) = self.0.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }
}
