//! Compares the records of a range with the units of their ConsumeQueues, queue by queue.
//!
//! A queue has all units of its records if its files have exactly these bytes: one read and one comparison for most
//! queues. Otherwise each unit is looked at: it may be missing, name something else, or contain something else than the
//! hash of a tag (the time of delivery of a delayed message, the address of an extension unit). What differs is a
//! suspicion: the check of the whole queue judges it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyFileNotFoundError;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::ext::{is_address, place_of};
use crate::fault::{Fault, Outcome};
use crate::folder::Folder;
use crate::hash::string_hash;
use crate::maps::segment_name;
use crate::queue::{Look, QueueFiles, Unit, UNIT};
use crate::record::{is_schedule_topic, is_topic_name, long, pairs, Known, Record};
use crate::verify::files::start_of;
use crate::verify::in_log::{name_of, ByQueue, InLog, QueuesOfLog};

const TRANSACTION: i32 = 0x0C;
const COMMITTED: i32 = 0x08;
const EMPTY: [u8; UNIT as usize] = [0; UNIT as usize];
/// What is fetched at once where a store is not mounted.
const BLOCK: u64 = 64 << 10;
/// Bytes of an extension unit without its bit map.
const EXT_HEAD: usize = 20;
/// Differences that are listed for a queue, and for a range: more are only counted.
const MOST_OF_QUEUE: usize = 1000;
const MOST_OF_RANGE: usize = 20_000;

/// The records of one queue, and the units that they require.
#[derive(Default)]
struct Required {
    of_log: InLog,
    /// The records do not follow each other by queue offset.
    disordered: bool,
    units: Vec<Wanted>,
}

struct Wanted {
    offset: i64,
    unit: Unit,
    store_ms: i64,
    /// The level of a delayed message; 0: of another one.
    level: i32,
}

/// What the records of a range require.
pub struct Units {
    queues: ByQueue<Required>,
    /// Records from this position on, and those stored from this time on, may not have their units yet.
    repairable_from: i64,
    settled_ms: i64,
    pub newest_ms: i64,
    /// Position of the first record that was stored at or after `settled_ms`.
    pub unsettled: Option<u64>,
    /// Committed records of transactions: position, and position of the half message.
    pub committed: Vec<(u64, i64)>,
    /// Positions of delayed messages that do not name their topic.
    pub nameless: Vec<u64>,
}

/// What the comparison found.
#[derive(Default)]
pub struct Compared {
    pub queues: QueuesOfLog,
    /// The queues that the check of whole queues has to judge.
    pub suspects: Vec<(OsString, i32)>,
    pub differing: Vec<Differing>,
    /// Units that recent records do not have yet.
    pub behind: u64,
    /// Number of units of delayed messages, by level, queue and delay in ms.
    pub delays: FxHashMap<(i32, i32, i64), i64>,
    listed: usize,
}

/// The wrong units of one queue.
pub struct Differing {
    pub topic: String,
    pub queue: i32,
    pub count: usize,
    /// File, byte, reason.
    pub listed: Vec<(PathBuf, u64, String)>,
}

impl Units {
    pub fn new(repairable_from: i64, settled_ms: i64) -> Units {
        Units {
            queues: ByQueue::default(),
            repairable_from,
            settled_ms,
            newest_ms: 0,
            unsettled: None,
            committed: vec![],
            nameless: vec![],
        }
    }

