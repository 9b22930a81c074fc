//! The index of pending timers: which messages of the timer topic are not delivered yet, in the order of their times.
//!
//! The log determines it. `advance` reads the log once, in order, and takes three kinds of records:
//!
//! ```text
//! a record of the timer topic               pending from now on, until
//! a record with the property TIMER_ORIGIN   ... its delivery, recall or second copy is in the log: it names the first
//! a recall that RocketMQ 5 wrote            ... (it names the unique key)
//! ```
//!
//! Each pending message has a bit, by its queue offset (`pending.rs`), and an entry with its time: new ones in memory,
//! older ones in sorted files (`runs.rs`). Finished ones lose their bit; their entries are skipped, and dropped when
//! files are merged. What `due` returned is `taken`: it stays pending until the log has its delivery, and a caller that
//! could not store the delivery gives it back.
//!
//! The files are saved with the position of the log that they reflect, and a checksum of the log's bytes before that
//! position. If anything contradicts the log, the caller reads the log again (`clear`).
//!
//! Locks, in this order: `upkeep` (one save at a time), `reader` (one `advance` at a time), `state`.

mod pending;
mod runs;
mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::dispatch::{Dispatch, Finished, TimerEvent};
use crate::door::{Door, DoorFile};
use crate::fault::{At, Outcome};
use pending::Pending;
use runs::{merged, write_run, Entry, Run};
use saved::{Found, Saved};

/// Entries in memory; with more, they are written to a file.
const MOST_YOUNG: usize = 1 << 16;
/// Memory of an entry in a B-tree: 32 bytes in nodes that are two thirds full.
const ENTRY_BYTES: usize = 50;
/// A start reads the log from the last save on: a save is due after so many bytes, also if nothing else changed.
const SAVE_BYTES: u64 = 64 << 20;

#[derive(Default)]
struct State {
    /// The log is read up to here.
    pos: u64,
    /// All records of the timer topic below this queue offset were read.
    next: i64,
    pending: Pending,
    young: BTreeSet<Entry>,
    taken: BTreeMap<i64, Entry>,
    runs: Vec<Run>,
    next_run: u64,
    delivered: u64,
    recalled: u64,
    rolled: u64,
    lost: u64,
    /// Changed since the last save, which reflected the log up to `saved_pos`.
    changed: bool,
    saved_pos: u64,
}

impl State {
    fn finish(&mut self, offset: i64) -> bool {
        self.taken.remove(&offset);
        let was = self.pending.clear(offset);
        self.changed |= was;
        was
    }

    fn count(&mut self, finished: Finished) {
        match finished {
            Finished::Delivered => self.delivered += 1,
            Finished::Recalled => self.recalled += 1,
            Finished::Rolled => self.rolled += 1,
        }
    }

    fn apply(&mut self, event: TimerEvent) -> Outcome<()> {
        match event {
            TimerEvent::Finished { offset, how } => {
                if self.finish(offset) {
                    self.count(how);
                }
            }
            TimerEvent::FinishedByKey { key, from, to, how } => {
                for entry in self.with_key(key, from, to)? {
                    self.finish(entry.offset);
                    self.count(how);
                }
            }
            TimerEvent::Added(entry) => {
                if entry.offset >= self.next {
                    self.next = entry.offset + 1;
                    self.pending.set(entry.offset);
                    self.young.insert(entry);
                    self.changed = true;
                }
            }
            TimerEvent::Passed { offset } => self.next = self.next.max(offset + 1),
        }
        Ok(())
    }

