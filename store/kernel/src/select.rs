//! Reads a queue: which records a pull gets, and where the reader continues. RocketMQ's getMessage, rule by rule.
//!
//! A batch ends at the reader's count, at a limit of bytes and of records (smaller for records no longer in memory), at
//! the end of the queue's file, after 800 units that the filter refused, or when the filter has tested enough records (ours:
//! a filter can be as long as its client wishes). A limit never makes it empty: one record is
//! always sent. Units whose records were deleted with their segment are skipped. Source: RocketMQ 4.8.0,
//! DefaultMessageStore.getMessage, isTheBatchFull, checkInDiskByCommitOffset.

use std::mem::MaybeUninit;

use crate::ext::is_address;
use crate::fault::Outcome;
use crate::maps::{LogMaps, LogSegment};
use crate::queue::{Extent, Unit, UNIT};
use crate::record::Record;

/// Damaged records of one answer that are listed.
const MOST_DAMAGED: usize = 16;

/// `GetStatus` of the store, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Found = 0,
    NoMatchedMessage = 1,
    MessageWasRemoving = 2,
    OffsetFoundNull = 3,
    OffsetOverflowBadly = 4,
    OffsetOverflowOne = 5,
    OffsetTooSmall = 6,
    NoMessageInQueue = 8,
}

/// A reader's request. `memory_bytes`: length of the log's end that counts as in memory; `limits`: (bytes, count) of a
/// batch there, then (bytes, count) of one on disk.
pub struct Ask<'a> {
    pub topic: &'a [u8],
    pub queue: i32,
    pub offset: i64,
    pub max_count: i64,
    pub max_pos: i64,
    pub memory_bytes: i64,
    pub limits: (i64, i64, i64, i64),
    pub correct: bool,
    /// Bytes of an entry's header before each record; 0: the log has no entries.
    pub entry_header: usize,
    /// Stop before a damaged record instead of skipping it.
    pub stop_at_damage: bool,
}

/// One record of the answer: `size` bytes at `at` of a mapped segment.
pub struct Pick {
    segment: usize,
    at: usize,
    size: usize,
}

#[derive(Default)]
pub struct Picks {
    segments: Vec<LogSegment>,
    picks: Vec<Pick>,
    pub bytes: usize,
}

impl Picks {
    pub fn count(&self) -> usize {
        self.picks.len()
    }

    /// Copies the records one after the other; `to` has exactly `bytes` bytes, and all of them are written.
    pub fn copy(&self, mut to: &mut [MaybeUninit<u8>]) {
        for pick in &self.picks {
            let (head, rest) = to.split_at_mut(pick.size);
            let from = &self.segments[pick.segment].map[pick.at..pick.at + pick.size];
            assert_eq!(head.len(), from.len());
            // SAFETY: both are `pick.size` long, and the new object cannot lie within the map.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), head.as_mut_ptr(), from.len()) };
            to = rest;
        }
        assert!(to.is_empty(), "the batch is as long as its records");
    }
}

pub struct Answer {
    pub status: Status,
    pub next: i64,
    pub behind: bool,
    pub picks: Picks,
    pub damaged: u64,
    /// (position, size) of the first of them.
    pub damaged_at: Vec<(i64, i32)>,
    /// The read stopped before this offset: its unit or record is wrong, and was not compared with the log yet.
    pub wrong: Option<i64>,
}

impl Answer {
    /// Without records; the reader continues at `next`.
    pub fn nothing(status: Status, next: i64) -> Answer {
        Answer {
            status,
            next,
            behind: false,
            picks: Picks::default(),
            damaged: 0,
            damaged_at: vec![],
            wrong: None,
        }
    }
}

