//! A set of queue offsets, one bit each, in blocks; blocks without a bit take no memory.

use std::collections::BTreeMap;

const BITS: i64 = 4096;
const WORDS: usize = (BITS / 64) as usize;

type Block = Box<[u64; WORDS]>;

#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    blocks: BTreeMap<i64, Block>,
    count: u64,
}

fn place(offset: i64) -> (i64, usize, u64) {
    let bit = offset.rem_euclid(BITS);
    (offset.div_euclid(BITS), (bit / 64) as usize, 1 << (bit % 64))
}

impl Pending {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Memory.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * (WORDS * 8 + 24)
    }

    pub fn has(&self, offset: i64) -> bool {
        let (block, word, bit) = place(offset);
        self.blocks.get(&block).is_some_and(|words| words[word] & bit != 0)
    }

    pub fn set(&mut self, offset: i64) {
        let (block, word, bit) = place(offset);
        let words = self.blocks.entry(block).or_insert_with(|| Box::new([0; WORDS]));
        self.count += u64::from(words[word] & bit == 0);
        words[word] |= bit;
    }

    /// Whether it was in the set.
    pub fn clear(&mut self, offset: i64) -> bool {
        let (block, word, bit) = place(offset);
        let Some(words) = self.blocks.get_mut(&block).filter(|words| words[word] & bit != 0) else {
            return false;
        };
        words[word] &= !bit;
        self.count -= 1;
        if words[word] == 0 && words.iter().all(|&word| word == 0) {
            self.blocks.remove(&block);
        }
        true
    }

    /// Removes all below `offset`; returns how many there were.
    pub fn clear_below(&mut self, offset: i64) -> u64 {
        let before = self.count;
        while let Some(first) = self.next(i64::MIN).filter(|&first| first < offset) {
            self.clear(first);
        }
        before - self.count
    }

    /// The smallest one that is not below `offset`.
    pub fn next(&self, offset: i64) -> Option<i64> {
        let (from, word, bit) = place(offset);
        for (&block, words) in self.blocks.range(from..) {
            let begin = if block == from { word } else { 0 };
            for (at, &bits) in words.iter().enumerate().skip(begin) {
                let bits = if block == from && at == word {
                    bits & !(bit - 1)
                } else {
                    bits
                };
                if bits != 0 {
                    return Some(block * BITS + at as i64 * 64 + i64::from(bits.trailing_zeros()));
                }
            }
        }
        None
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.blocks.len() as u64).to_be_bytes());
        for (block, words) in &self.blocks {
            out.extend_from_slice(&block.to_be_bytes());
            for word in words.iter() {
                out.extend_from_slice(&word.to_be_bytes());
            }
        }
    }

    /// The inverse of `encode`, from the start of `bytes`, which it shortens. None: they are not a set.
    pub fn decode(bytes: &mut &[u8]) -> Option<Pending> {
        let long = |bytes: &mut &[u8]| {
            let (head, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Some(u64::from_be_bytes(*head))
        };
        let mut pending = Pending::default();
        for _ in 0..long(bytes)? {
            let block = long(bytes)? as i64;
            let mut words = Box::new([0; WORDS]);
            for word in words.iter_mut() {
                *word = long(bytes)?;
                pending.count += u64::from(word.count_ones());
            }
            pending.blocks.insert(block, words);
        }
        Some(pending)
    }
}
