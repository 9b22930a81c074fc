//! The sizes of the records that this broker itself stored, in classes.

/// Upper limits (inclusive) of all classes but the last one, in bytes: those of RocketMQ 5.
pub(super) const LIMITS: [u64; 6] = [1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
pub(super) const CLASSES: usize = LIMITS.len() + 1;

#[derive(Default)]
pub(super) struct RecordSizes {
    counts: [u64; CLASSES],
    bytes: u64,
}

impl RecordSizes {
    #[inline]
    pub(super) fn add(&mut self, bytes: u64) {
        let class = LIMITS.iter().take_while(|&&limit| limit < bytes).count(); // mostly the first ones
        self.counts[class] += 1;
        self.bytes += bytes;
    }

    /// The counts by class, and all bytes together.
    pub(super) fn totals(&self) -> ([u64; CLASSES], u64) {
        (self.counts, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_in_the_first_class_whose_limit_it_does_not_exceed() {
        assert!(LIMITS.windows(2).all(|pair| pair[0] < pair[1]));
        for (class, &limit) in LIMITS.iter().enumerate() {
            let mut sizes = RecordSizes::default();
            sizes.add(limit);
            sizes.add(limit + 1);
            let (counts, bytes) = sizes.totals();
            assert_eq!((counts[class], counts[class + 1], bytes), (1, 1, 2 * limit + 1));
        }
    }
}
