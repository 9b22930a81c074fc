//! Serves a frame: a plain send becomes a staged record and an answer that waits for it.
//!
//! A send is plain if its topic is served here, its queue exists, no property needs special treatment, and it is within
//! all limits. Every other frame goes to Python unchanged, and Python decides.

use std::collections::{HashMap, VecDeque};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustc_hash::FxHashMap;

use super::access::Access;
use super::put_times::PutTimes;
use super::record_sizes::RecordSizes;
use super::tail::{AppendFault, Tail};
use super::topics::Topic;
use crate::encode::{Parts, MAX_PROPERTIES_BYTES, MAX_TOPIC_BYTES, TRANSACTION_MASK};
use crate::frame::{scan_send, unescape, Frame};
use crate::meter::{self, Shared};
use crate::reply::{Answer, Reply};

pub(super) struct Connection {
    pub(super) born_host: Vec<u8>,
    /// The head of a frame that is not complete yet.
    pub(super) partial: Vec<u8>,
    pub(super) access: Access,
    /// What the client may send; None: as much as it likes.
    pub(super) meter: Option<Shared>,
}

/// Values that this broker adds to every message, and its limits.
pub(super) struct Rules {
    pub(super) max_message_bytes: usize,
    pub(super) store_host: Vec<u8>,
    /// Appended to the properties of every fed send: the cluster's name.
    pub(super) suffix: Vec<u8>,
    pub(super) max_replies: usize,
}

impl Rules {
    pub(super) fn check(&self, parts: &Parts<'_>) -> Result<(), AppendFault> {
        let limits = [
            ("topic", parts.topic.len(), MAX_TOPIC_BYTES),
            ("properties string", parts.properties_len(), MAX_PROPERTIES_BYTES),
            ("record", parts.size(), self.max_message_bytes),
        ];
        for (what, size, limit) in limits {
            if size > limit {
                return Err(AppendFault::Illegal(format!(
                    "the {what} has {size} bytes, more than {limit}"
                )));
            }
        }
        Ok(())
    }
}

pub(super) struct Inner {
    pub(super) tail: Tail,
    pub(super) rules: Rules,
    pub(super) answer: Answer,
    pub(super) hot: bool,
    /// Only sends that were granted to their connection are served.
    pub(super) checks_access: bool,
    pub(super) topics: FxHashMap<Box<[u8]>, Topic>,
    pub(super) connections: HashMap<u64, Connection>,
    pub(super) next_connection: u64,
    pub(super) replies: VecDeque<Reply>,
    pub(super) put_times: PutTimes,
    pub(super) record_sizes: RecordSizes,
    pub(super) scratch: Vec<u8>,
}

impl Inner {
    pub(super) fn topic(&mut self, name: &[u8]) -> &mut Topic {
        if !self.topics.contains_key(name) {
            self.topics.insert(
                name.into(),
                Topic {
                    queues: 0,
                    next: Vec::new(),
                    put_count: 0,
                    put_bytes: 0,
                },
            );
        }
        self.topics.get_mut(name).expect("it was there or was just inserted")
    }

