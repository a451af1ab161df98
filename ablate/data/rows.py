"""The rows of tables, from any of their formats, by the names of their columns."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ablate.data.parallel import lines_of, pieces_of, raw_lines
from ablate.errors import DataError
from ablate.wording import counted

Row = Mapping[str, Any]
L = TypeVar("L")  # a line, or its cells
_BATCH = 10_000  # rows


def data_files(path: Path) -> list[Path]:
    """Return the files of a table: a file itself, or those that Hugging Face datasets has saved."""
    if not path.is_dir():
        return [path]
    try:
        if (splits := path / "dataset_dict.json").is_file():
            names = json.loads(splits.read_text(encoding="utf-8"))["splits"]
            has = ", ".join(names)
            raise DataError(f"{path} holds {has}: name one of them, as in {path / names[0]}")
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return [path / Path(file["filename"]).name for file in state["_data_files"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{path} is a folder that Hugging Face datasets has not saved; name its files: "
            f"{path}/*.parquet"
        ) from error


def rows_of(
    path: Path, columns: Collection[str], *, has_names: bool
) -> Iterator[tuple[int, Row | None]]:
    """Yield the number of each row and its cells by column; None where a line is invalid UTF-8.

    Numbers are those of lines, or in Parquet those of rows, from 1.

    Args:
        path: its name says the format.
        columns: those that are needed; others may be left out.
        has_names: of TSV and CSV: the first line has the names of columns, which are otherwise
            called by their numbers from 1.
    """
    match path.name.removesuffix(".gz").rpartition(".")[2]:
        case "tsv":
            lines = enumerate(lines_of(pieces_of(path)), start=1)
            cells = ((n, None if line is None else line.split("\t")) for n, line in lines)
            yield from _by_name(path, cells, has_names=has_names)
        case "csv":
            yield from _by_name(path, _csv(path), has_names=has_names)
        case "jsonl" | "ndjson":
            yield from _json(path)
        case "parquet" | "arrow" as ending:
            yield from _arrow(path, columns, is_parquet=ending == "parquet")
        case _:
            raise DataError(
                f"{path}: a table's name ends in .tsv, .csv, .jsonl (each also .gz) or .parquet"
            )


def value_of(row: Row, column: str) -> tuple[bool, Any]:
    """Return whether a row has a column, and its value; ``a.b`` is b within a."""
    if column in row:
        return True, row[column]
    outer, _, inner = column.partition(".")
    within = row.get(outer)
    return value_of(within, inner) if inner and isinstance(within, Mapping) else (False, None)


def _by_name(
    path: Path, lines: Iterable[tuple[int, list[str] | None]], *, has_names: bool
) -> Iterator[tuple[int, Row | None]]:
    names: list[str] | None = None
    for number, cells in _without_blank_end(lines):
        if cells is None:
            yield number, None
            continue
        if names is None:
            names = cells if has_names else [str(i + 1) for i in range(len(cells))]
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise DataError(f"{path}:{number}: two columns are called {twice!r}")
            if has_names:
                continue
        if len(cells) != len(names):
            raise DataError(
                f"{path}:{number}: has {counted(len(cells), 'column')}, where the first line has "
                f"{len(names)}"
            )
        yield number, dict(zip(names, cells, strict=True))


def _without_blank_end(lines: Iterable[tuple[int, L]]) -> Iterator[tuple[int, L]]:
    """Yield numbered lines, but for the last one if it is blank."""
    blank: list[tuple[int, L]] = []
    for number, line in lines:
        yield from blank
        blank = [(number, line)] if line in ("", [], [""]) else []
        if not blank:
            yield number, line


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    lines = (f"{x.decode(errors='surrogateescape')}\n" for x in raw_lines(pieces_of(path)))
    reader = csv.reader(lines, strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}") from error


def _json(path: Path) -> Iterator[tuple[int, Row | None]]:
    lines = enumerate(lines_of(pieces_of(path)), start=1)
    for number, line in _without_blank_end(lines):
        if line is None:
            yield number, None
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}:{number}:{error.colno}: is no JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: cannot be read: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f'{path}:{number}: is no object, as in {{"en": ..., "de": ...}}')
        yield number, row


def _arrow(
    path: Path, columns: Collection[str], *, is_parquet: bool
) -> Iterator[tuple[int, Row | None]]:
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError as error:
        way_out = "pip install 'ablate-transformer[tables]'"
        raise DataError(f"{path}: needs pyarrow: {way_out}") from error
    needed = {column.partition(".")[0] for column in columns} | set(columns)
    number = 0
    try:
        with pa.memory_map(str(path)) as file:
            table = parquet.ParquetFile(file) if is_parquet else ipc.open_stream(file)
            names = (table.schema_arrow if is_parquet else table.schema).names
            present = [name for name in names if name in needed]
            batches = table.iter_batches(_BATCH, columns=present) if is_parquet else table
            for batch in batches:
                for row in batch.select(present).to_pylist():
                    number += 1
                    yield number, row if number > 1 else {**dict.fromkeys(names), **row}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
