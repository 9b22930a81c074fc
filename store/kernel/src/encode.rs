//! Encodes one CommitLog record.
//!
//! The layout is RocketMQ's (all integers big-endian): total size, magic, CRC of the body, queue id, flag, queue
//! offset, physical offset, sysFlag, born timestamp and host, store timestamp and host, reconsume times, prepared
//! transaction offset, body, topic, properties. Only two bits of sysFlag say how long the two hosts are, so the encoder
//! always sets these bits from the hosts.

/// Fixed: it is on disks. The word after the size of every record.
pub const MESSAGE_MAGIC: i32 = -626_843_481;
/// Fixed: it is on disks. Magic of the filler that closes a segment.
pub const BLANK_MAGIC: i32 = -875_286_124;
/// Bytes that must stay free after a record: room for the filler's size and magic.
pub const BLANK_BYTES: usize = 8;
/// A topic's length is one signed byte.
pub const MAX_TOPIC_BYTES: usize = 127;
/// The properties' length is a signed 16-bit integer.
pub const MAX_PROPERTIES_BYTES: usize = 32_767;

pub const BORN_HOST_V6: i32 = 0x10;
pub const STORE_HOST_V6: i32 = 0x20;
pub const TRANSACTION_MASK: i32 = 0x0C;
pub const TRANSACTION_PREPARED: i32 = 0x04;
pub const TRANSACTION_ROLLBACK: i32 = 0x0C;

/// One message, borrowed from its buffer; hosts have 8 or 20 bytes (address, then port as an int).
pub struct Parts<'a> {
    pub topic: &'a [u8],
    pub queue: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    /// The properties are these pieces, one after the other: most records end in a constant one.
    pub properties: [&'a [u8]; 3],
}

impl Parts<'_> {
    pub fn properties_len(&self) -> usize {
        self.properties.iter().map(|piece| piece.len()).sum()
    }

    /// Bytes of the record that `encode` will append.
    pub fn size(&self) -> usize {
        75 + self.born_host.len() + self.store_host.len() + self.body.len() + self.topic.len() + self.properties_len()
    }

    /// sysFlag with the two host bits set from the hosts.
    pub fn true_sys_flag(&self) -> i32 {
        let mut flags = self.sys_flag & !(BORN_HOST_V6 | STORE_HOST_V6);
        if self.born_host.len() == 20 {
            flags |= BORN_HOST_V6;
        }
        if self.store_host.len() == 20 {
            flags |= STORE_HOST_V6;
        }
        flags
    }

    /// Appends the record, which will lie at `pos` of the log, to `out`. The caller checks the limits.
    pub fn encode(&self, out: &mut Vec<u8>, pos: u64) {
        let size = self.size();
        let begin = out.len();
        out.reserve(size);
        let mut head = [0; 48];
        head[0..4].copy_from_slice(&(size as i32).to_be_bytes());
        head[4..8].copy_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        head[8..12].copy_from_slice(&body_crc(self.body).to_be_bytes());
        head[12..16].copy_from_slice(&self.queue.to_be_bytes());
        head[16..20].copy_from_slice(&self.flag.to_be_bytes());
        head[20..28].copy_from_slice(&self.queue_offset.to_be_bytes());
        head[28..36].copy_from_slice(&(pos as i64).to_be_bytes());
        head[36..40].copy_from_slice(&self.true_sys_flag().to_be_bytes());
        head[40..48].copy_from_slice(&self.born_timestamp.to_be_bytes());
        let mut middle = [0; 16];
        middle[0..4].copy_from_slice(&self.reconsume_times.to_be_bytes());
        middle[4..12].copy_from_slice(&self.prepared_offset.to_be_bytes());
        middle[12..16].copy_from_slice(&(self.body.len() as i32).to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(self.born_host);
        out.extend_from_slice(&self.store_timestamp.to_be_bytes());
        out.extend_from_slice(self.store_host);
        out.extend_from_slice(&middle);
        out.extend_from_slice(self.body);
        out.push(self.topic.len() as u8);
        out.extend_from_slice(self.topic);
        out.extend_from_slice(&(self.properties_len() as i16).to_be_bytes());
        for piece in self.properties {
            out.extend_from_slice(piece);
        }
        assert_eq!(out.len() - begin, size, "a record is as long as it says");
    }
}

/// Whether a record of this sysFlag has a place in its queue: prepared and rolled-back ones have none.
pub fn takes_queue_offset(sys_flag: i32) -> bool {
    !matches!(sys_flag & TRANSACTION_MASK, TRANSACTION_PREPARED | TRANSACTION_ROLLBACK)
}

