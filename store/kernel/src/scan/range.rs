//! Reads one range of one log file, piece by piece, and reports everything in it: records and damage.
//!
//! This is for readers outside of the broker. The broker may be writing the file, so the file is read and not mapped (a
//! truncated map would cause a signal), and nothing at or after the range's end is read. Within the range every byte
//! counts: a range begins with a record and ends with a record, or with a filler that reaches the file's end;
//! everything else is damage with a place and a size. After damage without a plausible size the reader continues at the
//! next record that names its own position.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use memchr::memmem;

use crate::entry::{continues, EntryHeader};
use crate::fault::{At, Fault, Outcome};
use crate::gentle::GentleFile;
use crate::guard::FILL;
use crate::record::{int, is_record_magic, item, long, Bad, Item, Record, BLANK_MAGIC, LEDGER_FILLER};
use crate::scan::crc_holds;

/// Bytes of one read: small enough to stay in the processor's cache between the system's copy and the check.
const PIECE_BYTES: usize = 1 << 19;
/// The smallest unit that a disk fails to return; read separately after a larger read failed.
const BLOCK_BYTES: usize = 4096;
/// At least the fixed part that is needed before a size is plausible.
const HEAD_BYTES: usize = 128;
/// The first three bytes of both record magics.
const MAGIC_START: [u8; 3] = [0xDA, 0xA3, 0x20];

/// Positions in the log: the file's first byte and the one after its last, and the part of it to read.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    pub file_start: u64,
    pub file_end: u64,
    pub begin: u64,
    pub end: u64,
    pub entry_header: usize,
    pub check_crc: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub pos: u64,
    pub size: u64,
    pub reason: &'static str,
}

pub enum Found<'r, 'a> {
    /// `pos`: of the record itself, which in dledger's layout lies 48 bytes into its entry.
    Record {
        record: &'r Record<'a>,
        pos: u64,
    },
    Damage(Damage),
}

pub struct RangeReader {
    file: Source,
    path: PathBuf,
    stretch: Stretch,
    window: Vec<u8>,
    window_at: u64,
    pos: u64,
    /// Positions [begin, end) that the disk did not return; they contain `FILL`.
    unread: Vec<(u64, u64)>,
    /// Check the CRCs of entries, too; the chain CRC of the previous entry, if it is known.
    entries: bool,
    chain: Option<u32>,
    /// Bytes that were read from the file.
    read: u64,
}

enum Source {
    Cached(File),
    Gentle(GentleFile),
}

enum Flow {
    /// The item at `pos` needs this many bytes in the window.
    More(usize),
    /// No sound record at `pos`, and its size is not plausible.
    Lost(Bad),
    Break,
    End,
}

impl RangeReader {
    pub fn open(path: &Path, stretch: Stretch) -> Outcome<RangeReader> {
        Ok(RangeReader {
            file: Source::Cached(File::open(path).at(path)?),
            path: path.to_owned(),
            stretch,
            window: vec![],
            window_at: stretch.begin,
            pos: stretch.begin,
            unread: vec![],
            entries: false,
            chain: None,
            read: 0,
        })
    }

    /// Reads past the page cache, and checks all fields of entries.
    pub fn scrubbing(path: &Path, stretch: Stretch) -> Outcome<RangeReader> {
        let mut reader = RangeReader::open(path, stretch)?;
        reader.file = Source::Gentle(GentleFile::open(path).at(path)?);
        reader.entries = true;
        Ok(reader)
    }

    pub fn is_direct(&self) -> bool {
        matches!(&self.file, Source::Gentle(file) if file.is_direct())
    }

    /// Bytes that were read from the file so far.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// The position up to which everything was reported.
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Passes the items of the range to `each` until it breaks. Returns whether the range is done.
    pub fn read(&mut self, mut each: impl FnMut(Found<'_, '_>) -> ControlFlow<()>) -> Outcome<bool> {
        loop {
            match self.read_window(&mut each) {
                Flow::End => return Ok(true),
                Flow::Break => return Ok(false),
                Flow::More(bytes) => self.fill(bytes)?,
                Flow::Lost(bad) => {
                    let next = self.next_sound()?;
                    let (pos, size) = (self.pos, next - self.pos);
                    (self.pos, self.chain) = (next, None);
                    let reason = bad.text();
                    if each(Found::Damage(Damage { pos, size, reason })).is_break() {
                        return Ok(self.pos >= self.stretch.end);
                    }
                }
            }
        }
    }

