//! The one door to the disk: every open for writing, write, sync, rename and removal of the store passes here.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;

#[derive(Default)]
struct Inner {}

/// The door; clones share one state.
#[pyclass(frozen, from_py_object, module = "tallystick.store._kernel")]
#[derive(Clone)]
pub struct Door(Arc<Inner>);

/// A file opened for writing through the door.
pub struct DoorFile {
    door: Door,
    path: PathBuf,
    file: File,
}

/// A writable mapping of a file: stores go to the page cache, `sync` makes them durable.
pub struct DoorMap {
    file: DoorFile,
    map: memmap2::MmapMut,
}

impl Door {
    /// Opens an existing file for reading and writing.
    pub fn open(&self, path: &Path) -> io::Result<DoorFile> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(DoorFile {
            door: self.clone(),
            path: path.to_owned(),
            file,
        })
    }

    /// Creates a file (or opens one that exists) and gives it its full length; `allocate` reserves the blocks,
    /// so that later writes cannot find the disk full. Missing folders are made.
    pub fn create_sized(&self, path: &Path, bytes: u64, allocate: bool) -> io::Result<DoorFile> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let file = DoorFile {
            door: self.clone(),
            path: path.to_owned(),
            file,
        };
        if allocate {
            file.allocate(bytes)?;
        } else {
            file.set_len(bytes)?;
        }
        Ok(file)
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    /// Makes creations, renames and removals in `folder` durable.
    pub fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}

impl DoorFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn door(&self) -> &Door {
        &self.door
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    pub fn allocate(&self, bytes: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // SAFETY: a plain system call on a descriptor that `self` keeps open.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, bytes as libc::off_t) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    /// A mapping for reading; it sees what `write_at` has written.
    pub fn read_map(&self) -> io::Result<memmap2::Mmap> {
        // SAFETY: the store owns its files; its lock file keeps a second process out.
        unsafe { memmap2::Mmap::map(&self.file) }
    }

    /// A mapping for writing. The blocks must be allocated first: a store into a hole of a full disk is a SIGBUS.
    pub fn write_map(self) -> io::Result<DoorMap> {
        // SAFETY: as above.
        let map = unsafe { memmap2::MmapMut::map_mut(&self.file)? };
        Ok(DoorMap { file: self, map })
    }
}

impl DoorMap {
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn write(&mut self, offset: usize, data: &[u8]) -> io::Result<()> {
        self.map[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }

    pub fn sync(&self) -> io::Result<()> {
        self.map.flush()
    }
}

#[pymethods]
impl Door {
    #[new]
    fn py_new() -> Self {
        Door(Arc::new(Inner::default()))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Door>()
}
