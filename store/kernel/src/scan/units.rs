//! Compares the records of a range with the units of their ConsumeQueues, queue by queue.
//!
//! It proves that units are right; it does not say what is wrong with others. A queue is proven if its records follow
//! each other by queue offset and its files have exactly the units that they require. Units of delayed messages, and
//! those with an extension, contain something else than the hash of a tag, so they are not proven here.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::hash::string_hash;
use crate::maps::segment_name;
use crate::queue::{segments, Look, Unit, UNIT};
use crate::record::{is_schedule_topic, is_topic_name, Known, Record};

const TRANSACTION: i32 = 0x0C;
const COMMITTED: i32 = 0x08;

/// What the records of one queue require, and whether it has it.
#[derive(Default)]
pub struct Required {
    pub records: i64,
    pub first_offset: i64,
    pub last_offset: i64,
    /// The first offset that the next start of the broker dispatches again; -1: none.
    pub repairable_offset: i64,
    /// The records follow each other by queue offset.
    pub in_order: bool,
    units: Vec<u8>,
}

pub struct Units {
    topics: FxHashMap<Box<[u8]>, FxHashMap<i32, Required>>,
    /// Records from this position on, and those stored from this time on, may not have their units yet.
    repairable_from: i64,
    settled_ms: i64,
    pub newest_ms: i64,
    /// Position of the first record that was stored at or after `settled_ms`.
    pub unsettled: Option<u64>,
    /// Committed records of transactions: position, and position of the half message.
    pub committed: Vec<(u64, i64)>,
}

impl Units {
    pub fn new(repairable_from: i64, settled_ms: i64) -> Units {
        Units {
            topics: FxHashMap::default(),
            repairable_from,
            settled_ms,
            newest_ms: 0,
            unsettled: None,
            committed: vec![],
        }
    }

    pub fn add(&mut self, record: &Record<'_>, pos: u64) {
        let time = record.store_timestamp();
        let unsettled = time >= self.settled_ms;
        self.newest_ms = self.newest_ms.max(time);
        if unsettled && self.unsettled.is_none() {
            self.unsettled = Some(pos);
        }
        if record.sys_flag() & TRANSACTION == COMMITTED {
            self.committed.push((pos, record.prepared_transaction_offset()));
        }
        if !record.is_queued() {
            return;
        }
        let topic = record.topic();
        if !self.topics.contains_key(topic) {
            self.topics.insert(topic.into(), FxHashMap::default());
        }
        let queues = self.topics.get_mut(topic).expect("just inserted");
        let required = queues.entry(record.queue_id()).or_default();
        let repairable = pos as i64 >= self.repairable_from || unsettled;
        required.add(record.queue_offset(), repairable);
        let tags = Known::find(record.properties()).tags;
        let unit = Unit {
            pos: pos as i64,
            size: record.size() as i32,
            tags_code: if tags.is_empty() {
                0
            } else {
                i64::from(string_hash(tags))
            },
        };
        required.units.extend_from_slice(&unit.encode());
    }

    /// The queues: topic, queue id, what is required, and whether the files in `folder` (consumequeue) prove to have it.
    pub fn proven<'a>(&'a self, folder: &'a Path) -> impl Iterator<Item = (String, i32, &'a Required, bool)> + 'a {
        let mut segment_bytes = 0;
        let queues = self.topics.iter();
        let queues = queues.flat_map(|(topic, queues)| queues.iter().map(move |(&id, required)| (topic, id, required)));
        queues.map(move |(topic, id, required)| {
            let is_plain = !is_schedule_topic(topic) && is_topic_name(topic) && id >= 0 && required.first_offset >= 0;
            let proven = is_plain && required.in_order && {
                let queue = folder.join(OsStr::from_bytes(topic)).join(id.to_string());
                if segment_bytes == 0 {
                    segment_bytes = segments(&queue).map_or(0, |(_, bytes, _)| bytes);
                }
                has_units(&queue, segment_bytes, required).unwrap_or(false)
            };
            (String::from_utf8_lossy(topic).into_owned(), id, required, proven)
        })
    }
}

impl Required {
    /// Counts a record, as `QueueOfLog.add` does.
    fn add(&mut self, offset: i64, repairable: bool) {
        self.in_order = if self.records == 0 {
            true
        } else {
            self.in_order && offset == self.last_offset + 1
        };
        if self.records == 0 || offset <= self.last_offset {
            (self.records, self.first_offset, self.repairable_offset) = (0, offset, -1);
        }
        self.records += 1;
        self.last_offset = offset;
        if repairable && self.repairable_offset < 0 {
            self.repairable_offset = offset;
        }
    }
}

/// Whether the queue's files, each of `segment_bytes`, have these units. None: a file is missing, or has another length.
fn has_units(queue: &Path, segment_bytes: u64, required: &Required) -> Option<bool> {
    let mut units = required.units.as_slice();
    let mut offset = required.first_offset as u64;
    let in_file = segment_bytes / UNIT;
    if in_file == 0 || segment_bytes % UNIT != 0 {
        return None;
    }
    while !units.is_empty() {
        let within = offset % in_file;
        let count = (in_file - within).min(units.len() as u64 / UNIT);
        let path: PathBuf = queue.join(segment_name((offset - within).checked_mul(UNIT)?));
        let mut look = Look::open(&path).ok()?;
        if look.bytes() != segment_bytes {
            return None;
        }
        let (wanted, rest) = units.split_at((count * UNIT) as usize);
        let found = look.read(within, count).ok()?;
        look.keep(); // for the next range of the log
        if found != wanted {
            return Some(false);
        }
        (units, offset) = (rest, offset + count);
    }
    Some(true)
}
