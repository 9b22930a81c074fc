//! The answer to a plain send, in the header form of its request.

use crate::encode::offset_id;

/// VERSION of the answers: V4_8_0 in RocketMQ's table; clients check it before they use newer requests.
pub const VERSION: u16 = 373;

/// A staged send that waits for its answer.
pub struct Reply {
    pub connection: u64,
    pub opaque: i32,
    pub queue: i32,
    pub binary: bool,
    pub queue_offset: i64,
    pub pos: u64,
    /// The record's end: the answer may be sent when the log is safe up to here.
    pub end: u64,
    pub at_ms: i64,
}

/// What all answers of a broker have in common.
pub struct Answer {
    region: String,
    trace_on: &'static str,
    /// The two values as members of a JSON object.
    json_common: String,
}

/// Appends a number in decimal digits.
pub fn push_number(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    out.extend_from_slice(&digits[at..]);
}

impl Answer {
    pub fn new(region: &str, trace_on: bool) -> Self {
        // The region is copied into JSON text unescaped: the broker's own configuration allows only safe characters.
        let region: String = region
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
            .collect();
        let trace_on = if trace_on { "true" } else { "false" };
        let json_common = format!(r#""TRACE_ON":"{trace_on}","MSG_REGION":"{region}""#);
        Answer {
            region,
            trace_on,
            json_common,
        }
    }

    /// Appends the whole frame. Codes 0 and 10 to 12 mean "stored" and contain the message's place.
    pub fn encode(&self, reply: &Reply, store_host: &[u8], code: i32, remark: Option<&str>, out: &mut Vec<u8>) {
        let mut id = Vec::with_capacity(56);
        offset_id(store_host, reply.pos, &mut id);
        let stored = code == 0 || (10..=12).contains(&code);
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        if reply.binary {
            self.binary_header(reply, &id, stored, code, remark, out);
        } else {
            self.json_header(reply, &id, stored, code, remark, out);
        }
        let header = out.len() - begin - 8;
        out[begin..begin + 4].copy_from_slice(&(header as u32 + 4).to_be_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&(header as u32).to_be_bytes());
        if reply.binary {
            out[begin + 4] = 1;
        }
    }

    fn json_header(&self, reply: &Reply, id: &[u8], stored: bool, code: i32, remark: Option<&str>, out: &mut Vec<u8>) {
        // Written piece by piece: formatting took a quarter of the cost of a small message.
        out.extend_from_slice(b"{\"code\":");
        push_number(i64::from(code), out);
        out.extend_from_slice(b",\"extFields\":{");
        if stored {
            out.extend_from_slice(b"\"queueId\":\"");
            push_number(i64::from(reply.queue), out);
            out.extend_from_slice(b"\",");
        }
        out.extend_from_slice(self.json_common.as_bytes());
        if stored {
            out.extend_from_slice(b",\"msgId\":\"");
            out.extend_from_slice(id);
            out.extend_from_slice(b"\",\"queueOffset\":\"");
            push_number(reply.queue_offset, out);
            out.push(b'"');
        }
        out.extend_from_slice(b"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
        push_number(i64::from(reply.opaque), out);
        if let Some(text) = remark {
            out.extend_from_slice(b",\"remark\":\"");
            let plain = text
                .chars()
                .map(|c| if c < ' ' || c == '"' || c == '\\' { ' ' } else { c });
            out.extend_from_slice(plain.collect::<String>().as_bytes());
            out.push(b'"');
        }
        out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
        push_number(i64::from(VERSION), out);
        out.push(b'}');
    }

    fn binary_header(
        &self,
        reply: &Reply,
        id: &[u8],
        stored: bool,
        code: i32,
        remark: Option<&str>,
        out: &mut Vec<u8>,
    ) {
        out.extend_from_slice(&(code as i16).to_be_bytes());
        out.push(0);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&reply.opaque.to_be_bytes());
        out.extend_from_slice(&1i32.to_be_bytes());
        let remark = remark.unwrap_or("").as_bytes();
        out.extend_from_slice(&(remark.len() as i32).to_be_bytes());
        out.extend_from_slice(remark);
        let length_at = out.len();
        out.extend_from_slice(&[0; 4]);
        let mut field = |name: &str, value: &[u8]| {
            out.extend_from_slice(&(name.len() as i16).to_be_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&(value.len() as i32).to_be_bytes());
            out.extend_from_slice(value);
        };
        field("TRACE_ON", self.trace_on.as_bytes());
        field("MSG_REGION", self.region.as_bytes());
        if stored {
            field("queueId", reply.queue.to_string().as_bytes());
            field("msgId", id);
            field("queueOffset", reply.queue_offset.to_string().as_bytes());
        }
        let length = (out.len() - length_at - 4) as i32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_fit_in_both_forms() {
        let answer = Answer::new("Default\"Region", true);
        for (binary, code, remark) in [
            (false, 0, None),
            (true, 0, None),
            (false, 14, Some("a \"quoted\" reason")),
            (true, 10, None),
        ] {
            let reply = Reply {
                connection: 1,
                opaque: 7,
                queue: 3,
                binary,
                queue_offset: 5,
                pos: 99,
                end: 200,
                at_ms: 0,
            };
            let mut out = Vec::new();
            answer.encode(&reply, &[127, 0, 0, 1, 0, 0, 0x2a, 0x9f], code, remark, &mut out);
            let bytes = crate::frame::frame_bytes(&out).unwrap().unwrap();
            assert_eq!(bytes, out.len());
            let frame = crate::frame::split(&out).unwrap();
            assert_eq!((frame.header_type, frame.body.len()), (u8::from(binary), 0));
            if !binary {
                let text = std::str::from_utf8(frame.header).unwrap();
                assert!(text.contains("DefaultRegion"));
                assert_eq!(text.contains("msgId"), code == 0);
            }
        }
    }
}
