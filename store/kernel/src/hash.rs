//! Java's string hash, as RocketMQ uses it for tags and index keys.
//!
//! `H(s)` runs over the UTF-16 units of `s`, not over its bytes: "😀" has two units. Source: java.lang.String.hashCode.

use pyo3::prelude::*;

/// Java's `String.hashCode` of UTF-8 bytes; invalid bytes count as U+FFFD, as in Java's decoder.
pub fn string_hash(utf8: &[u8]) -> i32 {
    if utf8.is_ascii() {
        return utf8
            .iter()
            .fold(0i32, |h, &byte| h.wrapping_mul(31).wrapping_add(i32::from(byte)));
    }
    String::from_utf8_lossy(utf8)
        .encode_utf16()
        .fold(0i32, |h, unit| h.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// The hash of an index key: `abs(H)`, and 0 for the one value whose absolute value does not fit.
pub fn key_hash(hash: i32) -> i32 {
    hash.checked_abs().unwrap_or(0)
}

/// The hash of `topic#`, from which the hashes of the topic's index keys continue.
pub fn key_seed(topic: &[u8]) -> i32 {
    string_hash(&[topic, b"#"].concat())
}

/// string_hash(text) -> int: Java's `String.hashCode`, signed 32 bits.
#[pyfunction]
#[pyo3(name = "string_hash")]
fn py_string_hash(text: &[u8]) -> i32 {
    string_hash(text)
}

/// key_hash(key) -> int: the index's hash of `topic#key`, never negative.
#[pyfunction]
#[pyo3(name = "key_hash")]
fn py_key_hash(key: &[u8]) -> i32 {
    key_hash(string_hash(key))
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(py_string_hash, module)?)?;
    module.add_function(wrap_pyfunction!(py_key_hash, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_the_reference() {
        assert_eq!(string_hash(b"TagA"), 2598919);
        assert_eq!(string_hash("标签".as_bytes()), 857175);
        assert_eq!(string_hash("\u{1F600}".as_bytes()), 1772899);
        assert_eq!(key_hash(string_hash(b"polygenelubricants")), 0);
        assert_eq!(key_hash(string_hash(b"TopicTest#KEY1")), 1656969516);
    }
}
