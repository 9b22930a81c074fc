//! Store times: of a record, the offset of a queue at a time, and where the messages older than a time end.

use super::Core;
use crate::fault::Outcome;
use crate::maps::segment_starts;
use crate::queue::UNIT;
use crate::record::Record;

impl Core {
    /// The record at `pos`, if it ends at or before `max_pos`; with `check_crc` only one whose CRC holds.
    pub(super) fn record_at<R>(
        &self,
        pos: i64,
        max_pos: i64,
        check_crc: bool,
        use_it: impl FnOnce(&Record<'_>) -> R,
    ) -> Outcome<Option<R>> {
        let Ok(start) = u64::try_from(pos) else { return Ok(None) };
        if pos >= max_pos {
            return Ok(None);
        }
        let Some(segment) = self.log.segment(start)? else {
            return Ok(None);
        };
        let record = Record::parse(&segment.map[(start - segment.start) as usize..], start);
        let record = record.ok().filter(|record| {
            pos.saturating_add(i64::from(record.size())) <= max_pos
                && (!check_crc || segment.holds(record, start, self.entry_header))
        });
        let Some(record) = record else { return Ok(None) };
        let used = use_it(&record);
        Ok(Some(used).filter(|_| !segment.spoils(start, record.bytes().len())))
    }

    pub(super) fn store_time_at(&self, pos: i64) -> Option<i64> {
        self.record_at(pos, i64::MAX, false, |record| record.store_timestamp())
            .ok()
            .flatten()
    }

    /// RocketMQ's getOffsetInQueueByTime: the nearer neighbour, within one segment. A unit counts only if it points to
    /// the record that belongs there. The second value is the offset of a wrong unit at which the search stopped so
    /// that it is compared with the log (with `stop_at_wrong`). Otherwise wrong units are skipped.
    pub(super) fn offset_by_time(
        &self,
        topic: &[u8],
        queue: i32,
        timestamp: i64,
        by_mtime: bool,
        stop_at_wrong: bool,
    ) -> Outcome<(i64, Option<i64>)> {
        let (q, segments, min_logic) = {
            let queues = self.wait_for(&self.queues);
            let Some(q) = queues.find(topic, queue) else {
                return Ok((0, None));
            };
            let (extent, mut segments) = (queues.extent(q), queues.segments(q));
            if extent.min_offset == extent.max_offset {
                return Ok((extent.min_offset, None));
            }
            // Files whose units have all expired: a queue whose messages were deleted has none of them.
            segments.retain(|&(_, stop, _)| stop > extent.min_logic);
            (q, segments, extent.min_logic)
        };
        let mut search = self.search(topic, queue, q, stop_at_wrong)?;
        let found = search.in_segments(&segments, min_logic, timestamp, by_mtime)?;
        Ok((found.unwrap_or(0), search.wrong))
    }

    /// Where the messages end that were stored before `before`: the first offset behind them, the position of the last
    /// of them (-1: there is none), and the store time of the message at that offset (-1: none, or not known).
    ///
    /// Store times of a queue go back where a clock was set back, so several places may have an older message before
    /// them and a younger one behind them. The search goes forward from the queue's begin in growing steps, so it
    /// prefers the first such place, and halves only the last step. What follows a younger message that the search
    /// meets is kept. A unit counts only if it points to the record that belongs there.
    pub(super) fn expired_end(&self, topic: &[u8], queue: i32, before: i64) -> Outcome<(i64, i64, i64)> {
        let Some((q, extent)) = ({
            let queues = self.wait_for(&self.queues);
            queues.find(topic, queue).map(|q| (q, queues.extent(q)))
        }) else {
            return Ok((0, -1, -1));
        };
        self.search(topic, queue, q, false)?
            .expired_end(extent.min_logic, extent.max_offset as u64 * UNIT, before)
    }

    fn search<'a>(&'a self, topic: &'a [u8], id: i32, q: u32, stop_at_wrong: bool) -> Outcome<Search<'a>> {
        let starts = segment_starts(&self.log_folder)?;
        Ok(Search {
            core: self,
            topic,
            id,
            q,
            min_pos: starts.first().map_or(0, |&start| start as i64),
            stop_at_wrong,
            wrong: None,
        })
    }
}

/// Units that are skipped on the way to one whose time is known.
const MOST_PASSED: u64 = 64;

/// What a unit says about the time of its place.
enum Told {
    Time(i64),
    /// Its record was deleted: it is older than all existing records.
    Older,
    Nothing,
}

/// A search for a time in one queue.
struct Search<'a> {
    core: &'a Core,
    topic: &'a [u8],
    id: i32,
    q: u32,
    min_pos: i64,
    stop_at_wrong: bool,
    wrong: Option<i64>,
}