/// The answer for an offset outside of the queue's range; None: it is within.
pub fn out_of_range(extent: Option<Extent>, ask: &Ask<'_>) -> Option<(Status, i64)> {
    let corrected = |offset| if ask.correct { offset } else { ask.offset };
    // 4.8.0 creates a queue on request, so one without files answers as an empty one
    let Some(extent) = extent.filter(|extent| extent.max_offset > 0) else {
        return Some((Status::NoMessageInQueue, corrected(0)));
    };
    if ask.offset < extent.min_offset {
        Some((Status::OffsetTooSmall, corrected(extent.min_offset)))
    } else if ask.offset == extent.max_offset {
        Some((Status::OffsetOverflowOne, ask.offset))
    } else if ask.offset > extent.max_offset {
        // as in 4.8.0: a minimum of 0 sends the reader to the start, any other one to the end
        let end = if extent.min_offset == 0 { 0 } else { extent.max_offset };
        Some((Status::OffsetOverflowBadly, corrected(end)))
    } else {
        None
    }
}

/// First and last byte (exclusive) of the units that one call reads.
pub fn window(extent: &Extent, ask: &Ask<'_>, segment_bytes: u64) -> (u64, u64) {
    let from = ask.offset as u64 * UNIT;
    let most = (ask.max_count.clamp(0, i64::from(i32::MAX)) as u64 * UNIT).max(16_000);
    // 4.8.0 steps while i < most, so a window that is not a multiple of a unit includes the unit that it cuts
    let most = most.div_ceil(UNIT) * UNIT;
    let segment_end = from - from % segment_bytes + segment_bytes;
    (
        from,
        (from + most).min(segment_end).min(extent.max_offset as u64 * UNIT),
    )
}

