//! The loop that both loads share: W requests in flight on each of N connections, a new one for each answer, or (`every`)
//! by the clock.
//!
//! One thread and one epoll: the generator shares its machine with the broker that it measures, so what it burns is taken
//! from the broker. A request's time runs from before its bytes are written to after its answer is found in what was read.
//! Only answers inside the window [warm-up's end, end] are measured; the totals count everything from the first request
//! to the last answer, because they are compared with what the broker has stored.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

use crate::frame::{self, Answer, Scanner};
use crate::histogram::Histogram;
use crate::link::{self, Link};
use crate::options::Options;

/// What is asked and how an answer is judged.
pub trait Load {
    /// Appends the next request of this slot (slots are numbered over all connections).
    fn request(&mut self, slot: usize, opaque: u32, now: Instant, out: &mut Vec<u8>);
    /// Messages that this answer brings or acknowledges; an error when it is not what it should be.
    fn answer(&mut self, slot: usize, answer: &Answer, next_offset: Option<u64>, body: &[u8]) -> Result<u64, String>;
    /// With a limit on messages: whether to ask for more, after `messages` done and with `in_flight` requests.
    fn below(&self, limit: u64, messages: u64, in_flight: u64) -> bool;
}

#[derive(Default)]
pub struct Totals {
    pub sent: u64,
    pub answered: u64,
    pub messages: u64,
    pub codes: BTreeMap<i32, u64>,
    pub remarks: BTreeMap<i32, String>,
    pub errors: Vec<String>,
}

pub struct Outcome {
    pub totals: Totals,
    pub window_messages: u64,
    pub window: Duration,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    pub latency: Histogram,
}

/// A request in flight, or none: the opaque that its answer must carry and when it began.
#[derive(Clone, Copy)]
struct Slot {
    opaque: Option<u32>,
    began: Instant,
    /// With `every`: when this request was to be sent.
    due: Instant,
    answered: Instant,
}

struct Driver<'a, L: Load> {
    options: &'a Options,
    load: &'a mut L,
    links: Vec<Link>,
    slots: Vec<Slot>,
    /// With `every`: slots without a request, by the time of their next one.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    generation: u32,
    scanner: Scanner,
    totals: Totals,
    window_messages: u64,
    latency: Histogram,
    last_message: Instant,
    measuring: bool,
    sending: bool,
}

/// Runs the load to its end. Err only if no connection could be made; later trouble ends the run and is named in the outcome.
pub fn run<L: Load>(options: &Options, load: &mut L) -> io::Result<Outcome> {
    let mut poll = Poll::new()?;
    let links = link::connect(&poll, options.address, options.connections, options.tls)?;
    let begin = Instant::now();
    let mut driver = Driver {
        options,
        load,
        slots: vec![
            Slot {
                opaque: None,
                began: begin,
                due: begin,
                answered: begin,
            };
            options.connections * options.outstanding
        ],
        links,
        due: BinaryHeap::new(),
        generation: 0,
        scanner: Scanner::new(),
        totals: Totals::default(),
        window_messages: 0,
        latency: Histogram::new(),
        last_message: begin,
        measuring: false,
        sending: true,
    };
    let window = driver.until_done(&mut poll, begin).unwrap_or_else(|error| {
        driver.totals.errors.push(error);
        begin.elapsed()
    });
    Ok(Outcome {
        totals: driver.totals,
        window_messages: driver.window_messages,
        window,
        elapsed: begin.elapsed(),
        latency: driver.latency,
    })
}

