//! The append end of a CommitLog: from received bytes to records in segment files.
//!
//! `feed` takes a chunk as it came from a socket, splits it into frames and appends every plain send among them to the
//! staging buffer; frames it does not serve go back to Python. `write_out` moves what is staged into the segment files,
//! `sync` makes what is written durable, `release` hands out the answers of sends up to a position.
//!
//! Positions are bytes from the start of the log, and `staged >= written >= flushed` always holds:
//! - staged: encoded, positions and queue offsets given; lost with the process;
//! - written: in the page cache; may be shipped, dispatched and read;
//! - flushed: on the disk; may be acknowledged under SYNC_FLUSH.
//!
//! One writer: `feed`, `append*`, `write_out` and `release` are called from one thread. `sync` may run on another: it
//! takes the list of changed files and the written position together, and only then, without the lock, syncs them.
//!
//! A record never crosses a segment: if it (and 8 bytes for a filler) does not fit, a filler closes the segment. Bytes
//! behind the filler's first eight are not log.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::door::{Door, DoorFile};
use crate::encode::{
    place_of, takes_queue_offset, Parts, BLANK_BYTES, BLANK_MAGIC, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES,
    TRANSACTION_MASK,
};
use crate::frame::{frame_bytes, scan_send, split, unescape, Frame};
use crate::reply::{Answer, Reply};

/// A buffer that grew beyond this for one large frame or burst is given back, not kept for the next.
const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// Contiguous staged bytes of one segment.
struct Piece {
    pos: u64,
    bytes: Vec<u8>,
}

/// A record or filler could not be staged.
#[derive(Debug)]
enum AppendFault {
    /// The message can never be stored.
    Illegal(String),
    /// The next segment could not be made.
    Segment(PathBuf, io::Error),
}

impl From<AppendFault> for PyErr {
    fn from(fault: AppendFault) -> PyErr {
        match fault {
            AppendFault::Illegal(why) => PyValueError::new_err(why),
            AppendFault::Segment(path, error) => os_error(&error, &path),
        }
    }
}

fn os_error(error: &io::Error, path: &Path) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let text = io::Error::from_raw_os_error(errno).to_string();
    PyOSError::new_err((errno, text, path.display().to_string()))
}

/// The staged end of the log and the files it goes to.
struct Tail {
    door: Door,
    folder: PathBuf,
    segment_bytes: u64,
    pieces: VecDeque<Piece>,
    spare: Vec<u8>,
    staged: u64,
    written: u64,
    last_store_ms: i64,
    /// Open segments by their start: the one that `staged` lies in, and earlier ones that pieces still wait for.
    segments: VecDeque<(u64, Arc<DoorFile>)>,
    unsynced: Vec<Arc<DoorFile>>,
    /// A segment was created: its folder has to be synced, too.
    folder_changed: bool,
    /// A write failed: below here the file may have bytes of records that were given up.
    stale_end: u64,
    /// A sync failed: what the kernel dropped then cannot be known, so nothing may be called flushed any more.
    broken: bool,
}

impl Tail {
    fn segment_start(&self, pos: u64) -> u64 {
        pos - pos % self.segment_bytes
    }

    fn open_segment(&mut self, start: u64) -> Result<(), AppendFault> {
        let path = self.folder.join(format!("{start:020}"));
        let fault = |error| AppendFault::Segment(path.clone(), error);
        let ready = std::fs::metadata(&path).is_ok_and(|data| data.len() == self.segment_bytes);
        let file = if ready {
            self.door.open(&path).map_err(fault)?
        } else {
            // Whole and allocated at once: a later write cannot find the disk full. And for good: if power loss left a
            // later segment but not this one, the store would not open. (Mostly it was made ahead, by another thread.)
            let made = self
                .door
                .create_sized(&path, self.segment_bytes, true)
                .and_then(|file| {
                    file.sync_data()?;
                    self.door.sync_dir(&self.folder)?;
                    Ok(file)
                });
            if made.is_err() {
                // A file of the wrong length would keep the store from loading; the error to tell is the first one.
                let _ = self.door.remove(&path);
            }
            made.map_err(fault)?
        };
        self.folder_changed = true;
        self.segments.push_back((start, Arc::new(file)));
        Ok(())
    }

