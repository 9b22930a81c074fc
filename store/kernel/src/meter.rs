//! Meters: what a user or a client may still do now, in messages, bytes and requests.
//!
//! A meter has a bucket for each of the three. A bucket fills with its rate up to what the rate gives in the time of the
//! burst. A request is admitted while no bucket is empty, and then takes its whole cost: a bucket may fall below zero, so
//! a request that costs more than the bucket holds is admitted too, and those behind it wait longer. Over time nobody
//! gets more than the rate.
//!
//! Python owns the meters and refuses requests; `feed` asks the same meters for the sends that it stores itself. The
//! times are those of the wall clock: if it is set, a bucket gains at most one burst, and never loses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Messages, bytes, requests.
const KINDS: usize = 3;

#[derive(Clone, Copy, Default)]
struct Bucket {
    /// Per second; 0: no limit.
    rate: f64,
    level: f64,
}

impl Bucket {
    fn capacity(self, burst_s: f64) -> f64 {
        (self.rate * burst_s).max(1.0)
    }
}

struct Buckets {
    buckets: [Bucket; KINDS],
    burst_s: f64,
    at_ms: i64,
}

impl Buckets {
    fn fill(&mut self, now_ms: i64) {
        let elapsed_s = (now_ms.saturating_sub(self.at_ms)).max(0) as f64 / 1000.0;
        self.at_ms = now_ms;
        for bucket in &mut self.buckets {
            let capacity = bucket.capacity(self.burst_s);
            bucket.level = (bucket.level + bucket.rate * elapsed_s).min(capacity);
        }
    }

    fn take(&mut self, costs: [f64; KINDS]) {
        for (bucket, cost) in self.buckets.iter_mut().zip(costs) {
            if bucket.rate > 0.0 {
                bucket.level -= cost;
            }
        }
    }

    /// The bucket that is empty for the longest time, and for how many milliseconds.
    fn empty(&self) -> Option<(usize, i64)> {
        let waits = self.buckets.iter().enumerate().filter_map(|(kind, bucket)| {
            let is_empty = bucket.rate > 0.0 && bucket.level <= 0.0;
            is_empty.then(|| (kind, (-bucket.level / bucket.rate * 1000.0) as i64 + 1))
        });
        waits.max_by_key(|&(_, wait_ms)| wait_ms)
    }
}

/// The buckets of one meter, shared by Python and the connections that it measures.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Buckets>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self, now_ms: i64) -> bool {
        let mut buckets = self.lock();
        buckets.fill(now_ms);
        buckets.empty().is_none()
    }

    fn take(&self, messages: u64, bytes: u64, requests: u64) {
        self.lock().take([messages as f64, bytes as f64, requests as f64]);
    }
}

/// Takes the cost of one send from all meters. False: one of them is empty, and nothing was taken.
pub fn admit<'a>(meters: impl Iterator<Item = &'a Shared> + Clone, bytes: u64, now_ms: i64) -> bool {
    if !meters.clone().all(|meter| meter.is_open(now_ms)) {
        return false;
    }
    meters.for_each(|meter| meter.take(1, bytes, 1));
    true
}

#[pyclass(module = "tallystick.store._kernel", frozen, weakref)]
pub struct Meter(pub Shared);

fn checked(rates: [f64; KINDS], burst_s: f64) -> PyResult<()> {
    let is_valid = |number: &f64| number.is_finite() && *number >= 0.0;
    if rates.iter().all(is_valid) && is_valid(&burst_s) {
        return Ok(());
    }
    Err(PyValueError::new_err("rates and bursts are not negative"))
}

#[pymethods]
impl Meter {
    /// Meter(messages, bytes, requests, burst_s, now_ms): rates per second, 0 for no limit. All buckets are full.
    #[new]
    fn new(messages: f64, bytes: f64, requests: f64, burst_s: f64, now_ms: i64) -> PyResult<Self> {
        let rates = [messages, bytes, requests];
        checked(rates, burst_s)?;
        let buckets = rates.map(|rate| {
            let bucket = Bucket { rate, level: 0.0 };
            Bucket {
                level: bucket.capacity(burst_s),
                ..bucket
            }
        });
        let buckets = Buckets {
            buckets,
            burst_s,
            at_ms: now_ms,
        };
        Ok(Meter(Shared(Arc::new(Mutex::new(buckets)))))
    }

