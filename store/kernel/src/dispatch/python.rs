//! The Python interface of the derived files: arguments in, tuples and bytes out, and when the GIL is released.

use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use super::bit_maps::{BitMaps, BitTest};
use super::repair::Wrong;
use super::Core;
use crate::door::Door;
use crate::ext::{is_address, ExtFiles, ExtUnit};
use crate::fault::Fault;
use crate::frame::MAX_FRAME_BYTES;
use crate::guard::faults;
use crate::index::Index;
use crate::maps::LogMaps;
use crate::named::named_tuples;
use crate::pull::found_head;
use crate::queue::{self, Extent, PendingExt, Queues, Short, Unit, UNIT};
use crate::record::{Bad, Delays};
use crate::scan::check_geometry;
use crate::select::{out_of_range, select, window, Answer, Ask, Picks, Status};

/// Damaged records that are kept until Python takes them.
const MOST_DAMAGED: usize = 100;

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

/// What one `audit` found.
#[pyclass(frozen, get_all, module = "tallystick.store._kernel")]
pub struct AuditResult {
    pos: u64,
    records: u64,
    damage: Vec<(u64, u64, &'static str)>,
    wrong: Py<PyAny>,
}

named_tuples! {
    /// What the files hold between two records: position, store time of the last record (0: none since the start),
    /// queues with messages, the sum of their max offsets, name of the newest index file and number of its next entry,
    /// and the table of the queues' ends if it was requested.
    WrittenPoint {
        pos: u64, store_ms: i64, queues: usize, units: i64, index_name: String, index_count: i32, table: Vec<u8>,
    }
    /// A queue that does not have what it should. `end`: the next offset that it had when the table was made. `certain`:
    /// no power loss explains it.
    QueueFault { topic: Vec<u8>, queue: i32, reason: String, end: i64, certain: bool }
    /// A record that has no place at the queue offset that it claims.
    Stray { topic: Vec<u8>, queue: i32, offset: i64, pos: i64, size: i32 }
    /// A record that its queue does not name.
    WrongUnit { topic: Vec<u8>, queue: i32, offset: i64, pos: u64, reason: &'static str }
    /// What `repair` did: first and last offset that it compared, units written, placeholders among them, and damage of
    /// the log (position, size, reason).
    Repaired { first: i64, last: i64, written: u64, placeholders: u64, damage: Vec<(u64, u64, &'static str)> }
    /// A queue. `min_logic_offset`: in bytes. `max_pos`: of the last record that it names.
    QueueExtent {
        topic: Vec<u8>, queue: i32, min_offset: i64, max_offset: i64, min_logic_offset: u64, max_pos: i64,
    }
    /// An index file: store times and positions of its first and last entry, used slots, number of the next entry.
    IndexFile {
        name: String, begin_ms: i64, end_ms: i64, begin_pos: i64, end_pos: i64, slots: i32, next_entry: i32,
    }
    /// Where the messages that are older than a time end: the first offset behind them, the position of the last of them
    /// (-1: there is none), and the store time of the message at that offset (-1: none, or not known).
    ExpiredEnd { offset: i64, last_pos: i64, next_ms: i64 }
    /// A unit of the extension of a queue.
    ExtensionUnit { size: u16, tags_code: i64, store_ms: i64, bit_map: Vec<u8> }
}

fn rows(short: Vec<Short>) -> Vec<QueueFault> {
    let row = |each: Short| QueueFault {
        topic: each.topic,
        queue: each.id,
        reason: each.reason,
        end: each.end,
        certain: each.certain,
    };
    short.into_iter().map(row).collect()
}

/// The derived side of a store.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct Dispatch(Core);

/// The hash codes of a subscription's tags. A client may send a million: they are neither copied nor compared one by
/// one.
enum Codes<'a, 'py> {
    Few(Vec<i64>),
    Many(&'a Bound<'py, PyFrozenSet>),
}

impl<'a, 'py> Codes<'a, 'py> {
    const FEW: usize = 16;

    fn new(codes: &'a Bound<'py, PyFrozenSet>) -> PyResult<Self> {
        if codes.len() > Self::FEW {
            return Ok(Self::Many(codes));
        }
        let few = codes.iter().map(|code| code.extract()).collect::<PyResult<_>>()?;
        Ok(Self::Few(few))
    }

    fn contains(&self, code: i64) -> bool {
        match self {
            Self::Few(codes) => codes.contains(&code),
            Self::Many(codes) => codes.contains(code).unwrap_or(false), // an int has a hash: it cannot fail
        }
    }
}

impl Dispatch {
    pub(super) fn core(&self) -> &Core {
        &self.0
    }

    /// Runs `act` on a locked table: at once if the table is free, otherwise after releasing the GIL.
    fn with<T: Send, R: Send>(&self, py: Python<'_>, mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> R + Send) -> R {
        if let Some(mut guard) = mutex.try_lock() {
            return act(&mut guard);
        }
        py.detach(|| act(&mut self.0.wait_for(mutex)))
    }

    /// An extension unit, from memory or its file.
    fn ext(&self, py: Python<'_>, topic: &[u8], queue: i32, address: i64) -> PyResult<Option<ExtUnit>> {
        if !is_address(address) {
            return Ok(None);
        }
        let pending = self.with(py, &self.0.queues, |queues| queues.pending_ext(topic, queue, address));
        match pending {
            PendingExt::Unit(unit) => Ok(Some(unit)),
            PendingExt::Written(end) => Ok(self.with(py, &self.0.ext, |ext| ext.unit(topic, queue, address, end))?),
        }
    }

    /// The queue's min and max offset, and what `find` returns for it.
    #[allow(clippy::too_many_arguments)] // the arguments of one question, asked once per pull
    fn look<'py>(
        &self,
        py: Python<'py>,
        topic: &[u8],
        queue: i32,
        ask: &Ask<'_>,
        codes: Option<&Bound<'py, PyFrozenSet>>,
        accept: Option<&Bound<'py, PyAny>>,
        most_accepts: usize,
        bits: Option<&BitTest>,
        stop_at_wrong: bool,
    ) -> PyResult<(i64, i64, Answer)> {
        let mut tested = 0;
        let codes = codes.map(Codes::new).transpose()?;
        let (extent, segment_bytes) = self.with(py, &self.0.queues, |queues| {
            (
                queues.find(topic, queue).map(|q| (q, queues.extent(q))),
                queues.segment_bytes(),
            )
        });
        if let Some((status, next)) = out_of_range(extent.map(|(_, extent)| extent), ask) {
            let (min, max) = extent.map_or((0, 0), |(_, extent)| (extent.min_offset, extent.max_offset));
            return Ok((min, max, Answer::nothing(status, next)));
        }
        let (q, extent) = extent.expect("only a queue has a range");
        let mut unreadable = false;
        let mut answer = select(
            ask,
            window(&extent, ask, segment_bytes),
            &self.0.log,
            |from, most| {
                let units = self.with(py, &self.0.queues, |queues| match queues.find(topic, queue) {
                    Some(same) if same == q => queues.read(q, from, most),
                    _ => Ok(None), // removed in the meantime
                })?;
                unreadable |= units.is_none() && from == ask.offset as u64 * UNIT;
                Ok::<_, PyErr>(units)
            },
            |unit| {
                let ext = self.ext(py, topic, queue, unit.tags_code)?;
                Ok(ext.map(|ext| {
                    let may_pass = bits.is_none_or(|bits| bits.may_pass(unit.pos, &ext.bit_map));
                    (ext.tags_code, may_pass)
                }))
            },
            // the source compares the lower 32 bits
            |code| {
                codes
                    .as_ref()
                    .is_none_or(|codes| codes.contains(i64::from(code as i32)))
            },
            |code, record| match accept {
                None => Ok(Some(true)),
                Some(_) if tested >= most_accepts => Ok(None),
                Some(accept) => {
                    tested += 1;
                    let passes = accept.call1((code, PyBytes::new(py, record.properties())))?;
                    Ok(Some(passes.is_truthy()?))
                }
            },
            || self.0.reached.load(Ordering::Acquire) as i64,
            |offset| !stop_at_wrong || self.0.is_checked(topic, queue, offset),
            |offset, unit, claimed| {
                // rare, and it waits for a lock
                Ok(py.detach(|| match claimed {
                    Some(claimed) => self.0.is_shifted(topic, queue, offset, unit, claimed),
                    None => self.0.may_be_deleted(topic, queue, offset),
                })?)
            },
        )?;
        if unreadable {
            answer.status = Status::OffsetFoundNull;
            if ask.correct {
                let units_a_file = (segment_bytes / UNIT) as i64;
                answer.next = ask.offset + units_a_file - ask.offset % units_a_file;
            } else {
                answer.next = ask.offset;
            }
        }
        Ok((extent.min_offset, extent.max_offset, answer))
    }
}

/// Units (position, size, tags code), the offset of a wrong one behind them or -1, damage (offset, position, size).
type UsableRow = (Vec<(i64, i32, i64)>, i64, Vec<(i64, i64, i32)>);

type Found<'py> = (u8, i64, i64, i64, usize, Bound<'py, PyBytes>, bool, i64);

/// A whole answer: frame, records in it, their bytes.
type FoundFrame<'py> = (Bound<'py, PyBytes>, usize, usize, i64);

/// `head` and the records as one bytes object. `PyBytes::new_with` would zero it first, only to overwrite it.
fn joined<'py>(py: Python<'py>, head: &[u8], picks: &Picks) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: a new bytes object of `bytes` bytes that no other code has yet; all of them are written before it is
    // shared.
    unsafe {
        let bytes = head.len() + picks.bytes;
        let size = isize::try_from(bytes).expect("a batch is a few megabytes at most");
        let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        let joined = Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>();
        let to = pyo3::ffi::PyBytes_AsString(joined.as_ptr()).cast::<MaybeUninit<u8>>();
        let (front, rest) = std::slice::from_raw_parts_mut(to, bytes).split_at_mut(head.len());
        std::ptr::copy_nonoverlapping(head.as_ptr().cast(), front.as_mut_ptr(), head.len());
        picks.copy(rest);
        Ok(joined)
    }
}

