//! Whether ConsumeQueues have the units that records ask for.

use super::{Core, Dispatch};
use crate::fault::{Fault, Outcome};
use crate::queue::{Queues, Unit, UNIT};
use crate::record::{is_schedule_topic, Known, Record, UNREADABLE};

/// The unit that a record asks for.
pub struct Expected {
    topic: Box<[u8]>,
    queue: i32,
    offset: i64,
    unit: Unit,
}

/// Topic, queue, queue offset, and how the queue's unit differs.
pub type Differs = (Vec<u8>, i32, i64, String);

/// Units looked at under one hold of the lock.
const RUN: usize = 64;
const MOST: usize = 1000;

impl Dispatch {
    pub fn expected(&self, record: &Record<'_>, pos: u64) -> Option<Expected> {
        let core = self.core();
        if !record.is_queued() || record.queue_id() < 0 || record.queue_offset() < 0 {
            return None;
        }
        let known = Known::find(record.properties());
        let schedule = is_schedule_topic(record.topic());
        let tags_code = core.delays.tags_code(schedule, &known, record.store_timestamp());
        Some(Expected {
            topic: record.topic().into(),
            queue: record.queue_id(),
            offset: record.queue_offset(),
            unit: Unit {
                pos: pos as i64,
                size: record.size() as i32,
                tags_code,
            },
        })
    }

    /// Those whose queue has another unit, or none. Queues are looked at in turns; a reader waits for one run at most.
    pub fn differing(&self, mut expected: Vec<Expected>) -> Outcome<Vec<Differs>> {
        expected.sort_by(|a, b| (&a.topic, a.queue, a.offset).cmp(&(&b.topic, b.queue, b.offset)));
        let mut found = vec![];
        let follows = |a: &Expected, b: &Expected| (&a.topic, a.queue, a.offset + 1) == (&b.topic, b.queue, b.offset);
        for run in expected.chunk_by(follows).flat_map(|run| run.chunks(RUN)) {
            compare(self.core(), run, &mut found)?;
        }
        found.truncate(MOST);
        Ok(found)
    }
}

fn compare(core: &Core, run: &[Expected], found: &mut Vec<Differs>) -> Outcome<()> {
    let (first, dispatched) = (&run[0], core.position.load(std::sync::atomic::Ordering::Acquire));
    let mut queues = core.wait_for(&core.queues);
    let Some(q) = queues.find(&first.topic, first.queue) else {
        return Ok(());
    };
    let extent = queues.extent(q);
    for expected in run {
        let mut differs = |reason: String| {
            found.push((expected.topic.to_vec(), expected.queue, expected.offset, reason));
        };
        if expected.offset < extent.min_offset || expected.unit.pos as u64 >= dispatched {
            continue;
        }
        if expected.offset >= extent.max_offset {
            // A topic that was removed and made again has fewer messages, all of them later.
            if extent.max_physic > expected.unit.pos {
                continue;
            }
            differs(format!("lacks the unit of the record at {}", expected.unit.pos));
            continue;
        }
        match unit_at(&mut queues, q, expected.offset) {
            Ok(Some(unit)) if unit.pos > expected.unit.pos => {} // of a later life of the topic
            Ok(Some(unit)) if (unit.pos, unit.size) != (expected.unit.pos, expected.unit.size) => differs(format!(
                "names {} bytes at {} of the log instead of {} at {}",
                unit.size, unit.pos, expected.unit.size, expected.unit.pos
            )),
            Ok(Some(unit))
                if unit.tags_code > i64::from(i32::MIN) - 1
                    && unit.tags_code != expected.unit.tags_code
                    && !is_schedule_topic(&expected.topic) =>
            {
                differs(format!(
                    "has tags code {}, the record at {} has {}",
                    unit.tags_code, expected.unit.pos, expected.unit.tags_code
                ));
            }
            Ok(Some(_)) => {}
            Ok(None) => differs("has no file for the unit".to_owned()),
            Err(Fault::Io { error, .. }) => differs(format!("{UNREADABLE}: {error}")),
            Err(Fault::Damage { reason, .. }) => differs(reason),
        }
    }
    Ok(())
}

fn unit_at(queues: &mut Queues, q: u32, offset: i64) -> Outcome<Option<Unit>> {
    let bytes = queues.read(q, offset as u64 * UNIT, UNIT)?;
    Ok(bytes
        .filter(|bytes| bytes.len() == UNIT as usize)
        .map(|bytes| Unit::decode(&bytes)))
}
