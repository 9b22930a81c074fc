//! Index files against the bytes of RocketMQ, and against damage.

use std::path::PathBuf;

use super::*;
use crate::hash::string_hash;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tally-index-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn open(&self, slots: u32, entries: u32) -> Index {
        let mut index = Index::new(Door::default(), self.0.clone(), slots, entries, false);
        index.load(false).unwrap();
        index
    }

    fn file(&self, number: usize) -> PathBuf {
        let mut names: Vec<_> = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names[number].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key(text: &str) -> i32 {
    hash_on(string_hash(b"TopicTest#"), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const T: i64 = 0x1a1_fb43_7edb;

fn fill(index: &mut Index) {
    let entries = [
        ("AC1E00010000000000000001", 0, T),
        ("k1", 0, T),
        ("k2", 0, T),
        ("k1", 170, T + 6),
        ("k1", 886, T + 15),
        ("k2", 886, T + 15),
        ("k3", 1022, T + 15),
    ];
    for (text, pos, time) in entries {
        index.put(key(text), pos, time).unwrap();
    }
}

#[test]
fn the_first_entries_equal_the_reference_file() {
    let folder = Folder::new("reference");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    let bytes = std::fs::read(folder.file(0)).unwrap();
    assert_eq!(bytes.len(), 40 + 32 + 320);
    let entries = "0000000000000000000000000000000000000000\
                   0152ccda00000000000000000000000000000000\
                   0029e6a800000000000000000000000000000000\
                   0029e6a900000000000000000000000000000000\
                   0029e6a800000000000000aa0000000000000002\
                   0029e6a800000000000003760000000000000004\
                   0029e6a900000000000003760000000000000003\
                   0029e6aa00000000000003fe0000000000000001";
    assert_eq!(hex(&bytes[72..72 + 160]), entries);
    assert_eq!(hex(&bytes[..24]), "000001a1fb437edb000001a1fb437eea0000000000000000");
    assert_eq!(hex(&bytes[24..40]), "00000000000003fe0000000300000008");
    assert_eq!(index.find(key("k1"), 64, 0, i64::MAX).unwrap(), vec![886, 170, 0]);
    assert_eq!(index.find(key("k1"), 2, 0, i64::MAX).unwrap(), vec![886, 170]);
    assert_eq!(index.find(key("none"), 64, 0, i64::MAX).unwrap(), Vec::<i64>::new());
}

#[test]
fn a_full_file_is_followed_by_one_that_begins_with_its_end() {
    let folder = Folder::new("roll");
    let mut index = folder.open(8, 4);
    for i in 0..8 {
        index.put(key("same"), 100 * i, T + 1000 * i).unwrap();
    }
    let headers: Vec<_> = index.headers().map(|(_, header)| *header).collect();
    assert_eq!(headers.len(), 3);
    assert_eq!((headers[0].count, headers[1].count, headers[2].count), (4, 4, 3));
    assert_eq!((headers[1].begin_pos, headers[1].end_pos), (300, 500));
    let names: Vec<_> = index.headers().map(|(name, _)| name.to_owned()).collect();
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]) && names.iter().all(|name| name.len() == 17));
    // the first entry of a new file counts its seconds from the end of the old one
    let second = std::fs::read(folder.file(1)).unwrap();
    assert_eq!(int(&second, 40 + 32 + 20 + 12), 1);
    assert_eq!(
        index.find(key("same"), 5, 0, i64::MAX).unwrap(),
        vec![700, 600, 500, 400, 300]
    );
    assert_eq!(index.delete_below(250).unwrap(), 1);
    assert_eq!(
        index.delete_below(1 << 40).unwrap(),
        1,
        "the last file is never deleted"
    );
}

#[test]
fn an_interrupted_record_is_indexed_once() {
    let folder = Folder::new("once");
    let mut index = folder.open(8, 4);
    for i in 0..5 {
        index.put(key(&format!("k{i}")), 500, T).unwrap();
    }
    drop(index);
    let mut index = folder.open(8, 4);
    assert!(index.has_passed(499) && !index.has_passed(500));
    assert_eq!(index.keys_of_last(500).unwrap(), 5, "keys in two files");
    assert_eq!(index.keys_of_last(501).unwrap(), 0);
}

