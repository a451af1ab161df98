"""Metrics beyond BLEU and chrF: computed from the stored translations, and stored with them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ablate.api.corpora import text_of_runs
from ablate.api.remarks import print_remark
from ablate.api.selection import Records
from ablate.data.corpus import Bitext
from ablate.errors import DamagedFileWarning, SpecError, StoreError
from ablate.hashing import digest, sha256_of_file
from ablate.parts.metric import Metric
from ablate.registry import Choice, build, lookup
from ablate.store import Store, readable, translations_file, write_whole

_IN_RECORDS = ("bleu", "chrf")
"""The metrics that every record holds."""


@dataclass(frozen=True)
class _Identified:
    """A metric, and what says whether a stored score is its.

    Attributes:
        choice: the metric with its options.
        key: 16 hex digits for the options, the version and the code.
        files: the hash of the files that the options name, as of weights; empty if they name none,
            or if one cannot be read, as where only scores are at hand.
    """

    choice: Choice
    key: str
    files: str

    @classmethod
    def of(cls, choice: Choice) -> _Identified:
        return cls(choice, _key(choice), _hash_of_files(choice))

    def has(self, entry: Mapping[str, Any]) -> bool:
        """Whether a stored score under the key is of these files, as far as they are known."""
        return self.files in ("", entry.get("files"))


def scored(records: Records, corpus: Choice, metrics: Sequence[Choice], store: Store) -> Records:
    """Return records with the scores of further metrics, each computed once.

    A score is stored in ``metrics.json`` in the folder of the run. Its key is the hash of the
    metric with its options and code, and that of the translations, so that nothing is trained or
    translated again. It is computed anew if a file that the options name has other content. Where
    it cannot be written, as in a read-only folder, a remark says so.

    Args:
        records: of an experiment.
        corpus: of all its rows.
        metrics: as the experiment names them.
        store: holds the translations.

    Raises:
        SpecError: if a metric refuses its options or texts.
        StoreError: if translations are missing.
        DataError: if the corpus is unavailable, or has another content than the runs have read.
    """
    further = [_Identified.of(choice) for choice in metrics if choice.name not in _IN_RECORDS]
    if not further:
        return records
    test_sets = cache(lambda: text_of_runs(corpus, records.values()).tests)
    errors: list[StoreError] = []
    of_runs = {
        run: _with_scores(record, further, test_sets, store, errors)
        for run, record in records.items()
    }
    if errors:
        print_remark(f"scores of further metrics are printed, but not kept: {errors[0]}")
    return of_runs


def _with_scores(
    record: dict[str, Any],
    metrics: Sequence[_Identified],
    test_sets: Callable[[], Mapping[str, Bitext]],
    store: Store,
    errors: list[StoreError],
) -> dict[str, Any]:
    """Return a record with its scores; append to ``errors`` why these cannot be stored."""
    if record["status"] != "done":
        return record
    folder = store.path(record["hash"])
    stored = before = _read(folder / "metrics.json")
    tests: dict[str, dict[str, Any]] = {}
    for name, scores in record.get("test", {}).items():
        tests[name] = dict(scores)
        for metric in metrics:
            key = f"{name} {metric.key} {_hash_of_translations(record, name)}".rstrip()
            if key not in stored or not metric.has(stored[key]):
                translations = _translations(store, record, name)
                stored = {**stored, key: _score(metric, translations, test_sets()[name])}
            tests[name] |= {metric.choice.name: stored[key]["score"]}
            tests[name] |= {f"{metric.choice.name}_signature": stored[key]["signature"]}
    if stored != before:
        try:
            write_whole(folder / "metrics.json", json.dumps(stored, indent=1) + "\n")
        except StoreError as error:
            errors.append(error)
    return {**record, "test": tests}


def _translations(store: Store, record: Mapping[str, Any], test_set: str) -> list[str]:
    lines = store.translations(record, test_set)
    if lines is None:
        file = store.path(record["hash"]) / translations_file(test_set)
        raise StoreError(f"{file}: cannot be read: No such file or directory; --fresh makes it")
    return lines


def _score(identified: _Identified, hypotheses: Sequence[str], bitext: Bitext) -> dict[str, Any]:
    choice = identified.choice
    metric = build(Metric, choice, at="metrics")
    try:
        score = float(metric.score(bitext.src, hypotheses, bitext.tgt))
    except (OSError, ValueError, TypeError) as error:
        raise SpecError(f"metrics: {choice.name}: {error}") from error
    files = {"files": identified.files} if identified.files else {}
    return {"score": score, "signature": metric.signature(), **files}


def _key(choice: Choice) -> str:
    """Return 16 hex digits for a metric with its options, version and code."""
    entry = lookup("metric", choice.name)
    code = entry.origin.identity if entry.origin else ""
    plain = json.dumps(choice.model_dump(mode="json"), sort_keys=True)
    return digest([plain, str(entry.version), code])[:16]


def _hash_of_files(choice: Choice) -> str:
    """Return the hash of the files that options name; empty if one, or all, are missing."""
    options = sorted(lookup("metric", choice.name).file_paths)
    paths = [path for option in options for path in _texts(choice.options[option])]
    try:
        return digest(sha256_of_file(Path(path)) for path in paths) if paths else ""
    except (OSError, ValueError):  # ValueError: has a NUL
        return ""


def _texts(value: object) -> Iterator[str]:
    """Yield the texts in a value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | Sequence):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _hash_of_translations(record: Mapping[str, Any], test: str) -> str:
    """Return the beginning of the hash that a record has of a file; empty if it has none."""
    digests = record.get("files", {}).get(translations_file(test), {})
    return str(digests.get("sha256", ""))[:16]


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
