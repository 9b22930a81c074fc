//! The answer to a plain send, in the header form of its request.

use crate::encode::offset_id;

/// VERSION of the answers: V4_8_0 in RocketMQ's table; clients look at it before they ask for newer things.
const VERSION: u16 = 373;

/// A staged send that waits for its answer.
pub struct Reply {
    pub connection: u64,
    pub opaque: i32,
    pub queue: i32,
    pub binary: bool,
    pub queue_offset: i64,
    pub pos: u64,
    /// The record's end: the answer may go when the log is safe up to here.
    pub end: u64,
    pub at_ms: i64,
}

/// What all answers of a broker have in common.
pub struct Answer {
    region: String,
    trace_on: &'static str,
}

impl Answer {
    pub fn new(region: &str, trace_on: bool) -> Self {
        // The region stands in JSON text as it is: it comes from the broker's own configuration, which allows no more.
        let region = region
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
            .collect();
        Answer {
            region,
            trace_on: if trace_on { "true" } else { "false" },
        }
    }

    /// Appends the whole frame. Codes 0 and 10 to 12 mean "stored" and carry the message's place.
    pub fn encode(&self, reply: &Reply, store_host: &[u8], code: i32, remark: Option<&str>, out: &mut Vec<u8>) {
        let mut id = Vec::with_capacity(56);
        offset_id(store_host, reply.pos, &mut id);
        let id = std::str::from_utf8(&id).expect("hex digits are ASCII");
        let stored = code == 0 || (10..=12).contains(&code);
        let begin = out.len();
        out.extend_from_slice(&[0; 8]);
        if reply.binary {
            self.binary_header(reply, id, stored, code, remark, out);
        } else {
            self.json_header(reply, id, stored, code, remark, out);
        }
        let header = out.len() - begin - 8;
        out[begin..begin + 4].copy_from_slice(&(header as u32 + 4).to_be_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&(header as u32).to_be_bytes());
        if reply.binary {
            out[begin + 4] = 1;
        }
    }

    fn json_header(&self, reply: &Reply, id: &str, stored: bool, code: i32, remark: Option<&str>, out: &mut Vec<u8>) {
        use std::io::Write;
        let Answer { region, trace_on } = self;
        let place = if stored {
            format!(
                r#""queueId":"{}","TRACE_ON":"{trace_on}","MSG_REGION":"{region}","msgId":"{id}","queueOffset":"{}""#,
                reply.queue, reply.queue_offset
            )
        } else {
            format!(r#""TRACE_ON":"{trace_on}","MSG_REGION":"{region}""#)
        };
        let remark = remark.map_or(String::new(), |text| {
            let text: String = text
                .chars()
                .map(|c| if c < ' ' || c == '"' || c == '\\' { ' ' } else { c })
                .collect();
            format!(r#""remark":"{text}","#)
        });
        write!(
            out,
            r#"{{"code":{code},"extFields":{{{place}}},"flag":1,"language":"JAVA","opaque":{},{remark}"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}"#,
            reply.opaque
        )
        .expect("a Vec takes all writes");
    }

    fn binary_header(&self, reply: &Reply, id: &str, stored: bool, code: i32, remark: Option<&str>, out: &mut Vec<u8>) {
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
        let mut field = |name: &str, value: &str| {
            out.extend_from_slice(&(name.len() as i16).to_be_bytes());
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&(value.len() as i32).to_be_bytes());
            out.extend_from_slice(value.as_bytes());
        };
        field("TRACE_ON", self.trace_on);
        field("MSG_REGION", &self.region);
        if stored {
            field("queueId", &reply.queue.to_string());
            field("msgId", id);
            field("queueOffset", &reply.queue_offset.to_string());
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