    /// set_rates(messages, bytes, requests, burst_s): other rates from now on. What was taken stays taken.
    fn set_rates(&self, messages: f64, bytes: f64, requests: f64, burst_s: f64) -> PyResult<()> {
        let rates = [messages, bytes, requests];
        checked(rates, burst_s)?;
        let mut buckets = self.0.lock();
        buckets.burst_s = burst_s;
        for (bucket, rate) in buckets.buckets.iter_mut().zip(rates) {
            if bucket.rate == 0.0 {
                bucket.level = f64::INFINITY; // it was not counted: it is full
            }
            bucket.rate = rate;
            bucket.level = bucket.level.min(bucket.capacity(burst_s));
        }
        Ok(())
    }

    /// wait(now_ms) -> (kind, ms) | None: which bucket is empty, and until when; None: a request is admitted.
    fn wait(&self, now_ms: i64) -> Option<(usize, i64)> {
        let mut buckets = self.0.lock();
        buckets.fill(now_ms);
        buckets.empty()
    }

    /// take(messages, bytes, requests): the cost of what was admitted.
    fn take(&self, messages: u64, bytes: u64, requests: u64) {
        self.0.take(messages, bytes, requests);
    }

    /// is_full(now_ms): whether all buckets are full, so that a new meter with these rates is the same.
    fn is_full(&self, now_ms: i64) -> bool {
        let mut buckets = self.0.lock();
        buckets.fill(now_ms);
        let burst_s = buckets.burst_s;
        buckets
            .buckets
            .iter()
            .all(|bucket| bucket.rate == 0.0 || bucket.level >= bucket.capacity(burst_s))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Meter>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter(messages: f64, bytes: f64) -> Meter {
        Meter::new(messages, bytes, 0.0, 2.0, 1_000).unwrap()
    }

    fn admitted(meter: &Meter, bytes: u64, now_ms: i64) -> bool {
        admit([&meter.0].into_iter(), bytes, now_ms)
    }

    #[test]
    fn a_burst_and_then_the_rate_is_admitted() {
        let meter = meter(10.0, 0.0);
        let mut count = 0;
        for now_ms in 1_000..11_000 {
            while admitted(&meter, 1_000_000, now_ms) {
                count += 1;
            }
        }
        assert!((119..=121).contains(&count), "{count}");
    }

    #[test]
    fn a_request_above_the_burst_is_admitted_and_paid_by_those_behind_it() {
        let meter = meter(0.0, 100.0);
        assert!(admitted(&meter, 1_000, 1_000));
        assert_eq!(meter.wait(1_000), Some((1, 8_001)));
        assert!(!admitted(&meter, 1, 8_999));
        assert!(admitted(&meter, 1, 9_002));
    }

    #[test]
    fn one_empty_meter_takes_nothing_from_the_others() {
        let (empty, other) = (meter(1.0, 0.0), meter(1.0, 0.0));
        assert!(admitted(&empty, 0, 1_000) && admitted(&empty, 0, 1_000));
        assert!(!admit([&other.0, &empty.0].into_iter(), 0, 1_000));
        assert!(other.is_full(1_000));
    }

    #[test]
    fn a_clock_that_is_set_back_takes_nothing_away() {
        let meter = meter(1.0, 0.0);
        assert!(admitted(&meter, 0, 1_000_000));
        assert!(admitted(&meter, 0, -5));
        assert!(!admitted(&meter, 0, -5));
        assert!(admitted(&meter, 0, 1_000), "time goes on from there");
    }

    #[test]
    fn a_limit_that_is_new_begins_full() {
        let meter = meter(0.0, 0.0);
        (0..100).for_each(|_| assert!(admitted(&meter, 1, 1_000)));
        meter.set_rates(5.0, 0.0, 0.0, 1.0).unwrap();
        assert!(meter.is_full(1_000));
        (0..5).for_each(|_| assert!(admitted(&meter, 1, 1_000)));
        assert!(!admitted(&meter, 1, 1_000));
        meter.set_rates(50.0, 0.0, 0.0, 1.0).unwrap();
        assert!(!admitted(&meter, 1, 1_000), "what was taken stays taken");
    }
}
