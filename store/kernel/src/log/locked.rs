//! Buffers of the transient store pool: their memory is locked, so that the system does not swap out staged bytes.
//!
//! A buffer is one large allocation, which the allocator maps and unmaps as a whole: its lock ends with it.
//! Pages are locked when they are used first, so a large buffer costs what it holds.

use std::io;

/// Capacity of a buffer. An allocation of this size is a separate map (`M_MMAP_THRESHOLD` is at most 32 MiB).
pub(super) const BUFFER_BYTES: usize = 64 << 20;

/// An empty buffer, and why its memory is not locked.
pub(super) fn buffer() -> (Vec<u8>, io::Result<()>) {
    let bytes: Vec<u8> = Vec::with_capacity(BUFFER_BYTES);
    // SAFETY: the range is the allocation of `bytes`; a lock changes no byte of it.
    let failed = unsafe { libc::mlock2(bytes.as_ptr().cast(), bytes.capacity(), libc::MLOCK_ONFAULT as _) } != 0;
    let locked = if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    };
    (bytes, locked)
}
