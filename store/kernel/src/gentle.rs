//! Reads a file without changing the page cache: cached pages stay, and no pages are added.
//!
//! O_DIRECT reads the disk itself. Where a file system refuses that, a read that the cache can answer (RWF_NOWAIT) is
//! answered from the cache; otherwise the pages are read in and dropped again.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Alignment of O_DIRECT that every disk accepts.
const BLOCK: usize = 4096;
/// Bytes of one read; larger requests are split.
const PIECE: usize = 1 << 19;

pub struct GentleFile {
    file: File,
    bytes: u64,
    direct: bool,
    buffer: Aligned,
}

impl GentleFile {
    pub fn open(path: &Path) -> io::Result<GentleFile> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
        let (file, direct) = match opened {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (File::open(path)?, false),
            opened => (opened?, true),
        };
        let bytes = file.metadata()?.len();
        Ok(GentleFile {
            file,
            bytes,
            direct,
            buffer: Aligned::new(),
        })
    }

    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Fills all of `to`. UnexpectedEof: the file ends before.
    pub fn read_exact_at(&mut self, mut to: &mut [u8], mut at: u64) -> io::Result<()> {
        while !to.is_empty() {
            let from = at - at % BLOCK as u64;
            let skip = (at - from) as usize;
            let wanted = (skip + to.len()).min(PIECE).next_multiple_of(BLOCK);
            let got = self.read_blocks(from, wanted)?;
            let usable = got.saturating_sub(skip).min(to.len());
            if usable == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (head, rest) = to.split_at_mut(usable);
            head.copy_from_slice(&self.buffer.bytes()[skip..skip + usable]);
            to = rest;
            at += usable as u64;
        }
        Ok(())
    }

    fn read_blocks(&mut self, from: u64, size: usize) -> io::Result<usize> {
        let to = &mut self.buffer.bytes_mut()[..size];
        if self.direct {
            return self.file.read_at(to, from);
        }
        let cached = self.read_cached(from, size);
        let whole = self.bytes.saturating_sub(from).min(size as u64) as usize;
        if cached == Some(whole) {
            return Ok(whole);
        }
        let got = self.file.read_at(&mut self.buffer.bytes_mut()[..size], from)?;
        // SAFETY: only advice, for a descriptor that is open.
        unsafe {
            libc::posix_fadvise(
                self.file.as_raw_fd(),
                from as i64,
                size as i64,
                libc::POSIX_FADV_DONTNEED,
            )
        };
        Ok(got)
    }

    /// The bytes that the page cache has; None: the system does not say.
    fn read_cached(&mut self, from: u64, size: usize) -> Option<usize> {
        let to = &mut self.buffer.bytes_mut()[..size];
        let part = libc::iovec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: to.len(),
        };
        // SAFETY: the buffer is valid for the call.
        let got = unsafe { libc::preadv2(self.file.as_raw_fd(), &part, 1, from as i64, libc::RWF_NOWAIT) };
        usize::try_from(got).ok()
    }
}

/// A file that is read mostly in order: one piece at a time, and each piece once.
pub struct GentleWindow {
    file: GentleFile,
    bytes: Vec<u8>,
    at: u64,
    piece: usize,
    /// Bytes that were read from the file.
    pub read: u64,
}

impl GentleWindow {
    /// `piece`: bytes of one read, at least.
    pub fn open(path: &Path, piece: usize) -> io::Result<GentleWindow> {
        Ok(GentleWindow {
            file: GentleFile::open(path)?,
            bytes: vec![],
            at: 0,
            piece,
            read: 0,
        })
    }

    /// The file's length.
    pub fn file_bytes(&self) -> u64 {
        self.file.bytes
    }

    /// Bytes [at, at + size); None: the file ends before.
    pub fn get(&mut self, at: u64, size: usize) -> io::Result<Option<&[u8]>> {
        let Some(end) = at.checked_add(size as u64).filter(|&end| end <= self.file.bytes) else {
            return Ok(None);
        };
        if at < self.at || end > self.at + self.bytes.len() as u64 {
            let wanted = (self.file.bytes - at).min(size.max(self.piece) as u64) as usize;
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.resize(wanted, 0);
            self.file.read_exact_at(&mut bytes, at)?;
            (self.bytes, self.at) = (bytes, at);
            self.read += wanted as u64;
        }
        let from = (at - self.at) as usize;
        Ok(Some(&self.bytes[from..from + size]))
    }
}

/// `PIECE` bytes, aligned to `BLOCK`.
struct Aligned(*mut u8);

impl Aligned {
    const LAYOUT: Layout = match Layout::from_size_align(PIECE, BLOCK) {
        Ok(layout) => layout,
        Err(_) => panic!("a power of two"),
    };

    fn new() -> Aligned {
        // SAFETY: the layout is not empty. The bytes are zeroed below, before they are read.
        let made = unsafe { alloc(Self::LAYOUT) };
        if made.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        // SAFETY: just allocated with this size.
        unsafe { made.write_bytes(0, PIECE) };
        Aligned(made)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size, and owned.
        unsafe { std::slice::from_raw_parts(self.0, PIECE) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.0, PIECE) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.0, Self::LAYOUT) };
    }
}

// SAFETY: it owns its bytes as a Vec does.
unsafe impl Send for Aligned {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Aligned {}
