//! Copies the records of a log into a new log of the other layout (or of the same), record by record.
//!
//! ```text
//! plain      record    | record     | filler        dledger's   header record | header record | filler
//! ```
//!
//! A record keeps all its bytes except for two fields: its own position, and the position of the half message that the
//! end of a transaction names (`places`). In the new log every entry has one term and a chain of CRCs. Entries of
//! tallystick's groups that are no messages are left out: they belong to the old group. Records are checked as they are
//! read, with their CRCs, and entries with their index, term and chain; the copy stops before the first place where
//! something differs, and reports it.
//!
//! Memory is bounded: gathered bytes, and what `places` keeps.

mod places;
mod target;
mod totals;

use std::ops::ControlFlow;
use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::door::Door;
use crate::entry::{continues, EntryHeader, Link, ENTRY_HEADER};
use crate::fault::Outcome;
use crate::maps::LogMaps;
use crate::named::named_tuples;
use crate::record::{Record, SMALLEST};
use crate::scan::{check_geometry, walk, Bounds, Visit};
use places::{Layout, Places};
use target::Target;
pub use target::POSITION_AT;

const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
/// Bits of the system flag: the type of a transaction's record.
const TRANSACTION_TYPE: i32 = 0x0C;
const PREPARED: i32 = 0x04;
const ENDED: i32 = 0x08;
/// The words are part of the interface.
const TOO_LARGE: &str = "does not fit into a segment";
const INDEX: &str = "index does not follow";
const TERM: &str = "term below the one before";
const CHAIN: &str = "chain CRC differs";
const UNCHAINED: &str = "no CRC behind an entry that has one";

