//! The derived files of a store as one object: updates the queues and the index from the log, and reads them.
//!
//! ```text
//! log --run--> units in memory --write_out--> consumequeue/ files --sync--> disk
//!          \-> index/ (mapped) ----------------------------sync_index--> disk
//! ```
//!
//! The log determines all derived files: dispatching a record a second time changes nothing, so a caller that is unsure
//! of the position can start earlier. `run` reads only below the given position, so uncommitted records are never
//! dispatched.
//!
//! Locks, in this order: `runner` (one `run` at a time), `queues`, `index`; the maps of the log have their own lock,
//! which is the innermost one. `run` and `write_out` need these locks for a long time, so they hold them for half a
//! millisecond at a time and release them as soon as a reader waits: a pull on the event loop waits for microseconds,
//! or until one file is created. They pass the lock to a waiting thread (`unlock_fair`), because a thread that releases
//! a lock and takes it again at once nearly always wins. Without that, the event loop and other threads starved while
//! the files of 50 000 queues were created. No thread holds a lock during a sync. A thread releases Python's GIL before
//! it waits for one of these locks.

mod bit_maps;
mod claims;
mod compare;
mod places;
mod python;
mod repair;
mod time;
mod timers;

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bit_maps::Calculated;
use claims::claim;
pub use compare::{Differs, Expected};
use parking_lot::{Mutex, MutexGuard};
pub use python::{register, Dispatch};
pub use timers::{Finished, TimerEvent};

use crate::door::Door;
use crate::entry::{EntryHeader, ENTRY_HEADER};
use crate::ext::ExtFiles;
use crate::fault::{Fault, Outcome};
use crate::guard::faults;
use crate::index::{hash_on, sync_file, Index};
use crate::maps::{segment_starts, LogMaps};
use crate::queue::{Put, Queues, ToSync, Unit};
use crate::record::{Bad, Delays, Known, Record};
use crate::scan::range::Found;
use crate::scan::{walk, Bounds, Visit};

/// `run` checks for waiting threads once in this many records.
const LOOK_EVERY: u64 = 16;
/// Work under the locks is done in turns of this length. Creating a queue's file takes a fifth of a turn (seconds on a
/// busy file system), dispatching a record a thousandth.
const TURN: Duration = Duration::from_micros(500);
/// With more units than this in memory, `run` itself writes them.
const MOST_PENDING: usize = 32 << 20;
const MOST_SKIPPED: usize = 100;

pub struct Core {
    door: Door,
    root: PathBuf,
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
    bit_maps: bit_maps::BitMaps,
    /// New units get an extension.
    is_extended: bool,
    position: AtomicU64,
    /// The largest position so far: records below it were dispatched to the queues, also while the index is rebuilt.
    reached: AtomicU64,
    last_store_timestamp: AtomicI64,
    damaged: AtomicU64,
    damaged_at: Mutex<Vec<(i64, i32)>>,
    /// `guard::faults` when the index was last checked for unreadable pages.
    faults_seen: AtomicU64,
    readers: AtomicU32,
    loaded: AtomicBool,
    /// The store is closing: see `end_checks`.
    ending: AtomicBool,
    /// Wrong units and damaged records that were compared with the log; readers skip them. By topic and queue.
    checked: Mutex<HashSet<(Vec<u8>, i32, i64)>>,
    /// Ranges of units that lead to records with other queue offsets, and are right (`places`).
    shifted: Mutex<HashMap<(Vec<u8>, i32), places::Shifted>>,
}

#[derive(Default)]
struct Run {
    records: u64,
    last_store_timestamp: i64,
    skipped: Vec<(u64, u64, &'static str)>,
    misplaced: u64,
    stopped: Option<Bad>,
    /// The index is rebuilt from before these records; records before its last entry are skipped.
    queues_alone: bool,
    /// The index is rebuilt; the queues already have these records.
    index_alone: bool,
}

/// Position, store time of the last record (0: no record yet), queues with units, their units, newest index file and
/// the number of its next entry; the table of the queues' ends, if it was requested.
type WrittenPoint = (u64, i64, usize, i64, String, i32, Vec<u8>);

/// The two tables that dispatch changes, held together.
struct Tables<'a> {
    queues: MutexGuard<'a, Queues>,
    index: MutexGuard<'a, Index>,
    since: Instant,
}

impl Tables<'_> {
    fn hand_over(self) {
        MutexGuard::unlock_fair(self.index);
        MutexGuard::unlock_fair(self.queues);
    }
}

