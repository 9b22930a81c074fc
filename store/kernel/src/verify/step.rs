//! What stands at a position of a log, in the words of a report: the kernel's twin of `store/formats/log_walk.py`.

use std::fmt;
use std::sync::Arc;

use pyo3::prelude::*;

use super::files::{next_magic, Files};
use super::FilesOf;
use crate::guard::ReadMap;
use crate::record::{int, is_record_magic, long, Record, BLANK_MAGIC, LEDGER_FILLER, RECORD_MAGIC, UNREADABLE};

const PAGE: usize = 4096;
const BLANK: usize = 8;
const HEADER: usize = 48;
/// The fixed fields of a record up to its born time.
const HEAD: usize = 48;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Record,
    /// An entry of dledger's layout without a record.
    Empty,
    Filler,
    /// Nothing was written yet, or the files end.
    End,
    Damage,
}

/// Why there is no sound item. The words are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    None,
    FilesEnd,
    NoRoomForFiller(u64),
    Unwritten,
    Filler { size: i32, left: u64 },
    NoRoomForEntry(u64),
    EntryMagic(i32),
    EntrySize { size: i32, body: i32 },
    EntryPlace(i64),
    EntryBodyCrcAlone,
    EntryBodyCrc,
    Size { size: i32, left: u64 },
    Torn,
    Magic(i32),
    RecordSize { size: i32, left: usize },
    Field { size: i64, left: usize },
    Fields { taken: usize, size: i32 },
    BodyCrc { is: i32, says: i32 },
    Place(i64),
    Zeros,
    Unreadable,
}

impl fmt::Display for Why {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Why::None => Ok(()),
            Why::FilesEnd => write!(to, "the files end"),
            Why::NoRoomForFiller(left) => write!(to, "{left} bytes are left where a filler needs {BLANK}"),
            Why::Unwritten => write!(to, "unwritten"),
            Why::Filler { size, left } => write!(to, "a filler of {size} bytes where {left} are left"),
            Why::NoRoomForEntry(left) => write!(to, "an entry where {left} bytes are left"),
            Why::EntryMagic(magic) => write!(to, "entry magic {magic}"),
            Why::EntrySize { size, body } => write!(to, "entry size {size} with a body of {body} bytes"),
            Why::EntryPlace(pos) => write!(to, "the entry says that it lies at {pos}"),
            Why::EntryBodyCrcAlone => write!(to, "an entry without a chain CRC has a body CRC"),
            Why::EntryBodyCrc => write!(to, "the entry's body CRC differs"),
            Why::Size { size, left } => write!(to, "a size of {size} bytes where {left} are left"),
            Why::Torn => write!(to, "torn record"),
            Why::Magic(magic) => write!(to, "no record has the magic {:08x}", magic as u32),
            Why::RecordSize { size, left } => write!(to, "a record of {size} bytes where {left} are left"),
            Why::Field { size, left } => write!(to, "a field of {size} bytes where {left} are left"),
            Why::Fields { taken, size } => write!(to, "the record's fields take {taken} bytes, its size says {size}"),
            Why::BodyCrc { is, says } if says < 0 => write!(
                to,
                "the body's CRC is {is:#x}, the record says -{:#x}",
                says.unsigned_abs()
            ),
            Why::BodyCrc { is, says } => write!(to, "the body's CRC is {is:#x}, the record says {says:#x}"),
            Why::Place(pos) => write!(to, "the record says that it lies at {pos}"),
            Why::Zeros => write!(to, "topic or properties end in zeros"),
            Why::Unreadable => write!(to, "{UNREADABLE}"),
        }
    }
}

/// `size`: up to the next item; for damage the value of its size field if that stays in the segment, else 0.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub kind: Kind,
    pub pos: u64,
    pub size: u64,
    pub why: Why,
    /// An entry's header was read.
    pub has_entry: bool,
}

/// A step, and the bytes from its position to the end of its segment.
pub struct Seen {
    pub step: Step,
    map: Option<Arc<ReadMap>>,
    at: usize,
    record_at: usize,
}

impl Seen {
    /// The record of a step of the kind `Record`.
    pub fn record(&self) -> Option<Record<'_>> {
        let map = self.map.as_ref().filter(|_| self.step.kind == Kind::Record)?;
        let end = (self.at as u64 + self.step.size) as usize;
        let pos = self.step.pos + (self.record_at - self.at) as u64;
        Record::parse(map.get(self.record_at..end)?, pos).ok()
    }

    /// The entry's header.
    pub fn entry(&self) -> Option<&[u8]> {
        self.map
            .as_ref()
            .filter(|_| self.step.has_entry)?
            .get(self.at..self.at + HEADER)
    }
}

