//! Checks an index file against the log: each entry belongs to a key of its record, and each chain is intact.
//!
//! The chain of a slot leads from the newest entry, which the slot contains, back to the first. So the previous entry of
//! the chain is always the newest one of this slot so far.

use std::fs::File;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use super::files::{prefetch, Files};
use super::findings::{CheckFindings, Findings};
use super::step::{step_at, Kind, Seen};
use super::FilesOf;
use crate::fault::At;
use crate::guard::ReadMap;
use crate::hash::{key_hash, string_hash};
use crate::index::{entry_at, ENTRY, HEADER, SLOT};
use crate::named::named_tuples;
use crate::record::{int, long, Known, Record};

const ENTRIES_A_REPORT: i32 = 1 << 16;
/// The record of an entry is expected this many entries before it is read.
const ENTRIES_AHEAD: i32 = 16;
const COUNT_AT: u64 = 36;
const SLOTS_USED_AT: u64 = 32;

named_tuples! {
    /// The result of a check of one index file. `end_ms`: the store time of its last record.
    IndexChecked {
        findings: CheckFindings,
        entries: u64,
        end_ms: i64,
    }
}

struct Header {
    begin_ms: i64,
    end_ms: i64,
    begin_pos: i64,
    end_pos: i64,
    slots_used: i32,
    next_entry: i32,
}

struct Entry {
    key_hash: i32,
    pos: i64,
    seconds: i32,
    previous: i32,
}

struct IndexCheck<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    slots: u32,
    header: Header,
    log: Files,
    entry_header: usize,
    /// The log has [begin, end).
    begin: i64,
    end: i64,
    /// The time from which the first entry counts its seconds, if it is known.
    first_from_ms: Option<i64>,
    repairable: bool,
    findings: Findings,
    newest: Vec<i32>,
    used: i32,
    /// Neighbouring entries mostly have the same record.
    record_pos: i64,
    record: Option<Stored>,
    why: String,
    begin_ms: i64,
    end_ms: i64,
    entries: u64,
}

/// What the entries of a record need.
struct Stored {
    store_ms: i64,
    hashes: Vec<i32>,
}

impl Stored {
    fn of(record: &Record<'_>) -> Stored {
        let known = Known::find(record.properties());
        let hash = |key: &[u8]| key_hash(string_hash(&[record.topic(), b"#", key].concat()));
        Stored {
            store_ms: record.store_timestamp(),
            hashes: match record.is_indexed() {
                true => known.each_indexed().map(hash).collect(),
                false => vec![],
            },
        }
    }
}

