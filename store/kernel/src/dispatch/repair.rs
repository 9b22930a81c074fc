//! Compares queues with the log while both are in use, and rewrites wrong units in place.
//!
//! `audit` reads a range of the log and checks for each record that its queue names it. It reads the log with calls,
//! not through a map, and checks its CRCs. `repair` looks for the sound units around a wrong one, reads the log between
//! their records, and rewrites the units in between. A slot whose record is not in the log gets a placeholder.

use std::ops::ControlFlow;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::compare::ExpectedExt;
use super::Core;
use crate::ext::is_address;
use crate::fault::Outcome;
use crate::index::hash_on;
use crate::queue::{PendingExt, Queues, Unit, UNIT};
use crate::record::{Known, Record};
use crate::scan::range::{Damage, Found, RangeReader, Stretch};

const MOST_FINDINGS: usize = 1000;
/// Slots on each side of a wrong unit in which a sound one is searched.
const MOST_SLOTS: i64 = 1 << 22;
/// Units that one `repair` rewrites at most.
const MOST_UNITS: usize = 1 << 20;
const MOST_CHECKED: usize = 100_000;

/// A queue that does not name a record of the log where it should.
pub struct Wrong {
    pub topic: Vec<u8>,
    pub queue: i32,
    pub offset: i64,
    pub pos: u64,
    pub reason: &'static str,
}

#[derive(Default)]
pub struct Audit {
    pub pos: u64,
    pub records: u64,
    pub damage: Vec<Damage>,
    pub wrong: Vec<Wrong>,
}

/// Units [first, last] of a queue were checked: `written` of them got other values, `blank` of these are placeholders.
pub struct Repaired {
    pub first: i64,
    pub last: i64,
    pub written: u64,
    pub blank: u64,
    /// Damage of the log that was found during the comparison.
    pub damage: Vec<Damage>,
}

