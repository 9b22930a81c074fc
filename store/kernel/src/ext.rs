//! ConsumeQueueExt: what a queue's unit has no room for, with the bit map of a SQL filter. Read only.
//!
//! ```text
//! at  size  field
//!  0     2  size of the unit, 20 at least
//!  2     8  tags code
//! 10     8  store time
//! 18     2  bytes of the bit map
//! 20     n  bit map
//! ```
//!
//! A unit's address is its byte in the queue's extension files minus 2^63, and stands in the ConsumeQueue where the tags
//! code would be; a value below the 32-bit integers is such an address. -1 in the place of a size ends a file. Source:
//! RocketMQ 4.8.0, ConsumeQueueExt.java. Fixed: it is on disks.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::fault::{At, Outcome};
use crate::maps::{segment_name, segment_starts};
use crate::record::long;

const HEAD: usize = 20;
/// The greatest tags code that is an address.
const LAST_ADDRESS: i64 = i32::MIN as i64 - 1;
const MOST_OPEN: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtUnit {
    pub size: u16,
    pub tags_code: i64,
    pub store_timestamp: i64,
    pub bit_map: Vec<u8>,
}

pub fn is_address(tags_code: i64) -> bool {
    tags_code <= LAST_ADDRESS
}

pub struct ExtFiles {
    folder: PathBuf,
    open: HashMap<PathBuf, File>,
}

impl ExtFiles {
    pub fn new(folder: PathBuf) -> ExtFiles {
        ExtFiles {
            folder,
            open: HashMap::new(),
        }
    }

    pub fn close(&mut self) {
        self.open.clear();
    }

    /// The unit at `address`; None if `address` is none or there is no sound unit.
    pub fn unit(&mut self, topic: &[u8], queue: i32, address: i64) -> Outcome<Option<ExtUnit>> {
        if !is_address(address) {
            return Ok(None);
        }
        let at = address.wrapping_sub(i64::MIN) as u64;
        let folder = self
            .folder
            .join(std::ffi::OsStr::from_bytes(topic))
            .join(queue.to_string());
        // The files' size is a setting that need not be known here: the file is the last one that begins at or before.
        let starts = segment_starts(&folder)?;
        let Some(&start) = starts[..starts.partition_point(|&start| start <= at)].last() else {
            return Ok(None);
        };
        let path = folder.join(segment_name(start));
        if !self.open.contains_key(&path) {
            if self.open.len() >= MOST_OPEN {
                self.open.clear();
            }
            self.open.insert(path.clone(), File::open(&path).at(&path)?);
        }
        let file = &self.open[&path];
        let mut bytes = vec![0; 256];
        let mut n = file.read_at(&mut bytes, at - start).at(&path)?;
        if n < HEAD {
            return Ok(None);
        }
        let size = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let bit_map_len = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
        if size > i16::MAX as usize || size < HEAD || bit_map_len != size - HEAD {
            return Ok(None);
        }
        if n < size {
            bytes.resize(size, 0);
            n = file.read_at(&mut bytes, at - start).at(&path)?;
            if n < size {
                return Ok(None);
            }
        }
        Ok(Some(ExtUnit {
            size: size as u16,
            tags_code: long(&bytes, 2),
            store_timestamp: long(&bytes, 10),
            bit_map: bytes[HEAD..size].to_vec(),
        }))
    }
}
