//! Checks that ConsumeQueues have the units that records require.

use std::path::PathBuf;

use super::{Core, Dispatch};
use crate::ext::{is_address, place_of, ExtUnit, ExtWindow};
use crate::fault::{Fault, Outcome};
use crate::index::Header;
use crate::queue::{PendingExt, Queues, Unit, UNIT};
use crate::record::{is_schedule_topic, Known, Record, UNREADABLE};

/// The unit that a record requires.
pub struct Expected {
    topic: Box<[u8]>,
    queue: i32,
    offset: i64,
    unit: Unit,
    ext: ExpectedExt,
}

/// What the extension of a record's unit must have.
pub struct ExpectedExt {
    pub store_timestamp: i64,
    /// Of the record, if its topic has filters.
    pub properties: Option<Box<[u8]>>,
}

/// Topic, queue, queue offset, and how the queue's unit differs.
pub type Differs = (Vec<u8>, i32, i64, String);

/// Units read under one hold of the lock.
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
            ext: core.expected_ext(record),
        })
    }

    /// The records whose queue has another unit, no unit, or a unit with a damaged extension. Queues are read in turns,
    /// so a reader waits for one run at most. `ext`: the extensions are read as well.
    pub fn differing(&self, mut expected: Vec<Expected>, ext: &mut ExtWindow) -> Outcome<Vec<Differs>> {
        expected.sort_by(|a, b| (&a.topic, a.queue, a.offset).cmp(&(&b.topic, b.queue, b.offset)));
        let mut found = vec![];
        let follows = |a: &Expected, b: &Expected| (&a.topic, a.queue, a.offset + 1) == (&b.topic, b.queue, b.offset);
        for run in expected.chunk_by(follows).flat_map(|run| run.chunks(RUN)) {
            let looks = compare(self.core(), run, &mut found)?;
            let mut differs = |expected: &Expected, reason| {
                found.push((expected.topic.to_vec(), expected.queue, expected.offset, reason));
            };
            let mut mapped = vec![];
            for (expected, address) in looks.extended {
                match ext_flaw(ext, expected, address)? {
                    Ok(unit) if expected.ext.properties.is_some() => mapped.push((expected, unit)),
                    Ok(_) => {}
                    Err(reason) => differs(expected, reason),
                }
            }
            for expected in lacking_bits(self.core(), &mapped) {
                let pos = expected.unit.pos;
                differs(
                    expected,
                    format!("names an extension unit that lacks bits of filters that the record at {pos} passes"),
                );
            }
            for (expected, unit) in looks.later {
                let Expected {
                    topic, queue, offset, ..
                } = expected;
                if self.core().shift_of(topic, *queue, *offset, &unit)?.is_none() {
                    let (pos, wanted) = (unit.pos, expected.unit.pos);
                    let reason =
                        format!("names byte {pos} of the log, where no record of this place is, instead of {wanted}");
                    differs(expected, reason);
                }
            }
        }
        found.truncate(MOST);
        Ok(found)
    }

    /// The index files, oldest first, and the number of slots and entries of each.
    pub fn index_geometry(&self) -> (Vec<(String, Header)>, u32, u32) {
        let core = self.core();
        let index = core.wait_for(&core.index);
        let headers = index.headers().map(|(name, header)| (name.to_owned(), *header));
        (headers.collect(), index.geometry().0, index.geometry().1)
    }

    /// Folder of the log, and bytes of a segment.
    pub fn log_place(&self) -> (PathBuf, u64) {
        (self.core().log_folder.clone(), self.core().log.segment_bytes())
    }

    pub fn ext_folder(&self) -> PathBuf {
        self.core().root.join("consumequeue_ext")
    }
}

impl Core {
    pub(super) fn expected_ext(&self, record: &Record<'_>) -> ExpectedExt {
        let has_filters = self.bit_maps.has_filters(record.topic());
        ExpectedExt {
            store_timestamp: record.store_timestamp(),
            properties: has_filters.then(|| record.properties().into()),
        }
    }
}

