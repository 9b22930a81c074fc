//! Signatures of requests: the base64 text of an HMAC-SHA1, with a key schedule that is computed once per key.
//!
//! Source: AclSigner of RocketMQ 4.8.0; RFC 2104.

use sha1::{Digest, Sha1};

const BLOCK_BYTES: usize = 64;
const DIGEST_BYTES: usize = 20;
const TEXT_BYTES: usize = 28;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The states of both hashes after their block of the key.
#[derive(Clone)]
pub struct KeySchedule {
    inner: Sha1,
    outer: Sha1,
}

impl KeySchedule {
    pub fn new(secret: &[u8]) -> Self {
        let mut block = [0u8; BLOCK_BYTES];
        if secret.len() > BLOCK_BYTES {
            block[..DIGEST_BYTES].copy_from_slice(&Sha1::digest(secret));
        } else {
            block[..secret.len()].copy_from_slice(secret);
        }
        let after = |pad: u8| Sha1::new().chain_update(block.map(|byte| byte ^ pad));
        KeySchedule {
            inner: after(0x36),
            outer: after(0x5c),
        }
    }

    /// The signature of the parts, one after the other.
    pub fn sign<'a>(&self, parts: impl Iterator<Item = &'a [u8]>) -> [u8; TEXT_BYTES] {
        let mut inner = self.inner.clone();
        for part in parts {
            inner.update(part);
        }
        base64(&self.outer.clone().chain_update(inner.finalize()).finalize().into())
    }

    /// Whether `given` is the signature of the parts. The time does not depend on how much of it is right.
    pub fn verifies<'a>(&self, parts: impl Iterator<Item = &'a [u8]>, given: &[u8]) -> bool {
        let expected = self.sign(parts);
        let difference = expected.iter().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
        given.len() == TEXT_BYTES && std::hint::black_box(difference) == 0
    }
}

fn base64(digest: &[u8; DIGEST_BYTES]) -> [u8; TEXT_BYTES] {
    let mut text = [b'='; TEXT_BYTES];
    for (three, four) in digest.chunks(3).zip(text.chunks_mut(4)) {
        let bits = three
            .iter()
            .enumerate()
            .fold(0u32, |sum, (at, byte)| sum | u32::from(*byte) << (16 - 8 * at));
        for (at, character) in four.iter_mut().take(three.len() + 1).enumerate() {
            *character = ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(secret: &[u8], parts: &[&[u8]]) -> String {
        String::from_utf8(KeySchedule::new(secret).sign(parts.iter().copied()).to_vec()).unwrap()
    }

    #[test]
    fn signatures_are_those_of_rfc_2202() {
        assert_eq!(signed(&[0x0b; 20], &[b"Hi ", b"There"]), "thcxhlUFcmTii8C2+zeMjvFGvgA=");
        assert_eq!(
            signed(b"Jefe", &[b"what do ya want ", b"for nothing?"]),
            "7/zfauXrL6LSdBbV8YTfnCWafHk="
        );
        let long = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(signed(&[0xaa; 80], &[long]), "qkrl4VJy0A6VcFY3zoo7Ve1AIRI=");
    }

    #[test]
    fn only_the_whole_signature_is_right() {
        let schedule = KeySchedule::new(b"12345678");
        let parts = || [&b"a"[..], b"b"].into_iter();
        let right = schedule.sign(parts());
        assert!(schedule.verifies(parts(), &right));
        for at in 0..right.len() {
            let mut wrong = right;
            wrong[at] ^= 1;
            assert!(!schedule.verifies(parts(), &wrong), "{at}");
            assert!(!schedule.verifies(parts(), &right[..at]), "{at}");
        }
        assert!(!schedule.verifies(parts(), &[&right[..], b"="].concat()));
        assert!(!KeySchedule::new(b"12345679").verifies(parts(), &right));
    }
}