    /// Makes room for `size` bytes of records at `staged`: closes the segment with a filler if they do not fit.
    fn make_room(&mut self, size: usize) -> Result<(), AppendFault> {
        if size + BLANK_BYTES > self.segment_bytes as usize {
            return Err(AppendFault::Illegal(format!(
                "{size} bytes do not fit into a segment of {} bytes",
                self.segment_bytes
            )));
        }
        let start = self.segment_start(self.staged);
        let left = self.segment_bytes - (self.staged - start);
        let fits = size as u64 + BLANK_BYTES as u64 <= left;
        let target = if fits { start } else { start + self.segment_bytes };
        // The filler needs its own segment open as well, right after a restart.
        if self.segments.back().is_none_or(|(have, _)| *have < start) {
            self.open_segment(start)?;
        }
        if !fits {
            self.open_segment(target)?;
            let piece = self.piece();
            piece.bytes.extend_from_slice(&(left as i32).to_be_bytes());
            piece.bytes.extend_from_slice(&BLANK_MAGIC.to_be_bytes());
            self.staged = target;
        }
        Ok(())
    }

    /// The piece that ends at `staged`.
    fn piece(&mut self) -> &mut Piece {
        let staged = self.staged;
        // A filler of just eight bytes ends where the next segment begins, and yet the next record is another file's.
        let begins_segment = staged % self.segment_bytes == 0;
        let follows = |last: &Piece| last.pos + last.bytes.len() as u64 == staged;
        if begins_segment || !self.pieces.back().is_some_and(follows) {
            let mut bytes = std::mem::take(&mut self.spare);
            bytes.clear();
            self.pieces.push_back(Piece { pos: staged, bytes });
        }
        self.pieces.back_mut().expect("it was there or was just pushed")
    }

    /// Stages a record that `make_room` has made room for; returns its position.
    fn stage(&mut self, parts: &Parts<'_>) -> u64 {
        let pos = self.staged;
        let piece = self.piece();
        parts.encode(&mut piece.bytes, pos);
        self.staged += parts.size() as u64;
        pos
    }

    /// The store timestamp of a record staged now: non-decreasing along the log even if the clock steps back.
    fn store_ms(&mut self, now_ms: i64) -> i64 {
        self.last_store_ms = self.last_store_ms.max(now_ms);
        self.last_store_ms
    }

    /// Moves all staged bytes into the files. After an error `written` tells how far it came.
    fn write_out(&mut self) -> Result<(), (PathBuf, io::Error)> {
        while let Some(piece) = self.pieces.front() {
            let start = self.segment_start(piece.pos);
            while self.segments.front().is_some_and(|(have, _)| *have < start) {
                self.segments.pop_front();
            }
            let (have, file) = self.segments.front().expect("make_room opened it");
            debug_assert_eq!(*have, start);
            let piece_end = piece.pos + piece.bytes.len() as u64;
            let mut bytes = Cow::from(&piece.bytes);
            if self.stale_end > piece_end && self.stale_end <= start + self.segment_bytes {
                // One of the records given up may begin just where this piece ends: a recovery would take it for the
                // next one. So all of them are written over, with zeros behind the new ones.
                bytes.to_mut().resize((self.stale_end - piece.pos) as usize, 0);
            }
            if let Err(error) = file.write_at(&bytes, piece.pos - start) {
                self.stale_end = self.stale_end.max(piece_end);
                return Err((file.path().to_owned(), error));
            }
            if self.stale_end > start && self.stale_end <= start + self.segment_bytes {
                self.stale_end = 0;
            }
            if !self.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.unsynced.push(Arc::clone(file));
            }
            let done = self.pieces.pop_front().expect("it is the front");
            self.written = self.pieces.front().map_or(self.staged, |next| next.pos);
            if done.bytes.capacity() <= 4 * KEPT_BUFFER_BYTES {
                self.spare = done.bytes;
            }
        }
        self.written = self.staged;
        Ok(())
    }

    /// Zeros over what a failed write left behind the written end, so that no start finds a record there whose sender was
    /// told that it is not stored. If that fails too, the next write does it.
    fn wipe_stale(&mut self) {
        let start = self.segment_start(self.written);
        let Some((_, file)) = self.segments.iter().find(|(have, _)| *have == start) else {
            return;
        };
        if self.stale_end <= self.written || self.stale_end > start + self.segment_bytes {
            return;
        }
        let zeros = vec![0; (self.stale_end - self.written) as usize];
        if file.write_at(&zeros, self.written - start).is_ok() {
            self.stale_end = 0;
            if !self.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.unsynced.push(Arc::clone(file));
            }
        }
    }
}

