//! Reads a log in dledger's layout entry by entry: ranges that a peer sent, and the log that a start finds on the disk.
//!
//! A range is the bytes of a log from the first byte of one entry to the last byte of another, exactly as they lie in
//! the segments, with fillers and the bytes after them. `check_entries` returns it as an `Entries`. Only an `Entries`
//! can be appended, so unchecked bytes never reach a log.
//!
//! `walk_entries` follows the segment files from a known link on and stops where the log ends; it returns the index
//! units of the entries that it passed. `find_entry` searches for a sound entry after such a place.

use std::path::PathBuf;

use pyo3::exceptions::{PyException, PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::entry::{check, EntryHeader, Flaw, Found, Link, ENTRY_HEADER, ENTRY_MAGIC, INDEX_UNIT};
use crate::fault::Outcome;
use crate::maps::{LogMaps, LogSegment};
use crate::named::named_tuples;
use crate::record::{int, long};
use crate::scan::check_geometry;

pyo3::create_exception!(tallystick.store._kernel, EntryError, PyException);

named_tuples! {
    /// An entry that is not a message: its index and kind, and the position in the log and the size of its record.
    SpecialEntry { entry_index: u64, kind: i32, pos: u64, size: u32 }
}

/// An EntryError with the index that is expected at `pos`, and the place.
pub fn entry_error(py: Python<'_>, index: u64, pos: u64, reason: &str) -> PyErr {
    let error = EntryError::new_err(format!("entry {index} at byte {pos} of the log: {reason}"));
    let value = error.value(py);
    // Setting an attribute of a plain exception fails only without memory; the error itself matters more.
    let _ = value.setattr("index", index);
    let _ = value.setattr("pos", pos);
    let _ = value.setattr("reason", reason);
    error
}

/// Results of a walk over checked entries.
#[derive(Default)]
struct Passed {
    link: Link,
    /// After the last entry, before any filler.
    end: u64,
    runs: Vec<(u64, i64)>,
    special: Vec<SpecialEntry>,
    last_store_timestamp: i64,
}

impl Passed {
    fn add(&mut self, header: &EntryHeader, store_timestamp: Option<i64>) {
        if self.runs.last().is_none_or(|&(_, term)| term != header.term) {
            self.runs.push((header.index, header.term));
        }
        if header.kind != 0 {
            let record = (header.pos + ENTRY_HEADER as u64, header.size - ENTRY_HEADER as u32);
            self.special.push(SpecialEntry {
                entry_index: header.index,
                kind: header.kind,
                pos: record.0,
                size: record.1,
            });
        }
        self.last_store_timestamp = store_timestamp.unwrap_or(self.last_store_timestamp);
        self.link = header.link();
        self.end = header.pos + u64::from(header.size);
    }
}

/// Checked entries, in one range of bytes.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct Entries {
    data: PyBackedBytes,
    first_pos: u64,
    first_index: u64,
    /// Where each entry begins in `data`.
    places: Vec<u32>,
    runs: Vec<(u64, i64)>,
    special: Vec<SpecialEntry>,
    pub last: Link,
    pub last_store_timestamp: i64,
}

impl Entries {
    pub fn first_index(&self) -> u64 {
        self.first_index
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The bytes of entry number `i` of these, and its header.
    pub fn entry(&self, i: usize) -> (EntryHeader, &[u8]) {
        let bytes = &self.data[self.places[i] as usize..];
        let header = EntryHeader::read(bytes).expect("it was checked");
        (header, &bytes[..header.size as usize])
    }

    /// Whether entry number `i` continues the chain of `link`; checks its index and term as well.
    pub fn follows(&self, i: usize, link: &Link) -> Result<(), Flaw> {
        let (header, bytes) = self.entry(i);
        // The body was checked already: with a slice that ends after the header, only the header is checked.
        match check(bytes, header.pos, u64::MAX, link, true) {
            Ok(_) => Ok(()),
            Err(flaw) => Err(flaw),
        }
    }
}

#[pymethods]
impl Entries {
    #[getter(first_index)]
    fn py_first_index(&self) -> u64 {
        self.first_index
    }