/// Reads the units of the window. `units(from)` reads some of them from byte `from` on (None: unreadable),
/// `extension` reads the tags code of a unit with an address, and whether the record may pass the filter by its bits; `wanted` filters by tags code (None: unknown, which passes), `accept`
/// filters by the record. `dispatched` is the position below which units can name records. `passes` says whether a
/// wrong unit at an offset was compared with the log: then it is skipped, otherwise reading stops there.
/// `belongs(offset, unit, claimed)` is called in rare cases: whether the unit may point to a record of its queue that
/// claims another offset, or (None) to a deleted one.
#[allow(clippy::too_many_arguments)] // the callbacks of the store
pub fn select<E: From<crate::fault::Fault>>(
    ask: &Ask<'_>,
    (from, to): (u64, u64),
    log: &LogMaps,
    mut units: impl FnMut(u64, u64) -> Result<Option<Vec<u8>>, E>,
    mut extension: impl FnMut(&Unit) -> Result<Option<(i64, bool)>, E>,
    wanted: impl Fn(i64) -> bool,
    mut accept: impl FnMut(i64, &Record<'_>) -> Result<Option<bool>, E>,
    dispatched: impl Fn() -> i64,
    passes: impl Fn(i64) -> bool,
    belongs: impl Fn(i64, &Unit, Option<i64>) -> Result<bool, E>,
) -> Result<Answer, E> {
    let mut answer = Answer::nothing(Status::NoMatchedMessage, ask.offset);
    let mut deleted_below = i64::MIN;
    let mut last_pos = 0;
    let mut at = from;
    // most readers are served from the first few units
    let mut chunk = (ask.max_count.clamp(1, 256) as u64 + 8) * UNIT;
    'window: while at < to {
        let Some(bytes) = units(at, chunk.min(to - at))? else {
            break;
        };
        if bytes.is_empty() {
            break;
        }
        call_up(ask, &bytes, log, &mut answer.picks.segments)?;
        for place in 0..bytes.len() / UNIT as usize {
            let unit = unit_of(&bytes, place);
            if unit.is_blank() {
                at += UNIT; // the record of this offset was lost
                continue;
            }
            // The writer that adds a unit moves `dispatched` under the same lock, so a unit is never ahead of it.
            if !unit.is_unit() || unit.end() > ask.max_pos && unit.end() > dispatched() {
                let offset = ask.offset + ((at - from) / UNIT) as i64;
                if !passes(offset) {
                    stop_at_wrong(&mut answer, offset);
                    break 'window;
                }
                answer.damaged += 1;
                at += UNIT;
                continue;
            }
            if unit.end() > ask.max_pos {
                if at == from {
                    answer.status = Status::OffsetOverflowOne; // nothing is visible after the offset
                }
                break 'window;
            }
            last_pos = unit.pos;
            if unit.pos < deleted_below {
                at += UNIT;
                continue;
            }
            if is_full(ask, &answer.picks, &unit) {
                break 'window;
            }
            at += UNIT;
            let empty = answer.picks.bytes == 0;
            let (tags_code, known, may_pass) = match is_address(unit.tags_code) {
                false => (unit.tags_code, true, true),
                true => match extension(&unit)? {
                    Some((tags_code, may_pass)) => (tags_code, true, may_pass),
                    None => (unit.tags_code, false, true),
                },
            };
            // The record of a refused unit is not read, unless the units around it show that its position is wrong.
            if known && !(wanted(tags_code) && may_pass) && is_in_order(&bytes, place, &unit) {
                if empty {
                    answer.status = Status::NoMatchedMessage;
                }
                continue;
            }
            let segment = match find_segment(log, &mut answer.picks.segments, unit.pos)? {
                Some(segment) => segment,
                None => {
                    let offset = ask.offset + ((at - from) / UNIT) as i64 - 1;
                    if !passes(offset) && !belongs(offset, &unit, None)? {
                        stop_at_wrong(&mut answer, offset);
                        at -= UNIT;
                        break 'window;
                    }
                    if empty {
                        answer.status = Status::MessageWasRemoving;
                    }
                    deleted_below = log.start_of(unit.pos.max(0) as u64).saturating_add(log.segment_bytes()) as i64;
                    continue;
                }
            };
            let held = &answer.picks.segments[segment];
            let record = held.slice(unit.pos as u64, unit.size.max(0) as usize);
            let record = record.and_then(|bytes| Record::parse(bytes, unit.pos as u64).ok());
            // The CRC is checked each time: the disk may now return a wrong byte of a record that was sound during
            // recovery. A unit may have changed to name another record, which is sound but not the requested one.
            let sound = |record: &Record<'_>| {
                i64::from(record.size()) == i64::from(unit.size)
                    && record.queue_id() == ask.queue
                    && record.topic() == ask.topic
                    && held.holds(record, unit.pos as u64, ask.entry_header)
            };
            let mut record = record.filter(sound);
            let offset = ask.offset + ((at - from) / UNIT) as i64 - 1;
            if let Some(claimed) = record
                .map(|record| record.queue_offset())
                .filter(|&claimed| claimed != offset)
            {
                if !belongs(offset, &unit, Some(claimed))? {
                    record = None;
                }
            }
            let unread = held.spoils(unit.pos as u64, unit.size.max(0) as usize);
            let Some(record) = record.filter(|_| !unread) else {
                if !passes(offset) {
                    stop_at_wrong(&mut answer, offset);
                    at -= UNIT;
                    break 'window;
                }
                // It was compared: the unit is right, so its record is damaged. It is skipped, and the rest is served.
                answer.damaged += 1;
                if answer.damaged_at.len() < MOST_DAMAGED {
                    answer.damaged_at.push((unit.pos, unit.size));
                }
                if ask.stop_at_damage {
                    at -= UNIT;
                    if empty {
                        answer.status = Status::OffsetFoundNull; // no message yet
                    }
                    break 'window;
                }
                continue;
            };
            let accepted = if known && !wanted(tags_code) {
                Some(false)
            } else {
                accept(tags_code, &record)?
            };
            let Some(accepted) = accepted else {
                at -= UNIT; // the next pull begins here
                break 'window;
            };
            if !accepted {
                if empty {
                    answer.status = Status::NoMatchedMessage;
                }
                continue;
            }
            let at_map = (unit.pos as u64 - held.start) as usize;
            let size = record.bytes().len();
            answer.picks.picks.push(Pick {
                segment,
                at: at_map,
                size,
            });
            answer.picks.bytes += size;
            answer.status = Status::Found;
            deleted_below = i64::MIN;
        }
        chunk = 4000;
    }
    answer.next = ask.offset + ((at - from) / UNIT) as i64;
    answer.behind = ask.max_pos.saturating_sub(last_pos) > ask.memory_bytes;
    Ok(answer)
}

