//! Buffers of staged bytes. Those of the transient store pool are locked in memory, so that the system does not swap
//! them out.
//!
//! A buffer unlocks its memory before it frees it: the allocator unmaps a large allocation as a whole only if it made
//! a map for it, and it makes none if its heap has a free range of that size.
//! Pages are locked when they are used first, so a large buffer costs what it holds.

use std::io;
use std::ops::{Deref, DerefMut};

/// Capacity of a locked buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 20;

/// Staged bytes, and the address of the memory that is locked for them, if it is.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    locked: Option<usize>,
}

impl Buffer {
    /// An empty buffer with `BUFFER_BYTES` of locked memory, and why its memory is not locked.
    pub(super) fn locked() -> (Buffer, io::Result<()>) {
        let bytes: Vec<u8> = Vec::with_capacity(BUFFER_BYTES);
        // SAFETY: the range is the allocation of `bytes`; a lock changes no byte of it.
        let failed = unsafe { libc::mlock2(bytes.as_ptr().cast(), BUFFER_BYTES, libc::MLOCK_ONFAULT as _) } != 0;
        let (locked, done) = if failed {
            (None, Err(io::Error::last_os_error()))
        } else {
            (Some(bytes.as_ptr() as usize), Ok(()))
        };
        (Buffer { bytes, locked }, done)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(address) = self.locked {
            // SAFETY: it changes no byte. If `bytes` grew and moved, the range may be unmapped (an error without
            // effect) or hold other data (which are then no longer locked).
            unsafe { libc::munlock(address as *const _, BUFFER_BYTES) };
        }
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}
