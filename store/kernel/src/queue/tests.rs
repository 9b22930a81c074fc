//! Queues against the bytes of RocketMQ, and against damage.

use std::path::{Path, PathBuf};

use super::*;

/// A folder that is removed after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tally-queue-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(folder: &Path, max_open: usize) -> Queues {
    let mut queues = Queues::new(Door::default(), folder.to_owned(), 200, max_open, false);
    queues.load().unwrap();
    queues
}

fn number(queues: &mut Queues, id: i32) -> u32 {
    let topic = queues.topic(b"T").unwrap();
    queues.queue(topic, id)
}

fn unit(pos: i64, tags_code: i64) -> Unit {
    Unit {
        pos,
        size: 100,
        tags_code,
    }
}

fn write_out(queues: &mut Queues) {
    while !queues.write_some(3).unwrap() {}
    assert_eq!(queues.pending_bytes(), 0);
}

fn positions(queues: &mut Queues, q: u32) -> Vec<i64> {
    let extent = queues.extent(q);
    (extent.min_offset..extent.max_offset)
        .map(|i| queues.unit(q, i as u64 * UNIT).unwrap().unwrap().pos)
        .collect()
}

#[test]
fn the_queue_that_waits_longest_is_written_first() {
    let folder = Folder::new("longest");
    let mut queues = open(&folder.0, 8);
    let (a, b) = (number(&mut queues, 0), number(&mut queues, 1));
    let unit = Unit {
        pos: 0,
        size: 100,
        tags_code: 5,
    };
    assert_eq!(queues.put(a, unit, 0).unwrap(), Put::Added);
    assert_eq!(queues.put(b, unit, 0).unwrap(), Put::Added);
    assert!(!queues.write_some(1).unwrap());
    let again = Unit { pos: 100, ..unit };
    assert_eq!(queues.put(a, again, 1).unwrap(), Put::Added); // it is busy, but b comes first
    assert!(!queues.write_some(1).unwrap());
    assert_eq!((queues.dirty_count(), queues.pending_bytes()), (1, UNIT as usize));
    assert!(folder.0.join("T/1/00000000000000000000").exists());
    assert!(queues.write_some(1).unwrap());
}

#[test]
fn a_queue_that_begins_at_13_equals_the_reference_file() {
    let folder = Folder::new("blank");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    let first = Unit {
        pos: 1234,
        size: 100,
        tags_code: 5,
    };
    assert_eq!(queues.put(q, first, 13).unwrap(), Put::Added);
    write_out(&mut queues);
    let file = std::fs::read(folder.0.join("T/0/00000000000000000200")).unwrap();
    let expected = "00000000000000007fffffff000000000000000000000000000000007fffffff000000000000000000000000000000007fffffff000000000000000000000000000004d2000000640000000000000005";
    let hex: String = file[..80].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, expected);
    assert!(file.len() == 200 && file[80..].iter().all(|&byte| byte == 0));
    let extent = queues.extent(q);
    assert_eq!(
        (extent.min_offset, extent.max_offset, extent.max_physic),
        (13, 14, 1334)
    );

    // after a restart the blank units belong to no record
    let mut again = open(&folder.0, 8);
    let q = number(&mut again, 0);
    assert_eq!(again.recover(q).unwrap(), 1334);
    again.correct_min(q, 0).unwrap();
    assert_eq!(again.extent(q), extent);
}

#[test]
fn units_read_equal_before_and_after_they_are_written() {
    let folder = Folder::new("pending");
    let mut queues = open(&folder.0, 1); // one file at a time
    for id in 0..3 {
        let q = number(&mut queues, id);
        for i in 0..25 {
            assert_eq!(queues.put(q, unit(100 * i, i), i).unwrap(), Put::Added);
            if i == 7 || i == 20 {
                write_out(&mut queues);
            }
        }
        assert_eq!(positions(&mut queues, q), (0..25).map(|i| 100 * i).collect::<Vec<_>>());
        assert_eq!(
            queues.read(q, 0, 10_000).unwrap().unwrap().len(),
            200,
            "to the file's end only"
        );
        assert_eq!(queues.read(q, 480, 10_000).unwrap().unwrap().len(), 20);
        assert_eq!(queues.read(q, 500, 10_000).unwrap(), None);
    }
    write_out(&mut queues);
    let mut again = open(&folder.0, 2);
    for id in 0..3 {
        let q = number(&mut again, id);
        assert_eq!(again.recover(q).unwrap(), 2500);
        assert_eq!(positions(&mut again, q).len(), 25);
    }
}

