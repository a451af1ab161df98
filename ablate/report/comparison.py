"""Two sets of results row by row, as a table, as CSV and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ablate.analysis.measures import Verdict, higher_is_better
from ablate.analysis.summary import Summary
from ablate.analysis.two_tables import RowSample, Shift
from ablate.config import Negligible
from ablate.errors import SpecError
from ablate.printable import SCHEMA
from ablate.report import values
from ablate.report.columns import Block, known
from ablate.report.formats import render
from ablate.report.formats.machine import json_of
from ablate.report.results import DECODE_SPEED, MEMORY, TRAIN_SPEED, verdict_on
from ablate.report.table import Cell, Column, Footnote, Line, Table
from ablate.report.values import NOTHING, TIMES, grouped, number, signed
from ablate.wording import and_list, counted, no_such
from ablate.writing import csv_text

FORMATS = ("terminal", "markdown", "csv", "json")

MatchedBy = Literal["spec", "changes", "name"]
Outcome = Verdict | Literal["equal"]


@dataclass(frozen=True)
class MatchedRow:
    """One row on both sides.

    Its shifts are the second side less the first, in every score and loss; a row with diverged runs
    on either side has none, for the runs that did not diverge are a selection.
    """

    names: tuple[str, str]  # on the first side and on the second
    matched_by: MatchedBy  # the whole spec, the changes of its baseline, or its name alone
    spec: Mapping[str, tuple[Any, Any]]  # what differs by path: the first value and the second
    samples: Mapping[str, tuple[RowSample, RowSample]]
    shifts: Mapping[str, Shift]
    outcomes: tuple[Mapping[str, int], Mapping[str, int]]  # how many runs ended with each status

    @property
    def name(self) -> str:
        return " → ".join(dict.fromkeys(self.names))


@dataclass(frozen=True)
class Differing:
    """One test sentence that the two sides translate differently."""

    row: str
    seed: int
    line: int  # 1 is the first
    source: str
    references: Sequence[str]
    translations: tuple[str, str]
    scores: tuple[float, float]  # the chrF of either translation by itself


@dataclass(frozen=True)
class TranslationDifferences:
    """How translations of the first test set differ."""

    n: int = 0  # pairs, of all rows and seeds
    n_differing: int = 0
    most: Sequence[Differing] = ()  # of which the chrF differs most
    note: str = ""  # why there are none


@dataclass(frozen=True, repr=False)
class Compared:
    """Two sets of results, row by row; in a notebook it shows its table."""

    labels: tuple[str, str]  # what was compared
    rows: Sequence[MatchedRow]  # those that both have
    unmatched: tuple[Sequence[str], Sequence[str]]  # names of the rows that one side alone has
    provenance: Mapping[str, tuple[str, str]]  # what each side's numbers come from, by label
    negligible: Negligible
    sentences: TranslationDifferences
    test_sets: Sequence[str]  # that both sides have; rows are judged on the first
    metrics: Sequence[str] = ()  # names of further metrics of the test sets
    has_one_tokenizer: bool = True  # whether every row reads the same target tokens on both sides
    # how each side has computed the test scores that are not compared, by metric
    scored_apart: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{' → '.join(self.labels)}: {counted(len(self.rows), 'row')}>"

    def _repr_markdown_(self) -> str:
        return self.text("markdown")

    def text(self, form: str, width: int | None = None, *, is_coloured: bool = False) -> str:
        if form not in FORMATS:
            raise SpecError(no_such("format", form, FORMATS))
        if form == "json":
            return json_of({"schema": SCHEMA, **self.to_json()})
        if form == "csv":
            lines = [self._line(row, metric) for row in self.rows for metric in row.samples]
            return csv_text(lines)
        return render(self.table(), form, width, is_coloured=is_coloured) + self._examples(form)

    def outcome(self, row: MatchedRow, metric: str) -> Outcome | None:
        """Return the verdict on the second side of a row; None without an interval or a band."""
        shift = row.shifts.get(metric)
        if shift is not None and shift.method == "equal":
            return "equal"
        samples = row.samples.get(metric) if higher_is_better(metric) else None
        return verdict_on(
            shift,
            metric,
            self.negligible,
            has_one_tokenizer=self.has_one_tokenizer,
            baseline=samples[0].mean if samples else None,
        )

    def table(self) -> Table:
        first, *others = self.test_sets or ("",)
        bleu = f"test.{first}.bleu"
        loss = f"test.{first}.{'nll' if self.has_one_tokenizer else 'bits_per_character'}"
        further = [loss, *(f"test.{first}.{name}" for name in self.metrics)]
        further += [f"test.{name}.bleu" for name in others]
        samples = [row.samples.get(bleu) for row in self.rows]
        means = [
            (
                Column(f"{bleu}.{title}", f"BLEU {title}", first),
                [Cell(number(s[at].mean, values.BLEU_DECIMALS) if s else NOTHING) for s in samples],
            )
            for at, title in enumerate(("before", "after"))
        ]
        blocks = [
            (Column("row", "", kind="row"), [Cell(row.name) for row in self.rows]),
            *means,
            *self._shift(bleu),
            (
                Column("verdict", "verdict", f"±{self.negligible.bleu:g} BLEU", kind="verdict"),
                [Cell(str(self.outcome(row, bleu) or NOTHING)) for row in self.rows],
            ),
            *(block for metric in further for block in self._shift(metric)),
            *self._ratios(),
        ]
        columns, cells = zip(*known(blocks), strict=True)
        lines = [
            Line(tuple(of_row), {}, Summary(row.name, {}, {}, {}))
            for *of_row, row in zip(*cells, self.rows, strict=True)
        ]
        return Table(
            name=" → ".join(self.labels),
            question=None,
            seeds=(),
            columns=columns,
            lines=tuple(lines),
            footnotes=(*self._footnotes(), *self._causes()),
            conclusion=self._conclusion(bleu, first),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "rows": [
                asdict(row) | {"verdicts": {name: self.outcome(row, name) for name in row.shifts}}
                for row in self.rows
            ],
            "unmatched": [list(names) for names in self.unmatched],
            "provenance": {label: list(both) for label, both in self.provenance.items()},
            "negligible": self.negligible.model_dump(),
            "scored_apart": {metric: list(both) for metric, both in self.scored_apart.items()},
            "sentences": asdict(self.sentences),
            "conclusion": self.table().conclusion,
        }

    def _shift(self, metric: str) -> list[Block]:
        test_set = metric.split(".")[1]
        name, decimals = values.measure_name(metric), values.measure_decimals(metric)
        rank = 0 if name == "BLEU" and [test_set] == list(self.test_sets[:1]) else 3
        shifts = [row.shifts.get(metric) for row in self.rows]
        ends = [values.interval_text(s.simultaneous if s else None, decimals) for s in shifts]
        key = f"{metric}.difference"
        return [
            (
                Column(key, f"Δ{name}", test_set, rank=rank),
                [Cell(signed(s.estimate, decimals) if s else NOTHING) for s in shifts],
            ),
            (Column(f"{key}.interval", "95% CI", "of Δ", rank=rank), [Cell(end) for end in ends]),
        ]

    def _ratios(self) -> list[Block]:
        """Return by how much parameters changed, and how many times as fast and large rows are."""
        blocks = []
        for metric, header, detail in (
            ("params.total", "params", "change"),
            (TRAIN_SPEED, "train", f"{TIMES} speed"),
            (DECODE_SPEED, "decode", f"{TIMES} speed"),
            (MEMORY, "memory", f"{TIMES} MiB"),
        ):
            cells = []
            for row in self.rows:
                before, after = row.samples.get(metric, (None, None))
                times = after.mean / before.mean if before and after and before.mean else None
                text = NOTHING if times is None else number(times, 2)
                if times is not None and metric == "params.total":
                    text = values.percent_change(times - 1) or "="
                cells.append(Cell(text))
            blocks.append((Column(metric, header, detail, rank=2), cells))
        return blocks

    def _footnotes(self) -> Iterator[Footnote]:
        yield Footnote(
            "Δ",
            "after less before, of pairs of the same seed where both have it, else of means; "
            "the intervals of a column hold together, new seeds on the same sentences; equal: "
            "the scores do not differ in any bit",
        )
        if not self.has_one_tokenizer:
            text = "tokenizers differ, so that losses are compared in bits per character"
            yield Footnote("columns", text)
        for metric, (before, after) in self.scored_apart.items():
            text = f"{before} before, {after} after, which is not compared"
            yield Footnote(values.measure_name(metric), text)
        if any(TRAIN_SPEED in row.samples for row in self.rows):
            text = "the two sides did not take turns, so that the machine may have differed too"
            yield Footnote("speed", text)
        ways = grouped((row.matched_by, row.name) for row in self.rows)
        for way, words in (("changes", "what they change"), ("name", "their names alone")):
            if way in ways:
                yield Footnote("matched", f"{and_list(ways[way])}: by {words}")
        alone = zip(self.labels, self.unmatched, strict=True)
        yield from (Footnote(f"only in {label}", and_list(rows)) for label, rows in alone if rows)
        for row in self.rows:
            if any(set(of_side) - {"done"} for of_side in row.outcomes):
                both = (", ".join(f"{n} {s}" for s, n in side.items()) for side in row.outcomes)
                yield Footnote(row.name, " → ".join(both))

    def _causes(self) -> Iterator[Footnote]:
        specs = {
            row.name: "; ".join(
                f"{path}: {values.format_value(before)} → {values.format_value(after)}"
                for path, (before, after) in row.spec.items()
            )
            for row in self.rows
        }
        if len(set(specs.values())) == 1:  # what all rows share, once
            specs = {"all rows": next(iter(specs.values()))}
        yield from (Footnote(f"spec, {name}", text) for name, text in specs.items() if text)
        for label, (before, after) in self.provenance.items():
            if before != after:
                yield Footnote(label, f"{before} → {after}")
        if same := [label for label, (before, after) in self.provenance.items() if before == after]:
            yield Footnote("the same", and_list(same))

    def _conclusion(self, metric: str, test_set: str) -> str:
        if not test_set:
            return "No row has been tested on both sides."
        by_outcome = grouped(
            (str(self.outcome(row, metric) or "without"), row.name) for row in self.rows
        )
        words = {
            "better": "better after than before",
            "worse": "worse after than before",
            "no difference": f"no different beyond {self.negligible.bleu:g} BLEU",
            "cannot tell": "not told apart by these seeds",
            "equal": "equal to the last bit",
            "without": "without an interval",
        }
        parts = [
            f"{and_list(by_outcome[k])}: {text}" for k, text in words.items() if k in by_outcome
        ]
        return f"By BLEU on {test_set}, {'; '.join(parts)}."

    def _examples(self, form: str) -> str:
        sentences = self.sentences
        if sentences.note:
            return f"\nTranslations: {sentences.note}.\n"
        head = f"Translations: {sentences.n_differing:,} of {sentences.n:,} differ"
        lines = ["", head + ("; most by chrF:" if sentences.most else ".")]
        for each in sentences.most:
            before, after = (f"{score:.1f}" for score in each.scores)
            title = f"{each.row}, seed {each.seed}, line {each.line}: chrF {before} → {after}"
            references = [("reference", text) for text in dict.fromkeys(each.references)]
            named = [("source", each.source), *references]
            named += zip(("before", "after"), each.translations, strict=True)
            fence = ["```"] if form == "markdown" else []
            shown = [f"  {label:<9}  {text}" for label, text in named]
            lines += ["", title, *fence, *shown, *fence]
        return "\n".join(lines) + "\n"

    def _line(self, row: MatchedRow, metric: str) -> dict[str, Any]:
        before, after = row.samples[metric]
        shift = row.shifts.get(metric)
        return {
            "before": row.names[0],
            "after": row.names[1],
            "matched_by": row.matched_by,
            "metric": metric,
            "mean.before": before.mean,
            "mean.after": after.mean,
            "n.before": before.n,
            "n.after": after.n,
            "difference": shift and shift.estimate,
            "method": shift and shift.method,
            "pairs": shift and shift.n,
            "se": shift and shift.standard_error,
            "df": shift and shift.df,
            **values.interval_ends(shift.single if shift else None, "single."),
            **values.interval_ends(shift.simultaneous if shift else None, "simultaneous."),
            "verdict": self.outcome(row, metric),
        }
