//! The files of a log, or of a ledger's index, mapped one by one for a check.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memmem;
use pyo3::prelude::*;

use super::FilesOf;
use crate::fault::At;
use crate::guard::ReadMap;
use crate::maps::segment_name;
use crate::record::int;

const MOST_MAPS: usize = 16;
/// What is fetched at once where a store is not mounted.
const BLOCK: u64 = 64 << 10;

/// Bytes that a processor fetches together.
const LINE: usize = 64;
/// Before the body of a record, without its entry's header, and behind it, in most cases.
const FIXED_BYTES: u64 = 88;
const TAIL_BYTES: i64 = 160;

pub struct Files {
    pub folder: PathBuf,
    pub segment_bytes: u64,
    /// First bytes, ascending.
    pub starts: Vec<u64>,
    maps: BTreeMap<u64, Arc<ReadMap>>,
    /// bring(path, begin, end): fetches bytes of a file before they are read; None: all bytes are there.
    bring: Option<Py<PyAny>>,
    brought: (u64, u64, u64),
}

impl Files {
    pub fn of((folder, segment_bytes, starts, bring): FilesOf) -> Files {
        Files {
            folder,
            segment_bytes,
            starts,
            maps: BTreeMap::new(),
            bring,
            brought: (0, 0, 0),
        }
    }

    pub fn path(&self, start: u64) -> PathBuf {
        self.folder.join(segment_name(start))
    }

    /// The start of the file with this byte.
    pub fn start_of(&self, pos: i64) -> Option<u64> {
        start_of(&self.starts, self.segment_bytes, pos)
    }

    /// A file that exists, mapped.
    pub fn map(&mut self, start: u64) -> PyResult<Arc<ReadMap>> {
        if let Some(map) = self.maps.get(&start) {
            return Ok(map.clone());
        }
        while self.maps.len() >= MOST_MAPS {
            self.maps.pop_first();
        }
        let path = self.path(start);
        let file = File::open(&path).at(&path)?;
        let map = Arc::new(ReadMap::new(&file, &path).at(&path)?);
        self.maps.insert(start, map.clone());
        Ok(map)
    }

    /// Lets the processor fetch some bytes at `pos` from memory, because they will be read soon. A check looks at records
    /// far from each other and would wait for most of them.
    #[inline]
    pub fn expect(&self, pos: i64, bytes: u64) {
        let Some(start) = self.start_of(pos) else { return };
        let Some(map) = self.maps.get(&start) else { return };
        let at = pos as u64 - start;
        for line in (at..at + bytes).step_by(LINE) {
            prefetch(map, line as usize);
        }
    }

    /// The same for a record: its fixed fields, and its end with topic and properties.
    #[inline]
    pub fn expect_record(&self, pos: i64, size: i32) {
        self.expect(pos, FIXED_BYTES);
        self.expect(pos.saturating_add(i64::from(size)) - TAIL_BYTES, TAIL_BYTES as u64);
    }

    /// The size that a record at `pos` states; None: its file is not mapped.
    #[inline]
    pub fn stated_size(&self, pos: i64) -> Option<i32> {
        let start = self.start_of(pos)?;
        let at = (pos as u64 - start) as usize;
        let size = self.maps.get(&start)?.get(at..at + 4)?;
        Some(int(size, 0))
    }

    /// Makes bytes [begin, end) of a file readable.
    pub fn fetch(&mut self, start: u64, begin: u64, end: u64) -> PyResult<()> {
        let Some(bring) = &self.bring else { return Ok(()) };
        let (file, low, high) = self.brought;
        if file == start && low <= begin && end <= high {
            return Ok(());
        }
        let (low, high) = (begin / BLOCK * BLOCK, end.div_ceil(BLOCK) * BLOCK);
        let path = self.path(start);
        Python::attach(|py| bring.call1(py, (path, low, high)))?;
        self.brought = (start, low, high);
        Ok(())
    }

    /// `size` bytes at `pos`; None unless one file has them all. Bytes that the disk does not return are filled.
    pub fn read(&mut self, pos: i64, size: usize) -> PyResult<Option<Vec<u8>>> {
        let Some(start) = self.start_of(pos) else {
            return Ok(None);
        };
        let at = pos as u64 - start;
        if at + size as u64 > self.segment_bytes {
            return Ok(None);
        }
        self.fetch(start, at, at + size as u64)?;
        let map = self.map(start)?;
        Ok(map.get(at as usize..at as usize + size).map(<[u8]>::to_vec))
    }

    /// The written parts of a file from `offset` on, as far as the file system tells.
    pub fn data_parts(&self, start: u64, offset: u64) -> PyResult<Vec<(u64, u64)>> {
        let path = self.path(start);
        let file = File::open(&path).at(&path)?;
        Ok(parts(&file, offset).at(&path)?)
    }

    /// Where the log ends as far as its files go.
    pub fn end(&self) -> u64 {
        self.starts.last().map_or(0, |start| start + self.segment_bytes)
    }
}

/// Advice: it changes nothing, and reads nothing behind the end.
#[inline]
pub fn prefetch<T>(values: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(value) = values.get(at) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: every processor of this kind has the instruction, which takes any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, at);
}

/// The start of the file with this byte. Files need not begin at a multiple of their size: the first one of dledger begins
/// where an older log ended. Among files that overlap, the one that continues the first file counts.
pub fn start_of(starts: &[u64], segment_bytes: u64, pos: i64) -> Option<u64> {
    let pos = u64::try_from(pos).ok()?;
    let first = *starts.first()?;
    let start = pos.checked_sub(first)? / segment_bytes * segment_bytes + first;
    if starts.binary_search(&start).is_ok() {
        return Some(start);
    }
    let has = |start: &&u64| **start <= pos && pos < **start + segment_bytes;
    starts.iter().find(has).copied()
}

fn parts(file: &File, mut offset: u64) -> io::Result<Vec<(u64, u64)>> {
    let bytes = file.metadata()?.len();
    let mut parts = vec![];
    while offset < bytes {
        let Some(begin) = crate::queue::seek(file, offset, libc::SEEK_DATA)? else {
            break;
        };
        let end = crate::queue::seek(file, begin, libc::SEEK_HOLE)?.unwrap_or(bytes);
        parts.push((begin, end));
        offset = end;
    }
    Ok(parts)
}

/// Where a record's magic stands in [from, to) of `bytes`.
pub fn next_magic(bytes: &[u8], from: usize, to: usize) -> Option<usize> {
    let part = bytes.get(from..to.min(bytes.len()))?;
    memmem::find_iter(part, &[0xDA, 0xA3, 0x20])
        .find(|&at| matches!(part.get(at + 3), Some(0xA7 | 0xAB)))
        .map(|at| from + at)
}

/// The place of a finding: the file with a position, and the byte in it.
pub fn place(files: &Files, pos: u64) -> (PathBuf, u64) {
    match files.start_of(pos as i64) {
        Some(start) => (files.path(start), pos - start),
        None => (files.path(pos), 0),
    }
}

pub fn segment_path(folder: &Path, start: u64) -> PathBuf {
    folder.join(segment_name(start))
}
