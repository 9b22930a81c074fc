//! The staged end of the log and the segment files it goes to.
//!
//! Staged bytes lie in pieces, each contiguous and within one segment. A record never crosses a segment; a filler
//! closes the segment into which the record does not fit. Written bytes are in the page cache, and their files wait for
//! a sync.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use super::entries::EntryTail;
use super::locked::{Buffer, BUFFER_BYTES};
use crate::door::{Door, DoorFile};
use crate::encode::{Parts, BLANK_BYTES, BLANK_MAGIC};
use crate::entry::{EntryHeader, ENTRY_HEADER};
use crate::record::LEDGER_FILLER;

/// If the clock is set back by this or less, it was corrected: store times stay constant until it has caught up.
const CORRECTION_MS: i64 = 60_000;

/// A buffer that grew beyond this for one large frame or burst is released, not kept for the next one.
pub(super) const KEPT_BUFFER_BYTES: usize = 1 << 20;

/// Contiguous staged bytes of one segment.
pub(super) struct Piece {
    pub(super) pos: u64,
    pub(super) bytes: Buffer,
}

/// A record or filler could not be staged.
#[derive(Debug)]
pub(super) enum AppendFault {
    /// The message can never be stored.
    Illegal(String),
    /// The next segment could not be created.
    Segment(PathBuf, io::Error),
}

impl From<AppendFault> for PyErr {
    fn from(fault: AppendFault) -> PyErr {
        match fault {
            AppendFault::Illegal(why) => PyValueError::new_err(why),
            AppendFault::Segment(path, error) => os_error(&error, &path),
        }
    }
}

pub(super) fn os_error(error: &io::Error, path: &Path) -> PyErr {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let text = io::Error::from_raw_os_error(errno).to_string();
    PyOSError::new_err((errno, text, path.display().to_string()))
}

/// The staged end of the log and the files it goes to.
pub(super) struct Tail {
    pub(super) door: Door,
    pub(super) folder: PathBuf,
    pub(super) segment_bytes: u64,
    pub(super) pieces: VecDeque<Piece>,
    pub(super) spare: Buffer,
    pub(super) staged: u64,
    pub(super) written: u64,
    pub(super) last_store_ms: i64,
    /// Open segments by their start: the one that contains `staged`, and earlier ones to which pieces still have to be
    /// written.
    pub(super) segments: VecDeque<(u64, Arc<DoorFile>)>,
    pub(super) unsynced: Vec<Arc<DoorFile>>,
    /// A segment was created: its folder has to be synced as well.
    pub(super) folder_changed: bool,
    /// A write failed: the file may contain bytes of withdrawn records below this position.
    pub(super) stale_end: u64,
    /// A sync failed: the pages that the system dropped are unknown, so no more bytes may count as flushed.
    pub(super) broken: bool,
    /// Staged bytes are in memory that is locked, if the system permits it.
    pub(super) locks_buffers: bool,
    /// dledger's layout: each record lies in an entry. None: the plain layout.
    pub(super) entries: Option<Box<EntryTail>>,
}

impl Tail {
    pub(super) fn segment_start(&self, pos: u64) -> u64 {
        pos - pos % self.segment_bytes
    }

    pub(super) fn open_segment(&mut self, start: u64) -> Result<(), AppendFault> {
        let path = self.folder.join(format!("{start:020}"));
        let fault = |error| AppendFault::Segment(path.clone(), error);
        let ready = std::fs::metadata(&path).is_ok_and(|data| data.len() == self.segment_bytes);
        let file = if ready {
            self.door.open(&path).map_err(fault)?
        } else {
            // Created in full length and allocated at once: a later write cannot find the disk full. And durably: if
            // power loss left a later segment but not this one, the store would not open. (Usually another thread
            // created it in advance.)
            let made = self
                .door
                .create_sized(&path, self.segment_bytes, true)
                .and_then(|file| {
                    file.sync_data()?;
                    self.door.sync_dir(&self.folder)?;
                    Ok(file)
                });
            if made.is_err() {
                // A file of the wrong length would prevent the store from loading; the first error is the one to
                // report.
                let _ = self.door.remove(&path);
            }
            made.map_err(fault)?
        };
        self.folder_changed = true;
        self.segments.push_back((start, Arc::new(file)));
        Ok(())
    }

    /// Bytes of the log that `count` records of `size` bytes in total take.
    pub(super) fn framed(&self, size: usize, count: usize) -> usize {
        size + if self.entries.is_some() {
            count * ENTRY_HEADER
        } else {
            0
        }
    }

