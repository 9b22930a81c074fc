//! Index files from beside: their entries as rows, and whether their chains hold. The file may be one that is written to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use pyo3::prelude::*;

use super::{entry_at, key_slot, ENTRY, HEADER, SLOT};
use crate::exported::{Capsules, Exported};
use crate::fault::{At, Fault, Outcome};
use crate::record::{int, long};

/// Entries that are read at once.
const PIECE: usize = 1 << 15;
/// Listed; the rest is only counted.
const MOST_FAULTS: usize = 1000;

/// `most` entries of a file from number `first` on.
fn entries(path: &Path, slots: u32, first: usize, most: usize) -> Outcome<RecordBatch> {
    let mut bytes = vec![0; ENTRY * most];
    read_at(&File::open(path).at(path)?, path, entry_at(slots, first), &mut bytes)?;
    let rows = || bytes.chunks_exact(ENTRY);
    let columns: [(&str, ArrayRef); 3] = [
        (
            "key_hash",
            Arc::new(Int32Array::from_iter_values(rows().map(|entry| int(entry, 0)))),
        ),
        (
            "position",
            Arc::new(Int64Array::from_iter_values(rows().map(|entry| long(entry, 4)))),
        ),
        (
            "seconds",
            Arc::new(Int32Array::from_iter_values(rows().map(|entry| int(entry, 12)))),
        ),
    ];
    let columns = columns.map(|(name, column)| (name, column, false));
    Ok(RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length, and no nulls"))
}

/// What does not hold in the chains of a file's entries below number `count`: (byte, why), the first thousand; how many.
///
/// Entries are added one by one, and each names the newest one of its slot before it. So that follows from the hashes;
/// as does what the slots name at the end. With `growing` a slot may name an entry that was added since, too. With `times`
/// a time that ends a search is told as well.
fn chain_faults(
    path: &Path,
    slots: u32,
    count: usize,
    growing: bool,
    times: bool,
) -> Outcome<(Vec<(usize, String)>, usize)> {
    let file = File::open(path).at(path)?;
    let (mut faults, mut found) = (vec![], 0);
    let mut met = |at: usize, why: &dyn Fn() -> String| {
        found += 1;
        if faults.len() < MOST_FAULTS {
            faults.push((at, why()));
        }
    };
    // Before the entries: what the slots name then is there when the entries are read.
    let mut named = vec![0; SLOT * slots as usize];
    read_at(&file, path, HEADER, &mut named)?;
    let mut newest = vec![0i32; slots as usize];
    let mut bytes = vec![];
    for first in (1..count).step_by(PIECE) {
        bytes.resize(ENTRY * PIECE.min(count - first), 0);
        read_at(&file, path, entry_at(slots, first), &mut bytes)?;
        for (number, entry) in (first..).zip(bytes.chunks_exact(ENTRY)) {
            let (hash, older) = (int(entry, 0), int(entry, 16));
            let newest = &mut newest[key_slot(hash, slots) as usize];
            if older != *newest {
                let expected = *newest;
                met(entry_at(slots, number), &|| {
                    format!("entry {number} goes back to entry {older}, the one before it in its chain is {expected}")
                });
            }
            if times && int(entry, 12) < 0 {
                met(entry_at(slots, number), &|| {
                    format!("entry {number} has a time of {} s", int(entry, 12))
                });
            }
            *newest = number as i32;
        }
    }
    for (slot, (named, newest)) in named.chunks_exact(SLOT).zip(newest).enumerate() {
        let named = int(named, 0);
        if named != newest && !(growing && named >= count as i32) {
            met(HEADER + SLOT * slot, &|| {
                format!("slot {slot} names entry {named} instead of {newest}")
            });
        }
    }
    Ok((faults, found))
}

fn read_at(file: &File, path: &Path, at: usize, bytes: &mut [u8]) -> Outcome<()> {
    match file.read_exact_at(bytes, at as u64) {
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Err(Fault::damage(
            path,
            at as u64,
            "an index file ends within what is to be read",
        )),
        done => done.at(path),
    }
}

/// index_entries(path, slots, first, most) -> (schema, array): key_hash, position, seconds, of so many entries.
#[pyfunction]
fn index_entries(py: Python<'_>, path: PathBuf, slots: u32, first: usize, most: usize) -> PyResult<Capsules<'_>> {
    py.detach(|| entries(&path, slots, first, most).map(Exported::new))?
        .capsules(py)
}

/// index_chain_faults(path, slots, count, growing, times) -> ([(byte, reason)], how many)
#[pyfunction]
#[pyo3(signature = (path, slots, count, growing, times = false))]
fn index_chain_faults(
    py: Python<'_>,
    path: PathBuf,
    slots: u32,
    count: usize,
    growing: bool,
    times: bool,
) -> PyResult<(Vec<(usize, String)>, usize)> {
    Ok(py.detach(|| chain_faults(&path, slots, count, growing, times))?)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(index_chain_faults, module)?)
}