impl Core {
    fn tables(&self) -> Tables<'_> {
        Tables {
            queues: self.queues.lock(),
            index: self.index.lock(),
            since: Instant::now(),
        }
    }

    /// Lock for a moment: threads that hold the lock for long release it on request.
    fn wait_for<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.readers.fetch_add(1, Ordering::Relaxed);
        let guard = mutex.lock();
        self.readers.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Whether a thread that has held a lock since then should release it.
    fn turn_is_over(&self, since: Instant) -> bool {
        self.readers.load(Ordering::Relaxed) > 0 || since.elapsed() >= TURN
    }

    // ------------------------------------------------------------------ dispatch

    fn run(&self, upto: u64, max_bytes: u64, check_crc: bool) -> Outcome<Run> {
        let _runner = self.runner.lock();
        self.index_again()?;
        let from = self.position.load(Ordering::Acquire);
        let bounds = Bounds {
            from,
            upto,
            entry_header: self.entry_header,
            check_crc,
            pass_damaged: !check_crc,
        };
        let mut run = Run::default();
        let mut bit_maps = match self.is_extended {
            true => self.calculate(&bounds, max_bytes)?,
            false => Calculated::default(),
        };
        let mut tables = Some(self.tables());
        let end = walk(&self.log, &bounds, |visit| {
            if run.records % LOOK_EVERY == 0 {
                if let Some(held) = tables.take_if(|held| self.turn_is_over(held.since)) {
                    held.hand_over();
                }
            }
            let held = tables.get_or_insert_with(|| self.tables());
            let next = match visit {
                Visit::Record { record, pos, next } => {
                    // Dispatched before: a wrong unit, or a queue that was removed since, must not count as a new
                    // queue.
                    run.index_alone = pos < self.reached.load(Ordering::Acquire);
                    let bits = bit_maps.of(pos);
                    self.dispatch(held, record, pos, bits.as_deref().unwrap_or(&[]), &mut run)?;
                    next
                }
                Visit::Damaged { pos, size, bad } => {
                    held.queues.note_lost(pos, size);
                    if held.queues.is_holding() && bad != Bad::Unreadable {
                        self.claim_at(&mut held.queues, pos, size)?;
                    }
                    run.skip(pos, size, bad);
                    pos + size
                }
            };
            run.records += 1;
            self.position.store(next, Ordering::Release);
            self.reached.fetch_max(next, Ordering::AcqRel);
            while held.queues.pending_bytes() > MOST_PENDING && !held.queues.write_some(1)? {}
            Ok(if next - from >= max_bytes {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.position.store(end.pos, Ordering::Release);
        self.reached.fetch_max(end.pos, Ordering::AcqRel);
        if let Some(held) = tables {
            held.hand_over();
        }
        run.stopped = end.stopped;
        // Zeros at the begin of a segment are no reason: the log may end there. What was passed before is damage.
        if end.stopped.is_some() || end.pos < upto && end.pos - from < max_bytes {
            if let Some(next) = self.end_of_known_damage(end.pos)? {
                run.skip(end.pos, next - end.pos, end.stopped.unwrap_or(Bad::Unwritten));
                self.position.store(next, Ordering::Release);
                run.stopped = None;
            }
        }
        Ok(run)
    }

    /// Where the log continues after damage that recovery skipped; needed again when the index is rebuilt.
    #[cold]
    fn end_of_known_damage(&self, pos: u64) -> Outcome<Option<u64>> {
        let reached = self.reached.load(Ordering::Acquire);
        let mut end = None;
        if pos < reached {
            self.read_log(pos, reached, |found, next| {
                if matches!(found, Found::Damage(_)) {
                    end = Some(next.min(reached));
                }
                ControlFlow::Break(())
            })?;
        }
        Ok(end.filter(|&end| end > pos))
    }

    /// Dispatches the records in [from, upto) again, which was dispatched while it could not be read. Queues get the
    /// units that are missing at their end. With `index`, the index files from there on are dropped and the position
    /// goes back to the first record of the dropped files, so that they are rebuilt.
    fn redo(&self, from: u64, upto: u64, index: bool) -> Outcome<Run> {
        let _runner = self.runner.lock();
        let upto = upto.min(self.position.load(Ordering::Acquire));
        let bounds = Bounds {
            from,
            upto,
            entry_header: self.entry_header,
            check_crc: true,
            pass_damaged: false,
        };
        let mut run = Run::default();
        if index && self.index_enabled {
            if let Some(pos) = self.wait_for(&self.index).drop_at(from as i64)? {
                let first = segment_starts(&self.log_folder)?.first().copied().unwrap_or(0);
                let pos = (pos as u64)
                    .saturating_sub(self.entry_header as u64)
                    .min(from)
                    .max(first);
                self.position.fetch_min(pos, Ordering::AcqRel);
                run.queues_alone = true;
            }
        }
        let mut held = self.tables();
        let end = walk(&self.log, &bounds, |visit| {
            if let Visit::Record { record, pos, .. } = visit {
                self.dispatch(&mut held, record, pos, &[], &mut run)?;
                run.records += 1;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        held.hand_over();
        run.stopped = end.stopped;
        Ok(run)
    }

    /// Drops the index files from `name` on, because `name` has a wrong entry, and moves the position back to the first
    /// of their records. False: no file has this name.
    fn distrust_index(&self, name: &str) -> Outcome<bool> {
        let _runner = self.runner.lock();
        let mut index = self.wait_for(&self.index);
        if self.read_only || !index.headers().any(|(other, _)| other == name) {
            return Ok(false);
        }
        let pos = index.drop_from(name)?.max(0) as u64;
        let first = segment_starts(&self.log_folder)?.first().copied().unwrap_or(0);
        let pos = pos.saturating_sub(self.entry_header as u64).max(first);
        self.position.fetch_min(pos, Ordering::AcqRel);
        Ok(true)
    }

    /// If a page of the index could not be read: drops its files from there on, and moves the position back to the
    /// first of their records. The queues already have these records.
    fn index_again(&self) -> Outcome<()> {
        let faults = faults();
        if self.faults_seen.swap(faults, Ordering::Relaxed) == faults {
            return Ok(());
        }
        let Some(pos) = self.wait_for(&self.index).drop_spoiled()? else {
            return Ok(());
        };
        let first = segment_starts(&self.log_folder)?.first().copied().unwrap_or(0);
        let pos = (pos as u64).saturating_sub(self.entry_header as u64).max(first);
        self.position.fetch_min(pos, Ordering::AcqRel);
        Ok(())
    }

    #[inline]
    fn dispatch(
        &self,
        tables: &mut Tables<'_>,
        record: &Record<'_>,
        pos: u64,
        bits: &[u8],
        run: &mut Run,
    ) -> Outcome<()> {
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
        let (unit_wanted, index_wanted) = queues.wants(record.topic(), record.queue_id());
        // The unit comes last, after everything that can fail: a queue never has the unit of a record that dispatch has
        // not passed. Readers would take such a unit for a wrong one.
        if index_wanted && !run.queues_alone && self.index_enabled && record.is_indexed() {
            index_keys(index, queues.topic_at(topic).key_seed, &known, pos, store_timestamp)?;
        }
        if unit_wanted && record.is_queued() && !run.index_alone {
            let tags_code = self
                .delays
                .tags_code(queues.topic_at(topic).is_schedule, &known, store_timestamp);
            let unit = Unit {
                pos,
                size: record.size() as i32,
                tags_code,
            };
            let queue = queues.queue(topic, record.queue_id());
            if queues.is_extended() {
                queues.prepare_ext(queue)?;
            }
            let put = if queues.is_holding() {
                claim(queues, queue, record, unit)?
            } else {
                queues.put(queue, unit, record.queue_offset())?
            };
            match put {
                Put::Known | Put::Held => {}
                Put::Misplaced if record.queue_offset() != 0 => {
                    // A conversion can leave out damaged records. The offset of a sealed one cannot be damaged.
                    if self.is_sealed(record, pos as u64)? && queues.put_behind_gap(queue, unit, record.queue_offset())
                    {
                        if queues.is_extended() {
                            queues.extend_last(queue, tags_code, store_timestamp, bits);
                        }
                        return Ok(());
                    }
                    run.misplaced += 1;
                    run.skip(pos as u64, u64::from(record.size()), Bad::QueueOffset);
                }
                put @ (Put::Added | Put::Misplaced) => {
                    run.misplaced += u64::from(put == Put::Misplaced);
                    if queues.is_extended() {
                        queues.extend_last(queue, tags_code, store_timestamp, bits);
                    }
                }
                Put::BadOffset => run.skip(pos as u64, u64::from(record.size()), Bad::QueueOffset),
            }
        }
        Ok(())
    }

    /// Whether the CRC of its entry covers the record at `pos` and holds. dledger writes none.
    #[cold]
    fn is_sealed(&self, record: &Record<'_>, pos: u64) -> Outcome<bool> {
        let (Some(begin), true) = (pos.checked_sub(ENTRY_HEADER as u64), self.entry_header != 0) else {
            return Ok(false);
        };
        let Some(segment) = self.log.segment(begin)? else {
            return Ok(false);
        };
        let header = segment.slice(begin, ENTRY_HEADER).map(EntryHeader::read);
        let has_crc = header.is_some_and(|header| header.is_ok_and(|header| header.chain != 0));
        Ok(has_crc && segment.holds(record, pos, self.entry_header))
    }

    /// Writes once what waits at the time of the call. "Until nothing waits" would never end while dispatch makes
    /// queues dirty faster than files are written.
    fn write_out(&self) -> Outcome<()> {
        let mut left = self.wait_for(&self.queues).dirty_count();
        while left > 0 {
            self.queue_by_queue(|queues| {
                left = if queues.write_some(1)? { 0 } else { left - 1 };
                Ok(left > 0)
            })?;
        }
        Ok(())
    }

    /// Calls `act` for one queue after another under one hold of the lock, while `act` reports more work and the turn
    /// is not over.
    fn queue_by_queue(&self, mut act: impl FnMut(&mut Queues) -> Outcome<bool>) -> Outcome<()> {
        let mut queues = self.queues.lock();
        let since = Instant::now();
        while act(&mut queues)? && !self.turn_is_over(since) {}
        MutexGuard::unlock_fair(queues);
        Ok(())
    }

    /// Writes out and returns what the files then hold: a state between two records.
    fn written_point(&self, with_table: bool) -> Outcome<WrittenPoint> {
        loop {
            let mut point = None;
            self.queue_by_queue(|queues| {
                if !queues.write_some(1)? {
                    return Ok(true);
                }
                let (count, units) = queues.totals();
                let (index_name, index_count) = self.index.lock().newest();
                let position = self.position.load(Ordering::Acquire);
                let store_timestamp = self.last_store_timestamp.load(Ordering::Relaxed);
                let table = if with_table { queues.table() } else { vec![] };
                point = Some((position, store_timestamp, count, units, index_name, index_count, table));
                Ok(false)
            })?;
            if let Some(point) = point {
                return Ok(point);
            }
        }
    }

    fn sync(&self) -> Outcome<()> {
        let (mut files, mut folders) = self.wait_for(&self.queues).take_unsynced();
        if files.len() + folders.len() > self.door.most_single_syncs() {
            if let Err(error) = self.sync_fs(&mut files, &mut folders) {
                self.queues.lock().sync_failed(&files, &folders);
                let path = self.root.clone();
                return Err(Fault::Io { path, error });
            }
        }
        for (i, file) in files.iter().enumerate() {
            if let Err(fault) = file.sync(&self.door) {
                self.queues.lock().sync_failed(&files[i..], &folders);
                return Err(fault);
            }
        }
        for (i, folder) in folders.iter().enumerate() {
            match self.door.sync_dir(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.queues.lock().sync_failed(&[], &folders[i..]);
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

    /// Syncs the files on the file system of the store's root with one call, if possible; leaves the other files, and
    /// one file.
    fn sync_fs(&self, files: &mut Vec<ToSync>, folders: &mut Vec<PathBuf>) -> io::Result<()> {
        let device = std::fs::metadata(&self.root)?.dev();
        if self.door.sync_fs(&self.root)? {
            let mut has_one = false;
            files.retain(|file| !file.is_on(device) || !std::mem::replace(&mut has_one, true));
            folders.retain(|folder| !std::fs::metadata(folder).is_ok_and(|data| data.dev() == device));
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
            self.index.lock().sync_failed(&files, folder.is_some());
            return Err(fault);
        }
        Ok(end_timestamp)
    }

    /// Calls a function for every queue.
    fn each_queue(&self, mut act: impl FnMut(&mut Queues, u32) -> Outcome<()>) -> Outcome<()> {
        let all = self.wait_for(&self.queues).all();
        let mut rest = all.iter();
        while !rest.as_slice().is_empty() {
            self.queue_by_queue(|queues| match rest.next() {
                Some(&q) => act(queues, q).map(|()| true),
                None => Ok(false),
            })?;
        }
        Ok(())
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

/// Adds those entries of a record's keys that the index lacks.
#[inline]
fn index_keys(index: &mut Index, seed: i32, known: &Known<'_>, pos: i64, store_timestamp: i64) -> Outcome<()> {
    if known.unique_key.is_empty() && known.keys.is_empty() || index.has_passed(pos) {
        return Ok(());
    }
    let done = index.keys_of_last(pos)?;
    for key in known.each_indexed().skip(done) {
        index.put(hash_on(seed, key), pos, store_timestamp)?;
    }
    Ok(())
}
