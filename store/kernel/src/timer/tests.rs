//! The set of offsets against a plain set, and sorted files against sorting.

use std::collections::BTreeSet;

use super::pending::Pending;
use super::runs::{key_of, merged, write_run, Entry, Run};
use crate::door::Door;

fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % below
    }
}

#[test]
fn a_set_of_offsets() {
    let mut random = numbers(7);
    let (mut set, mut plain) = (Pending::default(), BTreeSet::new());
    for _ in 0..20_000 {
        let offset = random(3 * 4096) as i64 + if random(2) == 0 { 0 } else { 1 << 40 };
        match random(8) {
            0..=4 => {
                set.set(offset);
                plain.insert(offset);
            }
            5..=6 => assert_eq!(set.clear(offset), plain.remove(&offset)),
            _ => assert_eq!(set.next(offset), plain.range(offset..).next().copied()),
        }
        assert_eq!(
            (set.has(offset), set.count()),
            (plain.contains(&offset), plain.len() as u64)
        );
    }
    let mut bytes = vec![];
    set.encode(&mut bytes);
    let mut rest = bytes.as_slice();
    assert_eq!(Pending::decode(&mut rest), Some(set.clone()));
    assert!(rest.is_empty() && Pending::decode(&mut &bytes[..bytes.len() - 1]).is_none());
    let below = 1 << 40;
    let lost = plain.range(..below).count() as u64;
    assert_eq!(
        (set.clear_below(below), set.next(i64::MIN)),
        (lost, plain.range(below..).next().copied())
    );
}

#[test]
fn sorted_files_are_merged_and_searched() {
    let folder = std::env::temp_dir().join(format!("tally-timer-runs-{}", std::process::id()));
    let door = Door::default();
    let mut random = numbers(9);
    let mut make = |id: u64, count: u64| {
        let mut entries: Vec<Entry> = (0..count)
            .map(|n| Entry {
                due: random(500) as i64,
                offset: (n + 1000 * id) as i64,
                pos: n,
                key: key_of(b"k"),
            })
            .collect();
        entries.sort_unstable();
        let run = write_run(&door, &folder, id, &mut entries.iter().copied().map(Ok)).unwrap();
        (run, entries)
    };
    let ((left, mut all), (right, more)) = (make(1, 1500), make(2, 700));
    all.extend(more);
    all.sort_unstable();
    let both: Vec<Entry> = merged(left.reader(), right.reader()).map(Result::unwrap).collect();
    assert_eq!(both, all);
    let mut run = write_run(&door, &folder, 3, &mut both.iter().copied().map(Ok)).unwrap();
    for (from, to) in [
        (0, 499),
        (100, 100),
        (250, 300),
        (-5, 3),
        (498, 9999),
        (600, 700),
        (7, 6),
    ] {
        let expected: Vec<Entry> = all.iter().filter(|e| (from..=to).contains(&e.due)).copied().collect();
        assert_eq!(run.between(from, to).unwrap(), expected, "{from} to {to}");
    }
    for entry in all.iter().filter(|entry| entry.offset % 3 == 0) {
        assert_eq!(run.peek(|entry| entry.offset % 3 == 0).unwrap(), Some(*entry));
        run.pass();
    }
    let (_, len, crc) = run.named();
    assert!(Run::open(&door, &folder, 3, len, crc).unwrap().is_some());
    assert!(Run::open(&door, &folder, 3, len, crc ^ 1).unwrap().is_none());
    assert!(Run::open(&door, &folder, 3, len - 1, crc).unwrap().is_none());
    assert!(Run::open(&door, &folder, 4, len, crc).unwrap().is_none());
    std::fs::remove_dir_all(&folder).unwrap();
}
