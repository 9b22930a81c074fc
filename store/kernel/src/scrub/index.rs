//! Reads an index file again from the disk: its entries in order, the log's record that each of them names, the chains
//! and the slots. The file may be the newest one: entries and slots that are added during the pass are not checked.
//!
//! Log and index are read past the page cache. Entries stand in the log's order, so the log is read once, in order.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use pyo3::prelude::*;

use crate::dispatch::Dispatch;
use crate::fault::{At, Outcome};
use crate::gentle::GentleWindow;
use crate::hash::{key_hash, key_seed};
use crate::index::{entry_at, hash_on, key_slot, Header, ENTRY, HEADER, SLOT};
use crate::maps::segment_name;
use crate::record::{int, long, Known, Record, SMALLEST, UNREADABLE};

const PIECE: usize = 1 << 18;
/// Faults that are recorded for one file at most: it is rebuilt from its first entry on anyway.
const MOST_FAULTS: usize = 100;

/// Byte of the file, position in the log that the entry names (-1: not about an entry's record), reason.
type FaultRow = (u64, i64, String);

/// What is known of the record that the current entries name.
#[derive(Default)]
struct Named {
    pos: i64,
    hashes: Vec<i32>,
    store_timestamp: i64,
    /// Why no sound record lies there; "": one does.
    reason: &'static str,
}

struct Log {
    folder: PathBuf,
    segment_bytes: u64,
    open: Option<(u64, GentleWindow)>,
    read: u64,
}

struct Scrub {
    path: PathBuf,
    file: GentleWindow,
    log: Log,
    slots: u32,
    entries: u32,
    count: usize,
    header: Header,
    /// End time of the previous file; None: this is the first one.
    ended: Option<i64>,
    next: usize,
    next_slot: usize,
    newest: Vec<i32>,
    used: i32,
    named: Named,
    faults: Vec<FaultRow>,
}

impl Log {
    /// Bytes [pos, pos + size) of the log. None: no file has them.
    fn get(&mut self, pos: u64, size: usize) -> Outcome<Option<&[u8]>> {
        let start = pos - pos % self.segment_bytes;
        if self.open.as_ref().is_none_or(|(have, _)| *have != start) {
            let path = self.folder.join(segment_name(start));
            self.open = match GentleWindow::open(&path, PIECE) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
                opened => Some((start, opened.at(&path)?)),
            };
        }
        let Some((_, window)) = &mut self.open else {
            return Ok(None);
        };
        let before = window.read;
        let path = self.folder.join(segment_name(start));
        // The borrow ends with the check of `read`, so the bytes are requested again: they are in the window now.
        window.get(pos - start, size).at(&path)?;
        self.read += window.read - before;
        window.get(pos - start, size).at(&path)
    }

    /// The keys of the record at `pos`.
    fn look(&mut self, pos: i64) -> Outcome<Named> {
        let none = |reason| {
            Ok(Named {
                pos,
                reason,
                ..Named::default()
            })
        };
        let Some(head) = self.get(pos as u64, SMALLEST)? else {
            return none("no record");
        };
        let size = int(head, 0);
        if size < SMALLEST as i32 {
            return none("no record");
        }
        let Some(bytes) = self.get(pos as u64, size as usize)? else {
            return none("no record");
        };
        let record = match Record::parse(bytes, pos as u64) {
            Ok(record) if record.body_crc_holds() => record,
            Ok(_) => return none("body CRC differs"),
            Err((bad, _)) => return none(bad.text()),
        };
        let (seed, known) = (key_seed(record.topic()), Known::find(record.properties()));
        let hashes = match record.is_indexed() {
            true => known.each_indexed().map(|key| key_hash(hash_on(seed, key))).collect(),
            false => vec![],
        };
        Ok(Named {
            pos,
            hashes,
            store_timestamp: record.store_timestamp(),
            reason: "",
        })
    }
}

