//! The writing end of a queue's extension (`ext.rs` has the layout): units collect in memory like the queue's own, and
//! are written to the file before the queue's units that name them.
//!
//! A unit needs four free bytes after it in its file; otherwise -1 is written in place of its size, and the unit goes
//! to the next file. Source: RocketMQ 4.8.0, ConsumeQueueExt.put, fullFillToEnd.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::files::ToSync;
use super::unit::{Unit, UNIT};
use super::Queues;
use crate::ext::{address_of, decode, is_address, place_of, ExtUnit, HEAD, MOST_BYTES};
use crate::fault::{At, Fault, Outcome};
use crate::maps::{segment_name, segment_starts};

/// Bytes that stay free after a unit, for the mark of the file's end.
const END_MARK: u64 = 4;

pub(super) struct ExtTail {
    written: u64,
    pending: Vec<u8>,
}

/// Where a unit of an extension is.
pub enum PendingExt {
    Unit(ExtUnit),
    /// In the files, if it exists; nothing before this byte of the extension changes any more.
    Written(u64),
}

/// Reads the units of one file, one after the other.
struct UnitReader {
    path: PathBuf,
    file: std::fs::File,
    at: u64,
    bytes: Vec<u8>,
}

impl UnitReader {
    /// Enough for most ends, and for every unit.
    const PIECES: [usize; 2] = [4096, 2 * MOST_BYTES as usize];

    fn open(path: &std::path::Path) -> Outcome<UnitReader> {
        Ok(UnitReader {
            file: std::fs::File::open(path).at(path)?,
            path: path.to_owned(),
            at: 0,
            bytes: vec![],
        })
    }

    /// The size of the unit at a byte of the file; -1: the file ends there by its mark; 0: no sound unit begins there.
    fn size_at(&mut self, at: u64) -> Outcome<i32> {
        for piece in [0, Self::PIECES[0], Self::PIECES[1]] {
            if piece > 0 {
                self.bytes.resize(piece, 0);
                let n = self.file.read_at(&mut self.bytes, at).at(&self.path)?;
                self.bytes.truncate(n);
                self.at = at;
            }
            let from = at.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
            let bytes = from.and_then(|from| self.bytes.get(from..)).unwrap_or(&[]);
            if let Some(unit) = decode(bytes) {
                return Ok(i32::from(unit.size));
            }
            if bytes.starts_with(&[0xff, 0xff]) {
                return Ok(-1);
            }
        }
        Ok(0)
    }
}

impl ExtTail {
    fn end(&self) -> u64 {
        self.written + self.pending.len() as u64
    }
}

impl Queues {
    /// New units carry an address into extension files of this size; 0: they carry none.
    pub fn extend(&mut self, folder: PathBuf, segment_bytes: u64) {
        (self.ext_folder, self.ext_segment_bytes) = (folder, segment_bytes);
    }

    pub fn is_extended(&self) -> bool {
        self.ext_segment_bytes > 0
    }

    pub(super) fn ext_folder_of(&self, q: u32) -> PathBuf {
        let (topic, id) = self.name_of(q);
        self.ext_folder
            .join(std::ffi::OsStr::from_bytes(topic))
            .join(id.to_string())
    }

    /// Finds the end of a queue's extension on the disk, before a unit is put that `extend_last` extends.
    pub fn prepare_ext(&mut self, q: u32) -> Outcome<()> {
        if self.queues[q as usize].ext.is_none() {
            let written = self.find_ext_end(q)?;
            let pending = vec![];
            self.queues[q as usize].ext = Some(Box::new(ExtTail { written, pending }));
        }
        Ok(())
    }

