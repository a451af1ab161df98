"""Translations side by side: the sentences on which rows differ most."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from html import escape
from itertools import product

import numpy as np

from ablate.analysis.sentences import chrf
from ablate.errors import DamagedFileWarning, StoreError
from ablate.report.results import Details
from ablate.report.values import grouped, number
from ablate.store import read_translations, translations_file
from ablate.wording import and_list, counted

_MOST_TRANSLATIONS = 1500  # of all rows together, in one page
_FEWEST, _MOST = 4, 12  # sentences of one length of one test set
_LENGTHS = ("short", "medium", "long")
_DECIMALS = 1


@dataclass(frozen=True)
class _Sentence:
    test_set: str
    number: int  # its line in the test set
    length: str  # one of _LENGTHS
    source: str
    references: Sequence[str]
    texts: Mapping[str, str]  # the translations by row, baseline first
    scores: Mapping[str, float]  # their chrF

    @property
    def range(self) -> float:
        return max(self.scores.values()) - min(self.scores.values())


def translations(details: Details) -> str:
    """Return the sentences of each test set on which rows differ most; nothing if none are kept."""
    seed = _seed(details)
    if seed is None:
        return ""
    names = [name for name in details.results.sets if name in details.texts()]
    sets = {name: of for name in names if (of := _sentences(details, name, seed))}
    if not sets:
        return ""
    n_rows = len(next(iter(sets.values()))[0].texts)
    n_each = _MOST_TRANSLATIONS // (n_rows * len(sets) * len(_LENGTHS))
    n_each = max(_FEWEST, min(_MOST, n_each))
    shown = []
    left = dict.fromkeys(product(sets, _LENGTHS), n_each)
    sentences = [each for of_set in sets.values() for each in of_set]
    for each in sorted(sentences, key=lambda sentence: -sentence.range):
        if left[each.test_set, each.length]:
            left[each.test_set, each.length] -= 1
            shown.append(each)
    selects = "".join(
        f'<label>{label} <select name="{key}"><option value="">all</option>'
        + "".join(f'<option value="{escape(v)}">{escape(v)}</option>' for v in values)
        + "</select></label>\n"
        for key, label, values in (
            ("set", "Test set", list(sets)),
            ("length", "Length of the source", _LENGTHS),
        )
    )
    filters = f'<form class="filters" hidden>{selects}<output class="soft"></output></form>'
    articles = "\n".join(map(_article, shown))
    return f"{_introduction(details, sets, shown, seed)}\n{filters}\n{articles}"


def marked(text: str, baseline: str) -> str:
    """Mark the words that the baseline's translation lacks, and strike those it alone has."""
    ours, theirs = text.split(), baseline.split()
    parts = [] if ours else ["<em>nothing</em>"]
    for kind, i, j, k, m in SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes():
        ours_only, theirs_only = escape(" ".join(ours[k:m])), escape(" ".join(theirs[i:j]))
        if kind == "equal":
            parts.append(ours_only)
            continue
        parts += [f"<del>{theirs_only}</del>"] if theirs_only else []
        parts += [f"<ins>{ours_only}</ins>"] if ours_only else []
    return " ".join(parts)


def source_lengths(sources: Sequence[str]) -> tuple[list[int], str]:
    """Return the lengths of sentences, and their unit: words, or characters without spaces."""
    lengths = [len(source.split()) for source in sources]
    if np.median(lengths) > 1:
        return lengths, "words"
    return [len(source) for source in sources], "characters"


def _seed(details: Details) -> int | None:
    """Return the seed of which the baseline and most rows have translations, the first of those."""
    if not details.results.sets:
        return None
    runs = details.files(translations_file(details.results.sets[0]))
    experiment = details.experiment
    seeds = [seed for seed in experiment.seeds if (experiment.rows[0].name, seed) in runs]
    counts = {seed: sum(run[1] == seed for run in runs) for seed in seeds}
    return max(counts, key=lambda seed: counts[seed], default=None)


def _sentences(details: Details, name: str, seed: int) -> list[_Sentence]:
    """Return a test set as the runs with one seed translate it; nothing without the baseline's."""
    sources, references = details.texts()[name]
    lines, scores = {}, {}
    for row in details.experiment.rows:
        run = row.name, seed
        statistics = details.sentences.get(run, {}).get(name)
        texts = _read(details, run, name)
        if statistics is not None and len(texts) == len(sources) == len(statistics.chrf):
            lines[row.name] = texts
            scores[row.name] = chrf(statistics.chrf.astype(np.float64)).tolist()
    if details.experiment.rows[0].name not in lines:
        return []
    lengths, _ = source_lengths(sources)
    ends = np.quantile(lengths, [1 / 3, 2 / 3])
    return [
        _Sentence(
            test_set=name,
            number=at + 1,
            length=_LENGTHS[int(np.searchsorted(ends, lengths[at]))],
            source=sources[at],
            references=[of[at] for of in references],
            texts={row: of_row[at] for row, of_row in lines.items()},
            scores={row: of_row[at] for row, of_row in scores.items()},
        )
        for at in range(len(sources))
    ]


def _read(details: Details, run: tuple[str, int], test_set: str) -> list[str]:
    """Return the translations of a run; none, with a warning if they are damaged."""
    if run not in details.folders:
        return []
    file = details.folders[run] / translations_file(test_set)
    try:
        return read_translations(file, details.records[run]) or []
    except StoreError as error:
        text = f"{error}; its translations are left out of the page"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        return []


def _introduction(
    details: Details,
    sets: Mapping[str, Sequence[_Sentence]],
    shown: Sequence[_Sentence],
    seed: int,
) -> str:
    of_sets = [
        f"{sum(each.test_set == name for each in shown):,} of {len(of_set):,} of {name}"
        for name, of_set in sets.items()
    ]
    n_left = sum(map(len, sets.values())) - len(shown)
    rows = {row for of_set in sets.values() for row in of_set[0].texts}
    absent = [row.name for row in details.experiment.rows if row.name not in rows]
    text = (
        f"Translations with seed {seed}. Sentences come in the order of how far rows lie apart in "
        f"chrF of the sentence; of each test set there are those of every third of the lengths on "
        f"which rows differ most: {and_list(of_sets)}; {counted(n_left, 'sentence')} left out."
    )
    if absent:
        text += f" Without translations: {and_list(absent)}."
    marks = "<ins>words the baseline does not have</ins>, <del>words that it alone has</del>"
    return f"<p>{escape(text)} Marked: {marks}.</p>"


def _article(sentence: _Sentence) -> str:
    """Return one sentence; rows that translate alike stand together, the baseline's first."""
    groups = grouped((text, row) for row, text in sentence.texts.items())
    baseline = next(iter(groups))
    terms = [("source", escape(sentence.source))]
    terms += [("reference", escape(text)) for text in dict.fromkeys(sentence.references)]
    for text, rows in groups.items():
        score = f'<span class="score">chrF {number(sentence.scores[rows[0]], _DECIMALS)}</span>'
        terms.append((escape(and_list(rows)), f"{marked(text, baseline)} {score}"))
    lines = "\n".join(f'<dt>{term}</dt><dd dir="auto">{text}</dd>' for term, text in terms)
    where = f"{escape(sentence.test_set)}, sentence {sentence.number}, {sentence.length}"
    return f"""<article data-set="{escape(sentence.test_set)}" data-length="{sentence.length}">
<h3>{where}; range {number(sentence.range, _DECIMALS)} chrF</h3>
<dl>
{lines}
</dl>
</article>"""
