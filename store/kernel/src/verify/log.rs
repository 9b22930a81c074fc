//! Checks a log: every byte of it, and in dledger's layout also the entries and their index units.

use std::borrow::Cow;

use pyo3::prelude::*;

use super::files::{place, Files};
use super::findings::{CheckFindings, Findings};
use super::in_log::QueuesOfLog;
use super::step::{resync, step_at, Kind, Seen, Step};
use super::FilesOf;
use crate::entry::INDEX_UNIT;
use crate::named::named_tuples;
use crate::record::{int, long, Known, Record};

/// Texts of notes about bytes behind the log's end; the next start truncates them.
const TORN_TAIL: &str = "a torn last write";
const LEFT_OVER: &str = "left over after the log's end";
const BYTES_A_REPORT: u64 = 8 << 20;
const HEADER: usize = 48;

named_tuples! {
    /// The result of a check of a log, or of a part of it.
    LogChecked {
        findings: CheckFindings,
        queues: QueuesOfLog,
        records: u64,
        fillers: u64,
        entries: u64,
        end: u64,
        last_store_ms: i64,
        records_with_keys: u64,
        first_entry: Option<Cow<'static, [u8]>>,
        last_entry: Option<Cow<'static, [u8]>>,
    }
}

struct LogCheck<'a> {
    log: Files,
    ledger_index: Files,
    entry_header: usize,
    /// Where the part ends; None: the log's end.
    end: Option<u64>,
    /// The greatest end of a record that a queue names.
    known_end: i64,
    repairable_from: i64,
    /// Up to here the log was certainly written.
    written_end: i64,
    count_keys: bool,
    progress: Option<&'a Py<PyAny>>,
    next_report: u64,
    findings: Findings,
    queues: QueuesOfLog,
    records: u64,
    fillers: u64,
    entries: u64,
    end_pos: u64,
    last_store_ms: i64,
    records_with_keys: u64,
    first_entry: Option<Entry>,
    last_entry: Option<Entry>,
}

/// The header of an entry.
#[derive(Clone, Copy)]
struct Entry([u8; HEADER]);

impl Entry {
    fn of(bytes: &[u8]) -> Option<Entry> {
        Some(Entry(*bytes.first_chunk()?))
    }

    fn index(&self) -> i64 {
        long(&self.0, 8)
    }

    fn term(&self) -> i64 {
        long(&self.0, 16)
    }

    fn pos(&self) -> i64 {
        long(&self.0, 24)
    }

    fn chain(&self) -> u32 {
        int(&self.0, 36) as u32
    }

    /// The chain CRC for this header, after an entry with the chain CRC `before`.
    fn continued(&self, before: u32) -> u32 {
        let mut bytes = self.0;
        bytes[36..40].copy_from_slice(&before.to_be_bytes());
        crc32fast::hash(&bytes).max(1)
    }

    /// The unit of the index of entries.
    fn unit(&self) -> [u8; INDEX_UNIT] {
        let mut unit = [0; INDEX_UNIT];
        unit[..4].copy_from_slice(&self.0[..4]);
        unit[4..12].copy_from_slice(&self.0[24..32]);
        unit[12..16].copy_from_slice(&self.0[4..8]);
        unit[16..].copy_from_slice(&self.0[8..24]);
        unit
    }
}

fn unit_text(unit: &[u8]) -> String {
    if int(unit, 0) != 1 {
        return "None".to_owned();
    }
    format!(
        "IndexUnit(magic=1, pos={}, size={}, log_index={}, term={})",
        long(unit, 4),
        int(unit, 12),
        long(unit, 16),
        long(unit, 24)
    )
}

