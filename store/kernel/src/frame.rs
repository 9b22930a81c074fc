//! Splits frames and reads the header of a plain send.
//!
//! A frame is `length | header type and length | header | body`. The scanner understands only the headers of the hot
//! path: SEND_MESSAGE_V2 in JSON or in the binary form. It leaves everything that it is not sure of (another code, an
//! unknown escape, a missing field) to the full decoder in Python: `None` means "unsure", never "wrong".

/// The largest frame, including its length field. Source: RocketMQ's NettyDecoder.
pub const MAX_FRAME_BYTES: usize = 16_777_216;
pub const SEND_MESSAGE_V2: i64 = 310;

/// A frame's parts within a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header_type: u8,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

/// Why a byte stream cannot be split further; the connection has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFault {
    /// The length field is out of range.
    Length(i32),
    /// The header is longer than the frame.
    Header(usize, usize),
}

impl std::fmt::Display for FrameFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FrameFault::Length(length) => {
                write!(f, "frame length {length} is not within 4..{}", MAX_FRAME_BYTES - 4)
            }
            FrameFault::Header(header, frame) => write!(f, "header of {header} bytes in a frame of {frame}"),
        }
    }
}

/// Size of the frame at the start of `data`, once its length field is complete.
pub fn frame_bytes(data: &[u8]) -> Result<Option<usize>, FrameFault> {
    let Some(field) = data.first_chunk::<4>() else {
        return Ok(None);
    };
    let length = i32::from_be_bytes(*field);
    if length < 4 || length as usize + 4 > MAX_FRAME_BYTES {
        return Err(FrameFault::Length(length));
    }
    Ok(Some(length as usize + 4))
}

/// The parts of one complete frame (`frame_bytes` long).
pub fn split(frame: &[u8]) -> Result<Frame<'_>, FrameFault> {
    let header_bytes = usize::from(frame[5]) << 16 | usize::from(frame[6]) << 8 | usize::from(frame[7]);
    let rest = &frame[8..];
    if header_bytes > rest.len() {
        return Err(FrameFault::Header(header_bytes, frame.len()));
    }
    let (header, body) = rest.split_at(header_bytes);
    Ok(Frame {
        header_type: frame[4],
        header,
        body,
    })
}

/// The fields of a plain send. Strings point into the header, or into the scratch buffer if they had escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendHeader<'a> {
    pub opaque: i32,
    pub oneway: bool,
    pub topic: &'a [u8],
    pub queue: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub reconsume_times: i32,
    /// Escaped (JSON only) if `escaped`: `unescape` first.
    pub properties: &'a [u8],
    pub escaped: bool,
    pub fields: Fields<'a>,
}

/// Fields with other names than a letter. Those that 5.x clients add mean nothing to this broker.
const NAMES: [&[u8]; 7] = [
    b"AccessKey",
    b"SecurityToken",
    b"Signature",
    b"bname",
    b"ns",
    b"nsd",
    b"oway",
];
const ACCESS_KEY: usize = 0;
const SECURITY_TOKEN: usize = 1;
const SIGNATURE: usize = 2;
const BNAME: usize = 3;
const NS: usize = 4;
const NSD: usize = 5;
const OWAY: usize = 6;