impl Scrub {
    /// Continues; true when the file is done. `sealed`: bytes [begin, end) of the log whose records are read.
    fn step(&mut self, max_bytes: u64, sealed: (i64, i64), grown: impl Fn() -> Option<i32>) -> Outcome<bool> {
        let until = self.read() + max_bytes;
        while self.next < self.count {
            let (number, at) = (self.next, entry_at(self.slots, self.next) as u64);
            let mut entry = [0; ENTRY];
            match self.file.get(at, ENTRY) {
                Ok(Some(bytes)) => entry.copy_from_slice(bytes),
                Ok(None) => return self.ends("the file ends within its entries"),
                Err(error) if error.raw_os_error() == Some(libc::EIO) => return self.ends(UNREADABLE),
                Err(error) => return Err(error).at(&self.path),
            }
            self.entry(number, at, &entry, sealed)?;
            self.next += 1;
            if self.faults.len() >= MOST_FAULTS {
                return Ok(true);
            }
            if self.read() >= until {
                return Ok(false);
            }
        }
        self.slots_from(until, grown)
    }

    fn read(&self) -> u64 {
        self.file.read + self.log.read
    }

    fn ends(&mut self, reason: &str) -> Outcome<bool> {
        self.faults
            .push((entry_at(self.slots, self.next) as u64, -1, reason.to_owned()));
        Ok(true)
    }

    fn entry(&mut self, number: usize, at: u64, entry: &[u8], (begin, end): (i64, i64)) -> Outcome<()> {
        let (hash, pos, seconds, older) = (int(entry, 0), long(entry, 4), int(entry, 12), int(entry, 16));
        if hash < 0 {
            self.faults
                .push((at, -1, format!("entry {number} has the hash {hash}")));
            return Ok(());
        }
        let newest = &mut self.newest[key_slot(hash, self.slots) as usize];
        self.used += i32::from(*newest == 0);
        if older != *newest {
            let text = format!("entry {number} goes back to entry {older}, its chain's entry before it is {newest}");
            self.faults.push((at, -1, text));
        }
        *newest = number as i32;
        if !(begin..end).contains(&pos) {
            // The record was deleted, or its segment is not full yet; but no entry names a position after the newest
            // one's record.
            if pos < 0 || pos > self.header.end_pos {
                let text = format!("entry {number} names byte {pos}, the last one {}", self.header.end_pos);
                self.faults.push((at, -1, text));
            }
            return Ok(());
        }
        if self.named.pos != pos {
            self.named = match self.log.look(pos) {
                Err(crate::fault::Fault::Io { error, .. }) if error.raw_os_error() == Some(libc::EIO) => Named {
                    pos,
                    reason: UNREADABLE,
                    ..Named::default()
                },
                looked => looked?,
            };
        }
        if !self.named.reason.is_empty() {
            let reason = self.named.reason;
            let text = format!("entry {number} names byte {pos}, where no sound record begins: {reason}");
            self.faults.push((at, pos, text));
        } else if !self.named.hashes.contains(&hash) {
            let text = format!("entry {number} has the hash {hash}, no key of the record at {pos} has");
            self.faults.push((at, -1, text));
        } else if let Some(wanted) = self.seconds_of(number).filter(|&wanted| wanted != seconds) {
            let text =
                format!("entry {number} says {seconds} s after the file's begin, the record at {pos} {wanted} s");
            self.faults.push((at, -1, text));
        }
        Ok(())
    }

    /// The expected values of entry `number` of the current record; None: unknown.
    fn seconds_of(&self, number: usize) -> Option<i32> {
        // The first entry is added before the header has its time, so it counts from the end of the previous file.
        let begin = if number == 1 {
            self.ended?
        } else {
            self.header.begin_timestamp
        };
        if begin <= 0 {
            return Some(0);
        }
        let seconds = self.named.store_timestamp.saturating_sub(begin) / 1000;
        Some(seconds.clamp(0, i64::from(i32::MAX)) as i32)
    }

    /// Checks the slots, after all entries; `grown()`: number of the file's next entry by now, None: the file was
    /// removed.
    fn slots_from(&mut self, until: u64, grown: impl Fn() -> Option<i32>) -> Outcome<bool> {
        while self.next_slot < self.newest.len() {
            let at = (HEADER + SLOT * self.next_slot) as u64;
            let named = match self.file.get(at, SLOT) {
                Ok(Some(bytes)) => int(bytes, 0),
                Ok(None) => return self.ends("the file ends within its slots"),
                Err(error) if error.raw_os_error() == Some(libc::EIO) => return self.ends(UNREADABLE),
                Err(error) => return Err(error).at(&self.path),
            };
            let (slot, newest) = (self.next_slot, self.newest[self.next_slot]);
            let newer = self.count as i32..;
            if named != newest && !(newer.contains(&named) && grown().is_some_and(|count| named < count)) {
                let text = format!("slot {slot} names entry {named} instead of {newest}");
                self.faults.push((at, -1, text));
            }
            self.next_slot += 1;
            if self.faults.len() >= MOST_FAULTS {
                return Ok(true);
            }
            if self.read() >= until {
                return Ok(false);
            }
        }
        self.last_look(grown)
    }