    /// Entries of pending messages with this key and a time in [from, to], also those that are taken.
    fn with_key(&mut self, key: u64, from: i64, to: i64) -> Outcome<Vec<Entry>> {
        let mut found: Vec<Entry> = self
            .young
            .range(Entry::first(from)..)
            .take_while(|entry| entry.due <= to)
            .chain(self.taken.values())
            .filter(|entry| entry.key == key && (from..=to).contains(&entry.due))
            .copied()
            .collect();
        for run in &self.runs {
            found.extend(run.between(from, to)?.into_iter().filter(|entry| entry.key == key));
        }
        found.retain(|entry| self.pending.has(entry.offset));
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The pending entry that is due first and not taken, and where it is: a run, or in memory.
    fn first(&mut self) -> Outcome<Option<(Entry, Option<usize>)>> {
        let State {
            pending,
            taken,
            young,
            runs,
            ..
        } = self;
        let usable = |entry: &Entry| pending.has(entry.offset) && !taken.contains_key(&entry.offset);
        while young.first().is_some_and(|entry| !pending.has(entry.offset)) {
            young.pop_first();
        }
        // After `clear`, what is taken is read again.
        let mut best = young.iter().find(|entry| usable(entry)).map(|&entry| (entry, None));
        for (at, run) in runs.iter_mut().enumerate() {
            if let Some(entry) = run.peek(usable)? {
                if best.is_none_or(|(other, _)| entry < other) {
                    best = Some((entry, Some(at)));
                }
            }
        }
        Ok(best)
    }
}

/// The pending timers of a store.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct TimerIndex {
    door: Door,
    folder: PathBuf,
    /// Added to a time that RocketMQ rounded down, in ms.
    precision_ms: i64,
    /// What RocketMQ 5 delivered before this store was taken over from it: messages below this offset whose rounded
    /// time is before this time.
    delivered_before: (i64, i64),
    upkeep: Mutex<()>,
    reader: Mutex<()>,
    state: Mutex<State>,
}

type Row = (i64, u64, i64);

impl TimerIndex {
    fn advance(&self, dispatch: &Dispatch, upto: u64, max_bytes: u64) -> Outcome<(u64, bool)> {
        let _reader = self.reader.lock();
        let (from, next, is_idle) = {
            let state = self.state.lock();
            (state.pos, state.next, state.pending.count() == 0)
        };
        if from >= upto {
            return Ok((from, false));
        }
        if is_idle && dispatch.timer_end() <= next {
            self.state.lock().pos = upto; // nothing pends, and nothing new can
            return Ok((upto, false));
        }
        let (end, events) = dispatch.timer_events(from, upto, max_bytes, self.precision_ms)?;
        let mut state = self.state.lock();
        let any = !events.is_empty();
        for event in events {
            match event {
                TimerEvent::Added(entry) if self.was_delivered(&entry) => {
                    state.apply(TimerEvent::Passed { offset: entry.offset })?;
                }
                event => state.apply(event)?,
            }
        }
        state.pos = end;
        Ok((end, any))
    }

    fn was_delivered(&self, entry: &Entry) -> bool {
        let (offset, time_ms) = self.delivered_before;
        let rounded = entry
            .due
            .saturating_sub(1)
            .div_euclid(self.precision_ms)
            .saturating_mul(self.precision_ms);
        entry.offset < offset && rounded < time_ms
    }

    /// Writes the entries in memory, and what is taken, to a file; returns the state at its begin, whose pending messages
    /// all are in the files now. A slow disk does not hold the lock of the state: the entries stay in memory until the
    /// file has them, and what is given back meanwhile can be in both. The caller holds `upkeep`.
    fn write_young(&self) -> Outcome<Saved> {
        let (id, mut entries, mut saved) = {
            let mut state = self.state.lock();
            let mut entries: Vec<Entry> = state.young.iter().chain(state.taken.values()).copied().collect();
            entries.retain(|entry| state.pending.has(entry.offset));
            let id = state.next_run;
            state.next_run += 1;
            (id, entries, Saved::of(&state, self.delivered_before))
        };
        entries.sort_unstable();
        entries.dedup();
        let run = match entries.is_empty() {
            true => None,
            false => Some(write_run(
                &self.door,
                &self.folder,
                id,
                &mut entries.iter().copied().map(Ok),
            )?),
        };
        let mut state = self.state.lock();
        state.runs.extend(run);
        let State { young, pending, .. } = &mut *state;
        young.retain(|entry| pending.has(entry.offset) && entries.binary_search(entry).is_err());
        saved.runs = state.runs.iter().map(Run::named).collect();
        Ok(saved)
    }

