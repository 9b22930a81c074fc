//! ConsumeQueues: for each topic and queue, an array of 20-byte units that name the queue's records in the log.
//!
//! ```text
//! at  size  field
//!  0     8  position of the record in the log
//!  8     4  its size
//! 12     8  tags code: hash of its tag, or its time of delivery, or an address in the extension
//! ```
//!
//! Unit i of a queue stands at byte 20 * i; files are cut at a fixed size, named by their first byte, sparse behind the
//! last unit. A queue that does not begin with its first message has units `(0, 0x7FFFFFFF, 0)` in front of its first
//! one in that file. Source: RocketMQ 4.8.0, ConsumeQueue.java, MappedFileQueue.java. Fixed: it is on disks.
//!
//! New units stay in memory until `write_out`, so that fifty thousand queues do not cost a system call a message; all
//! reads see them. `written <= end`, and `pending` holds exactly the bytes between. Files are opened on demand, at most
//! `max_open` at a time.
//!
//! Where the source is careless we are not: blank units never count as knowledge of a position, bytes behind a cut are
//! zeroed (a later recovery would take them for units), and an empty file does not decide where a queue begins.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::door::{Door, DoorFile};
use crate::fault::{At, Fault, Outcome};
use crate::hash;
use crate::maps::{segment_name, segment_starts};
use crate::record::{int, is_schedule_topic, is_topic_name, long};

pub const UNIT: u64 = 20;
const BLANK_SIZE: i32 = i32::MAX;
/// Reads of units for recovery and cutting begin small (most files are nearly empty) and grow.
const FIRST_CHUNK: usize = 4096;
const LARGEST_CHUNK: usize = 1 << 18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub pos: i64,
    pub size: i32,
    pub tags_code: i64,
}

impl Unit {
    pub const BLANK: Unit = Unit {
        pos: 0,
        size: BLANK_SIZE,
        tags_code: 0,
    };

    pub fn decode(bytes: &[u8]) -> Unit {
        Unit {
            pos: long(bytes, 0),
            size: int(bytes, 8),
            tags_code: long(bytes, 12),
        }
    }

    pub fn encode(&self) -> [u8; UNIT as usize] {
        let mut bytes = [0; UNIT as usize];
        bytes[..8].copy_from_slice(&self.pos.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    fn is_unit(&self) -> bool {
        self.pos >= 0 && self.size > 0
    }

    pub fn is_blank(&self) -> bool {
        self.size == BLANK_SIZE && self.pos == 0
    }

    fn end(&self) -> i64 {
        self.pos.saturating_add(i64::from(self.size))
    }
}

/// Hashes topic names and numbers: short keys, no attacker gains from a collision of topics he had to create.
#[derive(Default)]
pub struct FastHasher(u64);

impl FastHasher {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.add(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        }
        let mut last = [0; 8];
        last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
        self.add(u64::from_le_bytes(last));
    }

    fn write_i32(&mut self, value: i32) {
        self.add(value as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
}

pub type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// A queue file, open.
enum Handle {
    Writing(DoorFile),
    Reading(File),
}

impl Handle {
    fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buffer.is_empty() {
            let n = match self {
                Handle::Writing(file) => file.read_at(buffer, offset)?,
                Handle::Reading(file) => file.read_at(buffer, offset)?,
            };
            if n == 0 {
                break;
            }
            total += n;
            offset += n as u64;
            buffer = &mut buffer[n..];
        }
        Ok(total)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Handle::Writing(file) => file.write_at(data, offset),
            Handle::Reading(_) => Err(io::Error::from_raw_os_error(libc::EROFS)),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Handle::Writing(file) => file.sync_data(),
            Handle::Reading(_) => Ok(()),
        }
    }
}

struct Segment {
    start: u64,
    handle: Option<Arc<Handle>>,
    /// For the clock that closes files: read or written since the hand last passed.
    used: bool,
    unsynced: bool,
}

pub struct Topic {
    pub name: Box<[u8]>,
    /// The string hash of `name#`: index keys of this topic go on from it.
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
    /// Bytes; units below are not readable (their records are gone, or they are blank).
    min_logic: u64,
    /// End of the last record that has a unit here, -1 for none.
    max_physic: i64,
    dirty: bool,
    watched: bool,
    grew: bool,
    alive: bool,
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

/// What a reader may know of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub min_offset: i64,
    pub max_offset: i64,
    pub min_logic: u64,
    pub max_physic: i64,
}

/// What became of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Added,
    Known,
    /// Added, but its place is not the queue offset that the record names.
    Misplaced,
    /// The record's queue offset is no number of a unit.
    BadOffset,
}

