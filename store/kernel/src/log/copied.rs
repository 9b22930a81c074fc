//! Records of another log, staged as they are: the log of a slave.
//!
//! A slave receives the bytes of its master's log. Only whole items are staged, and only if they are sound, so that this
//! log ends between two records whatever happens to the connection: it is continued where it ends. Fillers are staged
//! with all their bytes, as RocketMQ's slaves store them.

use super::tail::{AppendFault, Tail};
use crate::encode::{BLANK_BYTES, BLANK_MAGIC};
use crate::record::{int, is_record_magic, is_topic_name, Bad, Record, SMALLEST};

/// No message is larger: the protocol's frames have at most 16 MiB. A filler is smaller than the record that did not
/// fit. So no more memory is needed for an incomplete item.
const MOST_ITEM_BYTES: usize = 17 << 20;
/// Size and magic: what tells how large an item is.
const HEAD_BYTES: usize = 8;

/// What became of a range of bytes.
pub(super) struct Copied {
    /// Bytes that were staged.
    pub(super) taken: usize,
    /// Size of the item behind them, or of its head.
    pub(super) wanted: usize,
    /// Why the item behind them is not staged although it is complete, or can never be.
    pub(super) flaw: Option<&'static str>,
}

enum Next {
    Item { size: usize, stored_ms: Option<i64> },
    Incomplete { wanted: usize },
    Flawed(Bad),
}

impl Tail {
    /// See `Log.append_copied`.
    pub(super) fn stage_copied(&mut self, data: &[u8]) -> Result<Copied, AppendFault> {
        let mut taken = 0;
        loop {
            let rest = &data[taken..];
            let (size, stored_ms) = match self.next_item(rest) {
                Next::Item { size, stored_ms } => (size, stored_ms),
                Next::Incomplete { wanted } => {
                    let flaw = None;
                    return Ok(Copied { taken, wanted, flaw });
                }
                Next::Flawed(bad) => {
                    let (wanted, flaw) = (HEAD_BYTES, Some(bad.text()));
                    return Ok(Copied { taken, wanted, flaw });
                }
            };
            let start = self.segment_start(self.staged);
            if self.segments.back().is_none_or(|(have, _)| *have < start) {
                self.open_segment(start)?;
            }
            if stored_ms.is_none() {
                // A filler: the log ends in the next segment, which therefore has to exist.
                self.open_segment(start + self.segment_bytes)?;
            }
            self.piece().bytes.extend_from_slice(&rest[..size]);
            self.staged += size as u64;
            self.last_store_ms = self.last_store_ms.max(stored_ms.unwrap_or(0));
            taken += size;
        }
    }

    fn next_item(&self, rest: &[u8]) -> Next {
        let left = (self.segment_start(self.staged) + self.segment_bytes - self.staged) as usize;
        if left < BLANK_BYTES {
            return Next::Flawed(Bad::Size); // a record that left no room for a filler was staged before
        }
        if rest.len() < HEAD_BYTES {
            return Next::Incomplete { wanted: HEAD_BYTES };
        }
        let (first, magic) = (int(rest, 0), int(rest, 4));
        if first == 0 && magic == 0 {
            return Next::Flawed(Bad::Unwritten);
        }
        let is_filler = magic == BLANK_MAGIC;
        if !is_filler && !is_record_magic(magic) {
            return Next::Flawed(Bad::Magic);
        }
        let size = usize::try_from(first).unwrap_or(0);
        let fits = if is_filler {
            size == left
        } else {
            size >= SMALLEST && size + BLANK_BYTES <= left
        };
        if !fits || size > MOST_ITEM_BYTES {
            return Next::Flawed(Bad::Size);
        }
        if rest.len() < size {
            return Next::Incomplete { wanted: size };
        }
        if is_filler {
            return Next::Item { size, stored_ms: None };
        }
        match Record::parse(&rest[..size], self.staged) {
            Err((bad, _)) => Next::Flawed(bad),
            Ok(record) if !record.body_crc_holds() => Next::Flawed(Bad::Crc),
            Ok(record) if !is_topic_name(record.topic()) => Next::Flawed(Bad::Topic),
            Ok(record) => Next::Item {
                size,
                stored_ms: Some(record.store_timestamp()),
            },
        }
    }
}
