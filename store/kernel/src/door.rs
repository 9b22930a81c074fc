//! The one door to the disk: every change of a file of the store passes through it, also from Python.
//!
//! The door promises: bytes that were written and then synced are on the disk; a creation, renaming or removal is on
//! the disk after `sync_dir` of its folder (of both folders, if a file moves between two); a folder made by `mkdir` is
//! on the disk when `mkdir` returns. Folders that `create_sized` creates for derived files are not synced. `sync_fs`
//! makes all of this durable with one call, on file systems that were passed to `keep_fs` before: see
//! `door/file_system.rs`.
//!
//! A test can control the door. It may
//! * let calls fail (`fail`), tear a write (`tear`), delay calls (`slow`), or let a sync do nothing and report success
//!   (`lie`, to prove that a test would notice): see `door/rules.rs`;
//! * record what is not yet durable and discard it as a power loss would (`Door(record=True)`, `crash`): see
//!   `door/power.rs` for what may be lost;
//! * let a process die (`kill`, `kill_after`) and let the next one use the same disk (`next_process`): a call of a dead
//!   process fails and changes nothing, through this door and through every file opened with it.
//!
//! Without a test, the door costs one branch on a flag and a counter per call.

mod file_system;
mod power;
mod rules;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::guard::Guard;
use file_system::FileSystem;
use power::Power;
use rules::{Op, Rules, Verdict, OPS};

/// Up to this many files and folders are synced one by one (50 000 of them took 13 to 68 s); for more, the whole file
/// system is synced.
const MOST_SINGLE_SYNCS: usize = 256;

#[derive(Default)]
struct Plan {
    rules: Rules,
    power: Option<Power>,
    /// A process can die: `heal` must not switch the checks off.
    mortal: bool,
}

/// One process that uses the disk.
#[derive(Default)]
struct Process {
    dead: AtomicBool,
    /// Calls until it dies, and the bytes of a write that its last call still stores.
    fuse: Mutex<Option<(u64, usize)>>,
}

#[derive(Default)]
struct Inner {
    counts: [AtomicU64; OPS],
    /// A test controls the door: ask the plan.
    watched: AtomicBool,
    plan: Mutex<Plan>,
    /// By device: the file systems that `sync_fs` may sync.
    file_systems: Mutex<BTreeMap<u64, Arc<FileSystem>>>,
    /// A test's value in place of `MOST_SINGLE_SYNCS`; 0: not set.
    single_syncs: AtomicUsize,
}

/// The door of one process; clones share one state. `next_process` shares only the disk.
#[pyclass(frozen, from_py_object, module = "tallystick.store._kernel")]
#[derive(Clone, Default)]
pub struct Door {
    disk: Arc<Inner>,
    process: Arc<Process>,
}

/// A file opened for writing through the door.
pub struct DoorFile {
    door: Door,
    path: PathBuf,
    file: File,
    /// Crashes that the door had seen when the file was opened: after a later crash the file is invalid.
    epoch: u64,
}

/// A writable mapping of a file: stores go to the page cache, `sync` makes them durable.
pub struct DoorMap {
    file: DoorFile,
    guard: Guard, // dropped before the map
    map: memmap2::MmapMut,
}

