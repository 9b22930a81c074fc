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
const PIECE_BYTES: usize = 1 << 18;
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

pub enum Found<'a> {
    /// `pos`: of the record itself, which in dledger's layout lies 48 bytes into its entry.
    Record {
        record: Record<'a>,
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
    /// Damage up to `pos` that was not passed on yet.
    lost: Option<Damage>,
    /// Bytes that were read from the file.
    read: u64,
}

enum Source {
    Cached(File),
    Gentle(GentleFile),
}

/// Why a window has no further items.
enum Stop {
    /// The item at `pos` needs this many bytes in the window.
    More(usize),
    /// No sound record at `pos`, and its size is not plausible.
    Lost(Bad),
    End,
}

/// The items of a range that lie in memory at the same time.
pub struct Window<'a> {
    bytes: &'a [u8],
    /// Position of its first byte.
    begin: u64,
    stretch: &'a Stretch,
    unread: &'a [(u64, u64)],
    entries: bool,
    pos: &'a mut u64,
    chain: &'a mut Option<u32>,
    lost: &'a mut Option<Damage>,
    stop: Option<Stop>,
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
            lost: None,
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
    pub fn read(&mut self, mut each: impl FnMut(Found<'_>) -> ControlFlow<()>) -> Outcome<bool> {
        self.read_windows(|window| window.try_for_each(&mut each))
    }

    /// Passes the windows of the range to `each` until it breaks. Returns whether the range is done. Items that `each`
    /// did not take from its window are in the next one.
    pub fn read_windows(&mut self, mut each: impl FnMut(&mut Window<'_>) -> ControlFlow<()>) -> Outcome<bool> {
        loop {
            let mut window = Window {
                bytes: &self.window,
                begin: self.window_at,
                stretch: &self.stretch,
                unread: &self.unread,
                entries: self.entries,
                pos: &mut self.pos,
                chain: &mut self.chain,
                lost: &mut self.lost,
                stop: None,
            };
            let flow = each(&mut window);
            let stop = window.stop;
            if flow.is_break() {
                return Ok(false);
            }
            match stop {
                Some(Stop::End) => return Ok(true),
                Some(Stop::More(bytes)) => self.fill(bytes)?,
                Some(Stop::Lost(bad)) => {
                    let next = self.next_sound()?;
                    let (pos, size) = (self.pos, next - self.pos);
                    (self.pos, self.chain) = (next, None);
                    let reason = bad.text();
                    self.lost = Some(Damage { pos, size, reason });
                }
                None => {}
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
                !torn && crc_holds(&bytes, &record, at) && was_read(&self.unread, pos, step)
            }
            _ => false,
        })
    }
}

impl<'a> Iterator for Window<'a> {
    type Item = Found<'a>;

    #[inline]
    fn next(&mut self) -> Option<Found<'a>> {
        if self.stop.is_some() {
            return None;
        }
        if let Some(damage) = self.lost.take() {
            return Some(Found::Damage(damage));
        }
        match self.item() {
            Ok(found) => Some(found),
            Err(stop) => {
                self.stop = Some(stop);
                None
            }
        }
    }
}

impl<'a> Window<'a> {
    /// The next record or damage.
    #[inline]
    fn item(&mut self) -> Result<Found<'a>, Stop> {
        let Stretch {
            file_end,
            end,
            entry_header,
            check_crc,
            ..
        } = *self.stretch;
        let window_end = self.begin + self.bytes.len() as u64;
        loop {
            let pos = *self.pos;
            if pos >= end {
                return Err(Stop::End);
            }
            let left = (end - pos) as usize;
            let seen = window_end.saturating_sub(pos) as usize;
            if seen < left.min(HEAD_BYTES) {
                return Err(Stop::More(HEAD_BYTES));
            }
            let at = (pos - self.begin) as usize;
            let mut chain = *self.chain;
            let (bad, step) = match item(self.bytes, self.begin, at, entry_header) {
                Item::Record {
                    record,
                    at: record_at,
                    step,
                } => {
                    let read = was_read(self.unread, pos, step);
                    let entry = match self.entries && record_at > at {
                        true => entry_flaw(&self.bytes[at..at + step], &mut chain),
                        false => None,
                    };
                    if entry_header == 0 && record.ends_in_zeros() {
                        if seen < left.min(step + 8) {
                            return Err(Stop::More(step + 8));
                        }
                        if left > step && record.is_torn(self.bytes, at) {
                            return Err(Stop::Lost(Bad::Torn));
                        }
                    }
                    let holds = || crc_holds(&self.bytes[at..], &record, record_at - at);
                    if read && entry.is_none() && (!check_crc || holds()) {
                        *self.chain = chain;
                        *self.pos += step as u64;
                        let pos = self.begin + record_at as u64;
                        return Ok(Found::Record { record, pos });
                    }
                    (entry.unwrap_or(Bad::Crc), Some(step))
                }
                Item::Empty { step } if was_read(self.unread, pos, step) => {
                    if self.entries {
                        let _ = entry_flaw(&self.bytes[at..at + step], &mut chain);
                        *self.chain = chain;
                    }
                    *self.pos += step as u64;
                    continue;
                }
                Item::Filler => {
                    if filler_bytes(&self.bytes[at..], entry_header) as u64 == file_end - pos && end == file_end {
                        *self.pos = end;
                        continue;
                    }
                    (Bad::Size, None)
                }
                Item::Bad {
                    bad: Bad::Torn,
                    step: None,
                } if seen < left => match wanted(&self.bytes[at..], pos, entry_header) {
                    Some(bytes) if bytes > seen && bytes <= left => return Err(Stop::More(bytes)),
                    _ => (Bad::Torn, None),
                },
                Item::Empty { step } => (Bad::Unreadable, Some(step)),
                Item::Bad { bad, step } => (bad, step),
            };
            return self.damage(at, bad, step).map(Found::Damage);
        }
    }

    /// The damage at `at`, if a successor shows that its size `step` is right.
    #[cold]
    fn damage(&mut self, at: usize, bad: Bad, step: Option<usize>) -> Result<Damage, Stop> {
        let pos = *self.pos;
        let bad = match was_read(self.unread, pos, step.unwrap_or(HEAD_BYTES)) {
            true => bad,
            false => Bad::Unreadable,
        };
        let Some(step) = step else { return Err(Stop::Lost(bad)) };
        let (left, seen) = ((self.stretch.end - pos) as usize, self.bytes.len() - at);
        if step < left && seen < left.min(step + 8) {
            return Err(Stop::More(step + 8));
        }
        if step > left || step < left && !follows(&self.bytes[at + step..], self.stretch.entry_header) {
            return Err(Stop::Lost(bad));
        }
        *self.chain = None;
        *self.pos += step as u64;
        Ok(Damage {
            pos,
            size: step as u64,
            reason: bad.text(),
        })
    }
}

/// Whether the disk returned all these bytes. `unread`: positions [begin, end) that it did not return.
fn was_read(unread: &[(u64, u64)], pos: u64, size: usize) -> bool {
    let end = pos + size as u64;
    unread.iter().all(|&(from, to)| end <= from || to <= pos)
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
