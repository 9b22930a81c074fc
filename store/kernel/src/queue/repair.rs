//! Repairs damaged queues: finds queues that hold less than before, adds placeholders for lost records, and rewrites
//! units in place.
//!
//! The table of ends is one row for each queue that has had messages, big-endian:
//!
//! ```text
//! offset  size  field
//!      0     2  bytes of the topic (n)
//!      2     n  topic
//!    2+n     4  queue id
//!    6+n     8  first byte of the queue's first file
//!   14+n     8  end of the units (bytes)
//!   22+n     8  end of the last record that has a unit
//! ```
//!
//! A placeholder is a blank unit. RocketMQ fills the start of a queue's first file with the same units.

use std::path::PathBuf;

use super::unit::{Unit, UNIT};
use super::Queues;
use crate::fault::Outcome;
use crate::record::{int, long, SMALLEST};

/// Damaged ranges of the log that are remembered. Placeholders are made only for records lost in one of them.
const MOST_LOST: usize = 10_000;
/// This many records in a row may be missing without a damaged range of the log.
const MOST_UNSEEN: u64 = 8;

/// Why a queue has to be rebuilt from the log; `end`: its next offset was this one at least.
pub struct Short {
    pub topic: Vec<u8>,
    pub id: i32,
    pub reason: String,
    pub end: i64,
    /// False: a power loss may leave the queue so, after the part that is known to be durable.
    pub certain: bool,
}

/// One row of the table of ends.
pub(super) struct Row<'a> {
    pub topic: &'a [u8],
    pub id: i32,
    first: u64,
    pub end: u64,
    pub max_physic: i64,
}

/// None: the rows are cut off.
pub(super) fn each_row(rows: &[u8], mut each: impl FnMut(&Row<'_>)) -> Option<()> {
    let mut rest = rows;
    while !rest.is_empty() {
        let n = usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?]));
        let row = rest.get(2..2 + n + 28)?;
        rest = &rest[2 + n + 28..];
        let (topic, row) = row.split_at(n);
        each(&Row {
            topic,
            id: int(row, 0),
            first: long(row, 4) as u64,
            end: long(row, 12) as u64,
            max_physic: long(row, 20),
        });
    }
    Some(())
}

impl Queues {
    /// Records may have been lost in these bytes of the log: a gap in queue offsets across them stays a gap.
    pub fn note_lost(&mut self, pos: u64, size: u64) {
        if self.lost.len() < MOST_LOST {
            self.lost.push((pos, size));
        }
    }

    /// Whether this many records of the queue can be missing between the last one it knows and `pos`: in damaged bytes
    /// of the log, or a few records whose own fields are wrong.
    #[cold]
    pub(super) fn may_lack(&self, q: u32, pos: i64, records: u64) -> bool {
        let from = self.queues[q as usize].max_physic.max(0);
        let room = (pos - from).max(0) as u64 / SMALLEST as u64;
        records <= room.min(MOST_UNSEEN) || self.lost_between(from, pos, records)
    }

    /// Whether this many records can have been lost in the damaged bytes of the log between two positions.
    pub(super) fn lost_between(&self, from: i64, until: i64, records: u64) -> bool {
        let (from, until) = (from.max(0) as u64, until.max(0) as u64);
        let overlap = |&(pos, size): &(u64, u64)| (pos + size).min(until).saturating_sub(pos.max(from));
        let lost: u64 = self.lost.iter().map(overlap).sum();
        lost / SMALLEST as u64 >= records
    }

    /// Adds placeholders up to byte `end` of the queue.
    pub(super) fn fill(&mut self, q: u32, end: u64) {
        let queue = &mut self.queues[q as usize];
        let n = (end - queue.end) / UNIT;
        for _ in 0..n {
            queue.pending.extend_from_slice(&Unit::BLANK.encode());
        }
        queue.end = end;
        self.pending_bytes += (n * UNIT) as usize;
        if n > 0 && !queue.dirty {
            queue.dirty = true;
            self.dirty.push_back(q);
        }
    }