impl LogCheck<'_> {
    fn run(&mut self, begin: u64) -> PyResult<()> {
        self.end_pos = begin;
        let mut pos = Some(begin);
        while let Some(at) = pos.filter(|&pos| self.end.is_none_or(|end| pos < end)) {
            pos = self.stretch(at)?;
        }
        if self.end.is_none() {
            self.index_end()?;
        }
        Ok(())
    }

    /// Walks to the next damage. Returns where to continue behind it; None: at the log's end.
    fn stretch(&mut self, mut pos: u64) -> PyResult<Option<u64>> {
        loop {
            let seen = step_at(&mut self.log, pos as i64, self.entry_header, true)?;
            if pos >= self.next_report {
                self.report_progress(pos)?;
            }
            if self.end.is_some_and(|end| pos >= end) {
                return Ok(None);
            }
            match seen.step.kind {
                Kind::End | Kind::Damage => return self.stop(seen.step),
                Kind::Filler => self.fillers += 1,
                Kind::Record | Kind::Empty => self.item(&seen)?,
            }
            pos += seen.step.size;
            self.end_pos = pos;
        }
    }

    fn report_progress(&mut self, pos: u64) -> PyResult<()> {
        self.next_report = pos + BYTES_A_REPORT;
        let first = self.log.starts.first().copied().unwrap_or(0);
        let done = (pos.saturating_sub(first), self.log.end().saturating_sub(first));
        Python::attach(|py| {
            py.check_signals()?;
            self.progress
                .map_or(Ok(()), |progress| progress.call1(py, done).map(drop))
        })
    }

    fn item(&mut self, seen: &Seen) -> PyResult<()> {
        if let Some(record) = seen.record() {
            self.record(&record, seen.step.pos);
        }
        match seen.entry().and_then(Entry::of) {
            Some(entry) => self.entry(entry),
            None => Ok(()),
        }
    }

    fn record(&mut self, record: &Record<'_>, pos: u64) {
        self.records += 1;
        self.last_store_ms = self.last_store_ms.max(record.store_timestamp()); // clocks are set back
        if self.count_keys && record.is_indexed() && Known::find(record.properties()).each_indexed().next().is_some() {
            self.records_with_keys += 1;
        }
        if !record.is_queued() {
            return;
        }
        let (topic, queue, offset) = (record.topic(), record.queue_id(), record.queue_offset());
        let repairable = pos as i64 >= self.repairable_from;
        if let Some(before) = self.queues.0.of_mut(topic, queue).add(offset, repairable) {
            // a topic that was removed and created again counts from 0
            let (file, at) = place(&self.log, pos);
            let odd = format!(" queue {queue}: queue offset {offset} follows {before}");
            self.findings
                .note(&file, at, false, || [topic, odd.as_bytes()].concat());
        }
    }

    fn entry(&mut self, entry: Entry) -> PyResult<()> {
        let before = self.last_entry.replace(entry);
        self.entries += 1;
        self.first_entry.get_or_insert(entry);
        let (index, term) = (entry.index(), entry.term());
        if let Some(before) = before {
            let follows = before.index().checked_add(1) == Some(index);
            if !follows {
                self.damage_of(&entry, format!("entry {index} follows entry {}", before.index()));
            }
            if term < before.term() {
                self.damage_of(&entry, format!("term {term} follows term {}", before.term()));
            }
            if follows && entry.chain() == 0 && before.chain() != 0 {
                self.damage_of(&entry, format!("entry {index} has no CRC, and the one before has"));
            }
            if follows && entry.chain() != 0 && entry.continued(before.chain()) != entry.chain() {
                self.damage_of(&entry, format!("the chain CRC of entry {index} differs"));
            }
        }
        let at = index.checked_mul(INDEX_UNIT as i64).unwrap_or(-1);
        let (Some(unit), Some(start)) = (self.ledger_index.read(at, INDEX_UNIT)?, self.ledger_index.start_of(at))
        else {
            let folder = self.ledger_index.folder.clone();
            self.findings.damage(&folder, 0, 0, -1, || {
                format!("there is no file for the unit of entry {index}").into_bytes()
            });
            return Ok(());
        };
        if unit != entry.unit() {
            // dledger writes index units again at its next start, from the first one that does not fit.
            self.findings
                .note(&self.ledger_index.path(start), at as u64 - start, true, || {
                    format!("the unit of entry {index} is {}", unit_text(&unit)).into_bytes()
                });
        }
        Ok(())
    }

    fn damage_of(&mut self, entry: &Entry, reason: String) {
        let (file, at) = place(&self.log, entry.pos() as u64);
        self.findings.damage(&file, at, 0, -1, || reason.into_bytes());
    }

    fn stop(&mut self, step: Step) -> PyResult<Option<u64>> {
        let behind = resync(&mut self.log, step.pos, self.entry_header)?.map(|seen| seen.step.pos);
        let pos = step.pos as i64;
        if pos < self.written_end && behind.is_none_or(|behind| behind as i64 >= self.written_end) {
            return Ok(Some(self.damaged_end(step)));
        }
        let (file, at) = place(&self.log, step.pos);
        let Some(behind) = behind else {
            if step.kind != Kind::End {
                let reason = || format!("{}: {TORN_TAIL}, the log ends here", step.why).into_bytes();
                self.findings.note(&file, at, false, reason);
            }
            return Ok(None);
        };
        if 0 <= self.known_end && self.known_end <= pos && pos >= self.written_end {
            let reason = || format!("{LEFT_OVER}: records that no queue knows").into_bytes();
            self.findings.note(&file, at, false, reason);
            return Ok(None);
        }
        let is_there = self.log.start_of(pos).is_some();
        self.findings.damage(&file, at, behind - step.pos, pos, || {
            let what = match step.kind {
                _ if !is_there => "no file has these bytes".to_owned(),
                Kind::Damage => step.why.to_string(),
                _ => format!("{} bytes between records", step.why),
            };
            format!("{what}; the next sound record is at {behind}").into_bytes()
        });
        self.end_pos = self.end_pos.max(behind);
        Ok(Some(behind))
    }

    /// No sound record shows where the damage ends. The log was written up to a known position, and continues there.
    fn damaged_end(&mut self, step: Step) -> u64 {
        let (file, at) = place(&self.log, step.pos);
        let end = self.written_end as u64;
        self.findings.damage(&file, at, end - step.pos, step.pos as i64, || {
            let what = match step.kind {
                Kind::End => "unwritten bytes".to_owned(),
                _ => step.why.to_string(),
            };
            format!("{what}; the log was written up to {end}").into_bytes()
        });
        self.end_pos = end;
        end
    }

    /// Checks that dledger's index has no unit behind the last entry.
    fn index_end(&mut self) -> PyResult<()> {
        let Some(last) = self.last_entry else { return Ok(()) };
        let at = (last.index().checked_add(1)).and_then(|next| next.checked_mul(INDEX_UNIT as i64));
        let Some(at) = at else { return Ok(()) };
        let (Some(unit), Some(start)) = (self.ledger_index.read(at, INDEX_UNIT)?, self.ledger_index.start_of(at))
        else {
            return Ok(());
        };
        if unit.iter().any(|&byte| byte != 0) {
            self.findings
                .note(&self.ledger_index.path(start), at as u64 - start, true, || {
                    format!("a unit follows that of the last entry {}", last.index()).into_bytes()
                });
        }
        Ok(())
    }

    fn finished(self) -> LogChecked {
        let encoded = |entry: Option<Entry>| entry.map(|entry| Cow::Owned(entry.0.to_vec()));
        LogChecked {
            findings: self.findings.taken(),
            queues: self.queues,
            records: self.records,
            fillers: self.fillers,
            entries: self.entries,
            end: self.end_pos,
            last_store_ms: self.last_store_ms,
            records_with_keys: self.records_with_keys,
            first_entry: encoded(self.first_entry),
            last_entry: encoded(self.last_entry),
        }
    }
}

