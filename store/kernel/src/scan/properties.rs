//! Splits the properties of records once, for all columns that contain parts of them.
//!
//! The rules are those of `Known::find` and `pairs` in `record`: a pair counts if it has a name and one value; if a name
//! occurs twice, the last value counts, at the place of the first one. Texts in Arrow are UTF-8; invalid bytes become
//! U+FFFD, as in Java's decoder.

use std::borrow::Cow;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::texts::TextMaps;
use crate::record::{pairs, Known};

/// Repeated names are searched one by one among at most this many pairs: 32 KiB of one-letter names would take seconds
/// otherwise.
const FEW_PAIRS: usize = 24;

/// The properties of some records, in their order.
#[derive(Default)]
pub struct Properties<'a> {
    records: Vec<Split<'a>>,
    pairs: &'a [Pair],
}

/// Splits properties. Its memory is used again for each call.
#[derive(Default)]
pub struct Splitter {
    pairs: Vec<Pair>,
    separators: Separators,
}

/// Where name and value are in the text of their record.
#[derive(Clone)]
struct Pair {
    name: Range<u32>,
    value: Range<u32>,
}

fn within(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

struct Split<'a> {
    bytes: &'a [u8],
    known: Known<'a>,
    /// The bytes as text, and its part of `pairs`; None: there are many, or they are not UTF-8.
    pairs: Option<(&'a str, Range<usize>)>,
}

impl Splitter {
    /// `each`: the properties of the records.
    pub fn split<'a>(&'a mut self, each: impl Iterator<Item = &'a [u8]>) -> Properties<'a> {
        self.pairs.clear();
        Properties {
            records: each.map(|bytes| self.split_one(bytes)).collect(),
            pairs: &self.pairs,
        }
    }

    #[inline]
    fn split_one<'a>(&mut self, bytes: &'a [u8]) -> Split<'a> {
        let begin = self.pairs.len();
        let is_ascii = self.separators.find(bytes);
        let text = match is_ascii {
            // SAFETY: ASCII is UTF-8.
            true => Some(unsafe { std::str::from_utf8_unchecked(bytes) }),
            false => std::str::from_utf8(bytes).ok(),
        };
        let (known, pairs) = match text.and_then(|text| Some((text, self.add_pairs(text)?))) {
            Some((text, known)) => (known, Some((text, begin..self.pairs.len()))),
            None => {
                self.pairs.truncate(begin);
                (Known::find(bytes), None)
            }
        };
        Split { bytes, known, pairs }
    }

    /// Appends the pairs of `text`, whose separators were found, to `pairs`; None: there are too many.
    #[inline]
    fn add_pairs<'a>(&mut self, text: &'a str) -> Option<Known<'a>> {
        let begin = self.pairs.len();
        let mut known = Known::default();
        let mut names = Names::default();
        let mut ends = self
            .separators
            .places()
            .iter()
            .map(|&at| at as usize)
            .chain([text.len()]);
        let is_within = |end: usize| text.as_bytes().get(end) == Some(&1);
        let mut pair_at = 0;
        while pair_at < text.len() {
            let name = pair_at..ends.next()?;
            let (mut pair_end, mut values) = (name.end, 0);
            while is_within(pair_end) {
                pair_end = ends.next()?;
                values += 1;
            }
            pair_at = pair_end + 1;
            if values == 0 {
                continue;
            }
            let mut value = name.end + 1..pair_end;
            if values > 1 {
                value.end = value.start + text[value.clone()].trim_end_matches('\x01').len();
                if text[value.clone()].contains('\x01') {
                    continue;
                }
            }
            if name.is_empty() || value.is_empty() {
                continue;
            }
            let bytes = text.as_bytes();
            let (name_bytes, value_bytes) = (&bytes[name.clone()], &bytes[value.clone()]);
            known.note(name_bytes, value_bytes);
            let value = value.start as u32..value.end as u32;
            if names.may_contain(name_bytes) {
                let mut before = self.pairs[begin..].iter_mut();
                if let Some(before) = before.find(|before| &bytes[within(&before.name)] == name_bytes) {
                    before.value = value;
                    continue;
                }
            }
            if self.pairs.len() - begin == FEW_PAIRS {
                return None;
            }
            let name = name.start as u32..name.end as u32;
            self.pairs.push(Pair { name, value });
        }
        Some(known)
    }
}

impl<'a> Properties<'a> {
    pub fn known(&self) -> impl Iterator<Item = &Known<'a>> {
        self.records.iter().map(|each| &each.known)
    }

    /// Appends a map for each record.
    pub fn write(&self, column: &mut TextMaps) {
        for each in &self.records {
            match &each.pairs {
                Some((text, range)) => self.pairs[range.clone()]
                    .iter()
                    .for_each(|pair| column.push_parts(text, within(&pair.name), within(&pair.value))),
                None => write_many(column, each.bytes),
            }
            column.end();
        }
    }

    /// Their bytes together.
    pub fn bytes(&self) -> usize {
        self.records.iter().map(|each| each.bytes.len()).sum()
    }
}

