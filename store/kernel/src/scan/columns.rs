//! Records as columns of Arrow arrays. Only the requested fields of each record are decoded.
//!
//! Texts in Arrow are UTF-8; invalid bytes become U+FFFD, as in Java's decoder. Properties are split as in Java: a pair
//! counts if it has a name and one value; if a name occurs twice, the last value counts.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{ArrayBuilder, BinaryBuilder, Int32Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, Schema};
use rustc_hash::FxHashMap;

use super::content::{Contents, Reason};
use super::texts::{repeated, Blobs, TextLists, TextMaps, Texts, TextsOrNull};
use crate::hash::{key_hash, key_seed};
use crate::index::hash_on;
use crate::record::{int, long, Known, Record};

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
    Source,
    Topic(Texts),
    QueueId(Vec<i32>),
    QueueOffset(Vec<i64>),
    PhysicalOffset(Vec<i64>),
    Size(Vec<i32>),
    MessageId(Texts),
    UniqueKey(TextsOrNull),
    Tags(TextsOrNull),
    Keys(TextLists),
    Properties(TextMaps),
    Flag(Vec<i32>),
    SysFlag(Vec<i32>),
    BornTimestamp(Vec<i64>),
    BornHost(Texts, Hosts),
    StoreTimestamp(Vec<i64>),
    StoreHost(Texts, Hosts),
    ReconsumeTimes(Vec<i32>),
    PreparedOffset(Vec<i64>),
    BodyBytes(Vec<i32>),
    Body(Blobs),
    Content(BinaryBuilder),
    ContentError(StringBuilder),
    IndexHashes(ListBuilder<Int32Builder>, TopicSeed),
}