    /// Makes room for `size` bytes (`framed`) at `staged`: closes the segment with a filler if they do not fit.
    pub(super) fn make_room(&mut self, size: usize) -> Result<(), AppendFault> {
        if size + BLANK_BYTES > self.segment_bytes as usize {
            return Err(AppendFault::Illegal(format!(
                "{size} bytes do not fit into a segment of {} bytes",
                self.segment_bytes
            )));
        }
        let start = self.segment_start(self.staged);
        let left = self.segment_bytes - (self.staged - start);
        let fits = size as u64 + BLANK_BYTES as u64 <= left;
        let target = if fits { start } else { start + self.segment_bytes };
        // The filler also needs its own segment open, right after a restart.
        if self.segments.back().is_none_or(|(have, _)| *have < start) {
            self.open_segment(start)?;
        }
        if !fits {
            self.open_segment(target)?;
            self.fill(left, target);
        }
        Ok(())
    }

    /// Closes the segment, `left` bytes before its end `target`.
    fn fill(&mut self, left: u64, target: u64) {
        let (size, blank) = ((left as i32).to_be_bytes(), BLANK_MAGIC.to_be_bytes());
        let words = match self.entries {
            None => [size, blank],
            Some(_) => [LEDGER_FILLER.to_be_bytes(), size],
        };
        self.piece().bytes.extend_from_slice(words.as_flattened());
        self.staged = target;
    }

    /// The piece that ends at `staged`.
    pub(super) fn piece(&mut self) -> &mut Piece {
        let staged = self.staged;
        // A filler of just eight bytes ends where the next segment begins, but the next record belongs to another file.
        let begins_segment = staged % self.segment_bytes == 0;
        let follows = |last: &Piece| last.pos + last.bytes.len() as u64 == staged;
        if begins_segment || !self.pieces.back().is_some_and(follows) {
            let mut bytes = std::mem::take(&mut self.spare);
            bytes.clear();
            if self.locks_buffers && bytes.capacity() < BUFFER_BYTES {
                bytes = Buffer::locked().0; // if it is not locked, it is as usable as other memory
            }
            self.pieces.push_back(Piece { pos: staged, bytes });
        }
        self.pieces.back_mut().expect("it was there or was just pushed")
    }

    /// Stages a record for which `make_room` has made room; returns its position. `kind`: of its entry, if it gets one.
    pub(super) fn stage(&mut self, parts: &Parts<'_>, kind: i32) -> u64 {
        if let Some(mut entries) = self.entries.take() {
            let entry_pos = self.staged;
            let piece = self.piece();
            let begin = piece.bytes.len();
            piece.bytes.extend_from_slice(&[0; ENTRY_HEADER]);
            parts.encode(&mut piece.bytes, entry_pos + ENTRY_HEADER as u64);
            let (head, body) = piece.bytes[begin..].split_at_mut(ENTRY_HEADER);
            entries.seal(head, body, entry_pos, kind);
            self.staged += (ENTRY_HEADER + parts.size()) as u64;
            self.entries = Some(entries);
            return entry_pos + ENTRY_HEADER as u64;
        }
        let pos = self.staged;
        let piece = self.piece();
        parts.encode(&mut piece.bytes, pos);
        self.staged += parts.size() as u64;
        pos
    }

    /// Stages an entry of another log at its place there, which is `staged` or the beginning of the next segment.
    pub(super) fn stage_entry(&mut self, header: &EntryHeader, bytes: &[u8]) -> Result<(), AppendFault> {
        let start = self.segment_start(self.staged);
        if self.segments.back().is_none_or(|(have, _)| *have < start) {
            self.open_segment(start)?;
        }
        if header.pos != self.staged {
            let target = start + self.segment_bytes;
            assert_eq!(header.pos, target, "the caller has checked this");
            self.open_segment(target)?;
            self.fill(target - self.staged, target);
        }
        self.piece().bytes.extend_from_slice(bytes);
        self.staged += bytes.len() as u64;
        if let Some(entries) = &mut self.entries {
            entries.push(header);
        }
        Ok(())
    }

    /// The store timestamp of a record staged now: it does not decrease along the log when a clock is corrected.
    ///
    /// If the clock is set back by more, it was wrong before, and the timestamps follow it back. If they stayed
    /// constant until the clock caught up, no delayed message would wait, and no search by time would end.
    pub(super) fn store_ms(&mut self, now_ms: i64) -> i64 {
        if !(0..=CORRECTION_MS).contains(&(self.last_store_ms - now_ms)) {
            self.last_store_ms = now_ms;
        }
        self.last_store_ms
    }

    /// Writes all staged bytes to the files. After an error `written` says how far it came.
    pub(super) fn write_out(&mut self) -> Result<(), (PathBuf, io::Error)> {
        if let Some(entries) = &mut self.entries {
            entries.write_units()?;
        }
        let done = self.write_pieces();
        let written = self.written;
        if let Some(entries) = &mut self.entries {
            match done {
                Ok(()) => entries.settle_all(),
                Err(_) => entries.settle(written),
            }
        }
        done
    }

