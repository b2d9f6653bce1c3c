"""Arrow columns over the bytes of a fetch answer: keys, values and headers, copied by C++ and not one by one.

An Arrow binary array is one run of bytes and the positions at which it is cut. The payload of a batch, cut where each
value begins and where it ends, is such an array without any copying, with the values at every second place; taking
these copies them into an array of their own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from culver.spark.record_starts import Bytes, Positions, invalid
from culver.spark.schema import ARROW_HEADER
from culver.spark.varint_columns import Numbers, read_varints

_CACHED_ROWS = 1 << 16
_EVERY_SECOND = pa.array(np.arange(0, 2 * _CACHED_ROWS, 2, dtype=np.int32))


def binary_column(payload: pa.Buffer, begins: Positions, lengths: Numbers) -> pa.Array:
    """A binary array of the stretches of `payload`; a negative length is null. `begins` must rise."""
    count = len(begins)
    null = lengths < 0
    if null.all():
        return pa.nulls(count, pa.binary())
    cuts = np.empty(2 * count, dtype=np.int32)
    cuts[0::2] = begins
    cuts[1::2] = begins + lengths
    if not null.any():
        places = _every_second(count)
    else:
        cuts[1::2][null] = cuts[0::2][null]
        places = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=null)
    whole = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(cuts), payload])
    return pc.take(whole, places, boundscheck=False)


def _every_second(count: int) -> pa.Array:
    if count <= _CACHED_ROWS:
        return _EVERY_SECOND.slice(0, count)
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def header_column(payload: pa.Buffer, column: Bytes, positions: Positions, ends: Positions) -> pa.Array:
    """The headers of each record as a list of (key, value); null for a record without any.

    `positions` are those of the header counts, `ends` those at which the records end. The first headers of all
    records are read at once, then the second ones, and so on.
    """
    counts, positions = read_varints(column, positions)
    # A header takes two bytes or more, so a count that lies is caught before anything is made.
    if ((counts < 0) | (counts > (ends - positions) // 2)).any():
        raise invalid("a record claims more headers than it has room for")
    bounds = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    total = int(bounds[-1])
    keys = np.empty((2, total), dtype=np.int64)
    values = np.empty((2, total), dtype=np.int64)
    rows = np.flatnonzero(counts)
    position = positions[rows]
    nth = 0
    while rows.size:
        places = bounds[rows] + nth
        keys[1, places], keys[0, places] = key_length, key_begin = read_varints(column, position)
        if (key_length < 0).any():
            raise invalid("the key of a header is null")
        value_length, value_begin = read_varints(column, key_begin + key_length)
        values[1, places], values[0, places] = value_length, value_begin
        position = value_begin + np.maximum(value_length, 0)
        if (position > ends[rows]).any():
            raise invalid("a header claims more bytes than its record has")
        nth += 1
        going = counts[rows] > nth
        rows, position = rows[going], position[going]
    entries = pa.StructArray.from_arrays(
        [_text_column(payload, keys[0], keys[1]), binary_column(payload, values[0], values[1])],
        fields=list(ARROW_HEADER),
    )
    return _lists(bounds, entries, counts == 0)


def _lists(bounds: npt.NDArray[np.int32], entries: pa.Array, null: npt.NDArray[np.bool_]) -> pa.Array:
    validity = pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.list_(pa.field("element", ARROW_HEADER))
    return pa.Array.from_buffers(
        kind, len(null), [validity, pa.py_buffer(bounds)], null_count=int(null.sum()), children=[entries]
    )


def _text_column(payload: pa.Buffer, begins: Positions, lengths: Numbers) -> pa.Array:
    """As `binary_column`, but text; what is no UTF-8 is shown as Java would show it, with U+FFFD."""
    column = binary_column(payload, begins, lengths) if len(begins) else pa.array([], pa.binary())
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in column.to_pylist()], pa.string())
