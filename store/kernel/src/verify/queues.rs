//! Compares ConsumeQueues (and their extension) with the log: each unit, and whether each record has one.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use super::files::{segment_path, start_of, Files};
use super::findings::{CheckFindings, Findings};
use super::in_log::{InLog, QueuesOfLog};
use super::step::{step_at, Kind};
use super::FilesOf;
use crate::ext::{is_address, place_of};
use crate::fault::{At, Fault, Outcome};
use crate::folder::Folder;
use crate::hash::string_hash;
use crate::named::named_tuples;
use crate::queue::{queue_id, Look, QueueFiles, Unit, UNIT};
use crate::record::{is_schedule_topic, long, Known, Record, UNREADABLE};

const PAGE: u64 = 4096;
const QUEUES_A_REPORT: usize = 64;
const EXT_HEAD: u64 = 20;
/// The record of a unit is expected this many units before it is read.
const UNITS_AHEAD: u64 = 12;
const NO_UNIT: [u8; UNIT as usize] = [0; UNIT as usize];

named_tuples! {
    /// The delay of some units of a level: the time of delivery minus the time of storing. The place of the first one.
    UnitDelay {
        level: i32,
        delay_ms: i64,
        units: u64,
        file: PathBuf,
        at: u64,
        offset: i64,
        pos: i64,
    }
    /// The offset behind the last trustworthy unit of a queue.
    SoundEnd {
        topic: OsString,
        queue: i64,
        offset: i64,
    }
    /// A queue of the log that has no folder.
    LostQueue {
        topic: String,
        queue: i32,
        records: i64,
        first_offset: i64,
        repairable_offset: i64,
    }
    /// The result of a check of queues.
    QueuesChecked {
        findings: CheckFindings,
        queues: u64,
        units: u64,
        segment_bytes: u64,
        delays: Vec<UnitDelay>,
        ends: Vec<SoundEnd>,
        lost: Vec<LostQueue>,
    }
}

/// What a check of queues knows about the store.
struct Store<'a> {
    root: &'a Path,
    log: Files,
    entry_header: usize,
    /// The log has [begin, end).
    begin: i64,
    end: i64,
    /// The last stop was in order.
    clean: bool,
    repairable_from: i64,
    segment_bytes: Option<u64>,
}

/// Sums over all queues.
#[derive(Default)]
struct Found {
    findings: Findings,
    queues: u64,
    units: u64,
    segment_bytes: u64,
    delays: Vec<UnitDelay>,
    /// By level and delay, the number in `delays`.
    delay_at: FxHashMap<(i32, i64), usize>,
}

struct Extension {
    folder: PathBuf,
    /// First bytes and length of the files; None: not listed yet.
    files: Option<(Vec<u64>, u64)>,
    look: Option<(u64, Look)>,
}

impl Extension {
    /// `EXT_HEAD` bytes; None: no single file has them.
    fn head(&mut self, at: u64) -> Outcome<Option<Vec<u8>>> {
        if self.files.is_none() {
            let mut files = (vec![], 0);
            if let Ok(folder) = Folder::open(&self.folder) {
                let (starts, bytes, _) = QueueFiles::list(&folder, &self.folder)?.chosen(None);
                files = (starts, bytes);
            }
            self.files = Some(files);
        }
        let (starts, bytes) = self.files.as_ref().expect("just listed");
        let Some(start) = i64::try_from(at).ok().and_then(|at| start_of(starts, *bytes, at)) else {
            return Ok(None);
        };
        if at + EXT_HEAD > start + bytes {
            return Ok(None);
        }
        if self.look.as_ref().is_none_or(|(opened, _)| *opened != start) {
            self.look = Some((start, Look::open(&segment_path(&self.folder, start))?));
        }
        let look = &mut self.look.as_mut().expect("just opened").1;
        look.read_bytes(at - start, EXT_HEAD).map(Some)
    }
}