/// A file to sync, taken out of the table so that the wait needs no lock.
pub struct ToSync {
    queue: u32,
    start: u64,
    handle: Option<Arc<Handle>>,
    path: PathBuf,
}

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
    dirty: Vec<u32>,
    unsynced: Vec<(u32, u64)>,
    new_names_in: BTreeSet<PathBuf>,
    grew: Vec<u32>,
    watched: HashSet<(Box<[u8]>, i32)>,
    pending_bytes: usize,
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
            dirty: vec![],
            unsynced: vec![],
            new_names_in: BTreeSet::new(),
            grew: vec![],
            watched: HashSet::new(),
            pending_bytes: 0,
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    // ------------------------------------------------------------------ names

    /// The topic's number, made if need be; None if the bytes cannot be a folder's name.
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
                    key_seed: hash::string_hash(&[name, b"#"].concat()),
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

    /// The queue's number, made if need be.
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
            max_physic: -1,
            dirty: false,
            watched,
            grew: false,
            alive: true,
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
        Extent {
            min_offset: (queue.min_logic / UNIT) as i64,
            max_offset: (queue.end / UNIT) as i64,
            min_logic: queue.min_logic,
            max_physic: queue.max_physic,
        }
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

    /// The watched queues that grew since this was last asked.
    pub fn take_grown(&mut self) -> Vec<(Vec<u8>, i32)> {
        let mut grown = vec![];
        for q in std::mem::take(&mut self.grew) {
            self.queues[q as usize].grew = false;
            let (topic, id) = self.name_of(q);
            grown.push((topic.to_vec(), id));
        }
        grown
    }

    // ------------------------------------------------------------------ open files

    /// The segment's file, opened if need be; `create` makes it. None: there is no such segment.
    fn handle(&mut self, q: u32, start: u64, create: bool) -> Outcome<Option<Arc<Handle>>> {
        let queue = &mut self.queues[q as usize];
        let index = queue.segment_index(start);
        if let Some(index) = index {
            let segment = &mut queue.segments[index];
            if let Some(handle) = &segment.handle {
                segment.used = true;
                return Ok(Some(handle.clone()));
            }
        } else if !create {
            return Ok(None);
        }
        let path = self.path_of(q, start);
        while self.open.len() >= self.max_open {
            self.close_one();
        }
        let handle = if self.read_only {
            Handle::Reading(File::open(&path).at(&path)?)
        } else if index.is_some() {
            Handle::Writing(self.door.open(&path).at(&path)?)
        } else {
            let file = self.door.create_sized(&path, self.segment_bytes, false).at(&path)?;
            for folder in path.ancestors().skip(1) {
                self.new_names_in.insert(folder.to_owned());
                if folder == self.folder {
                    break;
                }
            }
            Handle::Writing(file)
        };
        let handle = Arc::new(handle);
        let queue = &mut self.queues[q as usize];
        let index = match index {
            Some(index) => index,
            None => {
                let index = queue.segments.partition_point(|segment| segment.start < start);
                queue.segments.insert(
                    index,
                    Segment {
                        start,
                        handle: None,
                        used: true,
                        unsynced: false,
                    },
                );
                index
            }
        };
        queue.segments[index].handle = Some(handle.clone());
        queue.segments[index].used = true;
        self.open.push_back((q, start));
        Ok(Some(handle))
    }

    /// Closes the next file that was not used since the hand last passed it.
    fn close_one(&mut self) {
        while let Some((q, start)) = self.open.pop_front() {
            let queue = &mut self.queues[q as usize];
            let Some(index) = queue.segment_index(start) else {
                return;
            };
            let segment = &mut queue.segments[index];
            if segment.handle.is_none() {
                return;
            }
            if std::mem::take(&mut segment.used) {
                self.open.push_back((q, start));
            } else {
                segment.handle = None;
                return;
            }
        }
    }

    /// Takes a segment off the table and removes its file.
    fn remove_segment(&mut self, q: u32, index: usize) -> Outcome<()> {
        let start = self.queues[q as usize].segments[index].start;
        if !self.read_only {
            let path = self.path_of(q, start);
            match self.door.remove(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.at(&path)?,
            }
            self.new_names_in.insert(self.folder_of(q));
        }
        self.queues[q as usize].segments.remove(index);
        self.open.retain(|&(queue, at)| (queue, at) != (q, start));
        Ok(())
    }

    fn write(&mut self, q: u32, start: u64, data: &[u8], at: u64) -> Outcome<()> {
        let handle = self.handle(q, start, true)?.expect("made if absent");
        handle.write_at(data, at).at_path(|| self.path_of(q, start))?;
        let queue = &mut self.queues[q as usize];
        let index = queue.segment_index(start).expect("just opened");
        if !std::mem::replace(&mut queue.segments[index].unsynced, true) {
            self.unsynced.push((q, start));
        }
        Ok(())
    }

    // ------------------------------------------------------------------ dispatch

    /// Adds the unit of one record whose place is `queue_offset`.
    #[inline]
    pub fn put(&mut self, q: u32, unit: Unit, queue_offset: i64) -> Outcome<Put> {
        let queue = &self.queues[q as usize];
        if unit.end() <= queue.max_physic {
            return Ok(Put::Known);
        }
        if !(0..=i64::MAX / UNIT as i64 - 1).contains(&queue_offset) {
            return Ok(Put::BadOffset);
        }
        let expect = queue_offset as u64 * UNIT;
        let mut put = Put::Added;
        if expect != queue.end {
            if queue.has_no_unit() {
                self.begin_at(q, expect)?;
            } else if queue_offset != 0 {
                // 4.8.0 does not ask this of offset 0, so a queue that counts from 0 again is appended to
                if expect < queue.end {
                    return Ok(Put::Known);
                }
                put = Put::Misplaced;
            } else {
                put = Put::Misplaced;
            }
        }
        let queue = &mut self.queues[q as usize];
        queue.max_physic = unit.end();
        queue.pending.extend_from_slice(&unit.encode());
        queue.end += UNIT;
        self.pending_bytes += UNIT as usize;
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push(q);
        }
        if queue.watched && !queue.grew {
            queue.grew = true;
            self.grew.push(q);
        }
        Ok(put)
    }

    /// A queue without units begins at `expect`, behind blank units from its file's start.
    #[cold]
    fn begin_at(&mut self, q: u32, expect: u64) -> Outcome<()> {
        while !self.queues[q as usize].segments.is_empty() {
            self.remove_segment(q, 0)?;
        }
        let start = expect - expect % self.segment_bytes;
        let blanks = Unit::BLANK.encode().repeat(FIRST_CHUNK / UNIT as usize * 16);
        let mut at = start;
        while at < expect {
            let n = (expect - at).min(blanks.len() as u64);
            self.write(q, start, &blanks[..n as usize], at - start)?;
            at += n;
        }
        let queue = &mut self.queues[q as usize];
        (queue.end, queue.written, queue.min_logic) = (expect, expect, expect);
        Ok(())
    }

    /// Writes pending units of up to `most` queues; true when nothing is left.
    pub fn write_some(&mut self, most: usize) -> Outcome<bool> {
        for _ in 0..most {
            let Some(&q) = self.dirty.last() else { return Ok(true) };
            self.write_queue(q)?;
            self.dirty.pop();
            self.queues[q as usize].dirty = false;
        }
        Ok(self.dirty.is_empty())
    }

    fn write_queue(&mut self, q: u32) -> Outcome<()> {
        let mut pending = std::mem::take(&mut self.queues[q as usize].pending);
        let mut done = 0;
        let outcome = loop {
            if done == pending.len() {
                break Ok(());
            }
            let written = self.queues[q as usize].written;
            let start = written - written % self.segment_bytes;
            let n = (pending.len() - done).min((start + self.segment_bytes - written) as usize);
            if let Err(fault) = self.write(q, start, &pending[done..done + n], written - start) {
                break Err(fault);
            }
            done += n;
            self.queues[q as usize].written += n as u64;
        };
        pending.drain(..done);
        if pending.capacity() > 1 << 16 {
            pending.shrink_to(1 << 12);
        }
        self.pending_bytes -= done;
        self.queues[q as usize].pending = pending;
        outcome
    }

    /// What is to be synced; it counts as synced from now on, unless `sync_failed` says otherwise.
    pub fn take_unsynced(&mut self) -> (Vec<ToSync>, Vec<PathBuf>) {
        let mut files = vec![];
        for (q, start) in std::mem::take(&mut self.unsynced) {
            let queue = &mut self.queues[q as usize];
            let Some(index) = queue.segment_index(start) else {
                continue;
            };
            queue.segments[index].unsynced = false;
            let handle = queue.segments[index].handle.clone();
            files.push(ToSync {
                queue: q,
                start,
                handle,
                path: self.path_of(q, start),
            });
        }
        (
            files,
            std::mem::take(&mut self.new_names_in).into_iter().rev().collect(),
        )
    }

    pub fn sync_failed(&mut self, files: &[ToSync], folders: &[PathBuf]) {
        for file in files {
            let queue = &mut self.queues[file.queue as usize];
            if let Some(index) = queue.segment_index(file.start) {
                if !std::mem::replace(&mut queue.segments[index].unsynced, true) {
                    self.unsynced.push((file.queue, file.start));
                }
            }
        }
        self.new_names_in.extend(folders.iter().cloned());
    }

    // ------------------------------------------------------------------ reading

    /// Units from byte `from` on, at most `most` bytes, to the end of the file that holds `from`. None: it cannot be read.
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

    /// (first byte, end of the units, file's time of change in ms) of each segment.
    pub fn segments(&self, q: u32) -> Vec<(u64, u64, Option<i64>)> {
        let queue = &self.queues[q as usize];
        let mut starts: Vec<u64> = queue.segments.iter().map(|segment| segment.start).collect();
        let mut start = queue.written - queue.written % self.segment_bytes;
        while start < queue.end {
            if starts.last().is_none_or(|&last| last < start) {
                starts.push(start); // not yet written out
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

    // ------------------------------------------------------------------ recovery

    /// Finds the queues that exist. Every file must have its full length; one of no length (its maker died) goes.
    pub fn load(&mut self) -> Outcome<()> {
        for topic in folders(&self.folder)? {
            let topic_folder = self.folder.join(&topic);
            for name in folders(&topic_folder)? {
                let Some(id) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                    continue;
                };
                if id.to_string().as_bytes() != name.as_bytes() {
                    continue; // "+1" and "01" would be second names of queue 1
                }
                let Some(number) = self.topic(&topic.clone().into_vec()) else {
                    continue;
                };
                self.load_queue(number, id, &topic_folder.join(name))?;
            }
        }
        Ok(())
    }

    fn load_queue(&mut self, topic: u32, id: i32, folder: &Path) -> Outcome<()> {
        let starts = segment_starts(folder)?;
        let q = self.queue(topic, id);
        for &start in &starts {
            let path = folder.join(segment_name(start));
            let bytes = std::fs::metadata(&path).at(&path)?.len();
            if bytes == 0 && !self.read_only && Some(&start) == starts.last() {
                self.door.remove(&path).at(&path)?;
                continue;
            }
            if bytes != self.segment_bytes {
                let reason = format!(
                    "a queue's file has {} bytes, this one {bytes}, and so ends",
                    self.segment_bytes
                );
                return Err(Fault::damage(&path, bytes, reason));
            }
            if start % self.segment_bytes != 0 {
                let reason = format!("a queue's file begins at a multiple of {}, not", self.segment_bytes);
                return Err(Fault::damage(&path, start, reason));
            }
            let queue = &mut self.queues[q as usize];
            queue.segments.push(Segment {
                start,
                handle: None,
                used: false,
                unsynced: false,
            });
            queue.end = start + self.segment_bytes;
            queue.written = queue.end;
        }
        Ok(())
    }

    /// Reads a segment's units in order until `each` says stop (false) or the file ends.
    fn walk(&mut self, q: u32, start: u64, mut each: impl FnMut(u64, Unit) -> bool) -> Outcome<()> {
        let Some(handle) = self.handle(q, start, false)? else {
            return Ok(());
        };
        let mut buffer = vec![];
        let mut at = 0;
        let mut chunk = FIRST_CHUNK / UNIT as usize * UNIT as usize;
        while at < self.segment_bytes {
            buffer.resize(chunk.min((self.segment_bytes - at) as usize), 0);
            let n = handle.read_at(&mut buffer, at).at_path(|| self.path_of(q, start))?;
            for (i, bytes) in buffer[..n].chunks_exact(UNIT as usize).enumerate() {
                if !each(at + i as u64 * UNIT, Unit::decode(bytes)) {
                    return Ok(());
                }
            }
            if n < buffer.len() {
                return Ok(());
            }
            at += n as u64;
            chunk = (chunk * 4).min(LARGEST_CHUNK / UNIT as usize * UNIT as usize);
        }
        Ok(())
    }

    /// The queue's units end at `end`: files behind go, and what stands behind `end` in its file becomes zeros,
    /// up to `old_end` at least and to the first page of zeros.
    fn cut(&mut self, q: u32, end: u64, old_end: u64) -> Outcome<()> {
        while let Some(last) = self.queues[q as usize].segments.last() {
            if last.start <= end {
                break;
            }
            let index = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, index)?;
        }
        let queue = &mut self.queues[q as usize];
        let dropped = queue.pending.len();
        queue.pending.clear();
        self.pending_bytes -= dropped;
        queue.end = end;
        queue.written = end;
        queue.min_logic = queue.min_logic.min(end);
        let Some(start) = queue.segments.last().map(|segment| segment.start) else {
            return Ok(());
        };
        if self.read_only || end - start >= self.segment_bytes {
            return Ok(());
        }
        let handle = self.handle(q, start, false)?.expect("it is on the table");
        let mut at = end - start;
        let mut buffer = vec![0; FIRST_CHUNK];
        while at < self.segment_bytes {
            let n = buffer.len().min((self.segment_bytes - at) as usize);
            let n = handle
                .read_at(&mut buffer[..n], at)
                .at_path(|| self.path_of(q, start))?;
            if buffer[..n].iter().any(|&byte| byte != 0) {
                let zeros = vec![0; n];
                self.write(q, start, &zeros, at)?;
            } else if start + at + n as u64 >= old_end {
                break;
            }
            if n == 0 {
                break;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Finds the queue's end: the first thing that is no unit, looked for from the third-last file on.
    /// Returns the end of the last record named, -1 if none is.
    pub fn recover(&mut self, q: u32) -> Outcome<i64> {
        let mut first = self.queues[q as usize].segments.len().saturating_sub(3);
        let (mut end, mut max_physic);
        loop {
            let starts: Vec<u64> = self.queues[q as usize].segments[first..]
                .iter()
                .map(|s| s.start)
                .collect();
            end = starts.first().copied().unwrap_or(0);
            max_physic = -1;
            for (i, &start) in starts.iter().enumerate() {
                if i > 0 && start != end {
                    break; // a file is missing: the queue ends in front of the gap
                }
                self.walk(q, start, |at, unit| {
                    if unit.is_unit() {
                        end = start + at + UNIT;
                        if !unit.is_blank() {
                            max_physic = unit.end();
                        }
                    }
                    unit.is_unit()
                })?;
                if end != start + self.segment_bytes {
                    break;
                }
            }
            if max_physic >= 0 || first == 0 {
                break;
            }
            first -= 1;
        }
        self.queues[q as usize].max_physic = max_physic;
        self.cut(q, end, end)?;
        Ok(max_physic)
    }

    /// Removes the units of records at or behind `pos`.
    pub fn truncate(&mut self, q: u32, pos: i64) -> Outcome<()> {
        self.write_queue(q)?;
        self.queues[q as usize].max_physic = pos;
        let old_end = self.queues[q as usize].end;
        while let Some(start) = self.queues[q as usize].segments.last().map(|segment| segment.start) {
            let bound = self.queues[q as usize].end;
            let (mut end, mut max_physic) = (start, -1);
            self.walk(q, start, |at, unit| {
                let keep = start + at < bound && unit.is_unit() && unit.pos < pos;
                if keep {
                    end = start + at + UNIT;
                    if !unit.is_blank() {
                        max_physic = unit.end();
                    }
                }
                keep
            })?;
            if max_physic >= 0 {
                self.queues[q as usize].max_physic = max_physic;
                return self.cut(q, end, old_end);
            }
            let index = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, index)?;
            let queue = &mut self.queues[q as usize];
            queue.end = if queue.segments.is_empty() { 0 } else { start };
            queue.written = queue.end;
        }
        self.cut(q, 0, 0)
    }

    /// The first unit of a record at or behind `min_pos` becomes the queue's first; unchanged if there is none.
    pub fn correct_min(&mut self, q: u32, min_pos: i64) -> Outcome<()> {
        let end = self.queues[q as usize].written;
        let starts: Vec<u64> = self.queues[q as usize]
            .segments
            .iter()
            .map(|segment| segment.start)
            .collect();
        let mut found = None;
        for start in starts {
            self.walk(q, start, |at, unit| {
                if start + at >= end {
                    return false;
                }
                if unit.pos >= min_pos && !unit.is_blank() {
                    found = Some(start + at);
                }
                found.is_none()
            })?;
            if found.is_some() {
                break;
            }
        }
        if let Some(found) = found {
            self.queues[q as usize].min_logic = found;
        }
        Ok(())
    }

    /// Removes the files whose units all name records below `min_pos`, never the last; returns how many.
    pub fn delete_below(&mut self, q: u32, min_pos: i64) -> Outcome<usize> {
        if !self.read_only {
            self.write_queue(q)?; // so that the files alone tell the story
        }
        let mut removed = 0;
        while self.queues[q as usize].segments.len() > 1 {
            let start = self.queues[q as usize].segments[0].start;
            match self.unit(q, start + self.segment_bytes - UNIT)? {
                Some(unit) if unit.pos < min_pos => self.remove_segment(q, 0)?,
                _ => break,
            }
            removed += 1;
        }
        self.correct_min(q, min_pos)?;
        Ok(removed)
    }

    /// Removes the queue with all its files.
    pub fn remove(&mut self, q: u32) -> Outcome<()> {
        while !self.queues[q as usize].segments.is_empty() {
            let last = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, last)?;
        }
        let folder = self.folder_of(q);
        if !self.read_only {
            // An empty folder that stays does no harm: load finds a queue without units.
            let _ = std::fs::remove_dir(&folder);
            self.new_names_in.remove(&folder);
            if let Some(parent) = folder.parent() {
                self.new_names_in.insert(parent.to_owned());
            }
        }
        let queue = &mut self.queues[q as usize];
        let (topic, id, dropped) = (queue.topic, queue.id, queue.pending.len());
        queue.pending = vec![];
        queue.alive = false;
        self.pending_bytes -= dropped;
        self.topics[topic as usize].queues.remove(&id);
        self.dirty.retain(|&other| other != q);
        self.grew.retain(|&other| other != q);
        self.unsynced.retain(|&(other, _)| other != q);
        self.last_queue = NO_QUEUE;
        self.free.push(q);
        Ok(())
    }

    pub fn remove_topic(&mut self, name: &[u8]) -> Outcome<()> {
        let Some(&topic) = self.names.get(name) else {
            return Ok(());
        };
        let queues: Vec<u32> = self.topics[topic as usize].queues.values().copied().collect();
        for q in queues {
            self.remove(q)?;
        }
        if !self.read_only {
            let folder = self.folder.join(std::ffi::OsStr::from_bytes(name));
            if std::fs::remove_dir(&folder).is_ok() {
                self.new_names_in.remove(&folder);
                self.new_names_in.insert(self.folder.clone());
            }
        }
        Ok(())
    }
}

impl ToSync {
    pub fn sync(&self, door: &Door) -> Outcome<()> {
        let done = match &self.handle {
            Some(handle) => handle.sync(),
            // Closed since it was written: any descriptor of the file brings its pages out.
            None => door.open(&self.path).and_then(|file| file.sync_data()),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // removed meanwhile
            done => done.at(&self.path),
        }
    }
}

fn folders(folder: &Path) -> Outcome<Vec<std::ffi::OsString>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.at(folder)?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.at(folder)?;
        if entry.path().is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    Ok(names)
}
