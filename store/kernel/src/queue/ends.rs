//! Where all queues of a store end, found beside their broker with a few system calls for each.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::look::{End, Look};
use super::unit::{Unit, UNIT};
use crate::fault::{At, Fault, Outcome};
use crate::folder::{Folder, Kind};
use crate::maps::segment_name;
use crate::named::named_tuples;
use crate::packed::{put, put_text, Packed};
use crate::verify::in_log::{name_of, InLog, QueuesOfLog};

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

impl QueueEnd {
    fn record_end(&self) -> i64 {
        self.pos.saturating_add(i64::from(self.size))
    }

    /// Whether the queue has units of exactly these records, each of which has its own queue offset, and nothing else.
    fn is_of(&self, records: Option<&InLog>, segment_bytes: u64) -> bool {
        let units = (self.first as i64, self.end as i64 - 1);
        self.regular
            && self.segment_bytes == segment_bytes
            && records.is_some_and(|records| records.is_whole() && (records.first, records.last) == units)
    }
}

/// The queues of a store, by topic and queue as texts.
#[pyclass(frozen, module = "tallystick.store._kernel")]
#[derive(Default)]
pub struct QueueEnds {
    ends: Vec<QueueEnd>,
    /// The greatest end of a record that a last unit names; -1: none.
    named_end: i64,
    /// Number of files by their length, without empty ones. Empty: no file was looked at.
    lengths: BTreeMap<u64, u64>,
}

