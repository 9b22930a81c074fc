//! Reads a sealed segment again from the disk, piece by piece: checks records, entries and their CRCs, and the units
//! that ConsumeQueues have for them.
//!
//! The file is read past the page cache (O_DIRECT): this checks the bytes on the disk, and other programs keep their
//! cached pages. On a file system without O_DIRECT the reads go through the cache; a piece that was not cached before
//! is dropped afterwards.
//!
//! `scan::range` defines damage, so that a scrub, Spark's audit and `MessageScan` agree. In dledger's layout the
//! entries' own CRCs and their chain are checked as well: these cover headers, topics and properties.
//!
//! A unit is compared with the one that its queue has at the record's offset. A missing queue, an offset before its
//! first and a unit of a later record are not damage: topics are removed and created again with the same offsets. A
//! unit that points to an extension is sound if a sound extension unit with the record's tags code lies there.
//!
//! Index files are read separately: see `index`.

mod index;

use std::path::PathBuf;
use std::sync::Mutex;

use pyo3::prelude::*;

use crate::dispatch::{Differs, Dispatch, Expected};
use crate::ext::ExtWindow;
use crate::fault::Outcome;
use crate::scan::range::{Damage, Found, RangeReader, Stretch};

struct Scrub {
    reader: RangeReader,
    ext: Option<ExtWindow>,
    records: u64,
}

/// The result of one step: whether the segment is done, damage of the log, and damage of queues.
type Step = (bool, Vec<(u64, u64, &'static str)>, Vec<Differs>);

impl Scrub {
    fn step(&mut self, max_bytes: u64, dispatch: Option<&Dispatch>) -> Outcome<Step> {
        let from = self.reader.pos();
        let (mut damage, mut expected) = (vec![], Vec::<Expected>::new());
        let records = &mut self.records;
        let done = self.reader.read(|found| {
            let end = match found {
                Found::Record { record, pos } => {
                    *records += 1;
                    if let Some(dispatch) = dispatch {
                        expected.extend(dispatch.expected(&record, pos));
                    }
                    pos + u64::from(record.size())
                }
                Found::Damage(Damage { pos, size, reason }) => {
                    damage.push((pos, size, reason));
                    pos + size
                }
            };
            if end - from >= max_bytes {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })?;
        let differs = match dispatch {
            Some(dispatch) => {
                let ext = self.ext.get_or_insert_with(|| ExtWindow::new(dispatch.ext_folder()));
                dispatch.differing(expected, ext)?
            }
            None => vec![],
        };
        Ok((done, damage, differs))
    }
}

/// A pass over one sealed segment. Used by one thread at a time.
#[pyclass(frozen, module = "tallystick.store._kernel")]
pub struct SegmentScrub(Mutex<Scrub>);

#[pymethods]
impl SegmentScrub {
    #[new]
    fn new(
        path: PathBuf,
        file_start: u64,
        begin: u64,
        file_end: u64,
        entry_header_bytes: usize,
    ) -> PyResult<SegmentScrub> {
        crate::scan::check_geometry(file_end.saturating_sub(file_start), entry_header_bytes)?;
        let stretch = Stretch {
            file_start,
            file_end,
            begin,
            end: file_end,
            entry_header: entry_header_bytes,
            check_crc: true,
        };
        let reader = RangeReader::scrubbing(&path, stretch)?;
        Ok(SegmentScrub(Mutex::new(Scrub {
            reader,
            ext: None,
            records: 0,
        })))
    }

    /// The position in the log up to which everything was checked.
    #[getter]
    fn pos(&self) -> u64 {
        self.lock().reader.pos()
    }

    /// Bytes of ConsumeQueue extensions that were read.
    #[getter]
    fn ext_read(&self) -> u64 {
        self.lock().ext.as_ref().map_or(0, |ext| ext.read)
    }

    #[getter]
    fn records(&self) -> u64 {
        self.lock().records
    }

    /// Whether the reads bypass the page cache.
    #[getter]
    fn direct(&self) -> bool {
        self.lock().reader.is_direct()
    }

    /// step(max_bytes, dispatch=None) -> (done, [(pos, bytes, reason)], [(topic, queue, offset, reason)])
    #[pyo3(signature = (max_bytes, dispatch = None))]
    fn step(&self, py: Python<'_>, max_bytes: u64, dispatch: Option<Py<Dispatch>>) -> PyResult<Step> {
        let dispatch = dispatch.as_ref().map(|dispatch| dispatch.get());
        Ok(py.detach(|| self.lock().step(max_bytes, dispatch))?)
    }
}

impl SegmentScrub {
    fn lock(&self) -> std::sync::MutexGuard<'_, Scrub> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SegmentScrub>()?;
    module.add_class::<index::IndexScrub>()
}
