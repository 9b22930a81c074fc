//! The end of the log that a conversion writes: records behind each other, fillers, segments, the index of entries.
//!
//! Bytes are gathered and written with positioned writes into segments whose blocks are allocated. Units of the index
//! are written before the data, so every written entry has its unit. Nothing is durable before `sync`.

use std::path::PathBuf;

use crate::door::{Door, DoorFile};
use crate::encode::{BLANK_BYTES, BLANK_MAGIC};
use crate::entry::{EntryHeader, Link, ENTRY_HEADER, INDEX_UNIT};
use crate::fault::{At, Outcome};
use crate::maps::segment_name;
use crate::record::{Record, LEDGER_FILLER};

/// Bytes that are gathered for one write.
const GATHERED_BYTES: usize = 4 << 20;
/// Where a record names its own position.
pub const POSITION_AT: usize = 28;

/// Files of one size in one folder, written from front to back.
struct Files {
    door: Door,
    folder: PathBuf,
    file_bytes: u64,
    current: Option<(u64, DoorFile)>,
    unsynced: Vec<DoorFile>,
    folder_changed: bool,
}

impl Files {
    fn new(door: Door, folder: PathBuf, file_bytes: u64) -> Files {
        Files {
            door,
            folder,
            file_bytes,
            current: None,
            unsynced: vec![],
            folder_changed: false,
        }
    }

    fn path(&self, start: u64) -> PathBuf {
        self.folder.join(segment_name(start))
    }

    /// Writes bytes that may continue in the next file.
    fn write(&mut self, mut pos: u64, mut data: &[u8]) -> Outcome<()> {
        while !data.is_empty() {
            let start = pos - pos % self.file_bytes;
            let room = usize::try_from(start + self.file_bytes - pos).unwrap_or(usize::MAX);
            let (now, later) = data.split_at(room.min(data.len()));
            let path = self.path(start);
            self.open(start)?.write_at(now, pos - start).at(&path)?;
            (pos, data) = (pos + now.len() as u64, later);
        }
        Ok(())
    }

    fn open(&mut self, start: u64) -> Outcome<&DoorFile> {
        if self.current.as_ref().is_none_or(|(open, _)| *open != start) {
            let path = self.path(start);
            let ready = std::fs::metadata(&path).is_ok_and(|data| data.len() == self.file_bytes);
            let opened = if ready {
                self.door.open(&path)
            } else {
                self.folder_changed = true;
                let made = self.door.create_sized(&path, self.file_bytes, true);
                if made.is_err() {
                    // A file of the wrong length would only be reported as a second fault; the first one counts.
                    let _ = self.door.remove(&path);
                }
                made
            };
            let file = opened.at(&path)?;
            if let Some((_, before)) = self.current.replace((start, file)) {
                self.unsynced.push(before);
            }
        }
        Ok(&self.current.as_ref().expect("it was opened").1)
    }

    fn sync(&mut self) -> Outcome<()> {
        let current = self.current.iter().map(|(_, file)| file);
        for file in self.unsynced.iter().chain(current) {
            file.sync_data().at(file.path())?;
        }
        if self.folder_changed {
            self.door.sync_dir(&self.folder).at(&self.folder)?;
        }
        self.unsynced.clear();
        self.folder_changed = false;
        Ok(())
    }
}

/// dledger's layout: the index, and what the next entry continues.
struct Entries {
    index: Files,
    units: Vec<u8>,
    units_at: u64,
    link: Link,
}

pub struct Target {
    files: Files,
    entries: Option<Entries>,
    /// Behind the last record, gathered or written.
    pos: u64,
    gathered: Vec<u8>,
    gathered_at: u64,
}

/// A new place for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the entry or plain record.
    pub begin: u64,
    /// Bytes before `begin` that a filler takes.
    pub filler: u64,
}

/// Where a record of `bytes`, with its entry's header, goes that follows `pos`; None: no segment is large enough.
pub fn place_of(pos: u64, bytes: usize, segment_bytes: u64) -> Option<Place> {
    let needed = bytes as u64 + BLANK_BYTES as u64;
    let left = segment_bytes - pos % segment_bytes;
    if needed > segment_bytes {
        None
    } else if needed <= left {
        Some(Place { begin: pos, filler: 0 })
    } else {
        Some(Place {
            begin: pos + left,
            filler: left,
        })
    }
}