    /// Adds records with their positions.
    pub fn add_all(&mut self, records: &[(Record<'_>, u64)]) {
        // The queues of all of them first: no look-up depends on another one, so the processor waits for several at a
        // time.
        let queued = records.iter().filter(|(record, _)| record.is_queued());
        let queue = |(record, _): &(Record<'_>, u64)| self.queues.number(record.topic(), record.queue_id());
        let numbers: Vec<u32> = queued.map(queue).collect();
        let mut numbers = numbers.into_iter();
        for (record, pos) in records {
            let queue = record
                .is_queued()
                .then(|| numbers.next().expect("one for each of them"));
            self.add(record, *pos, queue);
        }
    }

    /// `queue`: the number of its queue, if the record belongs into one.
    fn add(&mut self, record: &Record<'_>, pos: u64, queue: Option<u32>) {
        let store_ms = record.store_timestamp();
        let unsettled = store_ms >= self.settled_ms;
        self.newest_ms = self.newest_ms.max(store_ms);
        if unsettled && self.unsettled.is_none() {
            self.unsettled = Some(pos);
        }
        if record.sys_flag() & TRANSACTION == COMMITTED {
            self.committed.push((pos, record.prepared_transaction_offset()));
        }
        let Some(queue) = queue else { return };
        let known = Known::find(record.properties());
        let level = level_of(record, &known);
        if level > 0 && !pairs(record.properties()).any(|(name, _)| name == b"REAL_TOPIC") {
            self.nameless.push(pos);
        }
        let (offset, tags) = (record.queue_offset(), known.tags);
        let required = self.queues.of_number(queue);
        let repairable = pos as i64 >= self.repairable_from || unsettled;
        required.disordered |= required.of_log.add(offset, repairable).is_some();
        required.units.push(Wanted {
            offset,
            unit: Unit {
                pos: pos as i64,
                size: record.size() as i32,
                tags_code: if tags.is_empty() {
                    0
                } else {
                    i64::from(string_hash(tags))
                },
            },
            store_ms,
            level,
        });
    }

    /// Compares the units with those in `root`/consumequeue. `bring`: see `QueueBytes`.
    pub fn compared(&self, root: &Path, bring: Option<&Py<PyAny>>) -> PyResult<Compared> {
        let mut found = Compared {
            queues: QueuesOfLog(self.queues.map(|required| required.of_log)),
            ..Compared::default()
        };
        let mut files = UnitFiles::new(root);
        for (topic, queue, required) in self.queues.sorted() {
            let in_one_piece = bring.is_none() && !required.disordered && !is_schedule_topic(topic);
            let is_right = in_one_piece && files.have(topic, queue, &required.units);
            if !is_right {
                self.compare_each(root, bring, topic, queue, required, &mut found)?;
            }
        }
        Ok(found)
    }

    fn compare_each(
        &self,
        root: &Path,
        bring: Option<&Py<PyAny>>,
        topic: &[u8],
        queue: i32,
        required: &Required,
        found: &mut Compared,
    ) -> PyResult<()> {
        let mut each = EachUnit {
            files: QueueBytes::open(root, bring, "consumequeue", topic, queue)?,
            extension: QueueBytes::open(root, bring, "consumequeue_ext", topic, queue)?,
            is_suspect: required.disordered, // a unit may have lost its record
            count: 0,
            listed: vec![],
        };
        for wanted in &required.units {
            each.compare(wanted, is_schedule_topic(topic), queue, self.settled_ms, found)?;
        }
        if each.is_suspect || each.count > 0 {
            found.suspects.push((name_of(topic), queue));
        }
        if each.count > 0 {
            found.differing.push(Differing {
                topic: String::from_utf8_lossy(topic).into_owned(),
                queue,
                count: each.count,
                listed: each.listed,
            });
        }
        Ok(())
    }
}

fn level_of(record: &Record<'_>, known: &Known<'_>) -> i32 {
    if !is_schedule_topic(record.topic()) {
        return 0;
    }
    let level = std::str::from_utf8(known.delay).ok().and_then(|text| text.parse().ok());
    level.unwrap_or(0).max(0)
}

/// The comparison of whole ranges of units with files, which have one length in all queues.
struct UnitFiles {
    folder: PathBuf,
    topic: Option<(Box<[u8]>, Folder)>,
    segment_bytes: u64,
    bytes: Vec<u8>,
}

impl UnitFiles {
    fn new(root: &Path) -> UnitFiles {
        UnitFiles {
            folder: root.join("consumequeue"),
            topic: None,
            segment_bytes: 0,
            bytes: vec![],
        }
    }

    /// Whether the queue's files have exactly these units, which follow each other. False: they do not, or one of them
    /// cannot be read.
    fn have(&mut self, topic: &[u8], queue: i32, units: &[Wanted]) -> bool {
        let is_plain = is_topic_name(topic) && queue >= 0 && units[0].offset >= 0;
        is_plain && self.compare(topic, &queue.to_string(), units) == Some(true)
    }

    fn compare(&mut self, topic: &[u8], queue: &str, mut units: &[Wanted]) -> Option<bool> {
        if self.topic.as_ref().is_none_or(|(name, _)| **name != *topic) {
            let folder = Folder::open(&self.folder.join(OsStr::from_bytes(topic))).ok()?;
            self.topic = Some((topic.into(), folder));
        }
        let (_, folder) = self.topic.as_ref()?;
        if self.segment_bytes == 0 {
            let path = self.folder.join(OsStr::from_bytes(topic)).join(queue);
            let queue = Folder::open(&path).ok()?;
            self.segment_bytes = QueueFiles::list(&queue, &path).ok()?.chosen(None).1;
        }
        let in_file = self.segment_bytes / UNIT;
        if in_file == 0 || self.segment_bytes % UNIT != 0 {
            return None;
        }
        while !units.is_empty() {
            let offset = units[0].offset as u64;
            let within = offset % in_file;
            let count = (in_file - within).min(units.len() as u64);
            let start = (offset - within).checked_mul(UNIT)?;
            let name = format!("{queue}/{}", segment_name(start));
            let file = folder.file(OsStr::new(&name)).ok()?;
            let mut look = Look::of(file, PathBuf::new()).ok()?;
            if look.bytes() != self.segment_bytes {
                return None;
            }
            let (here, rest) = units.split_at(count as usize);
            self.bytes.clear();
            here.iter()
                .for_each(|wanted| self.bytes.extend_from_slice(&wanted.unit.encode()));
            let found = look.read(within, count).ok()?;
            look.keep(); // for the next range of the log
            if found != self.bytes {
                return Some(false);
            }
            units = rest;
        }
        Some(true)
    }
}

/// The units of one queue, looked at one by one.
struct EachUnit<'a> {
    files: QueueBytes<'a>,
    extension: QueueBytes<'a>,
    is_suspect: bool,
    count: usize,
    listed: Vec<(PathBuf, u64, String)>,
}

impl EachUnit<'_> {
    fn compare(
        &mut self,
        wanted: &Wanted,
        is_schedule: bool,
        queue: i32,
        settled_ms: i64,
        found: &mut Compared,
    ) -> PyResult<()> {
        let Wanted {
            offset,
            unit,
            store_ms,
            level,
        } = *wanted;
        let at = offset.checked_mul(UNIT as i64);
        let bytes = match at {
            Some(at) => self.files.read(at, UNIT as usize)?,
            None => None,
        };
        let Some(there) = bytes.filter(|bytes| *bytes != EMPTY).map(|bytes| Unit::decode(&bytes)) else {
            if store_ms >= settled_ms {
                found.behind += 1;
            } else {
                self.differs(
                    at,
                    format!("unit {offset} is missing; its record is at {}", unit.pos),
                    found,
                );
            }
            return Ok(());
        };
        if is_schedule {
            match self.extended(there.tags_code, store_ms)? {
                Some(code) if level > 0 => {
                    let delay = code.wrapping_sub(store_ms);
                    *found.delays.entry((level, queue, delay)).or_default() += 1;
                }
                code => self.is_suspect |= code != Some(unit.tags_code),
            }
        }
        if (there.pos, there.size) != (unit.pos, unit.size) {
            let reason = format!(
                "unit {offset} names {} bytes at {}, the record has {} at {}",
                there.size, there.pos, unit.size, unit.pos
            );
            self.differs(at, reason, found);
        } else if !is_schedule && there.tags_code != unit.tags_code {
            let code = self.extended(there.tags_code, store_ms)?;
            if code != Some(unit.tags_code) {
                let code = code.unwrap_or(there.tags_code);
                let reason = format!(
                    "unit {offset} has tags code {code}, the record at {} has {}",
                    unit.pos, unit.tags_code
                );
                self.differs(at, reason, found);
            }
        }
        Ok(())
    }

    fn differs(&mut self, at: Option<i64>, reason: String, found: &mut Compared) {
        self.count += 1;
        if self.listed.len() < MOST_OF_QUEUE && found.listed < MOST_OF_RANGE {
            found.listed += 1;
            let (path, at) = self.files.place(at.unwrap_or(-1));
            self.listed.push((path, at, reason));
        }
    }

    /// The tags code, or that of the extension unit at this address. None: there is no valid one of this time.
    fn extended(&mut self, code: i64, store_ms: i64) -> PyResult<Option<i64>> {
        if !is_address(code) {
            return Ok(Some(code));
        }
        let Ok(place) = i64::try_from(place_of(code)) else {
            return Ok(None);
        };
        let Some(head) = self.extension.read(place, EXT_HEAD)? else {
            return Ok(None);
        };
        let (size, map) = (int16(&head, 0), int16(&head, 18));
        let is_valid = map >= 0 && i32::from(size) == EXT_HEAD as i32 + i32::from(map) && long(&head, 10) == store_ms;
        Ok(is_valid.then(|| long(&head, 2)))
    }
}

fn int16(bytes: &[u8], at: usize) -> i16 {
    i16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The bytes of the files of one queue, or of its extension.
struct QueueBytes<'a> {
    /// Fetches bytes of a file before they are read; None: all bytes are there.
    bring: Option<&'a Py<PyAny>>,
    /// What was fetched last: the file, and its bytes.
    brought: (u64, u64, u64),
    path: PathBuf,
    starts: Vec<u64>,
    segment_bytes: u64,
    /// The file that was read last.
    look: Option<(u64, Look)>,
}

impl<'a> QueueBytes<'a> {
    /// A missing folder has no bytes.
    fn open(
        root: &Path,
        bring: Option<&'a Py<PyAny>>,
        kind: &str,
        topic: &[u8],
        queue: i32,
    ) -> Outcome<QueueBytes<'a>> {
        let path = root.join(kind).join(OsStr::from_bytes(topic)).join(queue.to_string());
        let (mut starts, mut segment_bytes) = (vec![], 0);
        if let Some(folder) = is_topic_name(topic).then(|| Folder::open(&path).ok()).flatten() {
            (starts, segment_bytes, _) = QueueFiles::list(&folder, &path)?.chosen(None);
        }
        Ok(QueueBytes {
            bring,
            brought: (0, 0, 0),
            path,
            starts,
            segment_bytes,
            look: None,
        })
    }

