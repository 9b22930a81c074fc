//! Recovery's side of the queues: unit n names the record whose queue offset is n, also after damaged records.
//!
//! A record that claims the queue's next offset is added at once. Any other record is held as a claim, with all later
//! records of the queue, until these prove which claims fit together (`chain`). Offsets without a claim become
//! placeholders. A claim that does not fit is a stray: it gets no unit, and is reported as damage of the log.
//!
//! ```text
//! queue ends at 4; the log has 5, 6, 7, 8    unit 4 is a placeholder
//! queue ends at 4; the log has 2^47, 4, 5..  2^47 is a stray
//! queue ends at 4; the log has 2             2 is a stray: the place is taken
//! ```
//!
//! The table of ends (`repair`) decides what the log leaves open, for records that the table covers. A stray at the end
//! of a queue had an offset that was given out; a placeholder keeps that offset, unless the table knows the queue's
//! end.

use std::collections::HashMap;

use super::chain::{choose_last, choose_proven, run_length, Choice, Claim, Front, RUN};
use super::repair::each_row;
use super::unit::UNIT;
use super::{Put, Queues};
use crate::fault::Outcome;
use crate::record::SMALLEST;

/// Claims of one queue that are held at most.
const MOST_HELD: usize = 1024;
/// Strays that are reported, and placeholders that strays at a queue's end may add.
const MOST_STRAYS: usize = 1000;
const MOST_KEPT: u64 = 64;
/// Placeholders in one gap. After a larger gap, the queue begins behind the gap.
const MOST_GAP: u64 = 1 << 20;
/// Placeholders at a queue's end that a later record may replace.
const MOST_BLANK: i64 = 4096;
/// An offset that no record can have.
const NO_PLACE: i64 = i64::MAX / UNIT as i64;

/// A record that does not fit at the place that it claims.
pub struct Stray {
    pub topic: Vec<u8>,
    pub id: i32,
    pub offset: i64,
    pub pos: i64,
    pub size: i32,
}

/// Topic and queue id.
type Name = (Box<[u8]>, i32);
/// Next offset of a queue, and end of its last record.
type End = (i64, i64);

/// Set during a recovery.
#[derive(Default)]
pub struct Holding {
    /// The position of the log up to which the table of ends is valid; -1: there is no table.
    table_pos: i64,
    rows: HashMap<Name, End>,
    strays: Vec<Stray>,
}

/// The held claims of one queue.
#[derive(Default)]
pub(super) struct Held {
    claims: Vec<Claim>,
    /// End of the last record that was read.
    seen: i64,
    /// Strays since the last unit whose offset the table does not know.
    behind: u64,
}

impl Held {
    /// Drops records at or after `pos`.
    pub(super) fn truncate(&mut self, pos: i64) {
        self.claims.retain(|claim| claim.unit.pos < pos);
        self.seen = self.seen.min(pos);
    }
}

impl Queues {
    /// From now on records are held until their place is proven. `rows`: of the table of ends, which is valid for the
    /// log up to `table_pos` (-1: there is no table). False: the rows are cut off.
    pub fn hold(&mut self, rows: &[u8], table_pos: i64) -> bool {
        let mut holding = Holding {
            table_pos,
            ..Holding::default()
        };
        let whole = each_row(rows, |row| {
            let key = (row.topic.into(), row.id);
            holding.rows.insert(key, ((row.end / UNIT) as i64, row.max_physic));
        });
        self.holding = Some(Box::new(holding));
        whole.is_some()
    }

    #[inline]
    pub fn is_holding(&self) -> bool {
        self.holding.is_some()
    }

    /// Adds the unit of one record, or holds it. A known record changes nothing.
    #[inline]
    pub fn claim(&mut self, q: u32, mut claim: Claim) -> Outcome<Put> {
        let queue = &self.queues[q as usize];
        if claim.unit.end() <= queue.max_physic {
            return Ok(Put::Known);
        }
        if !(0..NO_PLACE).contains(&claim.offset) {
            claim.offset = NO_PLACE;
        }
        if queue.held.is_none() && claim.offset as u64 * UNIT == queue.end && !queue.has_no_unit() {
            self.add(q, &claim)?;
            return Ok(Put::Added);
        }
        self.hold_back(q, claim)
    }

