//! What a power loss may discard: everything that no sync covers, in pieces.
//!
//! The disk stores a file as sectors of 512 bytes and a length, and a folder as names. Each of these has a history
//! since it was last made durable: the durable value, then one version per operation that changed it. A crash decides
//! for each operation whether it reached the disk (`keep`: with which probability). Then every sector, length and name
//! has the newest version among the operations that did. So
//! * of two writes only the later one may survive; where they share a sector, it includes the bytes of the earlier one;
//! * a write of several sectors may be torn: its first sectors survive, not the rest;
//! * a file may have lost its last length, or have it, with zeros where the data did not survive;
//! * a truncation may be undone;
//! * a created file may be missing, a removed one may exist again, a renamed one may have its old name; both names of
//!   one renaming agree (unless one of two folders was synced in between).
//!
//! That is more than a journaling file system loses, and not more than POSIX allows. Synced data stays. After a failed
//! sync, the writes before it stay uncertain for ever: the system no longer marks them as dirty, and a second sync
//! succeeds without them.
//!
//! Files that existed before count as durable; folders always do. Syncs are recorded instead of executed: a recording
//! door is for tests. Files opened before a crash are invalid after it: they answer EIO.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, FileTimes, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;
type Sector = Box<[u8; SECTOR as usize]>;
/// Device and inode.
type Id = (u64, u64);

struct History<T> {
    durable: T,
    versions: Vec<(u64, T)>,
}

impl<T> History<T> {
    fn new(durable: T) -> Self {
        History {
            durable,
            versions: Vec::new(),
        }
    }

    fn current(&self) -> &T {
        self.versions.last().map_or(&self.durable, |(_, value)| value)
    }

    /// A sync covers this, unless an earlier one failed on its newest version.
    fn settles(&self, doomed: &HashSet<u64>) -> bool {
        self.versions.last().is_none_or(|(op, _)| !doomed.contains(op))
    }

    fn survivor(&self, kept: impl Fn(u64) -> bool) -> &T {
        let newest = self.versions.iter().rev().find(|(op, _)| kept(*op));
        newest.map_or(&self.durable, |(_, value)| value)
    }
}

impl History<Option<Id>> {
    /// Whether this is the history of a name on that device.
    fn is_on(&self, device: u64) -> bool {
        let ids = self.versions.iter().map(|(_, id)| id).chain([&self.durable]);
        ids.flatten().any(|id| id.0 == device)
    }
}

enum What {
    Write { id: Id, offset: u64, len: u64 },
    Other { words: String },
}

/// How much of an operation survives.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Kept,
    Undone,
    /// Sectors below this one.
    Torn(u64),
}

struct Content {
    /// Keeps the inode, also after its last name is removed.
    file: File,
    path: PathBuf,
    sectors: BTreeMap<u64, History<Sector>>,
    length: Option<History<u64>>,
    ops: Vec<u64>,
}

#[derive(Default)]
pub struct Power {
    epoch: u64,
    next_op: u64,
    ops: BTreeMap<u64, What>,
    doomed: HashSet<u64>,
    contents: HashMap<Id, Content>,
    names: BTreeMap<PathBuf, History<Option<Id>>>,
}

fn id_of(file: &File) -> io::Result<Id> {
    let data = file.metadata()?;
    Ok((data.dev(), data.ino()))
}

fn read_sector(file: &File, sector: u64) -> io::Result<Sector> {
    let mut bytes = Box::new([0; SECTOR as usize]);
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], sector * SECTOR + filled as u64)? {
            0 => break, // behind the file's end: zeros
            count => filled += count,
        }
    }
    Ok(bytes)
}

