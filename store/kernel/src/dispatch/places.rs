//! Decides whether the unit at a place of a queue points to the record that belongs there.
//!
//! Unit n of a queue names the record of its topic and queue whose queue offset is n. There is one exception. RocketMQ
//! appends each record that it dispatches at the queue's end, so a store that RocketMQ wrote may have queues that are
//! shifted from some unit on (it lost units, or gave out offsets differently, during a recovery). Readers' offsets
//! count units there, so such a range stays as it is. These conditions prove a shifted range; no misdirected unit meets
//! them:
//!
//! - The record's own place does not name it: in a correct history each record has one unit.
//! - It lies in the log after the record of the previous unit and before that of the next unit.
//! - The previous or the next unit is shifted by as much: a single record with another offset is a damaged one. Offset
//!   0 needs no neighbour, because RocketMQ always appends it.
//! - Where the range ends, the order of the log continues. Units from another place of the queue repeat or go back
//!   there.

use super::Core;
use crate::fault::Outcome;
use crate::queue::{Unit, UNIT};
use crate::record::Record;

/// Shifted ranges that are remembered, one for each queue.
const MOST_SHIFTS: usize = 10_000;
/// Units without a record that are skipped in the search for a neighbour.
const MOST_PASSED: i64 = 64;

/// Units [first, end) of a queue point to records whose offsets are `shift` larger.
#[derive(Clone, Copy)]
pub struct Shifted {
    first: i64,
    end: i64,
    shift: i64,
}

/// The units that a reader may use; see `Core::usable_units`.
#[derive(Default)]
pub struct Usable {
    pub units: Vec<Unit>,
    /// The offset after the last of them, if its unit is wrong.
    pub wrong: Option<i64>,
    /// Offset, and position and size of the record, of units that were compared and are not usable.
    pub damaged: Vec<(i64, i64, i32)>,
}

const NOWHERE: Unit = Unit {
    pos: -1,
    size: 0,
    tags_code: 0,
};

/// A unit whose record is of its queue.
#[derive(Clone, Copy)]
struct Named {
    unit: Unit,
    shift: i64,
}

/// A queue by name.
#[derive(Clone, Copy)]
struct Place<'a> {
    core: &'a Core,
    topic: &'a [u8],
    id: i32,
    min: i64,
    max: i64,
}

impl Core {
    /// Whether the unit at `offset`, which points to a record of this queue with another queue offset, belongs to a
    /// shifted range.
    #[cold]
    pub(super) fn is_shifted(&self, topic: &[u8], id: i32, offset: i64, unit: &Unit, claimed: i64) -> Outcome<bool> {
        let Some(shift) = claimed.checked_sub(offset) else {
            return Ok(false);
        };
        let key = (topic.to_vec(), id);
        let known = self.shifted.lock().get(&key).copied();
        if known.is_some_and(|known| known.shift == shift && (known.first..known.end).contains(&offset)) {
            return Ok(true);
        }
        let Some(place) = self.place(topic, id) else {
            return Ok(false);
        };
        let Some(found) = place.stretch(offset, &Named { unit: *unit, shift })? else {
            return Ok(false);
        };
        let mut shifted = self.shifted.lock();
        if shifted.len() >= MOST_SHIFTS {
            shifted.clear();
        }
        shifted.insert(key, found);
        Ok(true)
    }

    /// By how much the unit at `offset` is shifted, if it points to a record that belongs there; None: it is wrong.
    pub(super) fn shift_of(&self, topic: &[u8], id: i32, offset: i64, unit: &Unit) -> Outcome<Option<i64>> {
        let claimed = self.claimed(unit, |record| {
            (record.topic() == topic && record.queue_id() == id).then(|| record.queue_offset())
        })?;
        match claimed.flatten() {
            Some(claimed) if claimed == offset => Ok(Some(0)),
            Some(claimed) if self.is_shifted(topic, id, offset, unit, claimed)? => Ok(Some(claimed - offset)),
            _ => Ok(None),
        }
    }

