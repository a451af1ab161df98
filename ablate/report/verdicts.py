"""What the intervals and verdicts of a table come to: its conclusion, and how to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablate.analysis.comparison import Comparison
from ablate.analysis.dunnett import POWER
from ablate.analysis.measures import FLOOR, Verdict
from ablate.analysis.ranking import FALSE_SHARE, discoveries, selection_bias
from ablate.analysis.sequential import GIVE_UP
from ablate.report.columns import APART, SMALL
from ablate.report.results import Results
from ablate.report.table import Footnote
from ablate.report.values import (
    BLEU_DECIMALS,
    LOSS_DECIMALS,
    MOST_NAMES,
    grouped,
    measure_name,
    number,
    of_seeds,
    row_names,
)
from ablate.wording import and_list, counted

NO_ROWS = "There is nothing to compare: the table has no row but the baseline."

_BLEU = measure_name("bleu")
_MANY_ROWS = 20
_LEAST_BIAS = 0.05  # BLEU
_NOT_LEARNED = (
    f". The baseline's BLEU is below {FLOOR} times that band, as of a model that has hardly "
    "learned: no row is then said to make no difference."
)


def conclusion(results: Results) -> str:
    """Return in one sentence what the rows are, beside the baseline, by their verdicts."""
    if why := _why_none(results):
        return why
    by_bleu = _by_row(results, results.bleu)
    parts = _by_bleu(results, by_bleu)
    n_of = {row.name: len(row.outcomes) for row in results.summaries}
    diverged = grouped(((len(s), n_of[row]), row) for row, s in results.diverged.items())
    for (n, n_all), names in diverged.items():
        parts.append(f"{row_names(names, MOST_NAMES)} diverged with {of_seeds(n, n_all)}")
    others = [row.name for row in results.summaries[1:] if row.name not in results.diverged]
    if unjudged := [row for row in others if row not in by_bleu]:
        parts.append(f"{row_names(unjudged, MOST_NAMES)} cannot be compared")
    of_baseline, bleu = "", results.baseline_score(results.bleu)
    if bleu is not None and not results.has_learned:
        score = number(bleu, BLEU_DECIMALS)
        of_baseline = f", of which the baseline has too little to lose ({score})"
    return f"By BLEU on {results.sets[0]}{of_baseline}, {'; '.join(parts)}."


def _why_none(results: Results) -> str:
    """Return in one sentence why no row has a verdict; an empty text if one may have."""
    baseline, n_seeds = results.baseline, len(results.seeds)
    if len(results.summaries) == 1:
        return NO_ROWS
    if n_diverged := baseline.count("diverged"):
        of_all = counted(n_seeds, "seed")
        return f"The baseline diverged with {n_diverged} of {of_all}: no verdicts."
    if not baseline.count("done"):
        return "The baseline has no result yet: no row can be compared with it."
    if n_seeds == 1:
        return "With one seed no difference can be told from chance: no verdicts."
    waiting, compared = _awaited(results), results.comparison(results.bleu)
    if waiting and compared and not _n_intervals(compared):
        return f"There are no verdicts yet: {waiting}."
    return ""


def _by_bleu(results: Results, verdicts: Mapping[str, Verdict]) -> list[str]:
    less = f"from the baseline by less than {results.negligible.bleu:g} BLEU"
    texts = {
        Verdict.BETTER: ("is better than the baseline", "are better than the baseline"),
        Verdict.WORSE: ("is worse than the baseline", "are worse than the baseline"),
        Verdict.NO_DIFFERENCE: (f"differs {less}", f"differ {less}"),
        Verdict.SAME: ("is the same as the baseline", "are the same as the baseline"),
    }
    parts = []
    for verdict, (one, many) in texts.items():
        if rows := _with(verdicts, verdict):
            parts.append(f"{row_names(rows, MOST_NAMES)} {one if len(rows) == 1 else many}")
    if unknown := _with(verdicts, Verdict.CANNOT_TELL):
        compared = [results.baseline, *(row for row in results.summaries if row.name in unknown)]
        known = [results.difference(row, results.bleu) for row in unknown]
        numbers = [each.n for each in known if each]
        runs = "the runs that are done"
        if results.looks.planned or all(row.is_complete for row in compared):
            least = f"{min(numbers)} to " if min(numbers) < max(numbers) else ""
            runs = f"{least}{counted(max(numbers), 'seed')}"
        baseline = "it" if parts else "the baseline"
        parts.append(f"{runs} cannot tell {row_names(unknown, MOST_NAMES)} from {baseline}")
    return parts


def _by_row(results: Results, metric: str | None) -> dict[str, Verdict]:
    rows = [row.name for row in results.summaries[1:]]
    return {row: known for row in rows if (known := results.verdict(row, metric)) is not None}


def _with(verdicts: Mapping[str, Verdict], kind: Verdict) -> list[str]:
    return [row for row, verdict in verdicts.items() if verdict is kind]


def intervals(results: Results) -> Iterator[Footnote]:
    """Yield how to read intervals and verdicts, and what the pairs done can find."""
    compared = results.comparison(results.bleu)
    if compared is None or len(results.summaries) < 2:
        return
    n_intervals = _n_intervals(compared)
    if not n_intervals:
        yield Footnote("intervals", f"none: {_no_intervals(results)}.")
        return
    yield Footnote("intervals", _held(results, compared, n_intervals))
    nats = f" (±{results.negligible.nll:g} nats)" if results.has_one_tokenizer else ""
    band = f"±{results.negligible.bleu:g} BLEU{nats}"
    yield Footnote(
        "verdict",
        f"no difference: the interval lies within {band}, which the experiment calls negligible; "
        "better or worse: it does not, and leaves out 0; cannot tell: neither"
        f"{'.' if results.has_learned else _NOT_LEARNED}",
        is_vital=not results.has_learned,
    )
    if any(results.may_be_negligible(row.name, results.bleu) for row in results.summaries):
        text = f"the interval reaches into ±{results.negligible.bleu:g} BLEU"
        yield Footnote(SMALL, f"{text}, so that the difference may be negligible.", is_vital=True)
    by_bleu, by_loss = (_by_row(results, metric) for metric in (results.bleu, results.loss))
    otherwise = [
        f"{row_names(named, MOST_NAMES)} {'is' if len(named) == 1 else 'are'} {verdict}"
        for verdict in (Verdict.BETTER, Verdict.WORSE)
        if (named := [row for row in _with(by_loss, verdict) if by_bleu.get(row) is not verdict])
    ]
    if otherwise:
        text = f"{' and '.join(otherwise)}, by intervals that hold together for NLL alone."
        yield Footnote("by NLL", text, is_vital=True)


def _no_intervals(results: Results) -> str:
    """Return why no difference in BLEU has an interval."""
    if len(results.seeds) == 1:
        return "with one seed there is no error to compare a difference with"
    if n_diverged := results.baseline.count("diverged"):
        return f"the baseline diverged with {of_seeds(n_diverged, len(results.seeds))}"
    if all(row.count("diverged") for row in results.summaries[1:]):
        return "every row but the baseline diverged with some or all of its seeds"
    return _awaited(results) or "too few runs are done"


def ranking(results: Results) -> Iterator[Footnote]:
    """Yield the discoveries of a table of many rows, and the selection bias of its best rows."""
    compared, bleu = results.comparison(results.bleu), results.bleu
    if compared is None or bleu is None or len(compared.differences) < _MANY_ROWS:
        return
    if results.looks.planned:  # which end the seeds of the best rows first, by what they show
        return
    rows = discoveries(compared)
    n_better = sum((compared.differences[row].estimate or 0) > 0 for row in rows)
    yield Footnote(
        "false discoveries",
        f"at a false discovery rate of {FALSE_SHARE:.0%} (Benjamini and Hochberg 1995), a weaker "
        f"promise than that of the verdicts, {counted(n_better, 'row')} can be called better "
        f"and {len(rows) - n_better} worse.",
    )
    n_best = len(_with(_by_row(results, bleu), Verdict.BETTER))
    values = results.values(bleu)
    bias = selection_bias(values, n_best) if results.baseline.name in values else None
    if bias is not None and bias >= _LEAST_BIAS:
        of = "difference of the best row is"
        if n_best > 1:
            of = f"differences of the {n_best} best rows are"
        yield Footnote(
            "winner's curse",
            f"the {of} {number(bias, BLEU_DECIMALS + 1)} BLEU lower in a seed that did not select "
            f"{'them' if n_best > 1 else 'it'}.",
        )


def exceptions(results: Results) -> Iterator[Footnote]:
    """Yield which rows have intervals of their own, and what those for new sentences are."""
    compared = results.comparison(results.bleu)
    if compared is None:
        return
    by_column = _comparisons_of_columns(results)
    texts = list(_departures(by_column, results.baseline.name))
    if texts:
        yield Footnote(APART, f"{'; '.join(texts)}.", is_vital=True)
    if compared.sharing:
        by_row = grouped((by, row) for row, by in compared.sharing.items())
        rows = [
            f"{row_names(names, MOST_NAMES)}: trained to the last bit as {row_names([by])}"
            for by, names in by_row.items()
        ]
        yield Footnote(
            "same weights",
            f"{'; '.join(rows)}. So the error of training is the same, and between such rows only "
            "that of decoding counts.",
            is_vital=True,
        )
    texts = []
    if any(each.with_sentences for each in compared.differences.values()):
        texts.append(
            "the intervals above are of new seeds on these test sentences; those for new sentences "
            "too add what all seeds owe to the choice of the sentences (seeds and sentences "
            "crossed, jackknife)"
        )
    differences = compared.differences.items()
    without = [row for row, each in differences if each.simultaneous and not each.with_sentences]
    if results.n_without_sentences and without:
        texts.append(
            f"no interval for {row_names(without, MOST_NAMES)}: the counts of each sentence, "
            "which archives of records leave out, are missing for "
            f"{counted(results.n_without_sentences, 'run')}"
        )
    if texts:
        yield Footnote("new sentences", f"{'; '.join(texts)}.")


def _n_intervals(compared: Comparison) -> int:
    return sum(each.simultaneous is not None for each in compared.differences.values())


def _held(results: Results, compared: Comparison, n_intervals: int) -> str:
    every = "both" if n_intervals == 2 else f"all {n_intervals}"
    rows = "it holds" if n_intervals == 1 else f"{every} of a column hold together"
    if set(map(_n_intervals, _comparisons_of_columns(results).values())) - {0, n_intervals}:
        rows = "all of a column hold together"
    text = f"95% CI: {rows} with that probability"
    if compared.sd is None or compared.family.critical is None:
        return f"{text}; each is of a row's own paired differences, with Šidák's constant."
    sd = f"± {number(compared.sd, BLEU_DECIMALS + 1)} BLEU"
    loss = results.comparison(results.loss)
    if loss and loss.sd is not None:
        unit = "nats" if results.has_one_tokenizer else "bits per character"
        sd += f" and ± {number(loss.sd, LOSS_DECIMALS)} {unit}"
    are_several = len(set(results.looks.n_seeds.values())) > 1
    pooled = "the rows of the last look" if are_several else "rows"
    text += (
        " (row + seed + error, each row's variance moderated by the pooled one, Dunnett's "
        f"distribution). The error of one run, pooled over {pooled}, has a standard deviation of "
        f"{sd} ({counted(compared.df, 'degree')} of freedom)."
    )
    least = compared.detectable
    if least is None or not round(least.low, BLEU_DECIMALS):  # as of models that translate nothing
        return text
    low, high = (number(end, BLEU_DECIMALS) for end in (least.low, least.high))
    size = low if low == high else f"{low} to {high}"
    found = f"is found with a probability of {POWER:.0%}"
    return f"{text} With the pairs done, a true difference of {size} BLEU {found}."


def _awaited(results: Results) -> str:
    """Return which look waits for runs that have failed; an empty text if none does."""
    looks = results.looks
    failed = [row for row in results.summaries if row.count("failed") or row.count("oom")]
    if not failed or looks.n_looks == len(looks.planned):
        return ""
    rows, n = row_names([row.name for row in failed], MOST_NAMES), looks.planned[looks.n_looks]
    return f"the look at {n} seeds waits for runs of {rows} that failed"


def looked_at(results: Results) -> Iterator[Footnote]:
    """Yield which rows were decided at which look, what that saved, and what a look waits for."""
    looks = results.looks
    if waiting := _awaited(results):
        yield Footnote(
            "next look", f"{waiting}; no other row gets more seeds before.", is_vital=True
        )
    if not looks.n_looks or results.baseline.count("diverged"):
        return
    ended = {row: n for row, n in looks.decided.items() if row in results.diverged}
    decided_at = {row: n for row, n in looks.decided.items() if row not in ended}
    texts, left = _by_seeds(decided_at), _by_seeds(looks.given_up)
    n_rows, n_most = len(results.summaries), max(looks.n_seeds.values())
    n_saved = n_rows * n_most - sum(looks.n_seeds.values())
    decided = f"decided {'; '.join(texts)}" if texts else "no row is decided"
    if left:
        chance = (
            f"{looks.planned[-1]} seeds would decide them with a probability below {GIVE_UP:.0%}"
        )
        why = chance if results.has_learned else "the baseline has hardly learned"
        decided += f"; given up, as {why}, {'; '.join(left)}"
    if ended:
        decided += f"; ended by divergence {'; '.join(_by_seeds(ended))}"
    is_underway = n_most > looks.planned[looks.n_looks - 1]
    if n_saved:
        decided += f"; this saved {counted(n_saved, 'run')}"
    if n_saved or is_underway:
        last = "the last look at its row" if is_underway else "its row"
        decided += (
            f"; the mean of the baseline is over all seeds, each difference over those of {last}"
        )
    yield Footnote(
        "looks",
        f"{decided}; the intervals hold for all rows and looks together "
        "(Lan and DeMets 1983), and a row that is decided early tends to lie nearer to the "
        "baseline than its estimate: the JSON, and the CSV of all columns, have one that is "
        "too high as often as too low.",
        is_vital=True,
    )


def _by_seeds(rows: Mapping[str, int]) -> list[str]:
    by_seeds = grouped((n, row) for row, n in rows.items())
    return [f"with {n} seeds: {row_names(names, MOST_NAMES)}" for n, names in by_seeds.items()]


def _departures(by_column: Mapping[str, Comparison], baseline: str) -> Iterator[str]:
    """Yield in which columns the baseline has left the model, and which rows have in others."""
    paired = {
        name: [r for r, e in of.differences.items() if e.method == "paired" and e.simultaneous]
        for name, of in by_column.items()
    }
    departing = {name: rows for name, rows in paired.items() if rows}
    of_baseline = [name for name in departing if baseline in by_column[name].departed]
    if of_baseline:
        of_columns = "" if list(departing) == [_BLEU] else f" of {and_list(of_baseline)}"
        yield (
            "the baseline's spread over seeds departs from that of the rows (F test at 0.1%), so "
            f"that every interval{of_columns} is of the row's own paired differences"
        )
    others = {name: rows for name, rows in departing.items() if name not in of_baseline}
    columns = grouped((row, name) for name, rows in others.items() for row in rows)
    if columns:
        is_bleu_alone = list(departing) == [_BLEU]
        rows = [
            row_names([row]) + ("" if is_bleu_alone else f" ({and_list(names)})")
            for row, names in columns.items()
        ]
        yield (
            f"{', '.join(rows)}: the spread over seeds departs from that of the other rows (F test "
            "at 0.1%), so that the interval is of the row's own paired differences"
        )


def _comparisons_of_columns(results: Results) -> dict[str, Comparison]:
    """Return the comparisons of which a table shows intervals, by what it calls them."""
    first, *others = results.sets
    metrics = {_BLEU: results.bleu, measure_name(results.loss or ""): results.loss}
    of_first = (f"test.{first}.{name}" for name in results.metrics)
    metrics |= {measure_name(metric): metric for metric in of_first}
    metrics |= {f"{_BLEU} {name}": f"test.{name}.bleu" for name in others}
    known = {name: results.comparison(metric) for name, metric in metrics.items()}
    return {name: compared for name, compared in known.items() if compared}