pub struct Columns {
    names: Vec<String>,
    columns: Vec<Column>,
    source: String,
    needs_known: bool,
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
            .map(|name| Column::new(name))
            .collect::<Result<Vec<_>, _>>()?;
        let known = |column: &Column| {
            use Column::{IndexHashes, Keys, Tags, UniqueKey};
            matches!(column, UniqueKey(_) | Tags(_) | Keys(_) | IndexHashes(..))
        };
        let content = |column: &Column| matches!(column, Column::Content(_) | Column::ContentError(_));
        Ok(Columns {
            needs_known: columns.iter().any(known),
            contents: columns.iter().any(content).then(|| Contents::new(max_content_bytes)),
            unread: Unread::default(),
            names,
            columns,
            source,
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

    pub fn push(&mut self, record: &Record<'_>, pos: u64) {
        let bytes = record.bytes();
        let known = if self.needs_known {
            Known::find(record.properties())
        } else {
            Known::default()
        };
        let content = match &mut self.contents {
            Some(contents) => contents.of(record),
            None => Ok(&[][..]),
        };
        if let Err(reason) = content {
            self.unread.count += 1;
            if self.unread.first.len() < MOST_UNREAD {
                self.unread.first.push((pos, u64::from(record.size()), reason));
            }
        }
        for column in &mut self.columns {
            self.bytes += match column {
                Column::Content(column) => content_or_null(column, content),
                Column::ContentError(column) => {
                    column.append_option(content.err());
                    0
                }
                _ => column.push(record, bytes, pos, &known),
            };
        }
        self.rows += 1;
    }

    /// Returns the rows so far; the columns are empty again.
    pub fn finish(&mut self) -> RecordBatch {
        let (rows, source) = (self.rows, &self.source);
        let columns = self.columns.iter_mut();
        let arrays: Vec<ArrayRef> = columns.map(|column| column.finish(rows, source)).collect();
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
    fn new(name: &str) -> Result<Column, NoSuchColumn> {
        Ok(match name {
            "source" => Column::Source,
            "topic" => Column::Topic(Texts::default()),
            "queue_id" => Column::QueueId(vec![]),
            "queue_offset" => Column::QueueOffset(vec![]),
            "physical_offset" => Column::PhysicalOffset(vec![]),
            "size" => Column::Size(vec![]),
            "message_id" => Column::MessageId(Texts::default()),
            "unique_key" => Column::UniqueKey(TextsOrNull::default()),
            "tags" => Column::Tags(TextsOrNull::default()),
            "keys" => Column::Keys(TextLists::default()),
            "properties" => Column::Properties(TextMaps::default()),
            "flag" => Column::Flag(vec![]),
            "sys_flag" => Column::SysFlag(vec![]),
            "born_timestamp_ms" => Column::BornTimestamp(vec![]),
            "born_host" => Column::BornHost(Texts::default(), Hosts::default()),
            "store_timestamp_ms" => Column::StoreTimestamp(vec![]),
            "store_host" => Column::StoreHost(Texts::default(), Hosts::default()),
            "reconsume_times" => Column::ReconsumeTimes(vec![]),
            "prepared_transaction_offset" => Column::PreparedOffset(vec![]),
            "body_bytes" => Column::BodyBytes(vec![]),
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

    /// Returns the bytes that a text or body took.
    #[inline]
    fn push(&mut self, record: &Record<'_>, bytes: &[u8], pos: u64, known: &Known<'_>) -> usize {
        match self {
            Column::Source => {}
            Column::Topic(column) => {
                column.push(record.topic());
                return record.topic().len();
            }
            Column::QueueId(column) => column.push(record.queue_id()),
            Column::QueueOffset(column) => column.push(record.queue_offset()),
            Column::PhysicalOffset(column) => column.push(pos as i64),
            Column::Size(column) => column.push(record.size() as i32),
            Column::MessageId(column) => message_id(column, record.store_host(), pos),
            Column::UniqueKey(column) => {
                column.push(known.unique_key);
                return known.unique_key.len();
            }
            Column::Tags(column) => {
                column.push(known.tags);
                return known.tags.len();
            }
            Column::Keys(column) => {
                for key in known.each_key() {
                    column.texts.push(key);
                }
                column.end();
                return known.keys.len();
            }
            Column::IndexHashes(column, seed) => {
                if record.is_indexed() {
                    let seed = seed.of(record.topic());
                    for key in known.each_indexed() {
                        column.values().append_value(key_hash(hash_on(seed, key)));
                    }
                }
                column.append(true);
            }
            Column::Properties(column) => {
                properties(column, record.properties());
                return record.properties().len();
            }
            Column::Flag(column) => column.push(int(bytes, 16)),
            Column::SysFlag(column) => column.push(record.sys_flag()),
            Column::BornTimestamp(column) => column.push(long(bytes, 40)),
            Column::BornHost(column, hosts) => column.push_str(hosts.text(record.born_host())),
            Column::StoreTimestamp(column) => column.push(record.store_timestamp()),
            Column::StoreHost(column, hosts) => column.push_str(hosts.text(record.store_host())),
            Column::ReconsumeTimes(column) => column.push(record.reconsume_times()),
            Column::PreparedOffset(column) => column.push(record.prepared_transaction_offset()),
            Column::BodyBytes(column) => column.push(record.body_bytes() as i32),
            Column::Body(column) => {
                column.push(record.body());
                return record.body_bytes() as usize;
            }
            Column::Content(_) | Column::ContentError(_) => unreachable!("they need the decompressed body"),
        }
        0
    }

    fn finish(&mut self, rows: usize, source: &str) -> ArrayRef {
        match self {
            Column::Source => repeated(source, rows),
            Column::QueueId(column)
            | Column::Size(column)
            | Column::Flag(column)
            | Column::SysFlag(column)
            | Column::ReconsumeTimes(column)
            | Column::BodyBytes(column) => Arc::new(Int32Array::from(emptied(column))),
            Column::QueueOffset(column)
            | Column::PhysicalOffset(column)
            | Column::BornTimestamp(column)
            | Column::StoreTimestamp(column)
            | Column::PreparedOffset(column) => Arc::new(Int64Array::from(emptied(column))),
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

/// Returns the values, and reserves as much room again: the next batch is about as large.
fn emptied<T>(column: &mut Vec<T>) -> Vec<T> {
    let room = Vec::with_capacity(column.len());
    std::mem::replace(column, room)
}

fn readable(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn content_or_null(column: &mut BinaryBuilder, content: Result<&[u8], Reason>) -> usize {
    column.append_option(content.ok());
    content.map_or(0, <[u8]>::len)
}

/// More pairs than this are searched by hash: 32 KiB of one-letter names would take seconds otherwise.
const FEW_PAIRS: usize = 24;

fn properties(column: &mut TextMaps, bytes: &[u8]) {
    // Nearly all properties are UTF-8 and few: checked in one pass, and kept on the stack.
    if !few_properties(column, bytes) {
        many_properties(column, bytes);
    }
    column.end();
}

fn few_properties(column: &mut TextMaps, bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let mut found = [("", ""); FEW_PAIRS];
    let mut count = 0;
    let mut begin = 0;
    while begin < text.len() {
        let pair = &text[begin..];
        let pair = &pair[..memchr::memchr(2, pair.as_bytes()).unwrap_or(pair.len())];
        begin += pair.len() + 1;
        let Some(name_bytes) = memchr::memchr(1, pair.as_bytes()) else {
            continue;
        };
        let (name, mut value) = (&pair[..name_bytes], &pair[name_bytes + 1..]);
        if memchr::memchr(1, value.as_bytes()).is_some() {
            value = value.trim_end_matches('\x01');
            if value.contains('\x01') {
                continue;
            }
        }
        if name.is_empty() || value.is_empty() {
            continue;
        }
        match found[..count].iter_mut().find(|known| known.0 == name) {
            Some(known) => known.1 = value,
            None if count == FEW_PAIRS => return false,
            None => {
                found[count] = (name, value);
                count += 1;
            }
        }
    }
    for (name, value) in &found[..count] {
        column.push(name, value);
    }
    true
}

fn many_properties(column: &mut TextMaps, bytes: &[u8]) {
    // Names after decoding: two that differ only in invalid bytes are equal.
    let mut found: Vec<(Cow<'_, str>, Cow<'_, str>)> = vec![];
    let mut places: FxHashMap<Cow<'_, str>, usize> = FxHashMap::default();
    for (name, value) in crate::record::pairs(bytes) {
        let name = readable(name);
        match places.get(&name) {
            Some(&place) => found[place].1 = readable(value),
            None => {
                places.insert(name.clone(), found.len());
                found.push((name, readable(value)));
            }
        }
    }
    for (name, value) in found {
        column.push(&name, &value);
    }
}

/// Store host and position, as upper-case hex.
fn message_id(column: &mut Texts, store_host: &[u8], pos: u64) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut id = [0u8; 56];
    let mut at = 0;
    for &byte in store_host.iter().chain(&pos.to_be_bytes()) {
        id[at] = DIGITS[usize::from(byte >> 4)];
        id[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    column.push(&id[..at]);
}

/// Texts of the hosts seen so far: a log has few, and formatting one costs more than the rest of a row.
#[derive(Default)]
struct Hosts {
    v4: FxHashMap<[u8; 8], Box<str>>,
    v6: FxHashMap<[u8; 20], Box<str>>,
}

const MOST_HOSTS: usize = 65_536;

impl Hosts {
    fn text(&mut self, host: &[u8]) -> &str {
        if self.v4.len() + self.v6.len() >= MOST_HOSTS {
            *self = Hosts::default();
        }
        match <[u8; 8]>::try_from(host) {
            Ok(host) => self.v4.entry(host).or_insert_with(|| host_text(&host).into()),
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
