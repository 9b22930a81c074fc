//! Reads units of ConsumeQueues beside their broker, and leaves its page cache as it was.
//!
//! A queue's file has its full length from its creation, usually as a hole. A map of it makes the system read far ahead,
//! and each page of a hole that is read takes memory. With thousands of queues this displaces the pages that the broker
//! needs. So the file system tells where the data ends, the page with the last unit is read, and each page that was not
//! in memory before is dropped.
//!
//! A file system need not report holes, and zeros can be real blocks. Then a binary search finds the last unit. Bytes
//! that the disk cannot return count as zeros.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::unit::{Unit, UNIT};
use crate::fault::{At, Fault, Outcome};
use crate::maps::segment_name;
use crate::named::named_tuples;

const PAGE: u64 = 4096;
/// Units with a byte in a page, at most.
const UNITS_A_PAGE: u64 = PAGE / UNIT + 2;

/// One file of a queue.
pub struct Look {
    file: File,
    path: PathBuf,
    bytes: u64,
    units: u64,
    /// Pages that were read from the disk.
    brought: Vec<u64>,
}

/// Where the units of a file end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct End {
    /// Units up to the last one whose size is above 0.
    written: u64,
    /// No hole is before the last unit, and only zeros are behind it, as far as the file system tells.
    regular: bool,
}

impl Look {
    pub fn open(path: &Path) -> Outcome<Look> {
        let file = File::open(path).at(path)?;
        let bytes = file.metadata().at(path)?.len();
        advise(&file, 0, 0, libc::POSIX_FADV_RANDOM); // no page is read ahead
        Ok(Look {
            file,
            path: path.to_owned(),
            bytes,
            units: bytes / UNIT,
            brought: vec![],
        })
    }

    /// Leaves the pages in memory that were read so far: they will be read again soon.
    pub fn keep(&mut self) {
        self.brought.clear();
    }

    /// Length of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of `count` units from `first` on.
    pub fn read(&mut self, first: u64, count: u64) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; (count * UNIT) as usize];
        let at = first * UNIT;
        if !self.read_resident(&mut bytes, at) {
            self.brought.extend(at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE));
            match self.file.read_exact_at(&mut bytes, at) {
                Err(error) if error.raw_os_error() == Some(libc::EIO) => bytes.fill(0),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => bytes.fill(0), // just cut
                read => read.at(&self.path)?,
            }
        }
        Ok(bytes)
    }

    /// Whether the bytes were in memory, and are read now. A file system that cannot tell reads them as usual.
    fn read_resident(&self, bytes: &mut [u8], at: u64) -> bool {
        let vector = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the vector describes `bytes`, which the call fills.
        let read = unsafe { libc::preadv2(self.file.as_raw_fd(), &vector, 1, at as libc::off_t, libc::RWF_NOWAIT) };
        if read >= 0 {
            return read as usize == bytes.len();
        }
        io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP)
            && self.file.read_exact_at(bytes, at).is_ok()
    }

    fn unit(&mut self, number: u64) -> Outcome<Unit> {
        Ok(Unit::decode(&self.read(number, 1)?))
    }

    /// The first of units [0, `count`) for which `holds`, which holds for all later ones as well; `count`: none.
    fn first(&mut self, count: u64, mut holds: impl FnMut(&Unit) -> bool) -> Outcome<u64> {
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            if holds(&self.unit(middle)?) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }

    fn end(&mut self) -> Outcome<End> {
        let (data_end, one_part) = self.data_end().at(&self.path)?;
        let high = data_end.div_ceil(UNIT).min(self.units);
        let low = high.saturating_sub(UNITS_A_PAGE);
        let bytes = self.read(low, high - low)?;
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let last = used.div_ceil(UNIT as usize);
        let is_written = |unit: &&[u8]| Unit::decode(unit).size > 0;
        let units = bytes.chunks_exact(UNIT as usize).take(last);
        let found = units
            .clone()
            .rev()
            .position(|unit| is_written(&unit))
            .map_or(0, |behind| last - behind);
        if found > 0 {
            return Ok(End {
                written: low + found as u64,
                regular: one_part && found == last,
            });
        }
        // Blocks of zeros: units are written without gaps, so a search finds the first one that is not written.
        Ok(End {
            written: self.first(low, |unit| unit.size <= 0)?,
            regular: data_end == 0,
        })
    }

    /// Where the data ends, and whether it is one part that begins with the file. Everything is data if the file
    /// system does not report holes.
    fn data_end(&self) -> io::Result<(u64, bool)> {
        let bytes = self.units * UNIT;
        let (mut end, mut one_part) = (0, true);
        while end < bytes {
            let Some(begin) = seek(&self.file, end, libc::SEEK_DATA)? else {
                break;
            };
            one_part &= begin == end;
            end = seek(&self.file, begin, libc::SEEK_HOLE)?.unwrap_or(bytes);
        }
        Ok((end.min(bytes), one_part))
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.brought.sort_unstable();
        self.brought.dedup();
        for run in self.brought.chunk_by(|a, b| a + 1 == *b) {
            advise(
                &self.file,
                run[0] * PAGE,
                run.len() as u64 * PAGE,
                libc::POSIX_FADV_DONTNEED,
            );
        }
    }
}