struct Topic {
    /// Sends to queues [0, queues) are served here; 0: all sends of the topic go to Python.
    queues: i32,
    /// The next offset of each queue ever used.
    next: Vec<i64>,
    put_count: u64,
    put_bytes: u64,
}

impl Topic {
    fn next(&self, queue: i32) -> i64 {
        usize::try_from(queue)
            .ok()
            .and_then(|index| self.next.get(index).copied())
            .unwrap_or(0)
    }

    /// `queue` is not negative.
    fn set_next(&mut self, queue: i32, offset: i64) {
        let index = queue as usize;
        if self.next.len() <= index {
            self.next.resize(index + 1, 0);
        }
        self.next[index] = offset;
    }

    fn count(&mut self, messages: u64, bytes: u64) {
        self.put_count += messages;
        self.put_bytes += bytes;
    }
}

struct Connection {
    born_host: Vec<u8>,
    /// The head of a frame whose rest has not come yet.
    partial: Vec<u8>,
}

/// What every message gets from this broker, and the limits it is held to.
struct Rules {
    max_message_bytes: usize,
    store_host: Vec<u8>,
    /// Appended to the properties of every fed send: the cluster's name.
    suffix: Vec<u8>,
    max_replies: usize,
}

impl Rules {
    fn check(&self, parts: &Parts<'_>) -> Result<(), AppendFault> {
        let limits = [
            ("topic", parts.topic.len(), MAX_TOPIC_BYTES),
            ("properties string", parts.properties_len(), MAX_PROPERTIES_BYTES),
            ("record", parts.size(), self.max_message_bytes),
        ];
        for (what, size, limit) in limits {
            if size > limit {
                return Err(AppendFault::Illegal(format!(
                    "the {what} has {size} bytes, more than {limit}"
                )));
            }
        }
        Ok(())
    }
}

struct Inner {
    tail: Tail,
    rules: Rules,
    answer: Answer,
    hot: bool,
    topics: HashMap<Box<[u8]>, Topic>,
    connections: HashMap<u64, Connection>,
    next_connection: u64,
    replies: VecDeque<Reply>,
    scratch: Vec<u8>,
}

impl Inner {
    fn topic(&mut self, name: &[u8]) -> &mut Topic {
        if !self.topics.contains_key(name) {
            self.topics.insert(
                name.into(),
                Topic {
                    queues: 0,
                    next: Vec::new(),
                    put_count: 0,
                    put_bytes: 0,
                },
            );
        }
        self.topics.get_mut(name).expect("it was there or was just inserted")
    }

    /// Serves one frame if it is a plain send to a known topic. None: it is left to Python.
    fn serve(&mut self, connection: u64, born_host: &[u8], frame: &Frame<'_>, now_ms: i64) -> Option<()> {
        if !self.hot || self.replies.len() >= self.rules.max_replies {
            return None;
        }
        let header = scan_send(frame)?;
        if header.sys_flag & TRANSACTION_MASK != 0 {
            return None;
        }
        let topic = self.topics.get_mut(header.topic)?;
        if header.queue < 0 || header.queue >= topic.queues {
            return None;
        }
        let properties = if header.escaped {
            self.scratch.clear();
            unescape(header.properties, &mut self.scratch)?;
            &self.scratch[..]
        } else {
            header.properties
        };
        if !plain_properties(properties) {
            return None;
        }
        let separator: &[u8] = if properties.is_empty() || properties.ends_with(b"\x02") {
            b""
        } else {
            b"\x02"
        };
        let parts = Parts {
            topic: header.topic,
            queue: header.queue,
            flag: header.flag,
            queue_offset: topic.next(header.queue),
            sys_flag: header.sys_flag,
            born_timestamp: header.born_timestamp,
            born_host,
            store_timestamp: self.tail.store_ms(now_ms),
            store_host: &self.rules.store_host,
            reconsume_times: header.reconsume_times,
            prepared_offset: 0,
            body: frame.body,
            properties: [properties, separator, &self.rules.suffix],
        };
        // Python will meet the same fault, and answers it.
        self.rules.check(&parts).ok()?;
        let size = parts.size();
        self.tail.make_room(size).ok()?;
        let pos = self.tail.stage(&parts);
        topic.set_next(header.queue, parts.queue_offset + 1);
        topic.count(1, size as u64);
        if !header.oneway {
            self.replies.push_back(Reply {
                connection,
                opaque: header.opaque,
                queue: header.queue,
                binary: frame.header_type == 1,
                queue_offset: parts.queue_offset,
                pos,
                end: pos + size as u64,
                at_ms: now_ms,
            });
        }
        Some(())
    }

