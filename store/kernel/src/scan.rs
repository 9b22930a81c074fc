//! Walks a log from record to record, over fillers and into the next segments, and stops where the log ends.
//!
//! The walk never skips bytes silently: it ends at its bound, where the files end, or at a place that it reports. Zeros
//! at a segment's start, or a missing segment, are an end too: the log stops after the filler before it.

pub mod columns;
pub mod content;
pub mod filter;
pub mod memory;
pub mod messages;
pub mod properties;
pub mod range;
pub mod sums;
#[cfg(test)]
mod tests;
pub mod texts;
pub mod units;

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;

use crate::entry::body_holds;
use crate::fault::Outcome;
use crate::maps::{LogMaps, LogSegment};
use crate::record::{int, is_record_magic, item, Bad, Item, Record, BLANK_MAGIC, SMALLEST};

pub enum Visit<'r, 'a> {
    Record {
        record: &'r Record<'a>,
        pos: u64,
        next: u64,
    },
    /// A record that is damaged inside but has a right size: a sound item follows it. Only with `pass_damaged`.
    Damaged { pos: u64, size: u64, bad: Bad },
}

pub struct Bounds {
    pub from: u64,
    pub upto: u64,
    pub entry_header: usize,
    pub check_crc: bool,
    pub pass_damaged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub pos: u64,
    pub stopped: Option<Bad>,
}

/// Calls `each` for the records of `bounds`, in order, until it breaks. A record counts as passed when `each` returns.
pub fn walk(
    log: &LogMaps,
    bounds: &Bounds,
    mut each: impl FnMut(Visit<'_, '_>) -> Outcome<ControlFlow<()>>,
) -> Outcome<End> {
    let end = |pos, stopped| Ok(End { pos, stopped });
    let mut pos = bounds.from;
    while pos < bounds.upto {
        let Some(segment) = log.segment(pos)? else {
            return end(pos, None);
        };
        let bytes: &[u8] = &segment.map;
        let segment_end = segment.start + bytes.len() as u64;
        while pos < segment_end && pos < bounds.upto {
            let at = (pos - segment.start) as usize;
            match read_item(&segment, at, bounds) {
                Item::Record {
                    record,
                    at: record_at,
                    step,
                } => {
                    let next = pos + step as u64;
                    if next > bounds.upto {
                        return end(pos, Some(Bad::Torn));
                    }
                    // Also without CRC checks: a range that recovery skipped must not return as a message when a queue
                    // is rebuilt. An entry's CRC covers all of it.
                    if bounds.entry_header == 0 && record.is_torn(bytes, at) {
                        return end(pos, Some(Bad::Torn));
                    }
                    let visit = Visit::Record {
                        record: &record,
                        pos: segment.start + record_at as u64,
                        next,
                    };
                    let flow = each(visit)?;
                    pos = next;
                    if flow.is_break() {
                        return end(pos, None);
                    }
                }
                Item::Empty { step } => {
                    if pos + step as u64 > bounds.upto {
                        return end(pos, Some(Bad::Torn));
                    }
                    pos += step as u64;
                }
                Item::Filler => {
                    if segment_end > bounds.upto {
                        return end(pos, None);
                    }
                    pos = segment_end;
                }
                Item::Bad {
                    bad: Bad::Unwritten, ..
                } if at == 0 => return end(pos, None),
                Item::Bad { bad, step: Some(step) } if bounds.pass_damaged && follows(bytes, at + step, bounds) => {
                    let next = pos + step as u64;
                    if next > bounds.upto {
                        return end(pos, Some(bad));
                    }
                    let flow = each(Visit::Damaged {
                        pos,
                        size: step as u64,
                        bad,
                    })?;
                    pos = next;
                    if flow.is_break() {
                        return end(pos, None);
                    }
                }
                Item::Bad { bad, .. } => return end(pos, Some(bad)),
            }
        }
    }
    end(pos, None)
}

/// The item at `at`, with its body's CRC checked if the bounds require it. Bytes that the disk did not return are not
/// an item.
#[inline]
fn read_item<'a>(segment: &'a LogSegment, at: usize, bounds: &Bounds) -> Item<'a> {
    let mut found = item(&segment.map, segment.start, at, bounds.entry_header);
    if let Item::Record {
        record,
        step,
        at: record_at,
    } = &found
    {
        record.touch_tail(); // so that it is known now whether it can be read
        if bounds.check_crc && !crc_holds(&segment.map[at..], record, *record_at - at) {
            let (bad, step) = (Bad::Crc, Some(*step));
            found = Item::Bad { bad, step };
        }
    }
    if segment.map.is_spoiled() {
        of_the_file(segment, at, found)
    } else {
        found
    }
}

