//! All changes of a queue except dispatch: finds its end after a start, cuts it, removes its oldest files.

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::files::Segment;
use super::unit::{Unit, UNIT};
use super::{Queues, NO_QUEUE};
use crate::fault::{At, Fault, Outcome};
use crate::maps::{segment_name, segment_starts};

/// Reads of units begin small (most files are nearly empty) and grow.
const FIRST_CHUNK: usize = 4096;
const LARGEST_CHUNK: usize = 1 << 18;

impl Queues {
    /// Finds the existing queues. Every file must have its full length; an empty one is removed, with all files after
    /// it.
    pub fn load(&mut self) -> Outcome<()> {
        let mut device = std::fs::metadata(&self.folder).ok().map(|data| data.dev());
        for topic in folders(&self.folder)? {
            let topic_folder = self.folder.join(&topic);
            for name in folders(&topic_folder)? {
                let Some(id) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                    continue;
                };
                if id.to_string().as_bytes() != name.as_bytes() {
                    continue; // "+1" and "01" would be second names of queue 1
                }
                let Some(number) = self.topic(&topic.clone().into_vec()) else {
                    continue;
                };
                self.load_queue(number, id, &topic_folder.join(name), &mut device)?;
            }
        }
        Ok(())
    }

    fn load_queue(&mut self, topic: u32, id: i32, folder: &Path, device: &mut Option<u64>) -> Outcome<()> {
        let q = self.queue(topic, id);
        let mut lost = false;
        for start in segment_starts(folder)? {
            let path = folder.join(segment_name(start));
            let data = std::fs::metadata(&path).at(&path)?;
            let bytes = data.len();
            self.loaded.0 += 1;
            self.loaded.1 &= *device.get_or_insert(data.dev()) == data.dev();
            // The process that created an empty file died, or power was lost before the file was synced. The files
            // after it are not synced either, and would make a queue with a hole: dispatch rebuilds them.
            lost |= bytes == 0;
            if lost {
                if !self.read_only {
                    self.door.remove(&path).at(&path)?;
                    self.new_names_in.insert(folder.to_owned());
                }
                continue;
            }
            let wrong = if bytes != self.segment_bytes {
                Some((
                    bytes,
                    format!(
                        "a queue's file has {} bytes, this one {bytes}, and so ends",
                        self.segment_bytes
                    ),
                ))
            } else if start % self.segment_bytes != 0 {
                let reason = format!("a queue's file begins at a multiple of {}, not", self.segment_bytes);
                Some((start, reason))
            } else {
                None
            };
            if let Some((at, reason)) = wrong {
                if !self.tolerant {
                    return Err(Fault::damage(&path, at, reason));
                }
                let name = segment_name(start);
                let reason = format!("file {name} has {bytes} bytes instead of {}", self.segment_bytes);
                self.break_queue(q, reason, true);
                continue;
            }
            let gap = self.queues[q as usize]
                .segments
                .last()
                .is_some_and(|last| last.start + self.segment_bytes != start);
            if gap && !self.read_only {
                let reason = format!("the file before {} is missing", segment_name(start));
                self.break_queue(q, reason, true);
            }
            let queue = &mut self.queues[q as usize];
            queue.segments.push(Segment {
                start,
                handle: None,
                used: false,
                unsynced: false,
            });
            queue.end = start + self.segment_bytes;
            queue.written = queue.end;
        }
        if self.is_extended() && self.tolerant {
            self.look_at_ext(q)?;
        }
        Ok(())
    }

    /// Reads a segment's units in order until `each` returns false or the file ends.
    fn walk(&mut self, q: u32, start: u64, mut each: impl FnMut(u64, Unit) -> bool) -> Outcome<()> {
        let Some(handle) = self.handle(q, start, false)? else {
            return Ok(());
        };
        let mut buffer = vec![];
        let mut at = 0;
        let mut chunk = FIRST_CHUNK / UNIT as usize * UNIT as usize;
        while at < self.segment_bytes {
            buffer.resize(chunk.min((self.segment_bytes - at) as usize), 0);
            let n = handle.read_at(&mut buffer, at).at_path(|| self.path_of(q, start))?;
            for (i, bytes) in buffer[..n].chunks_exact(UNIT as usize).enumerate() {
                if !each(at + i as u64 * UNIT, Unit::decode(bytes)) {
                    return Ok(());
                }
            }
            if n < buffer.len() {
                return Ok(());
            }
            at += n as u64;
            chunk = (chunk * 4).min(LARGEST_CHUNK / UNIT as usize * UNIT as usize);
        }
        Ok(())
    }

    /// The queue's units end at `end`: files after it are removed, and the bytes after `end` in its file are zeroed, up
    /// to `old_end` at least and to the first page of zeros.
    fn cut(&mut self, q: u32, end: u64, old_end: u64) -> Outcome<()> {
        while let Some(last) = self.queues[q as usize].segments.last() {
            if last.start <= end {
                break;
            }
            let index = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, index)?;
        }
        let queue = &mut self.queues[q as usize];
        let dropped = queue.pending.len();
        queue.pending.clear();
        self.pending_bytes -= dropped;
        queue.end = end;
        queue.written = end;
        queue.min_logic = queue.min_logic.min(end);
        queue.floor = queue.floor.min(end);
        self.drop_ext_tail(q); // found again from the files when needed
        let queue = &mut self.queues[q as usize];
        let Some(start) = queue.segments.last().map(|segment| segment.start) else {
            return Ok(());
        };
        if self.read_only || end - start >= self.segment_bytes {
            return Ok(());
        }
        let handle = self.handle(q, start, false)?.expect("it is on the table");
        let mut at = end - start;
        let mut buffer = vec![0; FIRST_CHUNK];
        while at < self.segment_bytes {
            let n = buffer.len().min((self.segment_bytes - at) as usize);
            let n = handle
                .read_at(&mut buffer[..n], at)
                .at_path(|| self.path_of(q, start))?;
            if buffer[..n].iter().any(|&byte| byte != 0) {
                // A process that dies writes a part of its units, and nothing after that part.
                let rest = (UNIT as usize).min(n);
                if end == old_end && (at > end - start || buffer[rest..n].iter().any(|&byte| byte != 0)) {
                    self.break_queue(
                        q,
                        format!("units follow behind offset {}, where none stands", end / UNIT),
                        false,
                    );
                }
                let zeros = vec![0; n];
                self.write(q, start, &zeros, at)?;
            } else if start + at + n as u64 >= old_end {
                break;
            }
            if n == 0 {
                break;
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Finds the queue's end, which is the first invalid unit, searched from the third-last file on. Returns the end of
    /// the last record named, -1 if no record is named. A queue that the disk cannot read loses its files, and has to
    /// be rebuilt.
    pub fn recover(&mut self, q: u32) -> Outcome<i64> {
        match self.find_end(q) {
            Err(Fault::Io { path, error }) if error.raw_os_error() == Some(libc::EIO) && !self.read_only => {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.break_queue(q, format!("file {name} cannot be read: {error}"), true);
                self.begin_again(q)?;
                Ok(-1)
            }
            found => found,
        }
    }

    fn find_end(&mut self, q: u32) -> Outcome<i64> {
        let mut first = self.queues[q as usize].segments.len().saturating_sub(3);
        let (mut end, mut max_physic);
        loop {
            let starts: Vec<u64> = self.queues[q as usize].segments[first..]
                .iter()
                .map(|s| s.start)
                .collect();
            end = starts.first().copied().unwrap_or(0);
            max_physic = -1;
            for (i, &start) in starts.iter().enumerate() {
                if i > 0 && start != end {
                    break; // a file is missing: the queue ends before the gap
                }
                self.walk(q, start, |at, unit| {
                    if unit.is_unit() {
                        end = start + at + UNIT;
                        if !unit.is_blank() {
                            max_physic = unit.end();
                        }
                    }
                    unit.is_unit()
                })?;
                if end != start + self.segment_bytes {
                    break;
                }
            }
            if max_physic >= 0 || first == 0 {
                break;
            }
            first -= 1;
        }
        self.queues[q as usize].max_physic = max_physic;
        self.cut(q, end, end)?;
        Ok(max_physic)
    }

    /// Removes the units of records at or after `pos`.
    ///
    /// A queue without a unit afterwards has no last record. (RocketMQ sets `pos` there. Then a recovery that dispatches
    /// earlier records again takes those of this queue for known, and their units stay missing.)
    pub fn truncate(&mut self, q: u32, pos: i64) -> Outcome<()> {
        self.write_queue(q)?;
        if let Some(held) = &mut self.queues[q as usize].held {
            held.truncate(pos);
        }
        self.queues[q as usize].max_physic = -1;
        let old_end = self.queues[q as usize].end;
        while let Some(start) = self.queues[q as usize].segments.last().map(|segment| segment.start) {
            let bound = self.queues[q as usize].end;
            let (mut end, mut max_physic) = (start, -1);
            self.walk(q, start, |at, unit| {
                let keep = start + at < bound && unit.is_unit() && unit.pos < pos;
                if keep {
                    end = start + at + UNIT;
                    if !unit.is_blank() {
                        max_physic = unit.end();
                    }
                }
                keep
            })?;
            if max_physic >= 0 {
                self.queues[q as usize].max_physic = max_physic;
                return self.cut(q, end, old_end);
            }
            let index = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, index)?;
            let queue = &mut self.queues[q as usize];
            queue.end = if queue.segments.is_empty() { 0 } else { start };
            queue.written = queue.end;
        }
        self.cut(q, 0, 0)
    }

    /// The first unit of a record at or after `min_pos` becomes the queue's first; nothing changes if there is none.
    /// Damaged units before it may belong to such records; then the first damaged unit becomes the queue's first.
    pub fn correct_min(&mut self, q: u32, min_pos: i64) -> Outcome<()> {
        let end = self.queues[q as usize].written;
        let starts: Vec<u64> = self.queues[q as usize]
            .segments
            .iter()
            .map(|segment| segment.start)
            .collect();
        let (mut found, mut damaged) = (None, None);
        for start in starts {
            self.walk(q, start, |at, unit| {
                if start + at >= end {
                    return false;
                }
                if !unit.is_unit() {
                    damaged.get_or_insert(start + at);
                } else if unit.pos >= min_pos && !unit.is_blank() {
                    found = Some(damaged.unwrap_or(start + at));
                } else if !unit.is_blank() {
                    damaged = None; // a unit before an older record's unit is older
                }
                found.is_none()
            })?;
            if found.is_some() {
                break;
            }
        }
        let queue = &mut self.queues[q as usize];
        let in_memory = || {
            let units = queue.pending.chunks_exact(UNIT as usize);
            let at = units
                .map(Unit::decode)
                .position(|unit| unit.pos >= min_pos && !unit.is_blank())?;
            Some(damaged.unwrap_or(end + at as u64 * UNIT))
        };
        if let Some(found) = found.or_else(in_memory) {
            queue.min_logic = found.max(queue.floor);
        }
        Ok(())
    }

    /// Removes the files whose units all name records below `min_pos`, never the last; returns how many.
    pub fn delete_below(&mut self, q: u32, min_pos: i64) -> Outcome<usize> {
        if !self.read_only {
            self.write_queue(q)?; // so that all units are in the files
        }
        let mut removed = 0;
        while self.queues[q as usize].segments.len() > 1 {
            let start = self.queues[q as usize].segments[0].start;
            if !self.is_below(q, start, min_pos)? {
                break;
            }
            self.remove_segment(q, 0)?;
            removed += 1;
        }
        self.correct_min(q, min_pos)?;
        self.trim_ext(q)?;
        Ok(removed)
    }

    /// Whether all units of a file that is not the last one name records below `min_pos`. Placeholders and damaged
    /// units name no record: then the other units of the file decide, and the first sound one after it.
    fn is_below(&mut self, q: u32, start: u64, min_pos: i64) -> Outcome<bool> {
        let names = |unit: &Unit| unit.is_unit() && !unit.is_blank();
        let last = self.unit(q, start + self.segment_bytes - UNIT)?;
        if let Some(last) = last.filter(names) {
            return Ok(last.pos < min_pos);
        }
        let mut below = true;
        self.walk(q, start, |_, unit| {
            below &= !names(&unit) || unit.pos < min_pos;
            below
        })?;
        if !below {
            return Ok(false);
        }
        let mut first = None;
        self.walk(q, start + self.segment_bytes, |_, unit| {
            first = names(&unit).then_some(unit.pos);
            first.is_none()
        })?;
        Ok(first.is_some_and(|pos| pos < min_pos))
    }

    /// Removes the queue with all its files.
    pub fn remove(&mut self, q: u32) -> Outcome<()> {
        while !self.queues[q as usize].segments.is_empty() {
            let last = self.queues[q as usize].segments.len() - 1;
            self.remove_segment(q, last)?;
        }
        self.remove_ext(q, None)?;
        let folder = self.folder_of(q);
        if !self.read_only {
            // An empty folder that stays does no harm: `load` finds a queue without units.
            let _ = std::fs::remove_dir(&folder);
            self.new_names_in.remove(&folder);
            if let Some(parent) = folder.parent() {
                self.new_names_in.insert(parent.to_owned());
            }
        }
        let queue = &mut self.queues[q as usize];
        let (topic, id, dropped) = (queue.topic, queue.id, queue.pending.len());
        queue.pending = vec![];
        queue.held = None;
        queue.alive = false;
        self.pending_bytes -= dropped;
        self.topics[topic as usize].queues.remove(&id);
        self.dirty.retain(|&other| other != q);
        self.grew.retain(|&other| other != q);
        self.unsynced.retain(|&(other, _)| other != q);
        self.last_queue = NO_QUEUE;
        self.free.push(q);
        Ok(())
    }

    pub fn remove_topic(&mut self, name: &[u8]) -> Outcome<()> {
        let Some(&topic) = self.names.get(name) else {
            return Ok(());
        };
        let queues: Vec<u32> = self.topics[topic as usize].queues.values().copied().collect();
        for q in queues {
            self.remove(q)?;
        }
        if !self.read_only {
            let folder = self.folder.join(std::ffi::OsStr::from_bytes(name));
            if std::fs::remove_dir(&folder).is_ok() {
                self.new_names_in.remove(&folder);
                self.new_names_in.insert(self.folder.clone());
            }
        }
        Ok(())
    }
}

fn folders(folder: &Path) -> Outcome<Vec<std::ffi::OsString>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.at(folder)?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.at(folder)?;
        if entry.path().is_dir() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    Ok(names)
}
