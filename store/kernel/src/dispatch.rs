//! The derived side of a store, as one object: queues and index, kept up with the log and read.
//!
//! ```text
//! log --run--> units in memory --write_out--> consumequeue/ files --sync--> disk
//!          \-> index/ (mapped) ----------------------------sync_index--> disk
//! ```
//!
//! Everything here is a function of the log: dispatching a record twice changes nothing, so whoever is in doubt starts
//! earlier. `run` reads below the position it is given and nothing else, so what is not committed never gets in.
//!
//! Locks, in this order: `runner` (one `run` at a time), `queues`, `index`; the log's maps have their own, innermost.
//! `run` holds queues and index while it works, but looks every few records whether a reader waits, and lets go then:
//! a pull on the event loop waits microseconds, not for the batch. No lock is held during a sync. Python's lock is
//! always let go before waiting for one of these.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use crate::door::Door;
use crate::ext::ExtFiles;
use crate::fault::{Fault, Outcome};
use crate::index::{hash_on, sync_file, Index};
use crate::maps::{segment_starts, LogMaps};
use crate::queue::{Extent, Put, Queues, Unit, UNIT};
use crate::record::{Bad, Delays, Known, Record};
use crate::scan::{check_geometry, walk, Bounds, Visit};
use crate::select::{out_of_range, select, window, Ask};

/// `run` looks for waiting readers once in so many records.
const LOOK_EVERY: u64 = 16;
/// Units in memory beyond this are written by `run` itself.
const MOST_PENDING: usize = 32 << 20;
/// Queues written, or cleaned, under one hold of the lock.
const QUEUES_A_TURN: usize = 64;
const MOST_SKIPPED: usize = 100;

struct Core {
    door: Door,
    log: LogMaps,
    log_folder: PathBuf,
    entry_header: usize,
    delays: Delays,
    index_enabled: bool,
    read_only: bool,
    runner: Mutex<()>,
    queues: Mutex<Queues>,
    index: Mutex<Index>,
    ext: Mutex<ExtFiles>,
    position: AtomicU64,
    last_store_timestamp: AtomicI64,
    damaged: AtomicU64,
    waiting: AtomicU32,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is a bug that was reported there; the tables themselves are changed step by step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Run {
    records: u64,
    last_store_timestamp: i64,
    skipped: Vec<(u64, u64, &'static str)>,
    misplaced: u64,
    stopped: Option<Bad>,
}

/// Position, store time of the last record (0: none yet), queues with units, their units, newest index file and the
/// number of its next entry.
type WrittenPoint = (u64, i64, usize, i64, String, i32);

/// The two tables that dispatch changes, held together.
struct Tables<'a> {
    queues: MutexGuard<'a, Queues>,
    index: MutexGuard<'a, Index>,
}

impl Core {
    fn tables(&self) -> Tables<'_> {
        Tables {
            queues: lock(&self.queues),
            index: lock(&self.index),
        }
    }

