//! A range of a log as Arrow batches, for readers that do not parse records: `MessageScan` of the module's interface.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::PathBuf;

use arrow_array::RecordBatch;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::columns::{Columns, NoSuchColumn, CHUNK, NAMES};
use super::filter::Filter;
use super::range::{Damage, Found, RangeReader, Stretch};
use super::sums::Sums;
use super::units::Units;
use crate::exported::{Capsules, Exported};
use crate::fault::Outcome;
use crate::named::named_tuples;
use crate::record::Record;
use crate::verify::in_log::QueuesOfLog;

/// Damaged records that are listed; more are only counted. A disk that failed has millions.
const MOST_DAMAGE: usize = 1000;

pub struct Scan {
    reader: RangeReader,
    filter: Filter,
    columns: Columns,
    max_rows: usize,
    max_bytes: usize,
    passed: Passed,
    done: bool,
}

/// What the scan has passed so far: sound records, wanted or not, and damage.
#[derive(Default)]
struct Passed {
    records: u64,
    damaged: u64,
    damage: Vec<Damage>,
}

impl Passed {
    /// Counts an item. Returns the record with its position if the filter takes it.
    #[inline]
    fn wanted<'a>(&mut self, found: Found<'a>, filter: &Filter) -> Option<(Record<'a>, u64)> {
        match found {
            Found::Record { record, pos } => {
                self.records += 1;
                filter.takes(&record).then_some((record, pos))
            }
            Found::Damage(met) => {
                self.damaged += 1;
                if self.damage.len() < MOST_DAMAGE {
                    self.damage.push(met);
                }
                None
            }
        }
    }
}

impl Scan {
    pub fn new(reader: RangeReader, filter: Filter, columns: Columns, max_rows: usize, max_bytes: usize) -> Scan {
        Scan {
            reader,
            filter,
            columns,
            max_rows,
            max_bytes,
            passed: Passed::default(),
            done: false,
        }
    }

    /// The next rows; None: the range is done.
    pub fn next_batch(&mut self) -> Outcome<Option<RecordBatch>> {
        let Scan {
            reader,
            filter,
            columns,
            passed,
            max_rows,
            max_bytes,
            ..
        } = self;
        if !self.done {
            self.done = reader.read_windows(|window| {
                let mut records = Vec::with_capacity(CHUNK);
                let mut wanted = window.filter_map(|found| passed.wanted(found, filter));
                while columns.rows() < *max_rows && columns.bytes() < *max_bytes {
                    let most_records = columns.most_records().min(*max_rows - columns.rows());
                    let mut bytes_left = *max_bytes - columns.bytes();
                    records.clear();
                    while records.len() < most_records && bytes_left > 0 {
                        let Some(next) = wanted.next() else { break };
                        bytes_left = bytes_left.saturating_sub(next.0.bytes().len());
                        records.push(next);
                    }
                    if records.is_empty() {
                        return ControlFlow::Continue(());
                    }
                    columns.push(&records);
                }
                ControlFlow::Break(())
            })?;
        }
        Ok((columns.rows() > 0).then(|| columns.finish()))
    }

    /// The sums of the remaining records.
    pub fn sums(&mut self) -> Outcome<Sums> {
        let mut sums = Sums::default();
        self.pass(|records| records.iter().for_each(|(record, _)| sums.add(record)))?;
        Ok(sums)
    }

    /// Adds what the remaining records require of their queues.
    pub fn units(&mut self, units: &mut Units) -> Outcome<()> {
        self.pass(|records| units.add_all(records))
    }

    /// Passes the remaining records that are wanted to `take`, with their positions, up to `CHUNK` at a time.
    fn pass(&mut self, mut take: impl FnMut(&[(Record<'_>, u64)])) -> Outcome<()> {
        let Scan {
            reader, filter, passed, ..
        } = self;
        if !self.done {
            self.done = reader.read_windows(|window| {
                let mut records = Vec::with_capacity(CHUNK);
                let mut wanted = window.filter_map(|found| passed.wanted(found, filter));
                loop {
                    records.clear();
                    records.extend(wanted.by_ref().take(CHUNK));
                    if records.is_empty() {
                        return ControlFlow::Continue(());
                    }
                    take(&records);
                }
            })?;
        }
        Ok(())
    }
}

named_tuples! {
    /// The units of a queue that differ from those that the records of a range require.
    DifferingUnits {
        topic: String,
        queue: i32,
        units: usize,
        listed: Vec<(PathBuf, u64, String)>,
    }
    /// How many units of delayed messages have a delay.
    DelayCount {
        level: i32,
        queue: i32,
        delay_ms: i64,
        units: i64,
    }
    /// What the records of a range of the log require of their queues, and whether these have it.
    RequiredUnits {
        queues: QueuesOfLog,
        suspects: Vec<(OsString, i32)>,
        differing: Vec<DifferingUnits>,
        behind: u64,
        delays: Vec<DelayCount>,
        nameless: Vec<u64>,
        newest_ms: i64,
        unsettled: Option<u64>,
        committed: Vec<(u64, i64)>,
    }
}

/// Reads the messages in [begin, end) of one log file as Arrow batches.
#[pyclass(module = "tallystick.store._kernel")]
pub struct MessageScan(Scan);

#[pymethods]
impl MessageScan {
    #[new]
    #[pyo3(signature = (path, *, file_start, file_end, begin, end, columns, entry_header_bytes = 0, check_crc = false,
        source = String::new(), topics = None, queues = None, queue_offsets = None, store_times_ms = None, keys = None,
        max_rows = 65536, max_bytes = 1 << 24, max_content_bytes = 1 << 26))]
    #[allow(clippy::too_many_arguments)] // by name
    fn new(
        path: PathBuf,
        file_start: u64,
        file_end: u64,
        begin: u64,
        end: u64,
        columns: Vec<String>,
        entry_header_bytes: usize,
        check_crc: bool,
        source: String,
        topics: Option<Vec<Vec<u8>>>,
        queues: Option<Vec<i32>>,
        queue_offsets: Option<(i64, i64)>,
        store_times_ms: Option<(i64, i64)>,
        keys: Option<Vec<Vec<u8>>>,
        max_rows: usize,
        max_bytes: usize,
        max_content_bytes: usize,
    ) -> PyResult<MessageScan> {
        super::check_geometry(file_end.saturating_sub(file_start), entry_header_bytes)?;
        if !(file_start <= begin && begin <= end && end <= file_end) {
            let text = format!("bytes {begin} to {end} are not within the file's {file_start} to {file_end}");
            return Err(PyValueError::new_err(text));
        }
        if !(1..=1 << 24).contains(&max_rows) || !(1..=1 << 30).contains(&max_bytes) {
            let text = format!("a batch has 1 to 2^24 rows and 1 to 2^30 bytes, not {max_rows} and {max_bytes}");
            return Err(PyValueError::new_err(text));
        }
        if !(1..=1 << 30).contains(&max_content_bytes) {
            let text = format!("a decompressed body has at most 1 to 2^30 bytes, not {max_content_bytes}");
            return Err(PyValueError::new_err(text));
        }
        let columns = Columns::new(columns, source, max_content_bytes).map_err(|NoSuchColumn(name)| {
            PyValueError::new_err(format!("there is no column {name:?}; there are {}", NAMES.join(", ")))
        })?;
        let stretch = Stretch {
            file_start,
            file_end,
            begin,
            end,
            entry_header: entry_header_bytes,
            check_crc,
        };
        let filter = Filter {
            topics,
            queues,
            queue_offsets,
            store_times_ms,
            keys,
        };
        let reader = RangeReader::open(&path, stretch)?;
        Ok(MessageScan(Scan::new(reader, filter, columns, max_rows, max_bytes)))
    }