    #[getter]
    fn last_index(&self) -> u64 {
        self.last.next_index - 1
    }

    #[getter]
    fn last_term(&self) -> i64 {
        self.last.term
    }

    #[getter]
    fn last_chain(&self) -> u32 {
        self.last.chain
    }

    #[getter]
    fn first_pos(&self) -> u64 {
        self.first_pos
    }

    #[getter]
    fn end_pos(&self) -> u64 {
        self.first_pos + self.data.len() as u64
    }

    #[getter]
    fn runs(&self) -> Vec<(i64, u64)> {
        let ends = self.runs.iter().skip(1).map(|&(first, _)| first);
        let counted = self.runs.iter().zip(ends.chain([self.last.next_index]));
        counted.map(|(&(first, term), end)| (term, end - first)).collect()
    }

    #[getter]
    fn special(&self) -> Vec<SpecialEntry> {
        self.special.clone()
    }

    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    /// record(index) -> bytes: the CommitLog record inside an entry.
    fn record<'py>(&self, py: Python<'py>, index: u64) -> PyResult<Bound<'py, PyBytes>> {
        let i = index.checked_sub(self.first_index).map(|i| i as usize);
        match i.filter(|&i| i < self.places.len()) {
            Some(i) => Ok(PyBytes::new(py, &self.entry(i).1[ENTRY_HEADER..])),
            None => Err(PyIndexError::new_err(index)),
        }
    }
}

/// check_entries(data, segment_bytes, prev_index, prev_term, prev_chain=None) -> Entries
#[pyfunction]
#[pyo3(signature = (data, segment_bytes, prev_index, prev_term, prev_chain = None))]
fn check_entries(
    py: Python<'_>,
    data: PyBackedBytes,
    segment_bytes: u64,
    prev_index: i64,
    prev_term: i64,
    prev_chain: Option<u32>,
) -> PyResult<Entries> {
    check_geometry(segment_bytes, ENTRY_HEADER)?;
    if data.len() > i32::MAX as usize || prev_index < -1 {
        let text = format!("a range of {} bytes behind entry {prev_index}", data.len());
        return Err(PyValueError::new_err(text));
    }
    let link = Link {
        next_index: (prev_index + 1) as u64,
        term: prev_term,
        chain: prev_chain.unwrap_or(0),
    };
    py.detach(|| parse(data, segment_bytes, link, prev_chain.is_some()))
        .map_err(|(index, pos, flaw)| entry_error(py, index, pos, flaw.text()))
}

fn parse(data: PyBackedBytes, segment_bytes: u64, link: Link, chained: bool) -> Result<Entries, (u64, u64, Flaw)> {
    let first_index = link.next_index;
    // The first entry says where the range lies; `append_entries` checks that.
    let first_pos = EntryHeader::read(&data).map_err(|flaw| (first_index, 0, flaw))?.pos;
    let mut passed = Passed {
        link,
        ..Passed::default()
    };
    let (mut at, mut places) = (0, Vec::new());
    while at < data.len() {
        let pos = first_pos
            .checked_add(at as u64)
            .ok_or((first_index, first_pos, Flaw::Place))?;
        let left = segment_bytes - pos % segment_bytes;
        let known = chained || at > 0;
        match check(&data[at..], pos, left, &passed.link, known).map_err(|flaw| (passed.link.next_index, pos, flaw))? {
            Found::Entry { header, record } => {
                places.push(at as u32);
                passed.add(&header, record.map(|record| record.store_timestamp()));
                at += header.size as usize;
            }
            // A range ends with an entry.
            Found::Filler if data.len() as u64 - at as u64 <= left => {
                return Err((passed.link.next_index, pos, Flaw::Torn));
            }
            Found::Filler => at += left as usize,
        }
    }
    Ok(Entries {
        data,
        first_pos,
        first_index,
        places,
        runs: passed.runs,
        special: passed.special,
        last: passed.link,
        last_store_timestamp: passed.last_store_timestamp,
    })
}