impl IndexCheck<'_> {
    fn run(&mut self, entries: i32, progress: Option<&Py<PyAny>>) -> PyResult<()> {
        let next = self.header.next_entry;
        if !(0..=entries).contains(&next) {
            self.add(COUNT_AT, || format!("the next entry is {next} of {entries}"));
            return Ok(());
        }
        if next > 1 {
            self.ends()?;
        }
        for number in 1..next {
            if number % ENTRIES_A_REPORT == 0 {
                Python::attach(|py| {
                    py.check_signals()?;
                    progress.map_or(Ok(()), |progress| progress.call1(py, (number, next)).map(drop))
                })?;
            }
            self.entries += 1;
            self.expect(number, next);
            let entry = self.entry(number);
            let before = self.newest_before(number, &entry); // also for a wrong entry: the next ones lead back to it
            let mut reason = self.flaw(number, &entry)?;
            if reason.is_empty() && entry.previous != before {
                reason = format!(
                    "goes back to entry {}, the chain's entry before it is {before}",
                    entry.previous
                );
            }
            if !reason.is_empty() {
                self.add(entry_at(self.slots, number as usize) as u64, || {
                    format!("entry {number} {reason}")
                });
            }
        }
        self.compare_slots();
        Ok(())
    }

    fn add(&mut self, at: u64, reason: impl FnOnce() -> String) {
        self.findings
            .add(self.path, at, self.repairable, || reason().into_bytes());
    }

    /// What entries behind this one need: the begin of a record first, which tells where its end is.
    #[inline]
    fn expect(&self, number: i32, next: i32) {
        if number + 2 * ENTRIES_AHEAD < next {
            self.log.expect(self.entry(number + 2 * ENTRIES_AHEAD).pos, 1);
        }
        if number + ENTRIES_AHEAD < next {
            let Entry { key_hash, pos, .. } = self.entry(number + ENTRIES_AHEAD);
            prefetch(&self.newest, self.slot_of(key_hash));
            if let Some(size) = self.log.stated_size(pos) {
                self.log.expect_record(pos, size);
            }
        }
    }

    #[inline]
    fn slot_of(&self, key_hash: i32) -> usize {
        u32::try_from(key_hash).map_or(0, |hash| hash % self.slots) as usize
    }

    fn entry(&self, number: i32) -> Entry {
        let at = entry_at(self.slots, number as usize);
        let bytes = &self.bytes[at..at + ENTRY];
        Entry {
            key_hash: int(bytes, 0),
            pos: long(bytes, 4),
            seconds: int(bytes, 12),
            previous: int(bytes, 16),
        }
    }

    /// Checks the positions and times of the first and the last entry in the header. A search selects files by these
    /// times.
    fn ends(&mut self) -> PyResult<()> {
        let Header {
            begin_ms,
            end_ms,
            begin_pos,
            end_pos,
            next_entry,
            ..
        } = self.header;
        for (is_last, number, time_ms, pos) in
            [(false, 1, begin_ms, begin_pos), (true, next_entry - 1, end_ms, end_pos)]
        {
            let (time_at, pos_at) = if is_last { (8, 24) } else { (0, 16) };
            let named = self.entry(number).pos;
            if named != pos {
                self.add(pos_at, || {
                    format!("the header says byte {pos} of the log, entry {number} names {named}")
                });
            } else if self.begin <= pos && pos < self.end {
                let seen = self.seen(pos)?;
                let stored = seen.record().map(|record| record.store_timestamp());
                if let Some(stored_ms) = stored.filter(|&stored_ms| stored_ms != time_ms) {
                    // A wrong time in the header is one fault, and the entries are right.
                    *(if is_last { &mut self.end_ms } else { &mut self.begin_ms }) = stored_ms;
                    self.add(time_at, || {
                        format!("the header says {time_ms}, the record of entry {number} was stored {stored_ms}")
                    });
                }
            }
        }
        Ok(())
    }

    fn seen(&mut self, pos: i64) -> PyResult<Seen> {
        step_at(&mut self.log, pos - self.entry_header as i64, self.entry_header, false)
    }

    /// What is wrong with an entry, apart from its chain; empty: nothing.
    fn flaw(&mut self, number: i32, entry: &Entry) -> PyResult<String> {
        let pos = entry.pos;
        if entry.key_hash < 0 {
            return Ok(format!("has the hash {}", entry.key_hash));
        }
        if pos < self.begin {
            return Ok(String::new()); // expired: the record is deleted
        }
        if pos >= self.end {
            return Ok(format!("names a record at {pos}, the log ends at {}", self.end));
        }
        if pos != self.record_pos {
            self.record_pos = pos;
            let seen = self.seen(pos)?;
            self.record = seen.record().map(|record| Stored::of(&record));
            self.why = match seen.step.kind {
                Kind::Filler | Kind::Empty => "a filler".to_owned(),
                _ => seen.step.why.to_string(),
            };
        }
        let Some(record) = &self.record else {
            return Ok(format!(
                "names position {pos}, where no sound record begins: {}",
                self.why
            ));
        };
        if !record.hashes.contains(&entry.key_hash) {
            let hash = entry.key_hash;
            return Ok(format!(
                "has the hash {hash}, but no key of the record at {pos} has this hash"
            ));
        }
        // The first entry is added before the header has its time, so it counts from the end of the previous file.
        let begin_ms = if number == 1 {
            self.first_from_ms
        } else {
            Some(self.begin_ms)
        };
        let Some(begin_ms) = begin_ms else {
            return Ok(String::new());
        };
        let seconds = match begin_ms > 0 {
            true => (i128::from(record.store_ms) - i128::from(begin_ms)).div_euclid(1000),
            false => 0,
        };
        if i128::from(entry.seconds) != seconds.clamp(0, i128::from(i32::MAX)) {
            let has = entry.seconds;
            return Ok(format!(
                "says {has} s after the file's begin, the record at {pos} {seconds} s"
            ));
        }
        Ok(String::new())
    }

    /// The newest entry of its slot before this one, which is the newest from now on.
    fn newest_before(&mut self, number: i32, entry: &Entry) -> i32 {
        let slot = self.slot_of(entry.key_hash);
        let before = std::mem::replace(&mut self.newest[slot], number);
        self.used += i32::from(before == 0);
        before
    }

    fn compare_slots(&mut self) {
        let newest = std::mem::take(&mut self.newest);
        let bytes = self.bytes;
        for (slot, (there, wanted)) in bytes[HEADER..].chunks_exact(SLOT).zip(&newest).enumerate() {
            let there = int(there, 0);
            if there != *wanted {
                self.add((HEADER + SLOT * slot) as u64, || {
                    format!("slot {slot} names entry {there} instead of {wanted}")
                });
            }
        }
        let (counted, used) = (self.header.slots_used, self.used);
        if used != counted {
            self.add(SLOTS_USED_AT, || {
                format!("the header counts {counted} slots in use, there are {used}")
            });
        }
    }
}

/// check_index_file(path, log, ...) -> IndexChecked
#[pyfunction]
#[pyo3(signature = (path, log, *, slots, entries, entry_header_bytes, begin, end, first_from_ms, repairable, progress))]
#[allow(clippy::too_many_arguments)] // by name
fn check_index_file(
    py: Python<'_>,
    path: PathBuf,
    log: FilesOf,
    slots: u32,
    entries: i32,
    entry_header_bytes: usize,
    begin: i64,
    end: i64,
    first_from_ms: Option<i64>,
    repairable: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<IndexChecked> {
    py.detach(|| {
        let file = File::open(&path).at(&path)?;
        let map = ReadMap::new(&file, &path).at(&path)?;
        if map.len() < entry_at(slots, entries.max(0) as usize) {
            return Err(PyOSError::new_err(format!(
                "{}: the file became shorter",
                path.display()
            )));
        }
        let header = Header {
            begin_ms: long(&map, 0),
            end_ms: long(&map, 8),
            begin_pos: long(&map, 16),
            end_pos: long(&map, 24),
            slots_used: int(&map, 32),
            next_entry: int(&map, 36),
        };
        let mut check = IndexCheck {
            path: &path,
            bytes: &map,
            slots,
            log: Files::of(log),
            entry_header: entry_header_bytes,
            begin,
            end,
            first_from_ms,
            repairable,
            findings: Findings::default(),
            newest: vec![0; slots as usize],
            used: 0,
            record_pos: -1,
            record: None,
            why: String::new(),
            begin_ms: header.begin_ms,
            end_ms: header.end_ms,
            entries: 0,
            header,
        };
        check.run(entries, progress.as_ref())?;
        Ok(IndexChecked {
            findings: check.findings.taken(),
            entries: check.entries,
            end_ms: check.end_ms,
        })
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_function(wrap_pyfunction!(check_index_file, module)?)
}
