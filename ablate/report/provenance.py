"""Where the numbers of records come from: corpus, tokenizer, hardware, software, commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ablate.analysis.summary import Record, Records
from ablate.report.table import Footnote
from ablate.wording import counted


def provenance(records: Records) -> Iterator[Footnote]:
    """Yield where the numbers come from; where records differ, each with its number of runs."""
    for label, describe in PROVENANCE.items():
        texts = Counter(text for record in records.values() if (text := describe(record)))
        if len(texts) == 1:
            yield Footnote(label, *texts)
        elif texts:
            counts = (f"{text} ({counted(n, 'run')})" for text, n in texts.items())
            yield Footnote(label, "; ".join(counts))


def _corpus(record: Record) -> str:
    corpus = record.get("corpus")
    if not corpus:
        return ""
    n_train, fingerprint = corpus.get("n_train"), corpus.get("fingerprint")
    parts = [corpus["name"], f"{corpus['src']} → {corpus['tgt']}"]
    parts += [counted(n_train, "training pair")] if n_train else []
    return ", ".join([*parts, f"content {fingerprint[:12]}"] if fingerprint else parts)


def _notes(record: Record) -> str:
    return "; ".join(record.get("corpus", {}).get("notes") or ())


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
    versions = record.get("versions", {}).items()
    precision = record.get("spec", {}).get("training", {}).get("precision", "")
    engine = f"{record['engine']} engine" if record.get("engine") else ""
    if record.get("engine_note"):
        engine += f" ({record['engine_note']})"
    details = ", ".join(word for word in (engine, precision) if word)
    libraries = " · ".join(f"{name} {version}" for name, version in versions)
    return "; ".join(text for text in (libraries, details) if text)


def _commit(record: Record) -> str:
    git = record.get("git") or {}
    dirty = "" if git.get("is_clean") else " with changes that were not committed"
    return f"{git['commit'][:12]}{dirty}" if git.get("commit") else ""


PROVENANCE: dict[str, Callable[[Record], str]] = {
    "corpus": _corpus,
    "note": _notes,
    "tokenizer": _tokenizer,
    "hardware": _hardware,
    "software": _software,
    "commit": _commit,
}
"""Functions that describe where a record comes from, by the label of the footnote."""
