//! A file that is truncated under a map causes the same signal as a bad sector, on every system.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use memmap2::MmapMut;

use super::*;

/// A file of pages, each filled with its number plus one; removed at the end.
struct Pages(PathBuf);

impl Pages {
    fn new(name: &str, pages: usize) -> Pages {
        let path = std::env::temp_dir().join(format!("guard-{name}-{}", std::process::id()));
        let mut file = File::create(&path).unwrap();
        for page in 0..pages {
            file.write_all(&vec![page as u8 + 1; page_bytes()]).unwrap();
        }
        Pages(path)
    }

    fn map(&self) -> ReadMap {
        ReadMap::new(&File::open(&self.0).unwrap(), &self.0).unwrap()
    }

    fn truncate(&self, pages: usize) {
        let file = OpenOptions::new().write(true).open(&self.0).unwrap();
        file.set_len((pages * page_bytes()) as u64).unwrap();
    }

    fn unread(&self) -> Vec<(u64, u64)> {
        let page = page_bytes() as u64;
        take_unread(&self.0)
            .into_iter()
            .map(|range| (range.offset / page, range.bytes / page))
            .collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `take_unread` has one state for the process: tests that call it take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn an_unreadable_page_is_marked_and_the_others_keep_their_bytes() {
    let _turn = turn();
    let (pages, at) = (Pages::new("marked", 8), page_bytes());
    let map = pages.map();
    assert!(!map.spoils(0, map.len()));
    pages.truncate(5);
    let before = faults();
    assert_eq!((map[6 * at], map[7 * at - 1]), (FILL, FILL));
    assert_eq!(map[4 * at], 5);
    assert!(faults() > before);
    assert!(map.is_spoiled() && map.spoils(6 * at, 1) && map.spoils(0, map.len()) && map.spoils(7 * at - 1, 1));
    assert!(!map.spoils(0, 6 * at) && !map.spoils(7 * at, at));
    assert_eq!(pages.unread(), [(6, 1)]);
    assert_eq!(pages.unread(), [], "told once");
    assert_eq!(map[5 * at], FILL);
    assert_eq!(pages.unread(), [(5, 2)], "the range grew");
}

#[test]
fn a_new_map_shows_the_present_bytes_of_the_file() {
    let _turn = turn();
    let (pages, at) = (Pages::new("again", 4), page_bytes());
    let map = pages.map();
    pages.truncate(2);
    assert_eq!(map[3 * at], FILL);
    drop(map);
    assert_eq!(
        pages.unread(),
        [(3, 1)],
        "a range that was not reported before the map was dropped is kept"
    );
    pages.truncate(4);
    let map = pages.map();
    assert_eq!((map[at], map[3 * at]), (2, 0));
    assert!(!map.is_spoiled());
}

#[test]
fn a_store_to_an_unreadable_page_is_lost_and_marked() {
    let _turn = turn();
    let (pages, at) = (Pages::new("writable", 4), page_bytes());
    let file = OpenOptions::new().read(true).write(true).open(&pages.0).unwrap();
    // SAFETY: the guard is dropped before the map, and the file is this test's.
    let mut map = unsafe { MmapMut::map_mut(&file).unwrap() };
    let guard = Guard::new(&pages.0, map.as_ptr() as usize, map.len(), true).unwrap();
    pages.truncate(2);
    map[at] = 77;
    map[2 * at + 5] = 78;
    assert_eq!((map[at], map[2 * at + 5], map[2 * at]), (77, 78, FILL));
    assert!(guard.spoils(2 * at, 1) && !guard.spoils(at, 1));
    drop(guard);
}

#[test]
fn replaced_pages_stay_within_the_memory_budget_and_all_are_marked() {
    let _turn = turn();
    let count = MOST_FILLED + 500;
    let (pages, at) = (Pages::new("many", 1), page_bytes());
    pages.truncate(count);
    let map = pages.map();
    pages.truncate(0);
    // Every other one: areas that cannot be joined.
    let odd = |page: &usize| page % 2 == 1;
    let zeros = (0..count).filter(odd).filter(|page| map[page * at] != FILL).count();
    for page in 0..count {
        assert_eq!(map.spoils(page * at, at), page % 2 == 1, "page {page}");
    }
    assert_eq!(zeros, 0);
    let zeros = (0..count).filter(|page| map[page * at] == 0).count();
    assert!(zeros > 0 && zeros < count, "{zeros}");
    assert!(map.spoils(0, 1));
    drop(map);
    assert!(FILLED.load(Ordering::Relaxed) < MOST_FILLED, "the budget is given back");
}

#[test]
fn all_threads_that_meet_the_same_page_continue() {
    let _turn = turn();
    let (pages, at) = (Pages::new("threads", 64), page_bytes());
    let map = pages.map();
    pages.truncate(1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for page in 1..64 {
                    assert_eq!(map[page * at + 7], FILL);
                    assert!(map.spoils(page * at, 1));
                }
            });
        }
        // Maps are made and dropped at the same time.
        scope.spawn(|| {
            for number in 0..200 {
                let other = Pages::new(&format!("other-{number}"), 1);
                assert_eq!(other.map()[0], 1);
            }
        });
    });
}

/// The test below runs this in a separate process.
#[test]
#[ignore = "ends the process"]
fn foreign_fault() {
    let pages = Pages::new("foreign", 2);
    let mine = pages.map();
    // SAFETY: the fault is intended.
    let foreign = unsafe { Mmap::map(&File::open(&pages.0).unwrap()).unwrap() };
    pages.truncate(0);
    assert_eq!(mine[0], FILL);
    std::hint::black_box(foreign[0]);
}

#[test]
fn a_fault_in_a_foreign_map_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let this = std::env::current_exe().unwrap();
    let arguments = ["--exact", "guard::tests::foreign_fault", "--ignored"];
    let ended = Command::new(this).args(arguments).output().unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGBUS), "{ended:?}");
}