    fn someone_waits(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Steps back until those that wait have had their turn (or for a while: they may come without end).
    #[cold]
    fn let_others(&self) {
        for _ in 0..1000 {
            if !self.someone_waits() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Locks as one whom `run` should make room for.
    fn wait_for<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = lock(mutex);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    // ------------------------------------------------------------------ dispatch

    fn run(&self, upto: u64, max_bytes: u64, check_crc: bool) -> Outcome<Run> {
        let _runner = lock(&self.runner);
        let from = self.position.load(Ordering::Acquire);
        let bounds = Bounds {
            from,
            upto,
            entry_header: self.entry_header,
            check_crc,
            pass_damaged: !check_crc,
        };
        let mut run = Run::default();
        let mut tables = Some(self.tables());
        let end = walk(&self.log, &bounds, |visit| {
            if run.records % LOOK_EVERY == 0 && self.someone_waits() {
                drop(tables.take());
                self.let_others();
            }
            let held = tables.get_or_insert_with(|| self.tables());
            let next = match visit {
                Visit::Record { record, pos, next } => {
                    self.dispatch(held, record, pos, &mut run)?;
                    next
                }
                Visit::Damaged { pos, size, bad } => {
                    run.skip(pos, size, bad);
                    pos + size
                }
            };
            run.records += 1;
            self.position.store(next, Ordering::Release);
            while held.queues.pending_bytes() > MOST_PENDING && !held.queues.write_some(QUEUES_A_TURN)? {}
            Ok(if next - from >= max_bytes {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.position.store(end.pos, Ordering::Release);
        run.stopped = end.stopped;
        Ok(run)
    }

    #[inline]
    fn dispatch(&self, tables: &mut Tables<'_>, record: &Record<'_>, pos: u64, run: &mut Run) -> Outcome<()> {
        let (queues, index) = (&mut *tables.queues, &mut *tables.index);
        let Some(topic) = queues.topic(record.topic()) else {
            run.skip(pos, u64::from(record.size()), Bad::Topic);
            return Ok(());
        };
        let known = Known::find(record.properties());
        let store_timestamp = record.store_timestamp();
        run.last_store_timestamp = store_timestamp;
        self.last_store_timestamp.store(store_timestamp, Ordering::Relaxed);
        let pos = pos as i64;
        if record.is_queued() {
            let tags_code = self
                .delays
                .tags_code(queues.topic_at(topic).is_schedule, &known, store_timestamp);
            let unit = Unit {
                pos,
                size: record.size() as i32,
                tags_code,
            };
            let queue = queues.queue(topic, record.queue_id());
            match queues.put(queue, unit, record.queue_offset())? {
                Put::Added | Put::Known => {}
                Put::Misplaced => run.misplaced += 1,
                Put::BadOffset => run.skip(pos as u64, u64::from(record.size()), Bad::QueueOffset),
            }
        }
        if self.index_enabled && record.is_indexed() && !(known.unique_key.is_empty() && known.keys.is_empty()) {
            if index.has_passed(pos) {
                return Ok(());
            }
            let mut done = index.keys_of_last(pos)?;
            let seed = queues.topic_at(topic).key_seed;
            let unique = Some(known.unique_key).filter(|key| !key.is_empty());
            let keys = known.keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty());
            for key in unique.into_iter().chain(keys) {
                if done > 0 {
                    done -= 1;
                    continue;
                }
                index.put(hash_on(seed, key), pos, store_timestamp)?;
            }
        }
        Ok(())
    }

    fn write_out(&self) -> Outcome<()> {
        loop {
            if self.wait_for(&self.queues).write_some(QUEUES_A_TURN)? {
                return Ok(());
            }
            std::thread::yield_now();
        }
    }

    /// Writes out and says what the files then hold: a state between two records.
    fn written_point(&self) -> Outcome<WrittenPoint> {
        loop {
            let mut queues = self.wait_for(&self.queues);
            if queues.write_some(QUEUES_A_TURN)? {
                let (count, units) = queues.totals();
                let (index_name, index_count) = lock(&self.index).newest();
                let position = self.position.load(Ordering::Acquire);
                let store_timestamp = self.last_store_timestamp.load(Ordering::Relaxed);
                return Ok((position, store_timestamp, count, units, index_name, index_count));
            }
            drop(queues);
            std::thread::yield_now();
        }
    }

    fn sync(&self) -> Outcome<()> {
        let (files, folders) = self.wait_for(&self.queues).take_unsynced();
        for (i, file) in files.iter().enumerate() {
            if let Err(fault) = file.sync(&self.door) {
                lock(&self.queues).sync_failed(&files[i..], &folders);
                return Err(fault);
            }
        }
        for (i, folder) in folders.iter().enumerate() {
            match self.door.sync_dir(folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    lock(&self.queues).sync_failed(&[], &folders[i..]);
                    return Err(Fault::Io {
                        path: folder.clone(),
                        error,
                    });
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn sync_index(&self) -> Outcome<i64> {
        let (files, folder, end_timestamp) = self.wait_for(&self.index).take_changed();
        let synced = files
            .iter()
            .try_for_each(|path| sync_file(&self.door, path))
            .and_then(|()| match &folder {
                Some(folder) => {
                    self.door.sync_dir(folder).map_err(|error| Fault::Io {
                        path: folder.clone(),
                        error,
                    })?;
                    let root = folder.parent().unwrap_or(folder);
                    self.door.sync_dir(root).map_err(|error| Fault::Io {
                        path: root.to_owned(),
                        error,
                    })
                }
                None => Ok(()),
            });
        if let Err(fault) = synced {
            lock(&self.index).sync_failed(&files, folder.is_some());
            return Err(fault);
        }
        Ok(end_timestamp)
    }

    /// Does something to every queue, a few under one hold of the lock.
    fn each_queue(&self, mut act: impl FnMut(&mut Queues, u32) -> Outcome<()>) -> Outcome<()> {
        let all = self.wait_for(&self.queues).all();
        for turn in all.chunks(QUEUES_A_TURN) {
            let mut queues = self.wait_for(&self.queues);
            for &q in turn {
                act(&mut queues, q)?;
            }
        }
        Ok(())
    }

    // ------------------------------------------------------------------ reads

    fn record_at<R>(&self, pos: i64, max_pos: i64, use_it: impl FnOnce(&Record<'_>) -> R) -> Outcome<Option<R>> {
        let Ok(start) = u64::try_from(pos) else { return Ok(None) };
        if pos >= max_pos {
            return Ok(None);
        }
        let Some(segment) = self.log.segment(start)? else {
            return Ok(None);
        };
        let record = Record::parse(&segment.map[(start - segment.start) as usize..], start);
        Ok(record
            .ok()
            .filter(|record| pos + i64::from(record.size()) <= max_pos)
            .map(|record| use_it(&record)))
    }

    fn store_time(&self, unit: &Unit) -> Outcome<Option<i64>> {
        self.record_at(unit.pos, i64::MAX, |record| record.store_timestamp())
    }

    fn store_time_at(&self, pos: i64) -> Option<i64> {
        self.record_at(pos, i64::MAX, |record| record.store_timestamp())
            .ok()
            .flatten()
    }

    /// RocketMQ's getOffsetInQueueByTime: the nearer neighbour, within one segment.
    fn offset_by_time(&self, topic: &[u8], queue: i32, timestamp: i64, by_mtime: bool) -> Outcome<i64> {
        let (q, segments, min_logic) = {
            let queues = self.wait_for(&self.queues);
            let Some(q) = queues.find(topic, queue) else {
                return Ok(0);
            };
            (q, queues.segments(q), queues.extent(q).min_logic)
        };
        let unit = |at| self.wait_for(&self.queues).unit(q, at);
        let min_pos = segment_starts(&self.log_folder)?
            .first()
            .map_or(0, |&start| start as i64);
        let mut chosen = None;
        for &(start, stop, mtime) in &segments {
            chosen = Some((start, stop));
            let late = if by_mtime {
                mtime.is_some_and(|time| time >= timestamp)
            } else {
                match unit(stop.saturating_sub(UNIT).max(start))? {
                    Some(last) if last.pos >= min_pos => self.store_time(&last)?.is_some_and(|time| time >= timestamp),
                    _ => false,
                }
            };
            if late {
                break;
            }
        }
        let Some((start, stop)) = chosen else { return Ok(0) };
        let mut low = min_logic.max(start) as i64;
        let mut high = stop as i64 - UNIT as i64;
        let (mut left, mut right) = (None, None);
        while high >= low {
            // the middle in units from the segment's start, as the source rounds it
            let middle = start as i64 + (low - start as i64 + high - start as i64) / (2 * UNIT as i64) * UNIT as i64;
            let Some(found) = unit(middle as u64)? else {
                return Ok(0);
            };
            if found.pos < min_pos || found.is_blank() {
                low = middle + UNIT as i64;
                continue;
            }
            let Some(time) = self.store_time(&found)?.filter(|&time| time >= 0) else {
                return Ok(0);
            };
            if time == timestamp {
                return Ok(middle / UNIT as i64);
            }
            if time > timestamp {
                high = middle - UNIT as i64;
                right = Some((middle, time));
            } else {
                low = middle + UNIT as i64;
                left = Some((middle, time));
            }
        }
        let at = match (left, right) {
            (Some((at, before)), Some((behind, after))) => {
                if timestamp.abs_diff(before) > timestamp.abs_diff(after) {
                    behind
                } else {
                    at
                }
            }
            (Some((at, _)), None) | (None, Some((at, _))) => at,
            (None, None) => low.min(stop as i64),
        };
        Ok(at / UNIT as i64)
    }
}

impl Run {
    #[cold]
    fn skip(&mut self, pos: u64, size: u64, bad: Bad) {
        if self.skipped.len() < MOST_SKIPPED {
            self.skipped.push((pos, size, bad.text()));
        }
    }
}

/// What one `run` did.
#[pyclass(frozen, get_all, module = "tallystick.store._kernel")]
pub struct RunResult {
    pos: u64,
    records: u64,
    grew: Py<PyAny>,
    last_store_timestamp_ms: i64,
    stopped: Option<&'static str>,
    skipped: Vec<(u64, u64, &'static str)>,
    misplaced: u64,
}

/// The derived side of a store.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct Dispatch(Core);

impl Dispatch {
    /// Runs `act` on a locked table: at once if it is free, otherwise after letting go of Python's lock.
    fn with<T: Send, R: Send>(&self, py: Python<'_>, mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> R + Send) -> R {
        if let Ok(mut guard) = mutex.try_lock() {
            return act(&mut guard);
        }
        py.detach(|| act(&mut self.0.wait_for(mutex)))
    }
}

type Found<'py> = (u8, i64, i64, i64, usize, Bound<'py, PyBytes>, bool);

#[pymethods]
impl Dispatch {
    #[new]
    #[pyo3(signature = (door, root, log_dir, *, log_segment_bytes, queue_segment_bytes, index_slots, index_entries,
        index_enabled = true, delay_ms = vec![], entry_header_bytes = 0, max_open_files = 4096, read_only = false))]
    #[allow(clippy::too_many_arguments)] // the store's geometry, by name
    fn new(
        door: Door,
        root: PathBuf,
        log_dir: PathBuf,
        log_segment_bytes: u64,
        queue_segment_bytes: u64,
        index_slots: u32,
        index_entries: u32,
        index_enabled: bool,
        delay_ms: Vec<i64>,
        entry_header_bytes: usize,
        max_open_files: usize,
        read_only: bool,
    ) -> PyResult<Self> {
        check_geometry(log_segment_bytes, entry_header_bytes)?;
        if queue_segment_bytes == 0 || queue_segment_bytes > i32::MAX as u64 {
            let text = format!("a queue's file has 1 to 2^31 - 1 bytes, not {queue_segment_bytes}");
            return Err(PyValueError::new_err(text));
        }
        let index_bytes = 40 + 4 * u64::from(index_slots) + 20 * u64::from(index_entries);
        if index_slots == 0 || index_entries < 2 || index_bytes > i32::MAX as u64 {
            let text = format!("an index file of {index_slots} slots and {index_entries} entries cannot be made");
            return Err(PyValueError::new_err(text));
        }
        let queue_segment_bytes = queue_segment_bytes.div_ceil(UNIT) * UNIT;
        let folder = root.join("consumequeue");
        Ok(Dispatch(Core {
            log: LogMaps::new(log_dir.clone(), log_segment_bytes),
            log_folder: log_dir,
            entry_header: entry_header_bytes,
            delays: Delays(delay_ms),
            index_enabled,
            read_only,
            runner: Mutex::new(()),
            queues: Mutex::new(Queues::new(
                door.clone(),
                folder,
                queue_segment_bytes,
                max_open_files,
                read_only,
            )),
            index: Mutex::new(Index::new(
                door.clone(),
                root.join("index"),
                index_slots,
                index_entries,
                read_only,
            )),
            ext: Mutex::new(ExtFiles::new(root.join("consumequeue_ext"))),
            position: AtomicU64::new(0),
            last_store_timestamp: AtomicI64::new(0),
            damaged: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            door,
        }))
    }

    #[getter]
    fn position(&self) -> u64 {
        self.0.position.load(Ordering::Acquire)
    }

    #[getter]
    fn damaged(&self) -> u64 {
        self.0.damaged.load(Ordering::Relaxed)
    }

    #[getter]
    fn pending_bytes(&self, py: Python<'_>) -> usize {
        self.with(py, &self.0.queues, |queues| queues.pending_bytes())
    }

    // ------------------------------------------------------------------ recovery

    fn load(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.0.wait_for(&self.0.queues).load()?;
            if self.0.index_enabled {
                self.0.wait_for(&self.0.index).load()?;
            }
            Ok::<_, Fault>(())
        })?;
        Ok(())
    }

    fn recover_queues(&self, py: Python<'_>) -> PyResult<i64> {
        let mut max_physic = -1;
        py.detach(|| {
            self.0.each_queue(|queues, q| {
                max_physic = max_physic.max(queues.recover(q)?);
                Ok(())
            })
        })?;
        Ok(max_physic)
    }

    fn truncate_queues(&self, py: Python<'_>, pos: i64) -> PyResult<()> {
        Ok(py.detach(|| self.0.each_queue(|queues, q| queues.truncate(q, pos)))?)
    }

    fn destroy_queues(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.each_queue(|queues, q| queues.remove(q)))?)
    }

    fn correct_min_offsets(&self, py: Python<'_>, min_pos: i64) -> PyResult<()> {
        Ok(py.detach(|| self.0.each_queue(|queues, q| queues.correct_min(q, min_pos)))?)
    }

    fn drop_index_after(&self, py: Python<'_>, timestamp_ms: i64) -> PyResult<i64> {
        Ok(py.detach(|| self.0.wait_for(&self.0.index).drop_after(timestamp_ms))?)
    }

    fn trim_index(&self, py: Python<'_>, name: &str, count: i32) -> PyResult<bool> {
        let store_time = |pos| self.0.store_time_at(pos);
        Ok(py.detach(|| self.0.wait_for(&self.0.index).trim(name, count, store_time))?)
    }

    fn trim_index_at(&self, py: Python<'_>, pos: i64) -> PyResult<()> {
        let store_time = |pos| self.0.store_time_at(pos);
        Ok(py.detach(|| self.0.wait_for(&self.0.index).trim_at(pos, store_time))?)
    }

    fn start(&self, py: Python<'_>, pos: u64) {
        py.detach(|| {
            let _runner = lock(&self.0.runner);
            self.0.position.store(pos, Ordering::Release);
        });
    }

    // ------------------------------------------------------------------ dispatch

    #[pyo3(signature = (upto, max_bytes, check_crc = false))]
    fn run(&self, py: Python<'_>, upto: u64, max_bytes: u64, check_crc: bool) -> PyResult<RunResult> {
        if self.0.read_only {
            return Err(PyValueError::new_err("a read-only store is not dispatched"));
        }
        let run = py.detach(|| self.0.run(upto, max_bytes, check_crc))?;
        let grown = self.with(py, &self.0.queues, |queues| queues.take_grown());
        let grew: Vec<_> = grown
            .into_iter()
            .map(|(topic, queue)| (PyBytes::new(py, &topic).unbind(), queue))
            .collect();
        Ok(RunResult {
            pos: self.position(),
            records: run.records,
            grew: grew.into_pyobject(py)?.into_any().unbind(),
            last_store_timestamp_ms: run.last_store_timestamp,
            stopped: run.stopped.map(Bad::text),
            skipped: run.skipped,
            misplaced: run.misplaced,
        })
    }

    fn write_out(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.write_out())?)
    }

    fn written_point(&self, py: Python<'_>) -> PyResult<WrittenPoint> {
        Ok(py.detach(|| self.0.written_point())?)
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.sync())?)
    }

    fn sync_index(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(py.detach(|| self.0.sync_index())?)
    }

    // ------------------------------------------------------------------ reads

    #[pyo3(signature = (topic, queue, offset, max_count, codes, max_pos, memory_bytes, limits, correct = true, accept = None))]
    #[allow(clippy::too_many_arguments)] // one question, asked once per pull
    fn get<'py>(
        &self,
        py: Python<'py>,
        topic: &[u8],
        queue: i32,
        offset: i64,
        max_count: i64,
        codes: Option<&Bound<'py, PyFrozenSet>>,
        max_pos: i64,
        memory_bytes: i64,
        limits: (i64, i64, i64, i64),
        correct: bool,
        accept: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Found<'py>> {
        let ask = Ask {
            offset,
            max_count,
            max_pos,
            memory_bytes,
            limits,
            correct,
        };
        let codes = match codes {
            None => None,
            Some(codes) => Some(
                codes
                    .iter()
                    .map(|code| code.extract::<i64>())
                    .collect::<PyResult<Vec<_>>>()?,
            ),
        };
        let (extent, segment_bytes) = self.with(py, &self.0.queues, |queues| {
            (
                queues.find(topic, queue).map(|q| (q, queues.extent(q))),
                queues.segment_bytes(),
            )
        });
        if let Some((status, next)) = out_of_range(extent.map(|(_, extent)| extent), &ask) {
            let (min, max) = extent.map_or((0, 0), |(_, extent)| (extent.min_offset, extent.max_offset));
            return Ok((status as u8, next, min, max, 0, PyBytes::new(py, b""), false));
        }
        let (q, extent) = extent.expect("only a queue has a range");
        let mut unreadable = false;
        let answer = select(
            &ask,
            window(&extent, &ask, segment_bytes),
            &self.0.log,
            |from, most| {
                let units = self.with(py, &self.0.queues, |queues| match queues.find(topic, queue) {
                    Some(same) if same == q => queues.read(q, from, most),
                    _ => Ok(None), // removed meanwhile
                })?;
                unreadable |= units.is_none() && from == offset as u64 * UNIT;
                Ok::<_, PyErr>(units)
            },
            |address| {
                let unit = self.with(py, &self.0.ext, |ext| ext.unit(topic, queue, address))?;
                Ok(unit.map(|unit| unit.tags_code))
            },
            // the source compares the lower 32 bits
            |code| {
                codes
                    .as_ref()
                    .is_none_or(|codes| codes.contains(&i64::from(code as i32)))
            },
            |code, record| match accept {
                None => Ok(true),
                Some(accept) => accept.call1((code, PyBytes::new(py, record.properties())))?.is_truthy(),
            },
        )?;
        self.0.damaged.fetch_add(answer.damaged, Ordering::Relaxed);
        let (mut status, mut next) = (answer.status, answer.next);
        if unreadable {
            status = crate::select::Status::OffsetFoundNull;
            let units_a_file = (segment_bytes / UNIT) as i64;
            next = if correct {
                offset + units_a_file - offset % units_a_file
            } else {
                offset
            };
        }
        let body = PyBytes::new_with(py, answer.picks.bytes, |to| {
            answer.picks.copy(to);
            Ok(())
        })?;
        Ok((
            status as u8,
            next,
            extent.min_offset,
            extent.max_offset,
            answer.picks.count(),
            body,
            answer.behind,
        ))
    }

    fn units(
        &self,
        py: Python<'_>,
        topic: &[u8],
        queue: i32,
        offset: i64,
        count: i64,
    ) -> PyResult<Vec<(i64, i32, i64)>> {
        let bytes = self.with(py, &self.0.queues, |queues| {
            let Some(q) = queues.find(topic, queue) else {
                return Ok(vec![]);
            };
            let Extent {
                min_offset, max_offset, ..
            } = queues.extent(q);
            if offset < min_offset || offset >= max_offset || count <= 0 {
                return Ok(vec![]);
            }
            let (mut at, end) = (
                offset as u64 * UNIT,
                (max_offset.min(offset.saturating_add(count))) as u64 * UNIT,
            );
            let mut bytes = vec![];
            while at < end {
                match queues.read(q, at, end - at)? {
                    Some(more) if !more.is_empty() => {
                        at += more.len() as u64;
                        bytes.extend_from_slice(&more);
                    }
                    _ => break,
                }
            }
            Ok::<_, Fault>(bytes)
        })?;
        let units = bytes.chunks_exact(UNIT as usize).map(Unit::decode);
        Ok(units.map(|unit| (unit.pos, unit.size, unit.tags_code)).collect())
    }

    fn offsets(&self, py: Python<'_>, topic: &[u8], queue: i32) -> (i64, i64) {
        self.with(py, &self.0.queues, |queues| match queues.find(topic, queue) {
            Some(q) => (queues.extent(q).min_offset, queues.extent(q).max_offset),
            None => (0, 0),
        })
    }

    #[allow(clippy::type_complexity)] // a row of numbers
    fn queues<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, i32, i64, i64, u64, i64)> {
        let mut rows = self.with(py, &self.0.queues, |queues| {
            let all = queues.all().into_iter();
            all.map(|q| (queues.name_of(q).0.to_vec(), queues.name_of(q).1, queues.extent(q)))
                .collect::<Vec<_>>()
        });
        rows.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let row = |(topic, id, e): (Vec<u8>, i32, Extent)| {
            (
                PyBytes::new(py, &topic),
                id,
                e.min_offset,
                e.max_offset,
                e.min_logic,
                e.max_physic,
            )
        };
        rows.into_iter().map(row).collect()
    }

    #[pyo3(signature = (topic, queue, timestamp_ms, by_mtime = false))]
    fn offset_by_time(
        &self,
        py: Python<'_>,
        topic: &[u8],
        queue: i32,
        timestamp_ms: i64,
        by_mtime: bool,
    ) -> PyResult<i64> {
        Ok(py.detach(|| self.0.offset_by_time(topic, queue, timestamp_ms, by_mtime))?)
    }

    fn record_at<'py>(&self, py: Python<'py>, pos: i64, max_pos: i64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self
            .0
            .record_at(pos, max_pos, |record| PyBytes::new(py, record.bytes()))?)
    }

    fn log_bytes<'py>(&self, py: Python<'py>, pos: u64, size: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let segment = self.0.log.segment(pos)?;
        Ok(segment
            .as_ref()
            .and_then(|segment| segment.slice(pos, size))
            .map(|bytes| PyBytes::new(py, bytes)))
    }

    fn lookup(
        &self,
        py: Python<'_>,
        key_hash: i32,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> PyResult<(Vec<i64>, i64, i64)> {
        let found = self.with(py, &self.0.index, |index| {
            let found = index.find(key_hash, max_count, begin_ms, end_ms)?;
            let last = index
                .headers()
                .last()
                .map_or((0, 0), |(_, last)| (last.end_timestamp, last.end_pos));
            Ok::<_, Fault>((found, last.0, last.1))
        });
        Ok(found?)
    }

    fn ext_unit<'py>(
        &self,
        py: Python<'py>,
        topic: &[u8],
        queue: i32,
        address: i64,
    ) -> PyResult<Option<(u16, i64, i64, Bound<'py, PyBytes>)>> {
        let unit = self.with(py, &self.0.ext, |ext| ext.unit(topic, queue, address))?;
        Ok(unit.map(|unit| {
            (
                unit.size,
                unit.tags_code,
                unit.store_timestamp,
                PyBytes::new(py, &unit.bit_map),
            )
        }))
    }

    #[allow(clippy::type_complexity)] // a row of numbers
    fn index_files(&self, py: Python<'_>) -> Vec<(String, i64, i64, i64, i64, i32, i32)> {
        self.with(py, &self.0.index, |index| {
            let row = |(name, h): (&str, &crate::index::Header)| {
                (
                    name.to_owned(),
                    h.begin_timestamp,
                    h.end_timestamp,
                    h.begin_pos,
                    h.end_pos,
                    h.slots_used,
                    h.count,
                )
            };
            index.headers().map(row).collect()
        })
    }

    // ------------------------------------------------------------------ changes of what is there

    fn watch(&self, py: Python<'_>, topic: &[u8], queue: i32) {
        self.with(py, &self.0.queues, |queues| queues.watch(topic, queue, true));
    }

    fn unwatch(&self, py: Python<'_>, topic: &[u8], queue: i32) {
        self.with(py, &self.0.queues, |queues| queues.watch(topic, queue, false));
    }

    fn remove_topic(&self, py: Python<'_>, topic: &[u8]) -> PyResult<()> {
        Ok(py.detach(|| {
            self.0.wait_for(&self.0.ext).close();
            self.0.wait_for(&self.0.queues).remove_topic(topic)
        })?)
    }

    fn delete_below(&self, py: Python<'_>, min_pos: i64) -> PyResult<usize> {
        let removed = py.detach(|| {
            let mut removed = self.0.wait_for(&self.0.index).delete_below(min_pos)?;
            self.0.each_queue(|queues, q| {
                removed += queues.delete_below(q, min_pos)?;
                Ok(())
            })?;
            Ok::<_, Fault>(removed)
        });
        Ok(removed?)
    }

    fn forget_log_segment(&self, start: u64) {
        self.0.log.forget(start);
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Dispatch>()?;
    module.add_class::<RunResult>()
}
