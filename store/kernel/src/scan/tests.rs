//! Walks over logs made by hand: where they end, and what they report.

use std::path::PathBuf;

use super::*;
use crate::record::RECORD_MAGIC;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const SEGMENT: usize = 600;

fn record(pos: u64, body: &[u8]) -> Vec<u8> {
    let size = 91 + body.len() + 1;
    let mut bytes = vec![0; 88];
    bytes[..4].copy_from_slice(&(size as i32).to_be_bytes());
    bytes[4..8].copy_from_slice(&RECORD_MAGIC.to_be_bytes());
    bytes[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7fff_ffff).to_be_bytes());
    bytes[28..36].copy_from_slice(&pos.to_be_bytes());
    bytes[56..64].copy_from_slice(&(1000 + pos).to_be_bytes());
    bytes[84..88].copy_from_slice(&(body.len() as i32).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\x01T\0\0");
    bytes
}

/// Records of these bodies, with fillers where they do not fit; whole segments. Returns (bytes, starts, end).
fn log(bodies: &[&[u8]]) -> (Vec<u8>, Vec<usize>, usize) {
    let mut bytes = vec![];
    let mut starts = vec![];
    for body in bodies {
        let left = SEGMENT - bytes.len() % SEGMENT;
        if 92 + body.len() + 8 > left {
            let end = bytes.len() + left;
            bytes.extend_from_slice(&(left as i32).to_be_bytes());
            bytes.extend_from_slice(&BLANK_MAGIC.to_be_bytes());
            bytes.resize(end, 0xee);
        }
        starts.push(bytes.len());
        let record = record(bytes.len() as u64, body);
        bytes.extend_from_slice(&record);
    }
    let end = bytes.len();
    bytes.resize(end.next_multiple_of(SEGMENT), 0);
    (bytes, starts, end)
}

