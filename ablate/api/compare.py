"""``ablate compare``: two sets of results, row by row."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sacrebleu.metrics.chrf import CHRF

from ablate.analysis.summary import have_one_tokenizer
from ablate.analysis.two_tables import compare_matched
from ablate.api.corpora import text_of_runs
from ablate.api.result_sets import ResultRow, ResultSet, read_result_set, scored_set
from ablate.config import Negligible
from ablate.data.corpus import Bitext
from ablate.errors import DamagedFileWarning, DataError, SpecError, StoreError
from ablate.record import Scores
from ablate.registry import Choice
from ablate.report.comparison import (
    Compared,
    Differing,
    MatchedBy,
    MatchedRow,
    TranslationDifferences,
)
from ablate.store import Store, translations_file

_COMPARED = ("bleu", "bleu_lc_tok", "chrf", "exact_match", "nll", "bits_per_character")
_COSTS = ("params.", "flops.", "speed.", "memory.")

Pair = tuple[ResultRow, ResultRow, MatchedBy]
_V = TypeVar("_V")


def compare(
    before: str | Path,
    after: str | Path,
    spec: str | Path | None = None,
    *,
    results: Path | str = "results",
    n_sentences: int = 5,
) -> Compared:
    """Compare two experiments, two folders of results, or two commits of one experiment's tables.

    Rows are matched by their whole spec; else by what they change of their baseline; else by name.
    Further metrics are those that either experiment names, with the options of ``after`` where both
    do, and those that tables hold.

    Args:
        before: the file or name of an experiment; a folder of results; or ``experiment@commit``,
            the tables that git holds.
        after: likewise.
        spec: the experiment of which folders are compared; all of their runs unless given.
        results: the folder of the results of experiments, and of their tables in git.
        n_sentences: how many of the sentences are shown whose translations differ most.

    Raises:
        SpecError: if a name is none of these; with every mistake of an experiment; if a metric
            refuses its options or texts.
        StoreError: if nothing is stored of one, or they have no row in common.
    """
    spec_name = None if spec is None else str(spec)
    sides = [read_result_set(str(name), spec_name, Path(results)) for name in (before, after)]
    experiments = [side.experiment for side in sides if side.experiment]
    metrics = {m.name: m for each in experiments for m in each.metrics}
    bleu = {"bleu": metrics.pop("bleu")} if "bleu" in metrics else {}
    sides = [scored_set(side, list((bleu | metrics).values())) for side in sides]
    pairs = _matched(sides[0].rows, sides[1].rows)
    if not pairs:
        a, b = (", ".join(row.name for row in side.rows) for side in sides)
        raise StoreError(
            f"{before} and {after} have no row in common, neither by spec nor by changes nor by "
            f"name: the rows are {a}; and {b}"
        )
    measured = (m.split(".") for a, b, _ in pairs for m in (*a.samples, *b.samples))
    of_tests = (path[-1] for path in measured if path[0] == "test")
    further = (kind for kind in of_tests if kind not in (*_COMPARED, *Scores.__annotations__))
    names = list(dict.fromkeys((*metrics, *further)))
    ways = _pairs(sides[0].scorings, sides[1].scorings)
    apart = {metric: both for metric, both in ways.items() if both[0] != both[1]}
    rows = _rows(pairs, names, apart)
    unmatched = [
        [row.name for row in side.rows if all(row is not pair[n] for pair in pairs)]
        for n, side in enumerate(sides)
    ]
    paths = (metric.split(".") for row in rows for metric in row.samples)
    test_sets = list(dict.fromkeys(path[1] for path in paths if path[0] == "test"))
    notes = _pairs(sides[0].provenance, sides[1].provenance)
    if all(a.records and b.records for a, b, _ in pairs):
        has_one_tokenizer = all(have_one_tokenizer(_records([pair])) for pair in pairs)
    else:
        has_one_tokenizer = len(set(notes.get("tokenizer", ("",)))) == 1
    return Compared(
        labels=(str(before), str(after)),
        rows=rows,
        unmatched=(unmatched[0], unmatched[1]),
        provenance=notes,
        negligible=experiments[-1].negligible if experiments else Negligible(),
        sentences=_sentences(sides, pairs, test_sets, n_sentences),
        test_sets=test_sets,
        metrics=names,
        has_one_tokenizer=has_one_tokenizer,
        scored_apart=apart,
    )


def _matched(before: Sequence[ResultRow], after: Sequence[ResultRow]) -> list[Pair]:
    """Return the rows of both sides in the order of the first."""

    def text(content: Mapping[str, Any] | None, context: str | None = None) -> str | None:
        return None if content is None else json.dumps([context, content], sort_keys=True)

    matches: dict[int, tuple[int, MatchedBy]] = {}
    keys: tuple[tuple[MatchedBy, Callable[[ResultRow], str | None]], ...] = (
        ("spec", lambda row: text(row.spec)),
        ("changes", lambda row: text(_changes(row, of_its_name=True))),
        ("changes", lambda row: text(_changes(row), row.context)),
        ("changes", lambda row: text(row.changes, row.context)),
        ("changes", lambda row: text(_changes(row))),
        ("changes", lambda row: text(row.changes)),
        ("name", lambda row: row.name),
    )
    for matched_by, key in keys:
        matched = {n for n, _ in matches.values()}
        free = {key(row): n for n, row in reversed(list(enumerate(after))) if n not in matched}
        for n, row in enumerate(before):
            row_key = key(row)
            if n not in matches and row_key is not None and row_key in free:
                matches[n] = (free.pop(row_key), matched_by)
    return [(before[n], after[matches[n][0]], matches[n][1]) for n in sorted(matches)]


def _pairs(before: Mapping[str, _V], after: Mapping[str, _V]) -> dict[str, tuple[_V, _V]]:
    """Return both values of every key that both mappings have."""
    return {key: (before[key], after[key]) for key in before if key in after}


def _changes(row: ResultRow, *, of_its_name: bool = False) -> dict[str, Any] | None:
    """Return the values in which a row differs from its baseline, by path; None if unknown.

    ``of_its_name`` adds the experiment and the row that trained it, as its first record has them.
    """
    if row.spec is None or row.base is None:
        return None
    first = next(iter(row.records.values())) if of_its_name else {}
    names = {key: first[key] for key in ("experiment", "variant") if key in first}
    return names | {path: value for path, (_, value) in _differences(row.base, row.spec)}


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], path: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the paths at which two specs differ, with both values; another part is one value."""
    for key in dict.fromkeys((*before, *after)):
        values: tuple[Any, Any] = (before.get(key), after.get(key))
        old, new = values
        are_mappings = isinstance(old, Mapping) and isinstance(new, Mapping)
        if are_mappings and old.get("name") == new.get("name"):
            yield from _differences(old, new, f"{path}{key}.")
        elif old != new:
            yield f"{path}{key}", values


