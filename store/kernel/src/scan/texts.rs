//! Columns of texts and bytes in Arrow's layout: all values one after the other, and where each ends.
//!
//! Arrow's builders check each value as UTF-8 and grow with it. Most texts of a log are ASCII, which is checked faster, and
//! short: a call that copies bytes costs more than the copy of a few of them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, MapArray, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef};

use super::memory::{Memory, Numbers};

/// Bytes that are copied at once where more bytes follow a text.
const WIDE: usize = 32;

/// The ends of values within what they have in common.
pub struct Ends(Numbers<i32>);

impl Default for Ends {
    fn default() -> Ends {
        let mut ends = Numbers::default();
        ends.push(0);
        Ends(ends)
    }
}

impl Ends {
    #[inline]
    pub fn push(&mut self, end: usize) {
        self.0.push(i32::try_from(end).expect("a batch has less than 2 GiB"));
    }

    fn count(&self) -> usize {
        self.0.count() - 1
    }

    /// Returns the ends so far; afterwards there is none.
    pub fn finish(&mut self) -> OffsetBuffer<i32> {
        let ends = self.0.finish();
        self.0.push(0);
        // SAFETY: the first one is 0, and none is below the one before it: each is a length of values that only grow.
        unsafe { OffsetBuffer::new_unchecked(ends) }
    }
}

#[derive(Default)]
pub struct Blobs {
    ends: Ends,
    /// The values, and room behind them, which has any content.
    bytes: Vec<u8>,
    used: usize,
    memory: Memory<u8>,
}

impl Blobs {
    #[inline]
    pub fn push(&mut self, value: &[u8]) {
        self.make_room(value.len());
        let end = self.used + value.len();
        copy(value, &mut self.bytes[self.used..end]);
        self.used = end;
        self.ends.push(end);
    }

    /// Appends a part of `bytes`.
    #[inline]
    fn push_part(&mut self, bytes: &[u8], part: Range<usize>) {
        match bytes.get(part.start..part.start + WIDE) {
            Some(wide) if part.len() <= WIDE => {
                self.make_room(WIDE);
                self.bytes[self.used..self.used + WIDE].copy_from_slice(wide);
                self.used += part.len();
                self.ends.push(self.used);
            }
            _ => self.push(&bytes[part]),
        }
    }

    /// Returns the bytes of these values.
    pub fn extend<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) -> usize {
        let before = self.used;
        values.for_each(|value| self.push(value));
        self.used - before
    }

    #[inline]
    fn make_room(&mut self, size: usize) {
        if self.bytes.len() - self.used < size {
            self.grow(size);
        }
    }

    #[cold]
    fn grow(&mut self, size: usize) {
        self.bytes.resize((self.used + size).max(self.bytes.len() * 2), 0);
    }

    fn parts(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let used = std::mem::take(&mut self.used);
        let room = self.memory.take(used + used / 8);
        let bytes = std::mem::replace(&mut self.bytes, room);
        (self.ends.finish(), self.memory.lend(bytes, used))
    }

    pub fn finish(&mut self) -> ArrayRef {
        let (ends, bytes) = self.parts();
        Arc::new(BinaryArray::new(ends, bytes, None))
    }
}

/// Copies bytes between slices of one length.
#[inline(always)]
fn copy(from: &[u8], to: &mut [u8]) {
    /// Both ends in pieces of N bytes, which overlap.
    #[inline(always)]
    fn ends<const N: usize>(from: &[u8], to: &mut [u8]) {
        let last = from.len() - N;
        let (head, tail) = (<[u8; N]>::try_from(&from[..N]), <[u8; N]>::try_from(&from[last..]));
        to[..N].copy_from_slice(&head.expect("N bytes"));
        to[last..].copy_from_slice(&tail.expect("N bytes"));
    }
    match from.len() {
        0 => {}
        1..4 => from.iter().zip(to).for_each(|(from, to)| *to = *from),
        4..8 => ends::<4>(from, to),
        8..16 => ends::<8>(from, to),
        16..=32 => ends::<16>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Every value is UTF-8: `push` replaces what is not.
#[derive(Default)]
pub struct Texts(Blobs);

impl Texts {
    /// Invalid bytes become U+FFFD, as in Java's decoder.
    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        if text.is_ascii() {
            self.0.push(text);
        } else {
            self.0.push(String::from_utf8_lossy(text).as_bytes());
        }
    }

    /// Returns the bytes of these values.
    pub fn extend<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) -> usize {
        values.fold(0, |bytes, value| {
            self.push(value);
            bytes + value.len()
        })
    }

    #[inline]
    pub fn push_str(&mut self, text: &str) {
        self.0.push(text.as_bytes());
    }

    /// Appends a part of `text`, which must begin and end between characters.
    #[inline]
    pub fn push_part(&mut self, text: &str, part: Range<usize>) {
        assert!(text.is_char_boundary(part.start) && text.is_char_boundary(part.end));
        self.0.push_part(text.as_bytes(), part);
    }

    pub fn count(&self) -> usize {
        self.0.ends.count()
    }

    fn array(&mut self, nulls: Option<NullBuffer>) -> StringArray {
        let (ends, bytes) = self.0.parts();
        // SAFETY: only `push`, `push_str` and `push_part` add values, each of them UTF-8 as a whole, and each ends where
        // the next one begins. `nulls` has a bit for each value.
        unsafe { StringArray::new_unchecked(ends, bytes, nulls) }
    }

    pub fn finish(&mut self) -> ArrayRef {
        Arc::new(self.array(None))
    }
}

