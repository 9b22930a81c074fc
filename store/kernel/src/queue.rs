//! ConsumeQueues: for each topic and queue, an array of 20-byte units that name the queue's records in the log.
//!
//! ```text
//! at  size  field
//!  0     8  position of the record in the log
//!  8     4  its size
//! 12     8  tags code: hash of its tag, or its time of delivery, or an address in the extension
//! ```
//!
//! Unit i of a queue stands at byte 20 * i. Files have a fixed size, are named by their first byte, and are sparse
//! after the last unit. A queue that does not begin with its first message has units `(0, 0x7FFFFFFF, 0)` before its
//! first one in that file. Source: RocketMQ 4.8.0, ConsumeQueue.java, MappedFileQueue.java. Fixed: it is on disks.
//!
//! New units stay in memory until `write_out`, so that fifty thousand queues do not cost a system call per message; all
//! reads see them. `written <= end`, and `pending` holds exactly the bytes between. Files are opened on demand, at most
//! `max_open` at a time.
//!
//! Differences from the source: blank units never count as knowledge of a position, bytes after a cut are zeroed (a
//! later recovery would take them for units), and an empty file does not decide where a queue begins.

mod ahead;
mod append;
mod chain;
mod ends;
mod ext_tail;
mod files;
mod hold;
mod look;
pub mod names;
mod recover;
mod repair;
#[cfg(test)]
mod tests;
mod unit;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

pub use append::Put;
pub use chain::Claim;
pub use ends::{queue_id, QueueFiles};
pub use ext_tail::PendingExt;
pub use files::ToSync;
pub use hold::Stray;
pub use look::{seek, Look};
pub use names::FastMap;
pub use repair::Short;
pub use unit::{Unit, UNIT};

use pyo3::prelude::*;

use crate::door::Door;
use crate::fault::{At, Fault, Outcome};
use crate::hash;
use crate::maps::segment_name;
use crate::record::{is_schedule_topic, is_topic_name};
use files::Segment;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ahead::register(module)?;
    ends::register(module)?;
    look::register(module)
}

pub struct Topic {
    pub name: Box<[u8]>,
    /// The string hash of `name#`: index keys of this topic continue from it.
    pub key_seed: i32,
    pub is_schedule: bool,
    queues: FastMap<i32, u32>,
}

struct Queue {
    topic: u32,
    id: i32,
    segments: Vec<Segment>,
    /// Bytes; `end` is where the next unit goes.
    end: u64,
    written: u64,
    pending: Vec<u8>,
    /// Bytes; units below are not readable (their records were deleted, or they are blank).
    min_logic: u64,
    /// Bytes; units below have expired by the retention of their topic, although the log may still have their records.
    floor: u64,
    /// End of the last record that has a unit here; -1: no record has one.
    max_physic: i64,
    dirty: bool,
    watched: bool,
    grew: bool,
    alive: bool,
    ext: Option<Box<ext_tail::ExtTail>>,
    /// Why the queue has to be rebuilt.
    broken: Option<(String, bool)>,
    /// Records whose place is not known yet, during a recovery.
    held: Option<Box<hold::Held>>,
}

impl Queue {
    fn first_start(&self) -> Option<u64> {
        self.segments.first().map(|segment| segment.start)
    }

    fn has_no_unit(&self) -> bool {
        self.pending.is_empty() && self.first_start().is_none_or(|start| start >= self.end)
    }

    fn segment_index(&self, start: u64) -> Option<usize> {
        match self.segments.last() {
            Some(last) if last.start == start => Some(self.segments.len() - 1),
            _ => self.segments.binary_search_by_key(&start, |segment| segment.start).ok(),
        }
    }
}

/// The part of a queue that a reader may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub min_offset: i64,
    pub max_offset: i64,
    pub min_logic: u64,
    pub max_physic: i64,
}

/// Topic and id of each queue that is being rebuilt, and whether the index is.
pub type Rebuilding = (HashSet<(Box<[u8]>, i32)>, bool);

pub struct Queues {
    door: Door,
    folder: PathBuf,
    segment_bytes: u64,
    max_open: usize,
    read_only: bool,
    names: FastMap<Box<[u8]>, u32>,
    topics: Vec<Topic>,
    queues: Vec<Queue>,
    free: Vec<u32>,
    last_topic: u32,
    last_queue: (u32, i32, u32),
    open: VecDeque<(u32, u64)>,
    dirty: VecDeque<u32>,
    unsynced: Vec<(u32, u64)>,
    new_names_in: BTreeSet<PathBuf>,
    grew: Vec<u32>,
    watched: HashSet<(Box<[u8]>, i32)>,
    pending_bytes: usize,
    ext_folder: PathBuf,
    ext_segment_bytes: u64,
    ext_unsynced: BTreeSet<PathBuf>,
    lost: Vec<(u64, u64)>,
    /// Set while derived files are rebuilt: no other files are changed then.
    rebuilding: Option<Rebuilding>,
    holding: Option<Box<hold::Holding>>,
    /// `load` accepts queues with files of a wrong length, and `faults` reports them.
    pub tolerant: bool,
    /// The number of files that `load` found, and whether all of them are on the file system of the folder.
    pub loaded: (usize, bool),
}