    fn write_pieces(&mut self) -> Result<(), (PathBuf, io::Error)> {
        while let Some(piece) = self.pieces.front() {
            let start = self.segment_start(piece.pos);
            while self.segments.front().is_some_and(|(have, _)| *have < start) {
                self.segments.pop_front();
            }
            let (have, file) = self.segments.front().expect("make_room opened it");
            debug_assert_eq!(*have, start);
            let piece_end = piece.pos + piece.bytes.len() as u64;
            let mut bytes = Cow::from(&*piece.bytes);
            if self.stale_end > piece_end && self.stale_end <= start + self.segment_bytes {
                // One of the withdrawn records may begin exactly where this piece ends: a recovery would take it for
                // the next one. So all of them are overwritten, with zeros after the new ones.
                bytes.to_mut().resize((self.stale_end - piece.pos) as usize, 0);
            }
            if let Err(error) = file.write_at(&bytes, piece.pos - start) {
                self.stale_end = self.stale_end.max(piece_end);
                return Err((file.path().to_owned(), error));
            }
            if self.stale_end > start && self.stale_end <= start + self.segment_bytes {
                self.stale_end = 0;
            }
            if !self.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.unsynced.push(Arc::clone(file));
            }
            let done = self.pieces.pop_front().expect("it is the front");
            self.written = self.pieces.front().map_or(self.staged, |next| next.pos);
            let kept = if self.locks_buffers {
                BUFFER_BYTES
            } else {
                4 * KEPT_BUFFER_BYTES
            };
            if done.bytes.capacity() <= kept {
                self.spare = done.bytes;
            }
        }
        self.written = self.staged;
        Ok(())
    }

    /// Truncates the written bytes to `pos`, durably: zeros after it, and new files for the segments after its own.
    /// Nothing may be staged; unsynced bytes before `pos` stay unsynced.
    pub(super) fn cut(&mut self, pos: u64) -> Result<(), (PathBuf, io::Error)> {
        let end = self.written.max(self.stale_end);
        let start = self.segment_start(pos);
        self.segments.retain(|(have, _)| *have <= start);
        let path_of = |start: u64| self.folder.join(format!("{start:020}"));
        // From the last segment on: a power loss in between leaves no hole that a record could seem to follow.
        let first_behind = if pos == start {
            start
        } else {
            start + self.segment_bytes
        };
        let behind: Vec<u64> = (first_behind..end).step_by(self.segment_bytes as usize).collect();
        for start in behind.into_iter().rev() {
            let path = path_of(start);
            let fault = |error| (path.clone(), error);
            self.segments.retain(|(have, _)| *have != start);
            self.unsynced.retain(|file| file.path() != path);
            self.door.remove(&path).map_err(fault)?;
            self.door.sync_dir(&self.folder).map_err(fault)?;
            let file = self.door.create_sized(&path, self.segment_bytes, true).map_err(fault)?;
            file.sync_data().map_err(fault)?;
            self.door.sync_dir(&self.folder).map_err(fault)?;
        }
        if pos > start && pos < end {
            let path = path_of(start);
            let fault = |error| (path.clone(), error);
            let file = self.door.open(&path).map_err(fault)?;
            let stop = end.min(start + self.segment_bytes);
            let zeros = vec![0; (stop - pos).min(1 << 20) as usize];
            let mut at = pos;
            while at < stop {
                let bytes = (stop - at).min(zeros.len() as u64);
                file.write_at(&zeros[..bytes as usize], at - start).map_err(fault)?;
                at += bytes;
            }
            file.sync_data().map_err(fault)?;
        }
        (self.staged, self.written, self.stale_end) = (pos, pos, 0);
        Ok(())
    }

    /// Overwrites written bytes, durably.
    pub(super) fn rewrite(&self, mut pos: u64, mut data: &[u8]) -> Result<(), (PathBuf, io::Error)> {
        while !data.is_empty() {
            let start = self.segment_start(pos);
            let path = self.folder.join(format!("{start:020}"));
            let fault = |error| (path.clone(), error);
            let bytes = data.len().min((start + self.segment_bytes - pos) as usize);
            let file = self.door.open(&path).map_err(fault)?;
            file.write_at(&data[..bytes], pos - start).map_err(fault)?;
            file.sync_data().map_err(fault)?;
            pos += bytes as u64;
            data = &data[bytes..];
        }
        Ok(())
    }

    /// Zeroes the bytes that a failed write left after the written end, so that no start finds a record whose sender
    /// was told that it is not stored. If that fails as well, the next write zeroes them.
    pub(super) fn wipe_stale(&mut self) {
        let start = self.segment_start(self.written);
        let Some((_, file)) = self.segments.iter().find(|(have, _)| *have == start) else {
            return;
        };
        if self.stale_end <= self.written || self.stale_end > start + self.segment_bytes {
            return;
        }
        let zeros = vec![0; (self.stale_end - self.written) as usize];
        if file.write_at(&zeros, self.written - start).is_ok() {
            self.stale_end = 0;
            if !self.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
                self.unsynced.push(Arc::clone(file));
            }
        }
    }
}
