//! Dispatch's side of the queues: a record's unit goes to memory, and from there to the files.

use super::unit::{Unit, UNIT};
use super::Queues;
use crate::fault::Outcome;

/// Number of blank units in one write.
const BLANKS: u64 = 4096;
/// A queue's memory is released if a burst made it larger than this.
const ROOMY: usize = 1 << 16;
/// Placeholders for offsets that no record has, before a record of a replicated log.
const MOST_SEALED_GAP: u64 = 1 << 20;

/// The result of adding a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Added,
    Known,
    /// The record claims a place that is not the queue's next one. A queue that counts from 0 again is appended to; any
    /// other unit is not added.
    Misplaced,
    /// Decided later, see `hold`.
    Held,
    /// The record's queue offset cannot be the number of a unit.
    BadOffset,
}

impl Queues {
    /// Adds the unit of one record whose place is `queue_offset`.
    #[inline]
    pub fn put(&mut self, q: u32, unit: Unit, queue_offset: i64) -> Outcome<Put> {
        let queue = &self.queues[q as usize];
        if unit.end() <= queue.max_physic {
            return Ok(Put::Known);
        }
        if !(0..=i64::MAX / UNIT as i64 - 1).contains(&queue_offset) {
            return Ok(Put::BadOffset);
        }
        let expect = queue_offset as u64 * UNIT;
        let mut put = Put::Added;
        if expect != queue.end {
            if queue.has_no_unit() {
                self.begin_at(q, expect)?;
            } else if queue_offset != 0 {
                // 4.8.0 does not check this for offset 0, so a queue that counts from 0 again is appended to
                if expect < queue.end {
                    return Ok(Put::Known);
                }
                // A record that claims a place far ahead must not shift the records after it: it gets no unit.
                if !self.may_lack(q, unit.pos, (expect - queue.end) / UNIT) {
                    return Ok(Put::Misplaced);
                }
                self.fill(q, expect);
            } else {
                put = Put::Misplaced;
            }
        }
        self.append(q, unit);
        Ok(put)
    }

    /// Adds the unit of a record whose place is certain although no record has the offsets before it: placeholders take
    /// them. False: the place is taken, or too many are missing.
    #[cold]
    pub fn put_behind_gap(&mut self, q: u32, unit: Unit, queue_offset: i64) -> bool {
        let (expect, end) = (queue_offset as u64 * UNIT, self.queues[q as usize].end);
        if expect < end || (expect - end) / UNIT > MOST_SEALED_GAP {
            return false;
        }
        self.fill(q, expect);
        self.append(q, unit);
        true
    }

    /// Adds a unit at the queue's end.
    #[inline]
    pub(super) fn append(&mut self, q: u32, unit: Unit) {
        let queue = &mut self.queues[q as usize];
        queue.max_physic = unit.end();
        queue.pending.extend_from_slice(&unit.encode());
        queue.end += UNIT;
        self.pending_bytes += UNIT as usize;
        if !queue.dirty {
            queue.dirty = true;
            self.dirty.push_back(q);
        }
        if queue.watched && !queue.grew {
            queue.grew = true;
            self.grew.push(q);
        }
    }

    /// A queue without units begins at `expect`, after blank units from its file's start.
    #[cold]
    pub(super) fn begin_at(&mut self, q: u32, expect: u64) -> Outcome<()> {
        while !self.queues[q as usize].segments.is_empty() {
            self.remove_segment(q, 0)?;
        }
        let start = expect - expect % self.segment_bytes;
        let blanks = Unit::BLANK
            .encode()
            .repeat(BLANKS.min((expect - start) / UNIT) as usize);
        let mut at = start;
        while at < expect {
            let n = (expect - at).min(blanks.len() as u64);
            self.write(q, start, &blanks[..n as usize], at - start)?;
            at += n;
        }
        let queue = &mut self.queues[q as usize];
        (queue.end, queue.written, queue.min_logic) = (expect, expect, expect);
        Ok(())
    }

    /// Queues with pending units.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Writes pending units of up to `most` queues, those first that wait longest; true when nothing is left.
    pub fn write_some(&mut self, most: usize) -> Outcome<bool> {
        for _ in 0..most {
            let Some(&q) = self.dirty.front() else { return Ok(true) };
            self.write_queue(q)?;
            self.dirty.pop_front();
            self.queues[q as usize].dirty = false;
        }
        Ok(self.dirty.is_empty())
    }

    pub(super) fn write_queue(&mut self, q: u32) -> Outcome<()> {
        self.write_ext(q)?; // first: no unit in a file names one that is in none
        let mut pending = std::mem::take(&mut self.queues[q as usize].pending);
        let mut done = 0;
        let outcome = loop {
            if done == pending.len() {
                break Ok(());
            }
            let written = self.queues[q as usize].written;
            let start = written - written % self.segment_bytes;
            let n = (pending.len() - done).min((start + self.segment_bytes - written) as usize);
            if let Err(fault) = self.write(q, start, &pending[done..done + n], written - start) {
                break Err(fault);
            }
            done += n;
            self.queues[q as usize].written += n as u64;
        };
        pending.drain(..done);
        if pending.capacity() > ROOMY {
            pending.shrink_to(ROOMY / 16);
        }
        self.pending_bytes -= done;
        self.queues[q as usize].pending = pending;
        outcome
    }
}