#[test]
fn a_crash_between_slot_and_header_keeps_the_chain() {
    let folder = Folder::new("between");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    drop(index);
    let path = folder.file(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[24..32].copy_from_slice(&886i64.to_be_bytes()); // the header as it was before the last entry
    bytes[36..40].copy_from_slice(&7i32.to_be_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let mut index = folder.open(8, 16);
    index.put(key("k3"), 1022, T + 15).unwrap();
    let again = std::fs::read(&path).unwrap();
    assert_eq!(again[72..], bytes[72..]);
    assert_eq!(
        index.find(key("AC1E00010000000000000001"), 9, 0, i64::MAX).unwrap(),
        vec![0]
    );
}

#[test]
fn files_that_may_be_torn_are_dropped_after_an_unclean_stop() {
    let folder = Folder::new("unclean");
    let mut index = folder.open(8, 4);
    for i in 0..8 {
        index.put(key("same"), 100 * i, T + 1000 * i).unwrap();
    }
    assert_eq!(
        index.drop_after(T + 7000).unwrap(),
        -1,
        "the index ends at the last sound time"
    );
    assert_eq!(index.drop_after(T + 6000).unwrap(), 600);
    assert_eq!(index.headers().count(), 2);
    assert_eq!(index.drop_after(T + 6000).unwrap(), -1);
    drop(index);
    let path = folder.file(1);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[36..40].copy_from_slice(&2i32.to_be_bytes()); // a header older than its slots
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(folder.open(8, 4).drop_after(T + 6000).unwrap(), 300);
}

#[test]
fn files_after_a_removed_one_are_removed_whatever_their_time() {
    let folder = Folder::new("set-back");
    let mut index = folder.open(8, 4);
    for i in 0..9 {
        let ahead = if (3..6).contains(&i) { 1_000_000 } else { 0 };
        index.put(key("same"), 100 * i, T + 1000 * i + ahead).unwrap();
    }
    assert_eq!(index.drop_after(T + 9000).unwrap(), 300);
    assert_eq!(index.headers().count(), 1);
    for i in 3..9 {
        index.put(key("same"), 100 * i, T + 1000 * i).unwrap();
    }
    let found = index.find(key("same"), 99, 0, i64::MAX).unwrap();
    assert_eq!(
        found.len(),
        9,
        "every record is found after it is indexed again: {found:?}"
    );
}

#[test]
fn a_wrong_length_is_reported_unless_the_file_was_being_created() {
    let folder = Folder::new("length");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    std::fs::write(folder.0.join("99990101000000000"), b"").unwrap();
    std::fs::copy(folder.file(0), folder.0.join("99990101000000001")).unwrap();
    let mut again = folder.open(8, 16);
    assert_eq!(again.headers().count(), 1);
    assert_eq!(
        again.drop_after(i64::MAX).unwrap(),
        1022,
        "the records after the lost file are indexed again"
    );
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    let mut other = Index::new(Door::default(), folder.0.clone(), 9, 16, false);
    let text = other.load(false).unwrap_err().to_string();
    assert!(text.contains("9 slots") && text.contains("392"), "{text}");
}

#[test]
fn the_fast_hash_equals_the_plain_hash() {
    for text in [
        "",
        "a",
        "abcdefgh",
        "abcdefghi",
        "KEY-0123456789-0123456789",
        "键",
        "abc键defghijkl\u{1F600}",
    ] {
        let whole = ["TopicTest#", text].concat();
        assert_eq!(key(text), string_hash(whole.as_bytes()), "{text}");
    }
}

#[test]
fn a_chain_is_followed_to_older_entries_only() {
    let folder = Folder::new("circle");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    drop(index);
    let path = folder.file(0);
    let mut bytes = std::fs::read(&path).unwrap();
    let oldest_at = 40 + 8 * 4 + 2 * 20;
    bytes[oldest_at + 16..oldest_at + 20].copy_from_slice(&5i32.to_be_bytes()); // the first k1 points to the last entry
    std::fs::write(&path, &bytes).unwrap();
    let mut index = folder.open(8, 16);
    assert_eq!(index.find(key("k1"), 64, 0, i64::MAX).unwrap(), vec![886, 170, 0]);
}

#[test]
fn a_file_with_an_impossible_hash_is_rebuilt_when_it_is_cut() {
    let folder = Folder::new("impossible-hash");
    fill(&mut folder.open(8, 4));
    let last = std::fs::read_dir(&folder.0).unwrap().count() - 1;
    let path = folder.file(last);
    let mut bytes = std::fs::read(&path).unwrap();
    let begin_pos = long(&bytes, 16);
    bytes[HEADER + SLOT * 8 + ENTRY] |= 0x80;
    std::fs::write(&path, bytes).unwrap();
    let mut index = folder.open(8, 4);
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    index.trim(&name, 3, |_| None).unwrap();
    assert!(!path.exists());
    assert_eq!(
        index.drop_from("").unwrap(),
        begin_pos,
        "its records are indexed again from here"
    );
}

#[test]
fn a_cut_file_counts_the_slots_that_are_left() {
    let folder = Folder::new("slots");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    let name = index.newest().0;
    assert!(index.trim(&name, 3, |_| Some(T)).unwrap());
    let header = *index.headers().next().unwrap().1;
    assert_eq!((header.count, header.slots_used, header.end_pos), (3, 2, 0));
    assert_eq!(index.find(key("k1"), 64, 0, i64::MAX).unwrap(), vec![0]);
    let bytes = std::fs::read(folder.file(0)).unwrap();
    assert_eq!(int(&bytes, 32), 2, "the file has the new count");
    assert!(
        index.take_changed().0.contains(&folder.file(0)),
        "the next sync includes the cut file"
    );
}

#[test]
fn a_file_whose_slots_name_one_entry_more_is_dropped() {
    let folder = Folder::new("one-more");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    drop(index);
    let path = folder.file(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[36..40].copy_from_slice(&7i32.to_be_bytes()); // the slots name entry 7, the header counts to 6
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(folder.open(8, 16).drop_after(i64::MAX).unwrap(), 0);
}

#[test]
fn the_record_at_the_border_is_indexed_once_more() {
    let folder = Folder::new("border");
    let mut index = folder.open(8, 4);
    for i in 0..8 {
        index.put(key("same"), 100 * i, T + 1000 * i).unwrap();
    }
    assert_eq!(index.drop_after(T + 6000).unwrap(), 600);
    assert_eq!(index.keys_of_last(500).unwrap(), 0, "as RocketMQ does");
    assert_eq!(index.keys_of_last(500).unwrap(), 1);
}

#[test]
fn an_entry_of_another_slot_ends_a_chain() {
    let folder = Folder::new("other-slot");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    drop(index);
    let path = folder.file(0);
    let mut bytes = std::fs::read(&path).unwrap();
    // Power was lost during the write: the slot of k3 survived; in place of its entry stands one of an earlier file.
    let slot = key("k3") as u32 as usize % 8;
    bytes[40 + 4 * slot..44 + 4 * slot].copy_from_slice(&8i32.to_be_bytes());
    let entry = 40 + 32 + 8 * 20;
    bytes[entry..entry + 4].copy_from_slice(&(key("k3") + 1).to_be_bytes());
    bytes[entry + 16..entry + 20].copy_from_slice(&5i32.to_be_bytes());
    std::fs::write(&path, &bytes).unwrap();
    let mut index = folder.open(8, 16);
    index.put(key("k3"), 2000, T + 16).unwrap();
    assert_eq!(int(&std::fs::read(&path).unwrap(), entry + 16), 0);
}

/// Arbitrary bytes in the file: reading ends, and finds no more entries than fit.
#[test]
fn a_search_in_arbitrary_bytes_ends() {
    let folder = Folder::new("fuzz");
    let mut index = folder.open(8, 16);
    fill(&mut index);
    drop(index);
    let path = folder.file(0);
    let good = std::fs::read(&path).unwrap();
    let mut state = 3u64;
    let mut random = move |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..1 + random(6) {
            let (at, fill) = (random(bytes.len()), [0, 0xff, 0x7f, random(256) as u8][random(4)]);
            let end = (at + 1 + random(8)).min(bytes.len());
            bytes[at..end].fill(fill);
        }
        std::fs::write(&path, &bytes).unwrap();
        let mut index = folder.open(8, 16);
        for text in ["k1", "k2", "k3"] {
            assert!(index.find(key(text), 64, i64::MIN, i64::MAX).unwrap().len() < 16);
        }
        let _ = index.keys_of_last(1022).unwrap();
        index.put(key("k1"), 5000, i64::MAX).unwrap();
        index.put(key("k1"), 5000, i64::MIN).unwrap();
        let _ = index.drop_after(T).unwrap();
        for entry in std::fs::read_dir(&folder.0).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}
