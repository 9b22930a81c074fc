//! The records of each queue in a log that must have a unit, as numbers.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustc_hash::FxHashMap;

use crate::packed::{put, put_text, Packed};

/// The records of one queue. If the topic was created again, only the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InLog {
    pub records: i64,
    /// Queue offsets; -1: no record.
    pub first: i64,
    pub last: i64,
    /// The first queue offset that the next start dispatches again; -1: none.
    pub repairable: i64,
}

impl Default for InLog {
    fn default() -> InLog {
        InLog {
            records: 0,
            first: -1,
            last: -1,
            repairable: -1,
        }
    }
}

impl InLog {
    /// Counts a record. Returns the queue offset before it, if this one does not follow it.
    pub fn add(&mut self, offset: i64, repairable: bool) -> Option<i64> {
        let before = self.last;
        if self.records == 0 || offset <= before {
            (self.records, self.first, self.repairable) = (0, offset, -1);
        }
        self.records += 1;
        self.last = offset;
        if repairable && self.repairable < 0 {
            self.repairable = offset;
        }
        (before >= 0 && before.checked_add(1) != Some(offset)).then_some(before)
    }

    /// These records, followed by those of a later part of the log.
    pub fn joined(self, later: InLog) -> InLog {
        if self.records == 0 || later.first <= self.last {
            return later;
        }
        InLog {
            records: self.records + later.records,
            first: self.first,
            last: later.last,
            repairable: if self.repairable >= 0 {
                self.repairable
            } else {
                later.repairable
            },
        }
    }

    /// Each queue offset from the first to the last has one record.
    pub fn is_whole(&self) -> bool {
        self.last.wrapping_sub(self.first).wrapping_add(1) == self.records
    }
}

/// One value for each queue, in the order in which the log has their first records.
#[derive(Clone)]
pub struct ByQueue<V> {
    /// By topic, followed by the queue id.
    at: FxHashMap<Box<[u8]>, u32>,
    values: Vec<(Box<[u8]>, i32, V)>,
    key: Vec<u8>,
}

impl<V> Default for ByQueue<V> {
    fn default() -> ByQueue<V> {
        ByQueue {
            at: FxHashMap::default(),
            values: vec![],
            key: vec![],
        }
    }
}

impl<V> ByQueue<V> {
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    #[inline]
    pub fn of_mut(&mut self, topic: &[u8], queue: i32) -> &mut V
    where
        V: Default,
    {
        let mut key = std::mem::take(&mut self.key);
        set_key(&mut key, topic, queue);
        let at = match self.at.get(key.as_slice()) {
            Some(&at) => at,
            None => {
                let at = self.values.len() as u32;
                self.at.insert(key.as_slice().into(), at);
                self.values.push((topic.into(), queue, V::default()));
                at
            }
        };
        self.key = key;
        &mut self.values[at as usize].2
    }

    pub fn get(&self, topic: &[u8], queue: i32) -> Option<&V> {
        let mut key = vec![];
        set_key(&mut key, topic, queue);
        self.at.get(key.as_slice()).map(|&at| &self.values[at as usize].2)
    }

    /// Topic, queue id, value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], i32, &V)> {
        self.values
            .iter()
            .map(|(topic, queue, value)| (&**topic, *queue, value))
    }
}

/// A topic as Python has it: bytes that are not UTF-8 become surrogates.
pub fn name_of(topic: &[u8]) -> OsString {
    OsStr::from_bytes(topic).to_owned()
}

fn set_key(key: &mut Vec<u8>, topic: &[u8], queue: i32) {
    key.clear();
    key.extend_from_slice(topic);
    key.extend_from_slice(&queue.to_le_bytes());
}

/// QueuesOfLog(): the records of each queue in a log, or in a part of it, that must have a unit.
#[pyclass(module = "tallystick.store._kernel")]
#[derive(Clone, Default)]
pub struct QueuesOfLog(pub ByQueue<InLog>);

#[pymethods]
impl QueuesOfLog {
    #[new]
    fn new() -> QueuesOfLog {
        QueuesOfLog::default()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Adds the records of a later part of the log.
    fn join(&mut self, later: &QueuesOfLog) {
        for (topic, queue, found) in later.0.iter() {
            let here = self.0.of_mut(topic, queue);
            *here = here.joined(*found);
        }
    }

    /// names() -> [(topic, queue)]
    fn names(&self) -> Vec<(OsString, i32)> {
        self.0.iter().map(|(topic, queue, _)| (name_of(topic), queue)).collect()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let mut bytes = vec![];
        for (topic, queue, found) in slf.borrow().0.iter() {
            put_text(&mut bytes, topic);
            for number in [
                i64::from(queue),
                found.records,
                found.first,
                found.last,
                found.repairable,
            ] {
                put(&mut bytes, number);
            }
        }
        let unpack = slf.get_type().getattr("_unpacked")?;
        Ok((unpack, (PyBytes::new(slf.py(), &bytes),)))
    }

    #[staticmethod]
    fn _unpacked(bytes: &[u8]) -> PyResult<QueuesOfLog> {
        let mut found = QueuesOfLog::default();
        let mut packed = Packed(bytes);
        while !packed.0.is_empty() {
            unpack_one(&mut packed, &mut found.0).ok_or_else(|| PyValueError::new_err("not a packed QueuesOfLog"))?;
        }
        Ok(found)
    }
}

fn unpack_one(packed: &mut Packed<'_>, queues: &mut ByQueue<InLog>) -> Option<()> {
    let topic = packed.bytes()?;
    let queue = i32::try_from(packed.number()?).ok()?;
    *queues.of_mut(topic, queue) = InLog {
        records: packed.number()?,
        first: packed.number()?,
        last: packed.number()?,
        repairable: packed.number()?,
    };
    Some(())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<QueuesOfLog>()
}