    /// The capsules of Arrow's C data interface (schema, array); None: nothing is left. The GIL is released.
    fn next_batch<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Capsules<'py>>> {
        let scan = &mut self.0;
        let exported = py.detach(|| -> Outcome<_> { Ok(scan.next_batch()?.map(Exported::new)) })?;
        exported.map(|exported| exported.capsules(py)).transpose()
    }

    /// The sums of the remaining records: (groups, sizes, producers) as capsules. The GIL is released.
    fn sums<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Capsules<'py>>> {
        let scan = &mut self.0;
        let exported = py.detach(|| -> Outcome<_> { Ok(scan.sums()?.tables().map(Exported::new)) })?;
        exported.into_iter().map(|table| table.capsules(py)).collect()
    }

    /// units(root, later, repairable_from, settled_ms, bring) -> what the remaining records require of the queues of the
    /// store
    ///
    /// `later`: scans of later ranges of the log, which are read as well. A queue is opened once for all of them.
    #[pyo3(signature = (root, *, later = vec![], repairable_from = 1 << 62, settled_ms = i64::MAX, bring = None))]
    fn units(
        &mut self,
        py: Python<'_>,
        root: PathBuf,
        mut later: Vec<PyRefMut<'_, MessageScan>>,
        repairable_from: i64,
        settled_ms: i64,
        bring: Option<Py<PyAny>>,
    ) -> PyResult<RequiredUnits> {
        let later = later.iter_mut().map(|scan| &mut scan.0);
        let scans: Vec<&mut Scan> = std::iter::once(&mut self.0).chain(later).collect();
        let (units, found) = py.detach(|| -> PyResult<_> {
            let mut units = Units::new(repairable_from, settled_ms);
            for scan in scans {
                scan.units(&mut units)?;
            }
            let found = units.compared(&root, bring.as_ref())?;
            Ok((units, found))
        })?;
        let delays = found
            .delays
            .into_iter()
            .map(|((level, queue, delay_ms), units)| DelayCount {
                level,
                queue,
                delay_ms,
                units,
            });
        let differing = found.differing.into_iter().map(|each| DifferingUnits {
            topic: each.topic,
            queue: each.queue,
            units: each.count,
            listed: each.listed,
        });
        Ok(RequiredUnits {
            queues: found.queues,
            suspects: found.suspects,
            differing: differing.collect(),
            behind: found.behind,
            delays: delays.collect(),
            nameless: units.nameless,
            newest_ms: units.newest_ms,
            unsettled: units.unsettled,
            committed: units.committed,
        })
    }

    /// The position in the log up to which everything was reported.
    #[getter]
    fn pos(&self) -> u64 {
        self.0.reader.pos()
    }

    /// Bytes read from the file so far.
    #[getter]
    fn bytes_read(&self) -> u64 {
        self.0.reader.bytes_read()
    }

    /// Sound records passed, wanted or not.
    #[getter]
    fn records(&self) -> u64 {
        self.0.passed.records
    }

    #[getter]
    fn damaged(&self) -> u64 {
        self.0.passed.damaged
    }

    /// (position, bytes, reason) of damage, in order; the first thousand.
    #[getter]
    fn damage(&self) -> Vec<(u64, u64, &'static str)> {
        let damage = self.0.passed.damage.iter();
        damage.map(|met| (met.pos, met.size, met.reason)).collect()
    }

    /// Rows without content, because their body cannot be decompressed.
    #[getter]
    fn unread(&self) -> u64 {
        self.0.columns.unread().count
    }

    /// (position, bytes of the record, reason) of these rows, in order; the first thousand.
    #[getter]
    fn unread_places(&self) -> Vec<(u64, u64, &'static str)> {
        self.0.columns.unread().first.clone()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_class::<MessageScan>()
}