    /// The answers of a run of replies, one buffer for each run of the same connection.
    fn answers<'py>(
        &self,
        py: Python<'py>,
        replies: &[Reply],
        code: i32,
        remark: Option<&str>,
    ) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut buffer = Vec::new();
        for run in replies.chunk_by(|a, b| a.connection == b.connection) {
            if !self.connections.contains_key(&run[0].connection) {
                continue; // it was closed before its answers were safe to give
            }
            buffer.clear();
            for reply in run {
                self.answer
                    .encode(reply, &self.rules.store_host, code, remark, &mut buffer);
            }
            list.append((run[0].connection, PyBytes::new(py, &buffer)))?;
        }
        Ok(list)
    }
}

/// Properties that need nothing from the broker: well-formed pairs, none of a name that changes a message's way.
fn plain_properties(properties: &[u8]) -> bool {
    if !properties.is_ascii() && std::str::from_utf8(properties).is_err() {
        return false;
    }
    let pairs = properties.strip_suffix(b"\x02").unwrap_or(properties);
    pairs.is_empty() && properties.is_empty()
        || pairs.split(|&byte| byte == 2).all(|pair| {
            let Some(at) = memchr::memchr(1, pair) else {
                return false;
            };
            let (name, value) = (&pair[..at], &pair[at + 1..]);
            let special = match name.first() {
                None => true,
                Some(b'C') => name == b"CLUSTER",
                Some(b'D') => name == b"DELAY",
                Some(b'T') => name == b"TRAN_MSG" || name.starts_with(b"TIMER_"),
                Some(b'W') => name == b"WAIT" && value != b"true",
                _ => false,
            };
            !special && !value.is_empty() && memchr::memchr(1, value).is_none()
        })
}

/// One message of a client's batch: flag, body, properties.
type Inside<'a> = (i32, &'a [u8], &'a [u8]);

/// The messages of a batch: `size, magic, crc, flag, body size, body, properties size, properties` each.
fn batch_messages(mut batch: &[u8]) -> Result<Vec<Inside<'_>>, AppendFault> {
    let whole = batch.len();
    let mut messages = Vec::new();
    while !batch.is_empty() {
        let at = whole - batch.len();
        let broken = || AppendFault::Illegal(format!("the batch's message at byte {at} is cut or has wrong lengths"));
        let int = |from: usize| {
            batch
                .get(from..from + 4)
                .map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]))
        };
        let size = int(0).and_then(|size| usize::try_from(size).ok()).ok_or_else(broken)?;
        let body_bytes = int(16).and_then(|size| usize::try_from(size).ok()).ok_or_else(broken)?;
        let flag = int(12).ok_or_else(broken)?;
        let after = 20usize.checked_add(body_bytes).ok_or_else(broken)?;
        let field = batch.get(after..after + 2).ok_or_else(broken)?;
        let properties_bytes = usize::try_from(i16::from_be_bytes([field[0], field[1]])).map_err(|_| broken())?;
        let end = after + 2 + properties_bytes;
        if size != end || end > batch.len() {
            return Err(broken());
        }
        messages.push((flag, &batch[20..after], &batch[after + 2..end]));
        batch = &batch[end..];
    }
    if messages.is_empty() {
        return Err(AppendFault::Illegal("the batch has no message".to_owned()));
    }
    Ok(messages)
}

