"""Remarks on rows that were not executed as requested, because that failed."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.analysis import Record, Records
from ablate.report.cells import Footnote
from ablate.wording import seeds_named


def execution(records: Records) -> Iterator[Footnote]:
    """Yield a remark for each row and kind of change: micro-batches, or another engine."""
    for describe in (_micro_batching, _engine):
        rows: dict[tuple[str, str], list[int]] = {}
        for (row, seed), record in records.items():
            if text := describe(record):
                rows.setdefault((row, text), []).append(seed)
        for (row, text), seeds in rows.items():
            yield Footnote(f"{row}, {seeds_named(seeds)}", text)


def _micro_batching(record: Record) -> str:
    divided = record.get("micro_batching")
    if not divided:
        return ""
    if record["status"] != "done":
        return f"tried in micro-batches 1/{divided['factor']} of the usual size too"
    text = (
        f"out of memory with whole batches; done in micro-batches of 1/{divided['n']} of a batch, "
        f"with the same target tokens in every update: {divided['note']}"
    )
    of_probe = record.get("speed", {}).get("micro_batch_factor", 1)
    if not record.get("speed") or of_probe == divided["factor"]:
        return text
    times = divided["factor"] // of_probe
    return f"{text}; speed and memory were measured with parts {times} times as large"


def _engine(record: Record) -> str:
    own, note = record.get("engine", ""), record.get("engine_note")
    measured = record.get("speed", {}).get("engine", own)
    texts = [f"{own} engine, {note}"] if note else []
    if measured != own:
        texts.append(f"speed and memory were measured with the {measured} engine")
    return "; ".join(texts)
