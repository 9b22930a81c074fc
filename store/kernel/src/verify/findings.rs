//! What a check found, with a bounded list: a failed disk has millions of findings, and the first thousand are enough.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;

use crate::named::named_tuples;

/// Findings that are listed, of each kind. Fixed: a report of Python has the same bound.
const MOST_LISTED: u64 = 1000;

named_tuples! {
    /// One finding. `note`: it is no damage; `repairable`: it is a note only because the next start repairs it.
    CheckFinding {
        file: PathBuf,
        offset: u64,
        reason: Cow<'static, [u8]>,
        size: u64,
        pos: i64,
        note: bool,
        repairable: bool,
    }
    /// The first findings, and the number of all. Each file with damage has its first damage in the list.
    CheckFindings {
        listed: Vec<CheckFinding>,
        damaged: u64,
        noted: u64,
        repairable: u64,
    }
}

#[derive(Default)]
pub struct Findings {
    listed: Vec<CheckFinding>,
    damaged: u64,
    noted: u64,
    repairable: u64,
    files: HashSet<PathBuf>,
}

impl Findings {
    /// Damage, or a note if the next start repairs it.
    pub fn add(&mut self, file: &Path, offset: u64, repairable: bool, reason: impl FnOnce() -> Vec<u8>) {
        if repairable {
            self.note(file, offset, true, reason);
        } else {
            self.damage(file, offset, 0, -1, reason);
        }
    }

    /// `size`: affected bytes, 0 if unknown. `pos`: byte in the log, -1 for other files.
    pub fn damage(&mut self, file: &Path, offset: u64, size: u64, pos: i64, reason: impl FnOnce() -> Vec<u8>) {
        self.damaged += 1;
        let is_new = !self.files.contains(file);
        if is_new {
            self.files.insert(file.to_owned());
        }
        if is_new || self.damaged <= MOST_LISTED {
            self.list(file, offset, size, pos, false, false, reason());
        }
    }

    pub fn note(&mut self, file: &Path, offset: u64, repairable: bool, reason: impl FnOnce() -> Vec<u8>) {
        self.noted += 1;
        self.repairable += u64::from(repairable);
        if self.noted <= MOST_LISTED {
            self.list(file, offset, 0, -1, true, repairable, reason());
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of a finding
    fn list(&mut self, file: &Path, offset: u64, size: u64, pos: i64, note: bool, repairable: bool, reason: Vec<u8>) {
        self.listed.push(CheckFinding {
            file: file.to_owned(),
            offset,
            reason: Cow::Owned(reason),
            size,
            pos,
            note,
            repairable,
        });
    }

    pub fn taken(self) -> CheckFindings {
        CheckFindings {
            listed: self.listed,
            damaged: self.damaged,
            noted: self.noted,
            repairable: self.repairable,
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)
}
