//! The log in dledger's layout: turns records into entries, and writes the index.
//!
//! Units of the index are staged with their entries and written before the data. If the write of the data fails, units
//! without an entry remain, and the next entries overwrite them. So every written entry has its unit, and an error of
//! the index withdraws the staged bytes like any other error. The index is not synced before an entry is acknowledged:
//! it follows from the data, and a start rebuilds its missing part.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::door::{Door, DoorFile};
use crate::entry::{EntryHeader, Link, ENTRY_HEADER, INDEX_UNIT};
use crate::fault::Outcome;
use crate::maps::{segment_name, LogMaps};
use crate::record::{int, long};

type IoFault = (PathBuf, io::Error);

/// Where an entry lies, as its unit in the index says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) pos: u64,
    pub(super) size: u32,
    pub(super) term: i64,
}

impl Place {
    pub(super) fn end(&self) -> u64 {
        self.pos + u64::from(self.size)
    }

    /// None: the unit does not belong to `index`.
    fn of(unit: &[u8], index: u64) -> Option<Place> {
        (int(unit, 0) == 1 && long(unit, 16) == index as i64).then(|| Place {
            pos: long(unit, 4) as u64,
            size: int(unit, 12) as u32,
            term: long(unit, 20 + 4),
        })
    }
}

/// The entries at the end of a log.
pub(super) struct EntryTail {
    door: Door,
    folder: PathBuf,
    segment_bytes: u64,
    /// The term of the entries that are appended here.
    pub(super) term: i64,
    pub(super) staged: Link,
    pub(super) written: Link,
    /// One unit and one chain CRC for each entry between `written` and `staged`.
    units: Vec<u8>,
    chains: Vec<u32>,
    file: Option<(u64, Arc<DoorFile>)>,
    unsynced: Vec<Arc<DoorFile>>,
    folder_changed: bool,
}

impl EntryTail {
    pub(super) fn new(door: Door, folder: PathBuf, segment_bytes: u64) -> Self {
        EntryTail {
            door,
            folder,
            segment_bytes,
            term: 0,
            staged: Link::default(),
            written: Link::default(),
            units: Vec::new(),
            chains: Vec::new(),
            file: None,
            unsynced: Vec::new(),
            folder_changed: false,
        }
    }

    /// Continues after `link`; drops everything staged.
    pub(super) fn start(&mut self, link: Link) {
        (self.staged, self.written) = (link, link);
        self.units.clear();
        self.chains.clear();
        self.file = None;
        self.unsynced.clear();
    }

    /// Fills in the header of a new entry at `pos`; `head` are the 48 bytes before `body`.
    pub(super) fn seal(&mut self, head: &mut [u8], body: &[u8], pos: u64, kind: i32) {
        let header = EntryHeader {
            size: (ENTRY_HEADER + body.len()) as u32,
            index: self.staged.next_index,
            term: self.term,
            pos,
            kind,
            chain: 0,
            body_crc: crc32fast::hash(body),
        };
        let (header, bytes) = header.sealed(self.staged.chain);
        head.copy_from_slice(&bytes);
        self.push(&header);
    }

    /// Records that an entry is staged.
    pub(super) fn push(&mut self, header: &EntryHeader) {
        self.units.extend_from_slice(&header.unit());
        self.chains.push(header.chain);
        self.staged = header.link();
    }

    pub(super) fn is_settled(&self) -> bool {
        self.chains.is_empty()
    }

    /// The place of an entry that is staged and not written.
    pub(super) fn staged_place(&self, index: u64) -> Option<Place> {
        let at = usize::try_from(index.checked_sub(self.written.next_index)?).ok()? * INDEX_UNIT;
        Place::of(self.units.get(at..at + INDEX_UNIT)?, index)
    }

    /// Writes the staged units to the files of the index.
    pub(super) fn write_units(&mut self) -> Result<(), IoFault> {
        let (mut at, mut place) = (0, self.written.next_index * INDEX_UNIT as u64);
        while at < self.units.len() {
            let start = place - place % self.segment_bytes;
            let room = (start + self.segment_bytes - place) as usize;
            let bytes = room.min(self.units.len() - at);
            let file = self.open(start)?;
            file.write_at(&self.units[at..at + bytes], place - start)
                .map_err(|error| (file.path().to_owned(), error))?;
            at += bytes;
            place += bytes as u64;
        }
        Ok(())
    }

    fn open(&mut self, start: u64) -> Result<Arc<DoorFile>, IoFault> {
        if let Some((have, file)) = &self.file {
            if *have == start {
                self.note(&file.clone());
                return Ok(self.file.as_ref().expect("just seen").1.clone());
            }
        }
        let path = self.folder.join(segment_name(start));
        let fault = |error| (path.clone(), error);
        let ready = std::fs::metadata(&path).is_ok_and(|data| data.len() == self.segment_bytes);
        let file = if ready {
            self.door.open(&path).map_err(fault)?
        } else {
            self.folder_changed = true;
            self.door.create_sized(&path, self.segment_bytes, true).map_err(fault)?
        };
        let file = Arc::new(file);
        self.file = Some((start, file.clone()));
        self.note(&file);
        Ok(file)
    }

