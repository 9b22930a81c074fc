//! One entry of dledger's layout: a header of 48 bytes, and a body that is one CommitLog record.
//!
//! ```text
//! at  size  field                                  at  size  field
//!  0    4   magic 1                                32    4   kind (dledger: "channel", reserved, 0)
//!  4    4   size: 48 + body                        36    4   chain CRC
//!  8    8   index, from 0, without holes           40    4   body CRC: CRC-32 of the body, all 32 bits
//! 16    8   term                                   44    4   bytes of the body
//! 24    8   pos: where the entry lies in the log
//! ```
//!
//! The chain CRC is the CRC-32 of the header's 48 bytes, computed with the chain CRC of the previous entry in its own
//! field (0 for the first entry, and after an entry that has no chain CRC); a result of 0 is written as 1. So one
//! number covers everything up to an entry: two logs with equal chain CRCs are equal. dledger writes 0 into both CRCs;
//! an entry whose chain CRC is 0 has no chain CRC, and its record is checked separately. After an entry with a chain
//! CRC no entry may be without: otherwise damage that zeroed it would pass.
//!
//! An entry never crosses a segment and leaves 8 bytes after it: otherwise a filler closes the segment: -1 (4), the
//! bytes left (4). The bytes after these eight are not part of the log. Source: dledger 0.2.2, DLedgerEntryCoder and
//! DLedgerMmapFileStore. Fixed: it is on disks.

use crate::record::{int, is_record_magic, long, Bad, Record, BLANK_MAGIC, LEDGER_FILLER, UNREADABLE};

pub const ENTRY_HEADER: usize = 48;
pub const ENTRY_MAGIC: i32 = 1;
/// One unit of the index: magic, pos, size, index, term.
pub const INDEX_UNIT: usize = 32;
/// Bytes that stay free after an entry.
pub const SPARE: u64 = 8;

/// What the next entry of a log has to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub next_index: u64,
    /// Of the last entry; -1: the log has no entry.
    pub term: i64,
    /// Of the last entry; 0: it has no chain CRC.
    pub chain: u32,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            next_index: 0,
            term: -1,
            chain: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    pub size: u32,
    pub index: u64,
    pub term: i64,
    pub pos: u64,
    pub kind: i32,
    pub chain: u32,
    pub body_crc: u32,
}

/// Why bytes are not the expected entry. The words are part of the interface: logs and tools show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Eight zero bytes: nothing was written here, the usual end of a log.
    Unwritten,
    Torn,
    Magic,
    Size,
    Index,
    Term,
    Place,
    Chain,
    Unchained,
    Body,
    Filler,
    /// The disk did not return the bytes.
    Unreadable,
    Record(Bad),
}

impl Flaw {
    pub fn text(self) -> &'static str {
        match self {
            Flaw::Unwritten => "unwritten",
            Flaw::Torn => "goes beyond the end",
            Flaw::Magic => "bad entry magic",
            Flaw::Size => "bad entry size",
            Flaw::Index => "index does not follow",
            Flaw::Term => "term below the one before",
            Flaw::Place => "entry lies elsewhere",
            Flaw::Chain => "chain CRC differs",
            Flaw::Unchained => "no CRC behind an entry that has one",
            Flaw::Body => "body CRC differs",
            Flaw::Filler => "bad filler",
            Flaw::Unreadable => UNREADABLE,
            Flaw::Record(bad) => bad.text(),
        }
    }
}

impl EntryHeader {
    /// The header's bytes, with a chain CRC that continues `previous`.
    pub fn sealed(mut self, previous: u32) -> (Self, [u8; ENTRY_HEADER]) {
        let mut bytes = [0; ENTRY_HEADER];
        bytes[0..4].copy_from_slice(&ENTRY_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.size.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.index.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.term.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.pos.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.kind.to_be_bytes());
        bytes[36..40].copy_from_slice(&previous.to_be_bytes());
        bytes[40..44].copy_from_slice(&self.body_crc.to_be_bytes());
        bytes[44..48].copy_from_slice(&(self.size - ENTRY_HEADER as u32).to_be_bytes());
        self.chain = chain_crc(&bytes);
        bytes[36..40].copy_from_slice(&self.chain.to_be_bytes());
        (self, bytes)
    }

