//! The files of the queues: opened on demand, closed in clock order when too many are open, synced without a lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;

use super::{Queues, NO_QUEUE};
use crate::door::{Door, DoorFile};
use crate::fault::{At, Outcome};

/// A queue file, open.
pub(super) enum Handle {
    Writing(DoorFile),
    Reading(File),
}

impl Handle {
    pub fn read_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<usize> {
        let mut total = 0;
        while !buffer.is_empty() {
            let n = match self {
                Handle::Writing(file) => file.read_at(buffer, offset)?,
                Handle::Reading(file) => file.read_at(buffer, offset)?,
            };
            if n == 0 {
                break;
            }
            total += n;
            offset += n as u64;
            buffer = &mut buffer[n..];
        }
        Ok(total)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Handle::Writing(file) => file.write_at(data, offset),
            Handle::Reading(_) => Err(io::Error::from_raw_os_error(libc::EROFS)),
        }
    }

    fn sync(&self) -> io::Result<()> {
        match self {
            Handle::Writing(file) => file.sync_data(),
            Handle::Reading(_) => Ok(()),
        }
    }
}

pub(super) struct Segment {
    pub start: u64,
    pub handle: Option<Arc<Handle>>,
    /// For the clock algorithm: read or written since the hand last passed.
    pub used: bool,
    pub unsynced: bool,
}

/// A file to sync, removed from the table so that the sync needs no lock.
pub struct ToSync {
    queue: u32,
    start: u64,
    handle: Option<Arc<Handle>>,
    path: PathBuf,
}

impl Queues {
    /// The segment's file, opened if needed; `create` creates it. None: no such segment.
    pub(super) fn handle(&mut self, q: u32, start: u64, create: bool) -> Outcome<Option<Arc<Handle>>> {
        let queue = &mut self.queues[q as usize];
        let index = queue.segment_index(start);
        if let Some(index) = index {
            let segment = &mut queue.segments[index];
            if let Some(handle) = &segment.handle {
                segment.used = true;
                return Ok(Some(handle.clone()));
            }
        } else if !create {
            return Ok(None);
        }
        let path = self.path_of(q, start);
        while self.open.len() >= self.max_open {
            self.close_one();
        }
        let handle = if self.read_only {
            Handle::Reading(File::open(&path).at(&path)?)
        } else if index.is_some() {
            Handle::Writing(self.door.open(&path).at(&path)?)
        } else {
            let file = self.door.create_sized(&path, self.segment_bytes, false).at(&path)?;
            for folder in path.ancestors().skip(1) {
                self.new_names_in.insert(folder.to_owned());
                if folder == self.folder {
                    break;
                }
            }
            Handle::Writing(file)
        };
        let handle = Arc::new(handle);
        let queue = &mut self.queues[q as usize];
        let index = match index {
            Some(index) => index,
            None => {
                let index = queue.segments.partition_point(|segment| segment.start < start);
                queue.segments.insert(
                    index,
                    Segment {
                        start,
                        handle: None,
                        used: true,
                        unsynced: false,
                    },
                );
                index
            }
        };
        queue.segments[index].handle = Some(handle.clone());
        queue.segments[index].used = true;
        self.open.push_back((q, start));
        Ok(Some(handle))
    }

    /// Closes the next file that was not used since the hand last passed.
    fn close_one(&mut self) {
        while let Some((q, start)) = self.open.pop_front() {
            let queue = &mut self.queues[q as usize];
            let Some(index) = queue.segment_index(start) else {
                return;
            };
            let segment = &mut queue.segments[index];
            if segment.handle.is_none() {
                return;
            }
            if std::mem::take(&mut segment.used) {
                self.open.push_back((q, start));
            } else {
                segment.handle = None;
                return;
            }
        }
    }

    /// Removes a segment from the table, and its file.
    pub(super) fn remove_segment(&mut self, q: u32, index: usize) -> Outcome<()> {
        let start = self.queues[q as usize].segments[index].start;
        if !self.read_only {
            let path = self.path_of(q, start);
            match self.door.remove(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.at(&path)?,
            }
            self.new_names_in.insert(self.folder_of(q));
        }
        self.queues[q as usize].segments.remove(index);
        self.open.retain(|&(queue, at)| (queue, at) != (q, start));
        Ok(())
    }

    pub(super) fn write(&mut self, q: u32, start: u64, data: &[u8], at: u64) -> Outcome<()> {
        let handle = self.handle(q, start, true)?.expect("made if absent");
        handle.write_at(data, at).at_path(|| self.path_of(q, start))?;
        let queue = &mut self.queues[q as usize];
        let index = queue.segment_index(start).expect("just opened");
        if !std::mem::replace(&mut queue.segments[index].unsynced, true) {
            self.unsynced.push((q, start));
        }
        Ok(())
    }

    /// The files to sync; they count as synced from now on, unless `sync_failed` is called.
    pub fn take_unsynced(&mut self) -> (Vec<ToSync>, Vec<PathBuf>) {
        let mut files = self.take_unsynced_ext();
        for (q, start) in std::mem::take(&mut self.unsynced) {
            let queue = &mut self.queues[q as usize];
            let Some(index) = queue.segment_index(start) else {
                continue;
            };
            queue.segments[index].unsynced = false;
            let handle = queue.segments[index].handle.clone();
            files.push(ToSync {
                queue: q,
                start,
                handle,
                path: self.path_of(q, start),
            });
        }
        (
            files,
            std::mem::take(&mut self.new_names_in).into_iter().rev().collect(),
        )
    }

    pub fn sync_failed(&mut self, files: &[ToSync], folders: &[PathBuf]) {
        for file in files {
            if file.queue == NO_QUEUE.0 {
                self.ext_unsynced.insert(file.path.clone());
                continue;
            }
            let queue = &mut self.queues[file.queue as usize];
            if let Some(index) = queue.segment_index(file.start) {
                if !std::mem::replace(&mut queue.segments[index].unsynced, true) {
                    self.unsynced.push((file.queue, file.start));
                }
            }
        }
        self.new_names_in.extend(folders.iter().cloned());
    }
}

impl ToSync {
    /// A file that is not in the queues' table.
    pub(super) fn of_path(path: PathBuf) -> ToSync {
        ToSync {
            queue: NO_QUEUE.0,
            start: 0,
            handle: None,
            path,
        }
    }

    /// Whether the file is on that device. False if that is not known.
    pub fn is_on(&self, device: u64) -> bool {
        let data = match self.handle.as_deref() {
            Some(Handle::Writing(file)) => file.metadata(),
            Some(Handle::Reading(file)) => file.metadata(),
            None => std::fs::metadata(&self.path),
        };
        data.is_ok_and(|data| data.dev() == device)
    }

    pub fn sync(&self, door: &Door) -> Outcome<()> {
        let done = match &self.handle {
            Some(handle) => handle.sync(),
            // Closed since it was written: any descriptor of the file writes its pages out.
            None => door.open(&self.path).and_then(|file| file.sync_data()),
        };
        match done {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()), // removed in the meantime
            done => done.at(&self.path),
        }
    }
}
