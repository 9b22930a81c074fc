//! Remoting frames: requests as the RocketMQ 4.8 Java client writes them, and just enough of the answers to count them.
//!
//! frame = length of the rest (4) · serialize type (1, here 0 = JSON) and header length (3) · header · body. The header's fields
//! stand in the order, and with the escapes, of a recorded Java client: a broker with a quick path for what Java sends meets
//! here what Java sends. Reading looks for two numbers by their names, because a JSON parser would cost more than the send.

use memchr::memmem::Finder;

use crate::signature::KeySchedule;

pub const MAX_FRAME: usize = 16_777_216;
const UNIQ_DIGITS: usize = 12;

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn push_hex(out: &mut Vec<u8>, number: u64) {
    for digit in (0..UNIQ_DIGITS).rev() {
        out.push(b"0123456789ABCDEF"[(number >> (4 * digit)) as usize & 15]);
    }
}

/// Writes the two length words in front of what `write` appends: it appends the header and returns, then `body` follows.
fn frame(out: &mut Vec<u8>, body: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    write(out);
    let header = out.len() - start - 8;
    out.extend_from_slice(body);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&(header as u32).to_be_bytes()); // serialize type 0 is the high byte
}

/// SEND_MESSAGE_V2 (310) of one producer: everything that stays the same is written once.
pub struct SendTemplate {
    before_queue: Vec<u8>,
    before_time: &'static [u8],
    before_key: Vec<u8>,
    before_opaque: Vec<u8>,
    body: Vec<u8>,
    signer: Option<Signer>,
}

/// Signs the messages of one template. The parts stand in the order of the names of their fields.
struct Signer {
    schedule: KeySchedule,
    access_key: String,
    before_queue: Vec<u8>,
    before_key: Vec<u8>,
    after_key: Vec<u8>,
    number: Vec<u8>,
}