impl Target {
    /// `index`: folder and file size of the index of entries; None: the plain layout. `link`: what the first entry
    /// continues.
    pub fn new(
        door: &Door,
        folder: PathBuf,
        segment_bytes: u64,
        index: Option<(PathBuf, u64)>,
        pos: u64,
        link: Link,
    ) -> Target {
        Target {
            files: Files::new(door.clone(), folder, segment_bytes),
            entries: index.map(|(folder, file_bytes)| Entries {
                index: Files::new(door.clone(), folder, file_bytes),
                units: vec![],
                units_at: link.next_index * INDEX_UNIT as u64,
                link,
            }),
            pos,
            gathered: Vec::with_capacity(GATHERED_BYTES + (1 << 20)),
            gathered_at: pos,
        }
    }

    pub fn pos(&self) -> u64 {
        self.pos
    }

    pub fn link(&self) -> Link {
        self.entries.as_ref().map_or_else(Link::default, |entries| entries.link)
    }

    pub fn header_bytes(&self) -> usize {
        if self.entries.is_some() {
            ENTRY_HEADER
        } else {
            0
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.files.file_bytes
    }

    /// Appends a record, with its new position and, if it refers to another record, that one's new position. Returns
    /// its own new position; None: it does not fit into a segment.
    pub fn put(&mut self, record: &Record<'_>, prepared: i64) -> Outcome<Option<u64>> {
        let header = self.header_bytes();
        let size = header + record.bytes().len();
        let Some(place) = place_of(self.pos, size, self.files.file_bytes) else {
            return Ok(None);
        };
        if place.filler > 0 {
            let left = place.filler as u32;
            let (first, second) = match self.entries {
                Some(_) => (LEDGER_FILLER.to_be_bytes(), left.to_be_bytes()),
                None => (left.to_be_bytes(), BLANK_MAGIC.to_be_bytes()),
            };
            self.gathered.extend_from_slice(&first);
            self.gathered.extend_from_slice(&second);
            self.write_out()?;
            (self.pos, self.gathered_at) = (place.begin, place.begin);
        }
        let record_pos = place.begin + header as u64;
        let at = self.gathered.len();
        self.gathered.resize(at + header, 0);
        self.gathered.extend_from_slice(record.bytes());
        let body = &mut self.gathered[at + header..];
        body[POSITION_AT..POSITION_AT + 8].copy_from_slice(&record_pos.to_be_bytes());
        let prepared_at = record.prepared_at();
        body[prepared_at..prepared_at + 8].copy_from_slice(&prepared.to_be_bytes());
        if let Some(entries) = &mut self.entries {
            let entry = EntryHeader {
                size: size as u32,
                index: entries.link.next_index,
                term: entries.link.term,
                pos: place.begin,
                kind: 0,
                chain: 0,
                body_crc: crc32fast::hash(body),
            };
            let (entry, bytes) = entry.sealed(entries.link.chain);
            self.gathered[at..at + header].copy_from_slice(&bytes);
            entries.units.extend_from_slice(&entry.unit());
            entries.link = entry.link();
        }
        self.pos = place.begin + size as u64;
        if self.gathered.len() >= GATHERED_BYTES {
            self.write_out()?;
        }
        Ok(Some(record_pos))
    }

    pub fn write_out(&mut self) -> Outcome<()> {
        if let Some(entries) = &mut self.entries {
            entries.index.write(entries.units_at, &entries.units)?;
            entries.units_at += entries.units.len() as u64;
            entries.units.clear();
        }
        self.files.write(self.gathered_at, &self.gathered)?;
        self.gathered_at += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    /// Writes everything and makes it durable.
    pub fn sync(&mut self) -> Outcome<()> {
        self.write_out()?;
        if let Some(entries) = &mut self.entries {
            entries.index.sync()?;
        }
        self.files.sync()
    }
}
