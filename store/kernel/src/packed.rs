//! Numbers and texts in a row of bytes: how objects of this module travel between processes (pickle).

pub fn put(bytes: &mut Vec<u8>, number: i64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

pub fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    put(bytes, text.len() as i64);
    bytes.extend_from_slice(text);
}

/// Takes what was put, in the same order. None: the bytes end, or a text is not UTF-8.
pub struct Packed<'a>(pub &'a [u8]);

impl<'a> Packed<'a> {
    pub fn number(&mut self) -> Option<i64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(i64::from_le_bytes(*head))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let size = usize::try_from(self.number()?).ok()?;
        let (head, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(head)
    }

    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_is_taken() {
        let mut bytes = vec![];
        put(&mut bytes, -7);
        put_text(&mut bytes, "Zürich".as_bytes());
        let mut packed = Packed(&bytes);
        assert_eq!((packed.number(), packed.text()), (Some(-7), Some("Zürich".to_owned())));
        assert_eq!((packed.number(), packed.text()), (None, None));
        bytes.pop();
        let mut packed = Packed(&bytes);
        assert_eq!((packed.number(), packed.text()), (Some(-7), None));
    }
}