named_tuples! {
    /// Where a step ended in the old log, and why before its bound: None for the bound, or where the files end.
    Step { pos: u64, stopped: Option<&'static str> }
}

/// A range of the old log: plain records, or entries.
pub struct Part {
    log: LogMaps,
    entry_header: usize,
    begin: u64,
}

impl Part {
    fn new(folder: PathBuf, segment_bytes: u64, entry_header: usize, begin: u64) -> Part {
        Part {
            log: LogMaps::new(folder, segment_bytes),
            entry_header,
            begin,
        }
    }

    /// The header of the entry whose record lies at `pos`; None in the plain layout.
    fn header_of(&self, pos: u64) -> Outcome<Option<(EntryHeader, [u8; ENTRY_HEADER])>> {
        if self.entry_header == 0 {
            return Ok(None);
        }
        // A plain record in a log that was begun without dledger has none.
        let Some(begin) = pos.checked_sub(ENTRY_HEADER as u64) else {
            return Ok(None);
        };
        let segment = self.log.segment(begin)?;
        let bytes = segment.as_ref().and_then(|segment| segment.slice(begin, ENTRY_HEADER));
        let bytes: Option<[u8; ENTRY_HEADER]> = bytes.and_then(|bytes| bytes.try_into().ok());
        let header = bytes.and_then(|bytes| EntryHeader::read(&bytes).ok().map(|header| (header, bytes)));
        Ok(header.filter(|(header, _)| header.pos == begin))
    }

    /// Whether the record at `pos` is an entry of a group of tallystick that is no message.
    fn is_own_entry(&self, pos: u64) -> Outcome<bool> {
        Ok(self.header_of(pos)?.is_some_and(|(header, _)| header.kind != 0))
    }
}

pub fn is_half(record: &Record<'_>) -> bool {
    record.topic() == HALF_TOPIC || record.sys_flag() & TRANSACTION_TYPE == PREPARED
}

/// Whether a record may name the position of a half message: a transaction was committed or rolled back. (Position 0 is
/// possible.)
pub fn ends_transaction(record: &Record<'_>) -> bool {
    record.sys_flag() & ENDED != 0
}

/// The part with byte `pos`.
fn part_of(parts: &[Part], pos: u64) -> Option<&Part> {
    parts.iter().rev().find(|part| part.begin <= pos)
}

/// The queue offset of the half message at `pos`; None: there is none. Looks only at this place.
fn half_at(parts: &[Part], pos: u64) -> Outcome<Option<i64>> {
    let Some(part) = part_of(parts, pos) else {
        return Ok(None);
    };
    let Some(segment) = part.log.segment(pos)? else {
        return Ok(None);
    };
    let bytes = segment.map.get((pos - segment.start) as usize..).unwrap_or(&[]);
    let record = Record::parse(bytes, pos).ok().filter(is_half);
    let offset = record.map(|record| record.queue_offset());
    Ok(offset.filter(|_| !segment.spoils(pos, SMALLEST)))
}

/// What the next entry of the old log must continue.
#[derive(Clone, Copy)]
struct OldLink {
    link: Link,
    /// Behind the last entry: entries without a body are not seen, so behind another place the index may be higher.
    end: u64,
}

/// Converter(door, folder, segment_bytes, index, pos, next_index, term, chain, pairs, gaps)
#[pyclass(module = "tallystick.store._kernel")]
pub struct Converter {
    parts: Vec<Part>,
    pos: u64,
    old: Option<OldLink>,
    /// The bytes before the next record were not converted.
    apart: bool,
    target: Target,
    places: Places,
    records: u64,
    left_out: u64,
    references: u64,
    dangling: u64,
}

impl Converter {
    fn copy(&mut self, upto: u64, most_bytes: u64) -> Outcome<Step> {
        let Converter {
            parts, target, places, ..
        } = self;
        let part = parts.last().expect("`begin` was called");
        let layout = Layout {
            segment_bytes: target.segment_bytes(),
            entry_header: target.header_bytes(),
        };
        let bounds = Bounds {
            from: self.pos,
            upto,
            entry_header: part.entry_header,
            check_crc: true,
            pass_damaged: false,
        };
        let (begin, mut pos, mut stopped) = (self.pos, self.pos, None);
        let end = walk(&part.log, &bounds, |visit| {
            let Visit::Record {
                record,
                pos: record_pos,
                next,
            } = visit
            else {
                return Ok(ControlFlow::Break(()));
            };
            let header = part.header_of(record_pos)?;
            let item_pos = record_pos - header.map_or(0, |_| ENTRY_HEADER as u64);
            if let Some((entry, bytes)) = header {
                stopped = self.old.and_then(|old| flaw(&old, &entry, &bytes, item_pos));
                if stopped.is_some() {
                    pos = item_pos;
                    return Ok(ControlFlow::Break(()));
                }
                self.old = Some(OldLink {
                    link: entry.link(),
                    end: next,
                });
                if entry.kind != 0 {
                    self.left_out += 1;
                    pos = next;
                    return Ok(ControlFlow::Continue(()));
                }
            }
            places.begin(item_pos, target.pos(), std::mem::take(&mut self.apart));
            let mut prepared = record.prepared_transaction_offset();
            if ends_transaction(record) {
                match places.find(prepared, parts, layout)? {
                    Some(new) => {
                        (prepared, self.references) = (new as i64, self.references + 1);
                    }
                    None => self.dangling += u64::from(prepared != 0),
                }
            }
            let Some(new) = target.put(record, prepared)? else {
                (pos, stopped) = (item_pos, Some(TOO_LARGE));
                return Ok(ControlFlow::Break(()));
            };
            if is_half(record) {
                places.note_half(record_pos, new);
            }
            self.records += 1;
            pos = next;
            Ok(if next - begin >= most_bytes {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        self.pos = if stopped.is_some() { pos } else { end.pos };
        Ok(Step {
            pos: self.pos,
            stopped: stopped.or(end.stopped.map(|bad| bad.text())),
        })
    }
}

/// Why the entry at `pos` does not continue the one before it.
fn flaw(old: &OldLink, entry: &EntryHeader, bytes: &[u8], pos: u64) -> Option<&'static str> {
    let link = &old.link;
    if entry.index < link.next_index || (pos == old.end && entry.index > link.next_index) {
        return Some(INDEX);
    }
    if entry.term < link.term {
        return Some(TERM);
    }
    if entry.chain == 0 {
        return (link.chain != 0).then_some(UNCHAINED);
    }
    (entry.index == link.next_index && !continues(bytes, link.chain)).then_some(CHAIN)
}

#[pymethods]
impl Converter {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn py_new(
        door: &Door,
        folder: PathBuf,
        segment_bytes: u64,
        index: Option<(PathBuf, u64)>,
        pos: u64,
        next_index: u64,
        term: i64,
        chain: u32,
        pairs: Vec<(u64, u64)>,
        gaps: Vec<(u64, u64)>,
    ) -> PyResult<Converter> {
        check_geometry(segment_bytes, 0)?;
        let link = Link {
            next_index,
            term,
            chain,
        };
        Ok(Converter {
            parts: vec![],
            pos: 0,
            old: None,
            apart: false,
            target: Target::new(door, folder, segment_bytes, index, pos, link),
            places: Places::new(pairs, gaps),
            records: 0,
            left_out: 0,
            references: 0,
            dangling: 0,
        })
    }

    /// begin(log_dir, segment_bytes, entry_header_bytes, part_begin, pos)
    fn begin(
        &mut self,
        log_dir: PathBuf,
        segment_bytes: u64,
        entry_header_bytes: usize,
        part_begin: u64,
        pos: u64,
    ) -> PyResult<()> {
        check_geometry(segment_bytes, entry_header_bytes)?;
        self.parts
            .push(Part::new(log_dir, segment_bytes, entry_header_bytes, part_begin));
        (self.pos, self.old, self.apart) = (pos, None, true);
        Ok(())
    }

    /// skip(pos): the bytes up to `pos` are not converted.
    fn skip(&mut self, pos: u64) -> PyResult<()> {
        if pos < self.pos {
            return Err(PyValueError::new_err(format!("{pos} is before {}", self.pos)));
        }
        self.places.note_gap(self.pos, pos);
        (self.pos, self.old, self.apart) = (pos, None, true);
        Ok(())
    }

    /// run(upto, most_bytes) -> Step
    fn run(&mut self, py: Python<'_>, upto: u64, most_bytes: u64) -> PyResult<Step> {
        if self.parts.is_empty() {
            return Err(PyValueError::new_err("`begin` was not called"));
        }
        Ok(py.detach(|| self.copy(upto, most_bytes))?)
    }

    fn sync(&mut self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| self.target.sync())?)
    }

    #[getter]
    fn pos(&self) -> u64 {
        self.pos
    }

    /// (position behind the last record, next index, chain CRC) of the new log
    #[getter]
    fn target(&self) -> (u64, u64, u32) {
        let link = self.target.link();
        (self.target.pos(), link.next_index, link.chain)
    }

    /// pairs_from(count): the pairs of positions behind the first `count` ones.
    fn pairs_from(&self, count: usize) -> Vec<(u64, u64)> {
        self.places.pairs().get(count..).unwrap_or(&[]).to_vec()
    }

    /// (records, entries left out, references mapped, references to nothing)
    #[getter]
    fn counts(&self) -> (u64, u64, u64, u64) {
        (self.records, self.left_out, self.references, self.dangling)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    totals::register(module)?;
    module.add_class::<Converter>()
}