def _rows(
    pairs: Sequence[Pair], further: Sequence[str], apart: Collection[str]
) -> list[MatchedRow]:
    """Compare the rows; test scores in ``apart`` were computed in two ways, and are left out."""
    samples = {
        a.name: {m: v for m, v in _pairs(a.samples, b.samples).items() if _last(m) not in apart}
        for a, b, _ in pairs
    }
    whole = {
        a.name: samples[a.name]
        for a, b, _ in pairs
        if not a.outcomes.get("diverged") and not b.outcomes.get("diverged")
    }
    compared = {
        metric: compare_matched({n: own[metric] for n, own in whole.items() if metric in own})
        for metric in dict.fromkeys(metric for own in samples.values() for metric in own)
        if _last(metric) in (*_COMPARED, *further)
    }
    return [
        MatchedRow(
            names=(a.name, b.name),
            matched_by=matched_by,
            spec=dict(_differences(a.spec, b.spec)) if a.spec and b.spec else {},
            samples={m: both for m, both in own.items() if m in compared or m.startswith(_COSTS)},
            shifts={m: shifts[a.name] for m, shifts in compared.items() if a.name in shifts},
            outcomes=(dict(a.outcomes), dict(b.outcomes)),
        )
        for (a, b, matched_by), own in zip(pairs, samples.values(), strict=True)
    ]


def _last(metric: str) -> str:
    return metric.rpartition(".")[2]


def _sentences(
    sides: Sequence[ResultSet], pairs: Sequence[Pair], test_sets: Sequence[str], n: int
) -> TranslationDifferences:
    before, after = sides
    if before.store is None or after.store is None:
        return TranslationDifferences(note="tables hold none; compare two folders of results")
    corpora = {record.get("corpus", {}).get("fingerprint") for record in _records(pairs)}
    if not test_sets or len(corpora - {None}) > 1:  # a failed run may have none
        reason = "the corpora differ" if test_sets else "no row is tested on both sides"
        return TranslationDifferences(note=f"not compared, for {reason}")
    first = next(iter(pairs[0][0].records.values()))
    try:
        options = dict(first["spec"]["corpus"])
        choice = Choice(name=options.pop("name"), options=options)
        corpus = text_of_runs(choice, _records(pairs))
    except (DataError, SpecError, KeyError, TypeError, ValueError) as error:
        return TranslationDifferences(note=f"not compared, for the text is not at hand: {error}")
    texts = corpus.tests[test_sets[0]]
    n_pairs, differing = 0, []
    for a, b, _ in pairs:
        for seed in sorted(a.records.keys() & b.records.keys()):
            ours, theirs = (
                _translations(store, row.records[seed], test_sets[0], len(texts))
                for store, row in ((before.store, a), (after.store, b))
            )
            if ours and theirs:
                n_pairs += len(ours)
                differing += list(_differing(b.name, seed, texts, ours, theirs))
    if not n_pairs:
        return TranslationDifferences(note="not compared, for no pair of runs has kept them")
    most = sorted(differing, key=lambda each: -abs(each.scores[1] - each.scores[0]))
    return TranslationDifferences(n_pairs, len(differing), most[:n])


def _translations(
    store: Store, record: Mapping[str, Any], test_set: str, n_lines: int
) -> list[str] | None:
    """Return the translations of a run; None if there are none or, with a warning, if damaged."""
    try:
        lines = store.translations(record, test_set)
    except StoreError:
        lines = []
    if lines is None or len(lines) == n_lines:
        return lines
    file = store.path(record["hash"]) / translations_file(test_set)
    text = f"{file}: damaged, and not compared; `ablate run` makes the run again"
    warnings.warn(text, DamagedFileWarning, stacklevel=3)
    return None


def _records(pairs: Sequence[Pair]) -> Iterator[Mapping[str, Any]]:
    return (record for pair in pairs for row in pair[:2] for record in row.records.values())


def _differing(
    row: str, seed: int, texts: Bitext, ours: Sequence[str], theirs: Sequence[str]
) -> Iterator[Differing]:
    chrf = CHRF()
    lines = zip(texts.src, ours, theirs, *texts.references, strict=True)
    for number, (source, a, b, *references) in enumerate(lines, start=1):
        if a != b:
            one, other = (chrf.sentence_score(text, references).score for text in (a, b))
            yield Differing(row, seed, number, source, references, (a, b), (one, other))