impl Content {
    fn change(&mut self, op: u64, sector: u64, change: impl FnOnce(&mut Sector)) -> io::Result<()> {
        let history = match self.sectors.entry(sector) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(History::new(read_sector(&self.file, sector)?))
            }
        };
        let mut bytes = history.current().clone();
        change(&mut bytes);
        history.versions.push((op, bytes));
        Ok(())
    }

    fn set_length(&mut self, op: u64, before: u64, bytes: u64) {
        self.length
            .get_or_insert_with(|| History::new(before))
            .versions
            .push((op, bytes));
    }

    fn apply(&self, fates: &BTreeMap<u64, Fate>) -> io::Result<()> {
        if let Some(length) = &self.length {
            let newest = (0..length.versions.len()).rev().find_map(|index| {
                let (op, bytes) = length.versions[index];
                let before = if index == 0 {
                    length.durable
                } else {
                    length.versions[index - 1].1
                };
                match fates.get(&op) {
                    // A torn write extends the file as far as its surviving sectors, if they reach beyond the old end.
                    Some(Fate::Torn(end)) => Some(bytes.min(end * SECTOR)).filter(|torn| *torn > before),
                    Some(Fate::Undone) => None,
                    _ => Some(bytes),
                }
            });
            self.file.set_len(newest.unwrap_or(length.durable))?;
        }
        let len = self.file.metadata()?.len();
        for (sector, history) in &self.sectors {
            let bytes = history.survivor(|op| match fates.get(&op) {
                Some(Fate::Torn(end)) => sector < end,
                fate => fate != Some(&Fate::Undone),
            });
            let at = sector * SECTOR;
            if at < len {
                self.file.write_all_at(&bytes[..(len - at).min(SECTOR) as usize], at)?;
            }
        }
        Ok(())
    }
}

impl Power {
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    fn op(&mut self, what: What) -> u64 {
        self.next_op += 1;
        self.ops.insert(self.next_op, what);
        self.next_op
    }

