"""The full-text index of one Parquet file: an SQLite FTS5 table without content; row number + 1 is the rowid.

It is written once and never changed, so readers open it as immutable: no locks, which also suits a shared filesystem.
"""

from __future__ import annotations

import os
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.log_store import durable_files
from culver.pipelines.log_store.errors import DamagedFile, QueryError

_PAGE_BYTES = 8192
# FTS5 gathers this much before it writes a tree of its own. Enough for a whole file means one tree and no merging.
_GATHER_BYTES = 1 << 29
_CACHE_KIB = 64 << 10
_BUILD = f"""
    PRAGMA page_size = {_PAGE_BYTES};
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA cache_size = -{_CACHE_KIB};
    CREATE VIRTUAL TABLE text USING fts5(
        line, content = '', columnsize = 0, tokenize = 'unicode61 remove_diacritics 2'
    );
    INSERT INTO text(text, rank) VALUES ('hashsize', {_GATHER_BYTES});
"""
# What JSON and logfmt write for characters that part words; left alone, \\nfailed would be the word "nfailed".
_ESCAPES = r'\\(?:[\\nrtbf"/]|u[0-9a-fA-F]{4})'
_ESCAPING_FORMATS = pa.array(["json", "logfmt"])
# SQLite takes what the query finds from here on, so that a hit is not held up by all the others.
_HITS_AT_ONCE = 256


def searchable_text(events: pa.Table) -> pa.ChunkedArray:
    """What a search looks at: the whole line; where it has escapes, those count as spaces and the message is added."""
    raw, message = events["raw"], events["message"]
    escaped = pc.and_(pc.is_in(events["format"], value_set=_ESCAPING_FORMATS), pc.match_substring(raw, "\\"))
    if not pc.any(escaped).as_py():
        return raw
    unescaped = pc.binary_join_element_wise(pc.replace_substring_regex(raw, _ESCAPES, " "), message, "\n")
    return pc.if_else(escaped, unescaped, raw)


def build(path: str, lines: pa.ChunkedArray) -> None:
    """Write the index of these lines, the first of which is row 0."""

    def fill(temporary: str) -> None:
        durable_files.remove(temporary)  # of an attempt that met a vanished directory
        if not os.path.isdir(os.path.dirname(temporary)):
            raise FileNotFoundError(temporary)
        with closing(sqlite3.connect(temporary, isolation_level=None)) as database:
            database.executescript(_BUILD)
            database.execute("BEGIN")
            first = 1
            for chunk in lines.chunks:
                rows = enumerate(chunk.to_pylist(), first)
                database.executemany("INSERT INTO text(rowid, line) VALUES (?, ?)", rows)
                first += len(chunk)
            database.execute(f"PRAGMA user_version = {len(lines)}")
            database.execute("COMMIT")

    durable_files.write_new(path, fill)


def matches(
    path: str, query: str, *, size: int, rows: int, first_row: int = 0, end_row: int | None = None
) -> Iterator[list[int]]:
    """The numbers of the rows that match an FTS5 query, the last ones first, some at a time.

    FileNotFoundError when there is no such file; DamagedFile when it is not of `size` bytes, or none that `build` has
    written for `rows` rows.
    """
    found_bytes = os.path.getsize(path)
    if found_bytes != size:
        raise DamagedFile.index(path, f"has {found_bytes} bytes where the manifest says {size}")
    end_row = rows if end_row is None else end_row
    uri = f"file:{urllib.parse.quote(os.path.abspath(path))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as database:
            indexed = database.execute("PRAGMA user_version").fetchone()[0]
            if indexed != rows:
                raise DamagedFile.index(path, f"is of {indexed} lines and its Parquet file has {rows}")
            cursor = database.execute(
                "SELECT rowid FROM text WHERE text MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC",
                (query, first_row + 1, end_row),
            )
            while hits := cursor.fetchmany(_HITS_AT_ONCE):
                yield [rowid - 1 for (rowid,) in hits]
    except sqlite3.DatabaseError as error:
        if not os.path.exists(path):
            raise FileNotFoundError(path) from None
        if "fts5:" in str(error):
            raise QueryError(f"the query cannot be run: {error}", "simplify it") from None
        raise DamagedFile.index(path, f"is damaged ({error})") from error
