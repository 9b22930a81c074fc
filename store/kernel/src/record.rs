//! One record of the log, read in place: nothing is copied and nothing is allocated.
//!
//! ```text
//! at        size  field                        at        size  field
//!  0          4   total size                   48        8|20  born host (20: sysFlag bit 4)
//!  4          4   magic 0xDAA320A7 (or ...AB)             8   store timestamp
//!  8          4   CRC-32 of the body, 31 bits            8|20  store host (20: sysFlag bit 5)
//! 12          4   queue id                                 4   reconsume times
//! 16          4   flag                                     8   prepared transaction offset
//! 20          8   queue offset                           4+n   body
//! 28          8   physical offset                        1+n   topic (at most 127 bytes)
//! 36          4   sysFlag                                2+n   properties (at most 32767 bytes)
//! 40          8   born timestamp
//! ```
//!
//! With the magic 0xDAA320AB the topic's length has two bytes: RocketMQ 5, topics above 127 bytes.
//!
//! A file ends with a filler: the bytes left (4), the magic 0xCBD43194 (4), arbitrary bytes. In dledger's layout each
//! record lies after an entry header of 48 bytes, and the filler is -1 (4), the bytes left (4). Source: RocketMQ 4.8.0,
//! CommitLog.checkMessageAndReturnSize; dledger 0.2.2, DLedgerEntryCoder. Fixed: it is on disks.
//!
//! We are stricter than the source: a record's physical offset must be its position, and no length may be negative.

use crate::hash;

pub const RECORD_MAGIC: i32 = 0xDAA3_20A7_u32 as i32;
/// As the other, with two bytes of topic length: RocketMQ 5 writes it for topics above 127 bytes.
pub const RECORD_MAGIC_LONG_TOPIC: i32 = 0xDAA3_20AB_u32 as i32;
pub const BLANK_MAGIC: i32 = 0xCBD4_3194_u32 as i32;
pub const LEDGER_FILLER: i32 = -1;
const LEDGER_MAGIC: i32 = 1;
/// All fixed fields, both hosts IPv4, and the three length fields.
pub const SMALLEST: usize = 91;

const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";

/// For records and entries.
pub const UNREADABLE: &str = "cannot be read";

/// Why bytes are not a record. The words are part of the interface: tools and logs show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Eight zero bytes: nothing was written here, the usual end of a log.
    Unwritten,
    Magic,
    Size,
    Torn,
    Position,
    Length,
    Crc,
    Entry,
    Topic,
    QueueOffset,
    /// The disk did not return the bytes.
    Unreadable,
}

impl Bad {
    pub fn text(self) -> &'static str {
        match self {
            Bad::Unwritten => "unwritten",
            Bad::Magic => "bad magic",
            Bad::Size => "bad size",
            Bad::Torn => "goes beyond the end",
            Bad::Position => "bad physical offset",
            Bad::Length => "lengths do not add up",
            Bad::Crc => "body CRC differs",
            Bad::Entry => "bad entry header",
            Bad::Topic => "bad topic name",
            Bad::QueueOffset => "bad queue offset",
            Bad::Unreadable => UNREADABLE,
        }
    }
}

/// What lies at a place of a segment.
pub enum Item<'a> {
    /// A record at `at` (after the entry header, if there is one); the next item is `step` bytes further.
    Record { record: Record<'a>, at: usize, step: usize },
    /// A ledger entry without a body.
    Empty { step: usize },
    /// The segment ends here.
    Filler,
    /// No sound record. `step`: where the next one would be if the size field is right.
    Bad { bad: Bad, step: Option<usize> },
}

/// A record with checked lengths: every field lies within `bytes`, which is exactly the record.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    bytes: &'a [u8],
    store_timestamp_at: u16,
    body_at: u16,
    body_len: u32,
    topic_at: u32,
    topic_len: u16,
}

pub fn is_record_magic(magic: i32) -> bool {
    magic == RECORD_MAGIC || magic == RECORD_MAGIC_LONG_TOPIC
}