impl SendTemplate {
    /// `run` makes the unique keys of this run differ from those of every other run; its 20 hex digits stand for the client's
    /// address, process and class loader.
    pub fn new(group: &str, topic: &str, tag: Option<&str>, size: usize, run: u128) -> Self {
        let tags = tag.map(|tag| format!("TAGS\\u0001{tag}\\u0002")).unwrap_or_default();
        SendTemplate {
            before_queue: format!(r#"{{"code":310,"extFields":{{"a":"{group}","b":"{topic}","c":"TBW102","d":"4","e":""#).into_bytes(),
            before_time: br#"","f":"0","g":""#,
            before_key: format!(r#"","h":"0","i":"UNIQ_KEY\u0001{:020X}"#, run & ((1 << 80) - 1)).into_bytes(),
            before_opaque: format!(
                r#"\u0002WAIT\u0001true\u0002{tags}","j":"0","k":"false","m":"false"}},"flag":0,"language":"JAVA","opaque":"#
            )
            .into_bytes(),
            body: (0..size).map(|at| b'a' + (at % 26) as u8).collect(),
            signer: None,
        }
    }

    /// The same requests, signed with an access key and its secret.
    pub fn signed(mut self, account: Option<&(String, String)>) -> Self {
        let Some((access_key, secret)) = account else {
            return self;
        };
        let value = |name: &str| {
            let text = std::str::from_utf8(&self.before_queue).expect("it is ASCII");
            let from = text.find(name).expect("the template has it") + name.len();
            text[from..].split('"').next().unwrap_or_default().to_owned()
        };
        let plain = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            text.replace("\\u0001", "\u{1}").replace("\\u0002", "\u{2}")
        };
        let fixed = format!(
            r#"{}{}{}{}"#,
            value(r#""a":""#),
            value(r#""b":""#),
            value(r#""c":""#),
            value(r#""d":""#)
        );
        let key = plain(&self.before_key);
        let rest = plain(&self.before_opaque);
        self.signer = Some(Signer {
            schedule: KeySchedule::new(secret.as_bytes()),
            access_key: access_key.clone(),
            before_queue: format!("{access_key}{fixed}").into_bytes(),
            before_key: format!("0{}", key.rsplit('"').next().unwrap_or_default()).into_bytes(),
            after_key: format!("{}0falsefalse", rest.split('"').next().unwrap_or_default()).into_bytes(),
            number: Vec::new(),
        });
        self
    }

    /// Appends one request. `number` is unique in the run (48 bits count), `opaque` comes back in the answer.
    pub fn append(&mut self, out: &mut Vec<u8>, queue: u32, born_ms: u64, number: u64, opaque: u32) {
        let signature = self
            .signer
            .as_mut()
            .map(|signer| signer.sign(queue, born_ms, number, &self.body));
        frame(out, &self.body, |out| {
            if let (Some(signer), Some(signature)) = (&self.signer, signature) {
                out.extend_from_slice(br#"{"code":310,"extFields":{"Signature":""#);
                out.extend_from_slice(&signature);
                out.extend_from_slice(br#"","AccessKey":""#);
                out.extend_from_slice(signer.access_key.as_bytes());
                out.extend_from_slice(br#"","#);
                out.extend_from_slice(&self.before_queue[br#"{"code":310,"extFields":{"#.len()..]);
            } else {
                out.extend_from_slice(&self.before_queue);
            }
            push_number(out, u64::from(queue));
            out.extend_from_slice(self.before_time);
            push_number(out, born_ms);
            out.extend_from_slice(&self.before_key);
            push_hex(out, number);
            out.extend_from_slice(&self.before_opaque);
            push_number(out, u64::from(opaque));
            out.extend_from_slice(br#","serializeTypeCurrentRPC":"JSON","version":373}"#);
        });
    }
}

impl Signer {
    fn sign(&mut self, queue: u32, born_ms: u64, number: u64, body: &[u8]) -> [u8; 28] {
        let out = &mut self.number;
        out.clear();
        push_number(out, u64::from(queue));
        out.push(b'0'); // sysFlag
        push_number(out, born_ms);
        let numbers = out.len();
        push_hex(out, number);
        let (numbers, key) = out.split_at(numbers);
        let parts = [
            &self.before_queue,
            numbers,
            &self.before_key,
            key,
            &self.after_key,
            body,
        ];
        self.schedule.sign(parts.into_iter())
    }
}

/// PULL_MESSAGE (11) as a pull consumer sends it: everything of the topic, and no waiting at the end of a queue.
pub struct PullTemplate {
    before_offset: Vec<u8>,
    before_opaque: Vec<u8>,
    batch: u32,
}

impl PullTemplate {
    pub fn new(group: &str, topic: &str, batch: u32) -> Self {
        PullTemplate {
            before_offset: format!(r#""suspendTimeoutMillis":"20000","commitOffset":"0","topic":"{topic}","queueOffset":""#)
                .into_bytes(),
            before_opaque: format!(
                r#"","expressionType":"TAG","subscription":"*","subVersion":"0","consumerGroup":"{group}"}},"flag":0,"language":"JAVA","opaque":"#
            )
            .into_bytes(),
            batch,
        }
    }

    pub fn append(&self, out: &mut Vec<u8>, queue: u32, queue_offset: u64, opaque: u32) {
        frame(out, &[], |out| {
            out.extend_from_slice(br#"{"code":11,"extFields":{"queueId":""#);
            push_number(out, u64::from(queue));
            out.extend_from_slice(br#"","maxMsgNums":""#);
            push_number(out, u64::from(self.batch));
            out.extend_from_slice(br#"","sysFlag":"4","#); // 4: the subscription is in the request; not 2: do not hold it
            out.extend_from_slice(&self.before_offset);
            push_number(out, queue_offset);
            out.extend_from_slice(&self.before_opaque);
            push_number(out, u64::from(opaque));
            out.extend_from_slice(br#","serializeTypeCurrentRPC":"JSON","version":373}"#);
        });
    }
}

#[derive(Debug, PartialEq)]
pub struct Frame<'a> {
    pub header: &'a [u8],
    pub body: &'a [u8],
}

impl Frame<'_> {
    /// Bytes that the frame takes in the stream.
    pub fn bytes(&self) -> usize {
        8 + self.header.len() + self.body.len()
    }
}

/// The whole frame at the front of `bytes`, None while it is not there yet.
pub fn split(bytes: &[u8]) -> Result<Option<Frame<'_>>, String> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize;
    let (length, header) = (word(0), word(4));
    if bytes[4] != 0 {
        return Err(format!("answer of serialize type {}, only JSON is read here", bytes[4]));
    }
    if length > MAX_FRAME || header + 4 > length {
        return Err(format!("answer with length {length} and header length {header}"));
    }
    if bytes.len() < length + 4 {
        return Ok(None);
    }
    Ok(Some(Frame {
        header: &bytes[8..8 + header],
        body: &bytes[8 + header..length + 4],
    }))
}

/// Finds numbers and texts in answer headers by name. Names inside a text are no danger: there each `"` is escaped.
pub struct Scanner {
    code: Finder<'static>,
    opaque: Finder<'static>,
    next: Finder<'static>,
    remark: Finder<'static>,
}

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub code: i32,
    pub opaque: u32,
}

impl Scanner {
    pub fn new() -> Self {
        Scanner {
            code: Finder::new(br#""code":"#),
            opaque: Finder::new(br#""opaque":"#),
            next: Finder::new(br#""nextBeginOffset":"#),
            remark: Finder::new(br#""remark":"#),
        }
    }

    pub fn answer(&self, header: &[u8]) -> Option<Answer> {
        Some(Answer {
            code: number_after(header, &self.code)?.try_into().ok()?,
            opaque: number_after(header, &self.opaque)?.try_into().ok()?,
        })
    }

    pub fn next_offset(&self, header: &[u8]) -> Option<u64> {
        number_after(header, &self.next)?.try_into().ok()
    }

    /// The remark as it stands in the JSON, escapes and all: for a person to read.
    pub fn remark(&self, header: &[u8]) -> String {
        let Some(at) = self.remark.find(header) else {
            return String::new();
        };
        let rest = header[at + self.remark.needle().len()..].trim_ascii_start();
        let Some(text) = rest.strip_prefix(b"\"") else {
            return String::new();
        };
        let end = memchr::memchr_iter(b'"', text).find(|&end| end == 0 || text[end - 1] != b'\\');
        String::from_utf8_lossy(&text[..end.unwrap_or(text.len())]).into_owned()
    }
}

/// The integer that follows the name, bare or in quotes, blanks allowed.
fn number_after(header: &[u8], name: &Finder) -> Option<i64> {
    let mut rest = &header[name.find(header)? + name.needle().len()..];
    while let Some(b' ' | b'"') = rest.first() {
        rest = &rest[1..];
    }
    let negative = rest.first() == Some(&b'-');
    let digits = &rest[usize::from(negative)..];
    let end = digits
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 || end > 18 {
        return None;
    }
    let number = digits[..end]
        .iter()
        .fold(0i64, |number, digit| number * 10 + i64::from(digit - b'0'));
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_of(bytes: &[u8]) -> String {
        let frame = split(bytes).unwrap().unwrap();
        assert_eq!(frame.bytes(), bytes.len());
        String::from_utf8(frame.header.to_vec()).unwrap()
    }

    #[test]
    fn a_send_is_written_as_java_writes_it() {
        let mut out = Vec::new();
        SendTemplate::new("pg", "orders", Some("A"), 3, 0xC000_0202_1246_5FFD_2B27).append(
            &mut out,
            7,
            1_795_219_014_483,
            0x66FC_5B52_0000,
            51,
        );
        assert_eq!(
            header_of(&out),
            r#"{"code":310,"extFields":{"a":"pg","b":"orders","c":"TBW102","d":"4","e":"7","f":"0","g":"1795219014483","h":"0","i":"UNIQ_KEY\u0001C000020212465FFD2B2766FC5B520000\u0002WAIT\u0001true\u0002TAGS\u0001A\u0002","j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":51,"serializeTypeCurrentRPC":"JSON","version":373}"#
        );
        assert_eq!(split(&out).unwrap().unwrap().body, b"abc");
    }

    #[test]
    fn a_signed_send_has_the_signature_of_its_values() {
        let (mut out, account) = (Vec::new(), ("account".to_owned(), "12345678".to_owned()));
        SendTemplate::new("pg", "orders", Some("A"), 3, 0xC000_0202_1246_5FFD_2B27)
            .signed(Some(&account))
            .append(&mut out, 7, 1_795_219_014_483, 0x66FC_5B52_0000, 51);
        let begin = r#"{"code":310,"extFields":{"Signature":"+4lngEp1ZTON9J/fmWPdCEzz9RY=","AccessKey":"account","a":"pg","b":"orders","#;
        assert!(header_of(&out).starts_with(begin), "{}", header_of(&out));
    }

    #[test]
    fn a_pull_is_written_as_java_writes_it() {
        let mut out = Vec::new();
        PullTemplate::new("cg", "orders", 32).append(&mut out, 0, 4_096, 210);
        assert_eq!(
            header_of(&out),
            r#"{"code":11,"extFields":{"queueId":"0","maxMsgNums":"32","sysFlag":"4","suspendTimeoutMillis":"20000","commitOffset":"0","topic":"orders","queueOffset":"4096","expressionType":"TAG","subscription":"*","subVersion":"0","consumerGroup":"cg"},"flag":0,"language":"JAVA","opaque":210,"serializeTypeCurrentRPC":"JSON","version":373}"#
        );
    }

    #[test]
    fn answers_are_read_in_any_order_of_their_fields() {
        let scanner = Scanner::new();
        let java = br#"{"code":0,"extFields":{"queueId":"1","nextBeginOffset":"96"},"flag":1,"language":"JAVA","opaque":51,"version":373}"#;
        let other = br#"{"opaque": 51, "remark":"no \"code\":9 here", "extFields":{"nextBeginOffset":"96"}, "code":0}"#;
        for header in [&java[..], &other[..]] {
            assert_eq!(scanner.answer(header), Some(Answer { code: 0, opaque: 51 }));
            assert_eq!(scanner.next_offset(header), Some(96));
        }
        assert_eq!(
            scanner.remark(br#"{"code":2,"remark":"[TIMEOUT_CLEAN_QUEUE]broker busy"}"#),
            "[TIMEOUT_CLEAN_QUEUE]broker busy"
        );
        assert_eq!(scanner.remark(other), r#"no \"code\":9 here"#);
        assert_eq!(scanner.remark(br#"{"code":0,"remark":null}"#), "");
        assert_eq!(scanner.answer(br#"{"code":0}"#), None);
        assert_eq!(scanner.answer(br#"{"code":x,"opaque":1}"#), None);
    }

    #[test]
    fn a_torn_frame_is_waited_for_and_a_wrong_one_is_refused() {
        let mut out = Vec::new();
        PullTemplate::new("cg", "orders", 32).append(&mut out, 0, 0, 1);
        for end in 0..out.len() {
            assert_eq!(split(&out[..end]), Ok(None));
        }
        out[4] = 1;
        assert!(split(&out).unwrap_err().contains("serialize type 1"));
        assert!(split(&[0x7f, 0, 0, 0, 0, 0, 0, 0]).unwrap_err().contains("length"));
        assert!(split(&[0, 0, 0, 8, 0, 0, 0, 9])
            .unwrap_err()
            .contains("header length 9"));
    }
}