    fn note(&mut self, file: &Arc<DoorFile>) {
        if !self.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
            self.unsynced.push(file.clone());
        }
    }

    /// The data is written up to `written`: entries below it become written, others stay staged.
    pub(super) fn settle(&mut self, written: u64) {
        let done = self
            .units
            .chunks_exact(INDEX_UNIT)
            .position(|unit| long(unit, 4) as u64 >= written)
            .unwrap_or(self.chains.len());
        if let Some(last) = done.checked_sub(1) {
            let unit = &self.units[last * INDEX_UNIT..][..INDEX_UNIT];
            self.written = Link {
                next_index: long(unit, 16) as u64 + 1,
                term: long(unit, 24),
                chain: self.chains[last],
            };
            self.units.drain(..done * INDEX_UNIT);
            self.chains.drain(..done);
        }
    }

    /// Everything is written.
    pub(super) fn settle_all(&mut self) {
        self.written = self.staged;
        self.units.clear();
        self.chains.clear();
    }

    /// Drops what is staged and not written.
    pub(super) fn abandon(&mut self) {
        self.staged = self.written;
        self.units.clear();
        self.chains.clear();
    }

    /// Zeroes the units from `link.next_index` to the written end, and continues after `link`.
    pub(super) fn cut(&mut self, link: Link) -> Result<(), IoFault> {
        debug_assert!(self.is_settled());
        let units = (self.written.next_index - link.next_index) as usize;
        self.written.next_index = link.next_index;
        self.units.resize(units * INDEX_UNIT, 0);
        let zeroed = self.write_units();
        self.units.clear();
        zeroed?;
        (self.staged, self.written) = (link, link);
        Ok(())
    }

    /// What `sync_index` has to make durable: files, and whether names in the folder changed.
    pub(super) fn take_unsynced(&mut self) -> (Vec<Arc<DoorFile>>, Option<(Door, PathBuf)>) {
        let folder = std::mem::take(&mut self.folder_changed).then(|| (self.door.clone(), self.folder.clone()));
        (std::mem::take(&mut self.unsynced), folder)
    }

    /// Their sync failed: the next sync includes them again, and until then the index does not count as durable.
    pub(super) fn put_back_unsynced(&mut self, files: Vec<Arc<DoorFile>>, folder_changed: bool) {
        files.iter().for_each(|file| self.note(file));
        self.folder_changed |= folder_changed;
    }
}

/// The written entries, read from the files. Its maps have their own lock: reads do not need the log's lock.
pub(super) struct EntryFiles {
    pub(super) data: LogMaps,
    pub(super) index: LogMaps,
}

impl EntryFiles {
    pub(super) fn new(data: &Path, data_bytes: u64, index: &Path, index_bytes: u64) -> Self {
        EntryFiles {
            data: LogMaps::new(data.to_owned(), data_bytes),
            index: LogMaps::new(index.to_owned(), index_bytes),
        }
    }

    /// The place of a written entry; None: the index does not have it.
    pub(super) fn place(&self, index: u64) -> Outcome<Option<Place>> {
        let at = index * INDEX_UNIT as u64;
        let segment = self.index.segment(at)?;
        let unit = segment.as_ref().and_then(|segment| segment.slice(at, INDEX_UNIT));
        let place = unit.and_then(|unit| Place::of(unit, index));
        Ok(place.filter(|_| segment.is_none_or(|segment| !segment.spoils(at, INDEX_UNIT))))
    }

    /// Appends the bytes [pos, end) of the log to `out`; false: some are missing, or cannot be read.
    pub(super) fn read(&self, mut pos: u64, end: u64, out: &mut Vec<u8>) -> Outcome<bool> {
        while pos < end {
            let Some(segment) = self.data.segment(pos)? else {
                return Ok(false);
            };
            let stop = end.min(segment.start + segment.map.len() as u64);
            let Some(bytes) = segment.slice(pos, (stop - pos) as usize) else {
                return Ok(false);
            };
            out.extend_from_slice(bytes);
            if segment.spoils(pos, bytes.len()) {
                return Ok(false);
            }
            pos = stop;
        }
        Ok(true)
    }

    pub(super) fn header(&self, place: &Place) -> Outcome<Option<EntryHeader>> {
        let segment = self.data.segment(place.pos)?;
        let bytes = segment
            .as_ref()
            .and_then(|segment| segment.slice(place.pos, ENTRY_HEADER));
        let header = bytes.and_then(|bytes| EntryHeader::read(bytes).ok());
        Ok(header.filter(|_| segment.is_none_or(|segment| !segment.spoils(place.pos, ENTRY_HEADER))))
    }

    pub(super) fn forget(&self) {
        self.data.forget_all();
        self.index.forget_all();
    }
}