/// check_log(log, begin, ...) -> LogChecked
#[pyfunction]
#[pyo3(signature = (log, begin, *, end, entry_header_bytes, ledger_index, known_end, repairable_from, written_end,
    before, count_keys, progress))]
#[allow(clippy::too_many_arguments)] // by name
fn check_log(
    py: Python<'_>,
    log: FilesOf,
    begin: u64,
    end: Option<u64>,
    entry_header_bytes: usize,
    ledger_index: FilesOf,
    known_end: i64,
    repairable_from: i64,
    written_end: i64,
    before: Option<&[u8]>,
    count_keys: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<LogChecked> {
    let mut check = LogCheck {
        log: Files::of(log),
        ledger_index: Files::of(ledger_index),
        entry_header: entry_header_bytes,
        end,
        known_end,
        repairable_from,
        written_end,
        count_keys,
        progress: progress.as_ref(),
        next_report: begin,
        findings: Findings::default(),
        queues: QueuesOfLog::default(),
        records: 0,
        fillers: 0,
        entries: 0,
        end_pos: begin,
        last_store_ms: 0,
        records_with_keys: 0,
        first_entry: None,
        last_entry: before.and_then(Entry::of),
    };
    py.detach(|| check.run(begin).map(|()| check.finished()))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_function(wrap_pyfunction!(check_log, module)?)
}
