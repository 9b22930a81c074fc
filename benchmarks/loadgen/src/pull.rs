//! PULL_MESSAGE: every slot walks its own queues from offset 0 to their ends, one after the other, and begins again.
//!
//! The records of an answer are not decoded, but their frame is held to what it must be: sizes that add up to the body, the
//! magic, this queue, offsets without a gap. A broker that serves rubbish quickly must not look quick.

use std::time::Instant;

use crate::driver::Load;
use crate::frame::{Answer, PullTemplate};
use crate::options::Options;

const MAGIC: u32 = 0xDAA3_20A7; // fixed: it is on disks
const SMALLEST_RECORD: usize = 91;
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 19;
const RETRY_IMMEDIATELY: i32 = 20;
const OFFSET_MOVED: i32 = 21;

struct Cursor {
    queues: Vec<u32>,
    at: usize,
    offset: u64,
    /// Ends of queues met since the last message: as many as there are queues means that all are empty.
    ends: usize,
}

pub struct Pull {
    template: PullTemplate,
    batch: u64,
    cursors: Vec<Cursor>,
}

impl Pull {
    pub fn new(options: &Options) -> Self {
        let slots = (options.connections * options.outstanding) as u32;
        let cursor = |slot: u32| Cursor {
            // More slots than queues: several read the same one, as several consumer groups would.
            queues: (slot % options.queues..options.queues)
                .step_by(slots.min(options.queues) as usize)
                .collect(),
            at: 0,
            offset: 0,
            ends: 0,
        };
        Pull {
            template: PullTemplate::new(&options.group, &options.topic, options.batch),
            batch: u64::from(options.batch),
            cursors: (0..slots).map(cursor).collect(),
        }
    }
}

impl Load for Pull {
    fn request(&mut self, slot: usize, opaque: u32, _now: Instant, out: &mut Vec<u8>) {
        let cursor = &self.cursors[slot];
        self.template
            .append(out, cursor.queues[cursor.at], cursor.offset, opaque);
    }

    fn answer(&mut self, slot: usize, answer: &Answer, next: Option<u64>, body: &[u8]) -> Result<u64, String> {
        let batch = self.batch;
        let cursor = &mut self.cursors[slot];
        let queue = cursor.queues[cursor.at];
        let wrong = |what: String, offset: u64| Err(format!("queue {queue} at offset {offset}: {what}"));
        match answer.code {
            FOUND => {
                let count = match check_records(body, queue, cursor.offset) {
                    Ok(count) if count <= batch => count,
                    Ok(count) => return wrong(format!("{count} records, {batch} asked for"), cursor.offset),
                    Err(what) => return wrong(what, cursor.offset),
                };
                if next != Some(cursor.offset + count) {
                    return wrong(format!("{count} records and nextBeginOffset {next:?}"), cursor.offset);
                }
                cursor.offset += count;
                cursor.ends = 0;
                Ok(count)
            }
            NOT_FOUND | OFFSET_MOVED => {
                cursor.ends += 1;
                if cursor.ends > cursor.queues.len() {
                    return Err(format!("no messages in the queues {:?}", cursor.queues));
                }
                cursor.at = (cursor.at + 1) % cursor.queues.len();
                cursor.offset = 0;
                Ok(0)
            }
            RETRY_IMMEDIATELY => {
                cursor.offset = next.unwrap_or(cursor.offset);
                Ok(0)
            }
            _ => Ok(0), // counted by its code, asked again
        }
    }

    fn below(&self, limit: u64, messages: u64, _in_flight: u64) -> bool {
        messages < limit
    }
}