    /// Serves one frame if it is a plain send to a known topic. None: Python has to serve it.
    ///
    /// `of_client`: the meter of the connection's client.
    pub(super) fn serve(
        &mut self,
        connection: u64,
        born_host: &[u8],
        of_client: Option<&Shared>,
        frame: &Frame<'_>,
        now_ms: i64,
    ) -> Option<()> {
        if !self.hot || self.replies.len() >= self.rules.max_replies {
            return None;
        }
        let header = scan_send(frame)?;
        if header.sys_flag & TRANSACTION_MASK != 0 {
            return None;
        }
        let topic = self.topics.get_mut(header.topic)?;
        if header.queue < 0 || header.queue >= topic.queues {
            return None;
        }
        let properties = if header.escaped {
            self.scratch.clear();
            unescape(header.properties, &mut self.scratch)?;
            &self.scratch[..]
        } else {
            header.properties
        };
        if !plain_properties(properties) {
            return None;
        }
        let of_user = if self.checks_access {
            let access = &self.connections.get(&connection)?.access;
            access.admits(&header, properties, frame.body)?
        } else {
            None
        };
        let separator: &[u8] = if properties.is_empty() || properties.ends_with(b"\x02") {
            b""
        } else {
            b"\x02"
        };
        let parts = Parts {
            topic: header.topic,
            queue: header.queue,
            flag: header.flag,
            queue_offset: topic.next(header.queue),
            sys_flag: header.sys_flag,
            born_timestamp: header.born_timestamp,
            born_host,
            store_timestamp: self.tail.store_ms(now_ms),
            store_host: &self.rules.store_host,
            reconsume_times: header.reconsume_times,
            prepared_offset: 0,
            body: frame.body,
            properties: [properties, separator, &self.rules.suffix],
        };
        // Python meets the same fault, and answers it.
        self.rules.check(&parts).ok()?;
        let size = parts.size();
        self.tail.make_room(self.tail.framed(size, 1)).ok()?;
        let meters = of_client.into_iter().chain(of_user);
        if !meter::admit(meters, frame.body.len() as u64, now_ms) {
            return None;
        }
        let pos = self.tail.stage(&parts, 0);
        topic.set_next(header.queue, parts.queue_offset + 1);
        topic.count(1, size as u64);
        self.record_sizes.add(size as u64);
        if header.oneway {
            self.put_times.add(0, 1, 0); // nobody waits for it
        } else {
            self.replies.push_back(Reply {
                connection,
                opaque: header.opaque,
                queue: header.queue,
                binary: frame.header_type == 1,
                queue_offset: parts.queue_offset,
                pos,
                end: pos + size as u64,
                at_ms: now_ms,
            });
        }
        Some(())
    }

    /// The answers to replies, one buffer for each run of the same connection. Counts how long they took
    /// until `now_ms`.
    pub(super) fn answers<'py>(
        &mut self,
        py: Python<'py>,
        replies: &[Reply],
        code: i32,
        remark: Option<&str>,
        now_ms: i64,
    ) -> PyResult<Bound<'py, PyList>> {
        self.put_times.answered(replies, code, now_ms);
        let list = PyList::empty(py);
        let mut buffer = Vec::new();
        for run in replies.chunk_by(|a, b| a.connection == b.connection) {
            if !self.connections.contains_key(&run[0].connection) {
                continue; // the connection was closed before its answers were released
            }
            buffer.clear();
            for reply in run {
                self.answer
                    .encode(reply, &self.rules.store_host, code, remark, &mut buffer);
            }
            list.append((run[0].connection, PyBytes::new(py, &buffer)))?;
        }
        Ok(list)
    }
}

/// Whether the broker need not act on any property: well-formed pairs, and no name that changes how a message is
/// stored.
pub(super) fn plain_properties(properties: &[u8]) -> bool {
    if !properties.is_ascii() && std::str::from_utf8(properties).is_err() {
        return false;
    }
    let pairs = properties.strip_suffix(b"\x02").unwrap_or(properties);
    pairs.is_empty() && properties.is_empty()
        || pairs.split(|&byte| byte == 2).all(|pair| {
            let Some(at) = memchr::memchr(1, pair) else {
                return false;
            };
            let (name, value) = (&pair[..at], &pair[at + 1..]);
            let special = match name.first() {
                None => true,
                Some(b'C') => name == b"CLUSTER",
                Some(b'D') => name == b"DELAY",
                Some(b'T') => name == b"TRAN_MSG" || name.starts_with(b"TIMER_"),
                Some(b'W') => name == b"WAIT" && value != b"true",
                _ => false,
            };
            !special && !value.is_empty() && memchr::memchr(1, value).is_none()
        })
}