#[pymethods]
impl Dispatch {
    #[new]
    #[pyo3(signature = (door, root, log_dir, *, log_segment_bytes, queue_segment_bytes, index_slots, index_entries,
        index_enabled = true, delay_ms = vec![], entry_header_bytes = 0, max_open_files = 4096, read_only = false, ext_segment_bytes = 0))]
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
        ext_segment_bytes: u64,
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
        let mut queues = Queues::new(door.clone(), folder, queue_segment_bytes, max_open_files, read_only);
        let ext_folder = root.join("consumequeue_ext");
        queues.extend(ext_folder.clone(), ext_segment_bytes);
        Ok(Dispatch(Core {
            root: root.clone(),
            log: LogMaps::new(log_dir.clone(), log_segment_bytes),
            log_folder: log_dir,
            entry_header: entry_header_bytes,
            delays: Delays(delay_ms),
            index_enabled,
            read_only,
            runner: Mutex::new(()),
            queues: Mutex::new(queues),
            index: Mutex::new(Index::new(
                door.clone(),
                root.join("index"),
                index_slots,
                index_entries,
                read_only,
            )),
            ext: Mutex::new(ExtFiles::new(ext_folder)),
            bit_maps: BitMaps::default(),
            is_extended: ext_segment_bytes > 0,
            position: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            last_store_timestamp: AtomicI64::new(0),
            damaged: AtomicU64::new(0),
            damaged_at: Mutex::default(),
            faults_seen: AtomicU64::new(u64::MAX),
            readers: AtomicU32::new(0),
            loaded: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            checked: Mutex::default(),
            shifted: Mutex::default(),
            door,
        }))
    }

    #[getter]
    fn position(&self) -> u64 {
        self.0.position.load(Ordering::Acquire)
    }

    /// The position went back for the index, and has not caught up with the queues yet.
    #[getter]
    fn rebuilds_index(&self) -> bool {
        self.position() < self.0.reached.load(Ordering::Acquire)
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

    #[pyo3(signature = (tolerant = false, tolerant_index = false))]
    fn load(&self, py: Python<'_>, tolerant: bool, tolerant_index: bool) -> PyResult<()> {
        if self.0.loaded.swap(true, Ordering::Relaxed) {
            return Err(PyValueError::new_err("a store is loaded once"));
        }
        py.detach(|| {
            {
                let mut queues = self.0.wait_for(&self.0.queues);
                queues.tolerant = tolerant && !self.0.read_only;
                queues.load()?;
            }
            if self.0.index_enabled {
                self.0
                    .wait_for(&self.0.index)
                    .load(tolerant_index && !self.0.read_only)?;
            }
            Ok::<_, Fault>(())
        })?;
        Ok(())
    }

    fn loaded_files(&self, py: Python<'_>) -> (usize, bool) {
        self.with(py, &self.0.queues, |queues| queues.loaded)
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

    fn queue_faults(&self, py: Python<'_>, log_end: i64) -> Vec<QueueFault> {
        let faults = self.with(py, &self.0.queues, |queues| queues.faults(log_end));
        rows(faults)
    }

    fn compare_queues(
        &self,
        py: Python<'_>,
        table: &[u8],
        exact: bool,
        nothing_deleted: bool,
    ) -> PyResult<Vec<QueueFault>> {
        let short = py.detach(|| self.0.wait_for(&self.0.queues).compare(table, exact, nothing_deleted));
        match short {
            Some(short) => Ok(rows(short)),
            None => Err(PyValueError::new_err("the table does not end with a whole row")),
        }
    }

    fn remove_queue(&self, py: Python<'_>, topic: &[u8], queue: i32) -> PyResult<()> {
        Ok(py.detach(|| {
            let mut queues = self.0.wait_for(&self.0.queues);
            let removed = match queues.find(topic, queue) {
                Some(q) => queues.remove_all(q),
                None => Ok(()),
            };
            self.0.wait_for(&self.0.ext).close();
            removed
        })?)
    }

    fn reserve(&self, py: Python<'_>, topic: &[u8], queue: i32, end: i64, most: u64) -> PyResult<bool> {
        Ok(py.detach(|| {
            let mut queues = self.0.wait_for(&self.0.queues);
            let Some(topic) = queues.topic(topic) else {
                return Ok(false);
            };
            let q = queues.queue(topic, queue);
            queues.reserve(q, end, most)
        })?)
    }

    fn raise_floor(&self, py: Python<'_>, topic: &[u8], queue: i32, offset: i64, last_pos: i64) -> PyResult<bool> {
        let raised = self.with(py, &self.0.queues, |queues| match queues.find(topic, queue) {
            Some(q) => queues.raise_floor(q, offset, last_pos),
            None => Ok(false),
        });
        Ok(raised?)
    }

    fn expired_end(&self, py: Python<'_>, topic: &[u8], queue: i32, before_ms: i64) -> PyResult<ExpiredEnd> {
        let (offset, last_pos, next_ms) = py.detach(|| self.0.expired_end(topic, queue, before_ms))?;
        Ok(ExpiredEnd {
            offset,
            last_pos,
            next_ms,
        })
    }

    fn hold(&self, py: Python<'_>, table: &[u8], pos: i64) -> PyResult<()> {
        if self.with(py, &self.0.queues, |queues| queues.hold(table, pos)) {
            return Ok(());
        }
        Err(PyValueError::new_err("the table does not end with a whole row"))
    }

    fn settle(&self, py: Python<'_>) -> PyResult<Vec<Stray>> {
        let strays = py.detach(|| self.0.wait_for(&self.0.queues).settle())?;
        let row = |stray: queue::Stray| Stray {
            topic: stray.topic,
            queue: stray.id,
            offset: stray.offset,
            pos: stray.pos,
            size: stray.size,
        };
        Ok(strays.into_iter().map(row).collect())
    }

    fn claim_lost(&self, py: Python<'_>, pos: u64, size: u64) -> PyResult<()> {
        Ok(py.detach(|| {
            let mut queues = self.0.wait_for(&self.0.queues);
            self.0.claim_at(&mut queues, pos, size)
        })?)
    }

    fn note_lost(&self, py: Python<'_>, pos: u64, size: u64) {
        self.with(py, &self.0.queues, |queues| queues.note_lost(pos, size));
    }

    #[pyo3(signature = (queues, index = false))]
    fn rebuild(&self, py: Python<'_>, queues: Option<Vec<(Vec<u8>, i32)>>, index: bool) {
        let what = queues.map(|queues| {
            let names = queues.into_iter().map(|(topic, id)| (topic.into_boxed_slice(), id));
            (names.collect(), index)
        });
        self.with(py, &self.0.queues, |queues| queues.rebuild(what));
    }

    fn drop_index_from(&self, py: Python<'_>, name: &str) -> PyResult<i64> {
        Ok(py.detach(|| self.0.wait_for(&self.0.index).drop_from(name))?)
    }

    fn audit(&self, py: Python<'_>, start: u64, upto: u64, max_bytes: u64) -> PyResult<AuditResult> {
        let audit = py.detach(|| self.0.audit(start, upto, max_bytes))?;
        let damage = audit.damage.iter().map(|each| (each.pos, each.size, each.reason));
        let row = |wrong: Wrong| WrongUnit {
            topic: wrong.topic,
            queue: wrong.queue,
            offset: wrong.offset,
            pos: wrong.pos,
            reason: wrong.reason,
        };
        Ok(AuditResult {
            pos: audit.pos,
            records: audit.records,
            damage: damage.collect(),
            wrong: audit
                .wrong
                .into_iter()
                .map(row)
                .collect::<Vec<_>>()
                .into_pyobject(py)?
                .into_any()
                .unbind(),
        })
    }

    fn repair(
        &self,
        py: Python<'_>,
        topic: &[u8],
        queue: i32,
        offset: i64,
        log_first: u64,
        max_bytes: u64,
    ) -> PyResult<Option<Repaired>> {
        let repaired = py.detach(|| self.0.repair(topic, queue, offset, log_first, max_bytes))?;
        Ok(repaired.map(|repaired| {
            let damage = repaired.damage.iter().map(|each| (each.pos, each.size, each.reason));
            Repaired {
                first: repaired.first,
                last: repaired.last,
                written: repaired.written,
                placeholders: repaired.blank,
                damage: damage.collect(),
            }
        }))
    }

    fn begin_earlier(&self, py: Python<'_>, topic: &[u8], queue: i32, offset: i64, pos: i64) -> PyResult<bool> {
        Ok(py.detach(|| self.0.begin_earlier(topic, queue, offset, pos))?)
    }

    fn end_checks(&self) {
        self.0.end_checks();
    }

    fn destroy_queues(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| {
            let removed = self.0.each_queue(|queues, q| queues.remove(q));
            self.0.wait_for(&self.0.ext).close();
            removed
        })?)
    }

    fn set_filters(&self, topics: Vec<Vec<u8>>, calculate: Py<PyAny>, require: Py<PyAny>) -> u64 {
        let topics = topics.into_iter().map(Vec::into_boxed_slice).collect();
        // Units of records before this position may be those of an earlier process.
        let reached = self.0.reached.load(Ordering::Acquire);
        self.0.bit_maps.set(topics, calculate, require, reached)
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
            let _runner = self.0.runner.lock();
            self.0.position.store(pos, Ordering::Release);
            self.0.reached.store(pos, Ordering::Release);
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

    fn redo(&self, py: Python<'_>, start: u64, upto: u64, index: bool) -> PyResult<(u64, Option<&'static str>)> {
        let run = py.detach(|| self.0.redo(start, upto, index))?;
        Ok((run.records, run.stopped.map(Bad::text)))
    }

    fn write_out(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.write_out())?)
    }

    #[pyo3(signature = (with_table = false))]
    fn written_point(&self, py: Python<'_>, with_table: bool) -> PyResult<WrittenPoint> {
        let (pos, store_ms, queues, units, index_name, index_count, table) =
            py.detach(|| self.0.written_point(with_table))?;
        Ok(WrittenPoint {
            pos,
            store_ms,
            queues,
            units,
            index_name,
            index_count,
            table,
        })
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.0.sync())?)
    }

    fn sync_index(&self, py: Python<'_>) -> PyResult<i64> {
        Ok(py.detach(|| self.0.sync_index())?)
    }

    // ------------------------------------------------------------------ reads

    #[pyo3(signature = (topic, queue, offset, max_count, codes, max_pos, memory_bytes, limits, correct = true, accept = None, stop_at_damage = false, stop_at_wrong = false, bits = None, most_accepts = usize::MAX))]
    #[allow(clippy::too_many_arguments)] // the arguments of one question, asked once per pull
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
        stop_at_damage: bool,
        stop_at_wrong: bool,
        bits: Option<&Bound<'py, BitTest>>,
        most_accepts: usize,
    ) -> PyResult<Found<'py>> {
        let bits = bits.map(Bound::get);
        let ask = Ask {
            topic,
            queue,
            offset,
            max_count,
            max_pos,
            memory_bytes,
            limits,
            correct,
            entry_header: self.0.entry_header,
            stop_at_damage,
        };
        let (min, max, answer, body) = loop {
            let faults = faults();
            let (min, max, answer) = self.look(
                py,
                topic,
                queue,
                &ask,
                codes,
                accept,
                most_accepts.max(1),
                bits,
                stop_at_wrong,
            )?;
            let body = joined(py, b"", &answer.picks)?;
            // The guard now knows each page that could not be read during the search or the copy: skip these records.
            if faults == crate::guard::faults() {
                break (min, max, answer, body);
            }
        };
        if answer.damaged > 0 {
            self.0.damaged.fetch_add(answer.damaged, Ordering::Relaxed);
            let mut at = self.0.damaged_at.lock();
            let room = MOST_DAMAGED.saturating_sub(at.len());
            at.extend(answer.damaged_at.iter().take(room));
        }
        let (status, count) = (answer.status as u8, answer.picks.count());
        let wrong = answer.wrong.unwrap_or(-1);
        Ok((status, answer.next, min, max, count, body, answer.behind, wrong))
    }

    /// `get` as the whole frame that answers a pull; None if the answer needs more than that.
    #[allow(clippy::too_many_arguments)] // as `get`
    fn get_frame<'py>(
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
        opaque: i32,
        suggested: i64,
    ) -> PyResult<Option<FoundFrame<'py>>> {
        let ask = Ask {
            topic,
            queue,
            offset,
            max_count,
            max_pos,
            memory_bytes,
            limits,
            correct: true,
            entry_header: self.0.entry_header,
            stop_at_damage: false,
        };
        let faults = faults();
        let (min, max, answer) = self.look(py, topic, queue, &ask, codes, None, usize::MAX, None, true)?;
        let sound = answer.damaged == 0 && answer.wrong.is_none();
        let plain = answer.status == Status::Found && !answer.behind && sound;
        let bytes = answer.picks.bytes;
        if !plain || bytes > MAX_FRAME_BYTES - 1024 {
            return Ok(None);
        }
        let head = found_head(opaque, suggested, answer.next, min, max, bytes);
        let frame = joined(py, &head, &answer.picks)?;
        let read = faults == crate::guard::faults(); // otherwise one of its pages may not be the log's
        Ok(read.then_some((frame, answer.picks.count(), bytes, answer.next)))
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

    fn usable_units(&self, py: Python<'_>, topic: &[u8], queue: i32, offset: i64, count: i64) -> PyResult<UsableRow> {
        let usable = py.detach(|| self.0.usable_units(topic, queue, offset, count))?;
        let units = usable.units.iter().map(|unit| (unit.pos, unit.size, unit.tags_code));
        Ok((units.collect(), usable.wrong.unwrap_or(-1), usable.damaged))
    }

    fn offsets(&self, py: Python<'_>, topic: &[u8], queue: i32) -> (i64, i64) {
        self.with(py, &self.0.queues, |queues| match queues.find(topic, queue) {
            Some(q) => (queues.extent(q).min_offset, queues.extent(q).max_offset),
            None => (0, 0),
        })
    }

    fn queues(&self, py: Python<'_>) -> Vec<QueueExtent> {
        let mut rows = self.with(py, &self.0.queues, |queues| {
            let all = queues.all().into_iter();
            all.map(|q| (queues.name_of(q).0.to_vec(), queues.name_of(q).1, queues.extent(q)))
                .collect::<Vec<_>>()
        });
        rows.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        let row = |(topic, queue, e): (Vec<u8>, i32, Extent)| QueueExtent {
            topic,
            queue,
            min_offset: e.min_offset,
            max_offset: e.max_offset,
            min_logic_offset: e.min_logic,
            max_pos: e.max_physic,
        };
        rows.into_iter().map(row).collect()
    }

    #[pyo3(signature = (topic, queue, timestamp_ms, by_mtime = false, stop_at_wrong = false))]
    fn offset_by_time(
        &self,
        py: Python<'_>,
        topic: &[u8],
        queue: i32,
        timestamp_ms: i64,
        by_mtime: bool,
        stop_at_wrong: bool,
    ) -> PyResult<(i64, i64)> {
        let found = py.detach(|| {
            self.0
                .offset_by_time(topic, queue, timestamp_ms, by_mtime, stop_at_wrong)
        })?;
        Ok((found.0, found.1.unwrap_or(-1)))
    }

    fn record_at<'py>(&self, py: Python<'py>, pos: i64, max_pos: i64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self
            .0
            .record_at(pos, max_pos, true, |record| PyBytes::new(py, record.bytes()))?)
    }

    fn log_bytes<'py>(&self, py: Python<'py>, pos: u64, size: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let segment = self.0.log.segment(pos)?;
        let Some(segment) = segment else { return Ok(None) };
        let bytes = segment.slice(pos, size).map(|bytes| PyBytes::new(py, bytes));
        Ok(bytes.filter(|_| !segment.spoils(pos, size)))
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

    fn index_file_of(&self, py: Python<'_>, key_hash: i32, pos: i64) -> PyResult<Option<String>> {
        Ok(self.with(py, &self.0.index, |index| index.file_of(key_hash, pos))?)
    }

    fn count_not_indexed(&self, py: Python<'_>, start: u64, upto: u64) -> PyResult<u64> {
        Ok(py.detach(|| self.0.count_not_indexed(start, upto))?)
    }

    fn distrust_index(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        Ok(py.detach(|| self.0.distrust_index(name))?)
    }

    fn ext_unit(&self, py: Python<'_>, topic: &[u8], queue: i32, address: i64) -> PyResult<Option<ExtensionUnit>> {
        let unit = self.ext(py, topic, queue, address)?;
        Ok(unit.map(|unit| ExtensionUnit {
            size: unit.size,
            tags_code: unit.tags_code,
            store_ms: unit.store_timestamp,
            bit_map: unit.bit_map,
        }))
    }

    fn index_files(&self, py: Python<'_>) -> Vec<IndexFile> {
        self.with(py, &self.0.index, |index| {
            let row = |(name, h): (&str, &crate::index::Header)| IndexFile {
                name: name.to_owned(),
                begin_ms: h.begin_timestamp,
                end_ms: h.end_timestamp,
                begin_pos: h.begin_pos,
                end_pos: h.end_pos,
                slots: h.slots_used,
                next_entry: h.count,
            };
            index.headers().map(row).collect()
        })
    }

    // ------------------------------------------------------------------ changes of existing files

    fn watch(&self, py: Python<'_>, topic: &[u8], queue: i32) {
        self.with(py, &self.0.queues, |queues| queues.watch(topic, queue, true));
    }

    fn unwatch(&self, py: Python<'_>, topic: &[u8], queue: i32) {
        self.with(py, &self.0.queues, |queues| queues.watch(topic, queue, false));
    }

    fn remove_topic(&self, py: Python<'_>, topic: &[u8]) -> PyResult<()> {
        Ok(py.detach(|| {
            self.0.shifted.lock().clear();
            let mut queues = self.0.wait_for(&self.0.queues);
            let removed = queues.remove_topic(topic);
            // Before a new queue of this name gives out the same addresses.
            self.0.wait_for(&self.0.ext).close();
            removed
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

    /// take_damaged() -> [(pos, size)]: damaged records that `get` met since the last call, a hundred at most.
    fn take_damaged(&self) -> Vec<(i64, i32)> {
        std::mem::take(&mut *self.0.damaged_at.lock())
    }

    /// index_again() -> int: drops the index files from the first unreadable page on, and returns the position, which
    /// goes back to where they began; dispatching from there rebuilds them.
    fn index_again(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| {
            let _runner = self.0.runner.lock();
            self.0.index_again()
        })?;
        Ok(self.position())
    }

    fn forget_log_segment(&self, start: u64) {
        self.0.log.forget(start);
        self.0.checked.lock().clear();
        self.0.shifted.lock().clear();
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<Dispatch>()?;
    module.add_class::<BitTest>()?;
    module.add_class::<RunResult>()?;
    module.add_class::<AuditResult>()
}