const NO_QUEUE: (u32, i32, u32) = (u32::MAX, 0, 0);

impl Queues {
    pub fn new(door: Door, folder: PathBuf, segment_bytes: u64, max_open: usize, read_only: bool) -> Queues {
        Queues {
            door,
            folder,
            segment_bytes,
            max_open: max_open.max(1),
            read_only,
            names: FastMap::default(),
            topics: vec![],
            queues: vec![],
            free: vec![],
            last_topic: 0,
            last_queue: NO_QUEUE,
            open: VecDeque::new(),
            dirty: VecDeque::new(),
            unsynced: vec![],
            new_names_in: BTreeSet::new(),
            grew: vec![],
            watched: HashSet::new(),
            pending_bytes: 0,
            ext_folder: PathBuf::new(),
            ext_segment_bytes: 0,
            ext_unsynced: BTreeSet::new(),
            lost: vec![],
            rebuilding: None,
            holding: None,
            tolerant: false,
            loaded: (0, true),
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// From now on only these queues get units. None: all queues do.
    pub fn rebuild(&mut self, what: Option<Rebuilding>) {
        self.rebuilding = what;
    }

    /// Whether units of this queue, and entries of the index, are wanted now.
    #[inline]
    pub fn wants(&self, topic: &[u8], id: i32) -> (bool, bool) {
        match &self.rebuilding {
            None => (true, true),
            Some((queues, index)) => (queues.contains(&(topic.into(), id)), *index),
        }
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    // ------------------------------------------------------------------ names

    /// The topic's number, created if needed; None if the bytes cannot be a folder's name.
    #[inline]
    pub fn topic(&mut self, name: &[u8]) -> Option<u32> {
        if self
            .topics
            .get(self.last_topic as usize)
            .is_some_and(|topic| &*topic.name == name)
        {
            return Some(self.last_topic);
        }
        let number = match self.names.get(name) {
            Some(&number) => number,
            None => {
                if !is_topic_name(name) {
                    return None;
                }
                let number = self.topics.len() as u32;
                self.topics.push(Topic {
                    name: name.into(),
                    key_seed: hash::key_seed(name),
                    is_schedule: is_schedule_topic(name),
                    queues: FastMap::default(),
                });
                self.names.insert(name.into(), number);
                number
            }
        };
        self.last_topic = number;
        Some(number)
    }

    pub fn topic_at(&self, number: u32) -> &Topic {
        &self.topics[number as usize]
    }

    /// The queue's number, created if needed.
    #[inline]
    pub fn queue(&mut self, topic: u32, id: i32) -> u32 {
        let (last_topic, last_id, last) = self.last_queue;
        if last_topic == topic && last_id == id {
            return last;
        }
        let number = match self.topics[topic as usize].queues.get(&id) {
            Some(&number) => number,
            None => self.add_queue(topic, id),
        };
        self.last_queue = (topic, id, number);
        number
    }

    fn add_queue(&mut self, topic: u32, id: i32) -> u32 {
        let watched = self.watched.contains(&(self.topics[topic as usize].name.clone(), id));
        let queue = Queue {
            topic,
            id,
            segments: vec![],
            end: 0,
            written: 0,
            pending: vec![],
            min_logic: 0,
            floor: 0,
            max_physic: -1,
            dirty: false,
            watched,
            grew: false,
            alive: true,
            ext: None,
            broken: None,
            held: None,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.queues[number as usize] = queue;
                number
            }
            None => {
                self.queues.push(queue);
                self.queues.len() as u32 - 1
            }
        };
        self.topics[topic as usize].queues.insert(id, number);
        number
    }

    /// The number of a queue that exists.
    pub fn find(&self, topic: &[u8], id: i32) -> Option<u32> {
        let topic = *self.names.get(topic)?;
        self.topics[topic as usize].queues.get(&id).copied()
    }

    pub fn all(&self) -> Vec<u32> {
        (0..self.queues.len() as u32)
            .filter(|&q| self.queues[q as usize].alive)
            .collect()
    }

    pub fn name_of(&self, q: u32) -> (&[u8], i32) {
        let queue = &self.queues[q as usize];
        (&self.topics[queue.topic as usize].name, queue.id)
    }

    pub fn extent(&self, q: u32) -> Extent {
        let queue = &self.queues[q as usize];
        let (max_offset, max_physic) = match queue.held {
            None => ((queue.end / UNIT) as i64, queue.max_physic),
            Some(_) => self.foresee(q),
        };
        Extent {
            min_offset: (queue.min_logic / UNIT) as i64,
            max_offset,
            min_logic: queue.min_logic,
            max_physic,
        }
    }

    /// The queue begins at this offset at least from now on, if the unit before it names the record at `last_pos`: a
    /// queue of an earlier topic with the same name, or one that is not rebuilt yet, has another unit there or none.
    /// Returns whether it begins there, or behind it.
    pub fn raise_floor(&mut self, q: u32, offset: i64, last_pos: i64) -> Outcome<bool> {
        let queue = &self.queues[q as usize];
        let Some(place) = u64::try_from(offset).ok().and_then(|offset| offset.checked_mul(UNIT)) else {
            return Ok(false);
        };
        if place <= queue.floor {
            return Ok(true);
        }
        if place > queue.end {
            return Ok(false);
        }
        // The files with the units of deleted segments may be gone. Then the log says where the queue begins.
        let is_gone = place <= queue.min_logic;
        if !is_gone && self.unit(q, place - UNIT)?.is_none_or(|unit| unit.pos != last_pos) {
            return Ok(false);
        }
        let queue = &mut self.queues[q as usize];
        if !is_gone {
            (queue.floor, queue.min_logic) = (place, place);
        }
        Ok(true)
    }

    /// Whether the unit of this offset has expired by the retention of its topic.
    pub fn is_expired(&self, q: u32, offset: i64) -> bool {
        offset < (self.queues[q as usize].floor / UNIT) as i64
    }

    /// The number of queues that have had messages, and the sum of their max offsets.
    pub fn totals(&self) -> (usize, i64) {
        let offsets = self
            .all()
            .into_iter()
            .map(|q| self.extent(q).max_offset)
            .filter(|&offset| offset > 0);
        offsets.fold((0, 0), |(queues, units), offset| (queues + 1, units + offset))
    }

    fn folder_of(&self, q: u32) -> PathBuf {
        let (topic, id) = self.name_of(q);
        self.folder
            .join(std::ffi::OsStr::from_bytes(topic))
            .join(id.to_string())
    }

    fn path_of(&self, q: u32, start: u64) -> PathBuf {
        self.folder_of(q).join(segment_name(start))
    }

    pub fn watch(&mut self, topic: &[u8], id: i32, on: bool) {
        if on {
            self.watched.insert((topic.into(), id));
        } else {
            self.watched.remove(&(topic.into(), id));
        }
        if let Some(q) = self.find(topic, id) {
            self.queues[q as usize].watched = on;
        }
    }

    /// The watched queues that grew since the last call.
    pub fn take_grown(&mut self) -> Vec<(Vec<u8>, i32)> {
        let mut grown = vec![];
        for q in std::mem::take(&mut self.grew) {
            self.queues[q as usize].grew = false;
            let (topic, id) = self.name_of(q);
            grown.push((topic.to_vec(), id));
        }
        grown
    }

    // ------------------------------------------------------------------ reading

    /// Units from byte `from` on, at most `most` bytes, to the end of the file that holds `from`. None: cannot be read.
    pub fn read(&mut self, q: u32, from: u64, most: u64) -> Outcome<Option<Vec<u8>>> {
        let queue = &self.queues[q as usize];
        let start = from - from % self.segment_bytes;
        let stop = queue.end.min(start + self.segment_bytes).min(from.saturating_add(most));
        if from >= stop {
            return Ok(None);
        }
        let (written, on_file) = (queue.written, queue.written.min(stop));
        let mut bytes = vec![];
        if from < on_file {
            let Some(handle) = self.handle(q, start, false)? else {
                return Ok(None);
            };
            bytes.resize((on_file - from) as usize, 0);
            let n = handle
                .read_at(&mut bytes, from - start)
                .at_path(|| self.path_of(q, start))?;
            if n < bytes.len() {
                return Err(Fault::damage(
                    &self.path_of(q, start),
                    from - start + n as u64,
                    "the file is too short",
                ));
            }
        }
        let from = from.max(written);
        if from < stop {
            let pending = &self.queues[q as usize].pending;
            bytes.extend_from_slice(&pending[(from - written) as usize..(stop - written) as usize]);
        }
        Ok(Some(bytes))
    }

    pub fn unit(&mut self, q: u32, at: u64) -> Outcome<Option<Unit>> {
        let bytes = self.read(q, at, UNIT)?;
        Ok(bytes
            .filter(|bytes| bytes.len() == UNIT as usize)
            .map(|bytes| Unit::decode(&bytes)))
    }

    /// (first byte, end of the units, file's modification time in ms) of each segment.
    pub fn segments(&self, q: u32) -> Vec<(u64, u64, Option<i64>)> {
        let queue = &self.queues[q as usize];
        let mut starts: Vec<u64> = queue.segments.iter().map(|segment| segment.start).collect();
        let mut start = queue.written - queue.written % self.segment_bytes;
        while start < queue.end {
            if starts.last().is_none_or(|&last| last < start) {
                starts.push(start); // not written yet
            }
            start += self.segment_bytes;
        }
        let time = |start| {
            let modified = std::fs::metadata(self.path_of(q, start))
                .and_then(|data| data.modified())
                .ok()?;
            let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
            i64::try_from(since.as_millis()).ok()
        };
        starts
            .into_iter()
            .map(|start| (start, queue.end.min(start + self.segment_bytes), time(start)))
            .collect()
    }
}