impl QueueEnds {
    /// The queues in `folder` (consumequeue). `below`: newest units that name a record whose end is behind this
    /// position are replaced by the newest one that names a record that begins before it.
    fn of(folder: &Path, below: i64) -> Outcome<QueueEnds> {
        let mut found = QueueEnds {
            named_end: -1,
            ..QueueEnds::default()
        };
        let Some(root) = opened(Folder::open(folder)).at(folder)? else {
            return Ok(found);
        };
        for topic in root.folders().at(folder)? {
            let path = folder.join(&topic);
            let (Some(topic_folder), Some(name)) = (opened(root.folder(&topic)).at(&path)?, topic.to_str()) else {
                continue;
            };
            for queue in topic_folder.folders().at(&path)? {
                let Some(id) = queue_id(&queue) else { continue };
                let path = path.join(&queue);
                let Some(files) = opened(topic_folder.folder(&queue)).at(&path)? else {
                    continue;
                };
                match found.queue_end(&files, &path, name, id, below) {
                    Err(Fault::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {} // expired
                    end => found.ends.push(end?),
                }
            }
        }
        Ok(found)
    }

    fn queue_end(&mut self, folder: &Folder, path: &Path, topic: &str, queue: i64, below: i64) -> Outcome<QueueEnd> {
        let mut files = QueueFiles::list(folder, path)?;
        for &(_, length) in files.found.iter().filter(|file| file.1 > 0) {
            *self.lengths.entry(length).or_default() += 1;
        }
        let (starts, segment_bytes, regular) = files.chosen(None);
        let first = starts.first().map_or(0, |start| start / UNIT);
        let mut found = QueueEnd {
            topic: topic.to_owned(),
            queue,
            first,
            end: first,
            segment_bytes,
            pos: -1,
            size: 0,
            regular: regular && segment_bytes % UNIT == 0,
        };
        for (newer, &start) in starts.iter().rev().enumerate() {
            let mut look = files.open(start)?;
            let End { written, regular, last } = look.end()?;
            found.regular &= regular && newer == 0;
            let Some(mut unit) = last else { continue };
            if found.end == first {
                found.end = start / UNIT + written;
            }
            if !unit.is_blank() {
                self.named_end = self.named_end.max(unit.end());
            }
            if unit.end() > below && !unit.is_blank() {
                match look.first(written, |unit| unit.pos >= below)? {
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
}

/// The fields of a `QueueEnd`.
type Told = (String, i64, u64, u64, u64, i64, i32, bool);

impl From<Told> for QueueEnd {
    fn from((topic, queue, first, end, segment_bytes, pos, size, regular): Told) -> QueueEnd {
        QueueEnd {
            topic,
            queue,
            first,
            end,
            segment_bytes,
            pos,
            size,
            regular,
        }
    }
}

/// The files of one queue whose names are positions.
pub struct QueueFiles<'a> {
    folder: &'a Folder,
    path: &'a Path,
    /// (first byte, length), ascending.
    pub found: Vec<(u64, u64)>,
    /// Other entries of the folder.
    pub others: Vec<OsString>,
    /// The only file is open already.
    look: Option<Look>,
}

impl<'a> QueueFiles<'a> {
    pub fn list(folder: &'a Folder, path: &'a Path) -> Outcome<QueueFiles<'a>> {
        let (mut names, mut others) = (vec![], vec![]);
        let listed = folder.list(|name, kind| match start_of(name) {
            Some(start) => names.push((start, kind)),
            None => others.push(name.to_owned()),
        });
        listed.at(path)?;
        let mut files = QueueFiles {
            folder,
            path,
            found: vec![],
            others,
            look: None,
        };
        if let [(start, Kind::File)] = names[..] {
            let look = files.open(start)?;
            files.found.push((start, look.bytes()));
            files.look = Some(look);
            files.others.sort_unstable();
            return Ok(files);
        }
        for (start, _) in names {
            let file = path.join(segment_name(start));
            match std::fs::metadata(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // expired
                Ok(found) if found.is_file() => files.found.push((start, found.len())),
                found => {
                    found.at(&file)?;
                    files.others.push(segment_name(start).into());
                }
            }
        }
        files.found.sort_unstable();
        files.others.sort_unstable();
        Ok(files)
    }

    pub fn open(&mut self, start: u64) -> Outcome<Look> {
        if let Some(look) = self.look.take() {
            return Ok(look);
        }
        let name = segment_name(start);
        let path = self.path.join(&name);
        Look::of(self.folder.file(OsStr::new(&name)).at(&path)?, path)
    }

    /// The files that have this length, or the one that most have; that length; whether the folder has nothing else and
    /// they have no gap.
    pub fn chosen(&self, segment_bytes: Option<u64>) -> (Vec<u64>, u64, bool) {
        let count = |length: u64| self.found.iter().filter(|file| file.1 == length).count();
        let lengths = self.found.iter().map(|file| file.1).filter(|&length| length > 0);
        let most = || lengths.rev().max_by_key(|&length| count(length)).unwrap_or(0);
        let length = segment_bytes.unwrap_or_else(most);
        let of_length = self.found.iter().filter(|file| file.1 == length && length > 0);
        let starts: Vec<u64> = of_length.map(|file| file.0).collect();
        let regular = self.others.is_empty()
            && self.found.iter().all(|file| file.1 == length)
            && starts.windows(2).all(|pair| pair[0] + length == pair[1]);
        (starts, length, regular)
    }
}

/// The position that a file's name gives.
fn start_of(name: &OsStr) -> Option<u64> {
    let name = name.to_str()?;
    (name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| name.parse().ok())
        .flatten()
}

pub fn queue_id(name: &OsStr) -> Option<i64> {
    let name = name.to_str()?;
    name.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| name.parse().ok())
        .flatten()
}

/// None: there is no such folder.
fn opened(folder: io::Result<Folder>) -> io::Result<Option<Folder>> {
    match folder {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        folder => folder.map(Some),
    }
}

/// What a queue can have beside the units of the records of a log, and which of it needs a closer look.
#[derive(Clone, Copy)]
struct Bounds {
    segment_bytes: Option<u64>,
    begin: i64,
    bound: i64,
    /// Nothing is behind the bound, so that units must not name anything there.
    whole: bool,
    /// No broker writes the queues.
    closed: bool,
}

/// Whether a queue has units, or files, that these records of the log do not explain, or lacks units.
fn is_suspicious(path: &Path, records: Option<&InLog>, bounds: Bounds) -> Outcome<bool> {
    let Some(folder) = opened(Folder::open(path)).at(path)? else {
        return Ok(false); // expired
    };
    let mut files = QueueFiles::list(&folder, path)?;
    let (starts, segment_bytes, regular) = files.chosen(bounds.segment_bytes);
    if !regular || segment_bytes % UNIT != 0 {
        return Ok(true);
    }
    let mut end = 0;
    for &start in &starts {
        let base = (start / UNIT) as i64;
        let mut look = files.open(start)?;
        let count = look.end()?.written;
        end = base + count as i64;
        let (first, last) = records.map_or((end, end), |records| (records.first, records.last.saturating_add(1)));
        let before = (first - base).clamp(0, count as i64) as u64;
        let behind = (last - base).clamp(0, count as i64) as u64;
        let unexplained = [look.read(0, before)?, look.read(behind, count - behind)?].concat();
        if unexplained
            .chunks_exact(UNIT as usize)
            .map(Unit::decode)
            .any(|unit| names_something(unit, bounds))
        {
            return Ok(true);
        }
        let is_last = Some(&start) == starts.last();
        if !is_last && count * UNIT < segment_bytes {
            return Ok(true);
        }
        if is_last && bounds.closed && look.has_data(count * UNIT)? {
            return Ok(true);
        }
    }
    Ok(bounds.whole && records.is_some_and(|records| records.last >= end))
}

fn names_something(unit: Unit, bounds: Bounds) -> bool {
    let is_there = bounds.begin <= unit.pos && (bounds.whole || unit.end() <= bounds.bound);
    unit.pos < 0 || unit.size <= 0 || is_there && unit.size != Unit::BLANK.size
}

#[pymethods]
impl QueueEnds {
    fn __len__(&self) -> usize {
        self.ends.len()
    }

    fn __getitem__(&self, at: usize) -> PyResult<QueueEnd> {
        self.ends.get(at).cloned().ok_or_else(|| PyIndexError::new_err(at))
    }

    #[getter]
    fn named_end(&self) -> i64 {
        self.named_end
    }

    /// lengths() -> {length of a file: number of files}
    fn lengths(&self) -> Option<BTreeMap<u64, u64>> {
        (!self.lengths.is_empty()).then(|| self.lengths.clone())
    }

    /// The numbers of the queues whose last unit names a record, from the record that ends last to the one that ends
    /// first.
    fn newest(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.ends.len()).filter(|&at| self.ends[at].pos >= 0).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(self.ends[at].record_end()));
        order
    }

