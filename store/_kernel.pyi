"""The Rust kernel: per-message loops over buffers and small objects. store/kernel/src explains each of them."""

from collections.abc import Callable, Iterator, Sequence
from mmap import mmap
from os import PathLike
from pathlib import Path
from typing import NamedTuple, type_check_only

# Named tuples that only the kernel creates: read them by name. A call once per message or pull returns a plain tuple,
# which costs less.

class Followed(NamedTuple):
    """What became of bytes of another log: see `Log.append_followed`."""

    taken: int
    """Bytes that were taken."""
    wanted: int
    """Size of the next item, as far as the bytes tell."""
    flaw: str | None
    """Why the next item is not a record that can be stored."""
    reference: int | None
    """The next record names the half message at this position, which has to be mapped."""
    halves: list[tuple[int, int]]
    """Half messages that were staged: position in the other log, position here."""

class LogPoint(NamedTuple):
    """An end of the log, and the last entry before it."""

    pos: int
    last_index: int
    """-1: there is no entry."""
    term: int
    chain: int
    """Chain CRC of the entry."""

class EntryHeader(NamedTuple):
    """The header of an entry. `pos`: of the entry in the log; `chain`: its chain CRC; `body_crc`: CRC of its body."""

    pos: int
    size: int
    term: int
    kind: int
    chain: int
    body_crc: int

class SpecialEntry(NamedTuple):
    """An entry that is not a message. `pos` and `size`: position in the log and size of its record."""

    entry_index: int
    kind: int
    pos: int
    size: int

class WrittenPoint(NamedTuple):
    """What the files of queues and index hold between two records."""

    pos: int
    store_ms: int
    """Store time of the last record; 0: none since the start."""
    queues: int
    """Queues that have had messages."""
    units: int
    """Sum of the max offsets of the queues."""
    index_name: str
    """Name of the newest index file; empty: there is none."""
    index_count: int
    """Number of the next entry of that file."""
    table: bytes
    """Table of the queues' ends; empty if it was not requested."""

class QueueFault(NamedTuple):
    """A queue that does not have what it should."""

    topic: bytes
    queue: int
    reason: str
    end: int
    """The next offset that it had when the table was made; 0: there is no table."""
    certain: bool
    """False: a power loss may leave the queue so, after the part that is known to be durable."""

class Stray(NamedTuple):
    """A record without a place at the queue offset that it claims. `pos` and `size`: of the record."""

    topic: bytes
    queue: int
    offset: int
    pos: int
    size: int

class WrongUnit(NamedTuple):
    """A record that its queue does not name. `offset`: of the queue; `pos`: of the record in the log."""

    topic: bytes
    queue: int
    offset: int
    pos: int
    reason: str

class Repaired(NamedTuple):
    """What `Dispatch.repair` did."""

    first: int
    last: int
    """First and last offset that it compared."""
    written: int
    """Units written."""
    placeholders: int
    """Placeholders among them."""
    damage: list[tuple[int, int, str]]
    """Damage of the log that it found: position, size, reason."""

class QueueExtent(NamedTuple):
    """A queue and its ends."""

    topic: bytes
    queue: int
    min_offset: int
    max_offset: int
    min_logic_offset: int
    """In bytes."""
    max_pos: int
    """Position in the log of the end of the last record: RocketMQ's maxPhysicOffset."""

class IndexFile(NamedTuple):
    """An index file: store times in ms and positions of its first and last entry."""

    name: str
    begin_ms: int
    end_ms: int
    begin_pos: int
    end_pos: int
    slots: int
    """Slots in use."""
    next_entry: int
    """Number of the next entry."""

class ExtensionUnit(NamedTuple):
    """A unit of the extension of a queue. `size`: in bytes; `store_ms`: store time of its record."""

    size: int
    tags_code: int
    store_ms: int
    bit_map: bytes

class ExpiredEnd(NamedTuple):
    """Where the messages that are older than a time end."""

    offset: int
    """The first offset behind them."""
    last_pos: int
    """Position of the last of them; -1: there is none."""
    next_ms: int
    """Store time of the message at `offset`; -1: none, or not known."""

def string_hash(text: bytes) -> int:
    """Java's `String.hashCode` of UTF-8 bytes, signed 32 bits."""

def key_hash(key: bytes) -> int:
    """The index's hash of `topic#key`, never negative."""

class Door:
    """All changes of files go through this object. Calls that access the disk release the GIL; errors are OSError
    (errno, filename).

    What is durable when: see store/kernel/src/door.rs. `record`: for tests, see `crash`.
    `most_single_syncs`: for tests, the property of that name.
    """

    def __init__(self, *, record: bool = False, most_single_syncs: int = 0) -> None: ...
    @property
    def most_single_syncs(self) -> int:
        """More files and folders than this are synced by `sync_fs`."""

    def write_file(self, path: str | PathLike[str], data: bytes | bytearray) -> None:
        """Replaces the file's content (or creates it) and syncs it. Not atomic: a crash may leave any part of it; use
        `rename` for that."""

    def write(self, path: str | PathLike[str], offset: int, data: bytes | bytearray) -> None:
        """Writes all of `data` into an existing file."""

    def create(self, path: str | PathLike[str], bytes: int, allocate: bool = True) -> None:
        """Creates a file (and missing folders) of that length; `allocate` reserves its blocks on the disk.

        An existing file stays; it gets the length too (with `allocate`: at least)."""

    def sync(self, path: str | PathLike[str]) -> None:
        """Makes the writes to the file durable."""

    def sync_dir(self, path: str | PathLike[str]) -> None:
        """Makes creations, renames and removals in the folder durable."""

    def keep_fs(self, folder: str | PathLike[str]) -> None:
        """Keeps a descriptor of the folder's file system, so that `sync_fs` reports write errors from now on."""

    def sync_fs(self, folder: str | PathLike[str]) -> bool:
        """Makes all writes to the folder's file system durable, files and names. Sync one file of it afterwards: on
        some file systems only that flushes the cache of the device.

        False: nothing was done, because `keep_fs` does not know the file system, or the system does not report all its
        errors; sync each file instead. OSError: some file of the file system may not be durable, and a later sync would
        not report it."""

    def rename(self, path: str | PathLike[str], to: str | PathLike[str]) -> None:
        """Renames the file; an existing file of that name is replaced."""

    def remove(self, path: str | PathLike[str]) -> None: ...
    def truncate(self, path: str | PathLike[str], bytes: int) -> None:
        """Gives an existing file this length, shorter or longer."""

    def mkdir(self, path: str | PathLike[str]) -> None:
        """Creates a folder and its parents, durably; the folder may exist."""

    def fail(self, op: str, path_part: str, errno: int, after: int = 0, times: int | None = None) -> None:
        """For tests: calls of `op` on paths with `path_part` fail, after `after` more, `times` times (None: always).

        ops: open create allocate truncate read write sync map rename remove sync_dir mkdir sync_fs. A store into a
        mapping is a write. ValueError: unknown op."""

    def tear(self, path_part: str, keep_bytes: int) -> None:
        """For tests: the next write to such a path keeps only its first bytes, then fails with EIO."""

    def lie(self, op: str, path_part: str) -> None:
        """For tests: `sync`, `sync_dir` or `sync_fs` of such paths does nothing, to prove that a test would notice."""

    def slow(self, op: str, path_part: str, millis: int) -> None:
        """For tests: calls of `op` (see `fail`) on such paths are delayed by this time, as on a busy disk."""

    def kill(self) -> None:
        """For tests: the process is dead. All its calls, also through open files, fail with EIO and change nothing."""

    def kill_after(self, calls: int, keep_bytes: int = 0) -> None:
        """For tests: the process dies in the call after the next `calls`; a write stores `keep_bytes`."""

    @property
    def dead(self) -> bool: ...
    def next_process(self) -> Door:
        """For tests: the door of another process on the same disk, with the same rules and record of what is
        durable."""

    def heal(self) -> None:
        """For tests: removes every fail, tear, slow and lie."""

    def counts(self) -> dict[str, int]:
        """Calls by op, without stores into mappings."""

    def crash(self, seed: int, keep: float | None = None) -> list[str]:
        """For tests: simulates a power loss. Each operation that no sync covers survives with probability `keep` (None:
        the seed chooses); others are undone or, with `keep` above 0, torn between sectors. Returns a description of
        what was lost.

        Files opened before answer EIO afterwards. ValueError: the door does not record."""