/// The append end of one commit log.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct Log {
    inner: Mutex<Inner>,
    flushed: AtomicU64,
    /// Held through a sync. A second one must not overtake it: it would find no changed file, and call flushed what
    /// the first is still writing.
    syncing: Mutex<()>,
    sync_error: Mutex<Option<(PathBuf, io::Error)>>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held would be a bug of ours; the state is no worse than what the panic left.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_files(&self) -> Result<u64, (PathBuf, io::Error)> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, folder, target) = {
            let mut inner = self.lock();
            let tail = &mut inner.tail;
            if tail.broken {
                let error = io::Error::from_raw_os_error(libc::EIO);
                return Err((tail.folder.clone(), error));
            }
            let folder = std::mem::take(&mut tail.folder_changed).then(|| (tail.door.clone(), tail.folder.clone()));
            (std::mem::take(&mut tail.unsynced), folder, tail.written)
        };
        let synced = files
            .iter()
            .try_for_each(|file| file.sync_data().map_err(|error| (file.path().to_owned(), error)))
            .and_then(|()| match folder {
                Some((door, folder)) => door.sync_dir(&folder).map_err(|error| (folder, error)),
                None => Ok(()),
            });
        if let Err(fault) = synced {
            self.lock().tail.broken = true;
            return Err(fault);
        }
        self.flushed.fetch_max(target, Ordering::AcqRel);
        Ok(target)
    }
}