/// The item at `pos`, where an entry or record begins. Unreadable bytes are damage.
pub fn step_at(log: &mut Files, pos: i64, entry_header: usize, check_crc: bool) -> PyResult<Seen> {
    let Some(start) = log.start_of(pos) else {
        let step = step(Kind::End, pos.max(0) as u64, Why::FilesEnd);
        return Ok(Seen {
            step,
            map: None,
            at: 0,
            record_at: 0,
        });
    };
    let at = pos as u64 - start;
    log.fetch(start, at, (at + 64 + BLANK as u64).min(log.segment_bytes))?;
    let map = log.map(start)?;
    if let Some(size) = claimed(&map, at as usize, entry_header) {
        log.fetch(start, at, (at + size + BLANK as u64).min(log.segment_bytes))?;
    }
    let bytes = &map[..map.len().min(log.segment_bytes as usize)];
    let (mut step, record_at) = look(bytes, at as usize, pos as u64, entry_header, check_crc);
    touch(bytes, at as usize, step.size as usize);
    if map.is_spoiled() {
        let head = entry_header + BLANK;
        let size = if step.kind == Kind::Filler {
            0
        } else {
            step.size as usize
        };
        if map.spoils(at as usize, size.max(head)) {
            let size = if map.spoils(at as usize, head) { 0 } else { step.size };
            step = Step {
                kind: Kind::Damage,
                pos: pos as u64,
                size,
                why: Why::Unreadable,
                has_entry: false,
            };
        }
    }
    Ok(Seen {
        step,
        map: Some(map),
        at: at as usize,
        record_at,
    })
}

/// Reads a byte of each page of an item, so that it is known whether all of it can be read.
fn touch(bytes: &[u8], at: usize, size: usize) {
    let Some(item) = bytes.get(at..at + size) else { return };
    let sum = item.iter().step_by(PAGE).fold(0, |sum, byte| sum ^ byte);
    std::hint::black_box(sum ^ item.last().copied().unwrap_or(0));
}

/// The first sound record behind `pos`. It reads all written data up to there.
pub fn resync(log: &mut Files, pos: u64, entry_header: usize) -> PyResult<Option<Seen>> {
    for start in log.starts.clone() {
        if start + log.segment_bytes <= pos {
            continue;
        }
        let offset = (pos + 1 + entry_header as u64 + 4).saturating_sub(start);
        log.fetch(start, offset.min(log.segment_bytes), log.segment_bytes)?;
        for (begin, end) in log.data_parts(start, offset)? {
            let map = log.map(start)?;
            let mut at = begin as usize;
            while let Some(found) = next_magic(&map, at, end as usize) {
                if let Some(place) = found.checked_sub(entry_header + 4) {
                    let seen = step_at(log, (start + place as u64) as i64, entry_header, true)?;
                    if seen.step.kind == Kind::Record {
                        return Ok(Some(seen));
                    }
                }
                at = found + 1;
            }
        }
    }
    Ok(None)
}

/// next_sound_record(log, pos, entry_header_bytes) -> where the first sound record (or its entry) behind `pos` begins
#[pyfunction]
fn next_sound_record(py: Python<'_>, log: FilesOf, pos: u64, entry_header_bytes: usize) -> PyResult<Option<u64>> {
    py.detach(|| Ok(resync(&mut Files::of(log), pos, entry_header_bytes)?.map(|seen| seen.step.pos)))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(next_sound_record, module)?)
}

/// The size that an item states, if it can be one.
fn claimed(bytes: &[u8], at: usize, entry_header: usize) -> Option<u64> {
    let head = bytes.get(at..at + BLANK)?;
    let (first, second) = (int(head, 0), int(head, 4));
    let size = if entry_header != 0 && !is_record_magic(second) {
        second
    } else {
        first
    };
    u64::try_from(size)
        .ok()
        .filter(|&size| at as u64 + size <= bytes.len() as u64)
}

fn step(kind: Kind, pos: u64, why: Why) -> Step {
    Step {
        kind,
        pos,
        size: 0,
        why,
        has_entry: false,
    }
}

/// The item at `at` of a segment, and where its record begins.
fn look(bytes: &[u8], at: usize, pos: u64, entry_header: usize, check_crc: bool) -> (Step, usize) {
    let left = (bytes.len() - at) as u64;
    let damage = |why| (step(Kind::Damage, pos, why), at);
    let Some(head) = bytes.get(at..at + BLANK) else {
        return damage(Why::NoRoomForFiller(left));
    };
    let (first, second) = (int(head, 0), int(head, 4));
    if first == 0 && second == 0 {
        return (step(Kind::End, pos, Why::Unwritten), at);
    }
    if second == BLANK_MAGIC {
        return (filler(pos, first, left), at);
    }
    if entry_header == 0 || is_record_magic(second) {
        return (record_step(bytes, at, pos, 0, first, check_crc, false), at);
    }
    if first == LEDGER_FILLER {
        return (filler(pos, second, left), at);
    }
    let Some(header) = bytes.get(at..at + HEADER) else {
        return damage(Why::NoRoomForEntry(left));
    };
    let (body_crc, chain) = (int(header, 40), int(header, 36));
    let body = int(header, 44);
    if first != 1 {
        return damage(Why::EntryMagic(first));
    }
    if body < 0 || i64::from(second) != HEADER as i64 + i64::from(body) {
        return damage(Why::EntrySize { size: second, body });
    }
    if long(header, 24) != pos as i64 {
        return damage(Why::EntryPlace(long(header, 24)));
    }
    let size = second as u64;
    let flawed = |why| {
        let step = Step {
            kind: Kind::Damage,
            pos,
            size,
            why,
            has_entry: true,
        };
        (step, at)
    };
    if chain == 0 && body_crc != 0 {
        return flawed(Why::EntryBodyCrcAlone);
    }
    if check_crc && chain != 0 && size <= left {
        let body = &bytes[at + HEADER..at + size as usize];
        if crc32fast::hash(body) != body_crc as u32 {
            return flawed(Why::EntryBodyCrc);
        }
    }
    let mut found = if body == 0 {
        Step {
            size,
            ..step(Kind::Empty, pos, Why::None)
        }
    } else {
        record_step(bytes, at, pos, HEADER, second, check_crc, chain != 0)
    };
    found.has_entry = true;
    (found, at + HEADER)
}