/// A column in which each value is the same. Batches share its bytes.
pub struct Repeated {
    text: String,
    array: StringArray,
}

impl Repeated {
    pub fn new(text: &str) -> Repeated {
        Repeated {
            text: text.to_owned(),
            array: StringArray::new_null(0),
        }
    }

    pub fn array(&mut self, rows: usize) -> ArrayRef {
        if self.array.len() < rows {
            let size = self.text.len();
            let ends = (0..=rows).map(|row| i32::try_from(row * size).expect("a batch has less than 2 GiB"));
            let ends = OffsetBuffer::new(ends.collect());
            let bytes = Buffer::from_vec(self.text.repeat(rows).into_bytes());
            self.array = StringArray::new(ends, bytes, None);
        }
        Arc::new(self.array.slice(0, rows))
    }
}

/// Texts of which an empty one is null.
pub struct TextsOrNull {
    texts: Texts,
    valid: NullBufferBuilder,
}

impl Default for TextsOrNull {
    fn default() -> TextsOrNull {
        TextsOrNull {
            texts: Texts::default(),
            valid: NullBufferBuilder::new(0),
        }
    }
}

impl TextsOrNull {
    #[inline]
    pub fn push(&mut self, text: &[u8]) {
        self.texts.push(text);
        self.valid.append(!text.is_empty());
    }

    /// Returns the bytes of these values.
    pub fn extend<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) -> usize {
        values.fold(0, |bytes, value| {
            self.push(value);
            bytes + value.len()
        })
    }

    pub fn finish(&mut self) -> ArrayRef {
        let nulls = self.valid.finish();
        Arc::new(self.texts.array(nulls))
    }
}

/// Lists of texts.
#[derive(Default)]
pub struct TextLists {
    ends: Ends,
    pub texts: Texts,
}

impl TextLists {
    /// Ends the list to which `texts` were pushed.
    #[inline]
    pub fn end(&mut self) {
        self.ends.push(self.texts.count());
    }

    pub fn finish(&mut self) -> ArrayRef {
        let item = Arc::new(Field::new("element", DataType::Utf8, false));
        Arc::new(ListArray::new(item, self.ends.finish(), self.texts.finish(), None))
    }
}

/// Maps from texts to texts.
#[derive(Default)]
pub struct TextMaps {
    ends: Ends,
    keys: Texts,
    values: Texts,
}

impl TextMaps {
    pub fn push(&mut self, key: &str, value: &str) {
        self.keys.push_str(key);
        self.values.push_str(value);
    }

    /// Appends parts of `text`, which must begin and end between characters.
    #[inline]
    pub fn push_parts(&mut self, text: &str, key: Range<usize>, value: Range<usize>) {
        self.keys.push_part(text, key);
        self.values.push_part(text, value);
    }

    /// Ends the map to which pairs were pushed.
    #[inline]
    pub fn end(&mut self) {
        self.ends.push(self.keys.count());
    }

    pub fn finish(&mut self) -> ArrayRef {
        let text = |name| -> FieldRef { Arc::new(Field::new(name, DataType::Utf8, false)) };
        let columns = vec![self.keys.finish(), self.values.finish()];
        let entries = StructArray::new(vec![text("key"), text("value")].into(), columns, None);
        let field = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        Arc::new(MapArray::new(field, self.ends.finish(), entries, None, false))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;

    use super::*;

    #[test]
    fn values_of_all_lengths_are_copied_whole() {
        let bytes: Vec<u8> = (0..300).map(|at| at as u8).collect();
        let (mut pushed, mut parts) = (Blobs::default(), Blobs::default());
        let ranges: Vec<_> = (0..100).flat_map(|size| [7..7 + size, 300 - size..300]).collect();
        for _ in 0..3 {
            for range in &ranges {
                pushed.push(&bytes[range.clone()]);
                parts.push_part(&bytes, range.clone());
            }
            for column in [&mut pushed, &mut parts] {
                let array = column.finish();
                let array = array.as_binary::<i32>();
                assert!(array
                    .iter()
                    .map(|value| value.expect("no nulls"))
                    .eq(ranges.iter().map(|range| &bytes[range.clone()])));
            }
        }
    }

    #[test]
    #[should_panic(expected = "is_char_boundary")]
    fn a_part_of_a_character_is_no_text() {
        Texts::default().push_part("\u{e9}", 0..1);
    }
}