class Meter:
    """What a user or a client may still do now: buckets of messages, bytes and requests, which fill with time.

    A request is admitted while no bucket is empty, and then takes its whole cost. Times are milliseconds of one clock.
    """

    def __init__(self, messages: float, bytes: float, requests: float, burst_s: float, now_ms: int) -> None:
        """Rates per second; 0: no limit. `burst_s`: a bucket holds what its rate gives in this time. ValueError."""

    def set_rates(self, messages: float, bytes: float, requests: float, burst_s: float) -> None:
        """Uses other rates from now on; what was taken stays taken. ValueError."""

    def wait(self, now_ms: int) -> tuple[int, int] | None:
        """Which bucket is empty (0 messages, 1 bytes, 2 requests), and for how many ms. None: a request is admitted."""

    def take(self, messages: int, bytes: int, requests: int) -> None:
        """Takes the cost of what was admitted, or of what was delivered."""

    def is_full(self, now_ms: int) -> bool:
        """Whether all buckets are full: a new meter with these rates is the same."""

class Log:
    """The append end of one commit log: staged >= written >= flushed, in bytes from the log's start.

    One thread makes all calls except `sync` and `serve_syncs`. Errors: ValueError for a message that can never be
    stored, OSError (errno, filename) for a segment that could not be created, written or synced.
    """

    def __init__(
        self,
        door: Door,
        folder: str,
        *,
        segment_bytes: int,
        max_message_bytes: int,
        store_host: bytes,
        suffix: bytes,
        region: str,
        trace_on: bool = True,
        max_replies: int = 200_000,
        index_folder: str | None = None,
        index_segment_bytes: int = 0,
    ) -> None:
        """`store_host`: 8 or 20 bytes; `suffix`: encoded properties added to every fed send.

        `index_folder`: the folder of the index; selects dledger's layout. The object then is a `LedgerLog`."""

    def start(
        self, pos: int, last_store_ms: int, last_index: int = -1, last_term: int = -1, last_chain: int = 0
    ) -> None:
        """Sets the recovered end, and the entry before it; appends continue there."""

    @property
    def staged(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def flushed(self) -> int: ...
    @property
    def last_store_ms(self) -> int:
        """Store time of the newest staged record."""

    @property
    def waiting(self) -> int:
        """Sends that have no answer yet."""

    def set_max_message_bytes(self, bytes: int) -> None:
        """Sets the size of the largest record and batch, from the next message on."""

    def lock_buffers(self) -> None:
        """Keeps staged bytes in locked memory from now on. OSError: the system does not lock it; MemoryError:
        the limit of the process forbids it. Staged bytes are then in memory that can be swapped out."""

    def set_answers(self, region: str, trace_on: bool) -> None:
        """Sets what all answers to sends tell producers (MSG_REGION, TRACE_ON)."""

    def set_hot(self, hot: bool) -> None:
        """Enables or disables serving of plain sends in `feed`."""

    def set_topic(self, topic: bytes, queues: int) -> None:
        """`feed` serves sends to queues [0, queues); 0: to no queue."""

    def forget_topic(self, topic: bytes) -> None:
        """Removes the topic with its offsets; a later topic of this name starts at 0."""

    def next_offset(self, topic: bytes, queue: int) -> int: ...
    def set_next_offset(self, topic: bytes, queue: int, offset: int) -> None: ...
    def take_counts(self) -> list[tuple[bytes, int, int]]:
        """(topic, messages, bytes) appended since the last call."""

    def connect(self, born_host: bytes) -> int:
        """An id for `feed`, never reused; `born_host`: the peer's address in 8 or 20 bytes."""

    def disconnect(self, connection: int) -> None: ...
    def check_access(self) -> None:
        """From now on `feed` stores only sends that were granted."""

    def grant(
        self, connection: int, topic: bytes, access_key: bytes, secret: bytes, meter: Meter | None = None
    ) -> None:
        """Sends of this account to this topic are stored if their signatures are right, and the meter admits them."""

    def set_meter(self, connection: int, meter: Meter | None) -> None:
        """Plain sends of the connection are stored if the meter admits them; None: always."""

    def trust(self, connection: int) -> None:
        """All sends of the connection are stored, with or without signature."""

    def revoke(self) -> None:
        """Forgets all grants of all connections."""

    def feed(
        self, connection: int, chunk: bytes, now_ms: int
    ) -> tuple[int, list[tuple[int, bytes, bytes]] | None, str | None]:
        """(sends served, other frames as (header type, header, body), why the stream is broken).

        A broken stream cannot be split further: close its connection.
        """

    def unfinished(self, connection: int) -> int:
        """Bytes that this connection sent of a frame that is not complete yet."""

    def append(
        self,
        topic: bytes,
        queue: int,
        body: bytes,
        properties: bytes,
        *,
        now_ms: int,
        born_timestamp: int,
        born_host: bytes,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_offset: int = 0,
        store_host: bytes | None = None,
        kind: int = 0,
    ) -> tuple[int, int, int, int]:
        """Stages one message: (pos, size, queue_offset, store_timestamp_ms) of the record. `kind`: of its entry."""

    def append_batch(
        self,
        topic: bytes,
        queue: int,
        batch: bytes,
        properties: bytes,
        *,
        now_ms: int,
        born_timestamp: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> tuple[list[int], int, int, int]:
        """Stages all of a client's batch or nothing: (positions, size, first queue_offset, store_timestamp_ms)."""

    def append_copied(self, data: bytes) -> tuple[int, int, str | None]:
        """Stages the complete and sound records and fillers at the start of `data`, the bytes of another log from this
        log's staged end on: bytes taken, size of the next item as far as `data` tells, and why that one cannot be
        stored.

        ValueError: this log has entries. OSError: the next segment could not be created; earlier items of `data` may be
        staged."""

    def append_followed(self, data: bytes, pos: int, segment_bytes: int, mapped: int | None = None) -> Followed:
        """Stages the complete and sound records at the start of `data` as entries, up to the next filler, which counts
        as taken. `data` lies at `pos` in another log, with segments of `segment_bytes` and without entries.

        Stops before a record that names a half message; called again with `mapped`, the position of this message here,
        it stages that record first. ValueError: this log has no entries. OSError: as for `append_copied`."""

    def write_out(self) -> int:
        """Writes staged bytes to the segment files; the end of the written bytes. After an OSError call `abandon`."""

    def abandon(self, code: int, remark: str, now_ms: int) -> list[tuple[int, bytes]]:
        """Drops the bytes that could not be written; returns the refusals of their sends, as (connection, bytes).
        `now_ms`: see `release`."""

    def sync(self) -> int:
        """Makes written bytes durable, without the GIL; returns the end of the flushed bytes. After an OSError every
        sync fails."""

    def serve_syncs(self, requests: int, done: int) -> None:
        """Runs on a thread of the caller: syncs once for each token read from `requests`, then writes a token to
        `done`.

        Ends at a token of 2**62 or more, or after a failed sync.
        """

    def sync_failure(self) -> OSError | None: ...
    def release(self, pos: int, now_ms: int) -> list[tuple[int, bytes]]:
        """The answers of sends that end at or below `pos`, as (connection, bytes). `now_ms`: the clock of `feed`, for
        `take_put_times`."""

    def expire(self, before_ms: int, code: int, now_ms: int) -> list[tuple[int, bytes]]:
        """Answers, with `code`, the sends fed before `before_ms` that still wait: they are stored, but not yet safe.
        `now_ms`: see `release`."""

    def take_put_times(self) -> tuple[list[int], int]:
        """How many of the sends that `feed` served took how long (classes: see `put_times.py`), and the longest time
        in ms. Counts what was answered since the last call; a oneway send counts as no time when it is staged."""

    def put_totals(self) -> tuple[list[int], int, int]:
        """Sends that `feed` served since the start: acknowledged ones by class of duration (see `put_times.py`), their
        time in total in ms, and the number of those that were answered with an error."""

    def answer_totals(self) -> tuple[list[int], dict[int, tuple[list[int], int]]]:
        """Sends that `feed` served and that were answered since the start: the limit of each class of durations in ms
        (inclusive; the last class has no limit), and by the code of the answer the number in each class and the time of
        all of them in ms. A oneway send has no answer."""

    def size_totals(self) -> tuple[list[int], list[int], int]:
        """Records that this process stored since the start, without copied ones: the limit of each class of sizes in
        bytes (inclusive; the last class has no limit), the number in each class, and all bytes."""

    def sync_totals(self) -> tuple[list[float], list[int], float]:
        """Syncs since the start that had something to sync: the limit of each class of durations in s (inclusive; the
        last class has no limit), the number in each class, and the time of all of them in s."""

@type_check_only
class LedgerLog(Log):
    """A log in dledger's layout: a `Log` that was created with `index_folder`, and the methods that need this layout.

    The kernel has one class for both layouts. Without an index these methods raise ValueError.
    """

    def set_term(self, term: int) -> None:
        """Sets the term of the entries that `feed` and `append*` create from now on. ValueError: it is below the last
        one."""

    @property
    def staged_index(self) -> int:
        """Index of the last staged entry; -1: there is none."""

    @property
    def written_index(self) -> int: ...
    @property
    def flushed_index(self) -> int: ...
    def written_point(self) -> LogPoint:
        """The end of the written bytes, and the last entry before it."""

    def flushed_point(self) -> LogPoint:
        """The end of the durable bytes, and the last entry before it."""

    def append_entries(self, entries: Entries, first_index: int) -> int:
        """Stages the entries from `first_index` on, which must be the next one; returns the index of the last one.

        EntryError: they do not continue the chain, or do not lie at the end of this log (then `cut` a filler).
        ValueError: `first_index` is not the next one, or not among them. OSError: a segment could not be created."""

    def cut(self, pos: int, last_index: int, last_term: int, last_chain: int) -> None:
        """Durably truncates the log after entry `last_index`, which ends at `pos`: zeroes the bytes after it.

        Waits for a running sync. A crash in between leaves entries after a hole: record the cut durably before.
        ValueError: staged bytes exist, or the log ends before. OSError: no more bytes may count as flushed."""

    def rewrite(self, pos: int, data: bytes) -> None:
        """Overwrites written bytes, durably. Does not check the new bytes."""

    def unit(self, index: int) -> tuple[int, int, int] | None:
        """(pos, size, term) of a staged or written entry, from the index."""

    def header(self, index: int) -> EntryHeader | None:
        """The header of a written entry, read from the log; None: no such entry."""

    def index_of(self, pos: int, first_index: int) -> int:
        """The last written entry, from `first_index` on, that ends at or before `pos`; otherwise `first_index` - 1."""

    def extent(self, first: int, max_bytes: int) -> int:
        """The last written entry such that the entries from `first` to it take at most `max_bytes`, with fillers; at
        least `first`. EntryError: the index does not have it."""

    def read_range(self, first: int, last: int) -> bytes:
        """Written entries [first, last] as they lie in the segments, with the fillers between them. EntryError."""

    def sync_index(self) -> None:
        """Makes the index's written units durable, without the GIL. After an error the next call tries again."""

    def forget_files(self) -> None:
        """Releases the maps of segments and index files."""

    def reset_offsets(self) -> None:
        """Resets every queue's next offset to 0; served topics stay served."""

    def take_offsets(self, first_index: int) -> None:
        """Raises the queues' next offsets to those in the written entries from `first_index` on. EntryError."""

class EntryError(Exception):
    """Bytes are not the expected entry of dledger's layout.

    `index` is the expected one at `pos` (byte in the log; 0: not known), `reason` says what is wrong.
    """

    index: int
    pos: int
    reason: str

class Entries:
    """Checked entries in one range of bytes, see `check_entries`."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def last_term(self) -> int: ...
    @property
    def last_chain(self) -> int: ...
    @property
    def first_pos(self) -> int: ...
    @property
    def end_pos(self) -> int:
        """The position after the last byte, in the log."""
    @property
    def runs(self) -> list[tuple[int, int]]:
        """(term, number of entries), in order."""
    @property
    def special(self) -> list[SpecialEntry]:
        """Entries that are not messages."""
    @property
    def data(self) -> bytes: ...
    def record(self, index: int) -> bytes:
        """The CommitLog record inside an entry. IndexError."""

def check_entries(
    data: bytes | bytearray, segment_bytes: int, prev_index: int, prev_term: int, prev_chain: int | None = None
) -> Entries:
    """Checks a range of a log that follows entry `prev_index`, without the GIL; `data` is not copied.

    A range begins with an entry and ends with one; fillers and the bytes after them lie between as in the segments.
    Checks sizes, positions, indexes, terms, the CRC chain (of the first entry only if `prev_chain` is given), bodies,
    and the record in each entry. EntryError: with index and place of the first fault. ValueError: above 2 GiB."""

class WalkedEntries:
    """The entries that `walk_entries` passed."""

    pos: int
    """Where it stopped: after the last entry, or after the filler that follows it."""
    end: int
    """The end of the last entry."""
    next_index: int
    last_term: int
    last_chain: int
    stopped: str | None
    """Why bytes at `pos` are not the next entry; None: the files end there, or `max_entries` was reached."""
    done: bool
    """False: it stopped at `max_entries`; call again from `pos`."""
    units: bytes
    """The index units of the entries passed."""
    runs: list[tuple[int, int]]
    """(first index, term) of each run of one term among them."""
    special: list[SpecialEntry]
    """As of `Entries`."""
    last_store_timestamp_ms: int

def walk_entries(
    folder: str | PathLike[str],
    segment_bytes: int,
    pos: int,
    next_index: int,
    last_term: int,
    last_chain: int | None = None,
    max_entries: int = 262144,
) -> WalkedEntries:
    """Checks the entries from `pos` on, the first of which has `next_index`; without the GIL.

    `last_chain`: of the previous entry, None: not known. DamageError: a file has another length."""

def find_entry(
    folder: str | PathLike[str], segment_bytes: int, pos: int, min_index: int, max_bytes: int
) -> tuple[int, int] | None:
    """(pos, index) of the first entry from `pos` on that is sound by itself and has at least `min_index`; None: no such
    entry within `max_bytes`. Without the GIL."""

class DamageError(Exception):
    """Bytes of a store's file are damaged; the text names the file and the place.

    `path` is the file, `pos` the byte in it (or in the log) where the damage was found.
    """

    path: str
    pos: int

class RunResult:
    """The result of one `Dispatch.run`."""

    pos: int
    """The log is dispatched up to here."""
    records: int
    """Records read, including those without a queue entry."""
    grew: list[tuple[bytes, int]]
    """Watched queues (topic, queue id) that got entries."""
    last_store_timestamp_ms: int
    """Store time of the last dispatched record; 0 if there was no record."""
    stopped: str | None
    """Why it stopped before `upto` although bytes exist there ("bad magic ...", "body CRC", ...); `pos` says where.
    None: reached `upto`, `max_bytes`, or the end of the files."""
    skipped: list[tuple[int, int, str]]
    """Skipped records, which are damaged inside but have a right size: (pos, size, reason); the first 100."""
    misplaced: int
    """Entries whose record has another queue offset than the entry's place (a queue with a gap)."""

class QueuesOfLog:
    """The records of each queue in a log, or in a part of it, that must have a unit: how many, the first and the last
    queue offset, and the first one that the next start dispatches again. If a topic was created again, only the new
    records count. It can be pickled."""

    def __len__(self) -> int: ...
    def join(self, later: QueuesOfLog) -> None:
        """Adds the records of a later part of the log."""

    def names(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue, in the log's order."""

    @staticmethod
    def _unpacked(bytes: bytes) -> QueuesOfLog:
        """For pickle."""

class DifferingUnits(NamedTuple):
    """The units of a queue that differ from those that the records of a range require."""

    topic: str
    queue: int
    units: int
    """How many there are."""
    listed: list[tuple[Path, int, str]]
    """File, byte, reason; at most a thousand."""

class DelayCount(NamedTuple):
    """How many units of a queue of delayed messages have a delay: the time of delivery minus the time of storing."""

    level: int
    queue: int
    delay_ms: int
    units: int

class RequiredUnits(NamedTuple):
    """What the records of a range of the log require of their queues, and whether these have it."""

    queues: QueuesOfLog
    suspects: list[tuple[str, int]]
    """Queues that are not proven: a unit differs, or the records do not follow each other by queue offset."""
    differing: list[DifferingUnits]
    behind: int
    """Units that records from `settled_ms` on do not have yet."""
    delays: list[DelayCount]
    nameless: list[int]
    """Positions of delayed messages that do not name their topic."""
    newest_ms: int
    """The greatest store time."""
    unsettled: int | None
    """Position of the first record that was stored at or after `settled_ms`."""
    committed: list[tuple[int, int]]
    """Committed records of transactions: position, and position of the half message."""

class MessageScan:
    """Reads the messages in [begin, end) of one log file as Arrow batches; the file may belong to a live store.

    The range begins with a record (or its entry) and ends with one, or with the file. Invalid UTF-8 becomes U+FFFD.
    OSError; DamageError: the file ends early; ValueError: an unknown column, or a range outside of the file.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        file_start: int,
        file_end: int,
        begin: int,
        end: int,
        columns: list[str],
        entry_header_bytes: int = 0,
        check_crc: bool = False,
        source: str = "",
        topics: list[bytes] | None = None,
        queues: list[int] | None = None,
        queue_offsets: tuple[int, int] | None = None,
        store_times_ms: tuple[int, int] | None = None,
        keys: list[bytes] | None = None,
        max_rows: int = 65536,
        max_bytes: int = 16777216,
        max_content_bytes: int = 67108864,
    ) -> None:
        """Positions in the log. Ranges are inclusive on both sides; `keys`: the unique key or a key is one of them.

        A batch ends at `max_rows`, or with the row whose texts and body reach `max_bytes`. The column `content` is the
        body, decompressed to at most `max_content_bytes`; null with a text in `content_error` if that fails."""

    def next_batch(self) -> tuple[object, object] | None:
        """The capsules of Arrow's C data interface (schema, array), without the GIL; None: no more rows."""

    def units(
        self,
        root: str | PathLike[str],
        *,
        later: list[MessageScan] = ...,
        repairable_from: int = ...,
        settled_ms: int = ...,
        bring: Callable[[Path, int, int], object] | None = None,
    ) -> RequiredUnits:
        """Compares the remaining records with the ConsumeQueues of the store in `root`. Without the GIL. OSError.

        `later`: scans of later ranges of the log, which it reads as well: it opens a queue once for all of them.

        The next start dispatches records from `repairable_from` on again, and those stored from `settled_ms` on.
        `bring` makes bytes of a file readable; None: they are.
        """

    def sums(self) -> list[tuple[object, object]]:
        """The sums of all remaining records, as capsules of three tables, without the GIL; ignores `columns`.

        (topic, queue_id, tags, hour_ms, messages, bytes, body_bytes), (topic, bucket, messages) with sizes in buckets a
        sixteenth of a doubling wide, (topic, address, messages). Names that differ only in invalid UTF-8 may have a row
        each.
        """

    @property
    def pos(self) -> int:
        """The position in the log up to which everything was reported."""

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far."""

    @property
    def records(self) -> int:
        """Sound records passed, wanted or not."""

    @property
    def damaged(self) -> int: ...
    @property
    def damage(self) -> list[tuple[int, int, str]]:
        """(position, bytes, reason) of damage, in order; the first thousand."""
    @property
    def unread(self) -> int:
        """Rows without `content`, because their body cannot be decompressed."""

    @property
    def unread_places(self) -> list[tuple[int, int, str]]:
        """(position, bytes of the record, reason) of these rows, in order; the first thousand."""

def index_entries(path: str | PathLike[str], slots: int, first: int, most: int) -> tuple[object, object]:
    """`most` entries of an index file from number `first` on, as capsules: key_hash, position, seconds.

    Without the GIL. OSError; DamageError: the file ends before.
    """

def index_chain_faults(
    path: str | PathLike[str], slots: int, count: int, growing: bool, times: bool = False
) -> tuple[list[tuple[int, str]], int]:
    """Entries below number `count`, and slots, that do not name the newest entry of their slot before them.

    ([(byte, reason)], number of faults), of which a thousand are listed. `growing`: slots may name entries from `count`
    on. `times`: a negative time, which ends a search, is a fault as well. OSError; DamageError: the file ends before.
    Without the GIL.
    """

def simulate_index_clock(ms: int) -> None:
    """Sets the time (ms since the epoch) for the names of new index files, for tests with simulated time; -1: the
    system's clock again."""

class IndexChains:
    """The check of `index_chain_faults` in steps, so that the caller can stop it. OSError, DamageError."""

    def __init__(
        self, path: str | PathLike[str], slots: int, count: int, growing: bool, times: bool = False
    ) -> None: ...
    def step(self, max_bytes: int) -> bool:
        """Reads about this many more bytes; returns whether the file is done. Without the GIL."""

    def faults(self) -> tuple[list[tuple[int, str]], int]:
        """The faults found so far: see `index_chain_faults`."""

def read_ahead_queues(folder: str | PathLike[str], topics: list[bytes]) -> bool:
    """Reads what a start reads of the queues of these topics in `folder` (consumequeue), without the GIL. Returns
    whether the disk was read. Ignores read errors."""

class QueueFile:
    """Units of one file of a ConsumeQueue, read without a map. Pages that were not in memory before are dropped when it
    is closed, so the page cache of a broker stays as it was.

    OSError. Bytes that the disk cannot read, and bytes behind the end of the file, count as zeros.
    """

    def __init__(self, path: str | PathLike[str]) -> None: ...
    written: int
    """Number of units up to the last one that was written: one whose size is above 0."""
    regular: bool
    """No hole is before the last unit, and only zeros are behind it. False also if the file system cannot tell."""

    def unit(self, number: int) -> tuple[int, int, int]:
        """Position, size and tags code of a unit. IndexError: the file does not have so many."""

    def read(self, first: int, count: int) -> bytes:
        """The bytes of `count` units from `first` on. IndexError: the file does not have so many."""

    def first_at(self, pos: int) -> int:
        """Number of the first unit whose position is `pos` or greater, by a binary search; `written`: there is none."""

    def close(self) -> None:
        """Closes the file. A second call does nothing."""

class QueueEnd(NamedTuple):
    """Where a ConsumeQueue ends, as `queue_ends` finds it."""

    topic: str
    queue: int
    first: int
    """Queue offset with which its first file begins."""
    end: int
    """Queue offset behind its last unit."""
    segment_bytes: int
    """The length that most of its files have; 0: it has no file."""
    pos: int
    """Position and size of the record that its last unit names; -1 and 0: it has no unit, or a blank one."""
    size: int
    regular: bool
    """Its folder has nothing but files of one length without a gap, only the last of them is not full, no hole is
    before the last unit, and only zeros are behind it. False also if the file system cannot tell."""

class QueueEnds:
    """The queues of a store, by topic and queue id as texts. A sequence; it can be pickled."""

    named_end: int
    """The greatest end of a record that a last unit names; -1: none."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int) -> QueueEnd: ...
    def __iter__(self) -> Iterator[QueueEnd]: ...
    def lengths(self) -> dict[int, int] | None:
        """Number of files by their length, without empty ones. None: no file was looked at."""

    def newest(self) -> list[int]:
        """The numbers of the queues whose last unit names a record, from the record that ends last to the first one."""

    def fullest(self, most: int) -> list[tuple[str, int]]:
        """The queues with the most units."""

    def suspicious(
        self,
        folder: str | PathLike[str],
        records: QueuesOfLog,
        *,
        segment_bytes: int | None,
        begin: int,
        bound: int,
        whole: bool,
        closed: bool,
    ) -> list[tuple[str, int]]:
        """The queues in `folder` with units, or files, that these records of a log do not explain, and those without a
        folder. The log has [begin, bound). Without the GIL. OSError.

        `whole`: nothing is behind the bound, so that units must not name anything there. `closed`: no broker writes
        them.
        """

    @staticmethod
    def told(ends: Sequence[QueueEnd], named_end: int) -> QueueEnds:
        """What another process found in the same queues."""

    @staticmethod
    def _unpacked(bytes: bytes) -> QueueEnds:
        """For pickle."""

def queue_ends(folder: str | PathLike[str], below: int = ...) -> QueueEnds:
    """The queues in `folder` (consumequeue).

    `below`: in place of a last unit that names bytes behind this position, the newest one before it is returned. It
    reads a page of each queue, leaves the page cache as it was, and skips what is removed meanwhile. Without the GIL.
    OSError.
    """

FilesOf = tuple[str | PathLike[str], int, list[int], Callable[[Path, int, int], None] | None]
"""Files of one size that form one range of bytes: the folder, bytes of a file, the first bytes of the files, and what
makes bytes [begin, end) of a file readable (None: they are)."""

def next_sound_record(log: FilesOf, pos: int, entry_header_bytes: int) -> int | None:
    """Where the first sound record (or its entry) behind `pos` begins; None: there is none. Without the GIL.
    OSError."""

class CheckFinding(NamedTuple):
    """See `store/findings.py`."""

    file: Path
    offset: int
    reason: bytes
    """UTF-8; a topic in it may be not."""
    size: int
    pos: int
    note: bool
    repairable: bool
    """It is a note only because the next start repairs it."""

class CheckFindings(NamedTuple):
    """A thousand findings of each kind, the first damage of each file, and the number of all."""

    listed: list[CheckFinding]
    damaged: int
    noted: int
    repairable: int

class LogChecked(NamedTuple):
    """The result of `check_log`."""

    findings: CheckFindings
    queues: QueuesOfLog
    records: int
    fillers: int
    entries: int
    end: int
    """End of the last sound record, or of the last damage that something follows."""
    last_store_ms: int
    """The greatest store time; 0 without records."""
    records_with_keys: int
    first_entry: bytes | None
    """The headers of the first and the last entry."""
    last_entry: bytes | None

def check_log(
    log: FilesOf,
    begin: int,
    *,
    end: int | None,
    entry_header_bytes: int,
    ledger_index: FilesOf,
    known_end: int,
    repairable_from: int,
    written_end: int,
    before: bytes | None,
    count_keys: bool,
    progress: Callable[[int, int], object] | None,
) -> LogChecked:
    """Checks the log from `begin` on; see `store/verify/log.py`. Without the GIL. OSError, and what `progress` and the
    function in `log` raise."""

class UnitDelay(NamedTuple):
    """A delay of delayed messages of a level, number of units that have it, and the place of the first one: file, byte,
    queue offset, position of the record."""

    level: int
    delay_ms: int
    units: int
    file: Path
    at: int
    offset: int
    pos: int

class SoundEnd(NamedTuple):
    """The queue offset behind the last trustworthy unit of a queue."""

    topic: str
    queue: int
    offset: int

class LostQueue(NamedTuple):
    """A queue of the log that has no folder."""

    topic: str
    queue: int
    records: int
    first_offset: int
    repairable_offset: int

class QueuesChecked(NamedTuple):
    """The result of `check_queues`."""

    findings: CheckFindings
    queues: int
    units: int
    segment_bytes: int
    delays: list[UnitDelay]
    """In the order in which they were met."""
    ends: list[SoundEnd]
    lost: list[LostQueue]
    """In the log's order."""

def check_queues(
    root: str | PathLike[str],
    log: FilesOf,
    records: QueuesOfLog,
    *,
    entry_header_bytes: int,
    begin: int,
    end: int,
    clean: bool,
    repairable_from: int,
    segment_bytes: int | None,
    only: set[tuple[str, int]] | None,
    progress: Callable[[int, int], object] | None,
) -> QueuesChecked:
    """Compares the units of all queues, or of `only` these, with the log [begin, end); see `store/verify/queues.py`.

    It leaves the page cache of the queues as it was. Without the GIL. OSError, and what `progress` and the function in
    `log` raise.
    """

class IndexChecked(NamedTuple):
    """The result of `check_index_file`."""

    findings: CheckFindings
    entries: int
    end_ms: int
    """The store time of its last record."""

def check_index_file(
    path: str | PathLike[str],
    log: FilesOf,
    *,
    slots: int,
    entries: int,
    entry_header_bytes: int,
    begin: int,
    end: int,
    first_from_ms: int | None,
    repairable: bool,
    progress: Callable[[int, int], object] | None,
) -> IndexChecked:
    """Compares an index file with the log [begin, end); see `store/verify/index.py`.

    `first_from_ms`: the time from which its first entry counts its seconds; None: unknown. Without the GIL. OSError,
    and what `progress` and the function in `log` raise.
    """

class ScanResult:
    """The result of `scan`: sound records from its start up to `end`."""

    end: int
    records: int
    stopped: str | None
    """Why it ended there; "unwritten" (zeros) is the usual reason, None: the files end there."""
    last_store_timestamp_ms: int

def scan(
    log_dir: str, segment_bytes: int, start: int, check_crc: bool, entry_header_bytes: int = 0, upto: int = -1
) -> ScanResult:
    """Walks the records of a log from `start` (a record's or segment's first byte); the GIL is released.

    Stops at the first damaged record, at `upto` (-1: no bound), or where the files end. OSError, DamageError.
    """

class Step(NamedTuple):
    """Where a call ended in a log, and why before its bound; None: the bound, or the files end there."""

    pos: int
    stopped: str | None

class QueueTotal(NamedTuple):
    """The records of one queue. `first`, `last`: queue offsets of those for which the queue has a unit; -1: none.
    `digest`: of all their fields except for positions."""

    topic: bytes
    queue: int
    records: int
    bytes: int
    first: int
    last: int
    digest: int

class LogTotals:
    """What a log contains, by queue, wherever its records lie."""

    def __init__(self, gaps: list[tuple[int, int]]) -> None:
        """`gaps`: ranges that are left out; what names a record in one of them names nothing."""
    references: int
    """Number of records that end a transaction and name the position of a half message."""

    def read(
        self, log_dir: str, segment_bytes: int, entry_header_bytes: int, first: int, upto: int, most_bytes: int
    ) -> Step:
        """Adds the records from `first` on, checked with their CRCs, until `upto` or about `most_bytes` later; without
        the GIL. Stops before damage. Ranges of one layout must be in one folder. OSError, DamageError."""
    def rows(self) -> list[QueueTotal]:
        """The totals, sorted by topic and queue."""

class Converter:
    """Copies records of a log into a new log, of dledger's layout if it has an index, else of the plain one."""

    def __init__(
        self,
        door: Door,
        folder: str,
        segment_bytes: int,
        index: tuple[str, int] | None,
        pos: int,
        next_index: int,
        term: int,
        chain: int,
        pairs: list[tuple[int, int]],
        gaps: list[tuple[int, int]],
    ) -> None:
        """The new log is in `folder` and ends at `pos`; nothing is behind that. `index`: folder and file size of the
        index. `next_index`, `chain`: of entries. `pairs`, `gaps`: of the part that was copied before."""
    def begin(self, log_dir: str, segment_bytes: int, entry_header_bytes: int, part_begin: int, pos: int) -> None:
        """The next part of the old log, which begins at `part_begin`, is read from `pos` on."""
    def skip(self, pos: int) -> None:
        """The bytes up to `pos` of the old log are left out. ValueError: they are copied already."""
    def run(self, upto: int, most_bytes: int) -> Step:
        """Copies records until `upto` or about `most_bytes` later; without the GIL. Stops before a record that is
        damaged, or does not fit into a segment. OSError, DamageError."""
    def sync(self) -> None:
        """Writes and syncs everything that was copied. OSError."""
    pos: int
    """The position in the old log."""
    target: tuple[int, int, int]
    """End of the new log, index of the next entry, chain CRC of the last one."""
    counts: tuple[int, int, int, int]
    """Records; entries of a group that are no messages and were left out; ends of transactions that name a half
    message; and those whose half message is not in the log."""
    def pairs_from(self, count: int) -> list[tuple[int, int]]:
        """The pairs of positions (old, new) behind the first `count` ones."""

class AuditResult:
    """The result of one `audit`."""

    pos: int
    """The position up to which the log was checked; continue there."""
    records: int
    damage: list[tuple[int, int, str]]
    """Damage of the log itself: position, bytes, reason."""
    wrong: list[WrongUnit]
    """Records that their queue does not name."""

class BitTest:
    """The bits of one filter. A record's bit map without one of them excludes the record."""

    def __init__(self, positions: Sequence[int], map_bytes: int, valid_from: int) -> None:
        """Maps of another length, and those of records before the position `valid_from`, exclude no record.
        ValueError: a bit outside of the map."""

class Dispatch:
    """The derived files of a store: ConsumeQueues and index, built from the log and read. Threads may share it.

    Reads see entries that are still in memory; `write_out` writes them to the files, `sync` makes them durable.
    Every method may raise OSError (with `filename`) and DamageError.
    """

    def __init__(
        self,
        door: Door,
        root: str,
        log_dir: str,
        *,
        log_segment_bytes: int,
        queue_segment_bytes: int,
        index_slots: int,
        index_entries: int,
        index_enabled: bool = True,
        delay_ms: Sequence[int] = (),
        entry_header_bytes: int = 0,
        max_open_files: int = 4096,
        read_only: bool = False,
        ext_segment_bytes: int = 0,
    ) -> None:
        """`root` holds consumequeue/ and index/. `delay_ms[i]` is delay level i + 1. `entry_header_bytes` 48: dledger's
        layout of the log, 0: the plain one. `queue_segment_bytes` is rounded up to a multiple of 20.
        `ext_segment_bytes`: new units get an extension in files of this size (0: no extension; existing ones are read
        anyway). ValueError."""

    position: int
    """The log is dispatched up to here."""
    rebuilds_index: bool
    """`position` went back for the index, and has not caught up with the queues yet."""
    pending_bytes: int
    """Queue entries in memory that `write_out` has yet to write."""
    damaged: int
    """Records that a queue names but whose bytes in the log do not match: never served, counted here."""

    # recovery
    def load(self, tolerant: bool = False, tolerant_index: bool = False) -> None:
        """Finds the existing queues and index files, once. Skips queue folders whose name is not an integer.

        `tolerant`: a queue file of a wrong length is not an error: `queue_faults` returns its queue. `tolerant_index`:
        an index file of a wrong length, or one that is not full although others follow, is removed with those after it,
        see `drop_index_from`."""
    def loaded_files(self) -> tuple[int, bool]:
        """The number of queue files that `load` found, and whether all are on the file system of consumequeue."""

    def recover_queues(self) -> int:
        """Finds each queue's end. Returns the greatest log position in any of them (`maxPhysicOffset`), or -1."""
    def truncate_queues(self, pos: int) -> None:
        """Removes the queue entries of records at or after `pos`."""
    def queue_faults(self, log_end: int) -> list[QueueFault]:
        """Queues whose files cannot be right if the log ends at `log_end`: topic, queue id, reason, 0, whether it is
        certain (otherwise a power loss may be the cause, after the durable part). After `recover_queues`."""
    def compare_queues(self, table: bytes, exact: bool, nothing_deleted: bool) -> list[QueueFault]:
        """Queues that hold less than the table of `written_point` says: topic, queue id, reason, the next offset that
        it had, True. `exact`: nothing was dispatched since the table was made. `nothing_deleted`: the log still begins
        where it began then, so the queues must do so, too. ValueError: not a table."""
    def remove_queue(self, topic: bytes, queue: int) -> None:
        """Removes one queue with its files, and its extension."""
    def reserve(self, topic: bytes, queue: int, end: int, most: int) -> bool:
        """Raises the queue's next offset to `end` with placeholders, at most `most` of them unless the queue is empty.
        Returns whether anything was changed."""
    def hold(self, table: bytes, pos: int) -> None:
        """For a recovery: from now on `run` holds each record that does not claim its queue's next offset, until the
        records after it prove where it belongs. `table`: rows of the table of ends at position `pos` of the log, which
        is -1 if there is none. ValueError: the rows are cut off."""
    def settle(self) -> list[Stray]:
        """Ends `hold`: places the held records. Returns the records that do not fit at the place that they claim:
        topic, queue, claimed queue offset, position, size; a thousand at most."""
    def claim_lost(self, pos: int, size: int) -> None:
        """The damaged bytes at `pos` of the log are one record: a placeholder keeps its queue offset, if its fields are
        readable and consistent."""
    def note_lost(self, pos: int, size: int) -> None:
        """These bytes of the log are damaged: `run` keeps a gap between the queue offsets before and after them."""
    def rebuild(self, queues: list[tuple[bytes, int]] | None, index: bool = False) -> None:
        """From now on `run` adds units only to these queues, and with `index` entries to the index. None: to all
        again."""
    def drop_index_from(self, name: str) -> int:
        """Removes the index files from `name` on; returns the log position from which to index again. "": removes
        nothing, and -1 is returned unless `load` removed files."""
    def audit(self, start: int, upto: int, max_bytes: int) -> AuditResult:
        """Reads about `max_bytes` of the log from `start` (where a record or segment begins), below `upto`, with system
        calls instead of the map, and compares records with their CRCs and with the queues. The store may be in use."""
    def repair(self, topic: bytes, queue: int, offset: int, log_first: int, max_bytes: int) -> Repaired | None:
        """Rewrites the unit at `offset`, and wrong units around it, from the log; from now on readers skip what cannot
        be repaired. Returns the first and last offset that was checked, units written, placeholders among them, and the
        damage of the log that was found (pos, size, reason). None: no such offset, or more than `max_bytes` of the log
        would have to be read. The store may be in use; dispatch waits in the meantime."""
    def begin_earlier(self, topic: bytes, queue: int, offset: int, pos: int) -> bool:
        """Lets a queue begin at `offset`, whose record at `pos` of the log was not readable when the queue was built.
        New units are placeholders until `repair`. False: the queue is missing, has the offset, or names an earlier
        record."""
    def end_checks(self) -> None:
        """The store is closing: from now on `audit` and `repair` return soon, and `repair` returns None."""

    def destroy_queues(self) -> None: ...
    def set_filters(
        self,
        topics: list[bytes],
        calculate: Callable[[list[tuple[bytes, bytes]]], list[bytes]],
        require: Callable[[list[tuple[bytes, bytes, int]]], list[bytes]],
    ) -> int:
        """From now on `run` stores a bit map in the extension of each new record of these topics. Replaces earlier
        filters. Returns the position in the log from which on the bits of the filters that `calculate` knows now are
        valid.

        `calculate([(topic, properties)])` returns the bit map of each record; b"": no filter. The thread of `run` calls
        it. It must not raise: an error costs the bit maps of one run. `require([(topic, properties, position)])`
        returns the bits that each record's map must have; comparisons of units with the log call it."""
    def raise_floor(self, topic: bytes, queue: int, offset: int, last_pos: int) -> bool:
        """The queue begins at `offset` at least from now on, also after `delete_below`, if the unit before it names the
        record at `last_pos`. It is not stored. Returns whether the queue begins there, or behind it."""
    def expired_end(self, topic: bytes, queue: int, before_ms: int) -> ExpiredEnd:
        """Where the messages end that were stored before a time. Store times may go back: the search prefers the first
        possible place. Reads the records of some units."""
    def correct_min_offsets(self, min_pos: int) -> None:
        """Moves each queue's first entry to the first one of a record at or after `min_pos`."""
    def drop_index_after(self, timestamp_ms: int) -> int:
        """Removes index files that end after `timestamp_ms`, and a last one that is inconsistent.

        Returns the log position from which to index again, -1 if no file was removed."""
    def trim_index(self, name: str, count: int) -> bool:
        """Cuts the index back to the entries below `count` of the file `name`, the newest one then ("": to nothing).

        Slots and chains are rebuilt. False, without a change: the file does not exist."""
    def trim_index_at(self, pos: int) -> None:
        """Removes index entries of records at or after `pos`."""
    def start(self, pos: int) -> None:
        """Dispatch continues from `pos`."""
    def run(self, upto: int, max_bytes: int, check_crc: bool = False) -> RunResult:
        """Dispatches records from `position` on, below `upto`, about `max_bytes` at most; the GIL is released.

        Repeating is harmless: queues and index skip what they have."""
    def redo(self, start: int, upto: int, index: bool) -> tuple[int, str | None]:
        """Dispatches [start, upto) again, as far as it was dispatched before: it could not be read then. Queues get the
        units that are missing at their end (`repair` rewrites the others). `index`: the index files from there on are
        removed, and `position` goes back, so that `run` rebuilds them. Returns the records read, and why it stopped
        before `upto`, or None."""
    def write_out(self) -> None:
        """Writes the entries in memory to the queues' files."""
    def written_point(self, with_table: bool = False) -> WrittenPoint:
        """Writes out, and returns what the files then hold, between two records: position, store time of the last
        record (0: no record since the start), queues that have had messages, the sum of their max offsets, name of the
        newest index file ("": none) and the number of its next entry; then the table of the queues' ends, if
        requested."""
    def sync(self) -> None:
        """Makes the writes of `write_out` durable (fdatasync of the files, and of new names)."""
    def sync_index(self) -> int:
        """Makes the index durable; returns the store time of its last durable entry (the checkpoint's index time)."""

    # reads
    def get(
        self,
        topic: bytes,
        queue: int,
        offset: int,
        max_count: int,
        codes: frozenset[int] | None,
        max_pos: int,
        memory_bytes: int,
        limits: tuple[int, int, int, int],
        correct: bool = True,
        accept: Callable[[int, bytes], bool] | None = None,
        stop_at_damage: bool = False,
        stop_at_wrong: bool = False,
        bits: BitTest | None = None,
        most_accepts: int = ...,
    ) -> tuple[int, int, int, int, int, bytes, bool, int]:
        """(status, next offset, min, max, count, records, whether the reader reads from disk, wrong): RocketMQ's
        getMessage.

        `wrong`: with `stop_at_wrong`, reading stopped before this offset, whose unit or record is wrong and was not
        compared with the log: call `repair`, and then `get` again. -1: it did not stop.

        status: `GetStatus` in its order, from 0 (FOUND). `codes`: wanted tag hashes, None: all. `max_pos`: records that
        end after it are not served. `memory_bytes`: length of the log's end that counts as in memory. `limits`: (bytes,
        count) of a batch in memory, then on disk. `correct`: return a better next offset when the requested one is out
        of range. `accept(tags code, properties)` decides last on each record, and on `most_accepts` of them: the
        next pull continues there. `bits`: records that their bit map
        excludes are skipped unread. `stop_at_damage`: stop before a damaged record instead of skipping it."""
    def get_frame(
        self,
        topic: bytes,
        queue: int,
        offset: int,
        max_count: int,
        codes: frozenset[int] | None,
        max_pos: int,
        memory_bytes: int,
        limits: tuple[int, int, int, int],
        opaque: int,
        suggested: int,
    ) -> tuple[bytes, int, int, int] | None:
        """`get` as the whole frame that answers a pull (JSON header), with the count and bytes of its
        records, and the next offset.

        None, and nothing is counted: no record was found, one is damaged, or the reader reads from disk."""
    def units(self, topic: bytes, queue: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Entries (pos, size, tags code) from `offset` on; fewer at the queue's end, and no entry below its min
        offset."""
    def usable_units(
        self, topic: bytes, queue: int, offset: int, count: int
    ) -> tuple[list[tuple[int, int, int]], int, list[tuple[int, int, int]]]:
        """As `units`, each compared with the record that it points to. The list ends before a unit that is wrong and
        has to be compared with the log: its offset is the second value, otherwise -1. (-1, 0, 0) stands for a
        placeholder, and for a unit that was compared and is not usable. Third: offset, position and size of these
        unusable units."""
    def offsets(self, topic: bytes, queue: int) -> tuple[int, int]:
        """(min, max) offset; (0, 0) for a queue that does not exist."""
    def queues(self) -> list[QueueExtent]:
        """All queues, sorted by topic and id."""
    def offset_by_time(
        self, topic: bytes, queue: int, timestamp_ms: int, by_mtime: bool = False, stop_at_wrong: bool = False
    ) -> tuple[int, int]:
        """RocketMQ's getOffsetInQueueByTime, and -1. `by_mtime`: choose the segment by its file's time, as RocketMQ
        does; otherwise by the store time of its last record, which copies and rebuilds do not change.

        Only units that point to the record of their place count. Others result in an earlier offset; with
        `stop_at_wrong` the search ends at one that was not compared with the log yet: its offset is the second value,
        and the first one has no meaning."""
    def record_at(self, pos: int, max_pos: int) -> bytes | None:
        """The record that begins at `pos` and ends at or below `max_pos`; None if no sound record begins there."""
    def log_bytes(self, pos: int, size: int) -> bytes | None:
        """Bytes of the log, unchecked, within one segment; None if they do not exist."""
    def lookup(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> tuple[list[int], int, int]:
        """Positions of records with this `key_hash`, newest first; then the last entry's store time and position."""
    def index_file_of(self, key_hash: int, pos: int) -> str | None:
        """The index file with the newest entry of this `key_hash` and record position; None: no file has one."""
    def count_not_indexed(self, start: int, upto: int) -> int:
        """How many records of the log in [start, upto) have a key without an index entry; 0 if the index is off.

        `start`: where an entry or segment begins. Raises OSError, DamageError."""
    def distrust_index(self, name: str) -> bool:
        """Removes the index files from `name` on. The position goes back to where they began, so that dispatch rebuilds
        them; queues do not change. False: no such file."""
    def ext_unit(self, topic: bytes, queue: int, address: int) -> ExtensionUnit | None:
        """An extension unit by its address (a tags code <= -2147483649)."""
    def index_files(self) -> list[IndexFile]:
        """The index files, oldest first."""

    # changes of existing files
    def watch(self, topic: bytes, queue: int) -> None:
        """From now on `run` reports when this queue grows."""
    def unwatch(self, topic: bytes, queue: int) -> None: ...
    def remove_topic(self, topic: bytes) -> None:
        """Removes all queues of a topic, with their files."""
    def delete_below(self, min_pos: int) -> int:
        """Removes queue segments and index files that only name records below `min_pos`; returns the number of
        files."""
    def forget_log_segment(self, start: int) -> None:
        """Releases the map of a log segment that will be deleted, or was rewritten."""
    def take_damaged(self) -> list[tuple[int, int]]:
        """(position, bytes) of damaged records that `get` found since the last call; a hundred at most."""
    def index_again(self) -> int:
        """If a page of the index could not be read: removes its files from there on. Returns the position, which goes
        back to their first record; `run` rebuilds them from there."""

class SegmentScrub:
    """Reads one sealed segment of the log again, past the page cache. See store/kernel/src/scrub.rs."""

    pos: int
    """The position in the log up to which everything was checked."""
    records: int
    ext_read: int
    """Bytes of ConsumeQueue extensions that were read."""
    direct: bool
    """Whether the reads bypass the page cache (O_DIRECT)."""

    def __init__(
        self, path: str | PathLike[str], file_start: int, begin: int, file_end: int, entry_header_bytes: int
    ) -> None:
        """Bytes [begin, file_end) of a file whose first byte is `file_start` of the log. OSError."""
    def step(
        self, max_bytes: int, dispatch: Dispatch | None = None
    ) -> tuple[bool, list[tuple[int, int, str]], list[tuple[bytes, int, int, str]]]:
        """Checks at least `max_bytes` or the rest. Returns whether that was the end, damage of the log (position,
        bytes, reason), and units of ConsumeQueues that differ (topic, queue, offset, reason). The GIL is released.
        OSError."""

class IndexScrub:
    """Reads one index file again, with the records that it names, past the page cache. See
    store/kernel/src/scrub/index.rs."""

    read: int
    """Bytes of the index and of the log that were read."""

    def __init__(self, folder: str | PathLike[str], name: str, dispatch: Dispatch) -> None:
        """`folder`: of the index. ValueError: unknown index file. OSError."""
    def step(self, max_bytes: int, begin: int, end: int) -> tuple[bool, list[tuple[int, int, str]]]:
        """Checks at least `max_bytes` or the rest. Returns whether that was the end, and faults (byte of the file,
        position in the log, reason; the position is -1 unless the fault concerns the record there). Entries of records
        outside of the log's bytes [begin, end) are not compared with them. The GIL is released. OSError,
        DamageError."""

class TimerIndex:
    """The pending timers of a store, in the order of their times. See store/kernel/src/timer.rs.

    Offsets are queue offsets of the timer topic, times are ms since 1970. The GIL is released. OSError, DamageError.
    """

    pos: int
    """The log is read up to this position."""
    next_offset: int
    """All messages of the timer topic below this offset were read."""

    def __init__(
        self,
        door: Door,
        folder: str | PathLike[str],
        precision_ms: int,
        delivered_before: tuple[int, int] = (0, 0),
    ) -> None:
        """`folder`: of its files. `precision_ms`: added to a time that RocketMQ rounded down. `delivered_before`: what
        RocketMQ delivered, as (offset, time): messages below the offset whose rounded time is before the time."""
    def load(self, dispatch: Dispatch, end: int) -> str | None:
        """Loads the files. Otherwise, without a change, returns why not: "missing", "damaged", or "other log" (the log,
        which ends at `end`, has other bytes than they reflect)."""
    def clear(self, pos: int) -> None:
        """Forgets everything except what is taken: `advance` continues at `pos` of the log."""
    def advance(self, dispatch: Dispatch, upto: int, max_bytes: int) -> tuple[int, bool]:
        """Reads the log up to `upto`, which is dispatched, about `max_bytes` at most. Returns the position, and whether
        there was anything about timers."""
    def skip(self, dispatch: Dispatch, upto: int) -> bool:
        """Continues at `upto`, which is dispatched, if nothing pends and nothing up to there can. It reads nothing.
        Returns whether it did."""
    def save(self, dispatch: Dispatch) -> bool:
        """Saves the files if enough changed; durable afterwards. Returns whether it did."""
    def spill(self) -> None:
        """Moves entries from memory to files if there are many."""
    def take_due(self, now_ms: int, most: int) -> list[tuple[int, int, int]]:
        """(offset, position in the log, time) of messages that are due, in order. They are taken from now on: they stay
        pending, but are not returned again."""
    def next_due(self) -> int | None:
        """The time of the first message that is not taken."""
    def first_due(self) -> int | None:
        """The time of the first pending message, also of those that are taken."""
    def take(self, offset: int, pos: int, due: int, key: int) -> bool:
        """Takes one message, as `find` returned it. False: it is not pending, or taken already."""
    def take_before(self, dispatch: Dispatch, end: int, most: int) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Takes pending messages whose records are before `end` of the log, as `take_due`, in the order of the log.
        Also returns the offsets of those whose records cannot be read; they are not taken."""
    def give_back(self, offset: int) -> None:
        """The message was taken and is not delivered: it is due again."""
    def give_all_back(self) -> None:
        """As `give_back`, for all that are taken."""
    def forget(self, offset: int) -> bool:
        """The message is lost from the log. Returns whether it was pending."""
    def forget_below(self, offset: int) -> int:
        """The log has no messages below this offset. Returns how many of them were pending."""
    def is_pending(self, offset: int) -> bool: ...
    def first_pending(self) -> int | None:
        """The smallest offset of a pending message."""
    def pending_from(self, offset: int, most: int) -> list[int]:
        """Offsets of pending messages from `offset` on that are not taken, in order, `most` at most."""
    def find(self, unique_key: bytes, from_ms: int, to_ms: int) -> list[tuple[int, int, int, int]]:
        """(offset, position, time, key) of pending messages with this unique key, by its hash, that are due in the
        range, ends included."""
    def sizes(self) -> tuple[int, int]:
        """Bytes of memory (about), and bytes of files."""
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Pending and taken now; delivered, recalled, stored again and lost since the start."""

class MapGuard:
    """The registration of a file's map: a page that cannot be read is replaced, and does not end the process.

    Drop it before the map is unmapped."""

    def __init__(self, mapped: mmap, path: str | PathLike[str], writable: bool = False) -> None: ...
    def spoils(self, at: int, size: int) -> bool:
        """Whether one of `size` bytes from `at` on could not be read. Call it after reading them."""

def map_faults() -> int:
    """How often a page of a registered map could not be read, in this process."""

def take_unread(folder: str | PathLike[str]) -> list[tuple[PathLike[str], int, int, bool]]:
    """Mapped ranges of files below `folder` that could not be read: path, offset, bytes, whether the map was writable.

    All ranges of a map are reported again when a new one is added."""

class PullShapes:
    """Headers of pulls that were read before: a later one that differs only in three numbers, and in its signature, has
    a known shape."""

    def __init__(self) -> None: ...
    def read(self, header: bytes) -> tuple[int, int, int, int] | None:
        """(shape's number, queue offset, commit offset, opaque) of a JSON header of a known shape.

        None also if the header has a signature that is not the one of the account of `sign`.
        """

    def learn(self, header: bytes) -> tuple[int, int, int, int] | None:
        """As `read`, and its shape is known from now on. None: it has no shape (see store/kernel/src/pull.rs). It does
        not check a signature."""

    def sign(self, number: int, before: bytes, between: bytes, after: bytes, secret: bytes) -> None:
        """What the signatures of a shape cover: before the offset to commit, between it and the offset of the pull, and
        after that; and the secret of the account."""

    def forget(self) -> None:
        """No shape is known."""
