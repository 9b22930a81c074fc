//! Sums over many messages: counts and bytes by topic, queue, tag and hour; sizes; producers.
//!
//! Records are counted in place: no rows are built, so counting costs about as much as reading.

use std::hash::Hash;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use rustc_hash::FxHashMap;

use super::columns::host_text;
use crate::record::{Known, Record};

const HOUR_MS: i64 = 3_600_000;
/// The width of a bucket of sizes is this part of a doubling.
const BUCKETS_A_DOUBLING: f64 = 16.0;

#[derive(Default)]
pub struct Sums {
    topics: Names,
    tags: Names,
    addresses: Names,
    groups: Table<Group, Total>,
    sizes: Table<(u32, u32), i64>,
    producers: Table<(u32, u32), i64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Group {
    topic: u32,
    tags: u32,
    queue_id: i32,
    hour: i64,
}

#[derive(Default)]
struct Total {
    messages: i64,
    bytes: i64,
    body_bytes: i64,
}

impl Sums {
    pub fn add(&mut self, record: &Record<'_>) {
        let topic = self.topics.number(record.topic());
        let group = Group {
            topic,
            tags: self.tags.number(Known::find(record.properties()).tags),
            queue_id: record.queue_id(),
            hour: record.store_timestamp() / HOUR_MS,
        };
        let total = self.groups.at(group);
        total.messages += 1;
        total.bytes += record.size() as i64;
        total.body_bytes += record.body_bytes() as i64;
        let bucket = ((record.size() as f64).log2() * BUCKETS_A_DOUBLING) as u32;
        *self.sizes.at((topic, bucket)) += 1;
        let host = record.born_host();
        let address = self.addresses.number(&host[..host.len() - PORT_BYTES]);
        *self.producers.at((topic, address)) += 1;
    }

    /// (groups, sizes, producers), each in the order in which its rows first occurred.
    pub fn tables(&self) -> [RecordBatch; 3] {
        let Sums { topics, tags, .. } = self;
        let groups = || self.groups.rows.iter();
        let addresses = Names::read(&self.addresses.names, address_text);
        let (topics, tags) = (Names::read(&topics.names, text), Names::read(&tags.names, text));
        [
            table([
                ("topic", texts(groups().map(|(group, _)| &topics[group.topic as usize]))),
                (
                    "queue_id",
                    Arc::new(Int32Array::from_iter_values(groups().map(|(group, _)| group.queue_id))),
                ),
                ("tags", texts(groups().map(|(group, _)| &tags[group.tags as usize]))),
                ("hour_ms", numbers(groups().map(|(group, _)| group.hour * HOUR_MS))),
                ("messages", numbers(groups().map(|(_, total)| total.messages))),
                ("bytes", numbers(groups().map(|(_, total)| total.bytes))),
                ("body_bytes", numbers(groups().map(|(_, total)| total.body_bytes))),
            ]),
            table([
                (
                    "topic",
                    texts(self.sizes.rows.iter().map(|((topic, _), _)| &topics[*topic as usize])),
                ),
                (
                    "bucket",
                    numbers(self.sizes.rows.iter().map(|((_, bucket), _)| i64::from(*bucket))),
                ),
                (
                    "messages",
                    numbers(self.sizes.rows.iter().map(|(_, messages)| *messages)),
                ),
            ]),
            table([
                (
                    "topic",
                    texts(
                        self.producers
                            .rows
                            .iter()
                            .map(|((topic, _), _)| &topics[*topic as usize]),
                    ),
                ),
                (
                    "address",
                    texts(
                        self.producers
                            .rows
                            .iter()
                            .map(|((_, address), _)| &addresses[*address as usize]),
                    ),
                ),
                (
                    "messages",
                    numbers(self.producers.rows.iter().map(|(_, messages)| *messages)),
                ),
            ]),
        ]
    }
}

const PORT_BYTES: usize = 4;

/// The host's text without its port: the port belongs to a connection, not to a producer.
fn address_text(address: &[u8]) -> String {
    let mut text = host_text(&[address, &[0; PORT_BYTES]].concat());
    text.truncate(text.len() - ":0".len());
    text
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn texts<'a>(values: impl Iterator<Item = &'a String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn numbers(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn table<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, false)))
        .expect("columns of one length, and no nulls")
}

/// Values by key, in the order in which the keys first occurred.
struct Table<K, V> {
    places: FxHashMap<K, usize>,
    rows: Vec<(K, V)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table {
            places: FxHashMap::default(),
            rows: vec![],
        }
    }
}

impl<K: Copy + Eq + Hash, V: Default> Table<K, V> {
    fn at(&mut self, key: K) -> &mut V {
        let rows = &mut self.rows;
        let place = *self.places.entry(key).or_insert_with(|| {
            rows.push((key, V::default()));
            rows.len() - 1
        });
        &mut self.rows[place].1
    }
}

/// Byte strings and their numbers: a name is hashed as bytes once, then it is a number.
#[derive(Default)]
struct Names {
    numbers: FxHashMap<Box<[u8]>, u32>,
    names: Vec<Box<[u8]>>,
}

impl Names {
    fn number(&mut self, name: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.into(), number);
        self.names.push(name.into());
        number
    }

    fn read(names: &[Box<[u8]>], read: fn(&[u8]) -> String) -> Vec<String> {
        names.iter().map(|name| read(name)).collect()
    }
}
