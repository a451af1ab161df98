"""What stands under the table: all that one must know to trust a number in it, or to repeat it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ablate.analysis import Record, Records, Summary, pooled_sd, smallest_detectable
from ablate.config import Published
from ablate.report.cells import Footnote
from ablate.report.execution import execution
from ablate.report.measures import PARTIAL
from ablate.report.numbers import MINUS, number, quantity

_SPEED = "speed.train_target_tokens_per_second"
_MOST_REASON = 300  # characters of an error message that a footnote has room for


def footnotes(
    summaries: Sequence[Summary],
    sets: Sequence[str],
    records: Records,
    published: Published | None = None,
) -> Iterator[Footnote]:
    """Yield the remarks in the order in which a reader needs them.

    Args:
        summaries: the rows, baseline first.
        sets: the test sets, the compared one first.
        records: of these rows and no others.
        published: numbers of others.
    """
    yield from _partial(summaries)
    yield from _reasons(summaries)
    yield from execution(records)
    yield _seeds(summaries)
    if sets:
        yield from _comparison(summaries, sets[0])
        yield from _signatures(records)
    if published:
        yield Footnote("published", published.source)
        if published.note:
            yield Footnote("published, note", published.note)
    yield from _columns(summaries)
    yield from _provenance(records)


def _partial(summaries: Sequence[Summary]) -> Iterator[Footnote]:
    some = [summary for summary in summaries if not summary.is_complete and summary.count("done")]
    if some:
        of_rows = "; ".join(f"{summary.name}: {_list(_done(summary))}" for summary in some)
        yield Footnote(
            PARTIAL,
            f"not over all seeds: means are over the runs that are done ({of_rows}), differences "
            "over the seeds that the baseline has too.",
        )


def _reasons(summaries: Sequence[Summary]) -> Iterator[Footnote]:
    for summary in summaries:
        reasons: dict[tuple[str, str], list[int]] = {}
        for seed, reason in summary.errors.items():
            reasons.setdefault((summary.outcomes[seed], reason), []).append(seed)
        for (status, reason), seeds in reasons.items():
            word = "out of memory" if status == "oom" else status
            where = f"seed{'s' if len(seeds) > 1 else ''} {_list(seeds)}"
            yield Footnote(f"{summary.name}, {where}", f"{word}: {_short(reason)}")


def _seeds(summaries: Sequence[Summary]) -> Footnote:
    seeds = list(summaries[0].outcomes)
    if len(seeds) == 1:
        return Footnote(
            "seed",
            f"{seeds[0]}, and no other: without a second one there is no standard deviation, "
            "and no difference can be told from chance.",
        )
    return Footnote(
        "seeds",
        f"{_list(seeds)}. ± is the sample standard deviation over them (n {MINUS} 1), not an error "
        "of the mean.",
    )


def _comparison(summaries: Sequence[Summary], test_set: str) -> Iterator[Footnote]:
    found = [summary.differences.get(f"test.{test_set}.bleu") for summary in summaries[1:]]
    differences = [difference for difference in found if difference is not None]
    if not differences:
        return
    text = f"BLEU on {test_set} less the baseline's with the same seed, averaged over seeds."
    sd = pooled_sd(differences)
    if sd is not None and math.isfinite(sd):
        n = len(summaries[0].outcomes)
        least = number(smallest_detectable(sd, n), 2)
        text += (
            " The 95% interval is Student's t of these paired differences, which is about seeds "
            f"and not about test sentences. With {quantity(n, 'seed')} a two-sided paired t-test "
            f"at 5% finds a true difference of {least} BLEU in 4 cases of 5 (one comparison by "
            f"itself; pooled standard deviation of the differences {number(sd, 2)})."
        )
    yield Footnote("ΔBLEU", text)


def _signatures(records: Records) -> Iterator[Footnote]:
    names = {"bleu": "BLEU", "bleu_lc_tok": "BLEU lc tok", "chrf": "chrF"}
    for metric, name in names.items():
        found = dict.fromkeys(
            scores[f"{metric}_signature"]
            for record in records.values()
            for scores in record.get("test", {}).values()
            if scores.get(f"{metric}_signature")
        )
        if found:
            also = " (in the CSV and the JSON)" if metric == "chrf" else ""
            yield Footnote(name, f"{'; '.join(found)}{also}")


def _provenance(records: Records) -> Iterator[Footnote]:
    for label, tell in (
        ("corpus", _corpus),
        ("note", _notes),
        ("tokenizer", _tokenizer),
        ("hardware", _hardware),
        ("software", _software),
        ("commit", _commit),
    ):
        if text := _told(records, tell):
            yield Footnote(label, text)


def _columns(summaries: Sequence[Summary]) -> Iterator[Footnote]:
    said = {
        "dev.perplexity": "ppl is exp of the dev NLL per target token",
        _SPEED: "train is in target tokens and decode in sentences per second, each row alone on "
        f"its device{_by_turns(summaries)}",
        "memory.train_peak_mib": "memory is the peak of training",
    }
    told = [text for key, text in said.items() if any(key in s.metrics for s in summaries)]
    if told:
        yield Footnote("columns", "; ".join(told))
    apart = [s.name for s in summaries[1:] if _SPEED in s.rounds and _SPEED not in s.ratios]
    if apart and _SPEED in summaries[0].metrics:
        text = "not measured by turns with the baseline, but when the machine may have been faster"
        yield Footnote("speed", f"{_list(apart)}: {text} or slower")


def _by_turns(summaries: Sequence[Summary]) -> str:
    n_rounds = sorted({s.rounds[_SPEED].n for s in summaries if _SPEED in s.rounds})
    if not n_rounds:
        return ""
    n = " to ".join(map(str, dict.fromkeys((n_rounds[0], n_rounds[-1]))))
    return (
        f": medians of {n} rounds in which the rows took turns, and of the rounds' ratios to the "
        "baseline, each ± its standard deviation over the rounds"
    )


def _corpus(record: Record) -> str:
    corpus = record.get("corpus")
    if not corpus:
        return ""
    text = f"{corpus['name']}, {corpus['src']} → {corpus['tgt']}"
    n_train, print_ = corpus.get("n_train"), corpus.get("fingerprint")
    text += f", {quantity(n_train, 'training pair')}" if n_train else ""
    return text + (f", content {print_[:12]}" if print_ else "")


def _notes(record: Record) -> str:
    return "; ".join(record.get("corpus", {}).get("notes") or ())


def _tokenizer(record: Record) -> str:
    found = record.get("tokenizer")
    if not found:
        return ""
    chosen = record.get("spec", {}).get("tokenizer", {}).get("name", "")
    sizes = f"{found['n_src']:,} source and {found['n_tgt']:,} target entries"
    return f"{f'{chosen}, ' if chosen else ''}{sizes}, content {found['fingerprint'][:12]}"


def _hardware(record: Record) -> str:
    found = record.get("hardware")
    if not found:
        return ""
    named = found.get("device_name") or found.get("cpu") or ""
    words = [found.get("device", ""), named if named != found.get("device") else ""]
    if found.get("device") != "cpu" and found.get("cpu"):
        words.append(f"host {found['cpu']}")
    if found.get("threads"):
        words.append(quantity(found["threads"], "thread"))
    return ", ".join(word for word in words if word)


def _software(record: Record) -> str:
    versions = " · ".join(
        f"{name} {version}" for name, version in record.get("versions", {}).items()
    )
    precision = record.get("spec", {}).get("training", {}).get("precision", "")
    engine = f"{record['engine']} engine" if record.get("engine") else ""
    if record.get("engine_note"):
        engine += f" ({record['engine_note']})"
    how = ", ".join(word for word in (engine, precision) if word)
    return "; ".join(text for text in (versions, how) if text)


def _commit(record: Record) -> str:
    git = record.get("git") or {}
    if not git.get("commit"):
        return ""
    dirty = "" if git.get("is_clean") else " with changes that were not committed"
    return f"{git['commit'][:12]}{dirty}"


def _told(records: Records, tell: Callable[[Record], str]) -> str:
    """Return what ``tell`` says of the records; where they differ, how many say what."""
    told = Counter(text for record in records.values() if (text := tell(record)))
    if len(told) <= 1:
        return "".join(told)
    return "; ".join(f"{text} ({quantity(n, 'run')})" for text, n in told.items())


def _done(summary: Summary) -> list[int]:
    return [seed for seed, status in summary.outcomes.items() if status == "done"]


def _list(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items))


def _short(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST_REASON else f"{line[:_MOST_REASON]} …"