/// The entries that `walk_entries` passed, and why it stopped.
#[pyclass(frozen, get_all, module = "tallystick.store._kernel")]
pub struct WalkedEntries {
    pos: u64,
    end: u64,
    next_index: u64,
    last_term: i64,
    last_chain: u32,
    stopped: Option<&'static str>,
    done: bool,
    units: Py<PyBytes>,
    runs: Vec<(u64, i64)>,
    special: Vec<SpecialEntry>,
    last_store_timestamp_ms: i64,
}

/// walk_entries(folder, segment_bytes, pos, next_index, last_term, last_chain, max_entries) -> WalkedEntries
#[pyfunction]
#[pyo3(signature = (folder, segment_bytes, pos, next_index, last_term, last_chain = None, max_entries = 1 << 18))]
#[allow(clippy::too_many_arguments)] // a place in a log, as separate values
fn walk_entries(
    py: Python<'_>,
    folder: PathBuf,
    segment_bytes: u64,
    pos: u64,
    next_index: u64,
    last_term: i64,
    last_chain: Option<u32>,
    max_entries: usize,
) -> PyResult<WalkedEntries> {
    check_geometry(segment_bytes, ENTRY_HEADER)?;
    let link = Link {
        next_index,
        term: last_term,
        chain: last_chain.unwrap_or(0),
    };
    let log = LogMaps::new(folder, segment_bytes);
    let mut units = Vec::new();
    let (at, stop, passed) = py.detach(|| walk(&log, pos, link, last_chain.is_some(), max_entries, &mut units))?;
    Ok(WalkedEntries {
        pos: at,
        end: passed.end,
        next_index: passed.link.next_index,
        last_term: passed.link.term,
        last_chain: passed.link.chain,
        stopped: match stop {
            Stop::Flaw(flaw) => Some(flaw.text()),
            Stop::Files | Stop::Enough => None,
        },
        done: !matches!(stop, Stop::Enough),
        units: PyBytes::new(py, &units).unbind(),
        runs: passed.runs,
        special: passed.special,
        last_store_timestamp_ms: passed.last_store_timestamp,
    })
}

enum Stop {
    /// The bytes there are not the next entry.
    Flaw(Flaw),
    /// The files end.
    Files,
    /// The requested number of entries.
    Enough,
}

fn walk(
    log: &LogMaps,
    from: u64,
    link: Link,
    mut chained: bool,
    max_entries: usize,
    units: &mut Vec<u8>,
) -> Outcome<(u64, Stop, Passed)> {
    let mut passed = Passed {
        link,
        end: from,
        ..Passed::default()
    };
    let mut pos = from;
    while let Some(segment) = log.segment(pos)? {
        let bytes: &[u8] = &segment.map;
        let segment_end = segment.start + bytes.len() as u64;
        while pos < segment_end {
            if units.len() >= max_entries * INDEX_UNIT {
                return Ok((pos, Stop::Enough, passed));
            }
            let at = (pos - segment.start) as usize;
            match check_read(&segment, pos, &passed.link, chained) {
                Err(flaw) => return Ok((pos, Stop::Flaw(flaw), passed)),
                Ok(Found::Filler) => pos = segment_end,
                Ok(Found::Entry { header, record }) => {
                    let next = at + header.size as usize;
                    // Without a CRC of the whole entry, only this check finds a torn end of topic or properties.
                    let torn = header.chain == 0
                        && record.is_some_and(|record| record.ends_in_zeros())
                        && bytes[next..next + 8] == [0; 8];
                    if torn {
                        return Ok((pos, Stop::Flaw(Flaw::Torn), passed));
                    }
                    units.extend_from_slice(&header.unit());
                    passed.add(&header, record.map(|record| record.store_timestamp()));
                    chained = true;
                    pos += u64::from(header.size);
                }
            }
        }
    }
    Ok((pos, Stop::Files, passed))
}

