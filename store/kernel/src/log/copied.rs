//! Records of another log, staged as they are: the log of a slave.
//!
//! A slave receives the bytes of its master's log. Only whole items are staged, and only if they are sound, so that this
//! log ends between two records whatever happens to the connection: it is continued where it ends. Fillers are staged
//! with all their bytes, as RocketMQ's slaves store them.
//!
//! A group takes the same bytes into its own log, whose records lie in entries (`stage_followed`): each record gets its
//! new position, and keeps all other bytes except for the position of a half message, which the caller has mapped.

use super::tail::{AppendFault, Tail};
use crate::convert::{ends_transaction, is_half, POSITION_AT};
use crate::encode::{BLANK_BYTES, BLANK_MAGIC};
use crate::entry::ENTRY_HEADER;
use crate::record::{int, is_record_magic, is_topic_name, Bad, Record, SMALLEST};

/// No message is larger: the protocol's frames have at most 16 MiB. A filler is smaller than the record that did not
/// fit. So no more memory is needed for an incomplete item.
const MOST_ITEM_BYTES: usize = 17 << 20;
/// Size and magic: what tells how large an item is.
const HEAD_BYTES: usize = 8;

/// The words are part of the interface.
const TOO_LARGE: &str = "does not fit into a segment, or has more than maxMessageSize";

/// What became of a range of bytes.
pub(super) struct Copied {
    /// Bytes that were staged.
    pub(super) taken: usize,
    /// Size of the item behind them, or of its head.
    pub(super) wanted: usize,
    /// Why the item behind them is not staged although it is complete, or can never be.
    pub(super) flaw: Option<&'static str>,
}

/// What became of a range of bytes that a group follows.
pub(super) struct Followed {
    pub(super) copied: Copied,
    /// The item behind the taken ones names this position of a half message, which has to be mapped first.
    pub(super) reference: Option<i64>,
    /// Half messages that were staged: (position in the other log, position here).
    pub(super) halves: Vec<(u64, u64)>,
}

/// Where an item lies in the other log: its position, and the bytes from there to the end of its segment.
struct Spot {
    pos: u64,
    left: usize,
}

enum Next<'a> {
    Item { size: usize, record: Option<Record<'a>> },
    Incomplete { wanted: usize },
    Flawed(Bad),
}

impl Tail {
    /// See `Log.append_copied`.
    pub(super) fn stage_copied(&mut self, data: &[u8]) -> Result<Copied, AppendFault> {
        let mut taken = 0;
        loop {
            let rest = &data[taken..];
            let left = (self.segment_start(self.staged) + self.segment_bytes - self.staged) as usize;
            let spot = Spot { pos: self.staged, left };
            let (size, stored_ms) = match next_item(rest, &spot) {
                Next::Item { size, record } => (size, record.map(|record| record.store_timestamp())),
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

    /// See `Log.append_followed`. Stops behind a filler.
    pub(super) fn stage_followed(
        &mut self,
        data: &[u8],
        begin: u64,
        segment_bytes: u64,
        most_record_bytes: usize,
        mut mapped: Option<i64>,
    ) -> Result<Followed, AppendFault> {
        let (mut taken, mut halves, mut reference) = (0, vec![], None);
        let (wanted, flaw) = loop {
            let (rest, pos) = (&data[taken..], begin + taken as u64);
            let left = (segment_bytes - pos % segment_bytes) as usize;
            let (size, record) = match next_item(rest, &Spot { pos, left }) {
                Next::Item { size, record } => (size, record),
                Next::Incomplete { wanted } => break (wanted, None),
                Next::Flawed(bad) => break (HEAD_BYTES, Some(bad.text())),
            };
            let Some(record) = record else {
                taken += size;
                break (HEAD_BYTES, None);
            };
            let old = record.prepared_transaction_offset();
            // (Position 0 is possible.)
            let prepared = match (ends_transaction(&record), mapped.take()) {
                (true, None) => {
                    reference = Some(old);
                    break (size, None);
                }
                (true, Some(new)) => new,
                (false, _) => old,
            };
            if size > most_record_bytes || size + ENTRY_HEADER + BLANK_BYTES > self.segment_bytes as usize {
                break (size, Some(TOO_LARGE));
            }
            self.make_room(self.framed(size, 1))?;
            let new = self.stage_record(&record, prepared);
            if is_half(&record) {
                halves.push((pos, new));
            }
            taken += size;
        };
        let copied = Copied { taken, wanted, flaw };
        Ok(Followed {
            copied,
            reference,
            halves,
        })
    }

    /// Stages a record of another log in an entry, for which `make_room` has made room; returns its new position.
    fn stage_record(&mut self, record: &Record<'_>, prepared: i64) -> u64 {
        let mut entries = self.entries.take().expect("the caller has checked this");
        let entry_pos = self.staged;
        let pos = entry_pos + ENTRY_HEADER as u64;
        let piece = self.piece();
        let begin = piece.bytes.len();
        piece.bytes.extend_from_slice(&[0; ENTRY_HEADER]);
        piece.bytes.extend_from_slice(record.bytes());
        let (head, body) = piece.bytes[begin..].split_at_mut(ENTRY_HEADER);
        body[POSITION_AT..POSITION_AT + 8].copy_from_slice(&pos.to_be_bytes());
        let prepared_at = record.prepared_at();
        body[prepared_at..prepared_at + 8].copy_from_slice(&prepared.to_be_bytes());
        entries.seal(head, body, entry_pos, 0);
        self.entries = Some(entries);
        self.staged += (ENTRY_HEADER + record.bytes().len()) as u64;
        self.last_store_ms = self.last_store_ms.max(record.store_timestamp());
        pos
    }
}

fn next_item<'a>(rest: &'a [u8], spot: &Spot) -> Next<'a> {
    let left = spot.left;
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
        return Next::Item { size, record: None };
    }
    match Record::parse(&rest[..size], spot.pos) {
        Err((bad, _)) => Next::Flawed(bad),
        Ok(record) if !record.body_crc_holds() => Next::Flawed(Bad::Crc),
        Ok(record) if !is_topic_name(record.topic()) => Next::Flawed(Bad::Topic),
        Ok(record) => Next::Item {
            size,
            record: Some(record),
        },
    }
}
