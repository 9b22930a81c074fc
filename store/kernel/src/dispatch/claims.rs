//! Dispatch during a recovery: records claim their places (`queue::hold`), damaged records too.
//!
//! A damaged record had a queue offset, which must not be given out again. If only its magic, size or position is
//! wrong, its other fields still say which offset: its claim keeps the place with a placeholder.

use super::Core;
use crate::fault::Outcome;
use crate::queue::{Claim, Put, Queues, Unit};
use crate::record::{long, Record, RECORD_MAGIC, RECORD_MAGIC_LONG_TOPIC, SMALLEST};

/// The claim of a sound record.
#[cold]
pub fn claim(queues: &mut Queues, q: u32, record: &Record<'_>, unit: Unit) -> Outcome<Put> {
    let claim = Claim {
        unit,
        offset: record.queue_offset(),
        store_timestamp: record.store_timestamp(),
        lost: false,
    };
    match queues.claim(q, claim)? {
        // `claim` adds the extension, and reports strays at the end
        Put::Added | Put::Misplaced => Ok(Put::Held),
        put => Ok(put),
    }
}

/// The claim of a damaged record. `proven`: it lies at its place; only such a record creates a queue.
fn claim_lost(queues: &mut Queues, record: &Record<'_>, pos: u64, proven: bool) -> Outcome<()> {
    let (topic, id) = (record.topic(), record.queue_id());
    if !record.is_queued() || !queues.wants(topic, id).0 {
        return Ok(());
    }
    let Some(number) = queues.topic(topic) else {
        return Ok(());
    };
    if queues.find(topic, id).is_none() && !proven {
        return Ok(());
    }
    let q = queues.queue(number, id);
    let claim = Claim {
        unit: Unit {
            pos: pos as i64,
            size: record.size() as i32,
            tags_code: 0,
        },
        offset: record.queue_offset(),
        store_timestamp: record.store_timestamp(),
        lost: true,
    };
    queues.claim(q, claim).map(|_| ())
}

/// Parses damaged bytes as the record that they would be with the right magic, size and position.
fn with_repaired_head<R>(bytes: &[u8], pos: u64, act: impl FnOnce(&Record<'_>) -> R) -> Option<R> {
    let mut bytes = bytes.to_vec();
    let size = i32::try_from(bytes.len()).ok()?;
    bytes.get_mut(..4)?.copy_from_slice(&size.to_be_bytes());
    bytes.get_mut(28..36)?.copy_from_slice(&pos.to_be_bytes());
    for magic in [RECORD_MAGIC, RECORD_MAGIC_LONG_TOPIC] {
        bytes[4..8].copy_from_slice(&magic.to_be_bytes());
        if let Ok(record) = Record::parse(&bytes, pos) {
            return Some(act(&record));
        }
    }
    None
}

impl Core {
    /// The claim of the damaged record in these bytes of the log, if they can be parsed as one.
    pub fn claim_at(&self, queues: &mut Queues, pos: u64, size: u64) -> Outcome<()> {
        let header = self.entry_header as u64;
        let Some(segment) = self.log.segment(pos)? else {
            return Ok(());
        };
        let place = pos + header;
        let Some(bytes) = segment.slice(place, size.saturating_sub(header) as usize) else {
            return Ok(());
        };
        let in_place = bytes.len() >= SMALLEST && long(bytes, 28) == place as i64;
        with_repaired_head(bytes, place, |record| {
            claim_lost(queues, record, place, in_place || record.body_crc_holds())
        })
        .unwrap_or(Ok(()))
    }
}
