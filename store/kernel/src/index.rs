//! Index files: hash tables on disk from message keys to positions in the log.
//!
//! ```text
//! header, 40 bytes                      slots: 4 bytes each            entries: 20 bytes each
//!  0  8  store time of the first entry  number of the newest entry     0  4  hash of `topic#key`, >= 0
//!  8  8  store time of the last entry   of the slot's chain, 0: none   4  8  position of the record in the log
//! 16  8  position of the first entry                                  12  4  seconds since the file's first entry
//! 24  8  position of the last entry                                   16  4  next older entry of the chain, 0: none
//! 32  4  slots in use
//! 36  4  number of the next entry, from 1 (0 in a file without entries)
//! ```
//!
//! Entry 0 is never used, so a file of N entries holds N - 1. A file is named by the local time of its creation
//! (yyyyMMddHHmmssSSS), and begins with the end time and end position of the previous file. Source: RocketMQ 4.8.0,
//! IndexFile.java, IndexHeader.java, IndexService.java. Fixed: it is on disks.
//!
//! Writes go through a map, in the order entry, slot, header: if the process dies between any two of them, the file is
//! a sound one with fewer entries. The file's blocks are allocated first, because a store into a hole of a full disk is
//! a signal and not an error. A power loss keeps no order; `drop_after` therefore also drops a file whose slots name
//! entries at or above its header's count.
//!
//! Unlike the source, we never create a file for a record without keys, never use a name twice, and index a record
//! whose keys were interrupted between two entries exactly once. (Where files were dropped, the record at the border
//! gets entries in both files, as in RocketMQ: readers must expect a position twice.)

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::door::{Door, DoorMap};
use crate::fault::{At, Fault, Outcome};
use crate::guard::ReadMap;
use crate::hash::key_hash;
use crate::record::{int, long};

mod look;
#[cfg(test)]
mod tests;
mod trim;

pub use look::register;

/// Milliseconds since the epoch that stand for the system's clock in the names of files, for simulated time; -1: none do.
/// Each name takes one, so that no name is used twice at one moment.
static SIMULATED_MS: AtomicI64 = AtomicI64::new(-1);

fn now() -> SystemTime {
    if SIMULATED_MS.load(Ordering::Relaxed) < 0 {
        return SystemTime::now();
    }
    UNIX_EPOCH + Duration::from_millis(SIMULATED_MS.fetch_add(1, Ordering::Relaxed) as u64)
}

pub const HEADER: usize = 40;
pub const SLOT: usize = 4;
pub const ENTRY: usize = 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    pub begin_timestamp: i64,
    pub end_timestamp: i64,
    pub begin_pos: i64,
    pub end_pos: i64,
    pub slots_used: i32,
    /// Number of the next entry.
    pub count: i32,
}

impl Header {
    pub fn decode(bytes: &[u8]) -> Header {
        Header {
            begin_timestamp: long(bytes, 0),
            end_timestamp: long(bytes, 8),
            begin_pos: long(bytes, 16),
            end_pos: long(bytes, 24),
            slots_used: int(bytes, 32),
            count: int(bytes, 36).max(1),
        }
    }

    fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&self.begin_timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.end_timestamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.begin_pos.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.end_pos.to_be_bytes());
        bytes[32..36].copy_from_slice(&self.slots_used.to_be_bytes());
        // a file without entries has 0 here, although the number of the first entry is 1
        let count = if self.count <= 1 { 0 } else { self.count };
        bytes[36..].copy_from_slice(&count.to_be_bytes());
        bytes
    }

    fn meets(&self, begin: i64, end: i64) -> bool {
        begin < self.begin_timestamp && end > self.end_timestamp
            || (self.begin_timestamp..=self.end_timestamp).contains(&begin)
            || (self.begin_timestamp..=self.end_timestamp).contains(&end)
    }
}

enum Map {
    Closed,
    Reading(ReadMap),
    Writing(DoorMap),
}

impl Map {
    fn bytes(&self) -> &[u8] {
        match self {
            Map::Closed => &[],
            Map::Reading(map) => map,
            Map::Writing(map) => map.bytes(),
        }
    }

