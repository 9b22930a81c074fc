//! Errors of the store's files as one type: a system call failed, or the bytes are damaged.
//!
//! Both name the file. Python sees OSError (errno, text, filename) and DamageError (`path`, `pos`).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyException, PyOSError};
use pyo3::prelude::*;

pyo3::create_exception!(tallystick.store._kernel, DamageError, PyException);

#[derive(Debug)]
pub enum Fault {
    Io { path: PathBuf, error: io::Error },
    Damage { path: PathBuf, pos: u64, reason: String },
}

pub type Outcome<T> = Result<T, Fault>;

impl Fault {
    pub fn damage(path: &Path, pos: u64, reason: impl Into<String>) -> Fault {
        Fault::Damage {
            path: path.to_owned(),
            pos,
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Fault::Damage { path, pos, reason } => write!(f, "{}: {reason} at byte {pos}", path.display()),
        }
    }
}

impl std::error::Error for Fault {}

/// Adds the file's name to a system error.
pub trait At<T> {
    fn at(self, path: &Path) -> Outcome<T>;
    fn at_path(self, path: impl FnOnce() -> PathBuf) -> Outcome<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, path: &Path) -> Outcome<T> {
        self.map_err(|error| Fault::Io {
            path: path.to_owned(),
            error,
        })
    }

    fn at_path(self, path: impl FnOnce() -> PathBuf) -> Outcome<T> {
        self.map_err(|error| Fault::Io { path: path(), error })
    }
}

impl From<Fault> for PyErr {
    fn from(fault: Fault) -> PyErr {
        match fault {
            Fault::Io { path, error } => {
                let name = path.display().to_string();
                match error.raw_os_error() {
                    // OSError chooses its subclass (FileNotFoundError, ...) by the number.
                    Some(errno) => PyOSError::new_err((errno, error.to_string(), name)),
                    None => PyOSError::new_err(format!("{name}: {error}")),
                }
            }
            Fault::Damage { ref path, pos, .. } => Python::attach(|py| {
                let error = DamageError::new_err(fault.to_string());
                let value = error.value(py);
                // Setting an attribute of a plain exception fails only without memory; the error itself matters more.
                let _ = value.setattr("path", path.display().to_string());
                let _ = value.setattr("pos", pos);
                error
            }),
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("DamageError", module.py().get_type::<DamageError>())
}
