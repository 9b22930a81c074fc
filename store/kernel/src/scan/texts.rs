//! Columns of texts and bytes in Arrow's layout: all values one after the other, and where each ends.
//!
//! Arrow's builders check each value as UTF-8 and grow with it. Most texts of a log are ASCII, which is checked faster,
//! and a column keeps the size of the last batch as its room, because the next batch is about as large.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BinaryArray, ListArray, MapArray, StringArray, StructArray};
use arrow_buffer::{Buffer, NullBuffer, NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef};

/// The ends of values within what they have in common.
pub struct Ends(Vec<i32>);

impl Default for Ends {
    fn default() -> Ends {
        Ends(vec![0])
    }
}

impl Ends {
    #[inline]
    pub fn push(&mut self, end: usize) {
        self.0.push(i32::try_from(end).expect("a batch has less than 2 GiB"));
    }

    /// Returns the ends so far; afterwards there is none.
    pub fn finish(&mut self) -> OffsetBuffer<i32> {
        let mut empty = Vec::with_capacity(self.0.len());
        empty.push(0);
        let ends = ScalarBuffer::from(std::mem::replace(&mut self.0, empty));
        // SAFETY: the first one is 0, and none is below the one before it: each is a length of values that only grow.
        unsafe { OffsetBuffer::new_unchecked(ends) }
    }
}

#[derive(Default)]
pub struct Blobs {
    ends: Ends,
    bytes: Vec<u8>,
}

impl Blobs {
    #[inline]
    pub fn push(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.ends.push(self.bytes.len());
    }

    /// Returns the bytes of these values.
    pub fn extend<'a>(&mut self, values: impl Iterator<Item = &'a [u8]> + Clone) -> usize {
        let bytes = values.clone().map(<[u8]>::len).sum();
        self.bytes.reserve(bytes);
        values.for_each(|value| self.push(value));
        bytes
    }

    fn parts(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        let room = Vec::with_capacity(self.bytes.len());
        (
            self.ends.finish(),
            Buffer::from_vec(std::mem::replace(&mut self.bytes, room)),
        )
    }

    pub fn finish(&mut self) -> ArrayRef {
        let (ends, bytes) = self.parts();
        Arc::new(BinaryArray::new(ends, bytes, None))
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

    pub fn count(&self) -> usize {
        self.0.ends.0.len() - 1
    }

    fn array(&mut self, nulls: Option<NullBuffer>) -> StringArray {
        let (ends, bytes) = self.0.parts();
        // SAFETY: only `push` and `push_str` add values, each of them UTF-8 as a whole, and each ends where the next
        // one begins. `nulls` has a bit for each value.
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
    #[inline]
    pub fn push(&mut self, key: &str, value: &str) {
        self.keys.push_str(key);
        self.values.push_str(value);
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
