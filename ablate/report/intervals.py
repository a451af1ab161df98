"""The remarks that say what the intervals and verdicts of a table hold for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ablate.analysis import Comparison
from ablate.analysis.comparison import Method
from ablate.analysis.dunnett import POWER
from ablate.report.cells import Footnote
from ablate.report.measures import APART, BLEU_DECIMALS, LOSS_DECIMALS, measure_name
from ablate.report.numbers import number, of_seeds
from ablate.report.results import Results
from ablate.wording import and_list, counted

_BLEU = measure_name("bleu")


def intervals(results: Results) -> Iterator[Footnote]:
    """Yield how to read intervals and verdicts, and what the pairs done can find."""
    compared = results.comparison(results.bleu)
    if compared is None or len(results.summaries) < 2:
        return
    n_intervals = _n_intervals(compared)
    if not n_intervals:
        yield Footnote("intervals", f"none: {_why_none(results)}")
        return
    yield Footnote("intervals", _held(results, compared, n_intervals))
    nats = f" (±{results.negligible.nll:g} nats)" if results.has_one_tokenizer else ""
    band = f"±{results.negligible.bleu:g} BLEU{nats}"
    yield Footnote(
        "verdict",
        f"no difference: the interval lies within {band}, which the experiment calls negligible; "
        "better or worse: it does not, and leaves out 0; cannot tell: neither.",
    )


def exceptions(results: Results) -> Iterator[Footnote]:
    """Yield which rows have intervals of their own, and what those for new sentences are."""
    compared = results.comparison(results.bleu)
    if compared is None:
        return
    yield from _apart(results)
    texts = []
    if any(each.with_sentences for each in compared.differences.values()):
        texts.append(
            "the intervals above are of new seeds on these test sentences; those for new sentences "
            "too add what all seeds owe to the choice of the sentences (seeds and sentences "
            "crossed, jackknife)"
        )
    n_without = results.n_without_sentences
    without = [
        r for r, d in compared.differences.items() if d.simultaneous and not d.with_sentences
    ]
    if n_without and without:
        texts.append(
            f"no interval for {and_list(without)}: the counts of each sentence, which archives of "
            f"records leave out, are missing of {counted(n_without, 'run')}"
        )
    if texts:
        yield Footnote("new sentences", f"{'; '.join(texts)}.")


def _n_intervals(compared: Comparison) -> int:
    return sum(each.simultaneous is not None for each in compared.differences.values())


def _held(results: Results, compared: Comparison, n_intervals: int) -> str:
    """Return what all intervals hold for, the pooled error, and what they can find."""
    rows = "it holds" if n_intervals == 1 else f"all {n_intervals} of a column hold together"
    columns = _comparisons_of_columns(results).values()
    if set(map(_n_intervals, columns)) - {0, n_intervals}:
        rows = "all of a column hold together"
    text = f"95% CI: {rows} with that probability"
    critical = compared.family.critical
    if compared.sd is None or critical is None:
        return f"{text}; each is of a row's own paired differences, with Šidák's constant."
    sd = f"± {number(compared.sd, BLEU_DECIMALS + 1)} BLEU"
    loss = results.comparison(results.loss)
    if loss and loss.sd is not None:
        unit = "nats" if results.has_one_tokenizer else "bits per character"
        sd += f" and ± {number(loss.sd, LOSS_DECIMALS)} {unit}"
    freedom = counted(compared.df, "degree")
    text += (
        f" (row + seed + error, Dunnett's distribution, constant {critical:.2f}). The error of one "
        f"run, pooled over rows, has a standard deviation of {sd} ({freedom} of freedom)."
    )
    least = compared.detectable
    if least is None:
        return text
    low, high = (number(end, BLEU_DECIMALS) for end in (least.low, least.high))
    size = low if low == high else f"{low} to {high}"
    power = f"is found with a probability of {POWER:.0%}"
    return f"{text} With the pairs done, a true difference of {size} BLEU {power}."


def _apart(results: Results) -> Iterator[Footnote]:
    """Yield what it means that intervals are marked, and which rows have left the model."""
    by_column = _comparisons_of_columns(results)
    texts = list(_departures(by_column, results.baseline.name))
    if any(_rows_by(each, "moderated") for each in by_column.values()):
        marked = "other marked intervals" if texts else "marked intervals"
        texts.append(
            f"{marked} are wider: in that column the spread over seeds of the row, or of the "
            f"baseline, stands out (F test at {_levels(by_column)}), so that its own variance "
            "counts beside the pooled one"
        )
    if texts:
        yield Footnote(APART, f"{'; '.join(texts)}.")


def _levels(by_column: Mapping[str, Comparison]) -> str:
    """Return the level of the F tests by which rows stand out, or the least and the largest."""
    levels = [level for each in by_column.values() for level in each.standing_out.values()]
    low, high = (f"{end:.2g}" for end in (min(levels), max(levels)))
    return low if low == high else f"{low} to {high}, depending on the row's runs"


def _departures(by_column: Mapping[str, Comparison], baseline: str) -> Iterator[str]:
    """Yield in which columns the baseline has left the model, and which rows have in others."""
    departing = {
        name: rows for name, each in by_column.items() if (rows := _rows_by(each, "paired"))
    }
    of_baseline = [name for name in departing if baseline in by_column[name].departed]
    if of_baseline:
        marked = [name for name, each in by_column.items() if _rows_by(each, "paired", "moderated")]
        of_columns = "" if marked == [_BLEU] else f" of {and_list(of_baseline)}"
        yield (
            "the baseline's spread over seeds departs from that of the rows (F test at 0.1%), so "
            f"that every interval{of_columns} is of the row's own paired differences"
        )
    columns: dict[str, list[str]] = {}
    for name, of_column in departing.items():
        for row in of_column if name not in of_baseline else ():
            columns.setdefault(row, []).append(name)
    if columns:
        is_bleu_alone = list(departing) == [_BLEU]
        rows = [r if is_bleu_alone else f"{r} ({and_list(names)})" for r, names in columns.items()]
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


def _rows_by(compared: Comparison, *methods: Method) -> list[str]:
    """Return the rows that have intervals by one of some methods."""
    differences = compared.differences.items()
    return [row for row, each in differences if each.method in methods and each.simultaneous]


def _why_none(results: Results) -> str:
    if len(results.seeds) == 1:
        return "with one seed there is no error to compare a difference with."
    if n_diverged := results.baseline.count("diverged"):
        return f"the baseline diverged with {of_seeds(n_diverged, len(results.seeds))}."
    if all(row.count("diverged") for row in results.summaries[1:]):
        return "every row but the baseline diverged with some or all of its seeds."
    return "too few runs are done."
