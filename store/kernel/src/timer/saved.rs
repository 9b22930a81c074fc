//! The file `state`: which position of the log the index reflects, the set of pending offsets, and the sorted files.
//!
//! ```text
//! "tally-timers 1\n"   8 position   8 next offset   4 bytes of the log before the position   4 their CRC
//! 8 offset   8 time of what RocketMQ delivered before
//! 8 number of files   (8 id   8 entries   4 CRC) ...   the pending set   4 CRC of everything before
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use super::pending::Pending;
use super::runs::{path_of, Run};
use super::State;
use crate::door::Door;
use crate::fault::{At, Outcome};

const NAME: &str = "state";
const HEAD: &[u8] = b"tally-timers 1\n";

/// The file, as it is on the disk.
pub enum Found {
    Sound(Saved),
    Missing,
    Damaged,
}

pub struct Saved {
    pub pos: u64,
    pub next: i64,
    /// Number of bytes before `pos`, and their CRC: see `Dispatch::timer_mark`.
    pub mark: (u32, u32),
    /// See `TimerIndex`.
    pub delivered_before: (i64, i64),
    pub runs: Vec<(u64, u64, u32)>,
    pub pending: Pending,
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

impl Saved {
    /// Without the mark.
    pub fn of(state: &State, delivered_before: (i64, i64)) -> Saved {
        Saved {
            pos: state.pos,
            next: state.next,
            mark: (0, 0),
            delivered_before,
            runs: state.runs.iter().map(Run::named).collect(),
            pending: state.pending.clone(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        bytes.extend_from_slice(&self.pos.to_be_bytes());
        bytes.extend_from_slice(&self.next.to_be_bytes());
        bytes.extend_from_slice(&self.mark.0.to_be_bytes());
        bytes.extend_from_slice(&self.mark.1.to_be_bytes());
        bytes.extend_from_slice(&self.delivered_before.0.to_be_bytes());
        bytes.extend_from_slice(&self.delivered_before.1.to_be_bytes());
        bytes.extend_from_slice(&(self.runs.len() as u64).to_be_bytes());
        for (id, len, crc) in &self.runs {
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&crc.to_be_bytes());
        }
        self.pending.encode(&mut bytes);
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Saved> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
            return None;
        }
        let mut rest = body.strip_prefix(HEAD)?;
        let rest = &mut rest;
        let pos = u64::from_be_bytes(take(rest)?);
        let next = i64::from_be_bytes(take(rest)?);
        let mark = (u32::from_be_bytes(take(rest)?), u32::from_be_bytes(take(rest)?));
        let delivered_before = (i64::from_be_bytes(take(rest)?), i64::from_be_bytes(take(rest)?));
        let count = u64::from_be_bytes(take(rest)?);
        let mut runs = vec![];
        for _ in 0..count {
            runs.push((
                u64::from_be_bytes(take(rest)?),
                u64::from_be_bytes(take(rest)?),
                u32::from_be_bytes(take(rest)?),
            ));
        }
        let pending = Pending::decode(rest)?;
        rest.is_empty().then_some(Saved {
            pos,
            next,
            mark,
            delivered_before,
            runs,
            pending,
        })
    }

    pub fn read(folder: &Path) -> Outcome<Found> {
        let path = folder.join(NAME);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Saved::decode(&bytes).map_or(Found::Damaged, Found::Sound)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Found::Missing),
            Err(error) => Err(error).at(&path),
        }
    }

    /// Replaces the file; durable afterwards.
    pub fn write(&self, door: &Door, folder: &Path) -> Outcome<()> {
        let (new, path) = (folder.join("state.tmp"), folder.join(NAME));
        door.write_file(&new, &self.encode()).at(&new)?;
        door.rename(&new, &path).at(&path)?;
        door.sync_dir(folder).at(folder)
    }

    /// The sorted files; None if one of them is missing or differs.
    pub fn open_runs(&self, door: &Door, folder: &Path) -> Outcome<Option<Vec<Run>>> {
        let mut runs = vec![];
        for &(id, len, crc) in &self.runs {
            match Run::open(door, folder, id, len, crc)? {
                Some(run) => runs.push(run),
                None => return Ok(None),
            }
        }
        Ok(Some(runs))
    }
}

/// Removes sorted files that `saved` does not name.
pub fn remove_others(door: &Door, folder: &Path, saved: &Saved) -> Outcome<()> {
    let named: BTreeSet<_> = saved.runs.iter().map(|&(id, ..)| path_of(folder, id)).collect();
    for entry in std::fs::read_dir(folder).at(folder)? {
        let path = entry.at(folder)?.path();
        let is_run = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"run-"));
        if is_run && !named.contains(&path) {
            door.remove(&path).at(&path)?;
        }
    }
    Ok(())
}
