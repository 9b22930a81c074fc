//! Records as columns of Arrow arrays. Only the requested fields of each record are decoded.
//!
//! A column takes one value of many records after the other, and then the next column its own: a short loop for each is
//! several times as fast as all columns for each record. Texts in Arrow are UTF-8; invalid bytes become U+FFFD, as in
//! Java's decoder.

use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, Int32Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema};
use rustc_hash::FxHashMap;

use super::content::{Contents, Reason};
use super::memory::Numbers;
use super::properties::{Properties, Splitter};
use super::texts::{Blobs, Repeated, TextLists, TextMaps, Texts, TextsOrNull};
use crate::hash::{key_hash, key_seed};
use crate::index::hash_on;
use crate::record::{int, long, Known, Record};

/// Records that are pushed together: few enough to stay in the processor's nearest cache.
pub const CHUNK: usize = 64;

/// A column's name and what is stored for it. The names are part of the interface.
pub const NAMES: [&str; 24] = [
    "source",
    "topic",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "size",
    "message_id",
    "unique_key",
    "tags",
    "keys",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp_ms",
    "born_host",
    "store_timestamp_ms",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_bytes",
    "body",
    "content",
    "content_error",
    "index_hashes",
];

enum Column {
    Source(Repeated),
    Topic(Texts),
    QueueId(Numbers<i32>),
    QueueOffset(Numbers<i64>),
    PhysicalOffset(Numbers<i64>),
    Size(Numbers<i32>),
    MessageId(Texts),
    UniqueKey(TextsOrNull),
    Tags(TextsOrNull),
    Keys(TextLists),
    Properties(TextMaps),
    Flag(Numbers<i32>),
    SysFlag(Numbers<i32>),
    BornTimestamp(Numbers<i64>),
    BornHost(Texts, Hosts),
    StoreTimestamp(Numbers<i64>),
    StoreHost(Texts, Hosts),
    ReconsumeTimes(Numbers<i32>),
    PreparedOffset(Numbers<i64>),
    BodyBytes(Numbers<i32>),
    Body(Blobs),
    Content(BinaryBuilder),
    ContentError(StringBuilder),
    IndexHashes(ListBuilder<Int32Builder>, TopicSeed),
}

pub struct Columns {
    names: Vec<String>,
    columns: Vec<Column>,
    needs_properties: bool,
    splitter: Splitter,
    contents: Option<Contents>,
    unread: Unread,
    rows: usize,
    bytes: usize,
}

/// Records whose body could not be decompressed.
#[derive(Default)]
pub struct Unread {
    pub count: u64,
    /// (position, size of the record, reason) of the first ones.
    pub first: Vec<(u64, u64, Reason)>,
}

const MOST_UNREAD: usize = 1000;

/// A name that is not in `NAMES`.
#[derive(Debug)]
pub struct NoSuchColumn(pub String);