    /// Merges the last two files, if the older one is not more than twice as long. Finished entries are dropped.
    fn merge_last(&self) -> Outcome<bool> {
        let (id, left, right) = {
            let mut state = self.state.lock();
            let [.., left, right] = state.runs.as_slice() else {
                return Ok(false);
            };
            if left.len() > 2 * right.len() {
                return Ok(false);
            }
            let sources = (left.reader(), right.reader());
            let id = state.next_run;
            state.next_run += 1;
            (id, sources.0, sources.1)
        };
        let mut kept = merged(left, right).filter(|entry| match entry {
            Ok(entry) => self.state.lock().pending.has(entry.offset),
            Err(_) => true,
        });
        let run = write_run(&self.door, &self.folder, id, &mut kept)?;
        let mut state = self.state.lock();
        let keep = state.runs.len() - 2;
        state.runs.truncate(keep);
        if run.len() > 0 {
            state.runs.push(run);
        }
        Ok(true)
    }

    fn save(&self, dispatch: &Dispatch) -> Outcome<bool> {
        let _upkeep = self.upkeep.lock();
        {
            let mut state = self.state.lock();
            // A store that never had a timer gets no files.
            if state.next == 0 || !state.changed && state.pos.saturating_sub(state.saved_pos) < SAVE_BYTES {
                return Ok(false);
            }
            state.changed = false;
        }
        match self.save_now(dispatch) {
            Ok(pos) => self.state.lock().saved_pos = pos,
            Err(fault) => {
                self.state.lock().changed = true;
                return Err(fault);
            }
        }
        while self.merge_last()? {}
        Ok(true)
    }

    fn save_now(&self, dispatch: &Dispatch) -> Outcome<u64> {
        self.door.mkdir(&self.folder).at(&self.folder)?;
        let mut saved = self.write_young()?;
        let files: Vec<_> = self.state.lock().runs.iter().map(Run::file).collect();
        self.write_saved(dispatch, &mut saved, &files)?;
        Ok(saved.pos)
    }

    fn write_saved(&self, dispatch: &Dispatch, saved: &mut Saved, files: &[Arc<DoorFile>]) -> Outcome<()> {
        saved.mark = dispatch.timer_mark(saved.pos)?;
        for file in files {
            file.sync_data().at(file.path())?;
        }
        self.door.sync_dir(&self.folder).at(&self.folder)?;
        saved.write(&self.door, &self.folder)?;
        saved::remove_others(&self.door, &self.folder, saved)
    }

    /// None: the files are used. Otherwise, why they are not.
    fn load(&self, dispatch: &Dispatch, end: u64) -> Outcome<Option<Unused>> {
        let saved = match Saved::read(&self.folder)? {
            Found::Sound(saved) => saved,
            Found::Missing if self.folder.is_dir() => return Ok(Some(Unused::Damaged)),
            Found::Missing => return Ok(Some(Unused::Missing)),
            Found::Damaged => return Ok(Some(Unused::Damaged)),
        };
        if saved.delivered_before != self.delivered_before || saved.pos > end {
            return Ok(Some(Unused::OtherLog));
        }
        if dispatch.timer_mark(saved.pos)? != saved.mark || dispatch.timer_end() < saved.next {
            return Ok(Some(Unused::OtherLog));
        }
        let Some(runs) = saved.open_runs(&self.door, &self.folder)? else {
            return Ok(Some(Unused::Damaged));
        };
        let next_run = runs.iter().map(|run| run.id() + 1).max().unwrap_or(0);
        *self.state.lock() = State {
            pos: saved.pos,
            saved_pos: saved.pos,
            next: saved.next,
            pending: saved.pending,
            runs,
            next_run,
            ..State::default()
        };
        Ok(None)
    }
}

/// Why the files of the index are not used.
enum Unused {
    Missing,
    Damaged,
    /// They reflect a log with other bytes.
    OtherLog,
}

impl Unused {
    fn name(&self) -> &'static str {
        match self {
            Unused::Missing => "missing",
            Unused::Damaged => "damaged",
            Unused::OtherLog => "other log",
        }
    }
}

#[pymethods]
impl TimerIndex {
    #[new]
    #[pyo3(signature = (door, folder, precision_ms, delivered_before = (0, 0)))]
    fn new(door: Door, folder: PathBuf, precision_ms: i64, delivered_before: (i64, i64)) -> TimerIndex {
        TimerIndex {
            door,
            folder,
            precision_ms,
            delivered_before,
            upkeep: Mutex::default(),
            reader: Mutex::default(),
            state: Mutex::default(),
        }
    }