struct QueueCheck<'a> {
    topic: &'a OsStr,
    queue: i64,
    folder: PathBuf,
    extension: Extension,
    wanted: Option<InLog>,
    first_offset: i64,
    last_offset: i64,
    last_pos: i64,
    named: i64,
    placeholders: i64,
    sound_end: i64,
}

impl QueueCheck<'_> {
    fn run(&mut self, store: &mut Store<'_>, found: &mut Found) -> PyResult<()> {
        let opened = Folder::open(&self.folder).at(&self.folder)?;
        let folder = self.folder.clone();
        let mut files = QueueFiles::list(&opened, &folder)?;
        let (starts, segment_bytes, _) = files.chosen(store.segment_bytes);
        found.queues += 1;
        if found.segment_bytes == 0 {
            found.segment_bytes = segment_bytes;
        }
        let findings = &mut found.findings;
        for name in &files.others {
            findings.damage(&self.folder.join(name), 0, 0, -1, || b"is no segment".to_vec());
        }
        for &(start, length) in files.found.iter().filter(|file| file.1 != segment_bytes || file.1 == 0) {
            findings.damage(&segment_path(&self.folder, start), 0, 0, -1, || match length {
                0 => b"is empty".to_vec(),
                length => format!("has {length} bytes instead of {segment_bytes}").into_bytes(),
            });
        }
        for pair in starts.windows(2).filter(|pair| pair[0] + segment_bytes != pair[1]) {
            findings.damage(&segment_path(&self.folder, pair[1]), 0, 0, -1, || {
                b"the segment before this one is missing".to_vec()
            });
        }
        if segment_bytes % UNIT != 0 {
            let reason = || format!("files of {segment_bytes} bytes do not hold whole units").into_bytes();
            findings.damage(&self.folder, 0, 0, -1, reason);
            return Ok(());
        }
        for &start in &starts {
            let mut look = files.open(start)?;
            self.segment(store, found, &mut look, start, Some(&start) == starts.last())?;
        }
        if let Some(wanted) = self.wanted {
            self.missing(wanted, &starts, found);
        }
        Ok(())
    }

    fn segment(
        &mut self,
        store: &mut Store<'_>,
        found: &mut Found,
        look: &mut Look,
        start: u64,
        is_last: bool,
    ) -> PyResult<()> {
        let path = segment_path(&self.folder, start);
        let (mut data, unread) = match look.data() {
            Err(Fault::Io { error, .. }) if error.raw_os_error() == Some(libc::EIO) => (vec![], vec![(0, 0)]),
            data => data?,
        };
        let length = look.bytes();
        let whole = (data.len() as u64).div_ceil(UNIT) * UNIT;
        data.resize(whole.min(length) as usize, 0); // behind them are zeros
        for &(at, size) in &unread {
            let reason = || format!("{UNREADABLE} ({size} bytes)").into_bytes();
            found.findings.damage(&path, at, 0, -1, reason);
        }
        let is_unread = |at: u64| {
            let spoils = |&(from, size): &(u64, u64)| {
                from < (at + UNIT).next_multiple_of(PAGE) && at / PAGE * PAGE < from + size
            };
            unread.iter().any(spoils)
        };
        let mut at = 0;
        while at < length {
            let offset = ((start + at) / UNIT) as i64;
            if !unread.is_empty() && is_unread(at) {
                self.last_offset = offset;
                at += UNIT;
                continue;
            }
            let unit_at = |at: u64| data.get(at as usize..(at + UNIT) as usize).unwrap_or(&NO_UNIT);
            let bytes = unit_at(at);
            let unit = Unit::decode(bytes);
            let later = Unit::decode(unit_at(at + UNITS_AHEAD * UNIT));
            store.log.expect_record(later.pos, later.size);
            if bytes == NO_UNIT {
                let more = data
                    .get(at as usize..)
                    .and_then(|rest| rest.iter().position(|&byte| byte != 0));
                let Some(more) = more else {
                    if !is_last {
                        self.hole(
                            store,
                            found,
                            &path,
                            at,
                            "the segment is not full, but there is a next one",
                        );
                    }
                    return Ok(());
                };
                self.hole(store, found, &path, at, "units follow an empty unit");
                at = (at + more as u64) / UNIT * UNIT;
                continue;
            }
            if unit == Unit::BLANK && self.first_offset >= 0 {
                self.last_offset = offset; // a placeholder: its record was lost
                self.sound_end = offset + 1;
                self.placeholders += 1;
            } else if unit != Unit::BLANK {
                self.unit(store, found, &path, at, offset, unit)?;
            }
            at += UNIT;
        }
        Ok(())
    }

    fn hole(&self, store: &Store<'_>, found: &mut Found, path: &Path, at: u64, reason: &str) {
        // Recovery after a kill truncates the queue there, and dispatches its records again if it goes back that far.
        let repairable = !store.clean && self.last_pos.max(store.begin) >= store.repairable_from;
        found.findings.add(path, at, repairable, || reason.as_bytes().to_vec());
    }

    fn unit(
        &mut self,
        store: &mut Store<'_>,
        found: &mut Found,
        path: &Path,
        at: u64,
        offset: i64,
        unit: Unit,
    ) -> PyResult<()> {
        found.units += 1;
        let Unit { pos, size, .. } = unit;
        let (mut reason, mut repairable) = (vec![], false);
        if pos < 0 || size <= 0 {
            reason = format!("is not valid: position {pos}, size {size}").into_bytes();
        } else if pos >= store.begin {
            // otherwise the record has expired
            if pos.saturating_add(i64::from(size)) > store.end {
                reason = format!("names a record at {pos}, the log ends at {}", store.end).into_bytes();
                repairable = !store.clean;
            } else {
                reason = self.compare(store, found, path, at, offset, unit)?;
                if reason.is_empty() && pos <= self.last_pos {
                    reason = format!("names the record at {pos} after the one at {}", self.last_pos).into_bytes();
                }
            }
        }
        if self.first_offset < 0 {
            self.first_offset = offset;
        }
        self.last_offset = offset;
        if reason.is_empty() {
            self.sound_end = offset + 1;
            self.last_pos = self.last_pos.max(pos);
            self.named += i64::from(self.wanted.is_some_and(|wanted| offset >= wanted.first));
        } else {
            let reason = || [format!("unit {offset} ").as_bytes(), &reason].concat();
            found.findings.add(path, at, repairable, reason);
        }
        Ok(())
    }

    /// How a unit differs from the record that it names; empty: it does not.
    fn compare(
        &mut self,
        store: &mut Store<'_>,
        found: &mut Found,
        path: &Path,
        at: u64,
        offset: i64,
        unit: Unit,
    ) -> PyResult<Vec<u8>> {
        let pos = unit.pos;
        let header = store.entry_header;
        let seen = step_at(&mut store.log, pos - header as i64, header, false)?;
        let Some(record) = seen.record() else {
            let why = match seen.step.kind {
                Kind::Filler | Kind::Empty => "a filler".to_owned(),
                _ => seen.step.why.to_string(),
            };
            return Ok(format!("names position {pos}, where no sound record begins: {why}").into_bytes());
        };
        if record.topic() != self.topic.as_bytes() || i64::from(record.queue_id()) != self.queue {
            let of = format!(" queue {} at {pos}", record.queue_id());
            return Ok([b"names a record of ", record.topic(), of.as_bytes()].concat());
        }
        let text = if !record.is_queued() {
            format!("names a prepared or rolled-back record at {pos}")
        } else if record.queue_offset() != offset {
            format!(
                "names the record at {pos}, which has queue offset {}",
                record.queue_offset()
            )
        } else if record.size() as i32 != unit.size {
            format!("says {} bytes, the record at {pos} has {}", unit.size, record.size())
        } else {
            self.compare_code(&record, unit, found, path, at)?
        };
        Ok(text.into_bytes())
    }

    fn compare_code(
        &mut self,
        record: &Record<'_>,
        unit: Unit,
        found: &mut Found,
        path: &Path,
        at: u64,
    ) -> PyResult<String> {
        let (pos, store_ms, mut code) = (unit.pos, record.store_timestamp(), unit.tags_code);
        if is_address(code) {
            let address = place_of(code);
            let Some(head) = self.extension.head(address)? else {
                return Ok(format!("names an extension unit at {address}, which is not there"));
            };
            let short = |at: usize| i16::from_be_bytes([head[at], head[at + 1]]);
            let (size, map) = (short(0), short(18));
            if map < 0 || i32::from(size) != EXT_HEAD as i32 + i32::from(map) {
                return Ok(format!(
                    "names an extension unit at {address} that is not valid (size {size}, map {map})"
                ));
            }
            if long(&head, 10) != store_ms {
                let has_ms = long(&head, 10);
                return Ok(format!(
                    "names an extension unit at {address} with store time {has_ms}, the record at {pos} has {store_ms}"
                ));
            }
            code = long(&head, 2);
        }
        let known = Known::find(record.properties());
        let level = delay_level(record, &known);
        if level > 0 {
            found.add_delay(level, code.wrapping_sub(store_ms), path, at, record.queue_offset(), pos);
            return Ok(String::new());
        }
        let wanted = if known.tags.is_empty() {
            0
        } else {
            i64::from(string_hash(known.tags))
        };
        Ok(match code == wanted {
            true => String::new(),
            false => format!("has tags code {code}, the record at {pos} has {wanted}"),
        })
    }

    /// Reports records in the log that are before the queue's first or behind its last unit, or hidden by a placeholder.
    fn missing(&self, wanted: InLog, starts: &[u64], found: &mut Found) {
        let findings = &mut found.findings;
        let lacks_some = self.placeholders > 0 && self.first_offset <= wanted.first && self.named < wanted.records;
        if lacks_some && self.last_offset >= wanted.last {
            let hidden = (wanted.records - self.named).min(self.placeholders);
            let reason = || format!("{hidden} placeholders stand where the log has messages").into_bytes();
            findings.damage(&self.folder, 0, 0, -1, reason);
        }
        if self.last_offset < wanted.last {
            let first = (self.last_offset + 1).max(wanted.first);
            let start = starts.last().copied().unwrap_or(0);
            let repairable = 0 <= wanted.repairable && wanted.repairable <= first;
            let at = (first.saturating_mul(UNIT as i64) - start as i64).max(0) as u64;
            findings.add(&segment_path(&self.folder, start), at, repairable, || {
                format!("lacks the queue's last {} messages", wanted.last - first + 1).into_bytes()
            });
        }
        if 0 <= wanted.first && wanted.first < self.first_offset {
            let path = segment_path(&self.folder, starts.first().copied().unwrap_or(0));
            let count = self.first_offset - wanted.first;
            let reason = || format!("lacks the queue's first {count} messages").into_bytes();
            findings.damage(&path, 0, 0, -1, reason);
        }
    }
}