    fn content(&mut self, path: &Path, file: &File) -> io::Result<(Id, &mut Content)> {
        let id = id_of(file)?;
        let content = match self.contents.entry(id) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(Content {
                file: file.try_clone()?,
                path: path.to_owned(),
                sectors: BTreeMap::new(),
                length: None,
                ops: Vec::new(),
            }),
        };
        Ok((id, content))
    }

    /// Call before the write, while the overwritten bytes still exist.
    pub fn will_write(&mut self, path: &Path, file: &File, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        let op = self.op(What::Write {
            id: id_of(file)?,
            offset,
            len: data.len() as u64,
        });
        let (_, content) = self.content(path, file)?;
        content.ops.push(op);
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let begin = (sector * SECTOR).max(offset);
            let part = &data[(begin - offset) as usize..((sector + 1) * SECTOR).min(end) as usize - offset as usize];
            let at = (begin - sector * SECTOR) as usize;
            content.change(op, sector, |bytes| bytes[at..at + part.len()].copy_from_slice(part))?;
        }
        let before = file.metadata()?.len();
        if end > before {
            content.set_length(op, before, end);
        }
        Ok(())
    }

    /// Call before the change of length, while the bytes after the new length still exist.
    pub fn will_set_len(&mut self, path: &Path, file: &File, bytes: u64) -> io::Result<()> {
        let before = file.metadata()?.len();
        if bytes == before {
            return Ok(());
        }
        let op = self.op(What::Other {
            words: format!("length {bytes} of {}, before {before}", path.display()),
        });
        let (_, content) = self.content(path, file)?;
        content.ops.push(op);
        content.set_length(op, before, bytes);
        for sector in bytes / SECTOR..before.div_ceil(SECTOR) {
            let from = bytes.saturating_sub(sector * SECTOR).min(SECTOR) as usize;
            let known = content.sectors.contains_key(&sector);
            if known || read_sector(file, sector)?[from..].iter().any(|byte| *byte != 0) {
                content.change(op, sector, |data| data[from..].fill(0))?;
            }
        }
        Ok(())
    }

    pub fn synced(&mut self, file: &File) -> io::Result<()> {
        self.settle(id_of(file)?);
        self.forget_durable();
        Ok(())
    }

    fn settle(&mut self, id: Id) {
        let doomed = &self.doomed;
        if let Some(content) = self.contents.get_mut(&id) {
            content.sectors.retain(|_, history| !history.settles(doomed));
            content.length = content.length.take().filter(|history| !history.settles(doomed));
            for op in std::mem::take(&mut content.ops) {
                if doomed.contains(&op) {
                    content.ops.push(op);
                } else {
                    self.ops.remove(&op);
                }
            }
        }
    }

    /// A sync failed: no later sync covers what this one should have covered.
    pub fn sync_failed(&mut self, file: &File) {
        if let Some(content) = id_of(file).ok().and_then(|id| self.contents.get(&id)) {
            self.doomed.extend(&content.ops);
        }
    }

    /// All files and names of a device were synced with one call.
    pub fn synced_fs(&mut self, device: u64) {
        let all: Vec<Id> = self.contents.keys().filter(|id| id.0 == device).copied().collect();
        for id in all {
            self.settle(id);
        }
        self.names.retain(|_, history| !history.is_on(device));
        self.forget_durable_ops();
        self.forget_durable();
    }

    pub fn sync_fs_failed(&mut self, device: u64) {
        let all = self.contents.iter().filter(|(id, _)| id.0 == device);
        self.doomed.extend(all.flat_map(|(_, content)| &content.ops));
    }

    fn set_name(&mut self, op: u64, path: &Path, before: Option<Id>, now: Option<Id>) -> io::Result<()> {
        let path = std::path::absolute(path)?;
        self.names
            .entry(path)
            .or_insert_with(|| History::new(before))
            .versions
            .push((op, now));
        Ok(())
    }

    pub fn created(&mut self, path: &Path, file: &File) -> io::Result<()> {
        let op = self.op(What::Other {
            words: format!("creation of {}", path.display()),
        });
        let (id, _) = self.content(path, file)?;
        self.set_name(op, path, None, Some(id))
    }

    fn hold(&mut self, path: &Path) -> io::Result<Id> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(self.content(path, &file)?.0)
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let moved = self.hold(from)?;
        let replaced = if to.exists() { Some(self.hold(to)?) } else { None };
        std::fs::rename(from, to)?;
        let op = self.op(What::Other {
            words: format!("renaming of {} to {}", from.display(), to.display()),
        });
        self.set_name(op, from, Some(moved), None)?;
        self.set_name(op, to, replaced, Some(moved))
    }

    pub fn remove(&mut self, path: &Path) -> io::Result<()> {
        let id = self.hold(path)?;
        std::fs::remove_file(path)?;
        let op = self.op(What::Other {
            words: format!("removal of {}", path.display()),
        });
        self.set_name(op, path, Some(id), None)
    }

    pub fn sync_dir(&mut self, folder: &Path) -> io::Result<()> {
        let folder = std::path::absolute(folder)?;
        self.names.retain(|path, _| path.parent() != Some(&folder));
        self.forget_durable_ops();
        self.forget_durable();
        Ok(())
    }

    /// Removes operations that are certain.
    fn forget_durable_ops(&mut self) {
        let mut open: HashSet<u64> = self
            .contents
            .values()
            .flat_map(|content| content.ops.iter().copied())
            .collect();
        open.extend(
            self.names
                .values()
                .flat_map(|history| history.versions.iter().map(|(op, _)| *op)),
        );
        self.ops.retain(|op, _| open.contains(op));
    }

    /// Removes files without uncertain operations.
    fn forget_durable(&mut self) {
        let named: HashSet<Id> = self
            .names
            .values()
            .flat_map(|history| history.versions.iter().map(|(_, id)| id).chain([&history.durable]))
            .filter_map(|id| *id)
            .collect();
        self.contents.retain(|id, content| {
            named.contains(id) || !content.sectors.is_empty() || content.length.is_some() || !content.ops.is_empty()
        });
    }

    /// Simulates a power loss: every operation that is not durable survives with probability `keep` (None: chosen from
    /// the seed); surviving writes may be torn (never with `keep` 0). Returns a description of what was lost.
    pub fn crash(&mut self, seed: u64, keep: Option<f64>) -> io::Result<Vec<String>> {
        let mut dice = Dice(seed);
        let keep = keep.unwrap_or_else(|| match dice.below(4) {
            0 => 0.0,
            1 => 0.9,
            _ => dice.unit(),
        });
        let mut fates = BTreeMap::new();
        let mut lost = Vec::new();
        // In the order of the operations, so that a seed means the same in every run, independent of inode numbers.
        for (op, what) in &self.ops {
            let fate = if dice.unit() < keep {
                Fate::Kept
            } else {
                self.lose(what, keep > 0.0, &mut dice, &mut lost)
            };
            fates.insert(*op, fate);
        }
        for content in self.contents.values() {
            content.apply(&fates)?;
        }
        for (path, history) in &self.names {
            let survivor = history.survivor(|op| fates.get(&op) == Some(&Fate::Kept));
            if survivor != history.current() {
                restore_name(path, survivor.and_then(|id| self.contents.get(&id)))?;
            }
        }
        *self = Power {
            epoch: self.epoch + 1,
            ..Power::default()
        };
        Ok(lost)
    }

    fn lose(&self, what: &What, may_tear: bool, dice: &mut Dice, lost: &mut Vec<String>) -> Fate {
        match what {
            What::Write { id, offset, len } => {
                let path = self
                    .contents
                    .get(id)
                    .map_or(String::new(), |content| content.path.display().to_string());
                let (first, end) = (offset / SECTOR, (offset + len).div_ceil(SECTOR));
                if may_tear && end - first > 1 && dice.below(2) == 0 {
                    let torn = first + 1 + dice.below(end - first - 1);
                    lost.push(format!(
                        "write of {len} bytes at {offset} of {path}, from byte {} on",
                        torn * SECTOR
                    ));
                    Fate::Torn(torn)
                } else {
                    lost.push(format!("write of {len} bytes at {offset} of {path}"));
                    Fate::Undone
                }
            }
            What::Other { words } => {
                lost.push(words.clone());
                Fate::Undone
            }
        }
    }
}