    /// Raises the queue's next offset to `end` at least; false: it was there already, or would need more than `most`
    /// placeholders.
    pub fn reserve(&mut self, q: u32, end: i64, most: u64) -> Outcome<bool> {
        let Some(at) = u64::try_from(end).ok().and_then(|end| end.checked_mul(UNIT)) else {
            return Ok(false);
        };
        let queue = &self.queues[q as usize];
        if at <= queue.end {
            return Ok(false);
        }
        if queue.has_no_unit() {
            self.begin_at(q, at)?;
        } else if (at - queue.end) / UNIT <= most {
            self.fill(q, at);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// The records of the queue's newest life begin here: its topic was removed and created again.
    pub(super) fn begin_again(&mut self, q: u32) -> Outcome<()> {
        while !self.queues[q as usize].segments.is_empty() {
            let last = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, last)?;
        }
        let queue = &mut self.queues[q as usize];
        self.pending_bytes -= queue.pending.len();
        queue.pending.clear();
        (queue.end, queue.written, queue.min_logic, queue.floor) = (0, 0, 0, 0);
        Ok(())
    }

    /// The present state of the queues, one row each; see the module's head.
    pub fn table(&self) -> Vec<u8> {
        let mut rows = vec![];
        for q in self.all() {
            let queue = &self.queues[q as usize];
            if queue.end == 0 {
                continue;
            }
            let (topic, id) = self.name_of(q);
            rows.extend_from_slice(&(topic.len() as u16).to_be_bytes());
            rows.extend_from_slice(topic);
            rows.extend_from_slice(&id.to_be_bytes());
            let first = queue
                .first_start()
                .unwrap_or(queue.end - queue.end % self.segment_bytes);
            rows.extend_from_slice(&first.to_be_bytes());
            rows.extend_from_slice(&queue.end.to_be_bytes());
            rows.extend_from_slice(&queue.max_physic.to_be_bytes());
        }
        rows
    }

    /// Queues that hold less than a table says. `exact`: nothing was dispatched since the table was made.
    /// `nothing_deleted`: the log still has the beginning that it had then, so a missing first file counts too. None:
    /// the rows are cut off.
    pub fn compare(&self, rows: &[u8], exact: bool, nothing_deleted: bool) -> Option<Vec<Short>> {
        let mut short = vec![];
        each_row(rows, |row| {
            if let Some(reason) = self.differs(row, exact, nothing_deleted) {
                short.push(Short {
                    topic: row.topic.to_vec(),
                    id: row.id,
                    reason,
                    end: (row.end / UNIT) as i64,
                    certain: true,
                });
            }
        })?;
        Some(short)
    }

    fn differs(&self, row: &Row<'_>, exact: bool, nothing_deleted: bool) -> Option<String> {
        let Some(q) = self.find(row.topic, row.id) else {
            return Some("the queue is missing".to_owned());
        };
        let end = self.extent(q).max_offset as u64 * UNIT;
        let begins = self.queues[q as usize].first_start().unwrap_or(end);
        if end < row.end || exact && end > row.end {
            let (end, ended) = (end / UNIT, row.end / UNIT);
            Some(format!("it ends at offset {end}, it ended at {ended}"))
        } else if nothing_deleted && begins > row.first {
            let began = row.first;
            Some(format!("its files begin at byte {begins}, they began at {began}"))
        } else {
            None
        }
    }

    /// Queues whose files cannot be right, after `recover`, if the log ends at `log_end`.
    pub fn faults(&self, log_end: i64) -> Vec<Short> {
        let mut short = vec![];
        for q in self.all() {
            let queue = &self.queues[q as usize];
            let mut certain = true;
            let reason = if let Some((reason, sure)) = &queue.broken {
                certain = *sure;
                reason.clone()
            } else if queue.max_physic > log_end {
                format!(
                    "its last unit names a record that ends at byte {} of the log, which ends at {log_end}",
                    queue.max_physic
                )
            } else {
                continue;
            };
            let (topic, id) = self.name_of(q);
            let (topic, end) = (topic.to_vec(), 0);
            short.push(Short {
                topic,
                id,
                reason,
                end,
                certain,
            });
        }
        short
    }

    pub(super) fn break_queue(&mut self, q: u32, reason: String, certain: bool) {
        self.queues[q as usize].broken.get_or_insert((reason, certain));
    }

    /// Removes a queue with everything in its folder, including files that are not segments. Other folders stay.
    pub fn remove_all(&mut self, q: u32) -> Outcome<()> {
        let folders: [PathBuf; 2] = [self.folder_of(q), self.ext_folder_of(q)];
        for folder in folders {
            for start in crate::maps::segment_starts(&folder)? {
                let path = folder.join(crate::maps::segment_name(start));
                if !self.queues[q as usize].segments.iter().any(|s| s.start == start)
                    || folder.starts_with(&self.ext_folder)
                {
                    let removed = self.door.remove(&path);
                    crate::fault::At::at(removed, &path)?;
                    self.new_names_in.insert(folder.clone());
                }
            }
        }
        self.remove(q)
    }

    /// Lets the queue begin at `offset`, with placeholders before its present first unit: records that were not readable
    /// when the queue was built are. False: it begins there already, the units have expired, or there are more than
    /// `most`.
    pub fn begin_earlier(&mut self, q: u32, offset: i64, most: u64) -> Outcome<bool> {
        let queue = &self.queues[q as usize];
        let Some(at) = u64::try_from(offset).ok().and_then(|offset| offset.checked_mul(UNIT)) else {
            return Ok(false);
        };
        let mut end = queue.min_logic;
        if at >= end || at < queue.floor || (end - at) / UNIT > most {
            return Ok(false);
        }
        // The last file first: after a crash in between, the files that are there follow each other.
        while end > at {
            let file = (end - 1) - (end - 1) % self.segment_bytes;
            let begin = at.max(file);
            // RocketMQ fills the begin of a queue's first file, too.
            let blanks = Unit::BLANK.encode().repeat(((end - file) / UNIT) as usize);
            self.write(q, file, &blanks, 0)?;
            end = begin;
        }
        self.queues[q as usize].min_logic = at;
        Ok(true)
    }

    /// Overwrites a unit. The offset must exist in the queue.
    pub fn overwrite(&mut self, q: u32, offset: i64, unit: Unit) -> Outcome<()> {
        let at = offset as u64 * UNIT;
        let queue = &mut self.queues[q as usize];
        assert!(at < queue.end, "only an existing unit is replaced");
        if at + UNIT == queue.end && !unit.is_blank() {
            queue.max_physic = queue.max_physic.max(unit.end()); // a record that is dispatched again is known
        }
        if at >= queue.written {
            let from = (at - queue.written) as usize;
            queue.pending[from..from + UNIT as usize].copy_from_slice(&unit.encode());
            return Ok(());
        }
        let start = at - at % self.segment_bytes;
        self.write(q, start, &unit.encode(), at - start)
    }
}
