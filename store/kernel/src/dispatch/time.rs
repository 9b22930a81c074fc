//! Store times: of a record, and the offset of a queue at a time.

use super::Core;
use crate::fault::Outcome;
use crate::maps::segment_starts;
use crate::queue::{Unit, UNIT};
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

    pub(super) fn store_time(&self, unit: &Unit) -> Outcome<Option<i64>> {
        // In a plain log no CRC covers the time.
        self.record_at(unit.pos, i64::MAX, self.entry_header != 0, |record| {
            record.store_timestamp()
        })
    }

    pub(super) fn store_time_at(&self, pos: i64) -> Option<i64> {
        self.record_at(pos, i64::MAX, false, |record| record.store_timestamp())
            .ok()
            .flatten()
    }

    /// RocketMQ's getOffsetInQueueByTime: the nearer neighbour, within one segment.
    pub(super) fn offset_by_time(&self, topic: &[u8], queue: i32, timestamp: i64, by_mtime: bool) -> Outcome<i64> {
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
                    // one whose time is not known may be late: to search too early skips nothing
                    Some(last) if last.pos >= min_pos => self.store_time(&last)?.is_none_or(|time| time >= timestamp),
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
