//! Maps of files that survive read errors of the disk.
//!
//! When a mapped page cannot be read from the disk, or lies after the end of a file that was truncated, the process
//! gets the signal SIGBUS, which by default ends it. Every map of the store is registered here. The handler looks up
//! the fault's address. If the address lies in a registered map, the handler marks the page in the map's bitmap, puts
//! an anonymous page in its place, and returns. The reader continues with bytes that are not the file's, and calls
//! `spoils` before it uses what it has read. All other faults go to the handler that was installed before.
//!
//! - The mark is set before the page is replaced, so a reader of a replaced page finds its mark.
//! - A replaced page is filled with `FILL`: as a size, magic, entry number or hash each of it is negative. So a reader
//!   that does not call `spoils` finds damage, never the zeros that end a log. Beyond `MOST_FILLED` pages it is the
//!   system's zero page, which takes no memory; the marks are set all the same.
//! - A replaced page stays until the map is dropped. `LogMaps` maps a segment again after a while and after a repair:
//!   the error may be temporary, and a rewritten sector can be read again.
//! - A store to a replaced page of a writable map is lost. The owner calls `is_spoiled` and rebuilds the file.
//!
//! The handler uses only system calls and atomics. It finds maps in slots that are never freed; a version in each slot
//! tells it that a slot changed while it was read. The slot of the faulting map cannot change: the faulting thread
//! holds the map.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{fence, AtomicBool, AtomicPtr, AtomicU64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memmap2::Mmap;

mod python;
#[cfg(test)]
mod tests;

pub use python::register;

/// The content of a page that could not be read.
pub const FILL: u8 = 0xDE;
/// Pages with this content, in all maps; 16 MiB.
const MOST_FILLED: usize = 4096;
/// Pages replaced at once where the system does not allow more single pages (a process may hold 65530 areas).
const LARGE_PIECE: usize = 2 << 20;
const SLOTS_A_CHUNK: usize = 64;
const MOST_CHUNKS: usize = 512;
/// Ranges of dropped maps, kept until `take_unread` reports them.
const MOST_KEPT: usize = 1000;

/// One registered map. `end` 0: free.
#[derive(Default)]
struct Slot {
    /// Odd while the slot is changed.
    version: AtomicUsize,
    begin: AtomicUsize,
    end: AtomicUsize,
    writable: AtomicBool,
    /// A bit for each replaced page; allocated by the handler at the first one.
    bits: AtomicPtr<AtomicU8>,
    /// Pages replaced; some may count twice.
    count: AtomicUsize,
    /// Of these, pages of `FILL`.
    filled: AtomicUsize,
    /// The value of `count` when the ranges were last reported.
    told: AtomicUsize,
}

/// A range of a file that could not be read where it was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
    /// The map was writable: stores to these bytes are lost.
    pub writable: bool,
}

#[derive(Default)]
struct Registry {
    free: Vec<&'static Slot>,
    chunks: usize,
    used: HashMap<usize, (&'static Slot, PathBuf)>,
    kept: Vec<Unread>,
}

static CHUNKS: [AtomicPtr<Slot>; MOST_CHUNKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST_CHUNKS];
static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);
static FAULTS: AtomicU64 = AtomicU64::new(0);
static FILLED: AtomicUsize = AtomicUsize::new(0);
static PASSED_ON: AtomicBool = AtomicBool::new(false);
/// A leaked `sigaction`: the handler before ours.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Faults in registered maps so far, in this process.
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Acquire)
}

fn page_bytes() -> usize {
    static BYTES: AtomicUsize = AtomicUsize::new(0);
    match BYTES.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no precondition; async-signal-safe in practice (glibc reads a variable).
            let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            BYTES.store(bytes, Ordering::Relaxed);
            bytes
        }
        bytes => bytes,
    }
}