    #[cold]
    fn hold_back(&mut self, q: u32, claim: Claim) -> Outcome<Put> {
        let queue = &mut self.queues[q as usize];
        let next = (!queue.has_no_unit()).then_some((queue.end / UNIT) as i64);
        let held = queue.held.get_or_insert_default();
        if claim.unit.end() <= held.seen {
            return Ok(Put::Known);
        }
        held.seen = claim.unit.end();
        match next.filter(|_| held.claims.is_empty()) {
            Some(next) if claim.offset == next => {
                queue.held = None;
                self.add(q, &claim)?;
                return Ok(Put::Added);
            }
            Some(next) if claim.offset < next && (claim.offset != 0 || claim.lost) => return self.come_late(q, &claim),
            _ => held.claims.push(claim),
        }
        if run_length(&held.claims) >= RUN {
            self.resolve(q, true)?;
        } else if held.claims.len() >= MOST_HELD {
            self.resolve(q, false)?;
        }
        Ok(Put::Held)
    }

    /// A record that claims an existing offset of the queue: it replaces a placeholder at the queue's end.
    fn come_late(&mut self, q: u32, claim: &Claim) -> Outcome<Put> {
        if claim.lost {
            return Ok(Put::Known);
        }
        if self.is_blank_from(q, claim.offset)? {
            self.overwrite(q, claim.offset, claim.unit)?;
            self.queues[q as usize].max_physic = claim.unit.end();
            return Ok(Put::Added);
        }
        self.stray(q, claim);
        if !self.is_covered(q, claim) {
            self.queues[q as usize].held.get_or_insert_default().behind += 1;
        }
        Ok(Put::Misplaced)
    }

    /// No more records will come: places the held claims, and returns the strays.
    pub fn settle(&mut self) -> Outcome<Vec<Stray>> {
        for q in self.all() {
            if self.queues[q as usize].held.is_none() {
                continue;
            }
            self.resolve(q, false)?;
            let queue = &mut self.queues[q as usize];
            queue.held = None;
            if queue.end == 0 && queue.segments.is_empty() {
                self.remove(q)?; // only a stray created it
            }
        }
        Ok(self.holding.take().map_or(vec![], |holding| holding.strays))
    }

    /// Next offset and end of the last record of a queue, if no more records come.
    pub(super) fn foresee(&self, q: u32) -> (i64, i64) {
        let queue = &self.queues[q as usize];
        let (mut next, mut end_pos) = ((queue.end / UNIT) as i64, queue.max_physic);
        if let Some(held) = &queue.held {
            let (choice, keep) = self.choose(q, &held.claims, held.behind, false);
            if let Some(&last) = choice.chain.last() {
                next = held.claims[last].offset + 1;
                end_pos = held.claims[last].unit.end();
            }
            next += keep as i64;
        }
        (next, end_pos)
    }

    fn resolve(&mut self, q: u32, proven: bool) -> Outcome<()> {
        let Some(mut held) = self.queues[q as usize].held.take() else {
            return Ok(());
        };
        let claims = std::mem::take(&mut held.claims);
        let (choice, keep) = self.choose(q, &claims, held.behind, proven);
        self.place(q, &claims, &choice)?;
        let mut chain = choice.chain.iter().peekable();
        for (i, claim) in claims.iter().enumerate() {
            if chain.next_if(|&&at| at == i).is_none() && !claim.lost {
                self.stray(q, claim);
            }
        }
        if !proven && keep > 0 {
            let end = self.queues[q as usize].end + keep * UNIT;
            self.fill(q, end);
        }
        if choice.chain.is_empty() || !proven {
            held.behind = 0;
            self.queues[q as usize].held = Some(held); // keep it for what it knows about the records seen
        }
        Ok(())
    }

    /// The claims that fit, and the number of offsets that are kept for the claims after them.
    fn choose(&self, q: u32, claims: &[Claim], behind: u64, proven: bool) -> (Choice, u64) {
        let queue = &self.queues[q as usize];
        let first = |claim: &Claim| self.cost_of_first(q, claim);
        let lacks = |from: i64, to: i64, records: u64| self.lost_between(from, to, records);
        let front = Front {
            next: (!queue.has_no_unit()).then_some((queue.end / UNIT) as i64),
            end_pos: queue.max_physic,
            first: &first,
            lacks: &lacks,
        };
        if proven {
            return (choose_proven(claims, &front), 0);
        }
        let possible = |claim: &Claim| Claim {
            offset: if self.is_possible(q, claim) {
                claim.offset
            } else {
                NO_PLACE
            },
            ..*claim
        };
        let possible: Vec<Claim> = claims.iter().map(possible).collect();
        let alone = claims.last().is_some_and(|claim| self.begins_alone(q, claim));
        let choice = choose_last(&possible, &front, alone);
        if choice.chain.is_empty() && queue.has_no_unit() {
            return (choice, 0);
        }
        let rest = choice.chain.last().map_or(0, |&last| last + 1);
        let strays = claims[rest..].iter().filter(|claim| !self.is_covered(q, claim));
        let behind = if choice.chain.is_empty() { behind } else { 0 };
        let keep = (strays.count() as u64 + behind).min(MOST_KEPT);
        (choice, keep)
    }

