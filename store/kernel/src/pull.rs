//! Pulls whose headers have a known shape.
//!
//! A consumer sends the same header again and again; only three numbers in it change: the queue offset, the offset it
//! commits, the opaque. The header without these numbers is its *shape*. Python reads the first header of a shape with
//! its full decoder, and checks that the three numbers found here are the ones it found. A later header of that shape
//! has the same fields with the same texts, so only the numbers have to be read.
//!
//! A signature depends on the numbers, so it is cut out like them. It covers the values of all other fields in the order of
//! their names: of a known shape these are three texts with the two offsets between them (`sign`). The header has the
//! signature of its account, or it is not read here.
//!
//! This covers only JSON headers without a backslash: there, a quotation mark begins or ends a text, and a member's
//! name is unambiguous. Other headers, and numbers that are not in plain form, have no shape, and the full decoder
//! reads them.

use pyo3::prelude::*;

use crate::queue::names::FastMap;
use crate::reply::{push_number, VERSION};
use crate::signature::KeySchedule;

/// Shapes that are remembered; one more, and all are forgotten and learned again.
const MOST_SHAPES: usize = 10_000;
/// A consumer's header has a few hundred bytes; a longer one has no shape, which bounds the memory.
const MOST_HEADER_BYTES: usize = 2048;

/// The member's text from its name to its number, the byte that must follow the number, and the depth of the member.
const NUMBERS: [(&[u8], &[u8], usize); 3] = [
    (b"\"queueOffset\":\"", b"\"", 2),
    (b"\"commitOffset\":\"", b"\"", 2),
    (b"\"opaque\":", b",}", 1),
];

const SIGNATURE: &[u8] = b"\"Signature\":\"";

/// What changes in the headers of one shape: the numbers in the order of `NUMBERS`, and the signature, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changing<'a> {
    pub numbers: [i64; 3],
    pub signature: Option<&'a [u8]>,
}

/// Splits a header into what changes, and its shape. None: the header has no shape.
pub fn split<'a>(header: &'a [u8], shape: &mut Vec<u8>) -> Option<Changing<'a>> {
    shape.clear();
    let mut signature = None;
    if header.len() > MOST_HEADER_BYTES {
        return None;
    }
    let mut numbers = [None; 3];
    let (mut kept, mut at) = (0, 0);
    let (mut depth, mut in_text) = (0usize, false);
    while at < header.len() {
        match header[at] {
            b'\\' => return None,
            b'{' if !in_text => depth += 1,
            b'}' if !in_text => depth = depth.checked_sub(1)?,
            b'"' if in_text => in_text = false,
            b'"' if header[at..].starts_with(SIGNATURE) => {
                let from = at + SIGNATURE.len();
                let length = memchr::memchr(b'"', &header[from..])?;
                let text = &header[from..from + length];
                if depth != 2 || text.contains(&b'\\') || signature.replace(text).is_some() {
                    return None;
                }
                shape.extend_from_slice(&header[kept..from]);
                shape.push(0);
                kept = from + length;
                at = kept + 1;
                continue;
            }
            b'"' => match number_of(&header[at..])? {
                None => in_text = true,
                Some((which, number, from, length)) => {
                    if NUMBERS[which].2 != depth || numbers[which].replace(number).is_some() {
                        return None;
                    }
                    shape.extend_from_slice(&header[kept..at + from]);
                    shape.push(0);
                    kept = at + from + length;
                    at = kept + usize::from(header[kept] == b'"');
                    continue;
                }
            },
            _ => {}
        }
        at += 1;
    }
    shape.extend_from_slice(&header[kept..]);
    match numbers {
        [Some(offset), Some(commit), Some(opaque)] => Some(Changing {
            numbers: [offset, commit, opaque],
            signature,
        }),
        _ => None,
    }
}

/// If a member of `NUMBERS` begins here: which one, its number, where the number begins and its length. None: not
/// plain.
#[allow(clippy::type_complexity)] // used in one place
fn number_of(text: &[u8]) -> Option<Option<(usize, i64, usize, usize)>> {
    let Some(which) = NUMBERS.iter().position(|(name, ..)| text.starts_with(name)) else {
        return Some(None);
    };
    let (name, ends, _) = NUMBERS[which];
    let (number, length) = plain_number(&text[name.len()..])?;
    match text.get(name.len() + length) {
        Some(end) if ends.contains(end) => Some(Some((which, number, name.len(), length))),
        _ => None,
    }
}