pub fn int(bytes: &[u8], at: usize) -> i32 {
    i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn long(bytes: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The log ends at `at`, as far as this segment shows.
#[inline]
pub fn is_unwritten(segment: &[u8], at: usize) -> bool {
    segment.get(at..at + 8).is_none_or(|head| head == [0; 8])
}

/// Reads the item at `at` of `segment`, which starts at `start` of the log. `entry_header` is 48 or 0.
#[inline]
pub fn item(segment: &[u8], start: u64, at: usize, entry_header: usize) -> Item<'_> {
    let bad = |bad| Item::Bad { bad, step: None };
    let left = &segment[at.min(segment.len())..];
    if left.len() < 8 {
        return bad(Bad::Torn);
    }
    let (first, second) = (int(left, 0), int(left, 4));
    if first == 0 && second == 0 {
        return bad(Bad::Unwritten);
    }
    // A log that was begun without dledger has plain records in its older files.
    if entry_header == 0 || is_record_magic(second) || second == BLANK_MAGIC {
        return match second {
            RECORD_MAGIC | RECORD_MAGIC_LONG_TOPIC => match Record::parse(left, start + at as u64) {
                Ok(record) => Item::Record {
                    record,
                    at,
                    step: record.bytes.len(),
                },
                Err((bad, step)) => Item::Bad { bad, step },
            },
            BLANK_MAGIC => Item::Filler,
            _ => bad(Bad::Magic),
        };
    }
    if first == LEDGER_FILLER {
        return Item::Filler;
    }
    if first != LEDGER_MAGIC {
        return bad(Bad::Magic);
    }
    if left.len() < entry_header || (second as usize) > left.len() {
        return bad(Bad::Torn);
    }
    let body_len = int(left, 44);
    if body_len < 0 || second as i64 != body_len as i64 + entry_header as i64 {
        return bad(Bad::Entry);
    }
    let step = second as usize;
    if long(left, 24) != (start + at as u64) as i64 {
        return bad(Bad::Entry);
    }
    if body_len == 0 {
        return Item::Empty { step };
    }
    let body = &left[entry_header..step];
    if body.len() < 8 || !is_record_magic(int(body, 4)) {
        return Item::Bad {
            bad: Bad::Magic,
            step: Some(step),
        };
    }
    let at = at + entry_header;
    match Record::parse(body, start + at as u64) {
        Ok(record) if record.bytes.len() == body.len() => Item::Record { record, at, step },
        Ok(_) => Item::Bad {
            bad: Bad::Length,
            step: Some(step),
        },
        Err((bad, _)) => Item::Bad { bad, step: Some(step) },
    }
}

impl<'a> Record<'a> {
    /// Parses the record at the start of `bytes`, which lies at `pos` in the log. Does not check the body's CRC. An
    /// error gives the reason, and the size if that field is plausible.
    #[inline]
    pub fn parse(bytes: &'a [u8], pos: u64) -> Result<Record<'a>, (Bad, Option<usize>)> {
        if bytes.len() < 8 {
            return Err((Bad::Torn, None));
        }
        let magic = int(bytes, 4);
        if !is_record_magic(magic) {
            return Err((Bad::Magic, None));
        }
        let size = int(bytes, 0);
        if size < SMALLEST as i32 {
            return Err((Bad::Size, None));
        }
        let size = size as usize;
        if size > bytes.len() {
            return Err((Bad::Torn, None));
        }
        let bytes = &bytes[..size];
        if long(bytes, 28) != pos as i64 {
            return Err((Bad::Position, Some(size)));
        }
        let sys_flag = int(bytes, 36);
        let store_timestamp_at = if sys_flag & 0x10 == 0 { 56 } else { 68 };
        let store_host_len = if sys_flag & 0x20 == 0 { 8 } else { 20 };
        let body_at = store_timestamp_at + 8 + store_host_len + 12 + 4;
        let wrong = Err((Bad::Length, Some(size)));
        // body_at <= 112; the topic's length and the two bytes of the properties' length must fit after the body
        let topic_len_bytes = if magic == RECORD_MAGIC { 1 } else { 2 };
        let least_tail = topic_len_bytes + 2;
        if size < body_at + least_tail {
            return wrong;
        }
        let body_len = int(bytes, body_at - 4);
        if body_len < 0 || body_len as usize > size - body_at - least_tail {
            return wrong;
        }
        let topic_at = body_at + body_len as usize + topic_len_bytes;
        let topic_len = match topic_len_bytes {
            1 => i16::from(bytes[topic_at - 1] as i8),
            _ => i16::from_be_bytes([bytes[topic_at - 2], bytes[topic_at - 1]]),
        };
        if topic_len < 0 || topic_at + topic_len as usize + 2 > size {
            return wrong;
        }
        let properties_at = topic_at + topic_len as usize + 2;
        let properties_len = i16::from_be_bytes([bytes[properties_at - 2], bytes[properties_at - 1]]);
        if properties_len < 0 || properties_at + properties_len as usize != size {
            return wrong;
        }
        Ok(Record {
            bytes,
            store_timestamp_at: store_timestamp_at as u16,
            body_at: body_at as u16,
            body_len: body_len as u32,
            topic_at: topic_at as u32,
            topic_len: topic_len as u16,
        })
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn size(&self) -> u32 {
        self.bytes.len() as u32
    }

    pub fn queue_id(&self) -> i32 {
        int(self.bytes, 12)
    }

    pub fn queue_offset(&self) -> i64 {
        long(self.bytes, 20)
    }

    pub fn sys_flag(&self) -> i32 {
        int(self.bytes, 36)
    }

    pub fn store_timestamp(&self) -> i64 {
        long(self.bytes, usize::from(self.store_timestamp_at))
    }

    pub fn born_host(&self) -> &'a [u8] {
        &self.bytes[48..usize::from(self.store_timestamp_at)]
    }

    pub fn store_host(&self) -> &'a [u8] {
        &self.bytes[usize::from(self.store_timestamp_at) + 8..usize::from(self.body_at) - 16]
    }

    pub fn reconsume_times(&self) -> i32 {
        int(self.bytes, usize::from(self.body_at) - 16)
    }

    /// Where the prepared transaction offset lies in the record.
    pub fn prepared_at(&self) -> usize {
        usize::from(self.body_at) - 12
    }

    pub fn prepared_transaction_offset(&self) -> i64 {
        long(self.bytes, self.prepared_at())
    }

    pub fn body_bytes(&self) -> u32 {
        self.body_len
    }

    pub fn body(&self) -> &'a [u8] {
        let at = usize::from(self.body_at);
        &self.bytes[at..at + self.body_len as usize]
    }

    pub fn topic(&self) -> &'a [u8] {
        let at = self.topic_at as usize;
        &self.bytes[at..at + usize::from(self.topic_len)]
    }

    /// Reads a byte of each page of topic and properties, and the last one.
    #[inline]
    pub fn touch_tail(&self) {
        let tail = &self.bytes[self.topic_at as usize..];
        let sum = tail.iter().step_by(4096).fold(0, |sum, byte| sum ^ byte);
        std::hint::black_box(sum ^ self.bytes[self.bytes.len() - 1]);
    }

    pub fn properties(&self) -> &'a [u8] {
        &self.bytes[self.topic_at as usize + usize::from(self.topic_len) + 2..]
    }

    /// Whether the end of the record, which lies at `at` of `segment`, did not reach the disk: topic or properties end
    /// in a zero byte, which no writer produces, and nothing is written after it. No CRC covers these fields of a plain
    /// record. (The source takes it for a message with strange properties.)
    #[inline]
    pub fn is_torn(&self, segment: &[u8], at: usize) -> bool {
        self.ends_in_zeros() && is_unwritten(segment, at + self.bytes.len())
    }

    pub fn ends_in_zeros(&self) -> bool {
        self.topic().last() == Some(&0) || self.properties().last() == Some(&0)
    }

    /// An empty body has no CRC: the source does not check the field then.
    pub fn body_crc_holds(&self) -> bool {
        self.body_len == 0 || (crc32fast::hash(self.body()) & 0x7FFF_FFFF) as i32 == int(self.bytes, 8)
    }

    /// Outside of a transaction, or the committed record of one: only these get a queue entry.
    pub fn is_queued(&self) -> bool {
        matches!(self.sys_flag() & 0x0C, 0x00 | 0x08)
    }

    /// Every record is found by key, except a rolled-back one, and one with an impossible store time: damage changed its
    /// header, which no CRC of a plain record covers. An index file that began with it would hide all later entries from
    /// a search by time.
    pub fn is_indexed(&self) -> bool {
        self.sys_flag() & 0x0C != 0x0C && (0..IMPOSSIBLE_MS).contains(&self.store_timestamp())
    }
}