    /// fullest(most) -> [(topic, queue)]
    fn fullest(&self, most: usize) -> Vec<(&str, i64)> {
        let mut order: Vec<&QueueEnd> = self.ends.iter().filter(|each| each.end > each.first).collect();
        order.sort_by_key(|each| std::cmp::Reverse(each.end - each.first));
        order
            .iter()
            .take(most)
            .map(|each| (each.topic.as_str(), each.queue))
            .collect()
    }

    /// suspicious(folder, records, segment_bytes, begin, bound, whole, closed) -> [(topic, queue)]
    #[allow(clippy::too_many_arguments)] // by name
    #[pyo3(signature = (folder, records, *, segment_bytes, begin, bound, whole, closed))]
    fn suspicious(
        &self,
        py: Python<'_>,
        folder: PathBuf,
        records: &QueuesOfLog,
        segment_bytes: Option<u64>,
        begin: i64,
        bound: i64,
        whole: bool,
        closed: bool,
    ) -> PyResult<Vec<(OsString, i64)>> {
        let bounds = Bounds {
            segment_bytes,
            begin,
            bound,
            whole,
            closed,
        };
        Ok(py.detach(|| self.suspects(&folder, records, bounds))?)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let unpack = slf.get_type().getattr("_unpacked")?;
        Ok((unpack, (PyBytes::new(slf.py(), &slf.get().packed()),)))
    }

