//! Where records of the old log lie in the new one: for records that name the position of another record.
//!
//! The record that ends a transaction names the position of its half message. Most transactions end soon, so the newest
//! half messages are kept. An older one is found from a known pair of positions before it, of which there is one for
//! each `APART_BYTES` of the old log: from there on its new position is counted. Memory: 16 bytes for each mebibyte of
//! the log, and 4 MiB.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::target::place_of;
use super::{half_at, part_of, Part};
use crate::fault::Outcome;
use crate::scan::{walk, Bounds, Visit};

/// Pairs of positions are this far apart in the old log.
const APART_BYTES: u64 = 1 << 20;
const MOST_RECENT: usize = 1 << 18;

/// How the new log is laid out.
#[derive(Clone, Copy)]
pub struct Layout {
    pub segment_bytes: u64,
    pub entry_header: usize,
}

#[derive(Default)]
pub struct Places {
    /// Of half messages, by their rising old positions: (old, new) position of the record.
    recent: VecDeque<(u64, u64)>,
    /// (old, new): where the walk stood in both logs before a record.
    pairs: Vec<(u64, u64)>,
    /// Ranges of the old log that were not converted.
    gaps: Vec<(u64, u64)>,
}

impl Places {
    pub fn new(pairs: Vec<(u64, u64)>, gaps: Vec<(u64, u64)>) -> Places {
        Places {
            recent: VecDeque::new(),
            pairs,
            gaps,
        }
    }

    pub fn note_gap(&mut self, begin: u64, end: u64) {
        self.gaps.push((begin, end));
    }

    pub fn pairs(&self) -> &[(u64, u64)] {
        &self.pairs
    }

    /// A record begins at `old` (with its entry), and the new log ends at `new`. `apart`: the bytes before it were not
    /// converted.
    #[inline]
    pub fn begin(&mut self, old: u64, new: u64, apart: bool) {
        if apart || self.pairs.last().is_none_or(|&(before, _)| old >= before + APART_BYTES) {
            self.pairs.push((old, new));
        }
    }

    pub fn note_half(&mut self, old: u64, new: u64) {
        if self.recent.len() == MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((old, new));
    }

    /// The new position of the half message at `old`; None: there is no such record among the converted ones.
    pub fn find(&self, old: i64, parts: &[Part], layout: Layout) -> Outcome<Option<u64>> {
        let Ok(old) = u64::try_from(old) else { return Ok(None) };
        if let Ok(at) = self.recent.binary_search_by_key(&old, |&(old, _)| old) {
            return Ok(Some(self.recent[at].1));
        }
        if self.recent.front().is_some_and(|&(oldest, _)| old > oldest) {
            return Ok(None);
        }
        if self.gaps.iter().any(|&(begin, end)| (begin..end).contains(&old)) || half_at(parts, old)?.is_none() {
            return Ok(None);
        }
        let Some(part) = part_of(parts, old) else {
            return Ok(None);
        };
        let at = self.pairs.partition_point(|&(before, _)| before <= old);
        match at.checked_sub(1).map(|at| self.pairs[at]) {
            Some(pair) if pair.0 >= part.begin => count_from(pair, old, part, layout),
            _ => Ok(None),
        }
    }
}

fn count_from(pair: (u64, u64), old: u64, part: &Part, layout: Layout) -> Outcome<Option<u64>> {
    let bounds = Bounds {
        from: pair.0,
        upto: u64::MAX >> 1,
        entry_header: part.entry_header,
        check_crc: true,
        pass_damaged: false,
    };
    let (mut new, mut found) = (pair.1, None);
    walk(&part.log, &bounds, |visit| {
        let Visit::Record { record, pos, .. } = visit else {
            return Ok(ControlFlow::Break(()));
        };
        if pos > old {
            return Ok(ControlFlow::Break(()));
        }
        if part.is_own_entry(pos)? {
            return Ok(ControlFlow::Continue(()));
        }
        let bytes = layout.entry_header + record.bytes().len();
        let Some(place) = place_of(new, bytes, layout.segment_bytes) else {
            return Ok(ControlFlow::Break(()));
        };
        if pos == old {
            found = Some(place.begin + layout.entry_header as u64);
            return Ok(ControlFlow::Break(()));
        }
        new = place.begin + bytes as u64;
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}