fn lacking_bits<'a>(core: &Core, units: &[(&'a Expected, ExtUnit)]) -> Vec<&'a Expected> {
    let properties = |expected: &'a Expected| expected.ext.properties.as_deref().unwrap_or_default();
    let record = |(expected, _): &(&'a Expected, ExtUnit)| {
        let expected: &'a Expected = expected;
        (&*expected.topic, properties(expected), expected.unit.pos as u64)
    };
    let records: Vec<_> = units.iter().map(record).collect();
    let maps: Vec<_> = units.iter().map(|(_, unit)| unit.bit_map.as_slice()).collect();
    let holds = core.bit_maps.hold_bits(&records, &maps);
    let lacks = units.iter().zip(holds).filter(|(_, holds)| !holds);
    lacks.map(|((expected, _), _)| *expected).collect()
}

/// The extension unit that a record's unit points to, or what is wrong with it.
fn ext_flaw(ext: &mut ExtWindow, expected: &Expected, address: i64) -> Outcome<Result<ExtUnit, String>> {
    let place = place_of(address);
    let Some(unit) = ext.unit(&expected.topic, expected.queue, place)? else {
        return Ok(Err(format!(
            "names byte {place} of the extension, where no sound unit begins"
        )));
    };
    let (time, store_timestamp) = (unit.store_timestamp, expected.ext.store_timestamp);
    if time != store_timestamp {
        let pos = expected.unit.pos;
        return Ok(Err(format!(
            "names an extension unit with store time {time} at byte {place}, the record at {pos} has {store_timestamp}"
        )));
    }
    let (code, wanted) = (unit.tags_code, expected.unit.tags_code);
    // The meaning of a delay level is a setting.
    let differs = code != wanted && !is_schedule_topic(&expected.topic);
    let pos = expected.unit.pos;
    Ok(match differs {
        false => Ok(unit),
        true => Err(format!(
            "names an extension unit with tags code {code} at byte {place}, the record at {pos} has {wanted}"
        )),
    })
}

/// Comparisons that cannot be finished while the queues are locked.
#[derive(Default)]
struct Looks<'a> {
    /// Units that point to a file of the extension, with the address.
    extended: Vec<(&'a Expected, i64)>,
    /// Units that point after the record: they belong to a later topic of the same name, or are wrong.
    later: Vec<(&'a Expected, Unit)>,
}

fn compare<'a>(core: &Core, run: &'a [Expected], found: &mut Vec<Differs>) -> Outcome<Looks<'a>> {
    let mut looks = Looks::default();
    let (first, dispatched) = (&run[0], core.position.load(std::sync::atomic::Ordering::Acquire));
    let mut queues = core.wait_for(&core.queues);
    let Some(q) = queues.find(&first.topic, first.queue) else {
        return Ok(looks);
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
            // A topic that was removed and created again has fewer messages, all of them later.
            if extent.max_physic > expected.unit.pos {
                continue;
            }
            differs(format!("lacks the unit of the record at {}", expected.unit.pos));
            continue;
        }
        match unit_at(&mut queues, q, expected.offset) {
            Ok(Some(unit)) if unit.pos > expected.unit.pos => looks.later.push((expected, unit)),
            Ok(Some(unit)) if (unit.pos, unit.size) != (expected.unit.pos, expected.unit.size) => differs(format!(
                "names {} bytes at {} of the log instead of {} at {}",
                unit.size, unit.pos, expected.unit.size, expected.unit.pos
            )),
            Ok(Some(unit))
                if !is_address(unit.tags_code)
                    && unit.tags_code != expected.unit.tags_code
                    && !is_schedule_topic(&expected.topic) =>
            {
                differs(format!(
                    "has tags code {}, the record at {} has {}",
                    unit.tags_code, expected.unit.pos, expected.unit.tags_code
                ));
            }
            Ok(Some(unit)) if is_address(unit.tags_code) => {
                if let PendingExt::Written(_) = queues.pending_ext(&first.topic, first.queue, unit.tags_code) {
                    looks.extended.push((expected, unit.tags_code));
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => differs("has no file for the unit".to_owned()),
            Err(Fault::Io { error, .. }) => differs(format!("{UNREADABLE}: {error}")),
            Err(Fault::Damage { reason, .. }) => differs(reason),
        }
    }
    Ok(looks)
}

fn unit_at(queues: &mut Queues, q: u32, offset: i64) -> Outcome<Option<Unit>> {
    let bytes = queues.read(q, offset as u64 * UNIT, UNIT)?;
    Ok(bytes
        .filter(|bytes| bytes.len() == UNIT as usize)
        .map(|bytes| Unit::decode(&bytes)))
}
