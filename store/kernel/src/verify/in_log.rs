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
///
/// With ten thousands of queues a look-up waits for memory. So a topic has a number, which all of its queues share, and
/// the tables have numbers alone.
#[derive(Clone)]
pub struct ByQueue<V> {
    topics: FxHashMap<Box<[u8]>, u32>,
    names: Vec<Box<[u8]>>,
    /// By the number of the topic and the queue id, the number of the queue.
    numbers: FxHashMap<(u32, i32), u32>,
    /// By the number of the queue: number of the topic, queue id, value.
    values: Vec<(u32, i32, V)>,
}

impl<V> Default for ByQueue<V> {
    fn default() -> ByQueue<V> {
        ByQueue {
            topics: FxHashMap::default(),
            names: vec![],
            numbers: FxHashMap::default(),
            values: vec![],
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

    /// The number of a queue, which `of_number` takes. A new queue gets the next one.
    #[inline]
    pub fn number(&mut self, topic: &[u8], queue: i32) -> u32
    where
        V: Default,
    {
        let topic = match self.topics.get(topic) {
            Some(&topic) => topic,
            None => self.new_topic(topic),
        };
        *self.numbers.entry((topic, queue)).or_insert_with(|| {
            self.values.push((topic, queue, V::default()));
            self.values.len() as u32 - 1
        })
    }

    #[cold]
    fn new_topic(&mut self, topic: &[u8]) -> u32 {
        let number = self.names.len() as u32;
        self.names.push(topic.into());
        self.topics.insert(topic.into(), number);
        number
    }

    #[inline]
    pub fn of_number(&mut self, number: u32) -> &mut V {
        &mut self.values[number as usize].2
    }

    #[inline]
    pub fn of_mut(&mut self, topic: &[u8], queue: i32) -> &mut V
    where
        V: Default,
    {
        let number = self.number(topic, queue);
        self.of_number(number)
    }

    pub fn get(&self, topic: &[u8], queue: i32) -> Option<&V> {
        let topic = self.topics.get(topic)?;
        let number = self.numbers.get(&(*topic, queue))?;
        Some(&self.values[*number as usize].2)
    }

    /// Topic, queue id, value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], i32, &V)> {
        self.values.iter().map(|each| self.named(each))
    }

    /// The same, in the order of topics and queue ids: the queues of a topic follow each other.
    pub fn sorted(&self) -> impl Iterator<Item = (&[u8], i32, &V)> {
        let mut topics: Vec<usize> = (0..self.names.len()).collect();
        topics.sort_unstable_by_key(|&topic| &self.names[topic]);
        let mut ranks = vec![0; topics.len()];
        for (rank, topic) in topics.into_iter().enumerate() {
            ranks[topic] = rank;
        }
        let mut values: Vec<_> = self.values.iter().collect();
        values.sort_unstable_by_key(|&&(topic, queue, _)| (ranks[topic as usize], queue));
        values.into_iter().map(|each| self.named(each))
    }

    fn named<'a>(&'a self, (topic, queue, value): &'a (u32, i32, V)) -> (&'a [u8], i32, &'a V) {
        (&self.names[*topic as usize], *queue, value)
    }

    /// The same queues with other values.
    pub fn map<W>(&self, value: impl Fn(&V) -> W) -> ByQueue<W> {
        let values = self.values.iter();
        ByQueue {
            topics: self.topics.clone(),
            names: self.names.clone(),
            numbers: self.numbers.clone(),
            values: values
                .map(|(topic, queue, each)| (*topic, *queue, value(each)))
                .collect(),
        }
    }
}

/// A topic as Python has it: bytes that are not UTF-8 become surrogates.
pub fn name_of(topic: &[u8]) -> OsString {
    OsStr::from_bytes(topic).to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_found_by_topic_and_id_and_can_be_sorted() {
        let mut queues = ByQueue::<i64>::default();
        let log: [(&[u8], i32); 6] = [(b"b", 1), (b"ab", 0), (b"b", 0), (b"b", 1), (b"a", 7), (b"b", -1)];
        for (topic, queue) in log {
            *queues.of_mut(topic, queue) += 1;
        }
        let first: Vec<_> = queues
            .iter()
            .map(|(topic, queue, &count)| (topic, queue, count))
            .collect();
        assert_eq!(
            first,
            [
                (&b"b"[..], 1, 2),
                (b"ab", 0, 1),
                (b"b", 0, 1),
                (b"a", 7, 1),
                (b"b", -1, 1)
            ]
        );
        let sorted: Vec<_> = queues.sorted().map(|(topic, queue, _)| (topic, queue)).collect();
        assert_eq!(sorted, [(&b"a"[..], 7), (b"ab", 0), (b"b", -1), (b"b", 0), (b"b", 1)]);
        assert_eq!(
            (queues.get(b"b", 1), queues.get(b"a", 1), queues.get(b"c", 1)),
            (Some(&2), None, None)
        );
        let doubled = queues.map(|count| count * 2);
        assert_eq!((doubled.len(), doubled.get(b"b", 1)), (5, Some(&4)));
    }
}