    /// Adds an extension to the unit just put; the unit keeps its tags code if the extension is full. This cannot fail:
    /// `prepare_ext` has done everything that can.
    pub fn extend_last(&mut self, q: u32, tags_code: i64, store_timestamp: i64, bit_map: &[u8]) {
        let size = (HEAD + bit_map.len()) as u64;
        if size > MOST_BYTES || self.ext_segment_bytes < size + END_MARK {
            return;
        }
        let segment_bytes = self.ext_segment_bytes;
        let queue = &mut self.queues[q as usize];
        let tail = queue.ext.as_mut().expect("prepared");
        let (left, before) = (segment_bytes - tail.end() % segment_bytes, tail.pending.len());
        if size + END_MARK > left {
            let end = tail.pending.len() + left as usize;
            tail.pending.extend_from_slice(&(-1i16).to_be_bytes());
            tail.pending.resize(end, 0);
        }
        let Some(address) = address_of(tail.end()) else {
            self.pending_bytes += tail.pending.len() - before;
            return;
        };
        tail.pending.extend_from_slice(&(size as u16).to_be_bytes());
        tail.pending.extend_from_slice(&tags_code.to_be_bytes());
        tail.pending.extend_from_slice(&store_timestamp.to_be_bytes());
        tail.pending.extend_from_slice(&(bit_map.len() as u16).to_be_bytes());
        tail.pending.extend_from_slice(bit_map);
        self.pending_bytes += tail.pending.len() - before;
        if let Some(code) = queue.pending.last_chunk_mut::<8>() {
            *code = address.to_be_bytes();
        }
    }

    /// A queue whose extension has a file of a wrong length is rebuilt, with its extension.
    pub(super) fn look_at_ext(&mut self, q: u32) -> Outcome<()> {
        let folder = self.ext_folder_of(q);
        for start in segment_starts(&folder)? {
            let path = folder.join(segment_name(start));
            let bytes = std::fs::metadata(&path).at(&path)?.len();
            // An empty file gets its length when the next unit is written.
            if bytes != 0 && bytes != self.ext_segment_bytes || start % self.ext_segment_bytes != 0 {
                let (name, whole) = (segment_name(start), self.ext_segment_bytes);
                let reason = format!("file {name} of its extension has {bytes} bytes instead of {whole}");
                self.break_queue(q, reason, true);
            }
        }
        Ok(())
    }

    /// Where the next unit goes: after the last sound one, and after the one that the queue's last unit names.
    fn find_ext_end(&mut self, q: u32) -> Outcome<u64> {
        let folder = self.ext_folder_of(q);
        let starts = segment_starts(&folder)?;
        for &start in &starts {
            let path = folder.join(segment_name(start));
            let bytes = std::fs::metadata(&path).at(&path)?.len();
            if bytes == 0 {
                // power was lost before it was synced; its units are lost, and count as unknown
                let file = self.door.open(&path).at(&path)?;
                file.set_len(self.ext_segment_bytes).at(&path)?;
                self.ext_unsynced.insert(path);
            } else if bytes != self.ext_segment_bytes {
                let whole = self.ext_segment_bytes;
                let reason = format!("an extension file has {whole} bytes, this one {bytes}, and so ends");
                return Err(Fault::damage(&path, bytes, reason));
            }
        }
        let last = self.queues[q as usize].end.saturating_sub(UNIT);
        let named = self.unit(q, last)?.filter(|unit| is_address(unit.tags_code));
        let named = named.map(|unit| place_of(unit.tags_code));
        let mut end = named.map_or(0, |place| place + HEAD as u64);
        if let Some(&start) = starts.last() {
            let path = folder.join(segment_name(start));
            let mut units = UnitReader::open(&path)?;
            let (mut at, mut closed) = (0, false);
            // Usually only the unit that the queue names last, and not the megabytes before it, is read.
            if let Some(place) = named.and_then(|place| place.checked_sub(start)) {
                if units.size_at(place)? > 0 {
                    at = place;
                }
            }
            loop {
                match units.size_at(at)? {
                    -1 => closed = true,
                    size if size > 0 => {
                        at += size as u64;
                        continue;
                    }
                    _ => {}
                }
                break;
            }
            end = end.max(start + if closed { self.ext_segment_bytes } else { at });
        }
        Ok(end)
    }

    /// The unit at an address, if it is not in a file yet.
    pub fn pending_ext(&self, topic: &[u8], id: i32, address: i64) -> PendingExt {
        let queue = self.find(topic, id).map(|q| &self.queues[q as usize]);
        let Some(tail) = queue.and_then(|queue| queue.ext.as_ref()) else {
            return PendingExt::Written(u64::MAX);
        };
        let pending = || {
            let at = place_of(address).checked_sub(tail.written)?;
            decode(tail.pending.get(usize::try_from(at).ok()?..)?)
        };
        pending().map_or(PendingExt::Written(tail.written), PendingExt::Unit)
    }

