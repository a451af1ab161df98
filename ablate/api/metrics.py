"""Metrics that records lack: computed from the stored translations, and stored with them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ablate.api.corpora import text_of_runs
from ablate.api.selection import Records, print_remark
from ablate.contracts import watched
from ablate.data.corpus import Bitext, bleu_tokenizer
from ablate.errors import DamagedFileWarning, SpecError, StoreError
from ablate.hashing import digest, sha256_of_file
from ablate.parts.metric import Metric
from ablate.registry import Choice, build, lookup
from ablate.store import Store, readable, translations_file, write_whole

_IN_RECORDS = ("bleu", "chrf")
"""The metrics that every record holds."""


class _Identified:
    """A metric, and what a stored score must have to be the metric's.

    Attributes:
        key: 16 hex digits for the options, the version and the code.
        files: the hash of the files that the options name; empty if one cannot be read.
    """

    def __init__(self, choice: Choice) -> None:
        entry = lookup("metric", choice.name)
        plain = json.dumps(choice.model_dump(mode="json"), sort_keys=True)
        paths = [p for name in sorted(entry.file_paths) for p in _texts(choice.options[name])]
        self.choice, self.files = choice, ""
        self.key = digest([plain, str(entry.version), entry.code])[:16]
        with suppress(OSError, ValueError):  # ValueError: a path with a NUL
            self.files = digest(sha256_of_file(Path(path)) for path in paths) if paths else ""


def scored(records: Records, corpus: Choice, metrics: Sequence[Choice], store: Store) -> Records:
    """Return records with the scores of further metrics, each computed once.

    BLEU is such a metric where a record has it in tokens of another tokenizer than ``metrics``
    names or, unless it names one, than the target language has.

    A score is stored in ``metrics.json`` in the folder of the run, under the hash of the metric
    with its options and code, and that of the translations. It is computed anew if a file that the
    options name has other content. Where it cannot be written, a remark says so.

    Raises:
        SpecError: if a metric refuses its options or texts.
        StoreError: if translations are missing.
        DataError: if the corpus is unavailable, or has another content than the runs have read.
    """
    further = [_Identified(choice) for choice in metrics if choice.name not in _IN_RECORDS]
    named = next((m.options["tokenize"] for m in metrics if m.name == "bleu"), None)
    test_sets = cache(lambda: text_of_runs(corpus, records.values()).tests)
    errors: list[StoreError] = []
    of_runs = {
        run: _with_scores(record, lacking, test_sets, store, errors)
        if record["status"] == "done" and (lacking := [*further, *_other_bleu(record, named)])
        else record
        for run, record in records.items()
    }
    if errors:
        print_remark(f"scores of further metrics are printed, but not kept: {errors[0]}")
    return of_runs


def tokenizer_of(scores: Mapping[str, Any]) -> str:
    """Return the tokenizer by which the BLEU of a test set was computed, without its version."""
    tokenizer = re.search(r"\|tok:(..-mecab|[^|]+)", scores.get("bleu_signature", ""))
    return tokenizer[1] if tokenizer else ""


def _other_bleu(record: Mapping[str, Any], named: str | None) -> list[_Identified]:
    """Return BLEU by the named tokenizer, or that of the language, unless the record has it."""
    tokenizer = named or bleu_tokenizer(record.get("corpus", {}).get("tgt", ""))
    if all(tokenizer_of(scores) in ("", tokenizer) for scores in record.get("test", {}).values()):
        return []
    return [_Identified(Choice(name="bleu", options={"tokenize": tokenizer}))]


def _with_scores(
    record: dict[str, Any],
    metrics: Sequence[_Identified],
    test_sets: Callable[[], Mapping[str, Bitext]],
    store: Store,
    errors: list[StoreError],
) -> dict[str, Any]:
    """Return a record with its scores; append to ``errors`` why these cannot be stored."""
    folder = store.path(record["hash"])
    stored = before = _read(folder / "metrics.json")
    tests: dict[str, dict[str, Any]] = {}
    for name, scores in record.get("test", {}).items():
        tests[name] = dict(scores)
        for metric in metrics:
            of_file = record.get("files", {}).get(translations_file(name), {})
            key = f"{name} {metric.key} {str(of_file.get('sha256', ''))[:16]}".rstrip()
            if key not in stored or metric.files not in ("", stored[key].get("files")):
                lines = store.translations(record, name)
                if lines is None:
                    file = folder / translations_file(name)
                    reason = "No such file or directory; --fresh makes it"
                    raise StoreError(f"{file}: cannot be read: {reason}")
                bitext, built = test_sets()[name], build(Metric, metric.choice, at="metrics")
                part = lookup(Metric.slot, metric.choice.name)
                try:
                    with watched([part] if part.origin else []):
                        score = float(built.score_by_all(bitext.src, lines, bitext.references))
                except (OSError, ValueError, TypeError) as error:
                    raise SpecError(f"metrics: {metric.choice.name}: {error}") from error
                entry = {"score": score, "signature": built.signature()}
                stored = {**stored, key: entry | ({"files": metric.files} if metric.files else {})}
            tests[name][metric.choice.name] = stored[key]["score"]
            tests[name][f"{metric.choice.name}_signature"] = stored[key]["signature"]
    if stored != before:
        try:
            write_whole(folder / "metrics.json", json.dumps(stored, indent=1) + "\n")
        except StoreError as error:
            errors.append(error)
    return {**record, "test": tests}


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _read(path: Path) -> dict[str, Any]:
    with readable(path):
        try:
            content = json.loads(path.read_bytes())
            return {key: dict(entry) for key, entry in content.items() if "score" in entry}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError):
            text = f"{path}: damaged; what it held is computed again"
            warnings.warn(text, DamagedFileWarning, stacklevel=2)
            return {}
