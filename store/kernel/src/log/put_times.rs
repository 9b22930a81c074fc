//! How long sends took, from the arrival of their frame to their answer, in RocketMQ's classes of durations.

use rustc_hash::FxHashMap;

use crate::reply::Reply;

/// Upper limits (exclusive) of the classes 1 to 11 in ms. Class 0 has what took no time, class 12 everything longer.
const LIMITS_MS: [i64; 11] = [10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000];
pub(super) const CLASSES: usize = LIMITS_MS.len() + 2;
/// Upper limits (inclusive) of all classes but the last one of `Answered`, in ms: those of RocketMQ 5.
pub(super) const ANSWER_LIMITS_MS: [i64; 9] = [1, 3, 5, 7, 10, 100, 1000, 2000, 3000];
pub(super) const ANSWER_CLASSES: usize = ANSWER_LIMITS_MS.len() + 1;

/// The sends that were answered with one code since the start: by class of duration, and their time in total.
#[derive(Clone, Copy, Default)]
pub(super) struct Answered {
    pub(super) counts: [u64; ANSWER_CLASSES],
    pub(super) total_ms: u64,
}

#[derive(Default)]
pub(super) struct PutTimes {
    /// Counts of all sends since the last `take`, and the longest time.
    counts: [u64; CLASSES],
    longest_ms: i64,
    /// Since the start: sends that were answered with success by class, their time in total, and the other sends.
    acknowledged: [u64; CLASSES],
    acknowledged_ms: u64,
    failed: u64,
    /// By the code of the answer.
    answered: FxHashMap<i32, Answered>,
}

impl PutTimes {
    /// Counts sends that took `ms` and were answered with `code`. A clock that was set back gives a negative time, which
    /// counts as none.
    pub(super) fn add(&mut self, ms: i64, sends: u64, code: i32) {
        let class = if ms <= 0 {
            0
        } else {
            1 + LIMITS_MS.partition_point(|&limit| limit <= ms)
        };
        self.counts[class] += sends;
        self.longest_ms = self.longest_ms.max(ms);
        if code == 0 {
            self.acknowledged[class] += sends;
            self.acknowledged_ms += ms.max(0) as u64 * sends;
        } else {
            self.failed += sends;
        }
    }

    /// Counts sends that are answered with `code` now. Most of them arrived in the same millisecond.
    pub(super) fn answered(&mut self, replies: &[Reply], code: i32, now_ms: i64) {
        for run in replies.chunk_by(|a, b| a.at_ms == b.at_ms) {
            let (ms, sends) = (now_ms - run[0].at_ms, run.len() as u64);
            self.add(ms, sends, code);
            let answered = self.answered.entry(code).or_default();
            answered.counts[ANSWER_LIMITS_MS.partition_point(|&limit| limit < ms)] += sends;
            answered.total_ms += ms.max(0) as u64 * sends;
        }
    }

    /// The answers to sends since the start, by code. One-way sends have none.
    pub(super) fn answers(&self) -> &FxHashMap<i32, Answered> {
        &self.answered
    }

    /// The counts and the longest time; both start again at 0.
    pub(super) fn take(&mut self) -> ([u64; CLASSES], i64) {
        let taken = (self.counts, self.longest_ms);
        (self.counts, self.longest_ms) = ([0; CLASSES], 0);
        taken
    }

    /// What was acknowledged since the start, by class, its time in total in ms, and the number of other sends.
    pub(super) fn totals(&self) -> ([u64; CLASSES], u64, u64) {
        (self.acknowledged, self.acknowledged_ms, self.failed)
    }
}