    /// Parses the header at the start of `bytes`: checks only that its two sizes agree.
    pub fn read(bytes: &[u8]) -> Result<EntryHeader, Flaw> {
        if bytes.len() < 8 {
            return Err(Flaw::Torn);
        }
        let (magic, size) = (int(bytes, 0), int(bytes, 4));
        if magic == 0 && size == 0 {
            return Err(Flaw::Unwritten);
        }
        if magic != ENTRY_MAGIC {
            return Err(Flaw::Magic);
        }
        if size < ENTRY_HEADER as i32 {
            return Err(Flaw::Size);
        }
        if bytes.len() < ENTRY_HEADER {
            return Err(Flaw::Torn);
        }
        if i64::from(int(bytes, 44)) != i64::from(size) - ENTRY_HEADER as i64 {
            return Err(Flaw::Size);
        }
        Ok(EntryHeader {
            size: size as u32,
            index: long(bytes, 8) as u64,
            term: long(bytes, 16),
            pos: long(bytes, 24) as u64,
            kind: int(bytes, 32),
            chain: int(bytes, 36) as u32,
            body_crc: int(bytes, 40) as u32,
        })
    }

    /// The unit of the index that belongs to this entry.
    pub fn unit(&self) -> [u8; INDEX_UNIT] {
        let mut unit = [0; INDEX_UNIT];
        unit[0..4].copy_from_slice(&ENTRY_MAGIC.to_be_bytes());
        unit[4..12].copy_from_slice(&self.pos.to_be_bytes());
        unit[12..16].copy_from_slice(&self.size.to_be_bytes());
        unit[16..24].copy_from_slice(&self.index.to_be_bytes());
        unit[24..32].copy_from_slice(&self.term.to_be_bytes());
        unit
    }

    pub fn link(&self) -> Link {
        Link {
            next_index: self.index + 1,
            term: self.term,
            chain: self.chain,
        }
    }
}

/// The chain CRC of a header whose chain field holds the one of the previous entry.
fn chain_crc(header: &[u8; ENTRY_HEADER]) -> u32 {
    crc32fast::hash(header).max(1)
}

/// What lies at a place of a segment, checked.
pub enum Found<'a> {
    /// `record`: None for an entry without a body.
    Entry {
        header: EntryHeader,
        record: Option<Record<'a>>,
    },
    Filler,
}

/// Checks what lies at `pos`, where `bytes` begins; `bytes` may continue after it. `left`: bytes to the segment's end.
/// `chained`: the link's chain CRC is known and must be continued.
pub fn check<'a>(bytes: &'a [u8], pos: u64, left: u64, link: &Link, chained: bool) -> Result<Found<'a>, Flaw> {
    if bytes.len() >= 8 && int(bytes, 0) == LEDGER_FILLER {
        let right = i64::from(int(bytes, 4)) == left as i64;
        return if right { Ok(Found::Filler) } else { Err(Flaw::Filler) };
    }
    let header = EntryHeader::read(bytes)?;
    if u64::from(header.size) + SPARE > left {
        return Err(Flaw::Size);
    }
    if header.pos != pos {
        return Err(Flaw::Place);
    }
    if header.index != link.next_index {
        return Err(Flaw::Index);
    }
    if header.term < link.term.max(0) {
        return Err(Flaw::Term);
    }
    let whole = bytes.get(..header.size as usize).ok_or(Flaw::Torn)?;
    let body = &whole[ENTRY_HEADER..];
    if header.chain != 0 {
        if chained && !continues(whole, link.chain) {
            return Err(Flaw::Chain);
        }
        if crc32fast::hash(body) != header.body_crc {
            return Err(Flaw::Body);
        }
    } else if header.body_crc != 0 || (chained && link.chain != 0) {
        return Err(Flaw::Unchained);
    }
    if body.is_empty() {
        return Ok(Found::Entry { header, record: None });
    }
    let record = Record::parse(body, pos + ENTRY_HEADER as u64).map_err(|(bad, _)| Flaw::Record(bad))?;
    if record.bytes().len() != body.len() {
        return Err(Flaw::Record(Bad::Length));
    }
    if header.chain == 0 && !record.body_crc_holds() {
        return Err(Flaw::Record(Bad::Crc));
    }
    Ok(Found::Entry {
        header,
        record: Some(record),
    })
}

/// Checks that the record at `at` of `segment`, which begins at `start` of the log, has the stored bytes. In a log of
/// entries the CRC of its entry decides: it also covers topic, properties, queue and times, which the CRC of a body
/// does not cover. A log that was begun without dledger has plain records in its older segments.
#[inline]
pub fn record_holds(segment: &[u8], start: u64, at: usize, record: &Record<'_>, entry_header: usize) -> bool {
    if entry_header == 0 {
        return record.body_crc_holds() && !record.is_torn(segment, at);
    }
    let header = at.checked_sub(ENTRY_HEADER).map(|begin| &segment[begin..at]);
    match header.map(|bytes| (EntryHeader::read(bytes), bytes)) {
        Some((Ok(header), bytes))
            if header.size as usize == ENTRY_HEADER + record.bytes().len()
                && header.pos + ENTRY_HEADER as u64 == start + at as u64 =>
        {
            body_holds(bytes, record)
        }
        _ => is_plain(segment) && record.body_crc_holds(),
    }
}