/// The CRC of a record's body, or the entry's CRC of the whole record. `item`: the bytes from the first byte of the
/// entry on, or of the record without an entry; `header`: how many of them are the entry's header.
#[inline]
fn crc_holds(item: &[u8], record: &Record<'_>, header: usize) -> bool {
    if header == 0 {
        record.body_crc_holds()
    } else {
        body_holds(item, record)
    }
}

#[cold]
fn of_the_file<'a>(segment: &LogSegment, at: usize, found: Item<'a>) -> Item<'a> {
    let size = match &found {
        Item::Record { step, .. } | Item::Empty { step } => *step,
        Item::Bad { step, .. } => step.unwrap_or(SMALLEST),
        Item::Filler => 8,
    };
    if !segment.map.spoils(at, size) {
        return found;
    }
    let step = match found {
        Item::Record { step, .. } | Item::Empty { step } | Item::Bad { step: Some(step), .. } => Some(step),
        _ => None,
    };
    Item::Bad {
        bad: Bad::Unreadable,
        step: step.filter(|_| !segment.map.spoils(at, SMALLEST)), // of a size that was read
    }
}

/// A possible successor of a record stands at `at`: so the size that led here is right.
fn follows(bytes: &[u8], at: usize, bounds: &Bounds) -> bool {
    match bytes.get(at..at + 8) {
        None => at == bytes.len(),
        Some(head) => {
            let magic = int(head, 4);
            let ledger = bounds.entry_header != 0 && matches!(int(head, 0), -1..=1);
            head == [0; 8] || is_record_magic(magic) || magic == BLANK_MAGIC || ledger
        }
    }
}

/// The result of `scan`: sound records from its start up to `end`.
#[pyclass(frozen, get_all, module = "tallystick.store._kernel")]
pub struct ScanResult {
    end: u64,
    records: u64,
    stopped: Option<&'static str>,
    last_store_timestamp_ms: i64,
}

/// scan(log_dir, segment_bytes, start, check_crc, entry_header_bytes=0, upto=-1) -> ScanResult
#[pyfunction]
#[pyo3(signature = (log_dir, segment_bytes, start, check_crc, entry_header_bytes = 0, upto = -1))]
fn scan(
    py: Python<'_>,
    log_dir: PathBuf,
    segment_bytes: u64,
    start: u64,
    check_crc: bool,
    entry_header_bytes: usize,
    upto: i64,
) -> PyResult<ScanResult> {
    check_geometry(segment_bytes, entry_header_bytes)?;
    let bounds = Bounds {
        from: start,
        upto: u64::try_from(upto).unwrap_or(i64::MAX as u64),
        entry_header: entry_header_bytes,
        check_crc,
        pass_damaged: false,
    };
    let (mut records, mut last_store_timestamp_ms) = (0, 0);
    let end = py.detach(|| {
        let log = LogMaps::new(log_dir, segment_bytes);
        walk(&log, &bounds, |visit| {
            if let Visit::Record { record, .. } = visit {
                records += 1;
                last_store_timestamp_ms = record.store_timestamp();
            }
            Ok(ControlFlow::Continue(()))
        })
    })?;
    Ok(ScanResult {
        end: end.pos,
        records,
        stopped: end.stopped.map(Bad::text),
        last_store_timestamp_ms,
    })
}

/// The supported layouts of the log; any other value is an error of the caller.
pub fn check_geometry(segment_bytes: u64, entry_header_bytes: usize) -> PyResult<()> {
    use pyo3::exceptions::PyValueError;
    if segment_bytes == 0 || segment_bytes > i32::MAX as u64 + 1 {
        return Err(PyValueError::new_err(format!(
            "a log segment has 1 to 2^31 bytes, not {segment_bytes}"
        )));
    }
    if entry_header_bytes != 0 && entry_header_bytes != 48 {
        return Err(PyValueError::new_err(format!(
            "an entry header has 0 or 48 bytes, not {entry_header_bytes}"
        )));
    }
    Ok(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ScanResult>()?;
    messages::register(module)?;
    module.add_function(wrap_pyfunction!(scan, module)?)
}