    /// told(ends, named_end): what another process found.
    #[staticmethod]
    fn told(ends: Vec<Told>, named_end: i64) -> QueueEnds {
        QueueEnds {
            ends: ends.into_iter().map(QueueEnd::from).collect(),
            named_end,
            ..QueueEnds::default()
        }
    }

    #[staticmethod]
    fn _unpacked(bytes: &[u8]) -> PyResult<QueueEnds> {
        unpacked(&mut Packed(bytes)).ok_or_else(|| PyValueError::new_err("not packed QueueEnds"))
    }
}

impl QueueEnds {
    /// The queues that need a closer look, and those of `records` without a folder.
    fn suspects(&self, folder: &Path, records: &QueuesOfLog, bounds: Bounds) -> Outcome<Vec<(OsString, i64)>> {
        let mut found = vec![];
        let mut seen = 0;
        for end in &self.ends {
            let of_log = i32::try_from(end.queue)
                .ok()
                .and_then(|queue| records.0.get(end.topic.as_bytes(), queue));
            seen += usize::from(of_log.is_some());
            if end.is_of(of_log, bounds.segment_bytes.unwrap_or(0)) {
                continue;
            }
            let path = folder.join(&end.topic).join(end.queue.to_string());
            let suspicious = match is_suspicious(&path, of_log, bounds) {
                Err(Fault::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => false, // expired
                suspicious => suspicious?,
            };
            if suspicious || of_log.is_some_and(|records| !records.is_whole()) {
                found.push((OsString::from(&end.topic), end.queue));
            }
        }
        if seen < records.0.len() {
            let there: std::collections::HashSet<(&[u8], i64)> =
                self.ends.iter().map(|end| (end.topic.as_bytes(), end.queue)).collect();
            let lost = records
                .0
                .iter()
                .filter(|(topic, queue, _)| !there.contains(&(*topic, i64::from(*queue))));
            found.extend(lost.map(|(topic, queue, _)| (name_of(topic), queue.into())));
        }
        Ok(found)
    }

    fn packed(&self) -> Vec<u8> {
        let mut bytes = vec![];
        put(&mut bytes, self.named_end);
        put(&mut bytes, self.lengths.len() as i64);
        for (&length, &count) in &self.lengths {
            put(&mut bytes, length as i64);
            put(&mut bytes, count as i64);
        }
        for end in &self.ends {
            put_text(&mut bytes, end.topic.as_bytes());
            let numbers = [
                end.queue,
                end.first as i64,
                end.end as i64,
                end.segment_bytes as i64,
                end.pos,
            ];
            for number in numbers.into_iter().chain([i64::from(end.size), i64::from(end.regular)]) {
                put(&mut bytes, number);
            }
        }
        bytes
    }
}

fn unpacked(packed: &mut Packed<'_>) -> Option<QueueEnds> {
    let mut found = QueueEnds {
        named_end: packed.number()?,
        ..QueueEnds::default()
    };
    for _ in 0..packed.number()? {
        found.lengths.insert(packed.number()? as u64, packed.number()? as u64);
    }
    while !packed.0.is_empty() {
        found.ends.push(QueueEnd {
            topic: packed.text()?,
            queue: packed.number()?,
            first: packed.number()? as u64,
            end: packed.number()? as u64,
            segment_bytes: packed.number()? as u64,
            pos: packed.number()?,
            size: packed.number()? as i32,
            regular: packed.number()? != 0,
        });
    }
    Some(found)
}

/// queue_ends(folder, below) -> QueueEnds
#[pyfunction]
#[pyo3(signature = (folder, below = i64::MAX))]
fn queue_ends(py: Python<'_>, folder: PathBuf, below: i64) -> PyResult<QueueEnds> {
    Ok(py.detach(|| QueueEnds::of(&folder, below))?)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<QueueEnds>()?;
    module.add_function(wrap_pyfunction!(queue_ends, module)?)
}
