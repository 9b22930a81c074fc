//! Folders that are listed, and whose files are opened, with few system calls.
//!
//! A store has tens of thousands of folders with one file each. A file is opened relative to its folder, so the system
//! does not walk the whole path each time, and the list of a folder tells which entries are files.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most folders have one file.
const BUFFER_BYTES: usize = 1 << 10;
/// Of `struct linux_dirent64`, getdents64(2).
const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;

pub struct Folder(OwnedFd);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    /// A link, something else, or the file system does not say it in a list.
    Other,
}

impl Folder {
    pub fn open(path: &Path) -> io::Result<Folder> {
        open_at(libc::AT_FDCWD, path.as_os_str(), libc::O_DIRECTORY).map(Folder)
    }

    /// A folder in this one. ENOTDIR: it is not a folder.
    pub fn folder(&self, name: &OsStr) -> io::Result<Folder> {
        open_at(self.0.as_raw_fd(), name, libc::O_DIRECTORY).map(Folder)
    }

    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        open_at(self.0.as_raw_fd(), name, 0).map(File::from)
    }

    /// Passes the entries to `each`, in no order. A folder is listed once.
    pub fn list(&self, mut each: impl FnMut(&OsStr, Kind)) -> io::Result<()> {
        let mut buffer = [0u8; BUFFER_BYTES];
        loop {
            // SAFETY: the call writes at most that many bytes to the buffer.
            let read = unsafe {
                libc::syscall(
                    libc::SYS_getdents64,
                    self.0.as_raw_fd(),
                    buffer.as_mut_ptr(),
                    BUFFER_BYTES,
                )
            };
            if read < 0 {
                return Err(io::Error::last_os_error());
            }
            let mut rest = &buffer[..read as usize];
            if rest.is_empty() {
                return Ok(());
            }
            while rest.len() > NAME_AT {
                let length = usize::from(u16::from_ne_bytes([rest[LENGTH_AT], rest[LENGTH_AT + 1]]));
                let name = &rest[NAME_AT..length];
                let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
                let kind = match rest[KIND_AT] {
                    libc::DT_REG => Kind::File,
                    libc::DT_DIR => Kind::Folder,
                    _ => Kind::Other,
                };
                if name != b"." && name != b".." {
                    each(OsStr::from_bytes(name), kind);
                }
                rest = &rest[length..];
            }
        }
    }

    /// The names of the entries that can be folders, in their order.
    pub fn folders(&self) -> io::Result<Vec<std::ffi::OsString>> {
        let mut names = vec![];
        self.list(|name, kind| {
            if kind != Kind::File {
                names.push(name.to_owned());
            }
        })?;
        names.sort_unstable();
        Ok(names)
    }
}

fn open_at(folder: libc::c_int, name: &OsStr, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = CString::new(name.as_bytes())?;
    loop {
        // SAFETY: the name ends with a NUL, and a descriptor that is returned has no other owner.
        let opened = unsafe { libc::openat(folder, name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | flags) };
        if opened >= 0 {
            // SAFETY: as above.
            return Ok(unsafe { OwnedFd::from_raw_fd(opened) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