fn write_many(column: &mut TextMaps, bytes: &[u8]) {
    // Names after decoding: two that differ only in invalid bytes are equal.
    let readable = |bytes| String::from_utf8_lossy(bytes);
    let mut found: Vec<(Cow<'_, str>, Cow<'_, str>)> = vec![];
    let mut places: FxHashMap<Cow<'_, str>, usize> = FxHashMap::default();
    for (name, value) in pairs(bytes) {
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

/// Names of one record, to tell quickly that a name is not among them.
#[derive(Default)]
struct Names(u64);

impl Names {
    /// False: no equal name was asked for before.
    #[inline]
    fn may_contain(&mut self, name: &[u8]) -> bool {
        let bit = 1 << ((name[0] as usize + name.len() * 8) & 63);
        let before = self.0;
        self.0 |= bit;
        before & bit != 0
    }
}

/// The places of the bytes 1 and 2 in some bytes.
///
/// They are near to each other, so a search from each one to the next would begin too often. Here 64 bytes are examined
/// at a time, without a branch that depends on where the separators are.
#[derive(Default)]
struct Separators {
    places: Vec<u32>,
    count: usize,
}

const BLOCK: usize = 64;

impl Separators {
    fn places(&self) -> &[u32] {
        &self.places[..self.count]
    }

    /// Returns whether all bytes are ASCII.
    #[inline]
    fn find(&mut self, bytes: &[u8]) -> bool {
        if self.places.len() < bytes.len() + BLOCK {
            self.places.resize(bytes.len() + BLOCK, 0);
        }
        self.count = 0;
        let mut blocks = bytes.chunks_exact(BLOCK);
        let (mut at, mut high) = (0, 0);
        for block in &mut blocks {
            high |= self.note_block(block.try_into().expect("a whole block"), at);
            at += BLOCK;
        }
        let rest = blocks.remainder();
        let mut block = [0; BLOCK];
        block[..rest.len()].copy_from_slice(rest);
        high |= self.note_block(&block, at);
        high == 0
    }

    #[inline]
    fn note_block(&mut self, block: &[u8; BLOCK], at: usize) -> u64 {
        let (found, high) = among(block);
        self.note(found, at);
        high
    }

    /// Appends the places of the bits of `found`, the first of which is at `at`.
    #[inline]
    fn note(&mut self, mut found: u64, at: usize) {
        let count = found.count_ones() as usize;
        for place in &mut self.places[self.count..self.count + count] {
            *place = at as u32 + found.trailing_zeros();
            found &= found - 1;
        }
        self.count += count;
    }
}

/// A bit for each byte of `block` that is 1 or 2, and one for each that is not ASCII; the lowest one for the first byte.
#[cfg(target_arch = "x86_64")]
#[inline]
fn among(block: &[u8; BLOCK]) -> (u64, u64) {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8};
    const PART: usize = 16;
    let (mut found, mut high) = (0, 0);
    for (number, part) in block.chunks_exact(PART).enumerate() {
        // SAFETY: every processor of this kind has SSE2, and the 16 bytes of `part` can be read.
        let (is_separator, is_high) = unsafe {
            let part = _mm_loadu_si128(part.as_ptr().cast());
            let is = |byte| _mm_cmpeq_epi8(part, _mm_set1_epi8(byte));
            (_mm_movemask_epi8(_mm_or_si128(is(1), is(2))), _mm_movemask_epi8(part))
        };
        found |= u64::from(is_separator as u16) << (number * PART);
        high |= u64::from(is_high as u16) << (number * PART);
    }
    (found, high)
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn among(block: &[u8; BLOCK]) -> (u64, u64) {
    let bits = |is: fn(u8) -> bool| {
        let bit = |bits, &byte: &u8| bits >> 1 | u64::from(is(byte)) << (BLOCK - 1);
        block.iter().fold(0, bit)
    };
    (bits(|byte| matches!(byte, 1 | 2)), bits(|byte| !byte.is_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small numbers that look random.
    fn numbers() -> impl FnMut(usize) -> usize {
        let mut state = 1u64;
        move |below| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        }
    }

    #[test]
    fn separators_are_found_among_any_bytes() {
        let (mut number, mut separators) = (numbers(), Separators::default());
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length)
                .map(|_| [0, 1, 2, 3, 0x7f, 0x80, 0x81, 0x82, 0xff][number(9)])
                .collect();
            let expected: Vec<_> = (0..length).filter(|&at| matches!(bytes[at], 1 | 2)).collect();
            assert_eq!(separators.find(&bytes), bytes.is_ascii(), "{bytes:?}");
            let found: Vec<_> = separators.places().iter().map(|&at| at as usize).collect();
            assert_eq!(found, expected, "{bytes:?}");
        }
    }

    /// `Known::find` and `pairs` split one record in another way.
    #[test]
    fn properties_are_split_as_the_dispatcher_splits_them() {
        let words: [&[u8]; 13] = [
            b"KEYS",
            b"TAGS",
            b"UNIQ_KEY",
            b"DELAY",
            b"x",
            b"\x01",
            b"\x01",
            b"\x01",
            b"\x02",
            b"\x02",
            b"\xff",
            b"yy",
            b"\xc3\xa9",
        ];
        let (mut number, mut splitter) = (numbers(), Splitter::default());
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..number(40)).flat_map(|_| words[number(13)].to_vec()).collect();
            let split = splitter.split([&bytes[..]].into_iter());
            assert_eq!(
                split.known().copied().collect::<Vec<_>>(),
                [Known::find(&bytes)],
                "{bytes:?}"
            );
            if let Some((text, range)) = &split.records[0].pairs {
                let mut expected: Vec<(&[u8], &[u8])> = vec![];
                for (name, value) in pairs(&bytes) {
                    match expected.iter_mut().find(|before| before.0 == name) {
                        Some(before) => before.1 = value,
                        None => expected.push((name, value)),
                    }
                }
                let part = |range| &text.as_bytes()[within(range)];
                let found = split.pairs[range.clone()].iter();
                let found: Vec<_> = found.map(|pair| (part(&pair.name), part(&pair.value))).collect();
                assert_eq!(found, expected, "{bytes:?}");
            }
        }
    }
}
