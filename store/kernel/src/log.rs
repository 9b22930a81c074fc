//! The append end of a CommitLog: turns received bytes into records in segment files.
//!
//! `feed` takes a chunk as it came from a socket, splits it into frames and appends every plain send among them to the
//! staging buffer; it returns other frames to Python. `write_out` moves staged bytes into the segment files, `sync`
//! makes written bytes durable, and `release` returns the answers of sends up to a position.
//!
//! Positions are bytes from the start of the log, and `staged >= written >= flushed` always holds:
//! - staged: encoded, with positions and queue offsets; lost with the process;
//! - written: in the page cache; may be shipped, dispatched and read;
//! - flushed: on the disk; may be acknowledged under SYNC_FLUSH.
//!
//! There is one writer: one thread calls `feed`, `append*`, `write_out` and `release`. `sync` may run on another
//! thread: it takes the list of changed files and the written position together under the lock, and syncs them without
//! the lock.
//!
//! A record never crosses a segment: if it (and 8 bytes for a filler) does not fit, a filler closes the segment. Bytes
//! after the filler's first eight are not part of the log.
//!
//! With an index folder the log has dledger's layout: each record lies in an entry (`entry.rs`), an index is written in
//! addition (`log/entries.rs`), entries of another log can be appended unchanged, and the end can be truncated.

mod access;
mod batch;
mod copied;
mod entries;
mod locked;
mod put_times;
mod record_sizes;
mod serve;
mod sync_times;
mod tail;
mod topics;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustc_hash::FxHashMap;

use crate::door::Door;
use crate::encode::{takes_queue_offset, Parts};
use crate::entry::{Link, ENTRY_HEADER, INDEX_UNIT};
use crate::frame::{frame_bytes, split};
use crate::ledger::{entry_error, Entries};
use crate::meter::Meter;
use crate::named::named_tuples;
use crate::record::Record;
use crate::reply::{Answer, Reply};
use crate::scan::check_geometry;
use access::Access;
use batch::batch_messages;
use entries::{EntryFiles, EntryTail, Place};
use locked::Buffer;
use put_times::PutTimes;
use record_sizes::RecordSizes;
use serve::{Connection, Inner, Rules};
use sync_times::SyncTimes;
use tail::{os_error, AppendFault, Tail};
use topics::give_back_offsets;

/// Memory for an unfinished frame that a connection keeps after a large frame.
const KEPT_PARTIAL_BYTES: usize = 16 << 10;