/// A registered map. Drop it before the map.
pub struct Guard(&'static Slot);

impl Guard {
    /// Registers the map of `path` that lies at `begin`. Error: the registry is full.
    pub fn new(path: &Path, begin: usize, bytes: usize, writable: bool) -> io::Result<Guard> {
        let mut held = registry();
        let registry = held.get_or_insert_default();
        install();
        let slot = registry.take()?;
        change(slot, || {
            slot.begin.store(begin, Ordering::Relaxed);
            slot.end.store(begin + bytes, Ordering::Relaxed);
            slot.writable.store(writable, Ordering::Relaxed);
        });
        registry.used.insert(begin, (slot, path.to_owned()));
        Ok(Guard(slot))
    }

    /// Whether any page was replaced.
    #[inline]
    pub fn is_spoiled(&self) -> bool {
        self.0.count.load(Ordering::Acquire) > 0
    }

    /// Whether one of the `size` bytes from byte `at` of the map on was replaced.
    #[inline]
    pub fn spoils(&self, at: usize, size: usize) -> bool {
        self.is_spoiled() && self.0.has_bit(at, size)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let slot = self.0;
        let mut held = registry();
        let registry = held.get_or_insert_default();
        let begin = slot.begin.load(Ordering::Relaxed);
        if let Some((_, path)) = registry.used.remove(&begin) {
            let mut ranges = slot.untold(&path);
            ranges.truncate(MOST_KEPT.saturating_sub(registry.kept.len()));
            registry.kept.extend(ranges);
        }
        let bits = slot.bits.load(Ordering::Relaxed);
        let bytes = slot.bits_bytes();
        change(slot, || {
            slot.end.store(0, Ordering::Relaxed);
            slot.bits.store(std::ptr::null_mut(), Ordering::Relaxed);
            slot.count.store(0, Ordering::Relaxed);
            slot.told.store(0, Ordering::Relaxed);
        });
        FILLED.fetch_sub(slot.filled.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        if !bits.is_null() {
            // SAFETY: the handler made it with this length, and no other thread can find it any more.
            unsafe { libc::munmap(bits.cast(), bytes) };
        }
        registry.free.push(slot);
    }
}

impl Registry {
    fn take(&mut self) -> io::Result<&'static Slot> {
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.chunks == MOST_CHUNKS {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let slots: &'static [Slot] = Box::leak((0..SLOTS_A_CHUNK).map(|_| Slot::default()).collect());
        CHUNKS[self.chunks].store(slots.as_ptr().cast_mut(), Ordering::Release);
        self.chunks += 1;
        self.free.extend(slots.iter().skip(1));
        Ok(&slots[0])
    }
}

fn registry() -> MutexGuard<'static, Option<Registry>> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes a slot so that a handler that reads it at the same time notices the change.
fn change(slot: &Slot, act: impl FnOnce()) {
    slot.version.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::Release);
    act();
    slot.version.fetch_add(1, Ordering::Release);
}

impl Slot {
    fn bytes(&self) -> usize {
        self.end.load(Ordering::Relaxed) - self.begin.load(Ordering::Relaxed)
    }

    fn pages(&self) -> usize {
        self.bytes().div_ceil(page_bytes())
    }

    fn bits_bytes(&self) -> usize {
        self.pages().div_ceil(8).next_multiple_of(page_bytes())
    }

    fn bits(&self) -> Option<&[AtomicU8]> {
        let bits = self.bits.load(Ordering::Acquire);
        // SAFETY: made with this length, and freed with the slot, which its owner holds.
        (!bits.is_null()).then(|| unsafe { std::slice::from_raw_parts(bits, self.pages().div_ceil(8)) })
    }

    #[cold]
    fn has_bit(&self, at: usize, size: usize) -> bool {
        let Some(bits) = self.bits() else { return false };
        let (first, last) = (at / page_bytes(), (at + size.max(1) - 1) / page_bytes());
        (first..=last.min(self.pages() - 1)).any(|page| bits[page / 8].load(Ordering::Relaxed) & 1 << (page % 8) != 0)
    }

    /// All replaced ranges, if there are more than were reported before.
    fn untold(&self, path: &Path) -> Vec<Unread> {
        let count = self.count.load(Ordering::Acquire);
        let Some(bits) = self
            .bits()
            .filter(|_| count != self.told.swap(count, Ordering::Relaxed))
        else {
            return vec![];
        };
        let (page_bytes, writable) = (page_bytes() as u64, self.writable.load(Ordering::Relaxed));
        let mut ranges: Vec<Unread> = vec![];
        for page in (0..self.pages()).filter(|page| bits[page / 8].load(Ordering::Relaxed) & 1 << (page % 8) != 0) {
            let offset = page as u64 * page_bytes;
            match ranges.last_mut().filter(|last| last.offset + last.bytes == offset) {
                Some(last) => last.bytes += page_bytes,
                None => ranges.push(Unread {
                    path: path.to_owned(),
                    offset,
                    bytes: page_bytes,
                    writable,
                }),
            }
        }
        ranges
    }
}

/// The ranges that could not be read, of every map of a file below `folder` that has more of them than at the last
/// call.
pub fn take_unread(folder: &Path) -> Vec<Unread> {
    let mut held = registry();
    let registry = held.get_or_insert_default();
    let (mut ranges, kept) = std::mem::take(&mut registry.kept)
        .into_iter()
        .partition::<Vec<_>, _>(|range| range.path.starts_with(folder));
    registry.kept = kept;
    for (slot, path) in registry.used.values().filter(|(_, path)| path.starts_with(folder)) {
        ranges.extend(slot.untold(path));
    }
    ranges
}

// ------------------------------------------------------------------ the signal

/// Installs the handler unless it is already installed.
fn install() {
    // SAFETY: both structures are plain data that the system fills or reads; the handler has the signature of SA_SIGINFO.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut now);
        if now.sa_sigaction == on_fault as *const () as usize {
            return;
        }
        PREVIOUS.store(Box::leak(Box::new(now)), Ordering::Release);
        PASSED_ON.store(false, Ordering::Release);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_fault as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigemptyset(&mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut());
    }
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system gives a valid siginfo; `errno` is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        let sent = (*info).si_code <= 0; // by kill or raise: there is no address
        if sent || !replace((*info).si_addr() as usize) {
            pass_on(signal, sent);
        }
        *libc::__errno_location() = errno;
    }
}

