"""What is known of an experiment: its runs compared, for tables, and what stands behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ablate.analysis.comparison import Comparison, Difference, Values
from ablate.analysis.measures import (
    FLOOR,
    Comparisons,
    Sentences,
    Verdict,
    comparisons,
    higher_is_better,
    verdict,
)
from ablate.analysis.summary import (
    Records,
    Summary,
    evaluated_sets,
    have_one_tokenizer,
    summarise,
)
from ablate.analysis.two_tables import Shift
from ablate.config import Experiment, Negligible, Published
from ablate.report.looks import Looks, judge

TRAIN_SPEED = "speed.train_target_tokens_per_second"
DECODE_SPEED = "speed.decode_sentences_per_second"
MEMORY = "memory.train_peak_mib"

_DECIDED = (Verdict.BETTER, Verdict.WORSE)

Texts = Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]]
"""Of each test set, its sources and one or more sequences of references."""


@dataclass(frozen=True)
class Results:
    """An experiment's results."""

    summaries: Sequence[Summary]  # the rows, baseline first
    records: Records  # of these rows and no others
    sets: Sequence[str]  # the test sets; rows are judged on the first
    comparisons: Comparisons  # of the rows with the baseline, by metric
    negligible: Negligible
    published: Published | None
    metrics: Sequence[str] = ()  # names of further metrics of the test sets
    looks: Looks = field(default_factory=Looks)
    n_without_sentences: int = 0  # runs whose counts of each sentence were written and are missing

    @classmethod
    def of(cls, experiment: Experiment, records: Records, sentences: Sentences) -> Results:
        names = [row.name for row in experiment.rows]
        metrics = [choice.name for choice in experiment.metrics if choice.name != "bleu"]
        looks = judge(experiment, records, sentences, metrics) if experiment.looks else Looks()
        seeds = {name: experiment.seeds[: looks.n_seeds.get(name)] for name in names}
        ours = {
            (name, seed): records[name, seed]
            for name in names
            for seed in seeds[name]
            if (name, seed) in records
        }
        summaries = summarise(names, seeds, ours)
        sets = evaluated_sets(ours)
        first = next(iter(sets), "")
        return cls(
            summaries=summaries,
            records=ours,
            sets=sets,
            comparisons=(
                looks.comparisons if looks.planned else comparisons(summaries, sentences, metrics)
            ),
            negligible=experiment.negligible,
            published=experiment.published,
            metrics=metrics,
            looks=looks,
            n_without_sentences=sum(
                "sentences" in record.get("test", {}).get(first, {})
                and first not in sentences.get(run, {})
                for run, record in ours.items()
            ),
        )

    @property
    def baseline(self) -> Summary:
        return self.summaries[0]

    @property
    def seeds(self) -> list[int]:
        return list(self.baseline.outcomes)

    @property
    def has_verdicts(self) -> bool:
        """Whether rows are judged: by one seed, or beside a baseline that diverged, none is."""
        return len(self.seeds) > 1 and not self.baseline.count("diverged")

    @property
    def bleu(self) -> str | None:
        """The metric that rows are judged by; None before anything is tested."""
        return f"test.{self.sets[0]}.bleu" if self.sets else None

    @property
    def loss(self) -> str | None:
        """The loss of comparisons: per token, or where tokenizers differ, per character."""
        if not self.sets:
            return None
        return f"test.{self.sets[0]}.{'nll' if self.has_one_tokenizer else 'bits_per_character'}"

    @cached_property
    def signatures(self) -> dict[str, str]:
        """How each metric was computed, as its library writes it; several after semicolons."""
        actual = {}
        for metric in dict.fromkeys(("bleu", "bleu_lc_tok", "chrf", *self.metrics)):
            known = dict.fromkeys(
                scores[f"{metric}_signature"]
                for record in self.records.values()
                for scores in record.get("test", {}).values()
                if scores.get(f"{metric}_signature")
            )
            if known:
                actual[metric] = "; ".join(known)
        return actual

    @cached_property
    def has_one_tokenizer(self) -> bool:
        """Whether all rows read the same target tokens."""
        return have_one_tokenizer(self.records.values())

    @property
    def diverged(self) -> dict[str, list[int]]:
        by_row = {row.name: row.seeds_with("diverged") for row in self.summaries}
        return {name: seeds for name, seeds in by_row.items() if seeds}

    def comparison(self, metric: str | None) -> Comparison | None:
        return self.comparisons.get(metric) if metric else None

    def values(self, metric: str) -> Values:
        """Return a metric by row and seed, without the rows that do not have it."""
        rows = self.summaries
        return {row.name: row.metrics[metric].values for row in rows if metric in row.metrics}

    def difference(self, row: str, metric: str | None) -> Difference | None:
        """Return a row's difference from the baseline; None for the baseline too."""
        compared = self.comparison(metric)
        return compared.differences.get(row) if compared else None

    def verdict(self, row: str, metric: str | None) -> Verdict | None:
        """Return the verdict on a row by one metric; None where nothing is called negligible."""
        return verdict_on(
            self.difference(row, metric),
            metric or "",
            self.negligible,
            has_one_tokenizer=self.has_one_tokenizer,
            baseline=self.baseline_score(metric),
        )

    def baseline_score(self, metric: str | None) -> float | None:
        """Return the baseline's mean; None of a loss."""
        mean = self.baseline.metrics.get(metric or "")
        return mean.mean if mean and higher_is_better(metric or "") else None

    @property
    def has_learned(self) -> bool:
        """Whether the baseline's BLEU is high enough for a row to lose some."""
        bleu = self.baseline_score(self.bleu)
        return bleu is None or bleu >= FLOOR * self.negligible.bleu

    def may_be_negligible(self, row: str, metric: str | None) -> bool:
        """Return whether the interval of a better or worse row reaches into the band."""
        difference, is_decided = self.difference(row, metric), self.verdict(row, metric) in _DECIDED
        if not is_decided or difference is None or difference.simultaneous is None:
            return False
        band, ends = dict(self.negligible)[str(metric).rpartition(".")[2]], difference.simultaneous
        return bool(ends.low < band and ends.high > -band)


@dataclass(frozen=True, repr=False)
class Details:
    """What stands behind a table, for pages and figures; what costs time is read when needed."""

    experiment: Experiment
    results: Results
    records: Records
    sentences: Sentences  # what each test sentence contributes, of the runs that have kept it
    folders: Mapping[tuple[str, int], Path]  # of the runs, by row and seed
    texts: Callable[[], Texts]  # the test sets, which are read once, if they are on this machine
    arguments: str  # of the command line that makes these runs, as a shell reads them

    def files(self, name: str) -> dict[tuple[str, int], Path]:
        paths = {run: folder / name for run, folder in self.folders.items()}
        return {run: path for run, path in paths.items() if path.is_file()}


def verdict_on(
    difference: Difference | Shift | None,
    metric: str,
    negligible: Negligible,
    *,
    has_one_tokenizer: bool,
    baseline: float | None = None,
) -> Verdict | None:
    """Return the verdict on a difference; None without an interval, or a band for the metric.

    ``baseline`` is the mean of what is compared with, in a score.
    """
    kind = metric.rpartition(".")[2]
    band = dict(negligible).get(kind)
    if difference is None or band is None or (kind == "nll" and not has_one_tokenizer):
        return None
    if difference.method == "same":
        return Verdict.SAME
    better = higher_is_better(metric)
    return verdict(difference.simultaneous, band, higher_is_better=better, baseline=baseline)