/// A number as Java writes it, and its length: no leading zeros, and within 64 bits.
fn plain_number(text: &[u8]) -> Option<(i64, usize)> {
    let sign = usize::from(text.first() == Some(&b'-'));
    let digits = text[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length = sign + digits;
    let first = *text.get(sign)?;
    if digits == 0 || digits > 19 || (first == b'0' && length > 1) {
        return None;
    }
    let number = std::str::from_utf8(&text[..length]).ok()?.parse().ok()?;
    Some((number, length))
}

/// The frame up to its records: code 0, remark FOUND. `bytes` are those of the records.
pub fn found_head(opaque: i32, suggested: i64, next: i64, min: i64, max: i64, bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(320);
    head.extend_from_slice(&[0; 8]);
    head.extend_from_slice(b"{\"code\":0,\"extFields\":{\"suggestWhichBrokerId\":\"");
    push_number(suggested, &mut head);
    head.extend_from_slice(b"\",\"nextBeginOffset\":\"");
    push_number(next, &mut head);
    head.extend_from_slice(b"\",\"minOffset\":\"");
    push_number(min, &mut head);
    head.extend_from_slice(b"\",\"maxOffset\":\"");
    push_number(max, &mut head);
    head.extend_from_slice(b"\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":");
    push_number(i64::from(opaque), &mut head);
    head.extend_from_slice(b",\"remark\":\"FOUND\",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    push_number(i64::from(VERSION), &mut head);
    head.push(b'}');
    let header = head.len() - 8;
    head[..4].copy_from_slice(&((4 + header + bytes) as u32).to_be_bytes());
    head[4..8].copy_from_slice(&(header as u32).to_be_bytes());
    head
}

/// What the signatures of one shape cover, around the offset to commit and the offset of the pull, and their key.
struct Signed {
    texts: [Box<[u8]>; 3],
    schedule: KeySchedule,
}

impl Signed {
    fn verifies(&self, offset: i64, commit: i64, signature: &[u8]) -> bool {
        let mut numbers = [Vec::with_capacity(20), Vec::with_capacity(20)];
        push_number(commit, &mut numbers[0]);
        push_number(offset, &mut numbers[1]);
        let [before, between, after] = &self.texts;
        let parts = [&before[..], &numbers[0], between, &numbers[1], after];
        self.schedule.verifies(parts.into_iter(), signature)
    }
}

/// The shapes that are known, each with a number.
#[pyclass(module = "tallystick.store._kernel")]
#[derive(Default)]
pub struct PullShapes {
    numbers: FastMap<Box<[u8]>, u64>,
    next: u64,
    signed: FastMap<u64, Signed>,
    /// Kept to reuse its memory.
    shape: Vec<u8>,
}

#[pymethods]
impl PullShapes {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// (shape's number, queue offset, commit offset, opaque); None: the shape is unknown, the header has none, or its
    /// signature is not that of the account of `sign`.
    fn read(&mut self, header: &[u8]) -> Option<(u64, i64, i64, i64)> {
        let Changing { numbers, signature } = split(header, &mut self.shape)?;
        let [offset, commit, opaque] = numbers;
        let number = *self.numbers.get(self.shape.as_slice())?;
        if let Some(signature) = signature {
            if !self.signed.get(&number)?.verifies(offset, commit, signature) {
                return None;
            }
        }
        Some((number, offset, commit, opaque))
    }

    /// sign(number, before, between, after, secret): what the signatures of a shape cover before the offset to commit,
    /// between it and the offset of the pull, and after that, and the secret of its account.
    fn sign(&mut self, number: u64, before: &[u8], between: &[u8], after: &[u8], secret: &[u8]) {
        let signed = Signed {
            texts: [before.into(), between.into(), after.into()],
            schedule: KeySchedule::new(secret),
        };
        self.signed.insert(number, signed);
    }

    /// forget(): no shape is known.
    fn forget(&mut self) {
        self.numbers.clear();
        self.signed.clear();
    }

    /// As `read`, and the header's shape is known from now on.
    fn learn(&mut self, header: &[u8]) -> Option<(u64, i64, i64, i64)> {
        let [offset, commit, opaque] = split(header, &mut self.shape)?.numbers;
        if self.numbers.len() >= MOST_SHAPES {
            self.forget();
        }
        let number = *self.numbers.entry(self.shape.as_slice().into()).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        Some((number, offset, commit, opaque))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PullShapes>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"{"code":11,"extFields":{"queueId":"3","commitOffset":"12","topic":"T","queueOffset":"40"},"flag":0,"opaque":7,"version":373}"#;

    fn numbers(header: &str) -> Option<[i64; 3]> {
        Some(split(header.as_bytes(), &mut vec![])?.numbers)
    }

    fn shape(header: &str) -> Vec<u8> {
        let mut shape = vec![];
        split(header.as_bytes(), &mut shape).expect("it has a shape");
        shape
    }

    #[test]
    fn three_numbers_are_extracted() {
        assert_eq!(numbers(HEADER), Some([40, 12, 7]));
        let other = HEADER
            .replace("\"40\"", "\"9000000000\"")
            .replace("\"12\"", "\"-1\"")
            .replace(":7,", ":0,");
        assert_eq!(numbers(&other), Some([9_000_000_000, -1, 0]));
        assert_eq!(shape(HEADER), shape(&other));
    }

    #[test]
    fn any_other_difference_is_another_shape() {
        for (from, to) in [
            ("\"3\"", "\"4\""),
            ("\"T\"", "\"T7\""),
            ("373", "374"),
            ("flag\":0", "flag\":2"),
        ] {
            assert_ne!(shape(HEADER), shape(&HEADER.replace(from, to)), "{to}");
        }
    }

    #[test]
    fn an_ambiguous_header_has_no_shape() {
        for (from, to) in [
            ("\"T\"", r#""T\"queueOffset\":\"5""#),
            ("\"40\"", "\"040\""),
            ("\"40\"", "\"+40\""),
            ("\"40\"", "\"40 \""),
            ("\"40\"", "\"\""),
            ("\"40\"", "40"),
            ("\"40\"", "\"99999999999999999999\""),
            (":7,", ":7.0,"),
            (":7,", ":\"7\","),
            (":7,", ":7 ,"),
            ("\"queueOffset\"", "\"queueoffset\""),
            ("\"topic\":\"T\"", "\"queueOffset\":\"41\""),
            ("\"topic\":\"T\"", "\"opaque\":7"),
            ("\"opaque\":7,", ""),
            ("{\"queueId\"", "{\"opaque\":7,\"queueId\""),
        ] {
            assert_eq!(numbers(&HEADER.replace(from, to)), None, "{to}");
        }
        let deep = HEADER
            .replace("\"opaque\":7,", "")
            .replace("{\"queueId\"", "{\"opaque\":7,\"queueId\"");
        assert_eq!(numbers(&deep), None, "an opaque among the fields must not count");
        let long = "x".repeat(MOST_HEADER_BYTES);
        assert_eq!(numbers(&HEADER.replace("\"T\"", &format!("\"{long}\""))), None);
        for end in 0..HEADER.len() - 1 {
            let _ = numbers(&HEADER[..end]);
        }
    }

    const SIGNED: &str =
        r#"{"code":11,"extFields":{"queueId":"3","commitOffset":"12","Signature":"S=","queueOffset":"40"},"opaque":7}"#;

    fn signed(header: &str, offset: i64, commit: i64, key: &[u8]) -> String {
        let content = format!("before{commit}between{offset}after");
        let text = KeySchedule::new(key).sign([content.as_bytes()].into_iter());
        header.replace("S=", std::str::from_utf8(&text).unwrap())
    }

    #[test]
    fn a_signature_is_no_part_of_a_shape_and_is_checked() {
        assert_eq!(shape(SIGNED), shape(&SIGNED.replace("S=", "other")));
        let mut shapes = PullShapes::new();
        let number = shapes.learn(SIGNED.as_bytes()).unwrap().0;
        let right = signed(SIGNED, 40, 12, b"secret");
        assert!(shapes.read(right.as_bytes()).is_none(), "no account is known");
        shapes.sign(number, b"before", b"between", b"after", b"secret");
        assert_eq!(shapes.read(right.as_bytes()), Some((number, 40, 12, 7)));
        let other = SIGNED.replace("\"40\"", "\"9\"").replace("\"12\"", "\"-1\"");
        assert_eq!(
            shapes.read(signed(&other, 9, -1, b"secret").as_bytes()),
            Some((number, 9, -1, 7))
        );
        for wrong in [
            right.replace("\"40\"", "\"41\""),
            right.replace("\"12\"", "\"13\""),
            signed(SIGNED, 40, 12, b"other"),
            SIGNED.to_owned(),
        ] {
            assert!(shapes.read(wrong.as_bytes()).is_none(), "{wrong}");
        }
        shapes.forget();
        assert!(shapes.read(right.as_bytes()).is_none());
        shapes.learn(SIGNED.as_bytes()).unwrap();
        assert!(shapes.read(right.as_bytes()).is_none(), "the account is forgotten too");
    }

    #[test]
    fn a_signature_that_is_not_plain_has_no_shape() {
        for (from, to) in [
            ("S=", "S\\u003d"),
            ("\"queueId\":\"3\"", "\"Signature\":\"T=\""),
            ("{\"code\"", "{\"Signature\":\"T=\",\"code\""),
        ] {
            assert_eq!(numbers(&SIGNED.replace(from, to)), None, "{to}");
        }
        for end in 0..SIGNED.len() {
            let _ = numbers(&SIGNED[..end]);
        }
    }

    #[test]
    fn the_shapes_are_forgotten_when_there_are_too_many() {
        let mut shapes = PullShapes::new();
        for i in 0..MOST_SHAPES + 1 {
            shapes.learn(HEADER.replace("\"T\"", &format!("\"T{i}\"")).as_bytes());
        }
        assert_eq!(shapes.numbers.len(), 1);
        let first = HEADER.replace("\"T\"", "\"T0\"");
        assert!(shapes.read(first.as_bytes()).is_none());
        let number = shapes.learn(first.as_bytes()).unwrap().0;
        assert!(number > MOST_SHAPES as u64, "a number is never used twice");
    }
}