    pub(super) fn write_ext(&mut self, q: u32) -> Outcome<()> {
        let Some(mut tail) = self.queues[q as usize].ext.take() else {
            return Ok(());
        };
        let outcome = self.write_tail(q, &mut tail);
        self.queues[q as usize].ext = Some(tail);
        outcome
    }

    fn write_tail(&mut self, q: u32, tail: &mut ExtTail) -> Outcome<()> {
        while !tail.pending.is_empty() {
            let start = tail.written - tail.written % self.ext_segment_bytes;
            let n = tail
                .pending
                .len()
                .min((start + self.ext_segment_bytes - tail.written) as usize);
            let folder = self.ext_folder_of(q);
            let path = folder.join(segment_name(start));
            let file = match self.door.open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    for folder in path.ancestors().skip(1) {
                        self.new_names_in.insert(folder.to_owned());
                        if folder == self.ext_folder {
                            break;
                        }
                    }
                    self.door.create_sized(&path, self.ext_segment_bytes, false)
                }
                file => file,
            };
            let file = file.at(&path)?;
            file.write_at(&tail.pending[..n], tail.written - start).at(&path)?;
            tail.written += n as u64;
            tail.pending.drain(..n);
            self.pending_bytes -= n;
            self.ext_unsynced.insert(path);
        }
        Ok(())
    }

    /// Extension files to sync, before the queues' files.
    pub(super) fn take_unsynced_ext(&mut self) -> Vec<ToSync> {
        let paths = std::mem::take(&mut self.ext_unsynced);
        paths.into_iter().map(ToSync::of_path).collect()
    }

    /// Forgets the end of the extension, and its units that are not written.
    pub(super) fn drop_ext_tail(&mut self, q: u32) {
        if let Some(tail) = self.queues[q as usize].ext.take() {
            self.pending_bytes -= tail.pending.len();
        }
    }

    /// Removes the files of the extension that no unit of the queue needs. Also if new units get no extension: then the
    /// files are from an earlier setting, or from RocketMQ.
    pub(super) fn trim_ext(&mut self, q: u32) -> Outcome<()> {
        let starts = segment_starts(&self.ext_folder_of(q))?;
        if self.read_only || starts.is_empty() || self.is_extended() && starts.len() == 1 {
            return Ok(());
        }
        match self.first_address(q)? {
            Some(place) => self.remove_ext(q, Some(place)),
            None if self.is_extended() => self.remove_ext(q, starts.last().copied()),
            None => self.remove_ext(q, None),
        }
    }

    /// The place in the extension that the first unit with an address names.
    fn first_address(&mut self, q: u32) -> Outcome<Option<u64>> {
        let (mut at, end) = (self.queues[q as usize].min_logic, self.queues[q as usize].end);
        while at < end {
            let Some(units) = self.read(q, at, 4096 * UNIT)? else {
                return Ok(Some(0)); // it cannot be read: nothing is removed
            };
            let read = units.len() as u64; // to the end of a file at most
            let mut units = units.chunks_exact(UNIT as usize).map(Unit::decode);
            if let Some(unit) = units.find(|unit| unit.is_unit() && is_address(unit.tags_code)) {
                return Ok(Some(place_of(unit.tags_code)));
            }
            at += read;
        }
        Ok(None)
    }

    /// Removes the extension's files that end at or below `place`; all files if it is None. A file ends where the next
    /// one begins: the size of new files may be another one.
    pub(super) fn remove_ext(&mut self, q: u32, place: Option<u64>) -> Outcome<()> {
        if self.read_only {
            return Ok(());
        }
        let folder = self.ext_folder_of(q);
        let starts = segment_starts(&folder)?;
        for (i, &start) in starts.iter().enumerate() {
            let end = starts.get(i + 1);
            if place.is_none_or(|place| end.is_some_and(|&end| end <= place)) {
                let path = folder.join(segment_name(start));
                self.door.remove(&path).at(&path)?;
                self.ext_unsynced.remove(&path);
                self.new_names_in.insert(folder.clone());
            }
        }
        if place.is_none() {
            self.drop_ext_tail(q);
            for folder in folder.ancestors().take(2) {
                if std::fs::remove_dir(folder).is_ok() {
                    self.new_names_in.remove(folder);
                    self.new_names_in.extend(folder.parent().map(ToOwned::to_owned));
                }
            }
        }
        Ok(())
    }
}