    fn start_of(&self, at: i64) -> Option<u64> {
        start_of(&self.starts, self.segment_bytes, at)
    }

    /// `size` bytes; None: no single file has all of them, or it has expired.
    fn read(&mut self, at: i64, size: usize) -> PyResult<Option<Vec<u8>>> {
        let Some(start) = self.start_of(at) else {
            return Ok(None);
        };
        let within = at as u64 - start;
        if within + size as u64 > self.segment_bytes {
            return Ok(None);
        }
        if !self.fetch(start, within, within + size as u64)? {
            return Ok(None);
        }
        if self.look.as_ref().is_none_or(|(opened, _)| *opened != start) {
            self.look = match Look::open(&self.path.join(segment_name(start))) {
                Err(Fault::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                look => Some((start, look?)),
            };
        }
        let look = &mut self.look.as_mut().expect("just opened").1;
        Ok(Some(look.read_bytes(within, size as u64)?))
    }

    /// Makes bytes [begin, end) of a file readable. False: it has expired.
    fn fetch(&mut self, start: u64, begin: u64, end: u64) -> PyResult<bool> {
        let (file, low, high) = self.brought;
        let Some(bring) = self.bring.filter(|_| file != start || begin < low || high < end) else {
            return Ok(true);
        };
        let (low, high) = (begin / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        let path = self.path.join(segment_name(start));
        let brought = Python::attach(|py| match bring.call1(py, (path, low, high)) {
            Err(error) if error.is_instance_of::<PyFileNotFoundError>(py) => Ok(false),
            brought => brought.map(|_| true),
        })?;
        if brought {
            self.brought = (start, low, high);
        }
        Ok(brought)
    }

    /// The file and the byte in it.
    fn place(&self, at: i64) -> (PathBuf, u64) {
        match self.start_of(at) {
            Some(start) => (self.path.join(segment_name(start)), at as u64 - start),
            None => (self.path.clone(), 0),
        }
    }
}