/// The extension fields, as raw text: by letter, and in the order of `NAMES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fields<'a> {
    letters: [Option<&'a [u8]>; 14],
    named: [Option<&'a [u8]>; 7],
    escaped_properties: bool,
}

impl<'a> Fields<'a> {
    pub fn access_key(&self) -> Option<&'a [u8]> {
        self.named[ACCESS_KEY]
    }

    pub fn signature(&self) -> Option<&'a [u8]> {
        self.named[SIGNATURE]
    }

    /// What the signature covers: the values of all other fields in the order of their names, then the body.
    /// `properties`: the field of that letter without escapes.
    pub fn signed<'b>(&'b self, properties: &'b [u8], body: &'b [u8]) -> impl Iterator<Item = &'b [u8]> {
        let (letters, named) = (&self.letters, &self.named);
        let first = [
            named[ACCESS_KEY],
            named[SECURITY_TOKEN],
            letters[0],
            letters[1],
            named[BNAME],
        ];
        let properties = letters[8].map(|_| properties);
        let last = [named[NS], named[NSD], named[OWAY], Some(body)];
        first
            .into_iter()
            .chain(letters[2..8].iter().copied())
            .chain([properties])
            .chain(letters[9..].iter().copied())
            .chain(last)
            .flatten()
    }

    fn set(&mut self, key: &[u8], value: &'a [u8], escaped: bool) -> Option<()> {
        let &[letter @ b'a'..=b'n'] = key else {
            // Only the full decoder knows the meaning of any other name, and which escapes there are.
            let at = NAMES.iter().position(|name| *name == key).filter(|_| !escaped)?;
            self.named[at] = Some(value);
            return Some(());
        };
        if escaped {
            if letter != b'i' {
                return None;
            }
            self.escaped_properties = true;
        }
        self.letters[usize::from(letter - b'a')] = Some(value);
        Some(())
    }

    fn get(&self, letter: u8) -> Option<&'a [u8]> {
        self.letters[usize::from(letter - b'a')]
    }

    fn int(&self, letter: u8) -> Option<i64> {
        parse_int(self.get(letter)?)
    }

    fn header(self, opaque: i64, flag: i64) -> Option<SendHeader<'a>> {
        if flag & !2 != 0 {
            return None;
        }
        for required in [b'a', b'c'] {
            self.get(required)?;
        }
        i32::try_from(self.int(b'd')?).ok()?;
        if let Some(limit) = self.get(b'l') {
            i32::try_from(parse_int(limit)?).ok()?;
        }
        if self.get(b'm').is_some_and(|batch| batch != b"false") {
            return None;
        }
        let reconsume_times = match self.get(b'j') {
            Some(text) => parse_int(text)?,
            None => 0,
        };
        Some(SendHeader {
            opaque: i32::try_from(opaque).ok()?,
            oneway: flag & 2 != 0,
            topic: self.get(b'b')?,
            queue: i32::try_from(self.int(b'e')?).ok()?,
            sys_flag: i32::try_from(self.int(b'f')?).ok()?,
            born_timestamp: self.int(b'g')?,
            flag: i32::try_from(self.int(b'h')?).ok()?,
            reconsume_times: i32::try_from(reconsume_times).ok()?,
            properties: self.get(b'i').unwrap_or(b""),
            escaped: self.escaped_properties,
            fields: self,
        })
    }
}

/// A decimal integer of at most 18 digits, so that it cannot overflow.
fn parse_int(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if negative { -value } else { value })
}

const SHORT_STRING: usize = 16;

struct Scanner<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn skip_space(&mut self) {
        while matches!(self.data.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        (*self.data.get(self.at)? == byte).then(|| self.at += 1)
    }

    /// A string's raw text, and whether it holds escapes.
    fn string(&mut self) -> Option<(&'a [u8], bool)> {
        self.eat(b'"')?;
        let begin = self.at;
        // Most names and values have a few bytes: a plain loop ends before a vector search would have begun.
        for (length, &byte) in self.data[begin..].iter().take(SHORT_STRING).enumerate() {
            match byte {
                b'"' => {
                    self.at = begin + length + 1;
                    return Some((&self.data[begin..begin + length], false));
                }
                b'\\' => break,
                _ => {}
            }
        }
        let mut escaped = false;
        loop {
            let found = memchr::memchr2(b'"', b'\\', &self.data[self.at..])?;
            self.at += found;
            if self.data[self.at] == b'"' {
                let text = &self.data[begin..self.at];
                self.at += 1;
                return Some((text, escaped));
            }
            escaped = true;
            self.at += 2;
            if self.at > self.data.len() {
                return None;
            }
        }
    }

