//! Memory of batches that are no longer used, for the next ones.
//!
//! A batch has megabytes. Memory that the allocator gets from the system for each of them arrives page by page, each with
//! a fault and filled with zeros, which takes a tenth of a scan. So a column gets the memory of its arrays back when they
//! are dropped, wherever that happens.

use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::{ArrowNativeType, Buffer, ScalarBuffer};

/// A reader holds one batch while the next one is filled.
const MOST_SPARE: usize = 2;

/// The memory that one column uses again and again.
pub struct Memory<T>(Arc<Mutex<Vec<Vec<T>>>>);

impl<T> Default for Memory<T> {
    fn default() -> Memory<T> {
        Memory(Arc::default())
    }
}

impl<T: ArrowNativeType + RefUnwindSafe> Memory<T> {
    /// The vector of an earlier array with its old values, or a new one with `count` values: the next batch is about as
    /// large.
    pub fn take(&self, count: usize) -> Vec<T> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![T::default(); count])
    }

    /// The first `count` values for an array. Their memory comes back when no array has it any more.
    pub fn lend(&self, values: Vec<T>, count: usize) -> Buffer {
        assert!(count <= values.len());
        let bytes = NonNull::from(values.as_slice()).cast();
        let owner = Lent {
            values,
            home: self.0.clone(),
        };
        // SAFETY: the vector has that many values, and keeps them in one place: nobody changes it before it is dropped
        // with the last user of the buffer.
        unsafe { Buffer::from_custom_allocation(bytes, count * size_of::<T>(), Arc::new(owner)) }
    }
}

struct Lent<T> {
    values: Vec<T>,
    home: Arc<Mutex<Vec<Vec<T>>>>,
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let mut spare = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MOST_SPARE {
            spare.push(std::mem::take(&mut self.values));
        }
    }
}

/// A column of numbers.
pub struct Numbers<T> {
    values: Vec<T>,
    memory: Memory<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers {
            values: vec![],
            memory: Memory::default(),
        }
    }
}

impl<T: ArrowNativeType + RefUnwindSafe> Numbers<T> {
    #[inline]
    pub fn push(&mut self, value: T) {
        self.values.push(value);
    }

    #[inline]
    pub fn extend(&mut self, values: impl Iterator<Item = T>) {
        self.values.extend(values);
    }

    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the numbers so far; the column is empty again.
    pub fn finish(&mut self) -> ScalarBuffer<T> {
        let mut empty = self.memory.take(self.values.len());
        empty.clear();
        let values = std::mem::replace(&mut self.values, empty);
        let count = values.len();
        ScalarBuffer::new(self.memory.lend(values, count), 0, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_no_array_has_it_any_more() {
        let mut numbers = Numbers::<i64>::default();
        numbers.extend(0..1000);
        let first = numbers.finish();
        let (place, same) = (first.as_ptr(), first.clone());
        drop(first);
        numbers.extend(1000..2000);
        let second = numbers.finish(); // `same` has the memory of the first one
        assert_ne!(second.as_ptr(), place);
        assert!(same.iter().copied().eq(0..1000));
        drop(same);
        numbers.extend(0..1); // the vector in use was taken before
        numbers.finish();
        numbers.extend(2000..3000);
        let third = numbers.finish();
        assert_eq!(third.as_ptr(), place);
        assert!(third.iter().copied().eq(2000..3000) && second.iter().copied().eq(1000..2000));
    }

    #[test]
    fn a_column_that_is_gone_leaves_its_arrays() {
        let mut numbers = Numbers::<i32>::default();
        numbers.extend(0..100);
        let array = numbers.finish();
        drop(numbers);
        assert!(array.iter().copied().eq(0..100));
        assert_eq!(Numbers::<i32>::default().finish().len(), 0);
    }
}