    /// Whether the unit at the place that the record claims names the record: then no other unit has to.
    pub(super) fn is_named_elsewhere(&self, topic: &[u8], id: i32, offset: i64, unit: &Unit) -> Outcome<bool> {
        let claimed = self.claimed(unit, |record| {
            (record.topic().to_vec(), record.queue_id(), record.queue_offset())
        })?;
        let Some((its_topic, its_id, its_offset)) = claimed else {
            return Ok(false);
        };
        if (&*its_topic, its_id, its_offset) == (topic, id, offset) {
            return Ok(false);
        }
        let Some(place) = self.place(&its_topic, its_id) else {
            return Ok(false);
        };
        Ok(place.unit(its_offset)?.is_some_and(|its| its.pos == unit.pos))
    }

    /// Units from `offset` on, `count` at most, that a reader may use: up to the first wrong one that was not compared
    /// with the log yet. A unit that was compared and is not usable is a unit without a place.
    pub(super) fn usable_units(&self, topic: &[u8], id: i32, offset: i64, count: i64) -> Outcome<Usable> {
        let mut usable = Usable::default();
        let Some(place) = self.place(topic, id).filter(|place| offset >= place.min) else {
            return Ok(usable);
        };
        for offset in offset..place.max.min(offset.saturating_add(count.max(0))) {
            let Some(unit) = place.unit(offset)? else {
                break; // removed in the meantime
            };
            if unit.is_blank() {
                usable.units.push(NOWHERE);
                continue;
            }
            if self.leads_to_sound(&place, offset, &unit)? {
                usable.units.push(unit);
                continue;
            }
            if !self.is_checked(topic, id, offset) {
                usable.wrong = Some(offset);
                break;
            }
            if unit.is_unit() {
                usable.damaged.push((offset, unit.pos, unit.size));
            }
            usable.units.push(NOWHERE);
        }
        Ok(usable)
    }

    fn leads_to_sound(&self, place: &Place<'_>, offset: i64, unit: &Unit) -> Outcome<bool> {
        if self.shift_of(place.topic, place.id, offset, unit)?.is_some() {
            return Ok(self.claimed(unit, |record| record.body_crc_holds())? == Some(true));
        }
        let gone = unit.is_unit() && self.log.segment(unit.pos as u64)?.is_none();
        Ok(gone && self.may_be_deleted(place.topic, place.id, offset)?)
    }

    /// Whether the record of the unit at `offset`, whose segment is missing, may have been deleted with the segment:
    /// the oldest are deleted first.
    #[cold]
    pub(super) fn may_be_deleted(&self, topic: &[u8], id: i32, offset: i64) -> Outcome<bool> {
        let Some(place) = self.place(topic, id) else {
            return Ok(true);
        };
        for before in (place.min.max(offset - MOST_PASSED)..offset).rev() {
            if place.named(before)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn place<'a>(&'a self, topic: &'a [u8], id: i32) -> Option<Place<'a>> {
        let queues = self.wait_for(&self.queues);
        let extent = queues.extent(queues.find(topic, id)?);
        Some(Place {
            core: self,
            topic,
            id,
            min: extent.min_offset,
            max: extent.max_offset,
        })
    }

    /// What the record says to which the unit points; None: it points to no record.
    fn claimed<R>(&self, unit: &Unit, say: impl FnOnce(&Record<'_>) -> R) -> Outcome<Option<R>> {
        let Ok(pos) = u64::try_from(unit.pos) else {
            return Ok(None);
        };
        if unit.size <= 0 || unit.is_blank() || pos >= self.reached.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(None);
        }
        let Some(segment) = self.log.segment(pos)? else {
            return Ok(None);
        };
        let size = unit.size as usize;
        let record = segment
            .slice(pos, size)
            .and_then(|bytes| Record::parse(bytes, pos).ok());
        // An entry's CRC covers all fields of the record; the CRC of a plain record covers only its body.
        let sound = |record: &Record<'_>| {
            record.size() as i32 == unit.size
                && (self.entry_header == 0 || segment.holds(record, pos, self.entry_header))
        };
        let said = record.filter(sound).map(|record| say(&record));
        Ok(said.filter(|_| !segment.spoils(pos, size)))
    }
}

impl Place<'_> {
    fn unit(&self, offset: i64) -> Outcome<Option<Unit>> {
        if !(self.min..self.max).contains(&offset) {
            return Ok(None);
        }
        let mut queues = self.core.wait_for(&self.core.queues);
        match queues.find(self.topic, self.id) {
            Some(q) => queues.unit(q, offset as u64 * UNIT),
            None => Ok(None),
        }
    }