/// The properties that dispatch needs, found in one pass.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    pub keys: &'a [u8],
    pub unique_key: &'a [u8],
    pub tags: &'a [u8],
    pub delay: &'a [u8],
}

impl<'a> Known<'a> {
    /// The keys, without the unique key.
    pub fn each_key(&self) -> impl Iterator<Item = &'a [u8]> {
        self.keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty())
    }

    /// The texts for which the index has entries, in their order, if the record is indexed.
    pub fn each_indexed(&self) -> impl Iterator<Item = &'a [u8]> {
        let unique = Some(self.unique_key).filter(|key| !key.is_empty());
        unique.into_iter().chain(self.each_key())
    }

    /// Takes over a pair that counts; a later one of the same name replaces it.
    #[inline]
    pub fn note(&mut self, name: &[u8], value: &'a [u8]) {
        match name {
            b"KEYS" => self.keys = value,
            b"UNIQ_KEY" => self.unique_key = value,
            b"TAGS" => self.tags = value,
            b"DELAY" => self.delay = value,
            _ => {}
        }
    }

    /// `properties`: `name 0x01 value 0x02 ...`. As in the source's decoder (two calls of String.split), pairs with an
    /// empty value or a further 0x01 do not count, the last pair of a name counts, and the last 0x02 may be missing.
    #[inline]
    pub fn find(properties: &'a [u8]) -> Known<'a> {
        let mut known = Known::default();
        let mut rest = properties;
        while !rest.is_empty() {
            let end = memchr::memchr(2, rest).unwrap_or(rest.len());
            let pair = &rest[..end];
            rest = &rest[(end + 1).min(rest.len())..];
            let field = match pair.first() {
                Some(b'K') if pair.starts_with(b"KEYS\x01") => (&mut known.keys, 5),
                Some(b'U') if pair.starts_with(b"UNIQ_KEY\x01") => (&mut known.unique_key, 9),
                Some(b'T') if pair.starts_with(b"TAGS\x01") => (&mut known.tags, 5),
                Some(b'D') if pair.starts_with(b"DELAY\x01") => (&mut known.delay, 6),
                _ => continue,
            };
            let mut value = &pair[field.1..];
            // String.split drops empty parts at the end, so trailing separators disappear
            while let [head @ .., 1] = value {
                value = head;
            }
            if !value.is_empty() && memchr::memchr(1, value).is_none() {
                *field.0 = value;
            }
        }
        known
    }
}

