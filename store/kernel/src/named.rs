//! Results with field names: named tuples in Python, which callers read by name or unpack.
//!
//! A named tuple costs some 30 ns more than a tuple. Calls once per message or pull return plain tuples.

use std::ffi::{c_int, CStr};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Creates the type of a named tuple. `fields` ends with a field without a name.
pub fn new_type(
    py: Python<'_>,
    name: &'static CStr,
    doc: &'static CStr,
    fields: &mut [ffi::PyStructSequence_Field],
) -> PyResult<Py<PyType>> {
    let mut description = ffi::PyStructSequence_Desc {
        name: name.as_ptr(),
        doc: doc.as_ptr(),
        fields: fields.as_mut_ptr(),
        n_in_sequence: (fields.len() - 1) as c_int,
    };
    // SAFETY: the names and texts live as long as the process, and a field without a name ends the list.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyStructSequence_NewType(&mut description).cast())? };
    Ok(made.cast_into::<PyType>()?.unbind())
}

/// Creates a named tuple. There is one item for each field of the type.
pub fn new<'py, const N: usize>(
    kind: &Bound<'py, PyType>,
    items: [Bound<'py, PyAny>; N],
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the type was created by `new_type` with N fields. Nobody else has the new object yet, and it takes over
    // each item.
    unsafe {
        let made = Bound::from_owned_ptr_or_err(kind.py(), ffi::PyStructSequence_New(kind.as_type_ptr()))?;
        for (at, item) in items.into_iter().enumerate() {
            ffi::PyStructSequence_SetItem(made.as_ptr(), at as ffi::Py_ssize_t, item.into_ptr());
        }
        Ok(made)
    }
}

/// Declares structs that Python receives as named tuples, and `register`, which adds their types to the module.
macro_rules! named_tuples {
    ($($(#[doc = $doc:literal])+ $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone)]
            pub struct $name {
                $(pub $field: $kind),+
            }

            impl $name {
                fn type_object<'py>(py: pyo3::Python<'py>) -> pyo3::PyResult<&'py pyo3::Bound<'py, pyo3::types::PyType>> {
                    static TYPE: pyo3::sync::PyOnceLock<pyo3::Py<pyo3::types::PyType>> = pyo3::sync::PyOnceLock::new();
                    let found = TYPE.get_or_try_init(py, || {
                        let named = |name: &'static str| pyo3::ffi::PyStructSequence_Field {
                            name: name.as_ptr().cast(),
                            doc: std::ptr::null(),
                        };
                        let end = pyo3::ffi::PyStructSequence_Field {
                            name: std::ptr::null(),
                            doc: std::ptr::null(),
                        };
                        let name = concat!("tallystick.store._kernel.", stringify!($name), "\0");
                        let doc = concat!($($doc, "\n",)+ "\0");
                        let text = |text: &'static str| {
                            std::ffi::CStr::from_bytes_with_nul(text.as_bytes()).expect("it ends with its only NUL")
                        };
                        let mut fields = [$(named(concat!(stringify!($field), "\0")),)+ end];
                        $crate::named::new_type(py, text(name), text(doc), &mut fields)
                    })?;
                    Ok(found.bind(py))
                }
            }

            impl<'py> pyo3::IntoPyObject<'py> for $name {
                type Target = pyo3::PyAny;
                type Output = pyo3::Bound<'py, pyo3::PyAny>;
                type Error = pyo3::PyErr;

                fn into_pyobject(self, py: pyo3::Python<'py>) -> pyo3::PyResult<Self::Output> {
                    use pyo3::IntoPyObjectExt;
                    $crate::named::new(Self::type_object(py)?, [$(self.$field.into_bound_py_any(py)?),+])
                }
            }
        )+

        fn register_named(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
            $(module.add(stringify!($name), $name::type_object(module.py())?)?;)+
            Ok(())
        }
    };
}
pub(crate) use named_tuples;