    fn named(&self, offset: i64) -> Outcome<Option<Named>> {
        let Some(unit) = self.unit(offset)? else {
            return Ok(None);
        };
        let claimed = self.core.claimed(&unit, |record| {
            let mine = record.topic() == self.topic && record.queue_id() == self.id;
            mine.then(|| record.queue_offset())
        })?;
        let shift = claimed.flatten().and_then(|claimed| claimed.checked_sub(offset));
        Ok(shift.map(|shift| Named { unit, shift }))
    }

    /// The nearest unit with a record from `offset` on, in steps of 1 or -1; None: no near unit has one.
    fn near(&self, offset: i64, step: i64) -> Outcome<Option<Named>> {
        for passed in 0..MOST_PASSED {
            let offset = offset + passed * step;
            if !(self.min..self.max).contains(&offset) {
                break;
            }
            if let Some(named) = self.named(offset)? {
                return Ok(Some(named));
            }
        }
        Ok(None)
    }

    /// The shifted range around a unit, if there is one; see the module's head.
    fn stretch(&self, offset: i64, named: &Named) -> Outcome<Option<Shifted>> {
        let claimed = offset + named.shift;
        if self.unit(claimed)?.is_some_and(|unit| unit.pos == named.unit.pos) {
            return Ok(None);
        }
        let (before, after) = (self.near(offset - 1, -1)?, self.near(offset + 1, 1)?);
        let in_order = before.is_none_or(|before| before.unit.end() <= named.unit.pos)
            && after.is_none_or(|after| named.unit.end() <= after.unit.pos);
        let is_kin = |other: Option<Named>| other.is_some_and(|other| other.shift == named.shift);
        if !in_order || !(is_kin(before) || is_kin(after) || claimed == 0) {
            return Ok(None);
        }
        let step = if named.shift > 0 { 1 } else { -1 };
        let last = self.end_of_stretch(offset, named.shift, step)?;
        let Some(last_named) = self.named(last)? else {
            return Ok(None);
        };
        let outside = self.near(last + step, step)?;
        let goes_on = match outside {
            None => !(self.min..self.max).contains(&(last + step)),
            Some(outside) if step > 0 => last_named.unit.end() <= outside.unit.pos,
            Some(outside) => outside.unit.end() <= last_named.unit.pos,
        };
        Ok(goes_on.then_some(Shifted {
            first: offset.min(last),
            end: offset.max(last) + 1,
            shift: named.shift,
        }))
    }

    /// The last unit with this shift from `offset` on, in this direction.
    fn end_of_stretch(&self, offset: i64, shift: i64, step: i64) -> Outcome<i64> {
        let same = |offset: i64| -> Outcome<bool> { Ok(self.named(offset)?.is_some_and(|named| named.shift == shift)) };
        let border = if step > 0 { self.max - 1 } else { self.min };
        if same(border)? {
            return Ok(border);
        }
        let (mut inside, mut outside) = (offset, border);
        while inside.abs_diff(outside) > 1 {
            let middle = inside + (outside - inside) / 2;
            if same(middle)? {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        Ok(inside)
    }
}
