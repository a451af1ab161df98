"""The footnotes on where the numbers of a table come from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath

from ablate.analysis.summary import Record, Records
from ablate.report.table import Footnote
from ablate.wording import counted

_MUCH = 0.05  # of a split, from which what was done to its text changes how the table reads


def provenance(records: Records) -> Iterator[Footnote]:
    """Yield where the numbers come from; what not all records share with its number of runs."""
    n_with_text = sum(bool(_corpus(record)) for record in records.values())
    for label, describe in PROVENANCE.items():
        described = [text for record in records.values() if (text := describe(record))]
        n_all = max(n_with_text, len(described))
        lines = Counter(line for text in described for line in text.splitlines())
        texts = (
            line if n == n_all else f"{line} ({counted(n, 'run')})" for line, n in lines.items()
        )
        if described:
            text = "; ".join(texts)
            yield Footnote(label, text, is_vital=label == "note" and _is_about_much(text))


def _is_about_much(notes: str) -> bool:
    """Return whether a note says of a share of its text that is not small, as in ``3 of 40``."""
    counts = re.findall(r"(\d+) of (\d+)", notes.replace(",", ""))
    return any(int(n) >= _MUCH * int(n_all) for n, n_all in counts)


def _corpus(record: Record) -> str:
    corpus = record.get("corpus")
    if not corpus:
        return ""
    n_train, fingerprint = corpus.get("n_train"), corpus.get("fingerprint")
    parts = [corpus["name"], f"{corpus['src']} → {corpus['tgt']}"]
    parts += [counted(n_train, "training pair")] if n_train else []
    return ", ".join([*parts, f"content {fingerprint[:12]}"] if fingerprint else parts)


def _notes(record: Record) -> str:
    return "\n".join(record.get("corpus", {}).get("notes") or ())


def _tokenizer(record: Record) -> str:
    tokenizer = record.get("tokenizer")
    if not tokenizer:
        return ""
    name = record.get("spec", {}).get("tokenizer", {}).get("name")
    sizes = f"{tokenizer['n_src']:,} source and {tokenizer['n_tgt']:,} target entries"
    return ", ".join(filter(None, (name, sizes, f"content {tokenizer['fingerprint'][:12]}")))


def _hardware(record: Record) -> str:
    hardware = record.get("hardware")
    if not hardware:
        return ""
    device, cpu = hardware.get("device", ""), hardware.get("cpu")
    name, n = hardware.get("device_name") or cpu, record.get("spec", {}).get("devices_per_run", 1)
    words = (
        device,
        name if name != device else None,
        f"host {cpu}" if device != "cpu" and cpu else None,
        counted(hardware["threads"], "thread") if hardware.get("threads") else None,
        f"{n} devices per run" if n > 1 else None,
    )
    return ", ".join(filter(None, words))


def _software(record: Record) -> str:
    return " · ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())


def _execution(record: Record) -> str:
    engine, note = record.get("engine"), record.get("engine_note")
    precision = record.get("spec", {}).get("training", {}).get("precision")
    return ", ".join(filter(None, (f"{engine} ({note})" if note else engine, precision)))


def _plugins(record: Record) -> str:
    plugins = record.get("plugins", ())
    return ", ".join(f"{PurePath(each['name']).name} {each['sha256'][:12]}" for each in plugins)


def _commit(record: Record) -> str:
    git = record.get("git") or {}
    dirty = "" if git.get("is_clean") else " with changes that were not committed"
    return f"{git['commit'][:12]}{dirty}" if git.get("commit") else ""


# functions that describe where a record comes from, a line for each fact, by the label of the
# footnote
PROVENANCE: dict[str, Callable[[Record], str]] = {
    "corpus": _corpus,
    "note": _notes,
    "tokenizer": _tokenizer,
    "hardware": _hardware,
    "software": _software,
    "engine": _execution,
    "plugins": _plugins,
    "commit": _commit,
}