fn filler(pos: u64, size: i32, left: u64) -> Step {
    if i64::from(size) != left as i64 {
        return step(Kind::Damage, pos, Why::Filler { size, left });
    }
    Step {
        size: left,
        ..step(Kind::Filler, pos, Why::None)
    }
}

/// `is_covered`: the CRC of an entry covers all of the record.
fn record_step(bytes: &[u8], at: usize, pos: u64, header: usize, size: i32, check_crc: bool, is_covered: bool) -> Step {
    let left = (bytes.len() - at) as u64;
    if size <= header as i32 || size as u64 > left {
        return step(Kind::Damage, pos, Why::Size { size, left });
    }
    let end = at + size as usize;
    let (data, record_pos) = (&bytes[at + header..end], pos + header as u64);
    let flawed = |why| Step {
        size: size as u64,
        ..step(Kind::Damage, pos, why)
    };
    let record = match Record::parse(data, record_pos) {
        Ok(record) if !check_crc || record.body_crc_holds() => record,
        _ => return flawed(why_not(data, check_crc, record_pos)),
    };
    if !is_covered && record.ends_in_zeros() {
        let behind = bytes.get(end..end + BLANK);
        if behind.is_none_or(|behind| behind.iter().all(|&byte| byte == 0)) {
            return flawed(Why::Zeros);
        }
    }
    Step {
        size: size as u64,
        ..step(Kind::Record, pos, Why::None)
    }
}

/// Why these bytes are not a record that lies at `pos`.
fn why_not(data: &[u8], check_crc: bool, pos: u64) -> Why {
    match fields(data, check_crc) {
        Err(why) => why,
        Ok(()) if long(data, 28) != pos as i64 => Why::Place(long(data, 28)),
        Ok(()) => Why::None,
    }
}

fn fields(data: &[u8], check_crc: bool) -> Result<(), Why> {
    if data.len() < HEAD {
        return Err(Why::Torn);
    }
    let (size, magic) = (int(data, 0), int(data, 4));
    if !is_record_magic(magic) {
        return Err(Why::Magic(magic));
    }
    if size < HEAD as i32 || size as usize > data.len() {
        return Err(Why::RecordSize { size, left: data.len() });
    }
    let mut fields = Fields {
        data: &data[..size as usize],
        at: HEAD,
    };
    let flag = int(data, 36);
    let host = |bit| if flag & bit != 0 { 20 } else { 8 };
    fields.take(host(0x10))?;
    fields.take(8)?;
    fields.take(host(0x20))?;
    fields.take(12)?;
    let body_bytes = int(fields.take(4)?, 0);
    let body = fields.take(i64::from(body_bytes))?;
    let topic_bytes = if magic == RECORD_MAGIC {
        i64::from(fields.take(1)?[0] as i8)
    } else {
        fields.short()?
    };
    fields.take(topic_bytes)?;
    let properties_bytes = fields.short()?;
    fields.take(properties_bytes)?;
    if fields.at != size as usize {
        return Err(Why::Fields { taken: fields.at, size });
    }
    let is = (crc32fast::hash(body) & 0x7FFF_FFFF) as i32;
    if check_crc && !body.is_empty() && is != int(data, 8) {
        return Err(Why::BodyCrc { is, says: int(data, 8) });
    }
    Ok(())
}

struct Fields<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take(&mut self, size: i64) -> Result<&'a [u8], Why> {
        let left = self.data.len() - self.at;
        if size < 0 || size > left as i64 {
            return Err(Why::Field { size, left });
        }
        let part = &self.data[self.at..self.at + size as usize];
        self.at += size as usize;
        Ok(part)
    }

    fn short(&mut self) -> Result<i64, Why> {
        let bytes = self.take(2)?;
        Ok(i64::from(i16::from_be_bytes([bytes[0], bytes[1]])))
    }
}
