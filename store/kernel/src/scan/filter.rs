//! Selects the records that a reader wants. Checks the record in place, before anything of it is copied.

use crate::record::{Known, Record};

/// All bounds are inclusive; None: no bound.
#[derive(Default)]
pub struct Filter {
    pub topics: Option<Vec<Vec<u8>>>,
    pub queues: Option<Vec<i32>>,
    pub queue_offsets: Option<(i64, i64)>,
    pub store_times_ms: Option<(i64, i64)>,
    /// One of these is the message's unique key or one of its keys.
    pub keys: Option<Vec<Vec<u8>>>,
}

impl Filter {
    pub fn takes(&self, record: &Record<'_>) -> bool {
        let within = |bounds: Option<(i64, i64)>, value| bounds.is_none_or(|(low, high)| low <= value && value <= high);
        within(self.queue_offsets, record.queue_offset())
            && within(self.store_times_ms, record.store_timestamp())
            && self
                .queues
                .as_ref()
                .is_none_or(|queues| queues.contains(&record.queue_id()))
            && self
                .topics
                .as_ref()
                .is_none_or(|topics| topics.iter().any(|topic| topic == record.topic()))
            && self.keys.as_ref().is_none_or(|keys| has_key(record, keys))
    }
}

fn has_key(record: &Record<'_>, keys: &[Vec<u8>]) -> bool {
    let known = Known::find(record.properties());
    keys.iter().any(|key| key == known.unique_key) || known.each_key().any(|has| keys.iter().any(|key| key == has))
}
