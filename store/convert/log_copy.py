"""Copies the log into the new layout, in turns, so that it can be interrupted at any point.

    old log ─▶ Converter (kernel): check, place, write ─▶ sync ─▶ places ─▶ state

The state names a point in both logs up to which the new one is durable. A run begins there: it removes what lies behind
the point in the new log, and converts the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store._kernel import Converter
from tallystick.store.convert.source import ConvertError, Part, Source
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.formats.conversion import Gap, State
from tallystick.store.formats.ledger_format import UNIT_BYTES
from tallystick.store.formats.segment_files import segment_name, segment_start

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

TURN_BYTES = 32 << 20
"""Bytes of the old log that one call of the kernel reads: about a tenth of a second."""
SAVE_BYTES = 256 << 20
"""Bytes between two saved states: what an interrupted conversion has to do again."""
INDEX_SEGMENT_BYTES = 32 * 5 * 1024 * 1024
"""dledger requires this size of index files."""
TERM = 1
"""Of all entries of a converted log. A group continues with higher terms."""
FIRST_INDEX = 1
"""Of the first entry. A log that begins behind an entry 0 is sent to new members with the ends of its idle queues."""
_TOO_LARGE = "does not fit into a segment"


class LogCopy:
    """The copy of one log. `run` continues from the state and returns when the whole log is copied."""

    def __init__(
        self, source: Source, state: State, door: Door, folder: Path, log_folder: Path, *, skip_damage: bool
    ) -> None:
        """`folder`: of the conversion; `log_folder`: of the new log's segments."""
        self._source, self._state, self._door = source, state, door
        self._folder, self._log_folder = folder, log_folder
        self._skip_damage = skip_damage
        self._index_folder = log_folder.parent / "index" if state.layout == "dledger" else None
        self._before = (state.records, state.own_entries, state.references, state.dangling)

    def run(self, progress: Callable[[int], None], turn_bytes: int = TURN_BYTES, save_bytes: int = SAVE_BYTES) -> None:
        """`progress(pos)`: called after each turn with the position in the old log.

        Raises ConvertError: the state is saved up to the place. OSError: the last saved state is valid.
        """
        state = self._state
        self._remove_behind()
        index = None if self._index_folder is None else (str(self._index_folder), state.index_segment_bytes)
        converter = Converter(
            self._door, str(self._log_folder), state.segment_bytes, index, state.target_pos, state.next_index, TERM,
            state.chain, state.places(self._folder), [(gap.begin, gap.end) for gap in state.gaps],
        )  # fmt: skip
        pairs = state.pairs
        for number, part in enumerate(self._source.parts if self._source.segment_bytes else ()):
            pos = max(state.pos, part.begin) if number == state.part else part.begin
            converter.begin(str(part.log.folder), part.log.segment_bytes, part.entry_header_bytes, part.begin, pos)
            if number < state.part:
                continue
            saved = pos
            while (behind := self._turn(converter, part, turn_bytes)) is not None:
                progress(converter.pos)
                if behind > converter.pos:
                    converter.skip(behind)
                if converter.pos - saved >= save_bytes:
                    pairs = self._save(converter, number, pairs)
                    saved = converter.pos
            pairs = self._save(converter, number, pairs)

    def _turn(self, converter: Converter, part: Part, turn_bytes: int) -> int | None:
        """One call of the kernel. Returns where the log continues: behind damage, or here; None: the part is done."""
        before = converter.pos
        step = converter.run(part.log.end, turn_bytes)
        if step.stopped is None and step.pos > before:
            return step.pos
        if step.stopped == _TOO_LARGE:
            file, offset = part.place(step.pos)
            self._fail(
                converter, part,
                f"the record in {file} at byte {offset} {_TOO_LARGE} of {self._state.segment_bytes} bytes in the new "
                "layout: begin again with a larger --segment-bytes",
            )  # fmt: skip
        stop = self._source.stop_at(part, step.pos, step.stopped or "unwritten")
        if stop.behind is None:
            if stop.note and stop.note not in self._state.notes:
                self._state.notes.append(stop.note)
            return None
        file, offset = part.place(step.pos)
        gap = Gap(step.pos, stop.behind, file, offset, step.stopped or "unwritten bytes")
        if not self._skip_damage:
            self._fail(
                converter, part,
                f"{file} at byte {offset} is damaged ({gap.reason}), and the log continues {gap.end - gap.begin} bytes "
                "later. Nothing was left out. Repair the file and run the conversion again, which continues here; or "
                "run it with --skip-damage: it leaves out what is damaged, and keeps the queue offsets",
            )  # fmt: skip
        self._state.gaps.append(gap)
        return stop.behind

    def _fail(self, converter: Converter, part: Part, text: str) -> None:
        self._save(converter, self._source.parts.index(part), self._state.pairs)
        raise ConvertError(text)

    def _save(self, converter: Converter, number: int, pairs: int) -> int:
        state = self._state
        converter.sync()
        state.part, state.pos = number, converter.pos
        state.anchor_bytes, state.anchor_crc = self._source.anchor(number, converter.pos)
        state.target_pos, state.next_index, state.chain = converter.target
        counts = zip(self._before, converter.counts, strict=True)
        state.records, state.own_entries, state.references, state.dangling = (a + b for a, b in counts)
        state.add_places(self._door, self._folder, converter.pairs_from(pairs))
        state.save(self._door, self._folder)
        return state.pairs

    def _remove_behind(self) -> None:
        """Removes what an interrupted run wrote behind the saved state."""
        self._cut(self._log_folder, self._state.target_pos, self._state.segment_bytes)
        if self._index_folder is not None:
            self._cut(self._index_folder, self._state.next_index * UNIT_BYTES, self._state.index_segment_bytes)

    def _cut(self, folder: Path, pos: int, file_bytes: int) -> None:
        self._door.mkdir(folder)
        found = [(start, path) for path in folder.iterdir() if (start := segment_start(path.name)) is not None]
        for start, path in sorted(found, reverse=True):
            if start >= pos:
                self._door.remove(path)
                self._door.sync_dir(folder)
        path = folder / segment_name(pos - pos % file_bytes)
        if path.exists():
            zero_behind(self._door, path, pos % file_bytes)
