//! ConsumeQueueExt: data that does not fit into a queue's unit, with the bit map of a SQL filter.
//!
//! ```text
//! at  size  field
//!  0     2  size of the unit, 20 at least
//!  2     8  tags code
//! 10     8  store time
//! 18     2  bytes of the bit map
//! 20     n  bit map
//! ```
//!
//! A unit's address is its byte in the queue's extension files minus 2^63. It stands in the ConsumeQueue in place of
//! the tags code; a value below the 32-bit integers is such an address. -1 in place of a size ends a file. Source:
//! RocketMQ 4.8.0, ConsumeQueueExt.java. Fixed: it is on disks.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::fault::{At, Outcome};
use crate::gentle::GentleWindow;
use crate::maps::{segment_name, segment_starts};
use crate::record::long;

/// Bytes of a unit without a bit map. Fixed: it is on disks.
pub const HEAD: usize = 20;
pub const MOST_BYTES: u64 = i16::MAX as u64;
/// The greatest tags code that is an address.
const LAST_ADDRESS: i64 = i32::MIN as i64 - 1;
const MOST_OPEN: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtUnit {
    pub size: u16,
    pub tags_code: i64,
    pub store_timestamp: i64,
    pub bit_map: Vec<u8>,
}

pub fn is_address(tags_code: i64) -> bool {
    tags_code <= LAST_ADDRESS
}

/// The byte in the queue's extension that an address means.
pub fn place_of(address: i64) -> u64 {
    address.wrapping_sub(i64::MIN) as u64
}

/// The address of a byte; None after the last byte that has an address.
pub fn address_of(place: u64) -> Option<i64> {
    let address = i64::MIN.checked_add_unsigned(place)?;
    is_address(address).then_some(address)
}

/// The unit at the start of `bytes`; None if there is no sound unit.
pub fn decode(bytes: &[u8]) -> Option<ExtUnit> {
    let head = bytes.get(..HEAD)?;
    let size = u16::from_be_bytes([head[0], head[1]]);
    let bit_map_len = usize::from(u16::from_be_bytes([head[18], head[19]]));
    if u64::from(size) > MOST_BYTES || usize::from(size) != HEAD + bit_map_len {
        return None;
    }
    Some(ExtUnit {
        size,
        tags_code: long(head, 2),
        store_timestamp: long(head, 10),
        bit_map: bytes.get(HEAD..usize::from(size))?.to_vec(),
    })
}

/// The file of a queue's extension that was read last, and some of its bytes.
struct OpenFile {
    path: PathBuf,
    file: File,
    start: u64,
    end: u64,
    /// Where `bytes` begin in the file.
    at: u64,
    bytes: Vec<u8>,
    /// `bytes` were read while no writer was known, which may have changed them since.
    unbounded: bool,
}

impl OpenFile {
    /// Pulls read unit after unit.
    const PIECE: u64 = 1 << 14;

    /// The unit at byte `at` of the extension. Bytes from `limit` on may still change, and are not kept.
    fn unit(&mut self, at: u64, limit: u64) -> Outcome<Option<ExtUnit>> {
        let at = at - self.start;
        let from = at.checked_sub(self.at).and_then(|from| usize::try_from(from).ok());
        if let Some(bytes) = from.and_then(|from| self.bytes.get(from..)) {
            if let Some(unit) = decode(bytes).filter(|_| !self.unbounded || limit == u64::MAX) {
                return Ok(Some(unit));
            }
        }
        let most = limit
            .saturating_sub(self.start)
            .min(self.end - self.start)
            .saturating_sub(at);
        for piece in [Self::PIECE, MOST_BYTES] {
            self.bytes.resize(piece.min(most) as usize, 0);
            let n = self.file.read_at(&mut self.bytes, at).at(&self.path)?;
            self.bytes.truncate(n);
            (self.at, self.unbounded) = (at, limit == u64::MAX);
            if let Some(unit) = decode(&self.bytes) {
                return Ok(Some(unit));
            }
        }
        self.bytes.clear();
        Ok(None)
    }
}

pub struct ExtFiles {
    folder: PathBuf,
    open: HashMap<Box<[u8]>, HashMap<i32, OpenFile>>,
    open_count: usize,
}

impl ExtFiles {
    pub fn new(folder: PathBuf) -> ExtFiles {
        ExtFiles {
            folder,
            open: HashMap::new(),
            open_count: 0,
        }
    }

    pub fn close(&mut self) {
        self.open.clear();
        self.open_count = 0;
    }