fn advise(file: &File, at: u64, size: u64, advice: libc::c_int) {
    // SAFETY: a call without pointers. It is advice, so its failure changes nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), at as libc::off_t, size as libc::off_t, advice) };
}

/// Where data (or a hole) begins at or behind `from`; None: there is none. A file system that does not support the
/// question has data everywhere.
fn seek(file: &File, from: u64, what: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: a call without pointers.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, what) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        Some(libc::EINVAL | libc::EOPNOTSUPP) => Ok((what == libc::SEEK_DATA).then_some(from)),
        _ => Err(error),
    }
}

named_tuples! {
    /// Where a ConsumeQueue ends.
    QueueEnd {
        topic: String,
        queue: i64,
        first: u64,
        end: u64,
        segment_bytes: u64,
        pos: i64,
        size: i32,
        regular: bool,
    }
}

/// The queues in `folder` (consumequeue), by topic and queue as texts. `below`: newest units that name a record whose
/// end is behind this position are replaced by the newest one that names a record that begins before it.
fn queue_ends(folder: &Path, below: i64) -> Outcome<(Vec<QueueEnd>, i64)> {
    let (mut ends, mut named_end) = (vec![], -1);
    for topic in folders(folder)? {
        let path = folder.join(&topic);
        for name in folders(&path)? {
            let Some(queue) = name
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| name.parse().ok())
                .flatten()
            else {
                continue;
            };
            match queue_end(&path.join(&name), topic.clone(), queue, below, &mut named_end) {
                Err(Fault::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {} // expired
                end => ends.push(end?),
            }
        }
    }
    Ok((ends, named_end))
}

fn queue_end(folder: &Path, topic: String, queue: i64, below: i64, named_end: &mut i64) -> Outcome<QueueEnd> {
    let (starts, segment_bytes, mut regular) = segments(folder)?;
    regular &= segment_bytes % UNIT == 0;
    let first = starts.first().map_or(0, |start| start / UNIT);
    let mut found = QueueEnd {
        topic,
        queue,
        first,
        end: first,
        segment_bytes,
        pos: -1,
        size: 0,
        regular,
    };
    for (newer, &start) in starts.iter().rev().enumerate() {
        let mut look = Look::open(&folder.join(segment_name(start)))?;
        let end = look.end()?;
        found.regular &= end.regular && newer == 0;
        if end.written == 0 {
            continue;
        }
        if found.end == first {
            found.end = start / UNIT + end.written;
        }
        let mut unit = look.unit(end.written - 1)?;
        if !unit.is_blank() {
            *named_end = (*named_end).max(unit.end());
        }
        if unit.end() > below && !unit.is_blank() {
            match look.first(end.written, |unit| unit.pos >= below)? {
                0 => continue,
                count => unit = look.unit(count - 1)?,
            }
        }
        if !unit.is_blank() {
            (found.pos, found.size) = (unit.pos, unit.size);
        }
        break;
    }
    Ok(found)
}