    /// An integer's raw text.
    fn number(&mut self) -> Option<i64> {
        self.skip_space();
        let begin = self.at;
        while matches!(self.data.get(self.at), Some(b'0'..=b'9' | b'-')) {
            self.at += 1;
        }
        parse_int(&self.data[begin..self.at])
    }

    /// Skips one value of the header that the hot path does not need.
    fn skip_scalar(&mut self) -> Option<()> {
        self.skip_space();
        match self.data.get(self.at)? {
            b'"' => self.string().and_then(|(_, escaped)| (!escaped).then_some(())),
            b'0'..=b'9' | b'-' => self.number().map(|_| ()),
            _ => None,
        }
    }

    /// After a member of an object: true if another one follows, false at the object's end.
    fn more(&mut self) -> Option<bool> {
        self.skip_space();
        let next = *self.data.get(self.at)?;
        self.at += 1;
        match next {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }
}

fn scan_json(header: &[u8]) -> Option<SendHeader<'_>> {
    if !header.is_ascii() {
        std::str::from_utf8(header).ok()?;
    }
    let mut scanner = Scanner { data: header, at: 0 };
    let (mut code, mut opaque, mut flag) = (None, None, Some(0));
    let mut fields = None;
    scanner.eat(b'{')?;
    loop {
        let (key, escaped) = scanner.string()?;
        if escaped {
            return None;
        }
        scanner.eat(b':')?;
        match key {
            b"code" => {
                code = scanner.number();
                if code? != SEND_MESSAGE_V2 {
                    return None;
                }
            }
            b"opaque" => opaque = scanner.number(),
            b"flag" => flag = scanner.number(),
            b"version" => {
                i32::try_from(scanner.number()?).ok()?;
            }
            b"extFields" => {
                let mut found = Fields::default();
                scanner.eat(b'{')?;
                loop {
                    let (name, escaped_name) = scanner.string()?;
                    scanner.eat(b':')?;
                    let (value, escaped_value) = scanner.string()?;
                    if escaped_name {
                        return None;
                    }
                    found.set(name, value, escaped_value)?;
                    if !scanner.more()? {
                        break;
                    }
                }
                fields = Some(found);
            }
            _ => scanner.skip_scalar()?,
        }
        if !scanner.more()? {
            break;
        }
    }
    scanner.skip_space();
    if scanner.at != header.len() {
        return None;
    }
    code?;
    fields?.header(opaque?, flag?)
}

fn scan_binary(header: &[u8]) -> Option<SendHeader<'_>> {
    let code = i16::from_be_bytes(*header.first_chunk()?);
    if i64::from(code) != SEND_MESSAGE_V2 {
        return None;
    }
    let opaque = i32::from_be_bytes(header.get(5..9)?.try_into().ok()?);
    let flag = i32::from_be_bytes(header.get(9..13)?.try_into().ok()?);
    let remark = i32::from_be_bytes(header.get(13..17)?.try_into().ok()?);
    let extension = i32::from_be_bytes(header.get(17..21)?.try_into().ok()?);
    if remark != 0 || usize::try_from(extension).ok()? != header.len() - 21 {
        return None;
    }
    let mut rest = &header[21..];
    let mut fields = Fields::default();
    while !rest.is_empty() {
        let key_len = usize::try_from(i16::from_be_bytes(*rest.first_chunk()?)).ok()?;
        let key = rest.get(2..2 + key_len)?;
        rest = &rest[2 + key_len..];
        let value_len = usize::try_from(i32::from_be_bytes(*rest.first_chunk()?)).ok()?;
        let value = rest.get(4..4usize.checked_add(value_len)?)?;
        rest = &rest[4 + value_len..];
        fields.set(key, value, false)?;
    }
    fields.header(i64::from(opaque), i64::from(flag))
}

/// The header of a plain SEND_MESSAGE_V2, or None: unsure.
pub fn scan_send<'a>(frame: &Frame<'a>) -> Option<SendHeader<'a>> {
    match frame.header_type {
        0 => scan_json(frame.header),
        1 => scan_binary(frame.header),
        _ => None,
    }
}

