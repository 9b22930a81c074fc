//! The one JSON object that a run prints.

use std::fmt::Write;

use crate::driver::Outcome;
use crate::options::{Mode, Options};

/// CPU seconds of this process so far, user and system.
pub fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage writes a whole rusage into the place it is given; zeroed is a valid one if it should fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control < ' ' => write!(out, "\\u{:04x}", control as u32).expect("a String takes all"),
            plain => out.push(plain),
        }
    }
    out.push('"');
    out
}

fn object<K: std::fmt::Display, V: std::fmt::Display>(pairs: impl IntoIterator<Item = (K, V)>) -> String {
    let pairs: Vec<String> = pairs
        .into_iter()
        .map(|(key, value)| format!("\"{key}\":{value}"))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

/// `messages`, `seconds`, `rate` and `latency_us` are of the measured window; the rest is of the whole run.
pub fn json(options: &Options, outcome: &Outcome, cpu_seconds: f64) -> String {
    let totals = &outcome.totals;
    let seconds = outcome.window.as_secs_f64();
    let microseconds = |nanoseconds: f64| format!("{:.1}", nanoseconds / 1000.0);
    let percentile = |part| microseconds(outcome.latency.percentile(part) as f64);
    let latency = object([
        ("mean", microseconds(outcome.latency.mean())),
        ("p50", percentile(0.5)),
        ("p90", percentile(0.9)),
        ("p99", percentile(0.99)),
        ("p999", percentile(0.999)),
        ("max", microseconds(outcome.latency.max() as f64)),
    ]);
    let rate = if seconds > 0.0 {
        outcome.window_messages as f64 / seconds
    } else {
        0.0
    };
    let errors: Vec<String> = totals.errors.iter().map(|error| quoted(error)).collect();
    object([
        (
            "mode",
            quoted(if options.mode == Mode::Produce {
                "produce"
            } else {
                "pull"
            }),
        ),
        ("topic", quoted(&options.topic)),
        ("connections", options.connections.to_string()),
        ("outstanding", options.outstanding.to_string()),
        ("messages", outcome.window_messages.to_string()),
        ("seconds", format!("{seconds:.3}")),
        ("rate", format!("{rate:.1}")),
        ("latency_us", latency),
        ("sent", totals.sent.to_string()),
        ("unanswered", (totals.sent - totals.answered).to_string()),
        ("total_messages", totals.messages.to_string()),
        ("codes", object(&totals.codes)),
        (
            "remarks",
            object(totals.remarks.iter().map(|(code, remark)| (code, quoted(remark)))),
        ),
        ("errors", format!("[{}]", errors.join(","))),
        ("cpu_seconds", format!("{cpu_seconds:.3}")),
        (
            "cpu_share",
            format!("{:.3}", cpu_seconds / outcome.elapsed.as_secs_f64().max(1e-9)),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(quoted("a\"b\\c\u{1}"), r#""a\"b\\c\u0001""#);
    }

    #[test]
    fn this_process_has_used_some_time() {
        let before = cpu_seconds();
        let mut sum = 0u64;
        while cpu_seconds() - before < 0.002 {
            sum = sum.wrapping_add(std::hint::black_box(1));
        }
        assert!(sum > 0 && cpu_seconds() > before);
    }
}