    fn read_window(&mut self, each: &mut impl FnMut(Found<'_, '_>) -> ControlFlow<()>) -> Flow {
        let Stretch {
            file_end,
            end,
            entry_header,
            check_crc,
            ..
        } = self.stretch;
        let window_end = self.window_at + self.window.len() as u64;
        loop {
            if self.pos >= end {
                return Flow::End;
            }
            let left = (end - self.pos) as usize;
            let seen = window_end.saturating_sub(self.pos) as usize;
            if seen < left.min(HEAD_BYTES) {
                return Flow::More(HEAD_BYTES);
            }
            let at = (self.pos - self.window_at) as usize;
            let mut chain = self.chain;
            let (bad, step) = match item(&self.window, self.window_at, at, entry_header) {
                Item::Record {
                    record,
                    at: record_at,
                    step,
                } => {
                    let read = self.was_read(self.pos, step);
                    let entry = match self.entries && record_at > at {
                        true => entry_flaw(&self.window[at..at + step], &mut chain),
                        false => None,
                    };
                    if entry_header == 0 && record.ends_in_zeros() {
                        if seen < left.min(step + 8) {
                            return Flow::More(step + 8);
                        }
                        if left > step && record.is_torn(&self.window, at) {
                            return Flow::Lost(Bad::Torn);
                        }
                    }
                    let holds = || crc_holds(&self.window[at..], &record, record_at - at);
                    if read && entry.is_none() && (!check_crc || holds()) {
                        self.chain = chain;
                        self.pos += step as u64;
                        let pos = self.window_at + record_at as u64;
                        if each(Found::Record { record: &record, pos }).is_break() {
                            return Flow::Break;
                        }
                        continue;
                    }
                    (entry.unwrap_or(Bad::Crc), Some(step))
                }
                Item::Empty { step } if self.was_read(self.pos, step) => {
                    if self.entries {
                        let _ = entry_flaw(&self.window[at..at + step], &mut chain);
                        self.chain = chain;
                    }
                    self.pos += step as u64;
                    continue;
                }
                Item::Filler => {
                    if filler_bytes(&self.window[at..], entry_header) as u64 == file_end - self.pos && end == file_end {
                        self.pos = end;
                        continue;
                    }
                    (Bad::Size, None)
                }
                Item::Bad {
                    bad: Bad::Torn,
                    step: None,
                } if seen < left => match wanted(&self.window[at..], self.pos, entry_header) {
                    Some(bytes) if bytes > seen && bytes <= left => return Flow::More(bytes),
                    _ => (Bad::Torn, None),
                },
                Item::Empty { step } => (Bad::Unreadable, Some(step)),
                Item::Bad { bad, step } => (bad, step),
            };
            let bad = if self.was_read(self.pos, step.unwrap_or(HEAD_BYTES)) {
                bad
            } else {
                Bad::Unreadable
            };
            let Some(step) = step else { return Flow::Lost(bad) };
            if step < left && seen < left.min(step + 8) {
                return Flow::More(step + 8);
            }
            if step > left || step < left && !follows(&self.window[at + step..], entry_header) {
                return Flow::Lost(bad);
            }
            self.chain = None;
            let damage = Damage {
                pos: self.pos,
                size: step as u64,
                reason: bad.text(),
            };
            self.pos += step as u64;
            if each(Found::Damage(damage)).is_break() {
                return Flow::Break;
            }
        }
    }

    /// Makes the window begin at `pos` and have at least `bytes`, or all that is left.
    fn fill(&mut self, bytes: usize) -> Outcome<()> {
        let left = self.stretch.end - self.pos;
        let bytes = left.min(bytes.max(PIECE_BYTES) as u64) as usize;
        let mut window = std::mem::take(&mut self.window);
        window.resize(bytes, 0);
        self.window_at = self.pos;
        self.read_at(self.pos, &mut window)?;
        self.window = window;
        Ok(())
    }

    /// Fills the buffer; where the disk returns an error, with `FILL`, which is recorded.
    fn read_at(&mut self, pos: u64, buffer: &mut [u8]) -> Outcome<()> {
        match self.read_all_at(pos, buffer) {
            Err(Fault::Io { error, .. }) if error.raw_os_error() == Some(libc::EIO) => {}
            done => return done,
        }
        let mut done = 0;
        while done < buffer.len() {
            let here = pos + done as u64;
            let in_block = BLOCK_BYTES - (here - self.stretch.file_start) as usize % BLOCK_BYTES;
            let size = in_block.min(buffer.len() - done);
            match self.read_all_at(here, &mut buffer[done..done + size]) {
                Err(Fault::Io { error, .. }) if error.raw_os_error() == Some(libc::EIO) => {
                    buffer[done..done + size].fill(FILL);
                    self.note_unread(here, here + size as u64);
                }
                read => read?,
            }
            done += size;
        }
        Ok(())
    }

