//! Latencies in nanoseconds, in buckets that grow with the value: an error below 1/128 at any size, 64 KiB whatever is recorded.
//!
//! Values below 256 have a bucket each; above, every power of two is cut into 128 equal ones (the layout of HdrHistogram).

const SUB_BITS: u32 = 7;
const SUB: usize = 1 << SUB_BITS;
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) * SUB;

pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    max: u64,
}

fn bucket_of(value: u64) -> usize {
    let shift = (64 - SUB_BITS - 1).saturating_sub(value.leading_zeros());
    (shift as usize) * SUB + (value >> shift) as usize
}

/// The largest value that falls into this bucket.
fn upper_end(bucket: usize) -> u64 {
    if bucket < 2 * SUB {
        return bucket as u64;
    }
    let shift = bucket / SUB - 1;
    let low = (SUB + bucket % SUB) as u128;
    (((low + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

impl Histogram {
    pub fn new() -> Self {
        Histogram {
            counts: vec![0; BUCKETS],
            total: 0,
            sum: 0,
            max: 0,
        }
    }

    pub fn record(&mut self, nanoseconds: u64) {
        self.counts[bucket_of(nanoseconds)] += 1;
        self.total += 1;
        self.sum += u128::from(nanoseconds);
        self.max = self.max.max(nanoseconds);
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    pub fn mean(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        self.sum as f64 / self.total as f64
    }

    /// The value that `part` (0 to 1) of the records do not exceed, rounded up to its bucket's end; 0 when nothing is recorded.
    pub fn percentile(&self, part: f64) -> u64 {
        let wanted = ((part * self.total as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_end(bucket).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_ends_where_the_next_begins() {
        for bucket in 0..BUCKETS - 1 {
            let end = upper_end(bucket);
            assert_eq!(bucket_of(end), bucket, "end of {bucket}");
            assert_eq!(bucket_of(end + 1), bucket + 1, "beginning of {}", bucket + 1);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(upper_end(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_agree_with_a_sorted_list() {
        let mut state = 88_172_645_463_325_252_u64;
        let mut list = Vec::new();
        let mut histogram = Histogram::new();
        for _ in 0..50_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = (state >> 20) >> (state % 40); // over many powers of two
            list.push(value);
            histogram.record(value);
        }
        list.sort_unstable();
        for part in [0.001, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = list[(part * list.len() as f64).ceil() as usize - 1];
            let found = histogram.percentile(part);
            assert!(
                found >= exact && found as f64 <= exact as f64 * (1.0 + 1.0 / 128.0) + 1.0,
                "{part}: {found}, exactly {exact}"
            );
        }
        assert_eq!(histogram.max(), *list.last().unwrap());
        let mean = list.iter().map(|&value| value as f64).sum::<f64>() / list.len() as f64;
        assert!((histogram.mean() - mean).abs() <= mean * 1e-9);
    }

    #[test]
    fn an_empty_one_answers_zero() {
        let histogram = Histogram::new();
        assert_eq!(
            (histogram.percentile(0.99), histogram.max(), histogram.mean()),
            (0, 0, 0.0)
        );
    }
}