    fn place(&mut self, q: u32, claims: &[Claim], choice: &Choice) -> Outcome<()> {
        if choice.again {
            self.begin_again(q)?;
        }
        for &i in &choice.chain {
            let claim = &claims[i];
            let at = claim.offset as u64 * UNIT;
            let queue = &self.queues[q as usize];
            if queue.has_no_unit() {
                self.begin_at(q, at + u64::from(claim.lost) * UNIT)?;
            } else if at.saturating_sub(queue.end) / UNIT <= MOST_GAP {
                self.fill(q, at);
            } else {
                self.begin_again(q)?;
                self.begin_at(q, at)?;
            }
            if at >= self.queues[q as usize].end {
                self.add(q, claim)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, q: u32, claim: &Claim) -> Outcome<()> {
        if claim.lost {
            let end = self.queues[q as usize].end + UNIT;
            self.fill(q, end);
            return Ok(());
        }
        if self.is_extended() {
            self.prepare_ext(q)?;
        }
        self.append(q, claim.unit);
        if self.is_extended() {
            self.extend_last(q, claim.unit.tags_code, claim.store_timestamp, &[]);
        }
        Ok(())
    }

    fn stray(&mut self, q: u32, claim: &Claim) {
        let (topic, id) = self.name_of(q);
        let stray = Stray {
            topic: topic.to_vec(),
            id,
            offset: claim.offset,
            pos: claim.unit.pos,
            size: claim.unit.size,
        };
        if let Some(holding) = self
            .holding
            .as_mut()
            .filter(|holding| holding.strays.len() < MOST_STRAYS)
        {
            holding.strays.push(stray);
        }
    }

    /// Whether all units from `offset` on are placeholders.
    fn is_blank_from(&mut self, q: u32, offset: i64) -> Outcome<bool> {
        let next = (self.queues[q as usize].end / UNIT) as i64;
        if next - offset > MOST_BLANK {
            return Ok(false);
        }
        for offset in offset..next {
            if !self.unit(q, offset as u64 * UNIT)?.is_some_and(|unit| unit.is_blank()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    // ------------------------------------------------------------------ the table of ends

    /// Next offset and end of the last record, and whether they are after the claim's record.
    fn row(&self, q: u32, claim: &Claim) -> Option<(End, bool)> {
        let holding = self.holding.as_ref()?;
        let (topic, id) = self.name_of(q);
        let row = holding.rows.get(&(topic.into(), id))?;
        Some((*row, claim.unit.pos < holding.table_pos))
    }

    /// Whether the table knows the queue's end after the claim's record.
    fn is_covered(&self, q: u32, claim: &Claim) -> bool {
        self.row(q, claim).is_some_and(|(_, covered)| covered)
    }

    fn is_possible(&self, q: u32, claim: &Claim) -> bool {
        match self.row(q, claim) {
            Some(((next, end_pos), true)) if claim.unit.end() == end_pos => claim.offset == next - 1,
            Some(((next, _), true)) => claim.offset < next,
            _ => true,
        }
    }

    /// Whether a record with offset 0, after all others of the queue, begins it again. A table that exists was
    /// rewritten when a topic was removed, and either lacks the queue or has its new end.
    fn begins_alone(&self, q: u32, claim: &Claim) -> bool {
        match self.row(q, claim) {
            Some(((next, _), covered)) => covered && next == 1,
            None => self.holding.as_ref().is_none_or(|holding| holding.table_pos < 0),
        }
    }

    /// See `Front::first`.
    fn cost_of_first(&self, q: u32, claim: &Claim) -> Option<i64> {
        if claim.offset == NO_PLACE || !self.is_possible(q, claim) {
            return None;
        }
        match self.row(q, claim) {
            Some((_, true)) => Some(0),
            Some(((next, _), false)) => (claim.offset >= next).then_some(claim.offset - next),
            None if self.holding.as_ref().is_some_and(|holding| holding.table_pos >= 0) => Some(claim.offset),
            // each earlier record took up bytes of the log
            None => (claim.offset <= claim.unit.pos / SMALLEST as i64).then_some(0),
        }
    }
}