/// The files of a queue that have the length that most have, ascending; that length; whether there is nothing else and
/// no gap.
pub fn segments(folder: &Path) -> Outcome<(Vec<u64>, u64, bool)> {
    let mut files = vec![];
    let mut regular = true;
    for entry in std::fs::read_dir(folder).at(folder)? {
        let entry = entry.at(folder)?;
        let name = entry.file_name();
        let start = name
            .to_str()
            .filter(|name| name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()));
        match (
            start.and_then(|name| name.parse::<u64>().ok()),
            std::fs::metadata(entry.path()),
        ) {
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {} // expired
            (Some(start), Ok(found)) if found.is_file() => files.push((start, found.len())),
            (Some(_), Err(error)) => return Err(error).at_path(|| entry.path()),
            _ => regular = false,
        }
    }
    files.sort_unstable();
    let count = |length: u64| files.iter().filter(|file| file.1 == length).count();
    let lengths = files.iter().map(|file| file.1).filter(|&length| length > 0);
    let length = lengths.clone().rev().max_by_key(|&length| count(length)).unwrap_or(0);
    regular &= files.iter().all(|file| file.1 == length);
    let starts: Vec<u64> = files
        .iter()
        .filter(|file| file.1 == length && length > 0)
        .map(|file| file.0)
        .collect();
    regular &= starts.windows(2).all(|pair| pair[0] + length == pair[1]);
    Ok((starts, length, regular))
}

/// The names of the folders in a folder, which may be missing, in their order.
fn folders(parent: &Path) -> Outcome<Vec<String>> {
    let entries = match std::fs::read_dir(parent) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(vec![]),
        entries => entries.at(parent)?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.at(parent)?;
        let kind = entry.file_type().at(parent)?;
        let is_folder = kind.is_dir() || kind.is_symlink() && entry.path().is_dir();
        if let (true, Ok(name)) = (is_folder, entry.file_name().into_string()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// QueueFile(path): units of one file of a ConsumeQueue.
#[pyclass(module = "tallystick.store._kernel")]
pub struct QueueFile {
    look: Option<Look>,
    end: End,
}

impl QueueFile {
    fn look(&mut self) -> PyResult<&mut Look> {
        self.look
            .as_mut()
            .ok_or_else(|| PyValueError::new_err("the file was closed"))
    }
}

#[pymethods]
impl QueueFile {
    #[new]
    fn new(path: PathBuf) -> PyResult<QueueFile> {
        let mut look = Look::open(&path)?;
        let end = look.end()?;
        Ok(QueueFile { look: Some(look), end })
    }

    #[getter]
    fn written(&self) -> u64 {
        self.end.written
    }

    #[getter]
    fn regular(&self) -> bool {
        self.end.regular
    }

    /// unit(number) -> (position, size, tags code)
    fn unit(&mut self, number: u64) -> PyResult<(i64, i32, i64)> {
        let look = self.look()?;
        if number >= look.units {
            return Err(PyIndexError::new_err(number));
        }
        let unit = look.unit(number)?;
        Ok((unit.pos, unit.size, unit.tags_code))
    }

    /// read(first, count) -> bytes
    fn read<'py>(&mut self, py: Python<'py>, first: u64, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        let look = self.look()?;
        if first.checked_add(count).is_none_or(|end| end > look.units) {
            return Err(PyIndexError::new_err(first));
        }
        Ok(PyBytes::new(py, &look.read(first, count)?))
    }

    /// first_at(pos) -> number of the first unit whose position is `pos` or greater; `written`: none is
    fn first_at(&mut self, pos: i64) -> PyResult<u64> {
        let written = self.end.written;
        Ok(self.look()?.first(written, |unit| unit.pos >= pos)?)
    }

    /// Closes the file, and drops the pages that it brought into memory.
    fn close(&mut self) {
        self.look = None;
    }
}

/// queue_ends(folder, below) -> (the queues, the greatest end of a record that a unit names)
#[pyfunction]
#[pyo3(name = "queue_ends", signature = (folder, below = i64::MAX))]
fn py_queue_ends(py: Python<'_>, folder: PathBuf, below: i64) -> PyResult<(Vec<QueueEnd>, i64)> {
    Ok(py.detach(|| queue_ends(&folder, below))?)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<QueueFile>()?;
    module.add_function(wrap_pyfunction!(py_queue_ends, module)?)
}