#[pymethods]
impl Log {
    #[new]
    #[pyo3(signature = (door, folder, *, segment_bytes, max_message_bytes, store_host, suffix, region, trace_on=true, max_replies=200_000))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn new(
        door: Door,
        folder: PathBuf,
        segment_bytes: u64,
        max_message_bytes: usize,
        store_host: Vec<u8>,
        suffix: Vec<u8>,
        region: &str,
        trace_on: bool,
        max_replies: usize,
    ) -> PyResult<Self> {
        if store_host.len() != 8 && store_host.len() != 20 {
            return Err(PyValueError::new_err(format!(
                "store_host has {} bytes, not 8 or 20",
                store_host.len()
            )));
        }
        if segment_bytes < 64 || segment_bytes > i32::MAX as u64 {
            return Err(PyValueError::new_err(format!(
                "segment_bytes is {segment_bytes}, not within 64..2147483647"
            )));
        }
        let tail = Tail {
            door,
            folder,
            segment_bytes,
            pieces: VecDeque::new(),
            spare: Vec::new(),
            staged: 0,
            written: 0,
            last_store_ms: 0,
            segments: VecDeque::new(),
            unsynced: Vec::new(),
            folder_changed: false,
            stale_end: 0,
            broken: false,
        };
        let inner = Inner {
            tail,
            rules: Rules {
                max_message_bytes,
                store_host,
                suffix,
                max_replies,
            },
            answer: Answer::new(region, trace_on),
            hot: false,
            topics: HashMap::new(),
            connections: HashMap::new(),
            next_connection: 0,
            replies: VecDeque::new(),
            scratch: Vec::new(),
        };
        Ok(Log {
            inner: Mutex::new(inner),
            flushed: AtomicU64::new(0),
            syncing: Mutex::new(()),
            sync_error: Mutex::new(None),
        })
    }

    /// start(pos, last_store_ms): the recovered end; appends go on from there.
    fn start(&self, pos: u64, last_store_ms: i64) {
        let mut inner = self.lock();
        let tail = &mut inner.tail;
        (tail.staged, tail.written, tail.last_store_ms) = (pos, pos, last_store_ms);
        self.flushed.store(pos, Ordering::Release);
    }

    #[getter]
    fn staged(&self) -> u64 {
        self.lock().tail.staged
    }

    #[getter]
    fn written(&self) -> u64 {
        self.lock().tail.written
    }

    #[getter]
    fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::Acquire)
    }

    #[getter]
    fn last_store_ms(&self) -> i64 {
        self.lock().tail.last_store_ms
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.lock().replies.len()
    }

    /// set_hot(hot): whether plain sends are served here at all.
    fn set_hot(&self, hot: bool) {
        self.lock().hot = hot;
    }

    /// set_topic(topic, queues): sends to queues [0, queues) are served here; 0: none.
    fn set_topic(&self, topic: &[u8], queues: i32) {
        self.lock().topic(topic).queues = queues;
    }

    /// forget_topic(topic): drops the topic with its offsets; a later one of this name starts at 0.
    fn forget_topic(&self, topic: &[u8]) {
        self.lock().topics.remove(topic);
    }

    fn next_offset(&self, topic: &[u8], queue: i32) -> i64 {
        self.lock().topics.get(topic).map_or(0, |topic| topic.next(queue))
    }

    fn set_next_offset(&self, topic: &[u8], queue: i32, offset: i64) -> PyResult<()> {
        if queue < 0 || offset < 0 {
            return Err(PyValueError::new_err(format!(
                "queue {queue} or offset {offset} is negative"
            )));
        }
        self.lock().topic(topic).set_next(queue, offset);
        Ok(())
    }

    /// take_counts() -> [(topic, messages, bytes)]: what was put since the last call, by topic.
    fn take_counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (name, topic) in &mut self.lock().topics {
            if topic.put_count > 0 {
                list.append((PyBytes::new(py, name), topic.put_count, topic.put_bytes))?;
                (topic.put_count, topic.put_bytes) = (0, 0);
            }
        }
        Ok(list)
    }

    /// connect(born_host) -> int: an id for `feed`; born_host is the peer's address in 8 or 20 bytes.
    fn connect(&self, born_host: Vec<u8>) -> PyResult<u64> {
        if born_host.len() != 8 && born_host.len() != 20 {
            return Err(PyValueError::new_err(format!(
                "born_host has {} bytes, not 8 or 20",
                born_host.len()
            )));
        }
        let mut inner = self.lock();
        // Ids are never used twice: an answer that waits for a closed connection must not reach a new one.
        inner.next_connection += 1;
        let id = inner.next_connection;
        inner.connections.insert(
            id,
            Connection {
                born_host,
                partial: Vec::new(),
            },
        );
        Ok(id)
    }

    fn disconnect(&self, connection: u64) {
        self.lock().connections.remove(&connection);
    }

    /// feed(connection, chunk, now_ms) -> (served, cold, fault)
    fn feed<'py>(
        &self,
        py: Python<'py>,
        connection: u64,
        chunk: &[u8],
        now_ms: i64,
    ) -> PyResult<(usize, Option<Bound<'py, PyList>>, Option<String>)> {
        let mut inner = self.lock();
        let Some(open) = inner.connections.get_mut(&connection) else {
            return Err(PyKeyError::new_err(connection));
        };
        let mut partial = std::mem::take(&mut open.partial);
        let born_host = std::mem::take(&mut open.born_host);
        let gathered = !partial.is_empty();
        if gathered {
            partial.extend_from_slice(chunk);
        }
        let data = if gathered { &partial[..] } else { chunk };
        let (mut at, mut served, mut cold, mut fault) = (0, 0, None::<Bound<'py, PyList>>, None);
        while fault.is_none() {
            let bytes = match frame_bytes(&data[at..]) {
                Ok(Some(bytes)) if data.len() - at >= bytes => bytes,
                Ok(_) => break,
                Err(found) => {
                    fault = Some(found.to_string());
                    break;
                }
            };
            match split(&data[at..at + bytes]) {
                Err(found) => fault = Some(found.to_string()),
                Ok(frame) => {
                    if inner.serve(connection, &born_host, &frame, now_ms).is_some() {
                        served += 1;
                    } else {
                        let header = PyBytes::new(py, frame.header);
                        let body = PyBytes::new(py, frame.body);
                        cold.get_or_insert_with(|| PyList::empty(py))
                            .append((frame.header_type, header, body))?;
                    }
                }
            }
            at += bytes;
        }
        if gathered {
            partial.drain(..at);
            if partial.is_empty() && partial.capacity() > KEPT_BUFFER_BYTES {
                partial = Vec::new();
            }
        } else if at < chunk.len() && fault.is_none() {
            let missing = frame_bytes(&chunk[at..]).ok().flatten().unwrap_or(0);
            partial.reserve(missing.clamp(chunk.len() - at, KEPT_BUFFER_BYTES));
            partial.extend_from_slice(&chunk[at..]);
        }
        if let Some(open) = inner.connections.get_mut(&connection) {
            (open.partial, open.born_host) = (partial, born_host);
        }
        Ok((served, cold, fault))
    }

    /// append(...) -> (pos, size, queue_offset, store_timestamp_ms): stages one message that Python built.
    #[pyo3(signature = (topic, queue, body, properties, *, now_ms, born_timestamp, born_host, flag=0, sys_flag=0, reconsume_times=0, prepared_offset=0, store_host=None))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn append(
        &self,
        topic: &[u8],
        queue: i32,
        body: &[u8],
        properties: &[u8],
        now_ms: i64,
        born_timestamp: i64,
        born_host: &[u8],
        flag: i32,
        sys_flag: i32,
        reconsume_times: i32,
        prepared_offset: i64,
        store_host: Option<&[u8]>,
    ) -> PyResult<(u64, usize, i64, i64)> {
        if queue < 0 {
            return Err(PyValueError::new_err(format!("queue {queue} is negative")));
        }
        let mut inner = self.lock();
        let queued = takes_queue_offset(sys_flag);
        let queue_offset = if queued { inner.topic(topic).next(queue) } else { 0 };
        let Inner { tail, rules, .. } = &mut *inner;
        let parts = Parts {
            topic,
            queue,
            flag,
            queue_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp: tail.store_ms(now_ms),
            store_host: store_host.unwrap_or(&rules.store_host),
            reconsume_times,
            prepared_offset,
            body,
            properties: [properties, b"", b""],
        };
        rules.check(&parts)?;
        let size = parts.size();
        tail.make_room(size)?;
        let pos = tail.stage(&parts);
        let stored_ms = parts.store_timestamp;
        let topic = inner.topic(topic);
        if queued {
            topic.set_next(queue, queue_offset + 1);
        }
        topic.count(1, size as u64);
        Ok((pos, size, queue_offset, stored_ms))
    }

    /// append_batch(...) -> (positions, size, first queue_offset, store_timestamp_ms): all of a batch, or nothing.
    #[pyo3(signature = (topic, queue, batch, properties, *, now_ms, born_timestamp, born_host, sys_flag=0, reconsume_times=0))]
    #[allow(clippy::too_many_arguments)] // keyword-only in Python
    fn append_batch(
        &self,
        topic: &[u8],
        queue: i32,
        batch: &[u8],
        properties: &[u8],
        now_ms: i64,
        born_timestamp: i64,
        born_host: &[u8],
        sys_flag: i32,
        reconsume_times: i32,
    ) -> PyResult<(Vec<u64>, usize, i64, i64)> {
        if queue < 0 {
            return Err(PyValueError::new_err(format!("queue {queue} is negative")));
        }
        let messages = batch_messages(batch)?;
        let mut inner = self.lock();
        let first = inner.topic(topic).next(queue);
        let Inner { tail, rules, .. } = &mut *inner;
        let store_timestamp = tail.store_ms(now_ms);
        let parts: Vec<Parts<'_>> = messages
            .iter()
            .zip(first..)
            .map(|(&(flag, body, own), queue_offset)| {
                let open = !own.is_empty() && !own.ends_with(b"\x02");
                Parts {
                    topic,
                    queue,
                    flag,
                    queue_offset,
                    sys_flag,
                    born_timestamp,
                    born_host,
                    store_timestamp,
                    store_host: &rules.store_host,
                    reconsume_times,
                    prepared_offset: 0,
                    body,
                    properties: [own, if open { b"\x02" } else { b"" }, properties],
                }
            })
            .collect();
        parts.iter().try_for_each(|one| rules.check(one))?;
        let size = parts.iter().map(Parts::size).sum();
        if size > rules.max_message_bytes {
            let limit = rules.max_message_bytes;
            return Err(AppendFault::Illegal(format!("the batch has {size} bytes, more than {limit}")).into());
        }
        tail.make_room(size)?;
        let positions: Vec<u64> = parts.iter().map(|one| tail.stage(one)).collect();
        let topic = inner.topic(topic);
        topic.set_next(queue, first + positions.len() as i64);
        topic.count(positions.len() as u64, size as u64);
        Ok((positions, size, first, store_timestamp))
    }

    /// write_out() -> int: staged bytes into the segment files; returns the written end. OSError: see `abandon`.
    fn write_out(&self) -> PyResult<u64> {
        let mut inner = self.lock();
        match inner.tail.write_out() {
            Ok(()) => Ok(inner.tail.written),
            Err((path, error)) => Err(os_error(&error, &path)),
        }
    }

    /// abandon(code, remark) -> answers: forgets what could not be written, and refuses the sends that it held.
    fn abandon<'py>(&self, py: Python<'py>, code: i32, remark: &str) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let Inner {
            tail, topics, replies, ..
        } = &mut *inner;
        for piece in tail.pieces.drain(..).rev() {
            give_back_offsets(&piece.bytes, topics);
        }
        tail.staged = tail.written;
        tail.wipe_stale();
        let safe = replies.partition_point(|reply| reply.end <= tail.written);
        let refused: Vec<Reply> = replies.drain(safe..).collect();
        inner.answers(py, &refused, code, Some(remark))
    }

    /// sync() -> int: makes what is written durable, with the GIL released; returns the flushed end.
    fn sync(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.sync_files())
            .map_err(|(path, error)| os_error(&error, &path))
    }

    /// serve_syncs(requests, done): on a thread of its caller's, one sync for each token read from the descriptor
    /// `requests`, then one token (8 bytes, as of an eventfd) to `done`. Ends at a token of 2^62 or more, or when a
    /// sync failed (`sync_failure`). The GIL is not needed between tokens.
    fn serve_syncs(&self, py: Python<'_>, requests: i32, done: i32) {
        py.detach(|| loop {
            let mut token = 0u64;
            // SAFETY: `token` is 8 bytes, valid for the call; the descriptors are the caller's for as long as this runs.
            let got = unsafe { libc::read(requests, (&raw mut token).cast(), 8) };
            if got < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            if got != 8 || token >= 1 << 62 {
                return;
            }
            let failed = match self.sync_files() {
                Ok(_) => false,
                Err(fault) => {
                    *self.sync_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault);
                    true
                }
            };
            let one = 1u64;
            // SAFETY: as above. An eventfd takes the token at once: its counter is read at every wake-up.
            unsafe { libc::write(done, (&raw const one).cast(), 8) };
            if failed {
                return;
            }
        });
    }

    /// sync_failure() -> OSError or None: why `serve_syncs` ended.
    fn sync_failure(&self) -> Option<PyErr> {
        let held = self.sync_error.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref().map(|(path, error)| os_error(error, path))
    }

    /// release(pos) -> [(connection, bytes)]: the answers of sends that end at or below `pos`.
    fn release<'py>(&self, py: Python<'py>, pos: u64) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let safe = inner.replies.partition_point(|reply| reply.end <= pos);
        let released: Vec<Reply> = inner.replies.drain(..safe).collect();
        inner.answers(py, &released, 0, None)
    }

    /// expire(before_ms, code) -> answers: gives up waiting for sends fed before `before_ms`; they are stored.
    fn expire<'py>(&self, py: Python<'py>, before_ms: i64, code: i32) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let old = inner.replies.partition_point(|reply| reply.at_ms < before_ms);
        let expired: Vec<Reply> = inner.replies.drain(..old).collect();
        inner.answers(py, &expired, code, None)
    }
}

/// Gives the queue offsets of staged records back: they will be used again.
fn give_back_offsets(staged: &[u8], topics: &mut HashMap<Box<[u8]>, Topic>) {
    let mut at = 0;
    while let Some(place) = place_of(&staged[at..]) {
        if place.queued {
            if let Some(topic) = topics.get_mut(place.topic) {
                let next = topic.next(place.queue);
                topic.set_next(place.queue, next.min(place.queue_offset));
            }
        }
        at += place.size;
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Log>()
}