    /// A page of it could not be read, or bytes stored in it are lost.
    fn is_spoiled(&self) -> bool {
        match self {
            Map::Closed => false,
            Map::Reading(map) => map.is_spoiled(),
            Map::Writing(map) => map.is_spoiled(),
        }
    }
}

struct IndexFile {
    name: String,
    header: Header,
    map: Map,
}

pub struct Index {
    door: Door,
    folder: PathBuf,
    slots: u32,
    entries: u32,
    read_only: bool,
    files: Vec<IndexFile>,
    changed: Vec<String>,
    names_changed: bool,
    /// Where the kept files ended when `load` had to remove some.
    lost_from: Option<i64>,
    /// Set when files were dropped: the record with which the kept files end is then indexed once more, as in RocketMQ.
    repeat_last: bool,
}

/// Java's string hash of `text`, continued from the hash of the text before it.
#[inline]
pub fn hash_on(seed: i32, text: &[u8]) -> i32 {
    let mut hash = seed;
    let mut chunks = text.chunks_exact(8);
    if text.is_ascii() {
        // h * 31 + c is a long chain of multiplications; eight characters at once break it up
        const POWERS: [i32; 9] = {
            let mut powers = [1i32; 9];
            let mut i = 1;
            while i < 9 {
                powers[i] = powers[i - 1].wrapping_mul(31);
                i += 1;
            }
            powers
        };
        for chunk in &mut chunks {
            let mut sum = 0i32;
            for (i, &byte) in chunk.iter().enumerate() {
                sum = sum.wrapping_add(i32::from(byte).wrapping_mul(POWERS[7 - i]));
            }
            hash = hash.wrapping_mul(POWERS[8]).wrapping_add(sum);
        }
        for &byte in chunks.remainder() {
            hash = hash.wrapping_mul(31).wrapping_add(i32::from(byte));
        }
        return hash;
    }
    let text = String::from_utf8_lossy(text);
    text.encode_utf16()
        .fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

impl Index {
    pub fn new(door: Door, folder: PathBuf, slots: u32, entries: u32, read_only: bool) -> Index {
        Index {
            door,
            folder,
            slots,
            entries,
            read_only,
            files: vec![],
            changed: vec![],
            names_changed: false,
            lost_from: None,
            repeat_last: false,
        }
    }

    fn file_bytes(&self) -> usize {
        HEADER + SLOT * self.slots as usize + ENTRY * self.entries as usize
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn entry_at(&self, number: i32) -> usize {
        entry_at(self.slots, number as usize)
    }

    /// Finds the existing files. A file that was being created when the process died or power was lost (wrong length,
    /// no entries) is removed, with those after it; otherwise a wrong length is damage, or comes from other settings.
    /// `tolerant`: such a file is damaged, and is removed with those after it, to be rebuilt from the log.
    pub fn load(&mut self, tolerant: bool) -> Outcome<()> {
        let mut names = vec![];
        match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            entries => {
                for entry in entries.at(&self.folder)? {
                    let name = entry.at(&self.folder)?.file_name().into_string().unwrap_or_default();
                    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
                        names.push(name);
                    }
                }
            }
        }
        names.sort();
        let mut lost = false;
        let newest = names.last().cloned();
        for name in names {
            let path = self.path_of(&name);
            let file = File::open(&path).at(&path)?;
            let bytes = file.metadata().at(&path)?.len();
            let mut head = [0; HEADER];
            let n = match file.read_at(&mut head, 0) {
                Err(error) if error.raw_os_error() == Some(libc::EIO) => 0, // a bad sector: rebuild the file
                read => read.at(&path)?,
            };
            let whole = bytes == self.file_bytes() as u64 && n == HEADER;
            lost |= !whole && (tolerant || n < HEADER || Header::decode(&head).count <= 1);
            // The next file is created when one is full. A file that counts fewer entries has a damaged head and would
            // hide entries.
            let full = Header::decode(&head).count >= self.entries as i32;
            let growing = Some(&name) == newest.as_ref();
            lost |= tolerant && !full && !growing;
            // The header determines from where on to index again, so it needs a check.
            lost |= tolerant && !lost && !self.ends_agree(&file, &Header::decode(&head), growing);
            if lost {
                if !self.read_only {
                    self.door.remove(&path).at(&path)?;
                    self.names_changed = true;
                }
                let end = self.files.last().map_or(0, |file| file.header.end_pos);
                self.lost_from.get_or_insert(end);
                continue;
            }
            if !whole {
                let reason = format!(
                    "an index file of {} slots and {} entries has {} bytes, this one {bytes}, and so ends",
                    self.slots,
                    self.entries,
                    self.file_bytes()
                );
                return Err(Fault::damage(&path, bytes, reason));
            }
            let mut header = Header::decode(&head);
            header.count = header.count.min(self.entries as i32);
            if header.count <= 1 && header.end_pos == 0 {
                if let Some(before) = self.files.last() {
                    header = header_after(&before.header);
                }
            }
            self.files.push(IndexFile {
                name,
                header,
                map: Map::Closed,
            });
        }
        Ok(())
    }

    /// The positions in the header are those of the first and the last entry, and are not lower than those of the known
    /// files. After a power loss, the header of the newest file may be older than its last entries, or newer.
    fn ends_agree(&self, file: &File, header: &Header, growing: bool) -> bool {
        let count = header.count.min(self.entries as i32);
        let entry = |number: i32| {
            let mut entry = [0; ENTRY];
            let read = file.read_exact_at(&mut entry, self.entry_at(number) as u64);
            read.ok().map(|()| entry)
        };
        if count <= 1 {
            // A damaged count would hide the entries, and later ones would replace them.
            return count >= 0 && entry(1) == Some([0; ENTRY]);
        }
        let entry_pos = |number: i32| entry(number).map(|entry| long(&entry, 4));
        let before = self.files.last().map_or(0, |file| file.header.end_pos);
        before <= header.begin_pos
            && header.begin_pos <= header.end_pos
            && entry_pos(1) == Some(header.begin_pos)
            && (growing || entry_pos(count - 1) == Some(header.end_pos))
    }

    /// Removes the files that end after `timestamp_ms`, and the last one if it is inconsistent. Returns where in the
    /// log to index again from: the first record of the first removed file. Files after a removed one are removed with
    /// it, whatever their times (a clock may have been set back): entries are never added before existing ones.
    pub fn drop_after(&mut self, timestamp_ms: i64) -> Outcome<i64> {
        let mut again = -1;
        let mut kept = vec![];
        let count = self.files.len();
        for (i, mut file) in std::mem::take(&mut self.files).into_iter().enumerate() {
            let drop = again >= 0
                || file.header.end_timestamp > timestamp_ms
                || i + 1 == count && !self.holds_together(&mut file)?;
            if !drop {
                kept.push(file);
                continue;
            }
            if again < 0 {
                again = file.header.begin_pos.max(0);
            }
            self.remove_file(file)?;
        }
        self.files = kept;
        if let Some(lost) = self.lost_from.take() {
            again = if again < 0 { lost } else { again.min(lost) };
        }
        self.repeat_last = again >= 0;
        Ok(again)
    }

    /// Removes the files from `name` on, and returns where in the log to index again from: the end of the kept files.
    /// Also if no file has that name. -1: nothing is missing ("": only the files that `load` had to remove count).
    pub fn drop_from(&mut self, name: &str) -> Outcome<i64> {
        let mut again = self.lost_from.take().unwrap_or(-1);
        if !name.is_empty() {
            while self.files.last().is_some_and(|file| file.name.as_str() >= name) {
                let file = self.files.pop().expect("it has a last one");
                self.remove_file(file)?;
            }
            again = self.files.last().map_or(0, |file| file.header.end_pos);
        }
        self.repeat_last |= again >= 0;
        Ok(again)
    }

    /// Whether no slot of the file names an entry that its header does not count.
    fn holds_together(&self, file: &mut IndexFile) -> Outcome<bool> {
        self.open_for_reading(file)?;
        let slots = &file.map.bytes()[HEADER..HEADER + SLOT * self.slots as usize];
        let whole = slots.chunks_exact(SLOT).all(|slot| int(slot, 0) < file.header.count);
        Ok(whole && !file.map.is_spoiled())
    }

    /// Removes the first file with an unreadable page, and those after it. Returns where in the log to index again from
    /// (a record's position); None: nothing is missing.
    pub fn drop_spoiled(&mut self) -> Outcome<Option<i64>> {
        if self.read_only {
            return Ok(None);
        }
        if let Some(first) = self.files.iter().position(|file| file.map.is_spoiled()) {
            self.lost_from_file(first)?;
        }
        let again = self.lost_from.take();
        self.repeat_last |= again.is_some();
        Ok(again)
    }

    /// Removes the files with entries of records at or after `pos`. Returns where in the log to index again from (a
    /// record's position, `pos` at most); None: there are no such files.
    pub fn drop_at(&mut self, pos: i64) -> Outcome<Option<i64>> {
        let Some(first) = self.files.iter().position(|file| file.header.end_pos >= pos) else {
            return Ok(None);
        };
        if self.read_only {
            return Ok(None);
        }
        self.lost_from_file(first)?;
        let again = self.lost_from.take().map(|again| again.min(pos));
        self.repeat_last |= again.is_some();
        Ok(again)
    }

    /// Removes the files from this one on, and records that their records are not indexed.
    fn lost_from_file(&mut self, first: usize) -> Outcome<()> {
        let again = self.files[first].header.begin_pos.max(0);
        self.lost_from = Some(self.lost_from.map_or(again, |lost| lost.min(again)));
        for file in self.files.split_off(first).into_iter().rev() {
            self.remove_file(file)?;
        }
        Ok(())
    }

    fn remove_file(&mut self, file: IndexFile) -> Outcome<()> {
        if !self.read_only {
            let path = self.path_of(&file.name);
            drop(file.map);
            match self.door.remove(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {} // already removed
                removed => removed.at(&path)?,
            }
            self.names_changed = true;
        }
        self.changed.retain(|name| *name != file.name);
        Ok(())
    }

    /// Removes the leading files whose last record is below `min_pos`, never the last file.
    pub fn delete_below(&mut self, min_pos: i64) -> Outcome<usize> {
        let mut removed = 0;
        while self.files.len() > 1 && self.files[0].header.end_pos < min_pos {
            let file = self.files.remove(0);
            self.remove_file(file)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Slots and entries of each file.
    pub fn geometry(&self) -> (u32, u32) {
        (self.slots, self.entries)
    }

    pub fn headers(&self) -> impl Iterator<Item = (&str, &Header)> {
        self.files.iter().map(|file| (file.name.as_str(), &file.header))
    }

    // ------------------------------------------------------------------ adding

    /// True if the record at `pos` lies before the end of what is indexed.
    #[inline]
    pub fn has_passed(&self, pos: i64) -> bool {
        self.files.last().is_some_and(|file| pos < file.header.end_pos)
    }

    /// How many keys of the record at `pos` are indexed already: only the last record can be indexed in part.
    #[inline]
    pub fn keys_of_last(&mut self, pos: i64) -> Outcome<usize> {
        if self.files.last().is_none_or(|file| file.header.end_pos != pos) || std::mem::take(&mut self.repeat_last) {
            return Ok(0);
        }
        let mut known = 0;
        let mut files = std::mem::take(&mut self.files);
        let outcome = (|| {
            for file in files.iter_mut().rev() {
                self.open_for_reading(file)?;
                for number in (1..file.header.count).rev() {
                    if long(file.map.bytes(), self.entry_at(number) + 4) != pos {
                        return Ok(());
                    }
                    known += 1;
                }
            }
            Ok(())
        })();
        self.files = files;
        outcome.map(|()| known)
    }

    /// Adds one entry. `key` is the string hash of `topic#key`.
    #[inline]
    pub fn put(&mut self, key: i32, pos: i64, store_timestamp: i64) -> Outcome<()> {
        if !matches!(self.files.last(), Some(IndexFile { header, map: Map::Writing(_), .. }) if header.count < self.entries as i32)
        {
            self.open_for_writing()?;
        }
        let (slots, entries_at) = (self.slots, HEADER + SLOT * self.slots as usize);
        let Some(IndexFile {
            name,
            header,
            map: Map::Writing(map),
        }) = self.files.last_mut()
        else {
            return Ok(());
        };
        let key = key_hash(key);
        let number = header.count;
        let slot_at = HEADER + SLOT * (key as u32 % slots) as usize;
        let entry_at = entries_at + ENTRY * number as usize;
        let bytes = map.bytes();
        let mut older = int(bytes, slot_at);
        if older == number && key_slot(int(bytes, entry_at), slots) == key as u32 % slots {
            // the process died between the slot and the header: the new entry keeps the chain of the lost one
            older = int(bytes, entry_at + 16);
        }
        if older <= 0 || older >= number {
            older = 0;
        }
        let seconds = if header.begin_timestamp <= 0 {
            0
        } else {
            (store_timestamp.saturating_sub(header.begin_timestamp) / 1000).clamp(0, i64::from(i32::MAX)) as i32
        };
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&key.to_be_bytes());
        entry[4..12].copy_from_slice(&pos.to_be_bytes());
        entry[12..16].copy_from_slice(&seconds.to_be_bytes());
        entry[16..].copy_from_slice(&older.to_be_bytes());
        if number <= 1 {
            header.begin_pos = pos;
            header.begin_timestamp = store_timestamp;
        }
        header.slots_used = header.slots_used.wrapping_add(i32::from(older == 0));
        header.count += 1;
        header.end_pos = pos;
        header.end_timestamp = store_timestamp;
        map.write(entry_at, &entry)
            .and_then(|()| map.write(slot_at, &number.to_be_bytes()))
            .and_then(|()| map.write(0, &header.encode()))
            .at(map.path())?;
        if self.changed.last() != Some(name) {
            self.changed.push(name.clone());
        }
        Ok(())
    }

    /// Makes the last file writable, or creates a new one if the last one is full or missing.
    #[cold]
    fn open_for_writing(&mut self) -> Outcome<()> {
        let bytes = self.file_bytes();
        if let Some(file) = self.files.last_mut() {
            if file.header.count < self.entries as i32 {
                let path = self.folder.join(&file.name);
                let open = self.door.open(&path).at(&path)?;
                open.allocate(bytes as u64).at(&path)?; // RocketMQ's files have holes
                file.map = Map::Writing(open.write_map().at(&path)?);
                return Ok(());
            }
            file.map = Map::Closed;
        }
        let name = self.next_name(now());
        let path = self.path_of(&name);
        let made = self.door.create_sized(&path, bytes as u64, true).inspect_err(|_| {
            // Otherwise each attempt on a full disk would leave an empty file, and readers would take each of them for
            // damage.
            let _ = self.door.remove(&path);
        });
        let made = made.at(&path)?;
        let mut map = made.write_map().at(&path)?;
        let header = self
            .files
            .last()
            .map(|file| header_after(&file.header))
            .unwrap_or(Header {
                count: 1,
                ..Header::default()
            });
        map.write(0, &header.encode()).at(&path)?;
        self.names_changed = true;
        self.files.push(IndexFile {
            name,
            header,
            map: Map::Writing(map),
        });
        Ok(())
    }

    /// Local time, but always later than the last file's name: clocks go back, and two files may be created within 1
    /// ms.
    fn next_name(&self, now: SystemTime) -> String {
        let name = local_time_name(now);
        match self.files.last() {
            Some(last) if *last.name >= *name => {
                let number = last.name.parse::<u64>().unwrap_or(0) + 1;
                format!("{number:017}")
            }
            _ => name,
        }
    }

    /// What has to be synced: files, the folder if names changed, and the store time of the last entry.
    pub fn take_changed(&mut self) -> (Vec<PathBuf>, Option<PathBuf>, i64) {
        let files = std::mem::take(&mut self.changed)
            .iter()
            .map(|name| self.path_of(name))
            .collect();
        let folder = std::mem::take(&mut self.names_changed).then(|| self.folder.clone());
        (
            files,
            folder,
            self.files.last().map_or(0, |file| file.header.end_timestamp),
        )
    }

    pub fn sync_failed(&mut self, files: &[PathBuf], folder: bool) {
        let names = files
            .iter()
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned());
        self.changed.splice(0..0, names);
        self.names_changed |= folder;
    }

    // ------------------------------------------------------------------ finding

    fn open_for_reading(&self, file: &mut IndexFile) -> Outcome<()> {
        if matches!(file.map, Map::Closed) {
            let path = self.path_of(&file.name);
            let open = File::open(&path).at(&path)?;
            let map = ReadMap::new(&open, &path).at(&path)?;
            if map.len() != self.file_bytes() {
                return Err(Fault::damage(
                    &path,
                    map.len() as u64,
                    "the index file's length has changed, it ends",
                ));
            }
            file.map = Map::Reading(map);
        }
        Ok(())
    }

    /// Positions of entries with this hash whose time (in whole seconds of the file) lies in [begin, end], newest first.
    pub fn find(&mut self, key: i32, most: usize, begin: i64, end: i64) -> Outcome<Vec<i64>> {
        let mut found = vec![];
        let key = key_hash(key);
        let mut files = std::mem::take(&mut self.files);
        let outcome = (|| {
            for file in files.iter_mut().rev() {
                if file.header.meets(begin, end) {
                    self.open_for_reading(file)?;
                    self.find_in(file, key, most, begin, end, &mut found);
                }
                if file.header.begin_timestamp < begin || found.len() >= most {
                    break;
                }
            }
            Ok(())
        })();
        self.files = files;
        outcome.map(|()| found)
    }

    /// The newest file that has an entry with this hash and position; None: no file has one.
    pub fn file_of(&mut self, key: i32, pos: i64) -> Outcome<Option<String>> {
        let key = key_hash(key);
        let mut files = std::mem::take(&mut self.files);
        let outcome = (|| {
            for file in files.iter_mut().rev() {
                self.open_for_reading(file)?;
                let mut found = vec![];
                self.find_in(file, key, usize::MAX, i64::MIN, i64::MAX, &mut found);
                if found.contains(&pos) {
                    return Ok(Some(file.name.clone()));
                }
            }
            Ok(None)
        })();
        self.files = files;
        outcome
    }

    fn find_in(&self, file: &IndexFile, key: i32, most: usize, begin: i64, end: i64, found: &mut Vec<i64>) {
        let bytes = file.map.bytes();
        let mut number = int(bytes, HEADER + SLOT * key_slot(key, self.slots) as usize);
        // Chains lead only to older entries; one that does not is damaged, and following it might never end.
        let mut bound = file.header.count;
        while number > 0 && number < bound && found.len() < most {
            let at = self.entry_at(number);
            let seconds = int(bytes, at + 12);
            if seconds < 0 {
                break;
            }
            let time = file.header.begin_timestamp.saturating_add(i64::from(seconds) * 1000);
            if int(bytes, at) == key && (begin..=end).contains(&time) {
                found.push(long(bytes, at + 4));
            }
            if time < begin {
                break;
            }
            bound = number;
            number = int(bytes, at + 16);
        }
    }
}

/// The byte of a file's entry.
pub fn entry_at(slots: u32, number: usize) -> usize {
    HEADER + SLOT * slots as usize + ENTRY * number
}

pub fn key_slot(key: i32, slots: u32) -> u32 {
    key as u32 % slots
}

/// A new file begins with the end of the previous one, until its first entry replaces these values.
fn header_after(before: &Header) -> Header {
    let mut header = Header {
        count: 1,
        ..Header::default()
    };
    if before.end_pos > 0 {
        (header.begin_pos, header.end_pos) = (before.end_pos, before.end_pos);
    }
    if before.end_timestamp > 0 {
        (header.begin_timestamp, header.end_timestamp) = (before.end_timestamp, before.end_timestamp);
    }
    header
}

fn local_time_name(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs() as libc::time_t;
    // SAFETY: `tm` is plain data that localtime_r fills; it is only read afterwards.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut tm);
        tm
    };
    format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}{:03}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
        since.subsec_millis()
    )
}

/// Syncs a file through a separate descriptor, so that no other thread waits: this also writes mapped pages.
pub fn sync_file(door: &Door, path: &Path) -> Outcome<()> {
    match door.open(path).and_then(|file| file.sync_data()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()), // removed in the meantime
        done => done.at(path),
    }
}
