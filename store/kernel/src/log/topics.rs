//! The queues' next offsets, by topic, and counts of appended messages since the last query.

use rustc_hash::FxHashMap;

use crate::encode::place_of;

pub(super) struct Topic {
    /// Sends to queues [0, queues) are served here; 0: all sends of the topic go to Python.
    pub(super) queues: i32,
    /// The next offset of each queue that was ever used.
    pub(super) next: Vec<i64>,
    pub(super) put_count: u64,
    pub(super) put_bytes: u64,
}

impl Topic {
    pub(super) fn next(&self, queue: i32) -> i64 {
        usize::try_from(queue)
            .ok()
            .and_then(|index| self.next.get(index).copied())
            .unwrap_or(0)
    }

    /// `queue` is not negative.
    pub(super) fn set_next(&mut self, queue: i32, offset: i64) {
        let index = queue as usize;
        if self.next.len() <= index {
            self.next.resize(index + 1, 0);
        }
        self.next[index] = offset;
    }

    pub(super) fn count(&mut self, messages: u64, bytes: u64) {
        self.put_count += messages;
        self.put_bytes += bytes;
    }
}

/// Takes back the queue offsets of staged records: they will be used again. `header_bytes` lie before each record.
pub(super) fn give_back_offsets(staged: &[u8], header_bytes: usize, topics: &mut FxHashMap<Box<[u8]>, Topic>) {
    let mut at = header_bytes;
    while let Some(place) = staged.get(at..).and_then(place_of) {
        if place.queued {
            if let Some(topic) = topics.get_mut(place.topic) {
                let next = topic.next(place.queue);
                topic.set_next(place.queue, next.min(place.queue_offset));
            }
        }
        at += place.size + header_bytes;
    }
}