impl Search<'_> {
    /// None: a wrong unit stops the search, or the queue has no files.
    fn in_segments(
        &mut self,
        segments: &[(u64, u64, Option<i64>)],
        min_logic: u64,
        timestamp: i64,
        by_mtime: bool,
    ) -> Outcome<Option<i64>> {
        let mut chosen = None;
        for &(start, stop, mtime) in segments {
            chosen = Some((start, stop));
            let late = if by_mtime {
                mtime.is_some_and(|time| time >= timestamp)
            } else {
                let last = stop.saturating_sub(UNIT).max(start);
                match self.before(last, start.max(min_logic.min(last)))? {
                    Some((_, Told::Time(time))) => time >= timestamp,
                    Some(_) => false,
                    // a unit without a known time may be late: an early result skips nothing
                    None => true,
                }
            };
            if self.wrong.is_some() {
                return Ok(None);
            }
            if late {
                break;
            }
        }
        match chosen {
            Some((start, stop)) => self.in_segment(start, stop, min_logic, timestamp),
            None => Ok(None),
        }
    }

    fn in_segment(&mut self, start: u64, stop: u64, min_logic: u64, timestamp: i64) -> Outcome<Option<i64>> {
        let step = UNIT as i64;
        let mut low = min_logic.max(start) as i64;
        let mut high = stop as i64 - step;
        let (mut left, mut right) = (None, None);
        while high >= low {
            // the middle in units from the segment's start, as the source rounds it
            let middle = start as i64 + (low - start as i64 + high - start as i64) / (2 * step) * step;
            let told = self.behind(middle as u64, high as u64)?;
            if self.wrong.is_some() {
                return Ok(None);
            }
            match told {
                // no unit nearby has a known time: an early result skips nothing
                None | Some((_, Told::Nothing)) => high = middle - step,
                Some((at, Told::Older)) => low = at as i64 + step,
                Some((at, Told::Time(time))) if time == timestamp => return Ok(Some((at / UNIT) as i64)),
                Some((at, Told::Time(time))) if time > timestamp => {
                    high = middle - step;
                    right = Some((at as i64, time));
                }
                Some((at, Told::Time(time))) => {
                    low = at as i64 + step;
                    left = Some((at as i64, time));
                }
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
        Ok(Some(at / step))
    }

    fn expired_end(&mut self, begin: u64, end: u64, before: i64) -> Outcome<(i64, i64, i64)> {
        // All before byte `first` is older; nothing behind byte `stop` is looked at.
        let (mut first, mut stop) = (begin, end);
        let mut last_pos = -1;
        let (mut at, mut step) = (begin, UNIT);
        while at < stop {
            match self.behind(at, stop - UNIT)? {
                Some((_, Told::Time(time))) if time >= before => stop = at,
                Some((found, _)) => {
                    first = found + UNIT;
                    last_pos = self.pos_at(found)?;
                    at = found + step;
                }
                None => at += step, // no unit nearby has a known time: an older message behind them decides
            }
            step *= 2;
        }
        while first < stop {
            let middle = first + (stop - first) / (2 * UNIT) * UNIT;
            match self.behind(middle, stop - UNIT)? {
                Some((_, Told::Time(time))) if time >= before => stop = middle,
                Some((found, _)) => {
                    first = found + UNIT;
                    last_pos = self.pos_at(found)?;
                }
                None => stop = middle,
            }
        }
        let next = match first < end {
            true => self.behind(first, end - UNIT)?,
            false => None,
        };
        let next_ms = match next {
            Some((_, Told::Time(time))) => time,
            _ => -1,
        };
        Ok(((first / UNIT) as i64, last_pos, next_ms))
    }

    fn pos_at(&self, at: u64) -> Outcome<i64> {
        let unit = self.core.wait_for(&self.core.queues).unit(self.q, at)?;
        Ok(unit.map_or(-1, |unit| unit.pos))
    }

    /// The first unit from byte `at` to byte `last` with a known answer.
    fn behind(&mut self, at: u64, last: u64) -> Outcome<Option<(u64, Told)>> {
        let stop = last.min(at + MOST_PASSED * UNIT);
        self.first((at..=stop).step_by(UNIT as usize))
    }

    /// The last unit from byte `at` back to byte `first` with a known answer.
    fn before(&mut self, at: u64, first: u64) -> Outcome<Option<(u64, Told)>> {
        let passed = (at - first.min(at)) / UNIT;
        self.first((0..=passed.min(MOST_PASSED)).map(|back| at - back * UNIT))
    }

    fn first(&mut self, places: impl Iterator<Item = u64>) -> Outcome<Option<(u64, Told)>> {
        for at in places {
            match self.told(at)? {
                Told::Nothing if self.wrong.is_some() => return Ok(None),
                Told::Nothing => {}
                told => return Ok(Some((at, told))),
            }
        }
        Ok(None)
    }

    fn told(&mut self, at: u64) -> Outcome<Told> {
        let offset = (at / UNIT) as i64;
        let unit = self.core.wait_for(&self.core.queues).unit(self.q, at)?;
        let Some(unit) = unit.filter(|unit| !unit.is_blank()) else {
            return Ok(Told::Nothing);
        };
        if self.core.shift_of(self.topic, self.id, offset, &unit)?.is_some() {
            // No CRC again: `shift_of` has checked the entry of the record, and in a plain log no CRC covers the time.
            let time = self
                .core
                .record_at(unit.pos, i64::MAX, false, |record| record.store_timestamp())?;
            return Ok(time.filter(|&time| time >= 0).map_or(Told::Nothing, Told::Time));
        }
        if unit.is_unit() && unit.pos < self.min_pos && self.core.may_be_deleted(self.topic, self.id, offset)? {
            return Ok(Told::Older);
        }
        if self.stop_at_wrong && !self.core.is_checked(self.topic, self.id, offset) {
            self.wrong = Some(offset);
        }
        Ok(Told::Nothing)
    }
}