/// Queue and offset of a record that `encode` wrote.
pub struct Place<'a> {
    pub size: usize,
    pub topic: &'a [u8],
    pub queue: i32,
    pub queue_offset: i64,
    pub queued: bool,
}

/// The place of the record at the start of `staged`; None at its end or at a filler. Only for bytes that `encode`
/// wrote.
pub fn place_of(staged: &[u8]) -> Option<Place<'_>> {
    let int = |at: usize| {
        staged
            .get(at..at + 4)
            .map(|b| i32::from_be_bytes([b[0], b[1], b[2], b[3]]))
    };
    if int(4)? != MESSAGE_MAGIC {
        return None;
    }
    let sys_flag = int(36)?;
    let wide = |bit: i32| if sys_flag & bit != 0 { 20 } else { 8 };
    let body_at = 48 + wide(BORN_HOST_V6) + 8 + wide(STORE_HOST_V6) + 12;
    let topic_at = body_at + 4 + int(body_at)? as usize;
    let topic_bytes = usize::from(*staged.get(topic_at)?);
    Some(Place {
        size: int(0)? as usize,
        topic: staged.get(topic_at + 1..topic_at + 1 + topic_bytes)?,
        queue: int(12)?,
        queue_offset: i64::from_be_bytes(staged.get(20..28)?.try_into().ok()?),
        queued: takes_queue_offset(sys_flag),
    })
}

/// CRC-32 of a stored body without its top bit; 0 for an empty body.
pub fn body_crc(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7FFF_FFFF) as i32
}

/// The broker's message id: hex of the store host and the record's position.
pub fn offset_id(store_host: &[u8], pos: u64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut digits = [0; 56];
    let place = pos.to_be_bytes();
    let bytes = store_host.iter().chain(&place);
    let mut used = 0;
    for (byte, pair) in bytes.zip(digits.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
        used += 2;
    }
    out.extend_from_slice(&digits[..used]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_equals_the_reference() {
        let parts = Parts {
            topic: b"TopicTest",
            queue: 0,
            flag: 7,
            queue_offset: 0,
            sys_flag: 0,
            born_timestamp: 1_600_000_000_000,
            born_host: &[127, 0, 0, 1, 0, 0, 0x13, 0x89],
            store_timestamp: 0x0000_01a1_fb43_7edb,
            store_host: &[192, 168, 1, 2, 0, 0, 0x2a, 0x9f],
            reconsume_times: 2,
            prepared_offset: 0,
            body: b"hello",
            properties: [
                b"KEYS\x01k1 k2\x02UNIQ_KEY\x01AC1E00010000000000000001\x02",
                b"WAIT\x01true\x02",
                b"TAGS\x01TagA\x02",
            ],
        };
        let mut out = Vec::new();
        parts.encode(&mut out, 0);
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "000000aadaa320a73610a6860000000000000007000000000000000000000000000000000000000000000174876e80007f00000100001389\
             000001a1fb437edbc0a8010200002a9f0000000200000000000000000000000568656c6c6f09546f7069635465737400414b455953016b31\
             206b3202554e49515f4b455901414331453030303130303030303030303030303030303031025741495401747275650254414753015461674102"
        );
    }

    #[test]
    fn the_host_bits_match_the_hosts() {
        let v6 = [0u8; 20];
        let v4 = [0u8; 8];
        let mut parts = Parts {
            topic: b"T",
            queue: 0,
            flag: 0,
            queue_offset: 0,
            sys_flag: 0x31,
            born_timestamp: 0,
            born_host: &v4,
            store_timestamp: 0,
            store_host: &v6,
            reconsume_times: 0,
            prepared_offset: 0,
            body: b"",
            properties: [b"", b"", b""],
        };
        assert_eq!(parts.true_sys_flag(), 0x21);
        assert_eq!(parts.size(), 91 + 12 + 1);
        parts.born_host = &v6;
        assert_eq!(parts.true_sys_flag(), 0x31);
    }

    #[test]
    fn the_message_id_equals_the_reference() {
        let mut out = Vec::new();
        offset_id(&[192, 168, 1, 2, 0, 0, 0x2a, 0x9f], 4096, &mut out);
        assert_eq!(out, b"C0A8010200002A9F0000000000001000");
        assert_eq!(body_crc(b"hello"), 907_060_870);
    }
}