/// How a call continues: without a recorder, or with the recorder (locked, so that its order is the disk's order).
enum Pass<'a> {
    Free,
    Lied,
    Torn(MutexGuard<'a, Plan>, usize),
    Recorded(MutexGuard<'a, Plan>),
}

impl Pass<'_> {
    fn power(&mut self) -> Option<&mut Power> {
        match self {
            Pass::Torn(plan, _) | Pass::Recorded(plan) => plan.power.as_mut(),
            Pass::Free | Pass::Lied => None,
        }
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

impl Door {
    /// A door that records what is not yet durable, for `crash`.
    pub fn recording() -> Self {
        let door = Door::default();
        door.plan().power = Some(Power::default());
        door.disk.watched.store(true, Ordering::Release);
        door
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        // A test panicked in the door: the plan is still consistent, because every change is complete in one step.
        self.disk.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn enter(&self, op: Op, path: &Path, epoch: Option<u64>) -> io::Result<Pass<'_>> {
        self.disk.counts[op as usize].fetch_add(1, Ordering::Relaxed);
        if self.disk.watched.load(Ordering::Acquire) {
            self.enter_watched(op, path, epoch)
        } else {
            Ok(Pass::Free)
        }
    }

    #[cold]
    fn enter_watched(&self, op: Op, path: &Path, epoch: Option<u64>) -> io::Result<Pass<'_>> {
        let mut plan = self.plan();
        if let Some(keep) = self.dies()? {
            // The system cuts a write of a killed process between two pages, and other calls before or after they run.
            return if op == Op::Write {
                Ok(Pass::Torn(plan, keep))
            } else {
                Err(eio())
            };
        }
        if let (Some(power), Some(epoch)) = (&plan.power, epoch) {
            if power.epoch() != epoch {
                return Err(eio());
            }
        }
        let verdict = plan.rules.judge(op, &path.to_string_lossy());
        if let Verdict::Slow(time) = verdict {
            drop(plan); // other threads pass in the meantime
            std::thread::sleep(time);
            plan = self.plan();
        }
        match verdict {
            Verdict::Go | Verdict::Slow(_) if plan.power.is_some() => Ok(Pass::Recorded(plan)),
            Verdict::Go | Verdict::Slow(_) => Ok(Pass::Free),
            Verdict::Lie => Ok(Pass::Lied),
            Verdict::Tear(keep) => Ok(Pass::Torn(plan, keep)),
            Verdict::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Some: the process dies with this call, and a write stores this many bytes. EIO: it is dead already.
    fn dies(&self) -> io::Result<Option<usize>> {
        if self.process.dead.load(Ordering::Acquire) {
            return Err(eio());
        }
        let mut fuse = self.process.fuse.lock().unwrap_or_else(PoisonError::into_inner);
        match fuse.as_mut() {
            Some((0, keep)) => {
                self.process.dead.store(true, Ordering::Release);
                Ok(Some(*keep))
            }
            Some((calls, _)) => {
                *calls -= 1;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    /// A sync, as the test's plan sees it: a failed one is recorded.
    fn enter_sync(&self, file: &DoorFile) -> io::Result<Pass<'_>> {
        self.enter(Op::Sync, &file.path, Some(file.epoch))
            .inspect_err(|_| self.doom(|power| power.sync_failed(&file.file)))
    }

    /// Records a failed sync. If the process is dead, the system never saw the call: dirty pages stay dirty.
    fn doom(&self, failed: impl FnOnce(&mut Power)) {
        if !self.process.dead.load(Ordering::Acquire) {
            self.plan().power.as_mut().map(failed);
        }
    }

    fn epoch(&self) -> u64 {
        if self.disk.watched.load(Ordering::Acquire) {
            self.plan().power.as_ref().map_or(0, Power::epoch)
        } else {
            0
        }
    }

    fn file(&self, path: &Path, file: File) -> DoorFile {
        DoorFile {
            door: self.clone(),
            path: path.to_owned(),
            file,
            epoch: self.epoch(),
        }
    }

    /// Opens an existing file for reading and writing.
    pub fn open(&self, path: &Path) -> io::Result<DoorFile> {
        drop(self.enter(Op::Open, path, None)?);
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(self.file(path, file))
    }

    /// Opens a file for reading and writing, or creates it empty.
    fn create(&self, path: &Path) -> io::Result<DoorFile> {
        let mut pass = self.enter(Op::Create, path, None)?;
        let new = pass.power().is_some() && !path.exists();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if let (true, Some(power)) = (new, pass.power()) {
            power.created(path, &file)?;
        }
        drop(pass);
        Ok(self.file(path, file))
    }

    /// Creates a file (or opens an existing one) and gives it its full length; `allocate` reserves the blocks, so that
    /// later writes cannot find the disk full. Missing folders are created.
    pub fn create_sized(&self, path: &Path, bytes: u64, allocate: bool) -> io::Result<DoorFile> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = self.create(path)?;
        if allocate {
            file.allocate(bytes)?;
        } else {
            file.set_len(bytes)?;
        }
        Ok(file)
    }

    /// Renames `from`; an existing file `to` is replaced.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut pass = self.enter(Op::Rename, from, None)?;
        match pass.power() {
            Some(power) => power.rename(from, to),
            None => std::fs::rename(from, to),
        }
    }

    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let mut pass = self.enter(Op::Remove, path, None)?;
        match pass.power() {
            Some(power) => power.remove(path),
            None => std::fs::remove_file(path),
        }
    }

    /// Makes creations, renames and removals in `folder` durable.
    pub fn sync_dir(&self, folder: &Path) -> io::Result<()> {
        let mut pass = self.enter(Op::SyncDir, folder, None)?;
        if matches!(pass, Pass::Lied) {
            return Ok(());
        }
        let folder_file = File::open(folder)?;
        match pass.power() {
            Some(power) => power.sync_dir(folder),
            None => folder_file.sync_all(),
        }
    }

    /// More files and folders than this should be synced with `sync_fs`.
    pub fn most_single_syncs(&self) -> usize {
        match self.disk.single_syncs.load(Ordering::Relaxed) {
            0 => MOST_SINGLE_SYNCS,
            most => most,
        }
    }

    /// From now on, write errors of the file system of `folder` are kept for `sync_fs`. Call it before the writes.
    pub fn keep_fs(&self, folder: &Path) -> io::Result<()> {
        let (device, file_system) = FileSystem::open(folder)?;
        self.file_systems().entry(device).or_insert(Arc::new(file_system));
        Ok(())
    }

    fn file_systems(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<FileSystem>>> {
        self.disk.file_systems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all writes to the file system of `folder` durable, including names. The caller then syncs one file of it.
    /// False: this is not possible there, and nothing was done. An error is as final as that of any sync.
    pub fn sync_fs(&self, folder: &Path) -> io::Result<bool> {
        let device = std::fs::metadata(folder)?.dev();
        let Some(file_system) = self.file_systems().get(&device).cloned() else {
            return Ok(false);
        };
        let entered = self.enter(Op::SyncFs, folder, None);
        let mut pass = entered.inspect_err(|_| self.doom(|power| power.sync_fs_failed(device)))?;
        if matches!(pass, Pass::Lied) {
            return Ok(true);
        }
        match pass.power() {
            Some(power) => power.synced_fs(device),
            None if file_system.is_trusted => file_system.sync()?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Creates a folder and its parents; durable when it returns.
    pub fn mkdir(&self, folder: &Path) -> io::Result<()> {
        drop(self.enter(Op::Mkdir, folder, None)?);
        let folder = std::path::absolute(folder)?;
        let missing: Vec<&Path> = folder.ancestors().take_while(|path| !path.is_dir()).collect();
        for path in missing.into_iter().rev() {
            match std::fs::create_dir(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                made => made?,
            }
            if let Some(parent) = path.parent() {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(())
    }

    /// Replaces a file's content (or creates it) and syncs it. Not atomic: see `rename` for that.
    pub fn write_file(&self, path: &Path, data: &[u8]) -> io::Result<()> {
        let file = self.create(path)?;
        file.set_len(0)?;
        file.write_at(data, 0)?;
        file.sync_data()
    }
}

impl DoorFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn door(&self) -> &Door {
        &self.door
    }

    fn enter(&self, op: Op) -> io::Result<Pass<'_>> {
        self.door.enter(op, &self.path, Some(self.epoch))
    }

    /// Writes all of `data` at `offset`.
    pub fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match self.enter(Op::Write)? {
            Pass::Torn(mut plan, keep) => {
                let kept = &data[..keep.min(data.len())];
                self.write_recorded(plan.power.as_mut(), kept, offset)?;
                Err(eio())
            }
            Pass::Recorded(mut plan) => self.write_recorded(plan.power.as_mut(), data, offset),
            Pass::Free | Pass::Lied => self.file.write_all_at(data, offset),
        }
    }

    fn write_recorded(&self, power: Option<&mut Power>, data: &[u8], offset: u64) -> io::Result<()> {
        if let Some(power) = power {
            power.will_write(&self.path, &self.file, offset, data)?;
        }
        self.file.write_all_at(data, offset)
    }

    pub fn sync_data(&self) -> io::Result<()> {
        let mut pass = self.door.enter_sync(self)?;
        if matches!(pass, Pass::Lied) {
            return Ok(());
        }
        match pass.power() {
            Some(power) => power.synced(&self.file),
            None => self.file.sync_data(),
        }
    }

    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut pass = self.enter(Op::Truncate)?;
        if let Some(power) = pass.power() {
            power.will_set_len(&self.path, &self.file, bytes)?;
        }
        self.file.set_len(bytes)
    }

    /// Gives the file a length of `bytes` at least, with its blocks reserved.
    pub fn allocate(&self, bytes: u64) -> io::Result<()> {
        let mut pass = self.enter(Op::Allocate)?;
        if let Some(power) = pass.power() {
            power.will_set_len(&self.path, &self.file, bytes.max(self.len()?))?;
        }
        // SAFETY: a plain system call on a descriptor that `self` keeps open.
        match unsafe { libc::posix_fallocate(self.file.as_raw_fd(), 0, bytes as libc::off_t) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    pub fn metadata(&self) -> io::Result<std::fs::Metadata> {
        self.file.metadata()
    }

    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        drop(self.enter(Op::Read)?);
        self.file.read_at(buffer, offset)
    }

    /// A mapping for writing. The blocks must be allocated first: a store into a hole of a full disk is a SIGBUS.
    pub fn write_map(self) -> io::Result<DoorMap> {
        drop(self.enter(Op::Map)?);
        // SAFETY: as above.
        let map = unsafe { memmap2::MmapMut::map_mut(&self.file)? };
        let guard = Guard::new(&self.path, map.as_ptr() as usize, map.len(), true)?;
        Ok(DoorMap { file: self, guard, map })
    }
}

impl DoorMap {
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Stores `data` at `offset`, which must lie within the mapping. Not counted, because it is not a system call.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> io::Result<()> {
        let mut kept = data;
        let mut result = Ok(());
        if self.file.door.disk.watched.load(Ordering::Acquire) {
            let mut pass = self
                .file
                .door
                .enter_watched(Op::Write, &self.file.path, Some(self.file.epoch))?;
            if let Pass::Torn(_, keep) = &pass {
                kept = &data[..(*keep).min(data.len())];
                result = Err(eio());
            }
            if let Some(power) = pass.power() {
                power.will_write(&self.file.path, &self.file.file, offset as u64, kept)?;
            }
        }
        self.map[offset..offset + kept.len()].copy_from_slice(kept);
        if self.guard.is_spoiled() {
            return Err(eio()); // a store to a page that could not be read is lost with the map
        }
        result
    }

    /// Whether a page could not be read, so that the map no longer shows the file.
    pub fn is_spoiled(&self) -> bool {
        self.guard.is_spoiled()
    }

    pub fn sync(&self) -> io::Result<()> {
        let mut pass = self.file.door.enter_sync(&self.file)?;
        if matches!(pass, Pass::Lied) {
            return Ok(());
        }
        match pass.power() {
            Some(power) => power.synced(&self.file.file),
            None => self.map.flush(),
        }
    }
}

/// OSError with errno, text and filename; Python picks the subclass (FileNotFoundError, ...) by the number.
pub fn os_error(error: &io::Error, path: &Path) -> PyErr {
    let text = error.to_string();
    let plain = text.split(" (os error").next().unwrap_or_default().to_owned();
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    PyOSError::new_err((errno, plain, path.display().to_string()))
}

fn op_of(name: &str) -> PyResult<Op> {
    Op::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
        PyValueError::new_err(format!("no operation {name:?}; there are {}", known.join(", ")))
    })
}

#[pymethods]
impl Door {
    #[new]
    #[pyo3(signature = (*, record = false, most_single_syncs = 0))]
    fn py_new(record: bool, most_single_syncs: usize) -> Self {
        let door = if record { Door::recording() } else { Door::default() };
        door.disk.single_syncs.store(most_single_syncs, Ordering::Relaxed);
        door
    }

    #[getter(most_single_syncs)]
    fn py_most_single_syncs(&self) -> usize {
        self.most_single_syncs()
    }

    #[pyo3(name = "keep_fs")]
    fn py_keep_fs(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        py.detach(|| self.keep_fs(&folder))
            .map_err(|error| os_error(&error, &folder))
    }

    #[pyo3(name = "sync_fs")]
    fn py_sync_fs(&self, py: Python<'_>, folder: PathBuf) -> PyResult<bool> {
        py.detach(|| self.sync_fs(&folder))
            .map_err(|error| os_error(&error, &folder))
    }

    #[pyo3(name = "write_file")]
    fn py_write_file(&self, py: Python<'_>, path: PathBuf, data: PyBackedBytes) -> PyResult<()> {
        py.detach(|| self.write_file(&path, &data))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "write")]
    fn py_write(&self, py: Python<'_>, path: PathBuf, offset: u64, data: PyBackedBytes) -> PyResult<()> {
        py.detach(|| self.open(&path)?.write_at(&data, offset))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "create", signature = (path, bytes, allocate = true))]
    fn py_create(&self, py: Python<'_>, path: PathBuf, bytes: u64, allocate: bool) -> PyResult<()> {
        py.detach(|| self.create_sized(&path, bytes, allocate).map(drop))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "sync")]
    fn py_sync(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.open(&path)?.sync_data())
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "sync_dir")]
    fn py_sync_dir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.sync_dir(&path))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "rename")]
    fn py_rename(&self, py: Python<'_>, path: PathBuf, to: PathBuf) -> PyResult<()> {
        py.detach(|| self.rename(&path, &to))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "remove")]
    fn py_remove(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.remove(&path))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "truncate")]
    fn py_truncate(&self, py: Python<'_>, path: PathBuf, bytes: u64) -> PyResult<()> {
        py.detach(|| self.open(&path)?.set_len(bytes))
            .map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "mkdir")]
    fn py_mkdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.mkdir(&path)).map_err(|error| os_error(&error, &path))
    }

    #[pyo3(name = "fail", signature = (op, path_part, errno, after = 0, times = None))]
    fn py_fail(&self, op: &str, path_part: &str, errno: i32, after: u64, times: Option<u64>) -> PyResult<()> {
        self.fail(op_of(op)?, path_part, errno, after, times);
        Ok(())
    }

    #[pyo3(name = "tear")]
    fn py_tear(&self, path_part: &str, keep_bytes: usize) {
        self.tear(path_part, keep_bytes);
    }

    #[pyo3(name = "lie")]
    fn py_lie(&self, op: &str, path_part: &str) -> PyResult<()> {
        match op_of(op)? {
            op @ (Op::Sync | Op::SyncDir | Op::SyncFs) => self.lie(op, path_part),
            _ => {
                return Err(PyValueError::new_err(
                    "only sync, sync_dir and sync_fs can be lied about",
                ))
            }
        }
        Ok(())
    }

    #[pyo3(name = "slow")]
    fn py_slow(&self, op: &str, path_part: &str, millis: u64) -> PyResult<()> {
        self.slow(op_of(op)?, path_part, Duration::from_millis(millis));
        Ok(())
    }

    #[pyo3(name = "kill")]
    fn py_kill(&self) {
        self.process.dead.store(true, Ordering::Release);
        self.kill(0, 0);
    }

    #[pyo3(name = "kill_after", signature = (calls, keep_bytes = 0))]
    fn py_kill_after(&self, calls: u64, keep_bytes: usize) {
        self.kill(calls, keep_bytes);
    }

    #[getter]
    fn dead(&self) -> bool {
        self.process.dead.load(Ordering::Acquire)
    }

    #[pyo3(name = "next_process")]
    fn py_next_process(&self) -> Door {
        self.next_process()
    }

    #[pyo3(name = "heal")]
    fn py_heal(&self) {
        self.heal();
    }

    #[pyo3(name = "counts")]
    fn py_counts(&self) -> std::collections::BTreeMap<&'static str, u64> {
        let of = |op: &Op| (op.name(), self.disk.counts[*op as usize].load(Ordering::Relaxed));
        Op::ALL.iter().map(of).collect()
    }

    #[pyo3(name = "crash", signature = (seed, keep = None))]
    fn py_crash(&self, py: Python<'_>, seed: u64, keep: Option<f64>) -> PyResult<Vec<String>> {
        if keep.is_some_and(|keep| !(0.0..=1.0).contains(&keep)) {
            return Err(PyValueError::new_err("keep is a probability"));
        }
        let lost = py
            .detach(|| self.crash(seed, keep))
            .map_err(|error| os_error(&error, Path::new("")))?;
        lost.ok_or_else(|| PyValueError::new_err("this door does not record: make it with Door(record=True)"))
    }
}

