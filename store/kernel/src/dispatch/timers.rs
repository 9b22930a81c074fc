//! Which records of the log begin and end timers: see `timer.rs`.

use std::ops::ControlFlow;

use super::{Core, Dispatch};
use crate::fault::Outcome;
use crate::queue::{Unit, UNIT};
use crate::record::{pairs, Record};
use crate::scan::{walk, Bounds, Visit};
use crate::timer::{key_of, TimerEntry};

// Fixed: on disks, and in RocketMQ 5.
const TOPIC: &[u8] = b"rmq_sys_wheel_timer";
/// Its messages are in this queue.
const QUEUE: i32 = 0;
/// Names the record of the timer topic that a record ends: "queue offset,store time".
const ORIGIN: &[u8] = b"TIMER_ORIGIN";
/// Every name that matters here begins so.
const PREFIX: &[u8] = b"TIMER_";
/// A time of delivery further behind the rounded one belongs to another request.
const MOST_PRECISION_MS: i64 = 60_000;
/// Bytes of the log before a position that identify it.
const MARK_BYTES: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finished {
    Delivered,
    Recalled,
    /// Stored again in the timer topic.
    Rolled,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerEvent {
    /// A message of the timer topic.
    Added(TimerEntry),
    /// A record of the timer topic that is not delivered.
    Passed {
        offset: i64,
    },
    Finished {
        offset: i64,
        how: Finished,
    },
    /// All earlier messages with this key whose time is in [from, to]: RocketMQ 5 names them so.
    FinishedByKey {
        key: u64,
        from: i64,
        to: i64,
        how: Finished,
    },
}

#[derive(Default)]
struct Properties<'a> {
    out_ms: Option<i64>,
    deliver_ms: Option<i64>,
    unique_key: &'a [u8],
    recalled_key: Option<&'a [u8]>,
    rolled: bool,
    origin: Option<(i64, i64)>,
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn origin(text: &[u8]) -> Option<(i64, i64)> {
    let comma = memchr::memchr(b',', text)?;
    Some((number(&text[..comma])?, number(&text[comma + 1..])?))
}

fn read(properties: &[u8]) -> Properties<'_> {
    let mut found = Properties::default();
    for (name, value) in pairs(properties) {
        match name {
            b"TIMER_OUT_MS" => found.out_ms = number(value),
            b"TIMER_DELIVER_MS" => found.deliver_ms = number(value),
            b"TIMER_DEL_UNIQKEY" => found.recalled_key = Some(value),
            b"TIMER_ROLL_TIMES" => found.rolled = true,
            b"UNIQ_KEY" => found.unique_key = value,
            _ if name == ORIGIN => found.origin = origin(value),
            _ => {}
        }
    }
    found
}

/// When to deliver. RocketMQ rounds the time down, and delivers up to `precision_ms` later; the message's own time is
/// more precise.
fn due(out_ms: i64, deliver_ms: Option<i64>, precision_ms: i64) -> i64 {
    let behind = deliver_ms.map(|at| at.saturating_sub(out_ms));
    match behind {
        Some(1..=MOST_PRECISION_MS) => deliver_ms.unwrap_or(out_ms),
        _ => out_ms.saturating_add(precision_ms),
    }
}

