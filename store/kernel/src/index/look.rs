//! Index files read from outside: their entries as rows, and whether their chains hold. The file may be in use.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use pyo3::prelude::*;

use super::{entry_at, key_slot, ENTRY, HEADER, SLOT};
use crate::exported::{Capsules, Exported};
use crate::fault::{At, Fault, Outcome};
use crate::record::{int, long};

/// Entries of one read.
const PIECE: usize = 1 << 15;
/// Faults that are listed; more are only counted.
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

/// Checks in steps whether the chains of a file hold.
///
/// Entries are added one by one, and each names the entry that was then the newest one of its slot. So the hashes
/// determine all chains, and the values of the slots at the end. The slots are read before the entries: the entries
/// that they name then exist when the entries are read.
struct Chains {
    file: File,
    path: PathBuf,
    slots: usize,
    count: usize,
    /// A slot may name an entry that was added since the slots were read.
    growing: bool,
    /// A time that ends a search early is reported as well.
    times: bool,
    named: Vec<i32>,
    newest: Vec<i32>,
    /// After all slots were read, the next entry to read; then the next slot to compare.
    next: usize,
    next_slot: usize,
    /// (byte, reason), the first thousand; and how many there are.
    faults: Vec<(usize, String)>,
    found: usize,
}

impl Chains {
    fn open(path: &Path, slots: u32, count: usize, growing: bool, times: bool) -> Outcome<Chains> {
        Ok(Chains {
            file: File::open(path).at(path)?,
            path: path.to_owned(),
            slots: slots as usize,
            count,
            growing,
            times,
            named: vec![],
            newest: vec![0; slots as usize],
            next: 1,
            next_slot: 0,
            faults: vec![],
            found: 0,
        })
    }

    /// Continues for about this many bytes; true: the file is done.
    fn step(&mut self, max_bytes: usize) -> Outcome<bool> {
        let mut left = max_bytes;
        loop {
            let read = if self.named.len() < self.slots {
                self.read_slots()?
            } else if self.next < self.count {
                self.read_entries()?
            } else if self.next_slot < self.slots {
                self.compare_slots()?
            } else {
                return Ok(true);
            };
            left = left.saturating_sub(read);
            if left == 0 {
                return Ok(false);
            }
        }
    }

    fn read_slots(&mut self) -> Outcome<usize> {
        let first = self.named.len();
        let mut bytes = vec![0; SLOT * PIECE.min(self.slots - first)];
        read_at(&self.file, &self.path, HEADER + SLOT * first, &mut bytes)?;
        self.named.extend(bytes.chunks_exact(SLOT).map(|slot| int(slot, 0)));
        Ok(bytes.len())
    }

    fn read_entries(&mut self) -> Outcome<usize> {
        let (first, slots) = (self.next, self.slots as u32);
        let mut bytes = vec![0; ENTRY * PIECE.min(self.count - first)];
        read_at(&self.file, &self.path, entry_at(slots, first), &mut bytes)?;
        for (number, entry) in (first..).zip(bytes.chunks_exact(ENTRY)) {
            let (hash, older) = (int(entry, 0), int(entry, 16));
            let slot = key_slot(hash, slots) as usize;
            let expected = std::mem::replace(&mut self.newest[slot], number as i32);
            if older != expected {
                self.met(entry_at(slots, number), || {
                    format!("entry {number} goes back to entry {older}, the one before it in its chain is {expected}")
                });
            }
            if self.times && int(entry, 12) < 0 {
                self.met(entry_at(slots, number), || {
                    format!("entry {number} has a time of {} s", int(entry, 12))
                });
            }
        }
        self.next += bytes.len() / ENTRY;
        Ok(bytes.len())
    }

    fn compare_slots(&mut self) -> Outcome<usize> {
        let first = self.next_slot;
        let end = self.slots.min(first + PIECE);
        for slot in first..end {
            let (named, newest) = (self.named[slot], self.newest[slot]);
            if named != newest && !(self.growing && self.leads_back(slot, named)?) {
                self.met(HEADER + SLOT * slot, || {
                    format!("slot {slot} names entry {named} instead of {newest}")
                });
            }
        }
        self.next_slot = end;
        Ok(SLOT * (end - first))
    }

    /// Whether a chain of entries of the slot that were added since `count` was read leads to the newest one before.
    fn leads_back(&self, slot: usize, named: i32) -> Outcome<bool> {
        let (slots, size) = (self.slots as u32, self.file.metadata().at(&self.path)?.len());
        let mut number = named;
        while number >= self.count as i32 {
            let (at, mut entry) = (entry_at(slots, number as usize), [0; ENTRY]);
            if (at + ENTRY) as u64 > size {
                return Ok(false);
            }
            read_at(&self.file, &self.path, at, &mut entry)?;
            let older = int(&entry, 16);
            if key_slot(int(&entry, 0), slots) as usize != slot || older >= number {
                return Ok(false);
            }
            number = older;
        }
        Ok(number == self.newest[slot])
    }

    fn met(&mut self, at: usize, why: impl Fn() -> String) {
        self.found += 1;
        if self.faults.len() < MOST_FAULTS {
            self.faults.push((at, why()));
        }
    }
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

/// index_entries(path, slots, first, most) -> (schema, array): key_hash, position, seconds, of up to `most` entries.
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
    Ok(py.detach(|| {
        let mut chains = Chains::open(&path, slots, count, growing, times)?;
        while !chains.step(usize::MAX)? {}
        Ok::<_, Fault>((chains.faults, chains.found))
    })?)
}

/// `index_chain_faults` in steps. Used by one thread at a time.
#[pyclass(frozen, module = "tallystick.store._kernel")]
struct IndexChains(Mutex<Chains>);

#[pymethods]
impl IndexChains {
    #[new]
    #[pyo3(signature = (path, slots, count, growing, times = false))]
    fn new(path: PathBuf, slots: u32, count: usize, growing: bool, times: bool) -> PyResult<IndexChains> {
        let chains = Chains::open(&path, slots, count, growing, times)?;
        Ok(IndexChains(Mutex::new(chains)))
    }

    /// step(max_bytes) -> whether the file is done
    fn step(&self, py: Python<'_>, max_bytes: usize) -> PyResult<bool> {
        Ok(py.detach(|| self.lock().step(max_bytes))?)
    }

    /// faults() -> ([(byte, reason)], how many)
    fn faults(&self) -> (Vec<(usize, String)>, usize) {
        let chains = self.lock();
        (chains.faults.clone(), chains.found)
    }
}

impl IndexChains {
    fn lock(&self) -> MutexGuard<'_, Chains> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// simulate_index_clock(ms): the time in the names of new files, for tests; -1: the system's clock.
#[pyfunction]
fn simulate_index_clock(ms: i64) {
    super::SIMULATED_MS.store(ms, std::sync::atomic::Ordering::Relaxed);
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(index_entries, module)?)?;
    module.add_function(wrap_pyfunction!(index_chain_faults, module)?)?;
    module.add_function(wrap_pyfunction!(simulate_index_clock, module)?)?;
    module.add_class::<IndexChains>()
}