/// The pairs that count, in their order, by the rules of `Known::find`; if a name occurs twice, the last one counts.
pub fn pairs(properties: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    properties.split(|&byte| byte == 2).filter_map(|pair| {
        let (name, mut value) = pair.split_at(memchr::memchr(1, pair)?);
        while let [head @ .., 1] = value {
            value = head;
        }
        let value = value.strip_prefix(&[1])?;
        (!name.is_empty() && !value.is_empty() && memchr::memchr(1, value).is_none()).then_some((name, value))
    })
}

/// Delay levels' times: `delay_ms[i]` belongs to level i + 1.
pub struct Delays(pub Vec<i64>);

impl Delays {
    /// A queue entry's code for the record's tags: the hash of TAGS, or the time of delivery of a delayed record.
    #[inline]
    pub fn tags_code(&self, topic_is_schedule: bool, known: &Known<'_>, store_timestamp: i64) -> i64 {
        if topic_is_schedule && !known.delay.is_empty() {
            // Integer.parseInt; 4.8.0 stops dispatching at text that is not a number, we ignore the delay
            let level = std::str::from_utf8(known.delay)
                .ok()
                .and_then(|text| text.parse::<i32>().ok());
            let level = level.unwrap_or(0).min(self.0.len() as i32);
            if level > 0 {
                return store_timestamp.wrapping_add(self.0[level as usize - 1]);
            }
        }
        if known.tags.is_empty() {
            return 0;
        }
        i64::from(hash::string_hash(known.tags))
    }
}