impl Core {
    /// Collects what the records in [from, upto) mean for timers, about `max_bytes` at most. Returns where it ended.
    fn timer_events(&self, from: u64, upto: u64, max_bytes: u64, precision_ms: i64) -> Outcome<(u64, Vec<TimerEvent>)> {
        let finder = memchr::memmem::Finder::new(PREFIX);
        let mut events = vec![];
        let mut at = from;
        loop {
            let bounds = Bounds {
                from: at,
                upto,
                entry_header: self.entry_header,
                check_crc: false,
                pass_damaged: true,
            };
            let end = walk(&self.log, &bounds, |visit| {
                let next = match visit {
                    Visit::Record { record, pos, next } => {
                        if finder.find(record.properties()).is_some() {
                            self.timer_record(record, pos, precision_ms, &mut events)?;
                        }
                        next
                    }
                    Visit::Damaged { pos, size, .. } => pos + size,
                };
                Ok(if next - from >= max_bytes {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
            // Dispatch passed this place: it is known damage.
            match end.stopped {
                Some(_) => match self.end_of_known_damage(end.pos)? {
                    Some(next) if next <= upto => at = next,
                    _ => return Ok((end.pos, events)),
                },
                None => return Ok((end.pos, events)),
            }
        }
    }

    fn timer_record(
        &self,
        record: &Record<'_>,
        pos: u64,
        precision_ms: i64,
        events: &mut Vec<TimerEvent>,
    ) -> Outcome<()> {
        let is_timer = record.topic() == TOPIC && record.queue_id() == QUEUE;
        let found = read(record.properties());
        let origin = match found.origin {
            Some((offset, store_ms)) if self.is_origin(offset, store_ms)? => Some(offset),
            _ => None,
        };
        if !is_timer {
            events.extend(origin.map(|offset| TimerEvent::Finished {
                offset,
                how: Finished::Delivered,
            }));
            return Ok(());
        }
        let offset = record.queue_offset();
        let how = if found.recalled_key.is_some() {
            Finished::Recalled
        } else {
            Finished::Rolled
        };
        if let Some(offset) = origin {
            events.push(TimerEvent::Finished { offset, how });
        }
        let Some(out_ms) = found.out_ms else {
            events.push(TimerEvent::Passed { offset });
            return Ok(());
        };
        let by_key = |key: &[u8]| TimerEvent::FinishedByKey {
            key: key_of(key),
            from: out_ms.saturating_add(1),
            to: out_ms.saturating_add(MOST_PRECISION_MS),
            how,
        };
        if let Some(key) = found.recalled_key {
            if origin.is_none() {
                events.push(by_key(key));
                // With appendTopicForTimerDeleteKey the topic is before it.
                events.extend(memchr::memchr(b'+', key).map(|plus| by_key(&key[plus + 1..])));
            }
            events.push(TimerEvent::Passed { offset });
            return Ok(());
        }
        if found.rolled && origin.is_none() && !found.unique_key.is_empty() {
            events.push(by_key(found.unique_key));
        }
        events.push(TimerEvent::Added(TimerEntry {
            due: due(out_ms, found.deliver_ms, precision_ms),
            offset,
            pos,
            key: key_of(found.unique_key),
        }));
        Ok(())
    }

    /// The position of the record of the timer topic at this queue offset; None: no unit names one.
    fn timer_pos(&self, offset: i64) -> Outcome<Option<i64>> {
        let Ok(from) = u64::try_from(offset) else {
            return Ok(None);
        };
        let mut queues = self.wait_for(&self.queues);
        let Some(q) = queues.find(TOPIC, QUEUE) else {
            return Ok(None);
        };
        let extent = queues.extent(q);
        if offset < extent.min_offset || offset >= extent.max_offset {
            return Ok(None);
        }
        let unit = queues.read(q, from * UNIT, UNIT)?;
        Ok(unit
            .filter(|bytes| bytes.len() as u64 == UNIT)
            .map(|bytes| Unit::decode(&bytes).pos))
    }

    /// Whether the record of the timer topic at this queue offset was stored then. A copy of the property in another
    /// message must not end a timer that was given the offset later. True if the record cannot be read.
    fn is_origin(&self, offset: i64, store_ms: i64) -> Outcome<bool> {
        let Some(pos) = self.timer_pos(offset)? else {
            return Ok(true);
        };
        let found = self.record_at(pos, i64::MAX, false, |record| {
            record.queue_offset() != offset || record.topic() != TOPIC || record.store_timestamp() == store_ms
        })?;
        Ok(found.unwrap_or(true))
    }
}

impl Dispatch {
    /// See `Core::timer_events`.
    pub fn timer_events(
        &self,
        from: u64,
        upto: u64,
        max_bytes: u64,
        precision_ms: i64,
    ) -> Outcome<(u64, Vec<TimerEvent>)> {
        self.core().timer_events(from, upto, max_bytes, precision_ms)
    }

    /// The entry of the message of the timer topic at this queue offset; None: its record cannot be read.
    pub fn timer_entry(&self, offset: i64, precision_ms: i64) -> Outcome<Option<TimerEntry>> {
        let core = self.core();
        let Some(pos) = core.timer_pos(offset)? else {
            return Ok(None);
        };
        let entry = core.record_at(pos, i64::MAX, true, |record| {
            if record.topic() != TOPIC || record.queue_offset() != offset {
                return None;
            }
            let found = read(record.properties());
            Some(TimerEntry {
                due: due(found.out_ms?, found.deliver_ms, precision_ms),
                offset,
                pos: pos as u64,
                key: key_of(found.unique_key),
            })
        })?;
        Ok(entry.flatten())
    }

    /// The next queue offset of the timer topic.
    pub fn timer_end(&self) -> i64 {
        let core = self.core();
        let queues = core.wait_for(&core.queues);
        queues.find(TOPIC, QUEUE).map_or(0, |q| queues.extent(q).max_offset)
    }

    /// Number and CRC of the log's last bytes before `pos`, in one segment; (0, 0) if they cannot be read.
    pub fn timer_mark(&self, pos: u64) -> Outcome<(u32, u32)> {
        let log = &self.core().log;
        let Some(last) = pos.checked_sub(1) else {
            return Ok((0, 0));
        };
        let Some(segment) = log.segment(last)? else {
            return Ok((0, 0));
        };
        let size = (pos - segment.start).min(MARK_BYTES);
        let Some(bytes) = segment.slice(pos - size, size as usize) else {
            return Ok((0, 0));
        };
        Ok((size as u32, crc32fast::hash(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_time_counts_if_it_belongs_to_the_rounded_one() {
        assert_eq!(due(5000, Some(5001), 1000), 5001);
        assert_eq!(due(5000, Some(6000), 1000), 6000);
        assert_eq!(due(5000, Some(5000), 1000), 6000);
        assert_eq!(due(5000, Some(4999), 1000), 6000);
        assert_eq!(due(5000, Some(i64::MIN), 1000), 6000);
        assert_eq!(due(5000, None, 100), 5100);
        assert_eq!(due(i64::MAX, None, 100), i64::MAX);
    }

    #[test]
    fn an_origin_is_two_numbers() {
        assert_eq!(origin(b"12,1700000000000"), Some((12, 1_700_000_000_000)));
        for wrong in ["", ",", "1", "1,", ",1", "1,x", "1,2,3", " 1,2"] {
            assert_eq!(origin(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