named_tuples! {
    /// An end of the log: its position, and the index, term and chain CRC of the last entry before it.
    LogPoint { pos: u64, last_index: i64, term: i64, chain: u32 }
    /// What became of bytes of another log: see `append_followed`.
    Followed { taken: usize, wanted: usize, flaw: Option<&'static str>, reference: Option<i64>, halves: Vec<(u64, u64)> }
    /// The header of an entry: its position, size, term and kind, its chain CRC, and the CRC of its body.
    EntryHeader { pos: u64, size: u32, term: i64, kind: i32, chain: u32, body_crc: u32 }
}

/// The append end of one commit log.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct Log {
    inner: Mutex<Inner>,
    flushed: AtomicU64,
    /// Held during a sync. A second sync must not overtake it: it would find no changed file, and report bytes as
    /// flushed that the first one is still writing.
    syncing: Mutex<()>,
    sync_error: Mutex<Option<(PathBuf, io::Error)>>,
    sync_times: Mutex<SyncTimes>,
    /// Only in dledger's layout: the written entries, and the position up to which they are flushed.
    files: Option<EntryFiles>,
    flushed_point: Mutex<(u64, Link)>,
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under this lock would be a bug; the state is then what the panic left.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync_files(&self) -> Result<u64, (PathBuf, io::Error)> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let (files, folder, target, point) = {
            let mut inner = self.lock();
            let tail = &mut inner.tail;
            if tail.broken {
                let error = io::Error::from_raw_os_error(libc::EIO);
                return Err((tail.folder.clone(), error));
            }
            let folder = std::mem::take(&mut tail.folder_changed).then(|| (tail.door.clone(), tail.folder.clone()));
            let point = tail.entries.as_ref().map(|entries| entries.written);
            (std::mem::take(&mut tail.unsynced), folder, tail.written, point)
        };
        let begin = (!files.is_empty() || folder.is_some()).then(Instant::now);
        let synced = files
            .iter()
            .try_for_each(|file| file.sync_data().map_err(|error| (file.path().to_owned(), error)))
            .and_then(|()| match folder {
                Some((door, folder)) => door.sync_dir(&folder).map_err(|error| (folder, error)),
                None => Ok(()),
            });
        if let Some(begin) = begin {
            self.sync_times().add(begin.elapsed());
        }
        if let Err(fault) = synced {
            self.lock().tail.broken = true;
            return Err(fault);
        }
        self.flushed.fetch_max(target, Ordering::AcqRel);
        if let Some(link) = point {
            *self.flushed_entries() = (target, link);
        }
        Ok(target)
    }

    fn sync_times(&self) -> MutexGuard<'_, SyncTimes> {
        self.sync_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flushed_entries(&self) -> MutexGuard<'_, (u64, Link)> {
        self.flushed_point.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry_files(&self) -> PyResult<&EntryFiles> {
        self.files
            .as_ref()
            .ok_or_else(|| PyValueError::new_err("this log has no entries: it has the plain layout"))
    }

    /// The place of an entry, staged or written.
    fn place(&self, index: u64) -> PyResult<Option<Place>> {
        let files = self.entry_files()?;
        let staged = {
            let inner = self.lock();
            let entries = inner.tail.entries.as_ref().expect("it has files of entries");
            if index >= entries.staged.next_index {
                return Ok(None);
            }
            entries.staged_place(index)
        };
        match staged {
            Some(place) => Ok(Some(place)),
            None => Ok(files.place(index)?),
        }
    }

    /// The place of a written entry; the caller knows that it exists.
    fn written_place(&self, index: u64) -> PyResult<Place> {
        let written = self.with_entries(|entries| entries.written.next_index)?;
        let found = if index < written {
            self.entry_files()?.place(index)?
        } else {
            None
        };
        found.ok_or_else(|| Python::attach(|py| entry_error(py, index, 0, "the index does not have it")))
    }

    fn with_entries<T>(&self, look: impl FnOnce(&mut EntryTail) -> T) -> PyResult<T> {
        self.entry_files()?;
        let mut inner = self.lock();
        Ok(look(inner.tail.entries.as_mut().expect("it has files of entries")))
    }
}