/// The level of a message that waits in the schedule topic; 0: of another one.
fn delay_level(record: &Record<'_>, known: &Known<'_>) -> i32 {
    if !is_schedule_topic(record.topic()) {
        return 0;
    }
    let level = std::str::from_utf8(known.delay).ok().and_then(|text| text.parse().ok());
    level.unwrap_or(0).max(0)
}

impl Found {
    fn add_delay(&mut self, level: i32, delay_ms: i64, file: &Path, at: u64, offset: i64, pos: i64) {
        if let Some(&known) = self.delay_at.get(&(level, delay_ms)) {
            self.delays[known].units += 1;
            return;
        }
        self.delay_at.insert((level, delay_ms), self.delays.len());
        self.delays.push(UnitDelay {
            level,
            delay_ms,
            units: 1,
            file: file.to_owned(),
            at,
            offset,
            pos,
        });
    }
}

/// The queues of a store: topic, queue id, folder, in the order of their names.
fn queue_folders(base: &Path) -> Outcome<Vec<(OsString, i64, PathBuf)>> {
    let mut found = vec![];
    let there = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
    let root = match Folder::open(base) {
        Err(error) if there(&error) => return Ok(found),
        root => root.at(base)?,
    };
    for topic in root.folders().at(base)? {
        let path = base.join(&topic);
        let folder = match root.folder(&topic) {
            Err(error) if there(&error) => continue,
            folder => folder.at(&path)?,
        };
        for queue in folder.folders().at(&path)? {
            let path = path.join(&queue);
            if let Some(id) = queue_id(&queue).filter(|_| path.is_dir()) {
                found.push((topic.clone(), id, path));
            }
        }
    }
    Ok(found)
}