#[test]
fn a_repeated_record_changes_nothing() {
    let folder = Folder::new("repeat");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    queues.put(q, unit(0, 1), 0).unwrap();
    assert_eq!(
        queues.put(q, unit(0, 1), 0).unwrap(),
        Put::Known,
        "the last unit is known"
    );
    queues.put(q, unit(100, 2), 1).unwrap();
    assert_eq!(queues.put(q, unit(100, 2), 1).unwrap(), Put::Known);
    assert_eq!(queues.put(q, unit(0, 1), 0).unwrap(), Put::Known);
    assert_eq!(
        queues.put(q, unit(900, 1), 1).unwrap(),
        Put::Known,
        "an older offset is known"
    );
    assert_eq!(
        queues.put(q, unit(900, 1), 5).unwrap(),
        Put::Added,
        "a unit after a gap is added"
    );
    assert_eq!(positions(&mut queues, q), [0, 100, 0, 0, 0, 900]);
    assert_eq!(queues.put(q, unit(2000, 1), -1).unwrap(), Put::BadOffset);
    assert_eq!(queues.put(q, unit(2000, 1), i64::MAX).unwrap(), Put::BadOffset);
    assert_eq!(
        queues.put(q, unit(2000, 1), 1 << 40).unwrap(),
        Put::Misplaced,
        "far ahead"
    );
    assert_eq!(
        queues.put(q, unit(1100, 1), 9).unwrap(),
        Put::Misplaced,
        "no room for three in 100 bytes"
    );
    assert_eq!(queues.extent(q).max_offset, 6, "neither claim may get a unit");
}

#[test]
fn the_first_offset_is_that_of_a_damaged_unit_that_may_be_kept() {
    let folder = Folder::new("hidden");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..35 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    write_out(&mut queues);
    let path = folder.0.join("T/0/00000000000000000000");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[80..200].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    queues.correct_min(q, 700).unwrap();
    assert_eq!(
        queues.extent(q).min_offset,
        4,
        "unit 3 is the last one that names an older record"
    );
    assert_eq!(queues.delete_below(q, 700).unwrap(), 0);
    queues.correct_min(q, 1100).unwrap();
    assert_eq!(queues.extent(q).min_offset, 11, "unit 10 names an older record");
    assert_eq!(
        queues.delete_below(q, 1100).unwrap(),
        1,
        "the first sound unit behind the file is older"
    );
}