#[pymethods]
impl Log {
    #[new]
    #[pyo3(signature = (door, folder, *, segment_bytes, max_message_bytes, store_host, suffix, region, trace_on=true, max_replies=200_000, index_folder=None, index_segment_bytes=0))]
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
        index_folder: Option<PathBuf>,
        index_segment_bytes: u64,
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
        if index_folder.is_some() && (index_segment_bytes == 0 || index_segment_bytes % INDEX_UNIT as u64 != 0) {
            return Err(PyValueError::new_err(format!(
                "index_segment_bytes is {index_segment_bytes}, no multiple of {INDEX_UNIT}"
            )));
        }
        let files = index_folder
            .as_ref()
            .map(|index| EntryFiles::new(&folder, segment_bytes, index, index_segment_bytes));
        let entries = index_folder.map(|index| Box::new(EntryTail::new(door.clone(), index, index_segment_bytes)));
        let tail = Tail {
            door,
            folder,
            segment_bytes,
            pieces: VecDeque::new(),
            spare: Buffer::default(),
            staged: 0,
            written: 0,
            last_store_ms: 0,
            segments: VecDeque::new(),
            unsynced: Vec::new(),
            folder_changed: false,
            stale_end: 0,
            broken: false,
            locks_buffers: false,
            entries,
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
            checks_access: false,
            topics: FxHashMap::default(),
            connections: HashMap::new(),
            next_connection: 0,
            replies: VecDeque::new(),
            put_times: PutTimes::default(),
            record_sizes: RecordSizes::default(),
            scratch: Vec::new(),
        };
        Ok(Log {
            inner: Mutex::new(inner),
            flushed: AtomicU64::new(0),
            syncing: Mutex::new(()),
            sync_error: Mutex::new(None),
            sync_times: Mutex::default(),
            files,
            flushed_point: Mutex::new((0, Link::default())),
        })
    }

    /// start(pos, last_store_ms, last_index=-1, last_term=-1, last_chain=0): sets the recovered end; appends continue
    /// there.
    #[pyo3(signature = (pos, last_store_ms, last_index=-1, last_term=-1, last_chain=0))]
    fn start(&self, pos: u64, last_store_ms: i64, last_index: i64, last_term: i64, last_chain: u32) {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut inner = self.lock();
        let tail = &mut inner.tail;
        (tail.staged, tail.written, tail.last_store_ms) = (pos, pos, last_store_ms);
        if let Some(entries) = &mut tail.entries {
            // The log starts again after another entry: the old files must not be changed any more.
            (tail.stale_end, tail.folder_changed) = (0, false);
            tail.pieces.clear();
            tail.segments.clear();
            tail.unsynced.clear();
            let link = Link {
                next_index: (last_index + 1) as u64,
                term: last_term,
                chain: last_chain,
            };
            entries.start(link);
            *self.flushed_entries() = (pos, link);
        }
        if let Some(files) = &self.files {
            files.forget();
        }
        self.flushed.store(pos, Ordering::Release);
    }

    /// set_term(term): sets the term of the entries that are appended here from now on.
    fn set_term(&self, term: i64) -> PyResult<()> {
        let last = self.with_entries(|entries| {
            entries.term = term.max(entries.term);
            entries.staged.term.max(entries.term)
        })?;
        if term < last {
            return Err(PyValueError::new_err(format!("term {term} after term {last}")));
        }
        Ok(())
    }

    /// Index of the last staged or written entry; -1: there is none.
    #[getter]
    fn staged_index(&self) -> PyResult<i64> {
        self.with_entries(|entries| entries.staged.next_index as i64 - 1)
    }

    #[getter]
    fn written_index(&self) -> PyResult<i64> {
        self.with_entries(|entries| entries.written.next_index as i64 - 1)
    }

    #[getter]
    fn flushed_index(&self) -> PyResult<i64> {
        self.entry_files()?;
        Ok(self.flushed_entries().1.next_index as i64 - 1)
    }

    /// written_point() -> (pos, index, term, chain): the end of the written bytes, and the last entry before it.
    fn written_point(&self) -> PyResult<LogPoint> {
        let link = self.with_entries(|entries| entries.written)?;
        Ok(point(self.lock().tail.written, link))
    }

    /// flushed_point() -> (pos, index, term, chain): the end of the durable bytes, and the last entry before it.
    fn flushed_point(&self) -> PyResult<LogPoint> {
        self.entry_files()?;
        let (pos, link) = *self.flushed_entries();
        Ok(point(pos, link))
    }

    /// append_entries(entries, first_index) -> int: stages the entries from `first_index` on, which must be the next
    /// one; returns the index of the last one staged. EntryError: they do not continue this log.
    fn append_entries(&self, py: Python<'_>, entries: &Entries, first_index: u64) -> PyResult<i64> {
        self.entry_files()?;
        let mut inner = self.lock();
        let tail = &mut inner.tail;
        let link = tail.entries.as_ref().expect("it has files of entries").staged;
        let from = first_index.checked_sub(entries.first_index()).map(|from| from as usize);
        let Some(from) = from.filter(|&from| first_index == link.next_index && from < entries.len()) else {
            let have = (entries.first_index(), entries.len());
            return Err(PyValueError::new_err(format!(
                "entry {first_index} of {} from {} on does not follow {}",
                have.1,
                have.0,
                link.next_index as i64 - 1
            )));
        };
        let (first, _) = entries.entry(from);
        entries
            .follows(from, &link)
            .map_err(|flaw| entry_error(py, first_index, first.pos, flaw.text()))?;
        let segment_end = tail.segment_start(tail.staged) + tail.segment_bytes;
        let jumps = first.pos == segment_end && tail.staged % tail.segment_bytes != 0;
        if first.pos != tail.staged && !jumps {
            return Err(entry_error(
                py,
                first_index,
                first.pos,
                "it does not lie where this log ends",
            ));
        }
        for i in from..entries.len() {
            let (header, bytes) = entries.entry(i);
            tail.stage_entry(&header, bytes)?;
        }
        tail.last_store_ms = tail.last_store_ms.max(entries.last_store_timestamp);
        Ok(entries.last.next_index as i64 - 1)
    }

    /// cut(pos, last_index, last_term, last_chain): durably truncates the log after entry `last_index`, which ends at
    /// `pos`. ValueError: staged bytes exist, or nothing follows the entry. OSError: the state of the log is unknown.
    fn cut(&self, py: Python<'_>, pos: u64, last_index: i64, last_term: i64, last_chain: u32) -> PyResult<()> {
        let files = self.entry_files()?;
        let link = Link {
            next_index: (last_index + 1) as u64,
            term: last_term,
            chain: last_chain,
        };
        py.detach(|| {
            // Not during a sync: the sync would report bytes as flushed that are being truncated.
            let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut inner = self.lock();
            let tail = &mut inner.tail;
            let mut entries = tail.entries.take().expect("it has files of entries");
            let settled = entries.is_settled() && tail.staged == tail.written;
            let cut = if !settled || pos > tail.written || link.next_index > entries.written.next_index {
                Ok(false)
            } else {
                files.forget();
                entries.cut(link).and_then(|()| tail.cut(pos)).map(|()| true)
            };
            tail.entries = Some(entries);
            if matches!(cut, Ok(true)) {
                self.flushed.fetch_min(pos, Ordering::AcqRel);
                let mut point = self.flushed_entries();
                if point.1.next_index > link.next_index || point.0 > pos {
                    *point = (pos, link);
                }
            }
            tail.broken |= cut.is_err();
            cut
        })
        .map_err(|(path, error)| os_error(&error, &path))?
        .then_some(())
        .ok_or_else(|| PyValueError::new_err(format!("the log cannot be cut at {pos}, behind entry {last_index}")))
    }

    /// rewrite(pos, data): durably replaces written bytes. The caller has checked the new bytes.
    fn rewrite(&self, py: Python<'_>, pos: u64, data: pyo3::pybacked::PyBackedBytes) -> PyResult<()> {
        self.entry_files()?;
        py.detach(|| {
            let inner = self.lock();
            inner.tail.rewrite(pos, &data)
        })
        .map_err(|(path, error)| os_error(&error, &path))
    }

    /// unit(index) -> (pos, size, term) or None: where a staged or written entry lies.
    fn unit(&self, index: u64) -> PyResult<Option<(u64, u32, i64)>> {
        Ok(self.place(index)?.map(|place| (place.pos, place.size, place.term)))
    }

    /// header(index) -> (pos, size, term, kind, chain, body CRC) or None: of a written entry, as stored on the disk.
    fn header(&self, index: u64) -> PyResult<Option<EntryHeader>> {
        let files = self.entry_files()?;
        if index >= self.with_entries(|entries| entries.written.next_index)? {
            return Ok(None);
        }
        let Some(place) = files.place(index)? else {
            return Ok(None);
        };
        let header = files
            .header(&place)?
            .filter(|header| (header.index, header.pos, header.size) == (index, place.pos, place.size));
        Ok(header.map(|h| EntryHeader {
            pos: h.pos,
            size: h.size,
            term: h.term,
            kind: h.kind,
            chain: h.chain,
            body_crc: h.body_crc,
        }))
    }

    /// index_of(pos, first_index) -> int: the last written entry, from `first_index` on, that ends at or before `pos`;
    /// `first_index` - 1 if no entry does.
    fn index_of(&self, pos: u64, first_index: u64) -> PyResult<i64> {
        let next = self.with_entries(|entries| entries.written.next_index)?;
        let (mut low, mut high) = (first_index, next.max(first_index));
        while low < high {
            let middle = low + (high - low) / 2;
            if self.written_place(middle)?.end() <= pos {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low as i64 - 1)
    }

    /// extent(first, max_bytes) -> int: the last written entry such that the entries from `first` to it take at most
    /// `max_bytes`, with fillers; `first` itself if it is larger.
    fn extent(&self, first: u64, max_bytes: u64) -> PyResult<i64> {
        let next = self.with_entries(|entries| entries.written.next_index)?;
        let begin = self.written_place(first)?;
        let limit = begin.pos.saturating_add(max_bytes);
        let (mut low, mut high) = (first, next - 1);
        if self.written_place(high)?.end() <= limit {
            return Ok(high as i64);
        }
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if self.written_place(middle)?.end() <= limit {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Ok(low as i64)
    }

    /// read_range(first, last) -> bytes: written entries as they lie in the segments, with fillers.
    fn read_range<'py>(&self, py: Python<'py>, first: u64, last: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (begin, end) = (self.written_place(first)?.pos, self.written_place(last)?.end());
        let files = self.entry_files()?;
        let mut bytes = Vec::with_capacity(end.saturating_sub(begin) as usize);
        if first > last || !files.read(begin, end, &mut bytes)? {
            return Err(entry_error(py, first, begin, "the segments do not have it"));
        }
        Ok(PyBytes::new(py, &bytes))
    }

    /// sync_index(): makes the written units of the index durable, with the GIL released.
    fn sync_index(&self, py: Python<'_>) -> PyResult<()> {
        let (files, folder) = self.with_entries(EntryTail::take_unsynced)?;
        let synced = py.detach(|| {
            files
                .iter()
                .try_for_each(|file| file.sync_data().map_err(|error| (file.path().to_owned(), error)))?;
            match &folder {
                Some((door, folder)) => door.sync_dir(folder).map_err(|error| (folder.clone(), error)),
                None => Ok(()),
            }
        });
        if let Err((path, error)) = synced {
            self.with_entries(|entries| entries.put_back_unsynced(files, folder.is_some()))?;
            return Err(os_error(&error, &path));
        }
        Ok(())
    }

    /// forget_files(): releases the maps of segments and index; they are mapped again when they are read again.
    fn forget_files(&self) -> PyResult<()> {
        self.entry_files()?.forget();
        Ok(())
    }

    /// reset_offsets(): resets all queues to no messages; the served topics stay.
    fn reset_offsets(&self) {
        self.lock().topics.values_mut().for_each(|topic| topic.next.clear());
    }

    /// take_offsets(first_index): raises the queues' next offsets to those in the written entries from `first_index`
    /// on.
    fn take_offsets(&self, py: Python<'_>, first_index: u64) -> PyResult<()> {
        let next = self.with_entries(|entries| entries.written.next_index)?;
        let mut bytes = Vec::new();
        for index in first_index..next {
            let place = self.written_place(index)?;
            bytes.clear();
            if !self.entry_files()?.read(place.pos, place.end(), &mut bytes)? {
                return Err(entry_error(py, index, place.pos, "the segments do not have it"));
            }
            let body = bytes.get(ENTRY_HEADER..).unwrap_or_default();
            if body.is_empty() {
                continue;
            }
            let record = Record::parse(body, place.pos + ENTRY_HEADER as u64)
                .map_err(|(bad, _)| entry_error(py, index, place.pos, bad.text()))?;
            if record.is_queued() && record.queue_id() >= 0 {
                let mut inner = self.lock();
                let topic = inner.topic(record.topic());
                let next = topic.next(record.queue_id()).max(record.queue_offset() + 1);
                topic.set_next(record.queue_id(), next);
            }
        }
        Ok(())
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

    /// set_hot(hot): enables or disables serving of plain sends in the kernel.
    fn set_hot(&self, hot: bool) {
        self.lock().hot = hot;
    }

    /// set_max_message_bytes(bytes): the largest record and batch from now on.
    fn set_max_message_bytes(&self, bytes: usize) {
        self.lock().rules.max_message_bytes = bytes;
    }

    /// lock_buffers(): keeps staged bytes in locked memory from now on. OSError: the system does not lock it; staged
    /// bytes are then in memory that can be swapped out.
    fn lock_buffers(&self) -> PyResult<()> {
        let mut inner = self.lock();
        let (buffer, locked) = Buffer::locked();
        locked?;
        (inner.tail.spare, inner.tail.locks_buffers) = (buffer, true);
        Ok(())
    }

    /// set_answers(region, trace_on): what all answers to sends tell producers from now on.
    fn set_answers(&self, region: &str, trace_on: bool) {
        self.lock().answer = Answer::new(region, trace_on);
    }

    /// take_put_times() -> ([count by class of duration], longest ms): of sends that `feed` served since the last call.
    fn take_put_times(&self) -> ([u64; put_times::CLASSES], i64) {
        self.lock().put_times.take()
    }

    /// put_totals() -> ([count by class of duration], total ms, failed): of sends that `feed` served since the start;
    /// counts and time of those that were acknowledged, and the number of the others.
    fn put_totals(&self) -> ([u64; put_times::CLASSES], u64, u64) {
        self.lock().put_times.totals()
    }

    /// answer_totals() -> ([limit of a class in ms], {code of the answer: ([count by class], total ms)}): of sends that
    /// `feed` served and that were answered, since the start. The last class has no limit.
    #[allow(clippy::type_complexity)] // a tuple of Python
    fn answer_totals(&self) -> (Vec<i64>, HashMap<i32, ([u64; put_times::ANSWER_CLASSES], u64)>) {
        let inner = self.lock();
        let answers = inner.put_times.answers().iter();
        let found = answers.map(|(&code, answered)| (code, (answered.counts, answered.total_ms)));
        (put_times::ANSWER_LIMITS_MS.to_vec(), found.collect())
    }

    /// size_totals() -> ([limit of a class in bytes], [count by class], total bytes): of the records that this process
    /// stored since the start, copied ones left out. The last class has no limit.
    fn size_totals(&self) -> (Vec<u64>, [u64; record_sizes::CLASSES], u64) {
        let (counts, bytes) = self.lock().record_sizes.totals();
        (record_sizes::LIMITS.to_vec(), counts, bytes)
    }

    /// sync_totals() -> ([limit of a class in s], [count by class], total s): of the syncs since the start that had
    /// something to sync. The last class has no limit.
    fn sync_totals(&self) -> (Vec<f64>, [u64; sync_times::CLASSES], f64) {
        let limits = sync_times::LIMITS_US.iter().map(|&limit| limit as f64 / 1e6).collect();
        let (counts, seconds) = self.sync_times().totals();
        (limits, counts, seconds)
    }

    /// set_topic(topic, queues): the kernel serves sends to queues [0, queues); 0: to no queue.
    fn set_topic(&self, topic: &[u8], queues: i32) {
        self.lock().topic(topic).queues = queues;
    }

    /// forget_topic(topic): removes the topic with its offsets; a later topic with this name starts at 0.
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

    /// take_counts() -> [(topic, messages, bytes)]: appended since the last call, by topic.
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
        // Ids are never reused: an answer that waits for a closed connection must not reach a new one.
        inner.next_connection += 1;
        let id = inner.next_connection;
        inner.connections.insert(
            id,
            Connection {
                born_host,
                partial: Vec::new(),
                access: Access::default(),
                meter: None,
            },
        );
        Ok(id)
    }

    fn disconnect(&self, connection: u64) {
        self.lock().connections.remove(&connection);
    }

    /// check_access(): from now on `feed` stores only sends that were granted.
    fn check_access(&self) {
        self.lock().checks_access = true;
    }

    /// grant(connection, topic, access_key, secret, meter): sends of this account to this topic are stored if their
    /// signatures are right, and the meter admits them.
    #[pyo3(signature = (connection, topic, access_key, secret, meter = None))]
    fn grant(&self, connection: u64, topic: &[u8], access_key: &[u8], secret: &[u8], meter: Option<PyRef<'_, Meter>>) {
        if let Some(open) = self.lock().connections.get_mut(&connection) {
            open.access
                .grant(topic, access_key, secret, meter.map(|meter| meter.0.clone()));
        }
    }

    /// set_meter(connection, meter): plain sends of the connection are stored if the meter admits them; None: always.
    fn set_meter(&self, connection: u64, meter: Option<PyRef<'_, Meter>>) {
        if let Some(open) = self.lock().connections.get_mut(&connection) {
            open.meter = meter.map(|meter| meter.0.clone());
        }
    }

    /// trust(connection): all its sends are stored, with or without signature.
    fn trust(&self, connection: u64) {
        if let Some(open) = self.lock().connections.get_mut(&connection) {
            open.access.trust();
        }
    }

    /// revoke(): forgets all grants of all connections.
    fn revoke(&self) {
        for open in self.lock().connections.values_mut() {
            open.access = Access::default();
        }
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
        let meter = open.meter.clone();
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
                    if inner
                        .serve(connection, &born_host, meter.as_ref(), &frame, now_ms)
                        .is_some()
                    {
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
            if partial.len() <= KEPT_PARTIAL_BYTES && partial.capacity() > KEPT_PARTIAL_BYTES {
                partial.shrink_to(KEPT_PARTIAL_BYTES); // the large frame is complete: release its memory
            }
        } else if at < chunk.len() && fault.is_none() {
            let missing = frame_bytes(&chunk[at..]).ok().flatten().unwrap_or(0);
            partial.reserve(missing.clamp(chunk.len() - at, KEPT_PARTIAL_BYTES.max(chunk.len() - at)));
            partial.extend_from_slice(&chunk[at..]);
        }
        if let Some(open) = inner.connections.get_mut(&connection) {
            (open.partial, open.born_host) = (partial, born_host);
        }
        Ok((served, cold, fault))
    }

    /// unfinished(connection) -> int: bytes of a frame that is not complete yet.
    fn unfinished(&self, connection: u64) -> usize {
        self.lock()
            .connections
            .get(&connection)
            .map_or(0, |open| open.partial.len())
    }

    /// append(...) -> (pos, size, queue_offset, store_timestamp_ms): stages one message that Python built.
    #[pyo3(signature = (topic, queue, body, properties, *, now_ms, born_timestamp, born_host, flag=0, sys_flag=0, reconsume_times=0, prepared_offset=0, store_host=None, kind=0))]
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
        kind: i32,
    ) -> PyResult<(u64, usize, i64, i64)> {
        if queue < 0 {
            return Err(PyValueError::new_err(format!("queue {queue} is negative")));
        }
        if kind != 0 && self.files.is_none() {
            return Err(PyValueError::new_err(format!("kind {kind}: this log has no entries")));
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
        tail.make_room(tail.framed(size, 1))?;
        let pos = tail.stage(&parts, kind);
        let stored_ms = parts.store_timestamp;
        let topic = inner.topic(topic);
        if queued {
            topic.set_next(queue, queue_offset + 1);
        }
        topic.count(1, size as u64);
        inner.record_sizes.add(size as u64);
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
        let Inner {
            tail,
            rules,
            record_sizes,
            ..
        } = &mut *inner;
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
        // All in one segment, entries too: the creation of the next segment cannot fail between two messages.
        tail.make_room(tail.framed(size, parts.len()))?;
        let positions: Vec<u64> = parts.iter().map(|one| tail.stage(one, 0)).collect();
        parts.iter().for_each(|one| record_sizes.add(one.size() as u64));
        let topic = inner.topic(topic);
        topic.set_next(queue, first + positions.len() as i64);
        topic.count(positions.len() as u64, size as u64);
        Ok((positions, size, first, store_timestamp))
    }

    /// append_copied(data) -> (taken, wanted, flaw or None): stages the records and fillers at the start of `data`, the
    /// bytes of another log from this log's staged end on, as far as they are complete and sound. `wanted`: the bytes
    /// that the next item has, as far as `data` tells. `flaw`: why the next item cannot be stored. ValueError: this log
    /// has entries. OSError: the next segment could not be created; earlier items of `data` may be staged.
    fn append_copied(&self, data: &[u8]) -> PyResult<(usize, usize, Option<&'static str>)> {
        let mut inner = self.lock();
        if inner.tail.entries.is_some() {
            return Err(PyValueError::new_err("a log with entries takes entries, not records"));
        }
        let copied = inner.tail.stage_copied(data)?;
        Ok((copied.taken, copied.wanted, copied.flaw))
    }

    /// append_followed(data, pos, segment_bytes, mapped) -> Followed:
    /// stages the records at the start of `data`, which lies at `pos` in another log with segments of `segment_bytes`,
    /// as entries, as far as they are complete and sound, and up to the next filler. Stops before a record that names
    /// the half message at `reference` in the other log; `mapped` is the position of this message here, for the first
    /// record. `halves`: (pos there, pos here) of staged half messages. ValueError: this log has no entries. OSError: as
    /// for `append_copied`.
    #[pyo3(signature = (data, pos, segment_bytes, mapped=None))]
    fn append_followed(&self, data: &[u8], pos: u64, segment_bytes: u64, mapped: Option<i64>) -> PyResult<Followed> {
        self.entry_files()?;
        check_geometry(segment_bytes, 0)?;
        let mut inner = self.lock();
        let Inner { tail, rules, .. } = &mut *inner;
        let found = tail.stage_followed(data, pos, segment_bytes, rules.max_message_bytes, mapped)?;
        let copied = found.copied;
        Ok(Followed {
            taken: copied.taken,
            wanted: copied.wanted,
            flaw: copied.flaw,
            reference: found.reference,
            halves: found.halves,
        })
    }

    /// write_out() -> int: writes staged bytes to the segment files; returns the end of the written bytes. OSError: see
    /// `abandon`.
    fn write_out(&self) -> PyResult<u64> {
        let mut inner = self.lock();
        match inner.tail.write_out() {
            Ok(()) => Ok(inner.tail.written),
            Err((path, error)) => Err(os_error(&error, &path)),
        }
    }

    /// abandon(code, remark, now_ms) -> answers: drops the bytes that could not be written, and refuses their
    /// sends.
    fn abandon<'py>(&self, py: Python<'py>, code: i32, remark: &str, now_ms: i64) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let Inner {
            tail, topics, replies, ..
        } = &mut *inner;
        let header_bytes = tail.framed(0, 1);
        for piece in tail.pieces.drain(..).rev() {
            give_back_offsets(&piece.bytes, header_bytes, topics);
        }
        tail.staged = tail.written;
        if let Some(entries) = &mut tail.entries {
            entries.abandon();
        }
        tail.wipe_stale();
        let safe = replies.partition_point(|reply| reply.end <= tail.written);
        let refused: Vec<Reply> = replies.drain(safe..).collect();
        inner.answers(py, &refused, code, Some(remark), now_ms)
    }

    /// sync() -> int: makes written bytes durable, with the GIL released; returns the end of the flushed bytes.
    fn sync(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.sync_files())
            .map_err(|(path, error)| os_error(&error, &path))
    }

    /// serve_syncs(requests, done): runs on a thread of the caller. Makes one sync for each token read from the
    /// descriptor `requests`, then writes one token (8 bytes, as for an eventfd) to `done`. Ends at a token of 2^62 or
    /// more, or after a failed sync (`sync_failure`). Does not need the GIL between tokens.
    fn serve_syncs(&self, py: Python<'_>, requests: i32, done: i32) {
        py.detach(|| loop {
            let mut token = 0u64;
            // SAFETY: `token` has 8 bytes, valid for the call; the caller keeps the descriptors open while this runs.
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
            // SAFETY: as above. An eventfd accepts the token at once: its counter is read at every wake-up.
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

    /// release(pos, now_ms) -> [(connection, bytes)]: the answers of sends that end at or below `pos`.
    fn release<'py>(&self, py: Python<'py>, pos: u64, now_ms: i64) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let safe = inner.replies.partition_point(|reply| reply.end <= pos);
        let released: Vec<Reply> = inner.replies.drain(..safe).collect();
        inner.answers(py, &released, 0, None, now_ms)
    }

    /// expire(before_ms, code, now_ms) -> answers: answers sends fed before `before_ms` without waiting longer;
    /// they are stored.
    fn expire<'py>(&self, py: Python<'py>, before_ms: i64, code: i32, now_ms: i64) -> PyResult<Bound<'py, PyList>> {
        let mut inner = self.lock();
        let old = inner.replies.partition_point(|reply| reply.at_ms < before_ms);
        let expired: Vec<Reply> = inner.replies.drain(..old).collect();
        inner.answers(py, &expired, code, None, now_ms)
    }
}

fn point(pos: u64, link: Link) -> LogPoint {
    LogPoint {
        pos,
        last_index: link.next_index as i64 - 1,
        term: link.term,
        chain: link.chain,
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<Log>()
}