impl Columns {
    /// `max_content_bytes`: of a body after its decompression.
    pub fn new(names: Vec<String>, source: String, max_content_bytes: usize) -> Result<Columns, NoSuchColumn> {
        let columns = names
            .iter()
            .map(|name| Column::new(name, &source))
            .collect::<Result<Vec<_>, _>>()?;
        let of_properties = |column: &Column| {
            use Column::{IndexHashes, Keys, Properties, Tags, UniqueKey};
            matches!(
                column,
                UniqueKey(_) | Tags(_) | Keys(_) | Properties(_) | IndexHashes(..)
            )
        };
        let content = |column: &Column| matches!(column, Column::Content(_) | Column::ContentError(_));
        Ok(Columns {
            needs_properties: columns.iter().any(of_properties),
            splitter: Splitter::default(),
            contents: columns.iter().any(content).then(|| Contents::new(max_content_bytes)),
            unread: Unread::default(),
            names,
            columns,
            rows: 0,
            bytes: 0,
        })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of texts and bodies, which make up most of a batch.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn unread(&self) -> &Unread {
        &self.unread
    }

    /// How many records one call of `push` takes. Decompressed bodies can be large, so they are taken one by one.
    pub fn most_records(&self) -> usize {
        match self.contents {
            Some(_) => 1,
            None => CHUNK,
        }
    }

    /// Appends these records, with their positions.
    pub fn push(&mut self, records: &[(Record<'_>, u64)]) {
        let properties = match self.needs_properties {
            true => self
                .splitter
                .split(records.iter().map(|(record, _)| record.properties())),
            false => Properties::default(),
        };
        for column in &mut self.columns {
            self.bytes += column.push(records, &properties);
        }
        if self.contents.is_some() {
            records.iter().for_each(|(record, pos)| self.push_content(record, *pos));
        }
        self.rows += records.len();
    }

    fn push_content(&mut self, record: &Record<'_>, pos: u64) {
        let contents = self.contents.as_mut().expect("a column needs it");
        let content = contents.of(record);
        if let Err(reason) = content {
            self.unread.count += 1;
            if self.unread.first.len() < MOST_UNREAD {
                self.unread.first.push((pos, u64::from(record.size()), reason));
            }
        }
        for column in &mut self.columns {
            match column {
                Column::Content(column) => {
                    column.append_option(content.ok());
                    self.bytes += content.map_or(0, <[u8]>::len);
                }
                Column::ContentError(column) => column.append_option(content.err()),
                _ => {}
            }
        }
    }

    /// Returns the rows so far; the columns are empty again.
    pub fn finish(&mut self) -> RecordBatch {
        let rows = self.rows;
        let arrays: Vec<ArrayRef> = self.columns.iter_mut().map(|column| column.finish(rows)).collect();
        let fields: Vec<Field> = self
            .names
            .iter()
            .zip(&arrays)
            .map(|(name, array)| Field::new(name, array.data_type().clone(), may_be_null(name)))
            .collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options)
            .expect("columns of one length, and no nulls where there are none")
    }
}

fn may_be_null(name: &str) -> bool {
    matches!(name, "unique_key" | "tags" | "content" | "content_error")
}

impl Column {
    fn new(name: &str, source: &str) -> Result<Column, NoSuchColumn> {
        Ok(match name {
            "source" => Column::Source(Repeated::new(source)),
            "topic" => Column::Topic(Texts::default()),
            "queue_id" => Column::QueueId(Numbers::default()),
            "queue_offset" => Column::QueueOffset(Numbers::default()),
            "physical_offset" => Column::PhysicalOffset(Numbers::default()),
            "size" => Column::Size(Numbers::default()),
            "message_id" => Column::MessageId(Texts::default()),
            "unique_key" => Column::UniqueKey(TextsOrNull::default()),
            "tags" => Column::Tags(TextsOrNull::default()),
            "keys" => Column::Keys(TextLists::default()),
            "properties" => Column::Properties(TextMaps::default()),
            "flag" => Column::Flag(Numbers::default()),
            "sys_flag" => Column::SysFlag(Numbers::default()),
            "born_timestamp_ms" => Column::BornTimestamp(Numbers::default()),
            "born_host" => Column::BornHost(Texts::default(), Hosts::default()),
            "store_timestamp_ms" => Column::StoreTimestamp(Numbers::default()),
            "store_host" => Column::StoreHost(Texts::default(), Hosts::default()),
            "reconsume_times" => Column::ReconsumeTimes(Numbers::default()),
            "prepared_transaction_offset" => Column::PreparedOffset(Numbers::default()),
            "body_bytes" => Column::BodyBytes(Numbers::default()),
            "body" => Column::Body(Blobs::default()),
            "content" => Column::Content(BinaryBuilder::new()),
            "content_error" => Column::ContentError(StringBuilder::new()),
            "index_hashes" => {
                let item = Field::new("element", DataType::Int32, false);
                let column = ListBuilder::new(Int32Builder::new()).with_field(Arc::new(item));
                Column::IndexHashes(column, TopicSeed::default())
            }
            _ => return Err(NoSuchColumn(name.to_owned())),
        })
    }

    /// Returns the bytes that texts or bodies took.
    fn push(&mut self, records: &[(Record<'_>, u64)], properties: &Properties<'_>) -> usize {
        let each = || records.iter().map(|(record, _)| record);
        match self {
            Column::Source(_) => {}
            Column::Topic(column) => return column.extend(each().map(Record::topic)),
            Column::QueueId(column) => column.extend(each().map(Record::queue_id)),
            Column::QueueOffset(column) => column.extend(each().map(Record::queue_offset)),
            Column::PhysicalOffset(column) => column.extend(records.iter().map(|(_, pos)| *pos as i64)),
            Column::Size(column) => column.extend(each().map(|record| record.size() as i32)),
            Column::MessageId(column) => records
                .iter()
                .for_each(|(record, pos)| message_id(column, record.store_host(), *pos)),
            Column::UniqueKey(column) => return column.extend(properties.known().map(|known| known.unique_key)),
            Column::Tags(column) => return column.extend(properties.known().map(|known| known.tags)),
            Column::Keys(column) => return keys(column, properties),
            Column::IndexHashes(column, seed) => {
                for (record, known) in each().zip(properties.known()) {
                    index_hashes(column, seed.of(record.topic()), record, known);
                }
            }
            Column::Properties(column) => {
                properties.write(column);
                return properties.bytes();
            }
            Column::Flag(column) => column.extend(each().map(|record| int(record.bytes(), 16))),
            Column::SysFlag(column) => column.extend(each().map(Record::sys_flag)),
            Column::BornTimestamp(column) => column.extend(each().map(|record| long(record.bytes(), 40))),
            Column::BornHost(column, hosts) => {
                each().for_each(|record| column.push_str(hosts.text(record.born_host())));
            }
            Column::StoreTimestamp(column) => column.extend(each().map(Record::store_timestamp)),
            Column::StoreHost(column, hosts) => {
                each().for_each(|record| column.push_str(hosts.text(record.store_host())));
            }
            Column::ReconsumeTimes(column) => column.extend(each().map(Record::reconsume_times)),
            Column::PreparedOffset(column) => column.extend(each().map(Record::prepared_transaction_offset)),
            Column::BodyBytes(column) => column.extend(each().map(|record| record.body_bytes() as i32)),
            Column::Body(column) => return column.extend(each().map(Record::body)),
            Column::Content(_) | Column::ContentError(_) => {} // `push_content`
        }
        0
    }

    fn finish(&mut self, rows: usize) -> ArrayRef {
        match self {
            Column::Source(column) => column.array(rows),
            Column::QueueId(column)
            | Column::Size(column)
            | Column::Flag(column)
            | Column::SysFlag(column)
            | Column::ReconsumeTimes(column)
            | Column::BodyBytes(column) => Arc::new(Int32Array::new(column.finish(), None)),
            Column::QueueOffset(column)
            | Column::PhysicalOffset(column)
            | Column::BornTimestamp(column)
            | Column::StoreTimestamp(column)
            | Column::PreparedOffset(column) => Arc::new(Int64Array::new(column.finish(), None)),
            Column::Topic(column)
            | Column::MessageId(column)
            | Column::BornHost(column, _)
            | Column::StoreHost(column, _) => column.finish(),
            Column::UniqueKey(column) | Column::Tags(column) => column.finish(),
            Column::Keys(column) => column.finish(),
            Column::IndexHashes(column, _) => ArrayBuilder::finish(column),
            Column::Properties(column) => column.finish(),
            Column::Body(column) => column.finish(),
            Column::Content(column) => ArrayBuilder::finish(column),
            Column::ContentError(column) => ArrayBuilder::finish(column),
        }
    }
}

/// The `key_seed` of the last topic: neighbouring records have few topics.
#[derive(Default)]
struct TopicSeed {
    topic: Option<Vec<u8>>,
    seed: i32,
}

impl TopicSeed {
    fn of(&mut self, topic: &[u8]) -> i32 {
        if self.topic.as_deref() != Some(topic) {
            self.topic = Some(topic.to_vec());
            self.seed = key_seed(topic);
        }
        self.seed
    }
}

fn keys(column: &mut TextLists, properties: &Properties<'_>) -> usize {
    let mut bytes = 0;
    for known in properties.known() {
        known.each_key().for_each(|key| column.texts.push(key));
        column.end();
        bytes += known.keys.len();
    }
    bytes
}

fn index_hashes(column: &mut ListBuilder<Int32Builder>, seed: i32, record: &Record<'_>, known: &Known<'_>) {
    if record.is_indexed() {
        for key in known.each_indexed() {
            column.values().append_value(key_hash(hash_on(seed, key)));
        }
    }
    column.append(true);
}

/// Store host and position, as upper-case hex.
fn message_id(column: &mut Texts, store_host: &[u8], pos: u64) {
    let mut id = [[0u8; 8]; 7];
    let words = store_host.chunks_exact(4).map(|word| int(word, 0) as u32);
    let words = words.chain([(pos >> 32) as u32, pos as u32]);
    let mut used = 0;
    for (digits, word) in id.iter_mut().zip(words) {
        *digits = hex(word);
        used += digits.len();
    }
    column.push(&id.as_flattened()[..used]);
}

/// The eight digits of `word`: calculated together, each in its own byte.
fn hex(word: u32) -> [u8; 8] {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let word = u64::from(word);
    let word = (word << 16 | word) & 0x0000_FFFF_0000_FFFF;
    let word = (word << 8 | word) & 0x00FF_00FF_00FF_00FF;
    let digits = (word << 4 | word) & 0x0F0F_0F0F_0F0F_0F0F;
    let letters = (digits + 6 * EACH) >> 4 & EACH;
    (digits + u64::from(b'0') * EACH + letters * u64::from(b'A' - b'0' - 10)).to_be_bytes()
}

/// Texts of the hosts seen so far: a log has few, and formatting one costs more than the rest of a row.
#[derive(Default)]
struct Hosts {
    v4: FxHashMap<u64, Box<str>>,
    v6: FxHashMap<[u8; 20], Box<str>>,
}

const MOST_HOSTS: usize = 65_536;

impl Hosts {
    fn text(&mut self, host: &[u8]) -> &str {
        if self.v4.len() + self.v6.len() >= MOST_HOSTS {
            *self = Hosts::default();
        }
        match <[u8; 8]>::try_from(host) {
            Ok(host) => {
                let number = u64::from_le_bytes(host);
                self.v4.entry(number).or_insert_with(|| host_text(&host).into())
            }
            Err(_) => {
                let host = <[u8; 20]>::try_from(host).expect("a host has 8 or 20 bytes");
                self.v6.entry(host).or_insert_with(|| host_text(&host).into())
            }
        }
    }
}

unsafe extern "C" {
    /// Part of the C library, which is linked anyway; the crate `libc` does not declare it.
    fn inet_ntop(
        family: libc::c_int,
        address: *const libc::c_void,
        text: *mut libc::c_char,
        bytes: libc::socklen_t,
    ) -> *const libc::c_char;
}

/// `address:port`, an IPv6 address in brackets, as the system's `inet_ntop` writes it.
pub fn host_text(host: &[u8]) -> String {
    let (address, port) = host.split_at(host.len() - 4);
    let port = u32::from_be_bytes(port.try_into().expect("four bytes"));
    if let [a, b, c, d] = address {
        return format!("{a}.{b}.{c}.{d}:{port}");
    }
    let mut text = [0u8; 64];
    // SAFETY: `address` has the 16 bytes that AF_INET6 requires, `text` has room for any address and its final zero.
    let done = unsafe {
        inet_ntop(
            libc::AF_INET6,
            address.as_ptr().cast(),
            text.as_mut_ptr().cast(),
            text.len() as libc::socklen_t,
        )
    };
    assert!(!done.is_null(), "a text of 46 bytes fits");
    let length = text.iter().position(|&byte| byte == 0).expect("it ends with a zero");
    format!("[{}]:{port}", String::from_utf8_lossy(&text[..length]))
}