#[cold]
fn stop_at_wrong(answer: &mut Answer, offset: i64) {
    answer.wrong = Some(offset);
    if answer.picks.bytes == 0 {
        answer.status = Status::OffsetOverflowOne; // no message yet: the reader waits
    }
}

#[inline]
fn unit_of(units: &[u8], place: usize) -> Unit {
    Unit::decode(&units[place * UNIT as usize..][..UNIT as usize])
}

/// Whether a unit names a record after that of the previous unit, and before that of the next unit.
#[inline]
fn is_in_order(units: &[u8], place: usize, unit: &Unit) -> bool {
    let names = |other: &Unit| other.is_unit() && !other.is_blank();
    let before = place.checked_sub(1).map(|before| unit_of(units, before));
    let after = (place + 1 < units.len() / UNIT as usize).then(|| unit_of(units, place + 1));
    before.is_none_or(|before| !names(&before) || before.end() <= unit.pos)
        && after.is_none_or(|after| !names(&after) || unit.end() <= after.pos)
}

/// Touches the records that the first units name, before the first one is parsed. They lie on pages far apart, so each
/// first byte is a miss of cache and TLB (some 100 ns). Independent loads wait for memory together; a loop that parses
/// one record after the next waits each time. This only saves time: errors are ignored and found again below.
fn call_up(ask: &Ask<'_>, units: &[u8], log: &LogMaps, held: &mut Vec<LogSegment>) -> Outcome<()> {
    let mut sum = 0u8;
    let wanted = ask.max_count.clamp(0, 64) as usize;
    for bytes in units.chunks_exact(UNIT as usize).take(wanted) {
        let unit = Unit::decode(bytes);
        let last = unit.pos.saturating_add(i64::from(unit.size)) - 1;
        if unit.size <= 0 || last >= ask.max_pos {
            break;
        }
        let Some(segment) = find_segment(log, held, unit.pos)? else {
            break;
        };
        // With the CRC of its entry, in the bytes before it.
        let before = ask.entry_header.min(unit.pos as usize);
        let bytes = held[segment]
            .slice(unit.pos as u64 - before as u64, before + unit.size.min(4096) as usize)
            .unwrap_or(&[]);
        sum ^= bytes.iter().step_by(64).fold(0, |sum, byte| sum ^ byte);
        sum ^= held[segment].slice(last as u64, 1).map_or(0, |byte| byte[0]);
    }
    std::hint::black_box(sum);
    Ok(())
}

/// The index of the segment of `pos` among the held ones, mapped if needed; None: it does not exist.
fn find_segment(log: &LogMaps, held: &mut Vec<LogSegment>, pos: i64) -> Outcome<Option<usize>> {
    let Ok(pos) = u64::try_from(pos) else { return Ok(None) };
    let start = log.start_of(pos);
    if let Some(index) = held.iter().rposition(|segment| segment.start == start) {
        return Ok(Some(index));
    }
    match log.segment(pos)? {
        None => Ok(None),
        Some(segment) => {
            held.push(segment);
            Ok(Some(held.len() - 1))
        }
    }
}

fn is_full(ask: &Ask<'_>, picks: &Picks, unit: &Unit) -> bool {
    if picks.bytes == 0 {
        return false;
    }
    let (count, bytes) = (picks.count() as i64, picks.bytes as i64 + i64::from(unit.size));
    let (memory_bytes, memory_count, disk_bytes, disk_count) = ask.limits;
    let on_disk = ask.max_pos.saturating_sub(unit.pos) > ask.memory_bytes;
    let (most_bytes, most_count) = if on_disk {
        (disk_bytes, disk_count)
    } else {
        (memory_bytes, memory_count)
    };
    ask.max_count <= count || bytes > most_bytes || count > most_count - 1
}