/// The test side.
impl Door {
    /// Calls of `op` whose path contains `path_part` fail with `errno`: after the next `after` of them, `times` times.
    pub fn fail(&self, op: Op, path_part: &str, errno: i32, after: u64, times: Option<u64>) {
        self.plan().rules.add(op, path_part, Verdict::Fail(errno), after, times);
        self.disk.watched.store(true, Ordering::Release);
    }

    /// The next write to such a path keeps only its first `keep_bytes` bytes and fails with EIO.
    pub fn tear(&self, path_part: &str, keep_bytes: usize) {
        self.plan()
            .rules
            .add(Op::Write, path_part, Verdict::Tear(keep_bytes), 0, Some(1));
        self.disk.watched.store(true, Ordering::Release);
    }

    /// Calls of `op` on such paths do nothing and report success.
    pub fn lie(&self, op: Op, path_part: &str) {
        self.plan().rules.add(op, path_part, Verdict::Lie, 0, None);
        self.disk.watched.store(true, Ordering::Release);
    }

    /// Calls of `op` on such paths are delayed by this time, as on a busy disk.
    pub fn slow(&self, op: Op, path_part: &str, time: Duration) {
        self.plan().rules.add(op, path_part, Verdict::Slow(time), 0, None);
        self.disk.watched.store(true, Ordering::Release);
    }

    /// Removes every `fail`, `tear`, `slow` and `lie`.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.rules = Rules::default();
        self.disk
            .watched
            .store(plan.power.is_some() || plan.mortal, Ordering::Release);
    }

    /// The process is dead: its calls fail from now on. With `calls`, it dies after this many more calls; the last one,
    /// if it is a write, still stores its first `keep_bytes` bytes.
    pub fn kill(&self, calls: u64, keep_bytes: usize) {
        self.plan().mortal = true;
        *self.process.fuse.lock().unwrap_or_else(PoisonError::into_inner) = Some((calls, keep_bytes));
        self.disk.watched.store(true, Ordering::Release);
    }

    /// The door of another process on the same disk, with the same rules and the same record of what is durable.
    pub fn next_process(&self) -> Door {
        Door {
            disk: self.disk.clone(),
            process: Arc::default(),
        }
    }

    /// Simulates a power loss. Returns a description of what was lost; None if this door does not record.
    pub fn crash(&self, seed: u64, keep: Option<f64>) -> io::Result<Option<Vec<String>>> {
        self.plan()
            .power
            .as_mut()
            .map(|power| power.crash(seed, keep))
            .transpose()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Door>()
}
