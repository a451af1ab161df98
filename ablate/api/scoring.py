"""Metrics beyond BLEU and chrF: computed from the stored translations, and stored with them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ablate.api.console import print_remark
from ablate.api.selecting import Records
from ablate.data.corpus import Bitext, Corpus
from ablate.errors import DamagedFileWarning, SpecError, StoreError
from ablate.hashing import digest
from ablate.parts.metric import Metric
from ablate.registry import Choice, build, lookup
from ablate.store import Store, verify, write_whole

_IN_RECORDS = ("bleu", "chrf")
"""The metrics that every record holds."""


def scored(records: Records, corpus: Choice, metrics: Sequence[Choice], store: Store) -> Records:
    """Return records with the scores of further metrics, each computed once.

    A score is stored in ``metrics.json`` in the folder of the run. Its key is the hash of the
    metric with its options and code, and that of the translations, so that nothing is trained or
    translated again. Where it cannot be written, as in a read-only folder, a remark says so.

    Args:
        records: of an experiment.
        corpus: of all its rows.
        metrics: as the experiment names them.
        store: holds the translations.

    Raises:
        SpecError: if a metric refuses its options or texts.
        StoreError: if translations are missing.
    """
    choices = [choice for choice in metrics if choice.name not in _IN_RECORDS]
    if not choices:
        return records
    test_sets = cache(lambda: build(Corpus, corpus, at="corpus").load().tests)
    errors: list[StoreError] = []
    of_runs = {
        run: _with_scores(record, choices, test_sets, store, errors)
        for run, record in records.items()
    }
    if errors:
        print_remark(f"scores of further metrics are printed, but not kept: {errors[0]}")
    return of_runs


def _with_scores(
    record: dict[str, Any],
    metrics: Sequence[Choice],
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
        for choice in metrics:
            key = f"{name} {_key(choice)} {_hash_of_translations(record, name)}".rstrip()
            if key not in stored:
                path = folder / f"hypotheses.{name}.txt"
                verify(path, record)
                stored = {**stored, key: _score(choice, path, test_sets()[name])}
            tests[name] |= {choice.name: stored[key]["score"]}
            tests[name] |= {f"{choice.name}_signature": stored[key]["signature"]}
    if stored != before:
        try:
            write_whole(folder / "metrics.json", json.dumps(stored, indent=1) + "\n")
        except StoreError as error:
            errors.append(error)
    return {**record, "test": tests}


def _score(choice: Choice, path: Path, bitext: Bitext) -> dict[str, Any]:
    try:
        hypotheses = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}; --fresh makes it") from error
    metric = build(Metric, choice, at="metrics")
    try:
        score = float(metric.score(bitext.src, hypotheses, bitext.tgt))
    except (OSError, ValueError, TypeError) as error:
        raise SpecError(f"metrics: {choice.name}: {error}") from error
    return {"score": score, "signature": metric.signature()}


def _key(choice: Choice) -> str:
    """Return 16 hex digits for a metric with its options, version and code."""
    entry = lookup("metric", choice.name)
    code = entry.origin.identity if entry.origin else ""
    plain = json.dumps(choice.model_dump(mode="json"), sort_keys=True)
    return digest([plain, str(entry.version), code])[:16]


def _hash_of_translations(record: Mapping[str, Any], test: str) -> str:
    """Return the beginning of the hash that a record has of a file; empty if it has none."""
    digests = record.get("files", {}).get(f"hypotheses.{test}.txt", {})
    return str(digests.get("sha256", ""))[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        return {key: dict(entry) for key, entry in content.items() if "score" in entry}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, AttributeError, TypeError):
        text = f"{path}: damaged; what it held is computed again"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        return {}