fn on_disk(name: &str, bytes: &[u8]) -> (Folder, LogMaps) {
    let path = std::env::temp_dir().join(format!("tally-scan-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    for (i, segment) in bytes.chunks(SEGMENT).enumerate() {
        std::fs::write(path.join(crate::maps::segment_name((i * SEGMENT) as u64)), segment).unwrap();
    }
    (Folder(path.clone()), LogMaps::new(path, SEGMENT as u64))
}

/// (positions, damaged positions, end)
fn walked(log: &LogMaps, bounds: Bounds) -> (Vec<u64>, Vec<u64>, End) {
    let (mut sound, mut damaged) = (vec![], vec![]);
    let end = walk(log, &bounds, |visit| {
        match visit {
            Visit::Record { pos, .. } => sound.push(pos),
            Visit::Damaged { pos, .. } => damaged.push(pos),
        }
        Ok(ControlFlow::Continue(()))
    });
    (sound, damaged, end.unwrap())
}

fn all(check_crc: bool, pass_damaged: bool) -> Bounds {
    Bounds {
        from: 0,
        upto: i64::MAX as u64,
        entry_header: 0,
        check_crc,
        pass_damaged,
    }
}

#[test]
fn a_walk_skips_fillers_and_ends_at_zeros() {
    let (bytes, starts, end) = log(&[b"one", &[b'x'; 300], &[b'y'; 300], b"", &[b'z'; 200]]);
    let (_folder, maps) = on_disk("plain", &bytes);
    let (sound, damaged, found) = walked(&maps, all(true, false));
    assert_eq!(sound, starts.iter().map(|&at| at as u64).collect::<Vec<_>>());
    assert!(damaged.is_empty());
    let expected = End {
        pos: end as u64,
        stopped: Some(Bad::Unwritten),
    };
    assert_eq!(found, expected);
    assert_eq!(crate::maps::segment_starts(&_folder.0).unwrap(), vec![0, 600, 1200]);
}

#[test]
fn nothing_may_follow_a_filler_yet() {
    let (mut bytes, _, _) = log(&[&[b'x'; 450], &[b'y'; 450]]);
    let clean = |pos| End { pos, stopped: None };
    bytes[600..].fill(0);
    let (_folder, maps) = on_disk("zeros", &bytes);
    assert_eq!(walked(&maps, all(true, false)).2, clean(600));
    let (_other, maps) = on_disk("absent", &bytes[..600]);
    assert_eq!(walked(&maps, all(true, false)).2, clean(600));
    std::fs::write(_other.0.join("00000000000000000600"), b"").unwrap();
    assert_eq!(walked(&maps, all(true, false)).2, clean(600));
    std::fs::write(_other.0.join("00000000000000000600"), b"short").unwrap();
    let fault = walk(&maps, &all(true, false), |_| Ok(ControlFlow::Continue(()))).unwrap_err();
    assert!(fault.to_string().contains("00000000000000000600"), "{fault}");
}

#[test]
fn a_walk_stops_at_its_bound() {
    let (bytes, starts, end) = log(&[b"one", b"two", b"three"]);
    let (_folder, maps) = on_disk("upto", &bytes);
    let upto = |upto| Bounds {
        upto,
        ..all(true, false)
    };
    let (sound, _, found) = walked(&maps, upto(starts[2] as u64));
    assert_eq!((sound.len(), found.pos, found.stopped), (2, starts[2] as u64, None));
    let (sound, _, found) = walked(&maps, upto(end as u64 - 1));
    assert_eq!(
        (sound.len(), found.pos, found.stopped),
        (2, starts[2] as u64, Some(Bad::Torn))
    );
    assert_eq!(walked(&maps, upto(end as u64)).2.stopped, None);
}

#[test]
fn a_walk_stops_at_a_filler_that_reaches_over_its_bound() {
    let (bytes, starts, _) = log(&[&[b'x'; 300], &[b'y'; 300]]);
    let (_folder, maps) = on_disk("within", &bytes);
    let bounds = Bounds {
        upto: 500,
        ..all(true, false)
    };
    let filler = starts[0] as u64 + 392;
    assert_eq!(
        walked(&maps, bounds).2,
        End {
            pos: filler,
            stopped: None
        }
    );
}

#[test]
fn a_flipped_body_stops_only_a_walk_with_crc_checks() {
    let (mut bytes, starts, end) = log(&[b"one", b"two", b"three"]);
    bytes[starts[1] + 89] ^= 1;
    let (_folder, maps) = on_disk("crc", &bytes);
    let (_, _, found) = walked(&maps, all(true, false));
    assert_eq!((found.pos, found.stopped), (starts[1] as u64, Some(Bad::Crc)));
    assert_eq!(walked(&maps, all(false, true)).2.pos, end as u64);
}

#[test]
fn a_damaged_record_is_skipped_and_reported_if_a_sound_item_follows() {
    let (mut bytes, starts, end) = log(&[b"one", b"two", b"three"]);
    bytes[starts[1] + 86] = 9; // the body's length
    let (_folder, maps) = on_disk("inside", &bytes);
    let (sound, damaged, found) = walked(&maps, all(false, true));
    assert_eq!(
        (sound.len(), damaged, found.pos),
        (2, vec![starts[1] as u64], end as u64)
    );
    let (_, _, found) = walked(&maps, all(false, false));
    assert_eq!((found.pos, found.stopped), (starts[1] as u64, Some(Bad::Length)));

    bytes[starts[1] + 3] += 1; // and its size
    let (_folder, maps) = on_disk("size", &bytes);
    let (_, damaged, found) = walked(&maps, all(false, true));
    assert!(damaged.is_empty() && found.pos == starts[1] as u64 && found.stopped == Some(Bad::Length));
}

#[test]
fn a_walk_over_arbitrary_bytes_ends() {
    let (good, _, _) = log(&[b"one", &[b'x'; 300], &[b'y'; 300], b"", &[b'z'; 200]]);
    let mut state = 11u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for round in 0..300 {
        let mut bytes = good.clone();
        for _ in 0..1 + random(5) {
            let (at, fill) = (random(bytes.len()), [0, 0xff, 0x7f, random(256) as u8][random(4)]);
            let end = (at + 1 + random(4)).min(bytes.len());
            bytes[at..end].fill(fill);
        }
        let (_folder, maps) = on_disk(&format!("any{round}"), &bytes);
        for (crc, pass, header) in [(true, false, 0), (false, true, 0), (false, true, 48)] {
            let bounds = Bounds {
                entry_header: header,
                ..all(crc, pass)
            };
            let (sound, _, end) = walked(&maps, bounds);
            assert!(sound.windows(2).all(|pair| pair[0] < pair[1]) && end.pos <= bytes.len() as u64);
        }
    }
}