    /// Checks the header. A header that changes in the meantime belongs to a growing file, and is written with each
    /// entry.
    fn last_look(&mut self, grown: impl Fn() -> Option<i32>) -> Outcome<bool> {
        let mut fresh = GentleWindow::open(&self.path, HEADER).at(&self.path)?;
        let head = fresh.get(0, HEADER).at(&self.path)?.map(Header::decode);
        if grown() != Some(self.count as i32) {
            return Ok(true);
        }
        if head != Some(self.header) {
            self.faults.push((0, -1, "the header is not what it was".to_owned()));
        } else if self.header.slots_used != self.used {
            let (says, used) = (self.header.slots_used, self.used);
            self.faults.push((
                32,
                -1,
                format!("the header counts {says} slots in use, there are {used}"),
            ));
        }
        Ok(true)
    }
}

/// A pass over one index file. Used by one thread at a time.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct IndexScrub {
    name: String,
    dispatch: Py<Dispatch>,
    scrub: Mutex<Scrub>,
}

#[pymethods]
impl IndexScrub {
    /// `name`: one of `dispatch.index_files()`. ValueError: no such file.
    #[new]
    fn new(folder: PathBuf, name: String, dispatch: Py<Dispatch>) -> PyResult<IndexScrub> {
        let (headers, slots, entries) = dispatch.get().index_geometry();
        let at = headers.iter().position(|(have, _)| *have == name);
        let Some(at) = at else {
            return Err(pyo3::exceptions::PyValueError::new_err(format!(
                "there is no index file {name}"
            )));
        };
        let path = folder.join(&name);
        let (log_folder, segment_bytes) = dispatch.get().log_place();
        let scrub = Scrub {
            file: open(&path)?,
            path,
            log: Log {
                folder: log_folder,
                segment_bytes,
                open: None,
                read: 0,
            },
            slots,
            entries,
            count: headers[at].1.count.clamp(1, entries as i32) as usize,
            header: headers[at].1,
            ended: at.checked_sub(1).map(|before| headers[before].1.end_timestamp),
            next: 1,
            next_slot: 0,
            newest: vec![0; slots as usize],
            used: 0,
            named: Named {
                pos: -1,
                ..Named::default()
            },
            faults: vec![],
        };
        Ok(IndexScrub {
            name,
            dispatch,
            scrub: Mutex::new(scrub),
        })
    }

    /// Bytes of the index and of the log that were read.
    #[getter]
    fn read(&self) -> u64 {
        self.lock().read()
    }

    /// step(max_bytes, begin, end) -> (done, [(byte, pos, reason)])
    fn step(&self, py: Python<'_>, max_bytes: u64, begin: i64, end: i64) -> PyResult<(bool, Vec<FaultRow>)> {
        let dispatch = self.dispatch.get();
        let grown = || {
            let (headers, _, _) = dispatch.index_geometry();
            headers
                .iter()
                .find(|(name, _)| *name == self.name)
                .map(|(_, header)| header.count)
        };
        Ok(py.detach(|| {
            let mut scrub = self.lock();
            let whole = entry_at(scrub.slots, scrub.entries as usize) as u64;
            let done = if scrub.file.file_bytes() == whole {
                scrub.step(max_bytes, (begin, end), grown)?
            } else {
                let bytes = scrub.file.file_bytes();
                scrub
                    .faults
                    .push((0, -1, format!("has {bytes} bytes instead of {whole}")));
                true
            };
            Ok::<_, crate::fault::Fault>((done, std::mem::take(&mut scrub.faults)))
        })?)
    }
}

impl IndexScrub {
    fn lock(&self) -> std::sync::MutexGuard<'_, Scrub> {
        self.scrub.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn open(path: &Path) -> Outcome<GentleWindow> {
    GentleWindow::open(path, PIECE).at(path)
}
