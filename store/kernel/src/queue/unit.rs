//! One unit of a ConsumeQueue, 20 bytes: which record of the log is the queue's next message.

use crate::record::{int, long};

/// Bytes of a unit. Fixed: it is on disks.
pub const UNIT: u64 = 20;
const BLANK_SIZE: i32 = i32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    pub pos: i64,
    pub size: i32,
    pub tags_code: i64,
}

impl Unit {
    pub const BLANK: Unit = Unit {
        pos: 0,
        size: BLANK_SIZE,
        tags_code: 0,
    };

    pub fn decode(bytes: &[u8]) -> Unit {
        Unit {
            pos: long(bytes, 0),
            size: int(bytes, 8),
            tags_code: long(bytes, 12),
        }
    }

    pub fn encode(&self) -> [u8; UNIT as usize] {
        let mut bytes = [0; UNIT as usize];
        bytes[..8].copy_from_slice(&self.pos.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[12..].copy_from_slice(&self.tags_code.to_be_bytes());
        bytes
    }

    /// Whether recovery accepts this as a unit. The queue ends before the first invalid unit. A blank unit is accepted.
    pub fn is_unit(&self) -> bool {
        self.pos >= 0 && self.size > 0
    }

    pub fn is_blank(&self) -> bool {
        self.size == BLANK_SIZE && self.pos == 0
    }

    /// End of the record in the log.
    pub fn end(&self) -> i64 {
        self.pos.saturating_add(i64::from(self.size))
    }
}