    #[pyo3(name = "load")]
    fn load_py(&self, py: Python<'_>, dispatch: &Dispatch, end: u64) -> PyResult<Option<&'static str>> {
        Ok(py.detach(|| self.load(dispatch, end))?.map(|unused| unused.name()))
    }

    fn clear(&self, py: Python<'_>, pos: u64) {
        py.detach(|| {
            let _upkeep = self.upkeep.lock();
            let _reader = self.reader.lock();
            let mut state = self.state.lock();
            let next_run = state.next_run;
            *state = State {
                pos,
                next_run,
                taken: std::mem::take(&mut state.taken),
                changed: true,
                ..State::default()
            };
        });
    }

    #[pyo3(name = "advance")]
    fn advance_py(&self, py: Python<'_>, dispatch: &Dispatch, upto: u64, max_bytes: u64) -> PyResult<(u64, bool)> {
        Ok(py.detach(|| self.advance(dispatch, upto, max_bytes))?)
    }

    /// Whether there is nothing to read up to `upto`, because nothing pends and nothing new can: then `pos` is there.
    fn skip(&self, dispatch: &Dispatch, upto: u64) -> bool {
        let Some(_reader) = self.reader.try_lock() else {
            return false;
        };
        let next = {
            let state = self.state.lock();
            if state.pending.count() > 0 {
                return false;
            }
            state.next
        };
        let idle = dispatch.timer_end() <= next;
        if idle {
            let mut state = self.state.lock();
            state.pos = state.pos.max(upto);
        }
        idle
    }

    #[pyo3(name = "save")]
    fn save_py(&self, py: Python<'_>, dispatch: &Dispatch) -> PyResult<bool> {
        Ok(py.detach(|| self.save(dispatch))?)
    }

    /// Writes the entries in memory to a file if there are many.
    #[pyo3(name = "spill")]
    fn spill_py(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let _upkeep = self.upkeep.lock();
            if self.state.lock().young.len() > MOST_YOUNG {
                self.door.mkdir(&self.folder).at(&self.folder)?;
                self.write_young()?;
                while self.merge_last()? {}
            }
            Ok::<_, crate::fault::Fault>(())
        })?;
        Ok(())
    }

    fn take_due(&self, py: Python<'_>, now_ms: i64, most: usize) -> PyResult<Vec<Row>> {
        Ok(py.detach(|| {
            let mut state = self.state.lock();
            let mut due = vec![];
            while due.len() < most {
                match state.first()? {
                    Some((entry, at)) if entry.due <= now_ms => {
                        match at {
                            None => {
                                state.young.remove(&entry);
                            }
                            Some(at) => state.runs[at].pass(),
                        }
                        if state.taken.insert(entry.offset, entry).is_none() {
                            due.push(entry.row());
                        }
                    }
                    _ => break,
                }
            }
            Ok::<_, crate::fault::Fault>(due)
        })?)
    }

    fn next_due(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        let first = py.detach(|| self.state.lock().first())?;
        Ok(first.map(|(entry, _)| entry.due))
    }

    /// Takes the message out of the queue of due ones, so that it is not delivered now. False: it is not pending, or
    /// taken already.
    fn take(&self, py: Python<'_>, offset: i64, pos: u64, due: i64, key: u64) -> bool {
        py.detach(|| {
            let mut state = self.state.lock();
            let free = state.pending.has(offset) && !state.taken.contains_key(&offset);
            if free {
                let entry = Entry { due, offset, pos, key };
                state.taken.insert(offset, entry);
                state.young.remove(&entry);
            }
            free
        })
    }

    /// Takes pending messages whose records are before `end` of the log, in the order of the log. Also returns the queue
    /// offsets of those that cannot be read; they are not taken.
    fn take_before(
        &self,
        py: Python<'_>,
        dispatch: &Dispatch,
        end: u64,
        most: usize,
    ) -> PyResult<(Vec<Row>, Vec<i64>)> {
        Ok(py.detach(|| {
            let (mut rows, mut unreadable) = (vec![], vec![]);
            let mut at = i64::MIN;
            while rows.len() + unreadable.len() < most {
                let next = self.state.lock().pending.next(at);
                let Some(offset) = next else { break };
                at = offset + 1;
                let Some(entry) = dispatch.timer_entry(offset, self.precision_ms)? else {
                    unreadable.push(offset);
                    continue;
                };
                if entry.pos >= end {
                    break;
                }
                let mut state = self.state.lock();
                // The log may have been read further, or again, while the record was read.
                if state.pending.has(offset) && !state.taken.contains_key(&offset) {
                    state.taken.insert(offset, entry);
                    state.young.remove(&entry);
                    rows.push(entry.row());
                }
            }
            Ok::<_, crate::fault::Fault>((rows, unreadable))
        })?)
    }

    fn give_back(&self, py: Python<'_>, offset: i64) {
        py.detach(|| {
            let mut state = self.state.lock();
            if let Some(entry) = state.taken.remove(&offset) {
                state.young.insert(entry);
            }
        });
    }

    fn give_all_back(&self, py: Python<'_>) {
        py.detach(|| {
            let mut state = self.state.lock();
            let taken = std::mem::take(&mut state.taken);
            state.young.extend(taken.into_values());
        });
    }

    /// Forgets a message whose record is lost from the log.
    fn forget(&self, py: Python<'_>, offset: i64) -> bool {
        py.detach(|| {
            let mut state = self.state.lock();
            let was = state.finish(offset);
            state.lost += u64::from(was);
            was
        })
    }

    fn forget_below(&self, py: Python<'_>, offset: i64) -> u64 {
        py.detach(|| {
            let mut state = self.state.lock();
            let lost = state.pending.clear_below(offset);
            state.taken = state.taken.split_off(&offset);
            state.lost += lost;
            state.changed |= lost > 0;
            lost
        })
    }

    fn is_pending(&self, offset: i64) -> bool {
        self.state.lock().pending.has(offset)
    }

    /// The time of the first pending message, also of those that are taken.
    fn first_due(&self, py: Python<'_>) -> PyResult<Option<i64>> {
        Ok(py.detach(|| {
            let mut state = self.state.lock();
            let taken = state.taken.values().map(|entry| entry.due).min();
            let waiting = state.first()?.map(|(entry, _)| entry.due);
            Ok::<_, crate::fault::Fault>(taken.into_iter().chain(waiting).min())
        })?)
    }

    fn first_pending(&self) -> Option<i64> {
        self.state.lock().pending.next(i64::MIN)
    }

    /// Pending offsets from `offset` on that are not taken, in order, `most` at most.
    fn pending_from(&self, py: Python<'_>, offset: i64, most: usize) -> Vec<i64> {
        py.detach(|| {
            let state = self.state.lock();
            let mut found = vec![];
            let mut at = offset;
            while let Some(next) = state.pending.next(at).filter(|_| found.len() < most) {
                if !state.taken.contains_key(&next) {
                    found.push(next);
                }
                at = next + 1;
            }
            found
        })
    }

    fn find(&self, py: Python<'_>, unique_key: &[u8], from_ms: i64, to_ms: i64) -> PyResult<Vec<(i64, u64, i64, u64)>> {
        let key = runs::key_of(unique_key);
        let found = py.detach(|| self.state.lock().with_key(key, from_ms, to_ms))?;
        Ok(found.iter().map(|e| (e.offset, e.pos, e.due, e.key)).collect())
    }

    #[getter]
    fn pos(&self) -> u64 {
        self.state.lock().pos
    }

    #[getter]
    fn next_offset(&self) -> i64 {
        self.state.lock().next
    }

    /// Bytes of memory that the index uses, about, and bytes of its files.
    fn sizes(&self) -> (u64, u64) {
        let state = self.state.lock();
        let entries = state.young.len() + state.taken.len();
        let memory = state.pending.bytes() + entries * ENTRY_BYTES + state.runs.len() * runs::BLOCK_BYTES;
        (memory as u64, state.runs.iter().map(Run::bytes).sum())
    }

    /// (pending, taken, delivered, recalled, rolled, lost): the first two now, the others since the start.
    fn counts(&self) -> (u64, u64, u64, u64, u64, u64) {
        let state = self.state.lock();
        let taken = state.taken.len() as u64;
        (
            state.pending.count(),
            taken,
            state.delivered,
            state.recalled,
            state.rolled,
            state.lost,
        )
    }
}

pub use runs::{key_of, Entry as TimerEntry};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TimerIndex>()
}