/// check_queues(root, log, ...) -> QueuesChecked
///
/// `log`: (folder, bytes of a segment, first bytes of the segments, bring). `progress`: called with the number of queues
/// that are done and of all queues. `only`: the queues to check.
#[pyfunction]
#[pyo3(signature = (root, log, records, *, entry_header_bytes, begin, end, clean, repairable_from, segment_bytes, only,
    progress))]
#[allow(clippy::too_many_arguments)] // by name
fn check_queues(
    py: Python<'_>,
    root: PathBuf,
    log: FilesOf,
    records: &QueuesOfLog,
    entry_header_bytes: usize,
    begin: i64,
    end: i64,
    clean: bool,
    repairable_from: i64,
    segment_bytes: Option<u64>,
    only: Option<HashSet<(OsString, i64)>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<QueuesChecked> {
    let store = Store {
        root: &root,
        log: Files::of(log),
        entry_header: entry_header_bytes,
        begin,
        end,
        clean,
        repairable_from,
        segment_bytes,
    };
    py.detach(|| checked(store, records, only.as_ref(), progress.as_ref()))
}

fn checked(
    mut store: Store<'_>,
    records: &QueuesOfLog,
    only: Option<&HashSet<(OsString, i64)>>,
    progress: Option<&Py<PyAny>>,
) -> PyResult<QueuesChecked> {
    let mut found = Found::default();
    let (mut ends, mut there) = (vec![], HashSet::new());
    let folders = queue_folders(&store.root.join("consumequeue"))?;
    for (number, (topic, queue, folder)) in folders.iter().enumerate() {
        there.insert((topic.as_bytes(), *queue));
        if only.is_some_and(|only| !only.contains(&(topic.clone(), *queue))) {
            continue;
        }
        if let Some(progress) = progress.filter(|_| number % QUEUES_A_REPORT == 0) {
            Python::attach(|py| progress.call1(py, (number, folders.len())))?;
        }
        let of_log = i32::try_from(*queue)
            .ok()
            .and_then(|queue| records.0.get(topic.as_bytes(), queue));
        let extension = store.root.join("consumequeue_ext").join(topic).join(queue.to_string());
        let mut check = QueueCheck {
            topic,
            queue: *queue,
            folder: folder.clone(),
            extension: Extension {
                folder: extension,
                files: None,
                look: None,
            },
            wanted: of_log.copied(),
            first_offset: -1,
            last_offset: -1,
            last_pos: -1,
            named: 0,
            placeholders: 0,
            sound_end: 0,
        };
        check.run(&mut store, &mut found)?;
        ends.push(SoundEnd {
            topic: topic.clone(),
            queue: *queue,
            offset: check.sound_end,
        });
    }
    let lost = records
        .0
        .iter()
        .filter(|(topic, queue, _)| !there.contains(&(*topic, i64::from(*queue))));
    let lost = lost.map(|(topic, queue, of_log)| LostQueue {
        topic: String::from_utf8_lossy(topic).into_owned(),
        queue,
        records: of_log.records,
        first_offset: of_log.first,
        repairable_offset: of_log.repairable,
    });
    Ok(QueuesChecked {
        findings: found.findings.taken(),
        queues: found.queues,
        units: found.units,
        segment_bytes: found.segment_bytes,
        delays: found.delays,
        ends,
        lost: lost.collect(),
    })
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    register_named(module)?;
    module.add_function(wrap_pyfunction!(check_queues, module)?)
}
