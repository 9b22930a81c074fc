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
use crate::fault::{At, Outcome};
use crate::guard::FILL;

const PAGE: u64 = 4096;
/// Bytes of one read where a file is read to its end.
const PIECE: u64 = 16 * PAGE;
/// Units with a byte in a page, at most.
const UNITS_A_PAGE: u64 = PAGE / UNIT + 2;

/// Parts of a file: (at, bytes).
pub type Ranges = Vec<(u64, u64)>;

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
pub struct End {
    /// Units up to the last one whose size is above 0.
    pub written: u64,
    /// No hole is before the last unit, and only zeros are behind it, as far as the file system tells.
    pub regular: bool,
    /// The last one of them; None: there is none.
    pub last: Option<Unit>,
}

impl Look {
    pub fn open(path: &Path) -> Outcome<Look> {
        Look::of(File::open(path).at(path)?, path.to_owned())
    }

    /// `file`: was opened by this path.
    pub fn of(file: File, path: PathBuf) -> Outcome<Look> {
        let bytes = file.metadata().at(&path)?.len();
        Ok(Look::of_length(file, path, bytes))
    }

    /// `bytes`: the length of the file.
    pub fn of_length(file: File, path: PathBuf, bytes: u64) -> Look {
        advise(&file, 0, 0, libc::POSIX_FADV_RANDOM); // no page is read ahead
        Look {
            file,
            path,
            bytes,
            units: bytes / UNIT,
            brought: vec![],
        }
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
        self.read_bytes(first * UNIT, count * UNIT)
    }

    pub fn read_bytes(&mut self, at: u64, size: u64) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
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

    pub fn unit(&mut self, number: u64) -> Outcome<Unit> {
        Ok(Unit::decode(&self.read(number, 1)?))
    }

    /// The first of units [0, `count`) for which `holds`, which holds for all later ones as well; `count`: none.
    pub fn first(&mut self, count: u64, mut holds: impl FnMut(&Unit) -> bool) -> Outcome<u64> {
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

    pub fn end(&mut self) -> Outcome<End> {
        let (data_end, one_part) = self.data_end().at(&self.path)?;
        let high = data_end.div_ceil(UNIT).min(self.units);
        let low = high.saturating_sub(UNITS_A_PAGE);
        let bytes = self.read(low, high - low)?;
        let used = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let last = used.div_ceil(UNIT as usize);
        let units = bytes
            .chunks_exact(UNIT as usize)
            .take(last)
            .map(Unit::decode)
            .enumerate();
        if let Some((at, unit)) = units.rev().find(|(_, unit)| unit.size > 0) {
            return Ok(End {
                written: low + at as u64 + 1,
                regular: one_part && at + 1 == last,
                last: Some(unit),
            });
        }
        // Blocks of zeros: units are written without gaps, so a search finds the first one that is not written.
        let written = self.first(low, |unit| unit.size <= 0)?;
        Ok(End {
            written,
            regular: data_end == 0,
            last: written.checked_sub(1).map(|last| self.unit(last)).transpose()?,
        })
    }

    /// Whether a byte from `at` on is not zero. Holes are not read.
    pub fn has_data(&mut self, mut at: u64) -> Outcome<bool> {
        while at < self.bytes {
            let Some(begin) = seek(&self.file, at, libc::SEEK_DATA).at(&self.path)? else {
                return Ok(false);
            };
            let end = (begin / PAGE * PAGE + PIECE).min(self.bytes);
            if self.read_bytes(begin, end - begin)?.iter().any(|&byte| byte != 0) {
                return Ok(true);
            }
            at = end;
        }
        Ok(false)
    }

    /// The file's bytes up to the end of its data, and the ranges (at, bytes) of pages that the disk does not return: they
    /// have the content `FILL`.
    pub fn data(&mut self) -> Outcome<(Vec<u8>, Ranges)> {
        let (mut bytes, mut unread) = (vec![], Ranges::new());
        let mut at = 0;
        while let Some(begin) = (at < self.bytes)
            .then(|| seek(&self.file, at, libc::SEEK_DATA))
            .transpose()
            .at(&self.path)?
        {
            let Some(begin) = begin else { break };
            let end = seek(&self.file, begin, libc::SEEK_HOLE)
                .at(&self.path)?
                .unwrap_or(self.bytes);
            bytes.resize(end as usize, 0);
            for piece in (begin..end).step_by(PIECE as usize) {
                let part = &mut bytes[piece as usize..end.min(piece + PIECE) as usize];
                self.read_or_fill(piece, part, &mut unread)?;
            }
            at = end;
        }
        Ok((bytes, unread))
    }

    fn read_or_fill(&mut self, at: u64, bytes: &mut [u8], unread: &mut Ranges) -> Outcome<()> {
        if self.read_resident(bytes, at) {
            return Ok(());
        }
        self.brought.extend(at / PAGE..(at + bytes.len() as u64).div_ceil(PAGE));
        match self.file.read_exact_at(bytes, at) {
            Err(error) if error.raw_os_error() == Some(libc::EIO) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()), // just cut
            read => return read.at(&self.path),
        }
        for (number, page) in bytes.chunks_mut(PAGE as usize).enumerate() {
            let at = at + number as u64 * PAGE;
            match self.file.read_exact_at(page, at) {
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    page.fill(FILL);
                    match unread.last_mut().filter(|last| last.0 + last.1 == at) {
                        Some(last) => last.1 += page.len() as u64,
                        None => unread.push((at, page.len() as u64)),
                    }
                }
                read => read.at(&self.path)?,
            }
        }
        Ok(())
    }

    /// Where the data ends, and whether it is one part that begins with the file. Everything is data if the file
    /// system does not report holes.
    fn data_end(&self) -> io::Result<(u64, bool)> {
        let bytes = self.units * UNIT;
        let (mut end, mut one_part) = (0, true);
        if bytes > 0 {
            end = seek(&self.file, 0, libc::SEEK_HOLE)?.unwrap_or(bytes);
        }
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
pub fn seek(file: &File, from: u64, what: libc::c_int) -> io::Result<Option<u64>> {
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<QueueFile>()
}
