//! Ranges made by hand: what is reported for them, and where reading continues.

use super::*;
use crate::record::{LEDGER_FILLER, RECORD_MAGIC};

struct OnDisk(PathBuf);

impl Drop for OnDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

const START: u64 = 4096;

fn record(pos: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 88];
    bytes[..4].copy_from_slice(&(92 + body.len() as i32).to_be_bytes());
    bytes[4..8].copy_from_slice(&RECORD_MAGIC.to_be_bytes());
    bytes[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7fff_ffff).to_be_bytes());
    bytes[28..36].copy_from_slice(&pos.to_be_bytes());
    bytes[84..88].copy_from_slice(&(body.len() as i32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\x01T\0\0");
    bytes
}

fn entry(pos: u64, body: &[u8]) -> Vec<u8> {
    let record = record(pos + 48, body);
    let mut bytes = vec![0; 48];
    bytes[..4].copy_from_slice(&1i32.to_be_bytes());
    bytes[4..8].copy_from_slice(&(48 + record.len() as i32).to_be_bytes());
    bytes[24..32].copy_from_slice(&pos.to_be_bytes());
    bytes[44..48].copy_from_slice(&(record.len() as i32).to_be_bytes());
    bytes.extend_from_slice(&record);
    bytes
}

fn log(bodies: &[&[u8]], header: usize) -> (Vec<u8>, Vec<u64>) {
    let (mut bytes, mut starts) = (vec![], vec![]);
    for body in bodies {
        let pos = START + bytes.len() as u64;
        starts.push(pos);
        bytes.extend(if header == 0 {
            record(pos, body)
        } else {
            entry(pos, body)
        });
    }
    (bytes, starts)
}

/// (positions of records, damage, whether it is done) of the range [begin, end) of a file with these bytes.
fn told(name: &str, bytes: &[u8], begin: u64, end: u64, header: usize) -> (Vec<u64>, Vec<Damage>, bool) {
    let path = std::env::temp_dir().join(format!("tally-range-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let on_disk = OnDisk(path);
    let stretch = Stretch {
        file_start: START,
        file_end: START + bytes.len() as u64,
        begin,
        end,
        entry_header: header,
        check_crc: true,
    };
    let mut reader = RangeReader::open(&on_disk.0, stretch).unwrap();
    let (mut records, mut damage) = (vec![], vec![]);
    let done = reader
        .read(|found| {
            match found {
                Found::Record { pos, .. } => records.push(pos - header as u64),
                Found::Damage(met) => damage.push(met),
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    (records, damage, done)
}

fn whole(name: &str, bytes: &[u8], header: usize) -> (Vec<u64>, Vec<Damage>) {
    let (records, damage, done) = told(name, bytes, START, START + bytes.len() as u64, header);
    assert!(done);
    (records, damage)
}

#[test]
fn records_are_read_up_to_a_filler_at_the_end_of_the_file() {
    for header in [0, 48] {
        let (mut bytes, starts) = log(&[b"a", b"", b"ccc"], header);
        let filler: [i32; 2] = if header == 0 {
            [20, BLANK_MAGIC]
        } else {
            [LEDGER_FILLER, 20]
        };
        filler
            .iter()
            .for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
        bytes.extend_from_slice(&[0xee; 12]);
        assert_eq!(whole("filler", &bytes, header), (starts.clone(), vec![]));
        bytes.truncate(bytes.len() - 1);
        let (records, damage) = whole("short", &bytes, header);
        assert_eq!((records, damage.len()), (starts, 1), "a filler must reach the end");
    }
}

#[test]
fn a_range_ends_at_its_bound() {
    let (bytes, starts) = log(&[b"a", b"b", b"c"], 0);
    assert_eq!(
        told("middle", &bytes, starts[1], starts[2], 0),
        (vec![starts[1]], vec![], true)
    );
    let (records, damage, _) = told("inside", &bytes, starts[0], starts[1] + 10, 0);
    assert_eq!(records, vec![starts[0]]);
    assert_eq!(
        (damage[0].pos, damage[0].size),
        (starts[1], 10),
        "the bound is within a record"
    );
}

#[test]
fn damage_with_a_size_is_skipped_and_without_a_size_searched() {
    for header in [0, 48] {
        let (sound, starts) = log(&[b"aaaa", b"bbbb", b"cccc"], header);
        let second = (starts[1] - START) as usize;
        let mut body = sound.clone();
        body[second + header + 88] ^= 1;
        let (records, damage) = whole("body", &body, header);
        assert_eq!(records, vec![starts[0], starts[2]]);
        assert_eq!((damage[0].pos, damage[0].size), (starts[1], starts[2] - starts[1]));
        assert_eq!(damage[0].reason, "body CRC differs");
        let mut zeros = sound.clone();
        zeros[second..second + 20].fill(0);
        let (records, damage) = whole("zeros", &zeros, header);
        assert_eq!((damage[0].pos, damage[0].reason), (starts[1], "unwritten"));
        // The header of the entry is lost, 48 bytes; the record in it names its own position.
        let left = if header == 0 {
            vec![starts[0], starts[2]]
        } else {
            starts.clone()
        };
        assert_eq!((records, damage.len()), (left, 1));
    }
}

#[test]
fn a_body_with_a_copy_of_a_record_is_not_taken_for_one() {
    let copy = record(0, b"inner");
    let (mut bytes, starts) = log(&[&copy, b"next"], 0);
    bytes[4] = 0;
    let (records, damage) = whole("copy", &bytes, 0);
    assert_eq!(records, vec![starts[1]]);
    assert_eq!(damage.len(), 1, "one damage, up to the next sound record");
    assert_eq!((damage[0].pos, damage[0].size), (starts[0], starts[1] - starts[0]));
}

#[test]
fn a_record_across_two_pieces_of_a_search_is_found() {
    for short in 1..6 {
        let lost = vec![7; PIECE_BYTES + 1 - 92 - 4 - short]; // the next magic begins just before the piece's end
        let (mut bytes, starts) = log(&[&lost, b"next"], 0);
        bytes[4] = 0;
        assert_eq!(whole("pieces", &bytes, 0).0, vec![starts[1]], "{short}");
    }
}

#[test]
fn an_impossible_size_is_not_allocated() {
    let (mut bytes, starts) = log(&[b"aaaa", b"bbbb"], 0);
    bytes[..4].copy_from_slice(&i32::MAX.to_be_bytes());
    let (records, damage) = whole("size", &bytes, 0);
    assert_eq!((records, damage[0].reason), (vec![starts[1]], "goes beyond the end"));
}

#[test]
fn a_record_whose_end_was_not_written_is_damage() {
    let (mut bytes, starts) = log(&[b"first", b"torn", b"lost", b"last"], 0);
    let at = |number: usize| (starts[number] - START) as usize;
    let (end, next) = (at(2), at(3));
    bytes[end - 3..next].fill(0); // the last byte of its topic, no properties, and the record behind it
    let (records, damage) = whole("unwritten", &bytes, 0);
    assert_eq!(records, vec![starts[0], starts[3]]);
    assert_eq!(
        (damage.len(), damage[0].pos, damage[0].size),
        (1, starts[1], (next - at(1)) as u64)
    );

    let (mut bytes, starts) = log(&[b"lost", b"torn", b"lost", b"last"], 0);
    bytes[4] = 0; // and a search for a sound record does not stop at it
    bytes[(starts[2] - START) as usize - 3..(starts[3] - START) as usize].fill(0);
    assert_eq!(whole("searched", &bytes, 0).0, vec![starts[3]]);
}

#[test]
fn reading_continues_after_a_break() {
    let (bytes, starts) = log(&[b"a", b"b", b"c"], 0);
    let path = std::env::temp_dir().join(format!("tally-range-{}-break", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    let on_disk = OnDisk(path);
    let end = START + bytes.len() as u64;
    let stretch = Stretch {
        file_start: START,
        file_end: end,
        begin: START,
        end,
        entry_header: 0,
        check_crc: false,
    };
    let mut reader = RangeReader::open(&on_disk.0, stretch).unwrap();
    let mut seen = vec![];
    loop {
        let done = reader.read(|found| {
            if let Found::Record { pos, .. } = found {
                seen.push(pos);
            }
            ControlFlow::Break(())
        });
        if done.unwrap() {
            break;
        }
    }
    assert_eq!((seen, reader.pos()), (starts, end));
}
