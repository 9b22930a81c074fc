//! Read-only maps of the log's segments, made on first use and dropped on request.
//!
//! A map is shared (`Arc`): a reader that still holds one keeps the pages of a deleted file until it is done. Segments
//! have their full length from creation, so a map never needs to grow. Bytes after the written end are not part of the
//! log yet, and callers limit their reads themselves.
//!
//! A page that the disk cannot read is replaced (`guard`), and a caller calls `LogSegment::spoils` before it uses what
//! it read. A map with such a page is made again after `RENEW_AFTER`: the error may have been temporary. Until then the
//! disk is not asked again, because that may take seconds each time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::entry::record_holds;
use crate::fault::{At, Fault, Outcome};
use crate::guard::ReadMap;
use crate::record::Record;

/// A process may hold 65530 maps; old segments are mapped again when they are read again.
const MOST_MAPS: usize = 4096;
/// A map with a page that could not be read is used for this long.
const RENEW_AFTER: Duration = Duration::from_secs(60);

/// The segment's name: the position of its first byte in the log, 20 digits.
pub fn segment_name(start: u64) -> String {
    format!("{start:020}")
}

/// The starts of the segments in a folder, sorted; other names are skipped. A missing folder has no segments.
pub fn segment_starts(folder: &Path) -> Outcome<Vec<u64>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.at(folder)?,
    };
    let mut starts = vec![];
    for entry in entries {
        let name = entry.at(folder)?.file_name();
        let name = name.to_str().unwrap_or("");
        if name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()) {
            if let Ok(start) = name.parse() {
                starts.push(start);
            }
        }
    }
    starts.sort_unstable();
    Ok(starts)
}

/// One mapped segment.
#[derive(Clone)]
pub struct LogSegment {
    pub start: u64,
    pub map: Arc<ReadMap>,
}

pub struct LogMaps {
    folder: PathBuf,
    segment_bytes: u64,
    maps: Mutex<BTreeMap<u64, (Arc<ReadMap>, Instant)>>,
}

/// The result of `make`. If the address space has no room for it (a limit of the process), all maps are dropped and
/// `make` is called once more; dropped maps are made again when they are read again.
fn make_room<M, T>(maps: &mut BTreeMap<u64, M>, mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && !maps.is_empty() => {
            maps.clear();
            make()
        }
        made => made,
    }
}

impl LogMaps {
    pub fn new(folder: PathBuf, segment_bytes: u64) -> LogMaps {
        LogMaps {
            folder,
            segment_bytes,
            maps: Mutex::default(),
        }
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn start_of(&self, pos: u64) -> u64 {
        pos - pos % self.segment_bytes
    }

    pub fn path_of(&self, start: u64) -> PathBuf {
        self.folder.join(segment_name(start))
    }

    /// The segment that holds `pos`; None if it has no file (or an empty one, just being created).
    pub fn segment(&self, pos: u64) -> Outcome<Option<LogSegment>> {
        let start = self.start_of(pos);
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((map, made)) = maps.get(&start) {
            if !map.is_spoiled() || made.elapsed() < RENEW_AFTER {
                return Ok(Some(LogSegment {
                    start,
                    map: map.clone(),
                }));
            }
            maps.remove(&start);
        }
        let path = self.path_of(start);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.at(&path)?,
        };
        let bytes = file.metadata().at(&path)?.len();
        if bytes == 0 {
            return Ok(None);
        }
        if bytes != self.segment_bytes {
            let reason = format!(
                "a log segment has {} bytes, this one {bytes}, and so ends",
                self.segment_bytes
            );
            return Err(Fault::damage(&path, bytes, reason));
        }
        let map = Arc::new(make_room(&mut maps, || ReadMap::new(&file, &path)).at(&path)?);
        if maps.len() >= MOST_MAPS {
            maps.pop_first();
        }
        maps.insert(start, (map.clone(), Instant::now()));
        Ok(Some(LogSegment { start, map }))
    }

    pub fn forget(&self, start: u64) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        maps.remove(&self.start_of(start));
    }

    pub fn forget_all(&self) {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl LogSegment {
    /// `size` bytes at `pos`; None if they do not lie within this segment.
    pub fn slice(&self, pos: u64, size: usize) -> Option<&[u8]> {
        let at = usize::try_from(pos.checked_sub(self.start)?).ok()?;
        self.map.get(at..at.checked_add(size)?)
    }

    /// Checks that the record at `pos` has the stored bytes, as far as a CRC covers them.
    #[inline]
    pub fn holds(&self, record: &Record<'_>, pos: u64, entry_header: usize) -> bool {
        record_holds(&self.map, self.start, (pos - self.start) as usize, record, entry_header)
    }

    /// Whether one of these bytes could not be read, so that other bytes were read in its place. Call it after the
    /// read.
    #[inline]
    pub fn spoils(&self, pos: u64, size: usize) -> bool {
        self.map.is_spoiled() && self.map.spoils(pos.saturating_sub(self.start) as usize, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(number: i32, times: usize) -> (io::Result<()>, usize, usize) {
        let mut maps = BTreeMap::from([(0, ()), (1, ())]);
        let mut calls = 0;
        let made = make_room(&mut maps, || {
            calls += 1;
            if calls <= times {
                return Err(io::Error::from_raw_os_error(number));
            }
            Ok(())
        });
        (made, calls, maps.len())
    }

    #[test]
    fn only_a_full_address_space_drops_the_other_maps() {
        assert!(matches!(failing(libc::ENOMEM, 0), (Ok(()), 1, 2)));
        assert!(matches!(failing(libc::ENOMEM, 1), (Ok(()), 2, 0)));
        assert!(matches!(failing(libc::ENOMEM, 2), (Err(_), 2, 0)));
        assert!(matches!(failing(libc::EACCES, 1), (Err(_), 1, 2)));
    }
}