impl<L: Load> Driver<'_, L> {
    fn until_done(&mut self, poll: &mut Poll, begin: Instant) -> Result<Duration, String> {
        let counted = self.options.count.is_some();
        let warm = if counted { begin } else { begin + self.options.warmup };
        let end = warm + self.options.seconds;
        self.measuring = warm == begin;
        for slot in 0..self.slots.len() {
            match self.options.every {
                None => self.request(slot, begin),
                // spread over the first period: they would all be sent at once forever
                Some(every) => self.due.push(Reverse((
                    begin + every.mul_f64(slot as f64 / self.slots.len() as f64),
                    slot,
                ))),
            }
        }
        for link in 0..self.links.len() {
            self.flush(link)?;
        }
        let mut events = Events::with_capacity(1024);
        while self.totals.answered < self.totals.sent || self.sending {
            let most = Duration::from_millis(100);
            let wait = self.due.peek().map_or(most, |Reverse((due, _))| {
                due.saturating_duration_since(Instant::now()).min(most)
            });
            match poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(format!("epoll: {error}")),
                _ => {}
            }
            let now = Instant::now();
            if !self.measuring && self.sending && now >= warm {
                self.measuring = true;
            }
            if !counted && now >= end {
                self.measuring = false;
                self.sending = false;
            }
            for event in &events {
                self.serve(event.token().0)?;
            }
            self.send_due(Instant::now())?;
            if now.duration_since(self.last_message) > self.options.timeout {
                let waited = self.options.timeout.as_secs_f64();
                return Err(format!(
                    "nothing acknowledged for {waited} s, {} unanswered",
                    self.totals.sent - self.totals.answered
                ));
            }
            if counted && self.due.is_empty() && self.totals.answered == self.totals.sent {
                break; // nothing in flight and nothing more wanted: `serve` would have asked
            }
        }
        Ok(if counted {
            self.last_message - begin
        } else {
            self.options.seconds
        })
    }

    /// Reads all that is there on one connection, judges the answers and writes the requests that follow them.
    fn serve(&mut self, link: usize) -> Result<(), String> {
        loop {
            let more = self.links[link]
                .fill()
                .map_err(|error| format!("connection {link}: {error}"))?;
            let now = Instant::now();
            while let Some((taken, slot)) = self.judge(link, now)? {
                self.links[link].take(taken);
                match self.options.every {
                    None => self.request(slot, now),
                    Some(every) => self.due.push(Reverse((self.slots[slot].due + every, slot))),
                }
            }
            if !more {
                break;
            }
        }
        self.flush(link)
    }

    fn send_due(&mut self, now: Instant) -> Result<(), String> {
        while let Some(&Reverse((due, slot))) = self.due.peek().filter(|Reverse((due, _))| *due <= now) {
            self.due.pop();
            self.request(slot, now);
            let late = self.slots[slot].answered > due;
            let slot_state = &mut self.slots[slot];
            slot_state.due = due;
            if late {
                slot_state.began = due; // it waited for the answer before it, and that wait is the broker's
            }
            self.flush(slot / self.options.outstanding)?;
        }
        Ok(())
    }

    fn judge(&mut self, link: usize, now: Instant) -> Result<Option<(usize, usize)>, String> {
        let Some(frame) = frame::split(self.links[link].unread())? else {
            return Ok(None);
        };
        let header = frame.header;
        let text = || String::from_utf8_lossy(header).into_owned();
        let answer = self
            .scanner
            .answer(header)
            .ok_or_else(|| format!("no code and opaque in {}", text()))?;
        let slot = answer.opaque as usize % self.slots.len();
        if self.slots[slot].opaque.take() != Some(answer.opaque) || slot / self.options.outstanding != link {
            return Err(format!("an answer without a pending request: {}", text()));
        }
        self.slots[slot].answered = now;
        let messages = self
            .load
            .answer(slot, &answer, self.scanner.next_offset(header), frame.body)?;
        self.totals.answered += 1;
        self.totals.messages += messages;
        *self.totals.codes.entry(answer.code).or_default() += 1;
        if answer.code != 0 {
            let scanner = &self.scanner;
            self.totals
                .remarks
                .entry(answer.code)
                .or_insert_with(|| scanner.remark(header));
        }
        if messages > 0 {
            self.last_message = now;
            if self.measuring {
                self.window_messages += messages;
                self.latency.record((now - self.slots[slot].began).as_nanos() as u64);
            }
        }
        Ok(Some((frame.bytes(), slot)))
    }

    fn request(&mut self, slot: usize, now: Instant) {
        let in_flight = self.totals.sent - self.totals.answered;
        let wanted = self
            .options
            .count
            .is_none_or(|limit| self.load.below(limit, self.totals.messages, in_flight));
        if !self.sending || !wanted {
            return;
        }
        // The slot is in the opaque, and a number that changes: an answer given twice is not taken for the next one's.
        self.generation = (self.generation + 1) % (i32::MAX as u32 / self.slots.len() as u32);
        let opaque = self.generation * self.slots.len() as u32 + slot as u32;
        self.slots[slot].opaque = Some(opaque);
        self.slots[slot].began = now;
        let link = &mut self.links[slot / self.options.outstanding];
        self.load.request(slot, opaque, now, &mut link.outbox);
        self.totals.sent += 1;
    }

    fn flush(&mut self, link: usize) -> Result<(), String> {
        self.links[link]
            .flush()
            .map_err(|error| format!("connection {link}: {error}"))
    }
}