/// Appends `text` to `out` with JSON escapes replaced. None: an escape that the full decoder has to handle.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..at]);
        let (byte, used) = match *rest.get(at + 1)? {
            b'n' => (b'\n', 2),
            b't' => (b'\t', 2),
            b'r' => (b'\r', 2),
            b'b' => (8, 2),
            b'f' => (12, 2),
            plain @ (b'"' | b'\\' | b'/') => (plain, 2),
            b'u' => match rest.get(at + 2..at + 6)? {
                [b'0', b'0', high, low] => {
                    let value = (char::from(*high).to_digit(16)? << 4) + char::from(*low).to_digit(16)?;
                    // Beyond ASCII the character takes two bytes, and surrogates come in pairs: rare, so not handled
                    // here.
                    (u8::try_from(value).ok().filter(u8::is_ascii)?, 6)
                }
                _ => return None,
            },
            _ => return None,
        };
        out.push(byte);
        rest = &rest[at + used..];
    }
    out.extend_from_slice(rest);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = br#"{"code":310,"extFields":{"a":"g","b":"T","c":"TBW102","d":"4","e":"2","f":"0","g":"1600000000000","h":"7","i":"TAGS\u0001TagA\u0002","j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":9,"serializeTypeCurrentRPC":"JSON","version":373}"#;

    fn scan(header: &[u8]) -> Option<SendHeader<'_>> {
        scan_send(&Frame {
            header_type: 0,
            header,
            body: b"",
        })
    }

    #[test]
    fn a_plain_send_is_parsed() {
        let found = scan(HEADER).unwrap();
        assert_eq!(
            (found.opaque, found.topic, found.queue, found.flag),
            (9, &b"T"[..], 2, 7)
        );
        assert!(found.escaped && !found.oneway);
        let mut properties = Vec::new();
        unescape(found.properties, &mut properties).unwrap();
        assert_eq!(properties, b"TAGS\x01TagA\x02");
    }

    #[test]
    fn other_headers_are_left_to_the_full_decoder() {
        let text = String::from_utf8(HEADER.to_vec()).unwrap();
        for (old, new) in [
            ("310", "320"),
            ("\"m\":\"false\"", "\"m\":\"true\""),
            ("\"b\":\"T\",", ""),
            ("\"b\":\"T\"", "\"b\":\"\\u0054\""),
            ("\"d\":\"4\"", "\"d\":\"four\""),
            ("\"k\":\"false\"", "\"accesskey\":\"x\""),
            ("\"flag\":0", "\"flag\":1"),
            ("\"flag\":0", "\"flag\":{}"),
            ("\"opaque\":9,", ""),
            ("\"g\":\"1600000000000\"", "\"g\":\"1600000000000000000000\""),
        ] {
            assert!(text.contains(old), "{old}");
            assert_eq!(scan(text.replace(old, new).as_bytes()), None, "{new}");
        }
        for cut in 0..HEADER.len() {
            assert_eq!(scan(&HEADER[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn lengths_out_of_range_are_faults() {
        assert_eq!(frame_bytes(&[0, 0, 0]), Ok(None));
        assert_eq!(frame_bytes(&(-1i32).to_be_bytes()), Err(FrameFault::Length(-1)));
        assert_eq!(frame_bytes(&[0, 0, 0, 3]), Err(FrameFault::Length(3)));
        assert!(frame_bytes(&(MAX_FRAME_BYTES as i32).to_be_bytes()).is_err());
        assert_eq!(split(&[0, 0, 0, 4, 0, 0, 0, 1]), Err(FrameFault::Header(1, 8)));
    }

    #[test]
    fn unknown_escapes_are_unsure() {
        for text in [&b"\\"[..], b"\\x", b"\\u00", b"\\u00e9", b"\\ud83d\\ude00", b"\\u00+1"] {
            assert_eq!(unescape(text, &mut Vec::new()), None, "{text:?}");
        }
    }
}
