//! Reads the folders and files of queues into the system's cache before a start reads them one after the other.
//!
//! For each queue a start needs about four pages that lie anywhere on the disk: two folders, an inode, the first units.
//! Read one at a time, the pages of fifty thousand queues take minutes on a disk that answers in half a millisecond. A
//! disk can answer several requests at once, so several threads read different queues.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;

use crate::maps::{segment_name, segment_starts};

const FIRST_BYTES: usize = 4096;
/// A start looks for the end of a queue from its third-last file on.
const LAST_FILES: usize = 3;

/// Reads what a start reads first of each queue of these topics. Errors are ignored here: the start reports them.
fn read_ahead(folder: &Path, topics: &[Vec<u8>]) {
    for topic in topics {
        let Ok(queues) = std::fs::read_dir(folder.join(std::ffi::OsStr::from_bytes(topic))) else {
            continue;
        };
        for queue in queues.flatten() {
            let queue = queue.path();
            let starts = segment_starts(&queue).unwrap_or_default();
            let last = starts.len().saturating_sub(LAST_FILES);
            for (i, &start) in starts.iter().enumerate() {
                let path = queue.join(segment_name(start));
                if i == 0 || i >= last {
                    let file = File::open(path);
                    let _ = file.and_then(|file| file.read_at(&mut [0; FIRST_BYTES], 0));
                } else {
                    let _ = std::fs::metadata(path);
                }
            }
        }
    }
}

/// Blocks that this thread has read from the disk so far.
fn blocks_read() -> i64 {
    // SAFETY: the call fills the structure, or fails; zeros are a valid value of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_inblock
    }
}

/// read_ahead_queues(folder, topics) -> whether the disk was read
#[pyfunction]
fn read_ahead_queues(py: Python<'_>, folder: PathBuf, topics: Vec<Vec<u8>>) -> bool {
    py.detach(|| {
        let before = blocks_read();
        read_ahead(&folder, &topics);
        blocks_read() > before
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(read_ahead_queues, module)?)
}