/// Number of records in the body of an answer that begins at this queue offset.
fn check_records(body: &[u8], queue: u32, queue_offset: u64) -> Result<u64, String> {
    let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().expect("eight bytes"));
    let (mut at, mut count, mut least_pos) = (0, 0, 0);
    while at < body.len() {
        if body.len() - at < SMALLEST_RECORD {
            return Err(format!("{} bytes left at byte {at}", body.len() - at));
        }
        let size = word(at) as usize;
        if size < SMALLEST_RECORD || size > body.len() - at || word(at + 4) != MAGIC {
            return Err(format!(
                "no record at byte {at}: size {size}, magic {:#x}",
                word(at + 4)
            ));
        }
        let (found_queue, found_offset, pos) = (word(at + 12), long(at + 20), long(at + 28));
        if found_queue != queue || found_offset != queue_offset + count {
            return Err(format!(
                "record {count} is of queue {found_queue}, offset {found_offset}"
            ));
        }
        if pos < least_pos {
            return Err(format!(
                "record {count} is at {pos} in the log, before the one in front of it"
            ));
        }
        least_pos = pos + size as u64;
        at += size;
        count += 1;
    }
    if count == 0 {
        return Err("found, but no records".to_owned());
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options;

    fn record(queue: u32, queue_offset: u64, pos: u64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        bytes[..4].copy_from_slice(&(size as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[12..16].copy_from_slice(&queue.to_be_bytes());
        bytes[20..28].copy_from_slice(&queue_offset.to_be_bytes());
        bytes[28..36].copy_from_slice(&pos.to_be_bytes());
        bytes
    }

    fn pull(line: &str) -> Pull {
        let line = format!("pull --address 127.0.0.1:1 --topic t {line}");
        Pull::new(&options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn every_queue_has_a_reader() {
        let queues = |line: &str| {
            pull(line)
                .cursors
                .into_iter()
                .map(|cursor| cursor.queues)
                .collect::<Vec<_>>()
        };
        assert_eq!(queues("--queues 3"), [[0, 1, 2]]);
        assert_eq!(queues("--queues 5 --connections 2"), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(
            queues("--queues 2 --connections 2 --outstanding 2"),
            [[0], [1], [0], [1]]
        );
    }

    #[test]
    fn sound_records_are_counted() {
        let body = [record(3, 40, 1000, 100), record(3, 41, 5000, 91)].concat();
        assert_eq!(check_records(&body, 3, 40), Ok(2));
    }

    #[test]
    fn rubbish_is_named() {
        let good = [record(3, 40, 1000, 100), record(3, 41, 5000, 91)].concat();
        assert!(check_records(&good, 2, 40).unwrap_err().contains("of queue 3"));
        assert!(check_records(&good, 3, 39).unwrap_err().contains("offset 40"));
        assert!(check_records(&good[..150], 3, 40)
            .unwrap_err()
            .contains("50 bytes left"));
        assert!(check_records(&good[..190], 3, 40)
            .unwrap_err()
            .contains("90 bytes left"));
        assert!(check_records(&[], 3, 40).unwrap_err().contains("no records"));
        let mut broken = good.clone();
        broken[104] ^= 1;
        assert!(check_records(&broken, 3, 40)
            .unwrap_err()
            .contains("no record at byte 100"));
        let backwards = [record(3, 40, 1000, 100), record(3, 41, 1099, 91)].concat();
        assert!(check_records(&backwards, 3, 40)
            .unwrap_err()
            .contains("before the one in front"));
    }

    #[test]
    fn a_cursor_walks_its_queues_and_begins_again() {
        let mut load = pull("--queues 2");
        let found = Answer { code: FOUND, opaque: 0 };
        let end = Answer {
            code: NOT_FOUND,
            opaque: 0,
        };
        let place = |load: &Pull| (load.cursors[0].queues[load.cursors[0].at], load.cursors[0].offset);
        assert_eq!(load.answer(0, &found, Some(1), &record(0, 0, 0, 91)), Ok(1));
        assert_eq!(place(&load), (0, 1));
        assert_eq!(load.answer(0, &end, None, &[]), Ok(0));
        assert_eq!(place(&load), (1, 0));
        assert_eq!(load.answer(0, &found, Some(1), &record(1, 0, 91, 91)), Ok(1));
        assert_eq!(load.answer(0, &end, None, &[]), Ok(0));
        assert_eq!(place(&load), (0, 0));
        assert_eq!(load.answer(0, &end, None, &[]), Ok(0));
        assert!(load
            .answer(0, &end, None, &[])
            .unwrap_err()
            .contains("no messages in the queues [0, 1]"));
        assert!(load
            .answer(0, &found, Some(7), &record(1, 0, 91, 91))
            .unwrap_err()
            .contains("nextBeginOffset Some(7)"));
    }
}
