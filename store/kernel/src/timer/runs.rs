//! Sorted files of timers: entries of 32 bytes by time, then queue offset. A file is written once and never changed.

use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::door::{Door, DoorFile};
use crate::fault::{At, Outcome};

pub const ENTRY: u64 = 32;
/// Entries that are read at once.
const BLOCK: u64 = 512;
/// Memory of a file that is open.
pub const BLOCK_BYTES: usize = (BLOCK * ENTRY) as usize;
/// Entries that are written at once.
const PIECE: usize = 1 << 15;

/// A timer. The order is that of the deliveries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// Time of the delivery, ms since 1970.
    pub due: i64,
    /// Queue offset in the timer topic.
    pub offset: i64,
    /// Position of the record in the log.
    pub pos: u64,
    /// `key_of` the message's unique key.
    pub key: u64,
}

impl Entry {
    /// Not after any entry of this time.
    pub fn first(due: i64) -> Entry {
        Entry {
            due,
            offset: i64::MIN,
            pos: 0,
            key: 0,
        }
    }

    pub fn row(&self) -> (i64, u64, i64) {
        (self.offset, self.pos, self.due)
    }

    fn encode(&self) -> [u8; ENTRY as usize] {
        let mut bytes = [0; ENTRY as usize];
        bytes[..8].copy_from_slice(&self.due.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.pos.to_be_bytes());
        bytes[24..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Entry {
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Entry {
            due: long(0) as i64,
            offset: long(8) as i64,
            pos: long(16),
            key: long(24),
        }
    }
}

/// A hash of 64 bits (FNV-1a). Fixed: it is on disks.
pub fn key_of(unique_key: &[u8]) -> u64 {
    unique_key.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub fn path_of(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("run-{id:020}"))
}

/// One file, and how far its entries were passed.
pub struct Run {
    id: u64,
    file: Arc<DoorFile>,
    len: u64,
    crc: u32,
    next: u64,
    block: Vec<Entry>,
    block_at: u64,
}

fn read_block(file: &DoorFile, at: u64, most: u64) -> Outcome<Vec<Entry>> {
    let mut bytes = vec![0; (most * ENTRY) as usize];
    let mut done = 0;
    while done < bytes.len() {
        let read = file
            .read_at(&mut bytes[done..], at * ENTRY + done as u64)
            .at(file.path())?;
        if read == 0 {
            return Err(crate::fault::Fault::damage(
                file.path(),
                at * ENTRY,
                "the file is too short",
            ));
        }
        done += read;
    }
    Ok(bytes.chunks_exact(ENTRY as usize).map(Entry::decode).collect())
}

impl Run {
    /// Opens the file `id` if it has this length and checksum.
    pub fn open(door: &Door, folder: &Path, id: u64, len: u64, crc: u32) -> Outcome<Option<Run>> {
        let path = path_of(folder, id);
        if !path.is_file() {
            return Ok(None);
        }
        let file = door.open(&path).at(&path)?;
        if file.len().at(&path)? != len * ENTRY {
            return Ok(None);
        }
        let run = Run::new(id, file, len, crc);
        let mut hasher = crc32fast::Hasher::new();
        for entry in run.reader() {
            hasher.update(&entry?.encode());
        }
        Ok((hasher.finalize() == crc).then_some(run))
    }

    fn new(id: u64, file: DoorFile, len: u64, crc: u32) -> Run {
        Run {
            id,
            file: Arc::new(file),
            len,
            crc,
            next: 0,
            block: vec![],
            block_at: 0,
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// (id, entries, CRC): see `Saved::open_runs`.
    pub fn named(&self) -> (u64, u64, u32) {
        (self.id, self.len, self.crc)
    }

    pub fn bytes(&self) -> u64 {
        self.len * ENTRY
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn file(&self) -> Arc<DoorFile> {
        Arc::clone(&self.file)
    }

    /// All entries, from the first one on.
    pub fn reader(&self) -> Reader {
        Reader {
            file: self.file(),
            next: 0,
            len: self.len,
            block: vec![].into_iter(),
        }
    }

    /// The next entry for which `usable` holds. Passes those before it.
    pub fn peek(&mut self, usable: impl Fn(&Entry) -> bool) -> Outcome<Option<Entry>> {
        while self.next < self.len {
            let at = (self.next - self.block_at) as usize;
            if self.next < self.block_at || at >= self.block.len() {
                self.block = read_block(&self.file, self.next, BLOCK.min(self.len - self.next))?;
                self.block_at = self.next;
                continue;
            }
            if usable(&self.block[at]) {
                return Ok(Some(self.block[at]));
            }
            self.next += 1;
        }
        Ok(None)
    }

    /// Passes the entry that `peek` returned.
    pub fn pass(&mut self) {
        self.next += 1;
    }

    /// Entries with a time in [from, to].
    pub fn between(&self, from: i64, to: i64) -> Outcome<Vec<Entry>> {
        let (mut low, mut high) = (0, self.len);
        while low < high {
            let middle = low + (high - low) / 2;
            if read_block(&self.file, middle, 1)?[0].due < from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let mut found = vec![];
        while low < self.len {
            let block = read_block(&self.file, low, BLOCK.min(self.len - low))?;
            low += block.len() as u64;
            let is_end = block.last().is_none_or(|last| last.due > to);
            found.extend(block.into_iter().take_while(|entry| entry.due <= to));
            if is_end {
                break;
            }
        }
        Ok(found)
    }
}

/// Reads a file from its first entry to its last one.
pub struct Reader {
    file: Arc<DoorFile>,
    next: u64,
    len: u64,
    block: std::vec::IntoIter<Entry>,
}

impl Iterator for Reader {
    type Item = Outcome<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.block.next() {
            return Some(Ok(entry));
        }
        if self.next >= self.len {
            return None;
        }
        let count = (PIECE as u64).min(self.len - self.next);
        match read_block(&self.file, self.next, count) {
            Ok(block) => {
                self.next += count;
                self.block = block.into_iter();
                self.block.next().map(Ok)
            }
            Err(fault) => {
                self.next = self.len;
                Some(Err(fault))
            }
        }
    }
}

/// The entries of both, in order, each once.
pub fn merged(left: Reader, right: Reader) -> impl Iterator<Item = Outcome<Entry>> {
    let (mut left, mut right) = (left.peekable(), right.peekable());
    let mut last = None;
    std::iter::from_fn(move || loop {
        let from_left = match (left.peek(), right.peek()) {
            (Some(Ok(a)), Some(Ok(b))) => a <= b,
            (Some(_), _) => true,
            (None, _) => false,
        };
        let next = take(if from_left { &mut left } else { &mut right })?;
        match next {
            Ok(entry) if last == Some(entry) => {}
            Ok(entry) => {
                last = Some(entry);
                return Some(Ok(entry));
            }
            fault => return Some(fault),
        }
    })
}

fn take(source: &mut Peekable<Reader>) -> Option<Outcome<Entry>> {
    source.next()
}

/// Writes the file `id`. It is not durable yet.
pub fn write_run(
    door: &Door,
    folder: &Path,
    id: u64,
    entries: &mut dyn Iterator<Item = Outcome<Entry>>,
) -> Outcome<Run> {
    let path = path_of(folder, id);
    let file = door.create_sized(&path, 0, false).at(&path)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut piece = Vec::with_capacity(PIECE);
    let mut len = 0;
    loop {
        let entry = entries.next().transpose()?;
        if let Some(entry) = entry {
            piece.extend_from_slice(&entry.encode());
        }
        if piece.len() >= PIECE * ENTRY as usize || (entry.is_none() && !piece.is_empty()) {
            file.write_at(&piece, len * ENTRY).at(&path)?;
            hasher.update(&piece);
            len += piece.len() as u64 / ENTRY;
            piece.clear();
        }
        if entry.is_none() {
            return Ok(Run::new(id, file, len, hasher.finalize()));
        }
    }
}
