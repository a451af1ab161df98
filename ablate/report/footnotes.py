"""The footnotes of a table: what a reader needs to trust its numbers, or to repeat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ablate.analysis import Record, Records, Summary
from ablate.report.budget import budget
from ablate.report.cells import Footnote
from ablate.report.execution import execution
from ablate.report.intervals import exceptions, intervals
from ablate.report.measures import DIVERGED, PARTIAL, measure_name, sets_of_zeros
from ablate.report.results import DECODE_SPEED, MEMORY, TRAIN_SPEED, Results
from ablate.wording import and_list, counted, listed, seeds_named

_MOST_CHARACTERS = 300  # of an error message


def footnotes(results: Results, choices: Iterable[Footnote] = ()) -> Iterator[Footnote]:
    """Yield the remarks in the order in which a reader needs them.

    Args:
        results: of the experiment.
        choices: on the values that were matched or tuned.
    """
    summaries = results.summaries
    yield from intervals(results)
    if line := budget(summaries):
        yield Footnote("budget", line)
    yield from choices
    yield from exceptions(results)
    yield from _partial(results)
    yield from _reasons(summaries)
    yield from execution(results.records)
    yield Footnote("seed" if len(results.seeds) == 1 else "seeds", listed(results.seeds))
    yield from _signatures(results)
    if results.published:
        yield Footnote("published", results.published.source)
        if results.published.note:
            yield Footnote("published, note", results.published.note)
    yield from _columns(results)
    yield from provenance(results.records)


def _partial(results: Results) -> Iterator[Footnote]:
    summaries = results.summaries
    some = [summary for summary in summaries if not summary.is_complete and summary.count("done")]
    if some:
        of_rows = "; ".join(f"{summary.name}: {listed(_done(summary))}" for summary in some)
        differences = ""
        if _are_by_least_squares(results, some):
            differences = (
                "; the differences of rows that miss seeds are by least squares, which allow for "
                "the seeds' effects on the other rows"
            )
        yield Footnote(
            PARTIAL,
            f"not over all seeds: means are over the runs that are done ({of_rows}){differences}.",
        )
    diverged = [s.name for s in summaries if s.count("diverged")]
    if diverged:
        verdict = "no row has a verdict"
        if results.has_verdicts:
            verdict = "the verdict is how many seeds the row won of those that both have"
        yield Footnote(
            DIVERGED,
            f"{listed(diverged)}: a row with diverged seeds has no interval, for the seeds that "
            "did not diverge are a selection. A marked difference counts a divergence as 0, be it "
            f"the row's or the baseline's, and {verdict}.",
        )
    missing = [f"{s.name}: {s.count('missing')}" for s in summaries if s.count("missing")]
    if missing:
        yield Footnote("missing runs", "; ".join(missing))


def _are_by_least_squares(results: Results, partial: Sequence[Summary]) -> bool:
    """Return whether some row is compared by least squares that misses seeds itself.

    All rows do so where the baseline does.
    """
    names = {row.name for row in partial}
    is_of_all = results.baseline.name in names
    return any(
        each.method in ("two-way", "moderated") and (is_of_all or row in names)
        for compared in results.comparisons.values()
        for row, each in compared.differences.items()
    )


def _reasons(summaries: Sequence[Summary]) -> Iterator[Footnote]:
    for summary in summaries:
        reasons: dict[tuple[str, str], list[int]] = {}
        for seed, reason in summary.errors.items():
            reasons.setdefault((summary.outcomes[seed], reason), []).append(seed)
        for (status, reason), seeds in reasons.items():
            word = "out of memory" if status == "oom" else status
            label = f"{summary.name}, {seeds_named(seeds)}"
            yield Footnote(label, f"{word}: {_shortened(reason)}")


def _signatures(results: Results) -> Iterator[Footnote]:
    for metric, signature in results.signatures.items():
        is_column = metric != "chrf" or metric in results.metrics
        also = "" if is_column else " (in the CSV and the JSON)"
        yield Footnote(measure_name(metric), f"{signature}{also}")


def provenance(records: Records) -> Iterator[Footnote]:
    """Yield where the numbers of some records come from."""
    for label, describe in PROVENANCE.items():
        if text := _counted_texts(records, describe):
            yield Footnote(label, text)


def _columns(results: Results) -> Iterator[Footnote]:
    summaries = results.summaries
    known = {key for summary in summaries for key in summary.metrics}
    has_ppl = "dev.nll" in known and results.has_one_tokenizer
    texts = ["ppl is exp of the mean NLL per target token"] if has_ppl else []
    if TRAIN_SPEED in known:
        texts.append(f"train and decode are speeds over the baseline's{_speeds(results.baseline)}")
    if MEMORY in known:
        texts.append("memory is the peak of training")
    if not results.has_one_tokenizer:
        texts.append(
            "tokenizers differ, so that losses are compared in bits per character of the "
            "references and not per token"
        )
    if zeros := sets_of_zeros(results):
        texts.append(f"BLEU on {and_list(zeros)} is 0 in all rows (in the CSV and the JSON)")
    if texts:
        yield Footnote("columns", "; ".join(texts))
    without_ratio = [
        row.name
        for row in summaries[1:]
        if TRAIN_SPEED in row.speeds and row.speeds[TRAIN_SPEED].ratio is None
    ]
    if without_ratio and TRAIN_SPEED in results.baseline.metrics:
        text = "not measured by turns with the baseline, but when the machine may have been faster"
        yield Footnote(
            "speed", f"{listed(without_ratio)}: {text} or slower, so that there is no ratio"
        )


def _speeds(baseline: Summary) -> str:
    """Return how fast the baseline is, and how that was measured."""
    train, decode = baseline.speeds.get(TRAIN_SPEED), baseline.speeds.get(DECODE_SPEED)
    if train is None or decode is None:
        return ""
    return (
        f" ({train.value:,.0f} target tokens and {decode.value:,.0f} sentences per "
        f"second), each row alone on its device, by median polish of {counted(train.n, 'round')} "
        "in which the rows took turns; in brackets the 95% interval of the ratio by itself"
    )


def _corpus(record: Record) -> str:
    corpus = record.get("corpus")
    if not corpus:
        return ""
    text = f"{corpus['name']}, {corpus['src']} → {corpus['tgt']}"
    n_train, fingerprint = corpus.get("n_train"), corpus.get("fingerprint")
    text += f", {counted(n_train, 'training pair')}" if n_train else ""
    return text + (f", content {fingerprint[:12]}" if fingerprint else "")


def _notes(record: Record) -> str:
    return "; ".join(record.get("corpus", {}).get("notes") or ())


def _tokenizer(record: Record) -> str:
    tokenizer = record.get("tokenizer")
    if not tokenizer:
        return ""
    name = record.get("spec", {}).get("tokenizer", {}).get("name", "")
    sizes = f"{tokenizer['n_src']:,} source and {tokenizer['n_tgt']:,} target entries"
    return f"{f'{name}, ' if name else ''}{sizes}, content {tokenizer['fingerprint'][:12]}"


def _hardware(record: Record) -> str:
    hardware = record.get("hardware")
    if not hardware:
        return ""
    name = hardware.get("device_name") or hardware.get("cpu") or ""
    words = [hardware.get("device", ""), name if name != hardware.get("device") else ""]
    if hardware.get("device") != "cpu" and hardware.get("cpu"):
        words.append(f"host {hardware['cpu']}")
    if hardware.get("threads"):
        words.append(counted(hardware["threads"], "thread"))
    if (n := record.get("spec", {}).get("devices_per_run", 1)) > 1:
        words.append(f"{n} devices per run")
    return ", ".join(word for word in words if word)


def _software(record: Record) -> str:
    versions = " · ".join(
        f"{name} {version}" for name, version in record.get("versions", {}).items()
    )
    precision = record.get("spec", {}).get("training", {}).get("precision", "")
    engine = f"{record['engine']} engine" if record.get("engine") else ""
    if record.get("engine_note"):
        engine += f" ({record['engine_note']})"
    details = ", ".join(word for word in (engine, precision) if word)
    return "; ".join(text for text in (versions, details) if text)


def _commit(record: Record) -> str:
    git = record.get("git") or {}
    if not git.get("commit"):
        return ""
    dirty = "" if git.get("is_clean") else " with changes that were not committed"
    return f"{git['commit'][:12]}{dirty}"


def _counted_texts(records: Records, describe: Callable[[Record], str]) -> str:
    """Return the description of the records; where these differ, each with its number of runs."""
    texts = Counter(text for record in records.values() if (text := describe(record)))
    if len(texts) <= 1:
        return "".join(texts)
    return "; ".join(f"{text} ({counted(n, 'run')})" for text, n in texts.items())


def _done(summary: Summary) -> list[int]:
    return [seed for seed, status in summary.outcomes.items() if status == "done"]


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} …"


PROVENANCE: dict[str, Callable[[Record], str]] = {
    "corpus": _corpus,
    "note": _notes,
    "tokenizer": _tokenizer,
    "hardware": _hardware,
    "software": _software,
    "commit": _commit,
}
"""Functions that describe where a record comes from, by the label of the footnote."""