#[test]
fn a_file_that_ends_with_a_placeholder_stays_as_long_as_one_of_its_records() {
    let folder = Folder::new("placeholder");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in (0..9).chain(10..25) {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    assert_eq!(queues.delete_below(q, 800).unwrap(), 0);
    assert_eq!(queues.extent(q).min_offset, 8);
    assert_eq!(queues.delete_below(q, 1050).unwrap(), 1);
}

#[test]
fn units_that_were_cut_stay_removed_after_the_next_start() {
    let folder = Folder::new("cut");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..35 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    write_out(&mut queues);
    queues.truncate(q, 1250).unwrap();
    assert_eq!((queues.extent(q).max_offset, queues.extent(q).max_physic), (13, 1300));
    assert!(!folder.0.join("T/0/00000000000000000400").exists());
    let mut again = open(&folder.0, 8);
    let q = number(&mut again, 0);
    assert_eq!(again.recover(q).unwrap(), 1300);
    assert_eq!(again.extent(q).max_offset, 13);
    again.truncate(q, 0).unwrap();
    assert_eq!((again.extent(q).max_offset, again.extent(q).max_physic), (0, -1));
    again.put(q, unit(5000, 1), 40).unwrap();
    assert_eq!((again.extent(q).min_offset, again.extent(q).max_offset), (40, 41));
}

#[test]
fn a_queue_that_lost_its_file_takes_records_before_the_truncation() {
    let folder = Folder::new("cut-empty");
    std::fs::create_dir_all(folder.0.join("T/0")).unwrap();
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    assert_eq!(queues.recover(q).unwrap(), -1);
    queues.truncate(q, 1250).unwrap();
    assert_eq!(queues.put(q, unit(300, 1), 0).unwrap(), Put::Added);
    assert_eq!((queues.extent(q).max_offset, queues.extent(q).max_physic), (1, 400));
}

#[test]
fn old_files_are_removed_and_the_first_offset_rises() {
    let folder = Folder::new("old");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..35 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    assert_eq!(queues.delete_below(q, 1950).unwrap(), 2);
    assert_eq!(queues.extent(q).min_offset, 20);
    assert_eq!(queues.delete_below(q, 2250).unwrap(), 0);
    assert_eq!(queues.extent(q).min_offset, 23);
    queues.correct_min(q, 2400).unwrap();
    assert_eq!(queues.extent(q).min_offset, 24, "the record at the bound is kept");
    assert_eq!(
        queues.delete_below(q, 1 << 40).unwrap(),
        1,
        "the last file is never deleted"
    );
    assert_eq!(queues.extent(q).max_offset, 35);
}

#[test]
fn the_first_offset_may_be_one_that_is_not_written() {
    let folder = Folder::new("unwritten");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..8 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    queues.correct_min(q, 500).unwrap();
    assert_eq!(queues.extent(q).min_offset, 5);
}

#[test]
fn a_cut_zeroes_units_after_a_hole() {
    let folder = Folder::new("hole");
    let mut queues = Queues::new(Door::default(), folder.0.clone(), 20_000, 8, false);
    let q = number(&mut queues, 0);
    for i in 0..900 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    write_out(&mut queues);
    let path = folder.0.join("T/0/00000000000000000000");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[2000..14_000].fill(0); // pages that a power loss discarded
    std::fs::write(&path, &bytes).unwrap();
    queues.truncate(q, 80_000).unwrap();
    assert_eq!(queues.extent(q).max_offset, 100);
    assert!(std::fs::read(&path).unwrap()[2000..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_missing_file_ends_the_queue() {
    let folder = Folder::new("missing");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..35 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    write_out(&mut queues);
    std::fs::remove_file(folder.0.join("T/0/00000000000000000400")).unwrap();
    let mut again = open(&folder.0, 8);
    let q = number(&mut again, 0);
    assert_eq!(again.recover(q).unwrap(), 2000);
    assert_eq!(again.extent(q).max_offset, 20);
}

#[test]
fn blank_units_name_no_position() {
    let folder = Folder::new("blanks-only");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    queues.put(q, unit(1234, 5), 13).unwrap();
    write_out(&mut queues);
    let path = folder.0.join("T/0/00000000000000000200");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[60..].fill(0); // the one unit after the blank ones is lost
    std::fs::write(&path, &bytes).unwrap();
    let mut again = open(&folder.0, 8);
    let q = number(&mut again, 0);
    assert_eq!(again.recover(q).unwrap(), -1);
}

#[test]
fn a_queue_that_grows_again_is_reported_again() {
    let folder = Folder::new("grown");
    let mut queues = open(&folder.0, 8);
    queues.watch(b"T", 0, true);
    let q = number(&mut queues, 0);
    for i in 0..3 {
        queues.put(q, unit(200 * i, 1), 2 * i).unwrap();
        queues.put(q, unit(200 * i + 100, 1), 2 * i + 1).unwrap();
        assert_eq!(queues.take_grown(), vec![(b"T".to_vec(), 0)]);
        assert_eq!(queues.take_grown(), vec![]);
    }
}

#[test]
fn a_removed_queue_is_no_longer_written() {
    let folder = Folder::new("unwritten-removed");
    let mut queues = open(&folder.0, 8);
    let (a, b) = (number(&mut queues, 0), number(&mut queues, 1));
    queues.put(a, unit(0, 1), 0).unwrap();
    queues.put(b, unit(100, 1), 0).unwrap();
    queues.remove(a).unwrap();
    assert_eq!((queues.dirty_count(), queues.pending_bytes()), (1, UNIT as usize));
    let again = number(&mut queues, 0);
    assert_eq!(queues.put(again, unit(200, 1), 0).unwrap(), Put::Added);
    assert_eq!(queues.dirty_count(), 2);
    write_out(&mut queues);
    assert_eq!(positions(&mut queues, again), [200]);
}

#[test]
fn a_full_last_file_is_kept() {
    let folder = Folder::new("full");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..30 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    assert_eq!(queues.delete_below(q, 1 << 40).unwrap(), 2);
    assert_eq!(queues.extent(q).max_offset, 30);
}

#[test]
fn files_after_an_empty_file_are_removed_with_it() {
    let folder = Folder::new("empty");
    let mut queues = open(&folder.0, 8);
    let q = number(&mut queues, 0);
    for i in 0..35 {
        queues.put(q, unit(100 * i, i), i).unwrap();
    }
    write_out(&mut queues);
    std::fs::write(folder.0.join("T/0/00000000000000000200"), b"").unwrap();
    let mut again = open(&folder.0, 8);
    let q = number(&mut again, 0);
    assert_eq!(again.recover(q).unwrap(), 1000);
    let left: Vec<_> = std::fs::read_dir(folder.0.join("T/0")).unwrap().collect();
    assert_eq!(left.len(), 1, "dispatch rebuilds the others");
}

#[test]
fn a_file_of_a_wrong_length_is_reported() {
    let folder = Folder::new("length");
    std::fs::create_dir_all(folder.0.join("T/0")).unwrap();
    std::fs::create_dir_all(folder.0.join("T/not-a-queue")).unwrap();
    std::fs::write(folder.0.join("T/0/00000000000000000000"), [0; 140]).unwrap();
    let mut queues = Queues::new(Door::default(), folder.0.clone(), 200, 8, false);
    let text = queues.load().unwrap_err().to_string();
    assert!(
        text.contains("T/0/00000000000000000000") && text.contains("200"),
        "{text}"
    );
}

#[test]
fn a_topic_cannot_lead_out_of_the_store() {
    let folder = Folder::new("names");
    let mut queues = open(&folder.0, 8);
    for name in [&b""[..], b".", b"..", b"../../x", b"a/b", b"a\0b"] {
        assert_eq!(queues.topic(name), None);
    }
    assert!(queues.topic("%RETRY%ü".as_bytes()).is_some());
}

#[test]
fn a_removed_topic_leaves_nothing_and_can_be_created_again() {
    let folder = Folder::new("remove");
    let mut queues = open(&folder.0, 8);
    queues.watch(b"T", 0, true);
    let q = number(&mut queues, 0);
    queues.put(q, unit(0, 1), 0).unwrap();
    assert_eq!(queues.take_grown(), vec![(b"T".to_vec(), 0)]);
    write_out(&mut queues);
    queues.remove_topic(b"T").unwrap();
    assert!(!folder.0.join("T").exists() && queues.find(b"T", 0).is_none());
    let q = number(&mut queues, 0);
    assert_eq!(queues.extent(q).max_physic, -1);
    queues.put(q, unit(100, 1), 0).unwrap();
    assert_eq!(queues.take_grown(), vec![(b"T".to_vec(), 0)]);
}

/// Arbitrary bytes in the files: recovery ends, keeps a prefix, and the queue can be written and read afterwards.
#[test]
fn recovery_of_arbitrary_bytes_ends() {
    let folder = Folder::new("fuzz");
    let mut state = 7u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for round in 0..150 {
        let at = folder.0.join(format!("{round}"));
        let mut queues = open(&at, 2);
        let q = number(&mut queues, 0);
        let count = random(50) as i64;
        for i in 0..count {
            queues.put(q, unit(100 * i, i), i).unwrap();
        }
        write_out(&mut queues);
        let files: Vec<_> = match std::fs::read_dir(at.join("T/0")) {
            Ok(files) => files.map(|file| file.unwrap().path()).collect(),
            Err(_) => vec![],
        };
        for _ in 0..random(4) {
            if files.is_empty() {
                break;
            }
            let path = &files[random(files.len())];
            let mut bytes = std::fs::read(path).unwrap();
            let (from, len) = (random(200), random(60));
            let fill = [0, 0xff, 0x7f, random(256) as u8][random(4)];
            bytes[from..(from + len).min(200)].fill(fill);
            std::fs::write(path, bytes).unwrap();
        }
        let mut queues = open(&at, 2);
        let q = number(&mut queues, 0);
        queues.recover(q).unwrap();
        queues.truncate(q, 100 * random(60) as i64).unwrap();
        queues.correct_min(q, 100 * random(60) as i64).unwrap();
        let extent = queues.extent(q);
        assert!(extent.min_logic <= extent.max_offset as u64 * UNIT && extent.max_offset <= count);
        let next = extent.max_offset;
        let far = Unit {
            pos: i64::MAX - 200,
            size: 100,
            tags_code: 3,
        };
        if queues.put(q, far, next).unwrap() == Put::Added {
            write_out(&mut queues);
            assert_eq!(queues.unit(q, next as u64 * UNIT).unwrap(), Some(far));
        }
        queues.delete_below(q, 100 * random(60) as i64).unwrap();
    }
}
