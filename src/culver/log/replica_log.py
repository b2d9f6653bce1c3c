"""A log that follows another: batches come as the leader stored them, and are neither stamped nor numbered here.

What a fetch from the leader brings is judged as a whole before any of it is written; then all batches that go into
one segment are one write. Offsets and leader epochs are the leader's, so that replicas stay the same byte for byte.
"""

from __future__ import annotations

from culver.errors import ErrorCode, KafkaError
from culver.filesystem import Buffer
from culver.log.append_log import UNUSUAL
from culver.log.batches import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    HeaderFields,
)
from culver.log.flush import unmark_unflushed
from culver.log.segment import Segment
from culver.log.truncation import TruncatingLog
from culver.protocol.checksum import crc32c

_unpack = HEADER.unpack_from


class ReplicaLog(TruncatingLog):
    """What a follower does with its log."""

    def begin_epoch(self, epoch: int) -> None:
        """This broker leads the partition from here on: where the epoch begins, should nothing be written in it."""
        self._epochs.assign(epoch, self._end_offset)
        self._latest_epoch = self._epochs.latest

    def start_at(self, offset: int) -> None:
        """The leader's log starts at `offset` now; beyond this log's end, it goes on empty there."""
        self._check_serving()
        if offset > self._end_offset:
            self.truncate_fully_and_start_at(offset)
        else:
            self._start_at(offset)

    def append_replica(self, records: Buffer, fetched_from: int | None = None) -> int:
        """Hot. Append whole batches as the leader has them; returns how many bytes. A cut-off last one is ignored.

        Raises KafkaError and changes nothing when any of them is damaged or does not belong at the log's end.
        `fetched_from` is the offset that was asked for: if the log has another end by now the answer is outdated
        and refused. Only with it, or in a log that compaction has been over, may offsets be left out.
        """
        end_offset = self._end_offset
        if fetched_from is not None and fetched_from != end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"fetched from offset {fetched_from}, but {self.directory} ends at {end_offset} by now",
            )
        self._check_serving()
        view = memoryview(records)
        found, size_bytes = self._judge(view, fetched_from is not None or self._gaps)
        if not found:
            return 0
        self._producers.transactions.drop_guards()
        if found[0][0] < end_offset:
            # The leader's log begins inside this batch, and so does this one, which is empty.
            start_offset = self.start_offset
            self.truncate_fully_and_start_at(found[0][0])
            self._start_at(start_offset)
        self._append_all(view, found, size_bytes)
        return size_bytes

    def _judge(self, view: memoryview, gaps_allowed: bool) -> tuple[list[HeaderFields], int]:
        """Hot. The headers of the whole batches in it, and how many bytes those are."""
        found: list[HeaderFields] = []
        size_bytes = len(view)
        next_offset = self._end_offset
        epoch = self._latest_epoch
        gaps = False
        at = 0
        while size_bytes - at >= HEADER_BYTES:
            fields: HeaderFields = _unpack(view, at)
            after = at + fields[1] + LENGTH_OVERHEAD_BYTES
            if after > size_bytes:
                break
            base_offset = fields[0]
            if (
                (base_offset != next_offset and (base_offset < next_offset or not gaps_allowed))
                or fields[3] != MAGIC
                or fields[1] < HEADER_BYTES - LENGTH_OVERHEAD_BYTES
                or fields[2] < epoch
                or fields[6] < 0
                or crc32c(view[at + CRC_START : after]) != fields[4]
            ):
                reason = self._complaint(view[at:after], fields, next_offset, epoch, first=not found)
                if reason is None and base_offset > next_offset and not gaps_allowed:
                    reason = f"base offset is {base_offset}, expected {next_offset}"
                if reason is not None:
                    raise KafkaError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"what the leader of {self.directory} sent is refused at byte {at}: {reason}",
                    )
            if base_offset > next_offset:
                gaps = True
            found.append(fields)
            epoch = fields[2]
            next_offset = base_offset + fields[6] + 1
            at = after
        if gaps and not self._gaps:
            self._expect_gaps()
        return found, at

    def _expect_gaps(self) -> None:
        # Written down first: recovery would take a gap for damage.
        self._gaps = True
        try:
            self._save_checkpoint("appended to")
        except KafkaError:
            self._gaps = False
            raise

    def _complaint(
        self, batch: memoryview, fields: HeaderFields, next_offset: int, epoch: int, *, first: bool
    ) -> str | None:
        """What is wrong with a batch; None when it may enter the log after all."""
        base_offset, length, batch_epoch, magic, crc, _, last_delta, *_ = fields
        if magic != MAGIC:
            return f"magic byte is {magic}, expected {MAGIC}"
        if length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
            return f"length field is {length}, too small for a batch"
        if last_delta < 0:
            return f"last offset delta is {last_delta}"
        if crc32c(batch[CRC_START:]) != crc:
            return "the batch does not match its checksum"
        if batch_epoch < epoch:
            if not first or self._epochs.latest_before(next_offset) > batch_epoch:
                return f"leader epoch is {batch_epoch}, after {epoch}"
            # This broker led in a later epoch and never wrote in it: that epoch left no trace anywhere.
            self._forget_epochs(next_offset)
        if base_offset >= next_offset:
            return None
        if first and self.start_offset == next_offset and next_offset <= base_offset + last_delta:
            return None
        return f"base offset is {base_offset}, expected {next_offset} or more"

    # -- writing ---------------------------------------------------------------------------------------------

    def _append_all(self, view: memoryview, found: list[HeaderFields], size_bytes: int) -> None:
        """Hot. One write for each segment that it takes; mostly that is one."""
        now_ms = self._clock.now_ms()
        segment = self._active
        if (
            0 < segment.size_bytes <= self._roll_at_bytes - size_bytes
            and found[-1][0] + found[-1][6] <= self._roll_above_offset
            and max([fields[8] for fields in found]) <= self._roll_above_timestamp_ms
            and len(segment.offset_index or segment.indexes()[0]) + len(found) <= self._index_entries_max
        ):
            self._append_run(segment, view[:size_bytes], found, now_ms)
            return
        done = 0
        at = 0
        while True:
            segment = self._active
            count = self._fitting(segment, found, done)
            if count == len(found):
                self._append_run(segment, view[:size_bytes], found, now_ms)
                return
            if count:
                run = found[done : done + count]
                after = at + sum(fields[1] + LENGTH_OVERHEAD_BYTES for fields in run)
                self._append_run(segment, view[at:after], run, now_ms)
                at = after
                done += count
                if done == len(found):
                    return
            if self._active.size_bytes:
                self.roll()

    def _fitting(self, segment: Segment, found: list[HeaderFields], done: int) -> int:
        """Hot. How many of the batches from `done` on go into the active segment. By the rules of `append`."""
        position = segment.size_bytes
        roll_at_bytes = self._roll_at_bytes
        roll_above_timestamp_ms = self._roll_above_timestamp_ms
        roll_above_offset = self._roll_above_offset
        interval = self._index_interval_bytes
        index_room = self._index_entries_max - len(segment.offset_index or segment.indexes()[0])
        since = segment.bytes_since_index_entry
        count = 0
        for fields in found[done:] if done else found:
            size = fields[1] + LENGTH_OVERHEAD_BYTES
            if (
                position + size > roll_at_bytes
                or fields[8] > roll_above_timestamp_ms
                or fields[0] + fields[6] > roll_above_offset
                or index_room <= 0
            ):
                if position:
                    break
                # It has to go somewhere: the leader has taken it, perhaps under another configuration.
                if fields[0] + fields[6] > roll_above_offset:
                    self._move_empty_segment(fields[0])
                    return 0
            if since > interval:
                index_room -= 1
                since = 0
            since += size
            if not position:
                roll_above_timestamp_ms = self._timestamp_limit(segment, fields[8])
            position += size
            count += 1
        return count

    def _move_empty_segment(self, base_offset: int) -> None:
        """Have the empty active segment begin at `base_offset`, which is too far from where it begins now."""
        try:
            # Recovery takes a marked segment that does not reach to the next one for torn; so none may be marked.
            for segment in self._segments.items[:-1]:
                if segment.unsynced or segment.pins:
                    segment.open_file().sync()
                unmark_unflushed(self._fs, segment)
            self._delete_segment(self._active, self._clock.now_ms())
            self._fs.sync_directory(self.directory)
            self._go_on_in_new_segment(base_offset, mark=False)
        except OSError as error:
            raise self._fail(error) from error

    def _append_run(self, segment: Segment, data: memoryview, run: list[HeaderFields], now_ms: int) -> None:
        """Hot. Write batches that belong into one segment, and note each of them."""
        position = start = segment.size_bytes
        file = segment.file or segment.open_file()
        try:
            file.pwrite(data, position)
        except OSError as error:
            raise self._write_failed(error, position) from error
        segment.size_bytes = position + len(data)
        segment.unsynced = True
        plan_again = not position
        if not position:
            segment.first_timestamp_ms = run[0][8]
        interval = self._index_interval_bytes
        since = segment.bytes_since_index_entry
        max_timestamp_ms = segment.max_timestamp_ms
        epoch = self._latest_epoch
        for fields in run:
            size = fields[1] + LENGTH_OVERHEAD_BYTES
            if fields[8] > max_timestamp_ms:
                max_timestamp_ms = segment.max_timestamp_ms = fields[8]
                segment.max_timestamp_offset = fields[0] + fields[6]
            if since > interval:
                segment.add_index_entry(fields[0] + fields[6], position)
                plan_again = True
                since = 0
            since += size
            position += size
            if fields[2] != epoch:
                epoch = fields[2]
                self._epochs.assign(epoch, fields[0])
            if fields[9] >= 0:
                if fields[5] & UNUSUAL or fields[11] < 0:
                    self._note_unusual(fields, data[position - size - start : position - start], now_ms)
                else:
                    self._producers.record(
                        fields[9], fields[10], fields[11], fields[6] + 1, fields[0], fields[8], now_ms
                    )
        segment.bytes_since_index_entry = since
        self._latest_epoch = self._epochs.latest
        # Last: a flush on another thread takes it for the end of what is in the file.
        self._end_offset = run[-1][0] + run[-1][6] + 1
        if plan_again:
            self._plan_roll()