/// Passes the signal to the handler that was installed before ours; the second time to the system's own.
unsafe fn pass_on(signal: libc::c_int, sent: bool) {
    let previous = PREVIOUS.load(Ordering::Acquire);
    if PASSED_ON.swap(true, Ordering::AcqRel) || previous.is_null() || (*previous).sa_sigaction == libc::SIG_IGN {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, std::ptr::null_mut());
    } else {
        libc::sigaction(signal, previous, std::ptr::null_mut());
    }
    if sent {
        libc::raise(signal);
    } // otherwise the same instruction faults again
}

/// Replaces the page at `address`. False: it is in no registered map, or the system refuses.
unsafe fn replace(address: usize) -> bool {
    let page_bytes = page_bytes();
    let page = address - address % page_bytes;
    let Some((slot, begin, end)) = slot_of(address) else {
        return false;
    };
    let protection = if slot.writable.load(Ordering::Relaxed) {
        libc::PROT_READ | libc::PROT_WRITE
    } else {
        libc::PROT_READ
    };
    let limit = begin + (end - begin).next_multiple_of(page_bytes);
    let large = page - (page - begin) % LARGE_PIECE;
    let whole = [(large, (large + LARGE_PIECE).min(limit)), (begin, limit)];
    if !mark(slot, begin, page, page + page_bytes) {
        return false;
    }
    FAULTS.fetch_add(1, Ordering::AcqRel);
    if fill(slot, page, page_bytes, protection) || put_zeros(page, page + page_bytes, protection) {
        return true;
    }
    whole
        .into_iter()
        .any(|(from, to)| mark(slot, begin, from, to) && put_zeros(from, to, protection))
}

