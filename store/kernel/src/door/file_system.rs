//! One sync for a whole file system (`syncfs`) instead of one for each of very many files.
//!
//! A sync of one file waits for the journal of the file system, so twenty thousand of them take a minute; `syncfs`
//! waits once. It is used only where it guarantees as much as the syncs that it replaces:
//! * Only since Linux 5.8 does it return a write error, and only one that happened after the descriptor was opened, or
//!   that no other process has seen before. So the descriptor is opened before the store writes, and kept open.
//! * On ext4, XFS and btrfs it makes data durable. FUSE and network file systems may leave that to their server, and
//!   overlayfs does not pass on the errors of the file system below. It is not used on other file systems.
//! * If only data was overwritten in place, XFS may leave it in the cache of the device, because its journal has
//!   nothing to write. A sync of any one file after `syncfs` flushes that cache; callers do that.
//!
//! An error of `syncfs` belongs to some file of the file system, perhaps of another program. The store treats it as its
//! own error: syncs of single files would not report it, because a file whose inode has left the cache has lost its
//! error.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Linux names these numbers in its magic.h. ext2 and ext3 have the number of ext4.
const TRUSTED: [i64; 3] = [0xEF53, 0x5846_5342, 0x9123_683E];
const FIRST_KERNEL: (u32, u32) = (5, 8);

pub struct FileSystem {
    folder: File,
    /// `syncfs` guarantees here what a sync of each file guarantees.
    pub is_trusted: bool,
}

impl FileSystem {
    /// The file system of `folder`, and its device number.
    pub fn open(folder: &Path) -> io::Result<(u64, FileSystem)> {
        let folder = File::open(folder)?;
        let device = folder.metadata()?.dev();
        let is_trusted = kernel_release().is_some_and(reports_errors) && TRUSTED.contains(&kind_of(&folder)?);
        Ok((device, FileSystem { folder, is_trusted }))
    }

    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: a plain system call on a descriptor that `folder` keeps open.
        match unsafe { libc::syncfs(self.folder.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn kind_of(file: &File) -> io::Result<i64> {
    // SAFETY: the call fills the structure, or fails; zeros are a valid value of it.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: as above, on a descriptor that `file` keeps open.
    match unsafe { libc::fstatfs(file.as_raw_fd(), &mut about) } {
        0 => Ok(about.f_type as i64),
        _ => Err(io::Error::last_os_error()),
    }
}

fn kernel_release() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()
}

/// Whether `syncfs` of this release of Linux, such as 6.1.0-18-amd64, returns errors.
fn reports_errors(release: String) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= FIRST_KERNEL,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_without_errors_are_known() {
        for (release, reports) in [
            ("5.7.19", false),
            ("4.19.0-26-amd64", false),
            ("5.8.0", true),
            ("5.15.0-1", true),
            ("6.1.0-18-amd64\n", true),
            ("6", false),
            ("", false),
            ("new", false),
        ] {
            assert_eq!(reports_errors(release.to_owned()), reports, "{release}");
        }
    }
}
