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
    pairs: Vec<(&'a str, &'a str)>,
    separators: Separators,
}

struct Split<'a> {
    bytes: &'a [u8],
    known: Known<'a>,
    /// Its part of `pairs`; None: there are many, or they are not UTF-8.
    pairs: Option<Range<usize>>,
}

impl<'a> Properties<'a> {
    pub fn of(each: impl Iterator<Item = &'a [u8]>) -> Properties<'a> {
        let records = each.size_hint().0;
        let mut properties = Properties {
            records: Vec::with_capacity(records),
            pairs: Vec::with_capacity(records * 8),
            separators: Separators::default(),
        };
        each.for_each(|bytes| properties.add(bytes));
        properties
    }

    fn add(&mut self, bytes: &'a [u8]) {
        let begin = self.pairs.len();
        let (known, pairs) = match std::str::from_utf8(bytes).ok().and_then(|text| self.split(text)) {
            Some(known) => (known, Some(begin..self.pairs.len())),
            None => {
                self.pairs.truncate(begin);
                (Known::find(bytes), None)
            }
        };
        self.records.push(Split { bytes, known, pairs });
    }

    /// Appends the pairs of `text` to `pairs`; None: there are too many.
    fn split(&mut self, text: &'a str) -> Option<Known<'a>> {
        let begin = self.pairs.len();
        let mut known = Known::default();
        let mut names = Names::default();
        self.separators.find(text.as_bytes());
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
            let mut value = &text[name.end + 1..pair_end];
            if values > 1 {
                value = value.trim_end_matches('\x01');
                if value.contains('\x01') {
                    continue;
                }
            }
            let name = &text[name];
            if name.is_empty() || value.is_empty() {
                continue;
            }
            known.note(name.as_bytes(), value.as_bytes());
            if names.may_contain(name) {
                if let Some(before) = self.pairs[begin..].iter_mut().find(|before| before.0 == name) {
                    before.1 = value;
                    continue;
                }
            }
            if self.pairs.len() - begin == FEW_PAIRS {
                return None;
            }
            self.pairs.push((name, value));
        }
        Some(known)
    }

    pub fn known(&self) -> impl Iterator<Item = &Known<'a>> {
        self.records.iter().map(|each| &each.known)
    }

    /// Appends a map for each record.
    pub fn write(&self, column: &mut TextMaps) {
        for each in &self.records {
            match &each.pairs {
                Some(range) => self.pairs[range.clone()]
                    .iter()
                    .for_each(|(name, value)| column.push(name, value)),
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
    fn may_contain(&mut self, name: &str) -> bool {
        let bit = 1 << ((name.as_bytes()[0] as usize + name.len() * 8) & 63);
        let before = self.0;
        self.0 |= bit;
        before & bit != 0
    }
}

/// The places of the bytes 1 and 2 in some bytes.
///
/// They are near to each other, so a search from each one to the next would begin too often. Here eight bytes are
/// examined at a time, without a branch that depends on where the separators are.
#[derive(Default)]
struct Separators {
    places: Vec<u32>,
    count: usize,
}

const EACH: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * EACH;

impl Separators {
    fn places(&self) -> &[u32] {
        &self.places[..self.count]
    }

    fn find(&mut self, bytes: &[u8]) {
        if self.places.len() < bytes.len() + 8 {
            self.places.resize(bytes.len() + 8, 0);
        }
        self.count = 0;
        let mut words = bytes.chunks_exact(8);
        let mut at = 0;
        for word in &mut words {
            self.note(u64::from_le_bytes(word.try_into().expect("eight bytes")), at);
            at += 8;
        }
        let rest = words
            .remainder()
            .iter()
            .rev()
            .fold(0, |word, &byte| word << 8 | u64::from(byte));
        self.note(rest, at);
    }

    /// Appends the places in the bytes of `word`, the first of which is at `at`.
    #[inline]
    fn note(&mut self, word: u64, at: u32) {
        let mut found = Separators::among(word);
        let count = ((found >> 7).wrapping_mul(EACH) >> 56) as usize;
        let places = &mut self.places[self.count..self.count + 8];
        // Most words have at most two.
        places[0] = at + found.trailing_zeros() / 8;
        found &= found.wrapping_sub(1);
        places[1] = at + found.trailing_zeros() / 8;
        for place in places.iter_mut().take(count).skip(2) {
            found &= found - 1;
            *place = at + found.trailing_zeros() / 8;
        }
        self.count += count;
    }

    /// The highest bit of each byte of `word` that is 1 or 2.
    #[inline]
    fn among(word: u64) -> u64 {
        // One more is 2 or 3, which differ only in the lowest bit. No sum carries into the next byte.
        let differs = ((((word & !HIGH) + EACH) ^ (2 * EACH)) & !EACH) | (word & HIGH);
        !(((differs & !HIGH) + !HIGH) | differs) & HIGH
    }
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
            separators.find(&bytes);
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
        let mut number = numbers();
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..number(40)).flat_map(|_| words[number(13)].to_vec()).collect();
            let split = Properties::of([&bytes[..]].into_iter());
            assert_eq!(
                split.known().copied().collect::<Vec<_>>(),
                [Known::find(&bytes)],
                "{bytes:?}"
            );
            if let Some(range) = &split.records[0].pairs {
                let mut expected: Vec<(&[u8], &[u8])> = vec![];
                for (name, value) in pairs(&bytes) {
                    match expected.iter_mut().find(|before| before.0 == name) {
                        Some(before) => before.1 = value,
                        None => expected.push((name, value)),
                    }
                }
                let found = split.pairs[range.clone()].iter();
                let found: Vec<_> = found.map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
                assert_eq!(found, expected, "{bytes:?}");
            }
        }
    }
}