impl Core {
    /// Checks records from `from` on, where a record or segment begins, below `upto`, about `max_bytes` of them.
    pub fn audit(&self, from: u64, upto: u64, max_bytes: u64) -> Outcome<Audit> {
        let mut audit = Audit {
            pos: from,
            ..Audit::default()
        };
        let stop = upto.min(from.saturating_add(max_bytes));
        let mut held: Option<(MutexGuard<'_, Queues>, Instant)> = None;
        let (mut fault, mut doubts) = (None, vec![]);
        self.read_log(from, upto, |found, next| {
            match found {
                Found::Damage(damage) => {
                    if audit.damage.len() < MOST_FINDINGS {
                        audit.damage.push(damage);
                    }
                }
                Found::Record { record, pos } => {
                    audit.records += 1;
                    if let Some((guard, _)) = held.take_if(|(_, since)| self.turn_is_over(*since)) {
                        MutexGuard::unlock_fair(guard);
                    }
                    let (queues, _) = held.get_or_insert_with(|| (self.queues.lock(), Instant::now()));
                    match self.reason(queues, &record, pos) {
                        Ok(None) => {}
                        Ok(Some((reason, instead))) if audit.wrong.len() + doubts.len() < MOST_FINDINGS => {
                            let wrong = Wrong {
                                topic: record.topic().to_vec(),
                                queue: record.queue_id(),
                                offset: record.queue_offset(),
                                pos,
                                reason,
                            };
                            match instead {
                                None => audit.wrong.push(wrong),
                                Some(unit) => doubts.push((wrong, unit)),
                            }
                        }
                        Ok(Some(_)) => {}
                        Err(error) => fault = Some(error),
                    }
                }
            }
            audit.pos = next;
            if next >= stop || fault.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .map(|end| audit.pos = end)?;
        if let Some((guard, _)) = held {
            MutexGuard::unlock_fair(guard);
        }
        for (wrong, unit) in doubts {
            if self.shift_of(&wrong.topic, wrong.queue, wrong.offset, &unit)?.is_none() {
                audit.wrong.push(wrong);
            }
        }
        fault.map_or(Ok(audit), Err)
    }

    /// Passes the items in [from, upto) to `each`, with the start of the next item; returns how far it came.
    pub(super) fn read_log(
        &self,
        from: u64,
        upto: u64,
        mut each: impl FnMut(Found<'_>, u64) -> ControlFlow<()>,
    ) -> Outcome<u64> {
        let segment_bytes = self.log.segment_bytes();
        let mut pos = from;
        while pos < upto {
            let start = self.log.start_of(pos);
            let path = self.log.path_of(start);
            if !path.exists() {
                return Ok(pos); // deleted in the meantime, or the log ends
            }
            let end = upto.min(start + segment_bytes);
            let stretch = Stretch {
                file_start: start,
                file_end: start + segment_bytes,
                begin: pos,
                end,
                entry_header: self.entry_header,
                check_crc: true,
            };
            let mut reader = RangeReader::open(&path, stretch)?;
            let mut broken_off = false;
            reader.read(|found| {
                let next = match &found {
                    Found::Damage(damage) => damage.pos + damage.size,
                    Found::Record { record, pos } => pos + u64::from(record.size()),
                };
                let flow = each(found, next);
                broken_off = flow.is_break() || self.is_ending();
                if broken_off {
                    ControlFlow::Break(())
                } else {
                    flow
                }
            })?;
            pos = reader.pos();
            if broken_off {
                return Ok(pos);
            }
        }
        Ok(pos)
    }

    /// Why the record's queue does not name it; None: it does, or does not have to. With the unit, if the unit is
    /// wrong. The queue may name another record of the same place, or be shifted.
    fn reason(
        &self,
        queues: &mut Queues,
        record: &Record<'_>,
        pos: u64,
    ) -> Outcome<Option<(&'static str, Option<Unit>)>> {
        let certain = |reason| Ok(Some((reason, None)));
        if !record.is_queued() {
            return Ok(None);
        }
        let Some(q) = queues.find(record.topic(), record.queue_id()) else {
            return certain("the queue is missing");
        };
        let (extent, offset) = (queues.extent(q), record.queue_offset());
        if offset < extent.min_offset {
            return match queues.is_expired(q, offset) {
                true => Ok(None),
                false => certain("the queue begins behind the record"),
            };
        }
        if offset >= extent.max_offset {
            // A topic that was removed and created again has records of its earlier life in the log.
            let first = queues.unit(q, extent.min_logic)?;
            let older = first.is_some_and(|first| first.pos > pos as i64);
            return Ok((!older).then_some(("the queue ends before the record", None)));
        }
        let Some(unit) = queues.unit(q, offset as u64 * UNIT)? else {
            return certain("the queue's file cannot be read");
        };
        if unit.pos == pos as i64 && unit.size == record.size() as i32 {
            return Ok((!self.code_fits(queues, record, &unit)).then_some(("the unit has another tags code", None)));
        }
        Ok(Some(("the unit does not name the record", Some(unit))))
    }

    fn code_fits(&self, queues: &mut Queues, record: &Record<'_>, unit: &Unit) -> bool {
        if is_address(unit.tags_code) {
            return true;
        }
        let Some(topic) = queues.topic(record.topic()) else {
            return true;
        };
        let is_schedule = queues.topic_at(topic).is_schedule;
        if is_schedule {
            return true; // the meaning of a delay level is a setting
        }
        let known = Known::find(record.properties());
        self.delays.tags_code(false, &known, record.store_timestamp()) == unit.tags_code
    }

    /// How many records in [from, upto) have a key without an entry in the index. `from`: as in `audit`.
    pub fn count_not_indexed(&self, from: u64, upto: u64) -> Outcome<u64> {
        if !self.index_enabled {
            return Ok(0);
        }
        let (mut count, mut fault) = (0, None);
        self.read_log(from, upto, |found, _| {
            if let Found::Record { record, pos } = found {
                match self.has_entries(&record, pos) {
                    Ok(true) => {}
                    Ok(false) => count += 1,
                    Err(error) => fault = Some(error),
                }
            }
            match fault {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        })?;
        fault.map_or(Ok(count), Err)
    }

    fn has_entries(&self, record: &Record<'_>, pos: u64) -> Outcome<bool> {
        if !record.is_indexed() {
            return Ok(true);
        }
        let seed = {
            let mut queues = self.wait_for(&self.queues);
            match queues.topic(record.topic()) {
                Some(topic) => queues.topic_at(topic).key_seed,
                None => return Ok(true),
            }
        };
        for key in Known::find(record.properties()).each_indexed() {
            let hash = hash_on(seed, key);
            if self.wait_for(&self.index).file_of(hash, pos as i64)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The store is closing: from now on `audit` and `repair` return soon, and `repair` changes nothing.
    pub fn end_checks(&self) {
        self.ending.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether the wrong unit at an offset was compared with the log.
    pub fn is_checked(&self, topic: &[u8], id: i32, offset: i64) -> bool {
        let checked = self.checked.lock();
        !checked.is_empty() && checked.contains(&(topic.to_vec(), id, offset))
    }

    /// Lets a queue begin with the record at `pos` of the log, which is readable again: see `Queues::begin_earlier`.
    pub fn begin_earlier(&self, topic: &[u8], id: i32, offset: i64, pos: i64) -> Outcome<bool> {
        let _runner = self.runner.lock();
        let mut queues = self.wait_for(&self.queues);
        let Some(q) = queues.find(topic, id) else {
            return Ok(false);
        };
        let begin = queues.extent(q).min_logic;
        let first = queues.unit(q, begin)?;
        if first.is_some_and(|first| !first.is_blank() && first.pos <= pos) {
            return Ok(false); // not the records of the queue that come before its first unit
        }
        queues.begin_earlier(q, offset, MOST_UNITS as u64)
    }

    /// Rewrites the unit at `offset` and the wrong units around it; from now on readers skip what cannot be repaired.
    /// None: the queue or offset does not exist, or more than `max_bytes` of the log would have to be read.
    pub fn repair(
        &self,
        topic: &[u8],
        id: i32,
        offset: i64,
        log_first: u64,
        max_bytes: u64,
    ) -> Outcome<Option<Repaired>> {
        // No dispatch at the same time: the ends of the queue and of the log do not move.
        let _runner = self.runner.lock();
        let unit_at = |offset: i64| -> Outcome<Option<Unit>> {
            let mut queues = self.wait_for(&self.queues);
            match queues.find(topic, id) {
                Some(q) => queues.unit(q, offset as u64 * UNIT),
                None => Ok(None),
            }
        };
        let extent = {
            let queues = self.wait_for(&self.queues);
            match queues.find(topic, id) {
                Some(q) => queues.extent(q),
                None => return Ok(None),
            }
        };
        if !(extent.min_offset..extent.max_offset).contains(&offset) {
            return Ok(None);
        }
        let (mut first, mut last) = (offset, offset);
        let mut from = log_first;
        let (mut shift_before, mut shift_behind) = (None, None);
        while first > extent.min_offset && offset - first < MOST_SLOTS && !self.is_ending() {
            if let Some(unit) = unit_at(first - 1)? {
                shift_before = self.shift_of(topic, id, first - 1, &unit)?;
                if shift_before.is_some() {
                    from = unit.end() as u64;
                    break;
                }
            }
            first -= 1;
        }
        let mut upto = self.reached.load(std::sync::atomic::Ordering::Acquire);
        while last + 1 < extent.max_offset && last - offset < MOST_SLOTS && !self.is_ending() {
            if let Some(unit) = unit_at(last + 1)? {
                shift_behind = self.shift_of(topic, id, last + 1, &unit)?;
                if shift_behind.is_some() {
                    upto = unit.pos as u64 - self.entry_header as u64;
                    break;
                }
            }
            last += 1;
        }
        if upto.saturating_sub(from) > max_bytes {
            return Ok(None);
        }
        // Within a shifted range, the records are shifted too.
        let shift = shift_before.filter(|_| shift_before == shift_behind).unwrap_or(0);
        let mut units = std::collections::BTreeMap::new();
        let mut damage = vec![];
        let is_schedule = crate::record::is_schedule_topic(topic);
        let read = self.read_log(from, upto.max(from), |found, _| {
            match found {
                Found::Damage(found) if damage.len() < MOST_FINDINGS => damage.push(found),
                Found::Damage(_) => {}
                Found::Record { record, pos } => {
                    let mine = record.is_queued() && record.topic() == topic && record.queue_id() == id;
                    let place = record.queue_offset().saturating_sub(shift);
                    if mine && (first..=last).contains(&place) {
                        let known = Known::find(record.properties());
                        let tags_code = self.delays.tags_code(is_schedule, &known, record.store_timestamp());
                        let (pos, size) = (pos as i64, record.size() as i32);
                        let unit = Unit { pos, size, tags_code };
                        units.entry(place).or_insert_with(|| (unit, self.expected_ext(&record)));
                    }
                }
            }
            if units.len() < MOST_UNITS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if let Err(fault) = read {
            // The log cannot be read there, so the record cannot be served either.
            let near = (first..=last).take(MOST_CHECKED);
            let near = near.map(|offset| (topic.to_vec(), id, offset));
            self.checked.lock().extend(near);
            return Err(fault);
        }
        if self.is_ending() {
            return Ok(None); // the bytes that were not read may have the records: the next process checks
        }
        let mut repaired = self.put_in_place(topic, id, (first, last), (from, upto), &units)?;
        if let Some(repaired) = &mut repaired {
            repaired.damage = damage;
        }
        let mut checked = self.checked.lock();
        if checked.len() > MOST_CHECKED {
            checked.clear();
        }
        if repaired.as_ref().is_some_and(|repaired| repaired.written == 0) {
            checked.insert((topic.to_vec(), id, offset)); // the unit is right, so its record is damaged
        }
        let lost = (first..=last).filter(|offset| !units.contains_key(offset));
        checked.extend(lost.take(MOST_CHECKED).map(|offset| (topic.to_vec(), id, offset)));
        Ok(repaired)
    }

    fn put_in_place(
        &self,
        topic: &[u8],
        id: i32,
        (first, last): (i64, i64),
        stretch: (u64, u64),
        units: &std::collections::BTreeMap<i64, (Unit, ExpectedExt)>,
    ) -> Outcome<Option<Repaired>> {
        let mut repaired = Repaired {
            first,
            last,
            written: 0,
            blank: 0,
            damage: vec![],
        };
        for offset in first..=last {
            let there = {
                let mut queues = self.wait_for(&self.queues);
                let Some(q) = queues.find(topic, id) else {
                    return Ok(None);
                };
                queues.unit(q, offset as u64 * UNIT)?
            };
            let unit = match units.get(&offset) {
                Some((unit, _)) if there == Some(*unit) => continue,
                // It names the record; only its tags code is wrong, or the extension that holds the code.
                Some((unit, ext)) if there.is_some_and(|there| (there.pos, there.size) == (unit.pos, unit.size)) => {
                    let code = there.map_or(0, |there| there.tags_code);
                    if self.code_is_sound(topic, id, code, unit, ext)? {
                        continue;
                    }
                    *unit
                }
                // Two records have the same queue offset, or the queue was shifted: the record that it names may have
                // no other unit.
                Some(_) if self.is_right_at(topic, id, offset, there)? => continue,
                Some((unit, _)) => *unit,
                // The unit of a damaged record says where the record was: the unit stays, and is not served.
                None if self.is_right_at(topic, id, offset, there)? => continue,
                None if self.may_be_damaged(topic, id, offset, there, stretch)? => continue,
                None => Unit::BLANK,
            };
            // One lock for each unit: a reader waits for one write at most. Nothing else changes this unit in the
            // meantime.
            let mut queues = self.wait_for(&self.queues);
            let Some(q) = queues.find(topic, id) else {
                return Ok(None);
            };
            repaired.blank += u64::from(unit.is_blank());
            repaired.written += 1;
            queues.overwrite(q, offset, unit)?;
        }
        Ok(Some(repaired))
    }

    /// A tags code that is not the record's may stay in two cases: the code of a delay level (its meaning is a
    /// setting), and an address of a sound extension unit with the record's tags code and time, and with the bits of the
    /// filters that the record passes.
    fn code_is_sound(&self, topic: &[u8], id: i32, code: i64, wanted: &Unit, ext: &ExpectedExt) -> Outcome<bool> {
        let is_schedule = crate::record::is_schedule_topic(topic);
        if !is_address(code) {
            return Ok(is_schedule);
        }
        let pending = self.wait_for(&self.queues).pending_ext(topic, id, code);
        let unit = match pending {
            PendingExt::Unit(unit) => Some(unit),
            PendingExt::Written(end) => self.ext.lock().unit(topic, id, code, end)?,
        };
        let Some(unit) = unit.filter(|unit| {
            (is_schedule || unit.tags_code == wanted.tags_code) && unit.store_timestamp == ext.store_timestamp
        }) else {
            return Ok(false);
        };
        let properties = ext.properties.as_deref().unwrap_or_default();
        let holds = self
            .bit_maps
            .hold_bits(&[(topic, properties, wanted.pos as u64)], &[&unit.bit_map]);
        Ok(ext.properties.is_none() || holds == [true])
    }

    fn is_right_at(&self, topic: &[u8], id: i32, offset: i64, unit: Option<Unit>) -> Outcome<bool> {
        unit.map_or(Ok(false), |unit| Ok(self.shift_of(topic, id, offset, &unit)?.is_some()))
    }

    /// Whether the unit can belong to a record that the log lost: it refers to bytes of the log between the records
    /// around it, and not to a record that has a unit already.
    fn may_be_damaged(
        &self,
        topic: &[u8],
        id: i32,
        offset: i64,
        unit: Option<Unit>,
        (from, upto): (u64, u64),
    ) -> Outcome<bool> {
        let Some(unit) = unit else { return Ok(false) };
        if unit.is_blank() {
            return Ok(true);
        }
        let between = unit.is_unit() && unit.pos as u64 >= from && unit.end() as u64 <= upto;
        Ok(between && !self.is_named_elsewhere(topic, id, offset, &unit)?)
    }
}
