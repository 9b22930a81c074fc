//! Bit maps of filters: dispatch stores in a record's extension which SQL92 filters the record passes, as bits, and pulls
//! skip records by these bits before they read the log.
//!
//! Python evaluates the filters: `calculate` gets the records of one `run` in one call, before the tables are locked.
//! One call for each record would wait for the GIL each time.
//!
//! The bits of a filter are valid for the records from `calculated` on, as it was when the filter became known. Records
//! before that position may have been evaluated without the filter, or with an earlier one of the same group, which has
//! the same bits. Bits that another process wrote are not valid at all: it may have known other filters. A record is
//! never skipped because of bits that are not valid.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::Core;
use crate::fault::Outcome;
use crate::scan::{walk, Bounds, Visit};

/// The topics that have filters, `calculate([(topic, properties)]) -> [bit map]`, and `require([(topic, properties,
/// position)]) -> [bits]`, the bits that valid filters require in the map of a record.
struct Filters {
    topics: HashSet<Box<[u8]>>,
    calculate: Py<PyAny>,
    require: Py<PyAny>,
}

#[derive(Default)]
pub struct BitMaps {
    filters: Mutex<Option<Arc<Filters>>>,
    /// End of the records whose evaluation has begun.
    calculated: AtomicU64,
}

/// The bit maps of one run's records, in the order of the log.
#[derive(Default)]
pub struct Calculated(VecDeque<(u64, PyBackedBytes)>);

impl Calculated {
    /// The bit map of the record at `pos`. Records are asked for in the order of the log.
    #[inline]
    pub fn of(&mut self, pos: u64) -> Option<PyBackedBytes> {
        while self.0.front().is_some_and(|&(at, _)| at < pos) {
            self.0.pop_front();
        }
        match self.0.front() {
            Some(&(at, _)) if at == pos => self.0.pop_front().map(|(_, bits)| bits),
            _ => None,
        }
    }
}

/// The records to evaluate; their bytes lie one after the other.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Position, length of the topic, length of the properties.
    rows: Vec<(u64, usize, usize)>,
}

impl BitMaps {
    /// From now on records of these topics are evaluated. Returns the position from which on the bits of the filters that
    /// `calculate` knows now are valid, if the log is dispatched up to `reached`.
    pub fn set(&self, topics: HashSet<Box<[u8]>>, calculate: Py<PyAny>, require: Py<PyAny>, reached: u64) -> u64 {
        let filters = Filters {
            topics,
            calculate,
            require,
        };
        let filters = (!filters.topics.is_empty()).then(|| Arc::new(filters));
        let old = std::mem::replace(&mut *self.filters.lock(), filters);
        drop(old); // with the GIL, and without the lock
        self.calculated.load(Ordering::Acquire).max(reached)
    }

    pub fn has_filters(&self, topic: &[u8]) -> bool {
        let filters = self.filters.lock();
        filters.as_ref().is_some_and(|filters| filters.topics.contains(topic))
    }

    /// For each record, whether its map has the bits that it must have: a lost bit hides it from a filter.
    pub fn hold_bits(&self, records: &[(&[u8], &[u8], u64)], maps: &[&[u8]]) -> Vec<bool> {
        let filters = self.filters.lock().clone();
        let Some(filters) = filters.filter(|_| !records.is_empty()) else {
            return vec![true; records.len()];
        };
        let required = Python::attach(|py| {
            let record = |&(topic, properties, pos): &(&[u8], &[u8], u64)| {
                (PyBytes::new(py, topic), PyBytes::new(py, properties), pos)
            };
            let records: Vec<_> = records.iter().map(record).collect();
            let required = filters.require.call1(py, (records,));
            let required: PyResult<Vec<PyBackedBytes>> = required.and_then(|required| required.extract(py));
            required.unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                vec![]
            })
        });
        let holds = |(i, map): (usize, &&[u8])| {
            let required: &[u8] = required.get(i).map_or(&[], |bits| bits);
            // A map of another length is not used.
            required.len() != map.len() || required.iter().zip(*map).all(|(wanted, bits)| wanted & !bits == 0)
        };
        maps.iter().enumerate().map(holds).collect()
    }
}

impl Core {
    /// The bit maps of the records that a run in `bounds` dispatches for the first time. An error of `calculate` costs the
    /// bit maps of this run, whose records are then read by each pull.
    pub(super) fn calculate(&self, bounds: &Bounds, max_bytes: u64) -> Outcome<Calculated> {
        let Some(filters) = self.bit_maps.filters.lock().clone() else {
            return Ok(Calculated::default()); // a record without a bit map is read by each pull
        };
        let mut batch = Batch::default();
        let reached = self.reached.load(Ordering::Acquire);
        let end = walk(&self.log, bounds, |visit| {
            let next = match visit {
                Visit::Record { record, pos, next } => {
                    if record.is_queued() && pos >= reached && filters.topics.contains(record.topic()) {
                        let (topic, properties) = (record.topic(), record.properties());
                        batch.bytes.extend_from_slice(topic);
                        batch.bytes.extend_from_slice(properties);
                        batch.rows.push((pos, topic.len(), properties.len()));
                    }
                    next
                }
                Visit::Damaged { pos, size, .. } => pos + size,
            };
            Ok(if next - bounds.from >= max_bytes {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        // Before the evaluation: a filter that becomes known during it counts from here on.
        self.bit_maps.calculated.fetch_max(end.pos, Ordering::AcqRel);
        if batch.rows.is_empty() {
            return Ok(Calculated::default());
        }
        Ok(Python::attach(|py| {
            filters.evaluate(py, &batch).unwrap_or_else(|error| {
                error.write_unraisable(py, None);
                Calculated::default()
            })
        }))
    }
}

impl Filters {
    fn evaluate(&self, py: Python<'_>, batch: &Batch) -> PyResult<Calculated> {
        let mut rest = batch.bytes.as_slice();
        let mut records = Vec::with_capacity(batch.rows.len());
        for &(_, topic, properties) in &batch.rows {
            let (topic, behind) = rest.split_at(topic);
            let (properties, behind) = behind.split_at(properties);
            records.push((PyBytes::new(py, topic), PyBytes::new(py, properties)));
            rest = behind;
        }
        let maps: Vec<PyBackedBytes> = self.calculate.call1(py, (records,))?.extract(py)?;
        let places = batch.rows.iter().map(|&(pos, ..)| pos);
        Ok(Calculated(places.zip(maps).collect()))
    }
}

/// A filter's bits, and the position from which on they are valid.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct BitTest {
    positions: Vec<usize>,
    map_bytes: usize,
    valid_from: u64,
}

impl BitTest {
    /// Whether the record at `pos` may pass the filter. False is certain.
    #[inline]
    pub fn may_pass(&self, pos: i64, bit_map: &[u8]) -> bool {
        let is_valid = pos >= 0 && pos as u64 >= self.valid_from && bit_map.len() == self.map_bytes;
        !is_valid
            || self
                .positions
                .iter()
                .all(|&bit| bit_map[bit >> 3] >> (bit & 7) & 1 == 1)
    }
}

#[pymethods]
impl BitTest {
    #[new]
    fn new(positions: Vec<usize>, map_bytes: usize, valid_from: u64) -> PyResult<BitTest> {
        if positions.iter().any(|&bit| bit >> 3 >= map_bytes) {
            let text = format!("a bit is outside of a map of {map_bytes} bytes");
            return Err(pyo3::exceptions::PyValueError::new_err(text));
        }
        Ok(BitTest {
            positions,
            map_bytes,
            valid_from,
        })
    }
}