/// The same for a record whose entry begins with the sound `header`. An entry without a chain CRC, written by dledger,
/// has no body CRC either.
#[inline]
pub fn body_holds(header: &[u8], record: &Record<'_>) -> bool {
    let (chain, crc) = (int(header, 36), int(header, 40) as u32);
    if chain != 0 {
        crc32fast::hash(record.bytes()) == crc
    } else {
        crc == 0 && record.body_crc_holds()
    }
}

/// The segment begins with a record, or with the filler after the last record, and not with an entry.
#[cold]
fn is_plain(segment: &[u8]) -> bool {
    segment.len() >= 8 && (is_record_magic(int(segment, 4)) || int(segment, 4) == BLANK_MAGIC)
}

/// Whether the entry's chain CRC continues `previous`.
pub fn continues(entry: &[u8], previous: u32) -> bool {
    let mut bytes: [u8; ENTRY_HEADER] = entry[..ENTRY_HEADER].try_into().expect("a whole header");
    let said = u32::from_be_bytes(bytes[36..40].try_into().expect("four bytes"));
    bytes[36..40].copy_from_slice(&previous.to_be_bytes());
    chain_crc(&bytes) == said
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(body: &[u8]) -> EntryHeader {
        EntryHeader {
            size: (ENTRY_HEADER + body.len()) as u32,
            index: 4,
            term: 2,
            pos: 1024,
            kind: 0,
            chain: 0,
            body_crc: crc32fast::hash(body),
        }
    }

    #[test]
    fn a_written_header_is_read_back() {
        let (sealed, bytes) = header(b"body").sealed(7);
        assert_eq!(EntryHeader::read(&bytes), Ok(sealed));
        assert!(continues(&bytes, 7) && !continues(&bytes, 8));
        assert_ne!(sealed.chain, 0);
    }

    #[test]
    fn header_and_unit_equal_those_of_dledger() {
        // Written by dledger 0.2.2: entry 4, at 1024, and its index unit.
        let mut plain = header(&[0; 220]);
        (plain.term, plain.body_crc) = (0, 0);
        let mut bytes = plain.sealed(0).1;
        bytes[36..40].fill(0);
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            hex(&bytes),
            "000000010000010c000000000000000400000000000000000000000000000400000000000000000000000000000000dc"
        );
        assert_eq!(
            hex(&plain.unit()),
            "0000000100000000000004000000010c00000000000000040000000000000000"
        );
    }

    #[test]
    fn an_entry_must_continue_the_link_before_it() {
        let (sealed, bytes) = header(b"").sealed(9);
        let link = Link {
            next_index: 4,
            term: 2,
            chain: 9,
        };
        let flaw = |bytes: &[u8], link: Link, left| check(bytes, 1024, left, &link, true).err();
        assert_eq!(flaw(&bytes, link, 56), None);
        assert_eq!(flaw(&bytes, link, 55), Some(Flaw::Size));
        assert_eq!(flaw(&bytes, Link { chain: 8, ..link }, 56), Some(Flaw::Chain));
        assert_eq!(flaw(&bytes, Link { term: 3, ..link }, 56), Some(Flaw::Term));
        assert_eq!(flaw(&bytes, Link { next_index: 5, ..link }, 56), Some(Flaw::Index));
        assert_eq!(
            flaw(&bytes, Link { next_index: 3, ..link }, 56),
            Some(Flaw::Index),
            "a hole"
        );
        assert_eq!(flaw(&bytes[..47], link, 56), Some(Flaw::Torn));
        assert_eq!(flaw(&[0; 60], link, 60), Some(Flaw::Unwritten));
        let mut without = bytes;
        without[36..44].fill(0);
        assert_eq!(flaw(&without, link, 56), Some(Flaw::Unchained));
        assert_eq!(flaw(&without, Link { chain: 0, ..link }, 56), None);
        assert_eq!(sealed.link().chain, sealed.chain);
    }

    #[test]
    fn each_flipped_bit_of_a_header_is_found() {
        let (_, bytes) = header(b"").sealed(9);
        let link = Link {
            next_index: 4,
            term: 2,
            chain: 9,
        };
        for bit in 0..ENTRY_HEADER * 8 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&wrong, 1024, 4096, &link, true).is_err(), "bit {bit}");
        }
    }
}