    fn note_unread(&mut self, begin: u64, end: u64) {
        match self.unread.last_mut().filter(|last| last.0 <= begin && begin <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => self.unread.push((begin, end)),
        }
    }

    /// Whether the disk returned all these bytes.
    fn was_read(&self, pos: u64, size: usize) -> bool {
        let end = pos + size as u64;
        self.unread.iter().all(|&(from, to)| end <= from || to <= pos)
    }

    fn read_all_at(&mut self, pos: u64, buffer: &mut [u8]) -> Outcome<()> {
        let at = pos - self.stretch.file_start;
        self.read += buffer.len() as u64;
        let read = match &mut self.file {
            Source::Cached(file) => file.read_exact_at(buffer, at),
            Source::Gentle(file) => file.read_exact_at(buffer, at),
        };
        match read {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                let bytes = std::fs::metadata(&self.path).at(&self.path)?.len();
                let reason = format!("a file of {bytes} bytes ends within what is to be read");
                Err(Fault::damage(&self.path, at, reason))
            }
            done => done.at(&self.path),
        }
    }

    /// Where the next record begins that names its own position and whose body's CRC holds; otherwise the range's end.
    fn next_sound(&mut self) -> Outcome<u64> {
        let (end, header) = (self.stretch.end, self.stretch.entry_header);
        let finder = memmem::Finder::new(&MAGIC_START);
        let mut at = self.pos + 1;
        let mut piece = vec![];
        while at < end {
            piece.resize((end - at).min(PIECE_BYTES as u64) as usize, 0);
            self.read_at(at, &mut piece)?;
            for hit in finder.find_iter(&piece) {
                // A log that dledger continued has plain records before its entries.
                for before in [4 + header as u64, 4] {
                    let candidate = (at + hit as u64).saturating_sub(before);
                    if candidate > self.pos && self.is_sound(candidate)? {
                        return Ok(candidate);
                    }
                }
            }
            if (piece.len() as u64) == end - at {
                break;
            }
            at += (piece.len() - (MAGIC_START.len() - 1)) as u64;
        }
        Ok(end)
    }

    fn is_sound(&mut self, pos: u64) -> Outcome<bool> {
        let left = (self.stretch.end - pos) as usize;
        let mut bytes = vec![0; left.min(HEAD_BYTES)];
        self.read_at(pos, &mut bytes)?;
        match wanted(&bytes, pos, self.stretch.entry_header) {
            Some(wanted) if wanted <= left => bytes.resize(left.min(wanted + 8), 0),
            _ => return Ok(false),
        }
        self.read_at(pos, &mut bytes)?;
        Ok(match item(&bytes, pos, 0, self.stretch.entry_header) {
            Item::Record { record, at, step } => {
                let torn = self.stretch.entry_header == 0 && left > step && record.is_torn(&bytes, at);
                !torn && crc_holds(&bytes, &record, at) && self.was_read(pos, step)
            }
            _ => false,
        })
    }
}

/// Checks the chain CRC of an entry's header. `chain`: of the previous entry, if it is known; then of this one.
fn entry_flaw(bytes: &[u8], chain: &mut Option<u32>) -> Option<Bad> {
    let header = EntryHeader::read(bytes).ok()?;
    let before = chain.replace(header.chain).filter(|_| header.chain != 0);
    let sound = header.chain == 0 || before.is_none_or(|before| continues(bytes, before));
    (!sound).then_some(Bad::Entry)
}

/// Size of the record or entry at the start of `bytes`, if it names its own position: otherwise its size does not
/// justify a large read.
fn wanted(bytes: &[u8], pos: u64, entry_header: usize) -> Option<usize> {
    if bytes.len() < 48 {
        return None;
    }
    let (first, second) = (int(bytes, 0), int(bytes, 4));
    let (size, named) = if entry_header == 0 || is_record_magic(second) {
        (first, long(bytes, 28))
    } else {
        (second, long(bytes, 24))
    };
    (named == pos as i64).then(|| usize::try_from(size).ok()).flatten()
}

fn filler_bytes(bytes: &[u8], entry_header: usize) -> i32 {
    if entry_header != 0 && int(bytes, 4) != BLANK_MAGIC {
        int(bytes, 4)
    } else {
        int(bytes, 0)
    }
}

/// A possible successor of a record: so the size that led here is right.
fn follows(bytes: &[u8], entry_header: usize) -> bool {
    let Some(head) = bytes.get(..8) else { return false };
    let magic = int(head, 4);
    let entry = entry_header != 0 && matches!(int(head, 0), LEDGER_FILLER | 1);
    is_record_magic(magic) || magic == BLANK_MAGIC || entry
}