    /// The unit at `address`; None if `address` is not valid or no sound unit lies there. Bytes of the extension from
    /// `limit` on may still be written.
    pub fn unit(&mut self, topic: &[u8], queue: i32, address: i64, limit: u64) -> Outcome<Option<ExtUnit>> {
        if !is_address(address) {
            return Ok(None);
        }
        let at = place_of(address);
        let open = self.open.get_mut(topic).and_then(|queues| queues.get_mut(&queue));
        if let Some(open) = open.filter(|open| (open.start..open.end).contains(&at)) {
            if let Some(unit) = open.unit(at, limit)? {
                return Ok(Some(unit));
            }
        }
        let Some(mut open) = self.find(topic, queue, at)? else {
            return Ok(None);
        };
        let unit = open.unit(at, limit)?;
        if self.open_count >= MOST_OPEN {
            self.close();
        }
        let queues = match self.open.get_mut(topic) {
            Some(queues) => queues,
            None => self.open.entry(topic.into()).or_default(),
        };
        self.open_count += usize::from(queues.insert(queue, open).is_none());
        Ok(unit)
    }

    /// The file that has byte `at`. The size of the files is a setting that is not needed here: the file is the last one
    /// that begins at or before the byte.
    fn find(&self, topic: &[u8], queue: i32, at: u64) -> Outcome<Option<OpenFile>> {
        let folder = self
            .folder
            .join(std::ffi::OsStr::from_bytes(topic))
            .join(queue.to_string());
        let starts = segment_starts(&folder)?;
        let Some(&start) = starts[..starts.partition_point(|&start| start <= at)].last() else {
            return Ok(None);
        };
        let path = folder.join(segment_name(start));
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None), // removed in the meantime
            file => file.at(&path)?,
        };
        let end = start + file.metadata().at(&path)?.len();
        Ok((at < end).then_some(OpenFile {
            path,
            file,
            start,
            end,
            at: 0,
            bytes: vec![],
            unbounded: false,
        }))
    }
}

/// Reads extensions past the page cache, for a scrub.
pub struct ExtWindow {
    folder: PathBuf,
    open: Option<(PathBuf, u64, GentleWindow)>,
    /// Bytes that were read.
    pub read: u64,
}

impl ExtWindow {
    const PIECE: usize = 1 << 16;

    pub fn new(folder: PathBuf) -> ExtWindow {
        ExtWindow {
            folder,
            open: None,
            read: 0,
        }
    }

    /// The unit at a byte of a queue's extension; None: no sound unit lies there.
    pub fn unit(&mut self, topic: &[u8], queue: i32, place: u64) -> Outcome<Option<ExtUnit>> {
        let folder = self
            .folder
            .join(std::ffi::OsStr::from_bytes(topic))
            .join(queue.to_string());
        if let Some(unit) = self.look(&folder, place)? {
            return Ok(Some(unit));
        }
        // The bytes in the window may be older than the unit.
        let starts = segment_starts(&folder)?;
        let Some(&start) = starts[..starts.partition_point(|&start| start <= place)].last() else {
            return Ok(None);
        };
        let path = folder.join(segment_name(start));
        self.open = match GentleWindow::open(&path, Self::PIECE) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => Some((folder.clone(), start, opened.at(&path)?)),
        };
        self.look(&folder, place)
    }

    fn look(&mut self, folder: &Path, place: u64) -> Outcome<Option<ExtUnit>> {
        let Some((have, start, window)) = &mut self.open else {
            return Ok(None);
        };
        let inside = *start <= place && place - *start < window.file_bytes();
        if have != folder || !inside {
            return Ok(None);
        }
        let (at, before) = (place - *start, window.read);
        let left = (window.file_bytes() - at) as usize;
        let mut unit = None;
        for bytes in [256, MOST_BYTES as usize] {
            let read = window.get(at, bytes.min(left));
            match read {
                Err(error) if error.raw_os_error() == Some(libc::EIO) => break,
                read => unit = read.at(folder)?.and_then(decode),
            }
            if unit.is_some() {
                break;
            }
        }
        self.read += window.read - before;
        Ok(unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_unit_follows_from_its_bit_map() {
        let mut bytes = [0; 64];
        bytes[0..2].copy_from_slice(&22u16.to_be_bytes());
        bytes[18..20].copy_from_slice(&2u16.to_be_bytes());
        bytes[20..22].copy_from_slice(&[5, 6]);
        assert_eq!(decode(&bytes).unwrap().bit_map, [5, 6]);
        for wrong in [0u16, 19, 20, 21, 23, 64] {
            bytes[0..2].copy_from_slice(&wrong.to_be_bytes());
            assert_eq!(decode(&bytes), None, "{wrong}");
        }
        assert_eq!(decode(&bytes[..19]), None);
    }
}