/// The item at `pos`, if the file has all its bytes: bytes that the disk did not return are a flaw.
fn check_read<'a>(segment: &'a LogSegment, pos: u64, link: &Link, chained: bool) -> Result<Found<'a>, Flaw> {
    let bytes = &segment.map[(pos - segment.start) as usize..];
    let found = check(bytes, pos, bytes.len() as u64, link, chained);
    if let Ok(Found::Entry {
        record: Some(record), ..
    }) = &found
    {
        record.touch_tail();
    }
    let size = match &found {
        Ok(Found::Entry { header, .. }) => header.size as usize,
        Ok(Found::Filler) => 8,
        // The bytes that were read: the size in the header, if it is plausible.
        Err(_) => EntryHeader::read(bytes).map_or(ENTRY_HEADER, |header| header.size as usize),
    };
    if segment.spoils(pos, size.min(bytes.len())) {
        return Err(Flaw::Unreadable);
    }
    found
}

/// find_entry(folder, segment_bytes, pos, min_index, max_bytes) -> (pos, index) or None
#[pyfunction]
fn find_entry(
    py: Python<'_>,
    folder: PathBuf,
    segment_bytes: u64,
    pos: u64,
    min_index: u64,
    max_bytes: u64,
) -> PyResult<Option<(u64, u64)>> {
    check_geometry(segment_bytes, ENTRY_HEADER)?;
    let log = LogMaps::new(folder, segment_bytes);
    Ok(py.detach(|| find(&log, pos, min_index, max_bytes))?)
}

fn find(log: &LogMaps, from: u64, min_index: u64, max_bytes: u64) -> Outcome<Option<(u64, u64)>> {
    let finder = memchr::memmem::Finder::new(&[0, 0, 0, 1]);
    let (mut pos, end) = (from, from.saturating_add(max_bytes));
    while pos < end {
        let Some(segment) = log.segment(pos)? else {
            return Ok(None);
        };
        let bytes: &[u8] = &segment.map;
        let stop = bytes.len().min((end - segment.start) as usize);
        let mut at = (pos - segment.start) as usize;
        while let Some(found) = finder.find(&bytes[at..stop]) {
            at += found;
            let here = segment.start + at as u64;
            let sound = sound_at(&bytes[at..], here, min_index).filter(|_| {
                !segment.spoils(
                    here,
                    EntryHeader::read(&bytes[at..]).map_or(0, |header| header.size as usize),
                )
            });
            if let Some(index) = sound {
                return Ok(Some((segment.start + at as u64, index)));
            }
            at += 1;
        }
        pos = segment.start + bytes.len() as u64;
    }
    Ok(None)
}

/// The index of the entry that lies at `pos` and is sound by itself; None: no such entry.
fn sound_at(bytes: &[u8], pos: u64, min_index: u64) -> Option<u64> {
    if bytes.len() < ENTRY_HEADER || int(bytes, 0) != ENTRY_MAGIC || long(bytes, 24) != pos as i64 {
        return None;
    }
    let index = long(bytes, 8) as u64;
    if index < min_index {
        return None;
    }
    let link = Link {
        next_index: index,
        ..Link::default()
    };
    match check(bytes, pos, bytes.len() as u64, &link, false) {
        Ok(Found::Entry { .. }) => Some(index),
        _ => None,
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add("EntryError", module.py().get_type::<EntryError>())?;
    module.add_class::<Entries>()?;
    module.add_class::<WalkedEntries>()?;
    module.add_function(wrap_pyfunction!(check_entries, module)?)?;
    module.add_function(wrap_pyfunction!(walk_entries, module)?)?;
    module.add_function(wrap_pyfunction!(find_entry, module)?)
}
