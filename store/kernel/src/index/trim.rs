//! Cuts the index back: to the count of a progress mark, or to the end of the log.
//!
//! Entries stand in the log's order, so a cut keeps the first ones. Slots and chains follow from the entries alone and
//! are rebuilt: after a power loss each page of the map may be older or newer than the next one, but the synced entries
//! are there.

use super::{header_after, int, key_slot, long, At, Index, Map, Outcome, ENTRY, HEADER, SLOT};

impl Index {
    /// The newest file and the number of its next entry; 0: there is no file.
    pub fn newest(&self) -> (String, i32) {
        self.files
            .last()
            .map_or((String::new(), 0), |file| (file.name.clone(), file.header.count))
    }

    /// Cuts back to the entries below `count` of the file `name` (empty: to nothing). False, without a change, if the
    /// file does not exist. `store_time(pos)` is the store time of the record at a position.
    pub fn trim(&mut self, name: &str, count: i32, store_time: impl Fn(i64) -> Option<i64>) -> Outcome<bool> {
        let keep = match self.files.iter().position(|file| file.name == name) {
            Some(at) if (1..=self.entries as i32).contains(&count) => at + 1,
            None if name.is_empty() => 0,
            _ => return Ok(false),
        };
        for file in self.files.split_off(keep) {
            self.remove_file(file)?;
        }
        if keep > 0 {
            self.cut(count, store_time)?;
        }
        Ok(true)
    }

    /// Removes the entries of records at or after `pos`.
    pub fn trim_at(&mut self, pos: i64, store_time: impl Fn(i64) -> Option<i64>) -> Outcome<()> {
        while self
            .files
            .last()
            .is_some_and(|file| file.header.count > 1 && file.header.begin_pos >= pos)
        {
            let file = self.files.pop().expect("it was looked at");
            self.remove_file(file)?;
        }
        let Some(mut file) = self.files.pop() else {
            return Ok(());
        };
        let opened = self.open_for_reading(&mut file);
        let (header, bytes) = (file.header, file.map.bytes());
        let mut count = header.count;
        if opened.is_ok() {
            while count > 1 && long(bytes, self.entry_at(count - 1) + 4) >= pos {
                count -= 1;
            }
        }
        self.files.push(file);
        opened?;
        if count == header.count && header.end_pos < pos {
            return Ok(());
        }
        self.cut(count, store_time)
    }

    /// Truncates the last file to the entries below `count`.
    fn cut(&mut self, count: i32, store_time: impl Fn(i64) -> Option<i64>) -> Outcome<()> {
        let before = self.files.len().checked_sub(2).map(|at| self.files[at].header);
        let (slots, entry_at) = (self.slots, HEADER + SLOT * self.slots as usize);
        let Some(file) = self.files.last_mut() else {
            return Ok(());
        };
        let path = self.folder.join(&file.name);
        file.map = Map::Closed;
        let mut header = file.header;
        header.count = count;
        if count <= 1 {
            header = before.map(|before| header_after(&before)).unwrap_or_default();
            header.count = 1;
        }
        if self.read_only {
            file.header = header; // readers look below the count only; slots that name later entries end at once
            return Ok(());
        }
        let open = self.door.open(&path).at(&path)?;
        open.allocate((entry_at + ENTRY * self.entries as usize) as u64)
            .at(&path)?;
        let mut map = open.write_map().at(&path)?;
        let mut newest = vec![0u8; SLOT * slots as usize];
        header.slots_used = 0;
        let begin_pos = before.map_or(0, |before| before.end_pos);
        let mut last_pos = begin_pos;
        for number in 1..count {
            let at = entry_at + ENTRY * number as usize;
            let (key, pos) = (int(map.bytes(), at), long(map.bytes(), at + 4));
            // An unreadable page, an impossible hash, zeros, or an entry of another place: the caller dispatches again,
            // which rebuilds the file.
            if map.is_spoiled() || key < 0 || pos < last_pos || (key, pos) == (0, 0) {
                drop(map);
                if file.header.count <= 1 {
                    file.header.begin_pos = begin_pos; // the header was damaged as well
                }
                return self.lost_from_file(self.files.len() - 1);
            }
            last_pos = pos;
            let slot = SLOT * key_slot(key, slots) as usize;
            let older = int(&newest, slot);
            header.slots_used += i32::from(older == 0);
            if int(map.bytes(), at + 16) != older {
                map.write(at + 16, &older.to_be_bytes()).at(&path)?;
            }
            newest[slot..slot + SLOT].copy_from_slice(&number.to_be_bytes());
        }
        if count > 1 {
            let (first, last) = (entry_at + ENTRY, entry_at + ENTRY * (count - 1) as usize);
            header.begin_pos = long(map.bytes(), first + 4);
            header.end_pos = long(map.bytes(), last + 4);
            if let Some(time) = store_time(header.begin_pos) {
                header.begin_timestamp = time;
            }
            let seconds = i64::from(int(map.bytes(), last + 12));
            header.end_timestamp = store_time(header.end_pos).unwrap_or(header.begin_timestamp + 1000 * seconds);
        }
        map.write(HEADER, &newest)
            .and_then(|()| map.write(0, &header.encode()))
            .at(&path)?;
        file.header = header;
        let name = file.name.clone();
        if self.changed.last() != Some(&name) {
            self.changed.push(name);
        }
        Ok(())
    }
}
