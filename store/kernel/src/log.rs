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

mod batch;
mod serve;
mod tail;
mod topics;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustc_hash::FxHashMap;

use crate::door::Door;
use crate::encode::{takes_queue_offset, Parts};
use crate::frame::{frame_bytes, split};
use crate::reply::{Answer, Reply};
use batch::batch_messages;
use serve::{Connection, Inner, Rules};
use tail::{os_error, AppendFault, Tail, KEPT_BUFFER_BYTES};
use topics::give_back_offsets;

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
            topics: FxHashMap::default(),
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Log>()
}
