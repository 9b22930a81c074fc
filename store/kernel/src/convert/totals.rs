//! What a log contains, by queue, independent of where its records lie: to compare a log with its converted copy.
//!
//! The digest of a queue covers, in the log's order, all bytes of its records except for their own position. A position
//! of another record counts as that record's queue offset.

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use super::{ends_transaction, half_at, Part, Step};
use crate::fault::Outcome;
use crate::named::named_tuples;
use crate::record::{Bad, Record};
use crate::scan::{check_geometry, walk, Bounds, Visit};

named_tuples! {
    /// The records of one queue: their number and bytes, the least and greatest queue offset of those that the queue
    /// has a unit for (-1: none), and a digest of their content.
    QueueTotal { topic: Vec<u8>, queue: i32, records: u64, bytes: u64, first: i64, last: i64, digest: u32 }
}

#[derive(Clone, Copy)]
struct Total {
    records: u64,
    bytes: u64,
    first: i64,
    last: i64,
    digest: u32,
}

const NOTHING: Total = Total {
    records: 0,
    bytes: 0,
    first: -1,
    last: -1,
    digest: 0,
};

#[derive(Default)]
struct Totals {
    topics: FxHashMap<Box<[u8]>, FxHashMap<i32, Total>>,
    references: u64,
    parts: Vec<Part>,
    /// Ranges that are left out: no record is in them.
    gaps: Vec<(u64, u64)>,
}

impl Totals {
    fn add(&mut self, record: &Record<'_>, parts: &[Part]) -> Outcome<()> {
        let digest = self.digest(record, parts)?;
        if !self.topics.contains_key(record.topic()) {
            self.topics.insert(record.topic().into(), FxHashMap::default());
        }
        let queues = self.topics.get_mut(record.topic()).expect("it is there now");
        let total = queues.entry(record.queue_id()).or_insert(NOTHING);
        total.records += 1;
        total.bytes += u64::from(record.size());
        if record.is_queued() {
            let offset = record.queue_offset();
            total.first = if total.first < 0 {
                offset
            } else {
                total.first.min(offset)
            };
            total.last = total.last.max(offset);
        }
        let mut both = [0; 8];
        both[..4].copy_from_slice(&total.digest.to_be_bytes());
        both[4..].copy_from_slice(&digest.to_be_bytes());
        total.digest = crc32fast::hash(&both);
        Ok(())
    }

    fn digest(&mut self, record: &Record<'_>, parts: &[Part]) -> Outcome<u32> {
        let (bytes, prepared_at) = (record.bytes(), record.prepared_at());
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&bytes[..28]);
        hasher.update(&bytes[36..prepared_at]);
        let prepared = record.prepared_transaction_offset();
        let named = u64::try_from(prepared).ok().filter(|_| ends_transaction(record));
        let named = named.filter(|pos| !self.gaps.iter().any(|&(begin, end)| (begin..end).contains(pos)));
        match named.map_or(Ok(None), |pos| half_at(parts, pos))? {
            Some(offset) => {
                self.references += 1;
                hasher.update(b"half");
                hasher.update(&offset.to_be_bytes());
            }
            None => hasher.update(&prepared.to_be_bytes()),
        }
        hasher.update(&bytes[prepared_at + 8..]);
        Ok(hasher.finalize())
    }
}

/// LogTotals(gaps): what a log contains outside of these ranges.
#[pyclass(module = "tallystick.store._kernel")]
pub struct LogTotals(Totals);

#[pymethods]
impl LogTotals {
    #[new]
    fn py_new(gaps: Vec<(u64, u64)>) -> LogTotals {
        LogTotals(Totals {
            gaps,
            ..Totals::default()
        })
    }

    /// read(log_dir, segment_bytes, entry_header_bytes, first, upto, most_bytes) -> ConvertStep
    #[allow(clippy::too_many_arguments)]
    fn read(
        &mut self,
        py: Python<'_>,
        log_dir: PathBuf,
        segment_bytes: u64,
        entry_header_bytes: usize,
        first: u64,
        upto: u64,
        most_bytes: u64,
    ) -> PyResult<Step> {
        check_geometry(segment_bytes, entry_header_bytes)?;
        let bounds = Bounds {
            from: first,
            upto,
            entry_header: entry_header_bytes,
            check_crc: true,
            pass_damaged: false,
        };
        let mut parts = std::mem::take(&mut self.0.parts);
        if parts.last().is_none_or(|part| part.entry_header != entry_header_bytes) {
            parts.push(Part::new(log_dir, segment_bytes, entry_header_bytes, first));
        }
        let (part, totals) = (parts.last().expect("there is one"), &mut self.0);
        let end = py.detach(|| {
            walk(&part.log, &bounds, |visit| {
                if let Visit::Record { record, pos, next } = visit {
                    if !part.is_own_entry(pos)? {
                        totals.add(record, &parts)?;
                    }
                    if next - first >= most_bytes {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })
        });
        self.0.parts = parts;
        let end = end?;
        Ok(Step {
            pos: end.pos,
            stopped: end.stopped.map(Bad::text),
        })
    }

    /// Records that name the position of a half message.
    #[getter]
    fn references(&self) -> u64 {
        self.0.references
    }

    /// The totals by topic and queue, sorted.
    fn rows(&self) -> Vec<QueueTotal> {
        let mut rows: Vec<QueueTotal> = vec![];
        for (topic, queues) in &self.0.topics {
            rows.extend(queues.iter().map(|(&queue, total)| QueueTotal {
                topic: topic.to_vec(),
                queue,
                records: total.records,
                bytes: total.bytes,
                first: total.first,
                last: total.last,
                digest: total.digest,
            }));
        }
        rows.sort_by(|a, b| (&a.topic, a.queue).cmp(&(&b.topic, b.queue)));
        rows
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<LogTotals>()
}