/// Makes `path` a copy of `content`, or removes it.
fn restore_name(path: &Path, content: Option<&Content>) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let Some(content) = content else {
        return Ok(());
    };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let copy = OpenOptions::new().write(true).create_new(true).open(path)?;
    let data = content.file.metadata()?;
    copy.set_len(data.len())?;
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < data.len() {
        let count = content.file.read_at(&mut buffer, at)?;
        if count == 0 {
            break;
        }
        if buffer[..count].iter().any(|byte| *byte != 0) {
            copy.write_all_at(&buffer[..count], at)?;
        }
        at += count as u64;
    }
    copy.set_times(FileTimes::new().set_modified(data.modified()?))
}

/// splitmix64: the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// In [0, 1).
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Door;
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("door-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn synced_data_stays_and_unsynced_data_is_lost() {
        let folder = Folder::new("synced");
        let door = Door::recording();
        let path = folder.file("log");
        let file = door.create_sized(&path, 2048, true).unwrap();
        file.write_at(b"first", 0).unwrap();
        file.sync_data().unwrap();
        door.sync_dir(&folder.0).unwrap();
        file.write_at(b"FIRST", 0).unwrap();
        file.write_at(&[7; 600], 1000).unwrap();
        let lost = door.crash(1, Some(0.0)).unwrap().unwrap();
        assert_eq!(lost.len(), 2);
        let data = std::fs::read(&path).unwrap();
        assert_eq!(&data[..5], b"first");
        assert!(data[5..].iter().all(|byte| *byte == 0));
        assert_eq!(
            file.write_at(b"x", 0).unwrap_err().raw_os_error(),
            Some(libc::EIO),
            "a file opened before the crash is invalid"
        );
    }

    #[test]
    fn a_map_does_not_bypass_the_door() {
        let folder = Folder::new("map");
        let door = Door::recording();
        let path = folder.file("index");
        let mut map = door.create_sized(&path, 4096, true).unwrap().write_map().unwrap();
        map.write(100, b"kept").unwrap();
        map.sync().unwrap();
        door.sync_dir(&folder.0).unwrap();
        map.write(100, b"lost").unwrap();
        door.crash(1, Some(0.0)).unwrap();
        assert_eq!(&std::fs::read(&path).unwrap()[100..104], b"kept");
        assert!(map.write(0, b"x").is_err());
    }

    #[test]
    fn a_write_may_be_torn_between_sectors() {
        let folder = Folder::new("torn");
        let mut torn = 0;
        for seed in 0..200 {
            let door = Door::recording();
            let path = folder.file("log");
            let file = door.create_sized(&path, 4096, true).unwrap();
            file.write_at(&[0; 4096], 0).unwrap();
            file.sync_data().unwrap();
            door.sync_dir(&folder.0).unwrap();
            file.write_at(&[1; 2048], 256).unwrap();
            door.crash(seed, Some(0.5)).unwrap();
            let ones = std::fs::read(&path).unwrap().iter().filter(|byte| **byte == 1).count();
            assert!([0, 256, 768, 1280, 1792, 2048].contains(&ones), "{ones}");
            torn += usize::from(ones % 2048 != 0);
        }
        assert!(torn > 20, "{torn}");
    }

    #[test]
    fn a_torn_write_never_shortens_a_file() {
        let folder = Folder::new("shorter");
        for seed in 0..100 {
            let door = Door::recording();
            let path = folder.file("log");
            door.write_file(&path, &[1; 2048]).unwrap();
            door.sync_dir(&folder.0).unwrap();
            door.open(&path).unwrap().write_at(&[2; 2000], 1000).unwrap();
            door.crash(seed, Some(0.3)).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() >= 2048);
        }
    }

    #[test]
    fn a_failed_sync_is_not_repaired_by_a_second_one() {
        let folder = Folder::new("doomed");
        let door = Door::recording();
        let path = folder.file("log");
        let file = door.create_sized(&path, 4096, true).unwrap();
        file.sync_data().unwrap();
        door.sync_dir(&folder.0).unwrap();
        file.write_at(b"before", 0).unwrap();
        door.fail(super::super::Op::Sync, "log", libc::EIO, 0, Some(1));
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.write_at(b"behind", 1024).unwrap();
        file.sync_data().unwrap();
        door.crash(1, Some(0.0)).unwrap();
        let data = std::fs::read(&path).unwrap();
        assert_eq!(&data[..6], &[0; 6]);
        assert_eq!(&data[1024..1030], b"behind");
    }

    #[test]
    fn a_failed_sync_of_a_file_system_is_not_repaired_by_a_second_one() {
        let folder = Folder::new("doomed-fs");
        let door = Door::recording();
        door.keep_fs(&folder.0).unwrap();
        let path = folder.file("log");
        let file = door.create_sized(&path, 4096, true).unwrap();
        assert!(door.sync_fs(&folder.0).unwrap());
        file.write_at(b"before", 0).unwrap();
        door.fail(super::super::Op::SyncFs, "doomed-fs", libc::EIO, 0, Some(1));
        assert_eq!(door.sync_fs(&folder.0).unwrap_err().raw_os_error(), Some(libc::EIO));
        file.write_at(b"behind", 1024).unwrap();
        assert!(door.sync_fs(&folder.0).unwrap());
        door.crash(1, Some(0.0)).unwrap();
        let data = std::fs::read(&path).unwrap();
        assert_eq!(&data[..6], &[0; 6]);
        assert_eq!(&data[1024..1030], b"behind");
    }

    #[test]
    fn names_need_their_folder_synced() {
        let folder = Folder::new("names");
        let door = Door::recording();
        let (old, new) = (folder.file("a"), folder.file("b"));
        door.write_file(&old, b"one").unwrap();
        door.sync_dir(&folder.0).unwrap();
        door.write_file(&new, b"two").unwrap();
        door.rename(&new, &old).unwrap();
        door.crash(3, Some(0.0)).unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"one");
        assert!(!new.exists(), "the creation of the new name was not synced");

        door.remove(&old).unwrap();
        door.crash(3, Some(0.0)).unwrap();
        assert_eq!(std::fs::read(&old).unwrap(), b"one");
        door.remove(&old).unwrap();
        door.sync_dir(&folder.0).unwrap();
        door.crash(3, Some(0.0)).unwrap();
        assert!(!old.exists());
    }

    #[test]
    fn an_unsynced_truncation_can_be_undone() {
        let folder = Folder::new("truncate");
        let door = Door::recording();
        let path = folder.file("log");
        door.write_file(&path, &[9; 1500]).unwrap();
        door.sync_dir(&folder.0).unwrap();
        let file = door.open(&path).unwrap();
        file.set_len(700).unwrap();
        door.crash(1, Some(0.0)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [9; 1500]);
    }
}