const LONGEST_FOLDER_NAME: usize = 255;
/// The year 2248, in milliseconds.
const IMPOSSIBLE_MS: i64 = 1 << 43;

pub fn is_schedule_topic(topic: &[u8]) -> bool {
    topic == SCHEDULE_TOPIC
}

/// A topic is a folder's name, so bytes from the disk must not point outside of the store, and it is text for everything
/// above the kernel. No CRC covers the topic of a plain record.
pub fn is_topic_name(topic: &[u8]) -> bool {
    !topic.is_empty()
        && topic.len() <= LONGEST_FOLDER_NAME
        && topic != b"."
        && topic != b".."
        && !topic.iter().any(|&byte| byte == b'/' || byte == 0)
        && std::str::from_utf8(topic).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub const FIRST: &str = "000000aadaa320a73610a6860000000000000007000000000000000000000000000000000000000000000174876e80007f00000100001389000001a1fb437edbc0a8010200002a9f0000000200000000000000000000000568656c6c6f09546f7069635465737400414b455953016b31206b3202554e49515f4b455901414331453030303130303030303030303030303030303031025741495401747275650254414753015461674102";
    const BOTH_V6: &str = "0000008cdaa320a71846e45400000001000000070000000000000000000000000000013c0000003000000174876e800020010db80000000000000000000000010000138a000001a1fb437ee320010db800000000000000000000000200002a9f000000020000000000000000000000067636626f746809546f70696354657374000a57414954017472756502";
    const DELAYED: &str = "000000b0daa320a70abd5ed70000000200000007000000000000000000000000000001c80000000000000174876e80007f00000100001389000001a1fb437ee3c0a8010200002a9f0000000200000000000000000000000664656c617933135343484544554c455f544f5049435f58585858003c5245414c5f544f50494301546f706963546573740244454c415901330257414954017472756502544147530154616741025245414c5f514944013002";
    const LEDGER: &str = "00000001000000b50000000000000000000000000000000000000000000000000000000000000000000000000000008500000085daa320a73610a6860000000000000007000000000000000000000000000000300000000000000174876e80007f00000100001389000001a1fb4c5550c0a8010200002a9f0000000200000000000000000000000568656c6c6f09546f70696354657374001c4b455953016b31025741495401747275650254414753015461674102";

    pub fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap())
            .collect()
    }

    #[test]
    fn the_fields_of_the_reference_record_are_read() {
        let data = bytes(FIRST);
        let record = Record::parse(&data, 0).unwrap();
        assert_eq!((record.size(), record.queue_id(), record.queue_offset()), (170, 0, 0));
        assert_eq!(record.store_timestamp(), 0x1a1_fb43_7edb);
        assert_eq!((record.body(), record.topic()), (&b"hello"[..], &b"TopicTest"[..]));
        assert!(record.body_crc_holds() && record.is_queued() && record.is_indexed());
        let known = Known::find(record.properties());
        assert_eq!(known.keys, b"k1 k2");
        assert_eq!(known.unique_key, b"AC1E00010000000000000001");
        assert_eq!(known.tags, b"TagA");
        assert_eq!(Delays(vec![]).tags_code(false, &known, 0), 2598919);
    }

    #[test]
    fn ipv6_hosts_move_the_later_fields() {
        let data = bytes(BOTH_V6);
        let record = Record::parse(&data, 316).unwrap();
        assert_eq!(record.body(), b"v6both");
        assert_eq!(record.store_timestamp(), 0x1a1_fb43_7ee3);
        assert!(record.body_crc_holds());
    }

    #[test]
    fn a_delayed_record_has_its_time_of_delivery() {
        let data = bytes(DELAYED);
        let record = Record::parse(&data, 456).unwrap();
        let known = Known::find(record.properties());
        let delays = Delays(vec![1000, 5000, 10_000]);
        let schedule = is_schedule_topic(record.topic());
        assert_eq!(
            delays.tags_code(schedule, &known, record.store_timestamp()),
            0x1a1_fb43_a5f3
        );
        assert_eq!(delays.tags_code(false, &known, record.store_timestamp()), 2598919);
    }

    #[test]
    fn a_record_is_valid_only_at_its_own_position() {
        let data = bytes(DELAYED);
        for wrong in [0, 455, 457] {
            assert_eq!(Record::parse(&data, wrong).err(), Some((Bad::Position, Some(176))));
        }
    }

    #[test]
    fn the_body_must_leave_room_for_the_later_lengths() {
        let data = bytes(FIRST);
        for too_long in 80..=82i32 {
            let mut wrong = data.clone();
            wrong[84..88].copy_from_slice(&too_long.to_be_bytes()); // the record has 82 bytes after this field
            assert_eq!(
                Record::parse(&wrong, 0).err(),
                Some((Bad::Length, Some(170))),
                "{too_long}"
            );
        }
    }

    #[test]
    fn an_empty_body_has_no_crc() {
        let mut data = vec![0; 92];
        data[..4].copy_from_slice(&92i32.to_be_bytes());
        data[4..8].copy_from_slice(&RECORD_MAGIC.to_be_bytes());
        data[8..12].copy_from_slice(&0x1234_5678i32.to_be_bytes());
        data[88..90].copy_from_slice(b"\x01T");
        assert!(Record::parse(&data, 0).unwrap().body_crc_holds());
    }

    #[test]
    fn a_level_above_the_last_waits_as_long_as_the_last() {
        let delays = Delays(vec![1000, 5000, 10_000]);
        let code = |delay| {
            let known = Known {
                delay,
                ..Known::default()
            };
            delays.tags_code(true, &known, 50)
        };
        assert_eq!([code(b"3"), code(b"4"), code(b"99")], [10_050; 3]);
        assert_eq!([code(b"0"), code(b"-1"), code(b"x")], [0; 3]);
    }

    #[test]
    fn a_record_follows_its_entry_header() {
        let mut data = bytes(LEDGER);
        data.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 8]);
        match item(&data, 0, 0, 48) {
            Item::Record { record, at, step } => {
                assert_eq!((at, step), (48, 181));
                assert_eq!(record.body(), b"hello");
            }
            _ => panic!("no record"),
        }
        assert!(matches!(item(&data, 0, 181, 48), Item::Filler));
    }

    #[test]
    fn pairs_are_split_as_java_splits_them() {
        let find = |text: &'static [u8]| Known::find(text);
        assert_eq!(find(b"TAGS\x01a\x02TAGS\x01b").tags, b"b");
        assert_eq!(find(b"TAGS\x01\x02").tags, b"");
        assert_eq!(find(b"TAGS\x01a\x01\x02").tags, b"a");
        assert_eq!(find(b"TAGS\x01a\x01b\x02").tags, b"");
        assert_eq!(find(b"\x02\x02XTAGS\x01c\x02TAGS\x01a\x02TAGS\x01\x02").tags, b"a");
    }

    #[test]
    fn arbitrary_bytes_never_panic() {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        for sample in [FIRST, BOTH_V6, DELAYED, LEDGER] {
            let good = bytes(sample);
            for _ in 0..20_000 {
                let mut data = good.clone();
                for _ in 0..1 + random() % 4 {
                    let at = random() % data.len();
                    data[at] = match random() % 4 {
                        0 => 0,
                        1 => 0xff,
                        2 => 0x7f,
                        _ => random() as u8,
                    };
                }
                data.truncate(random() % (data.len() * 2));
                for header in [0, 48] {
                    if let Item::Record { record, .. } = item(&data, 0, random() % 60, header) {
                        let _ = (
                            record.body_crc_holds(),
                            Known::find(record.properties()),
                            record.topic(),
                        );
                    }
                    if let Item::Record { record, .. } = item(&data, 0, 0, header) {
                        let _ = (
                            record.body_crc_holds(),
                            Known::find(record.properties()),
                            record.topic(),
                        );
                    }
                }
            }
        }
    }
}