unsafe fn slot_of(address: usize) -> Option<(&'static Slot, usize, usize)> {
    for chunk in &CHUNKS {
        let slots = chunk.load(Ordering::Acquire);
        if slots.is_null() {
            return None;
        }
        for i in 0..SLOTS_A_CHUNK {
            let slot = &*slots.add(i);
            loop {
                let version = slot.version.load(Ordering::Acquire);
                let (begin, end) = (slot.begin.load(Ordering::Relaxed), slot.end.load(Ordering::Relaxed));
                fence(Ordering::Acquire);
                if version % 2 == 0 && slot.version.load(Ordering::Relaxed) == version {
                    if (begin..end).contains(&address) {
                        return Some((slot, begin, end));
                    }
                    break;
                }
                if version % 2 != 0 {
                    break; // being registered or released: not by the faulting thread
                }
            }
        }
    }
    None
}

/// Marks the pages of [from, to) as replaced.
unsafe fn mark(slot: &Slot, begin: usize, from: usize, to: usize) -> bool {
    if slot.bits.load(Ordering::Acquire).is_null() {
        let bytes = slot.bits_bytes();
        let made = anonymous(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, 0);
        if made == libc::MAP_FAILED {
            return false;
        }
        let first = slot
            .bits
            .compare_exchange(std::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            libc::munmap(made, bytes);
        }
    }
    let bits = slot.bits.load(Ordering::Acquire);
    for page in (from - begin) / page_bytes()..(to - begin) / page_bytes() {
        (*bits.add(page / 8)).fetch_or(1 << (page % 8), Ordering::Relaxed);
    }
    slot.count.fetch_add(1, Ordering::AcqRel);
    true
}

/// Puts a page of `FILL` there as a whole: no thread sees a half of it.
unsafe fn fill(slot: &Slot, page: usize, bytes: usize, protection: libc::c_int) -> bool {
    if FILLED.fetch_add(1, Ordering::Relaxed) >= MOST_FILLED {
        FILLED.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    let made = anonymous(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, 0);
    if made == libc::MAP_FAILED {
        FILLED.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    std::ptr::write_bytes(made.cast::<u8>(), FILL, bytes);
    libc::mprotect(made, bytes, protection);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if libc::mremap(made, bytes, bytes, flags, page as *mut libc::c_void) == libc::MAP_FAILED {
        libc::munmap(made, bytes);
        FILLED.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    slot.filled.fetch_add(1, Ordering::Relaxed);
    true
}

unsafe fn put_zeros(from: usize, to: usize, protection: libc::c_int) -> bool {
    anonymous(from as *mut libc::c_void, to - from, protection, libc::MAP_FIXED) != libc::MAP_FAILED
}

unsafe fn anonymous(
    at: *mut libc::c_void,
    bytes: usize,
    protection: libc::c_int,
    flags: libc::c_int,
) -> *mut libc::c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    libc::mmap(at, bytes, protection, flags, -1, 0)
}

// ------------------------------------------------------------------ a map for reading

/// A file mapped for reading, registered.
pub struct ReadMap {
    guard: Guard, // dropped first
    map: Mmap,
}

impl ReadMap {
    /// Maps the whole file, which must not be empty.
    pub fn new(file: &File, path: &Path) -> io::Result<ReadMap> {
        // SAFETY: the store's lock keeps other processes away from its files; within this process, bytes that are read
        // are not changed. The guard detects bytes that are lost nevertheless (a bad sector, a truncated file).
        let map = unsafe { Mmap::map(file)? };
        let guard = Guard::new(path, map.as_ptr() as usize, map.len(), false)?;
        Ok(ReadMap { guard, map })
    }

    /// Whether any page could not be read.
    #[inline]
    pub fn is_spoiled(&self) -> bool {
        self.guard.is_spoiled()
    }

    /// Whether one of the `size` bytes from `at` on could not be read. Call it after reading them.
    #[inline]
    pub fn spoils(&self, at: usize, size: usize) -> bool {
        self.guard.spoils(at, size)
    }
}

impl Deref for ReadMap {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.map
    }
}
