"""Write the atlas: experiments in which every registered part has a row against one baseline.

    python benchmarks/atlas.py               # experiments/atlas.yaml, experiments/atlas_tuned.yaml
    ablate run atlas && ablate run atlas_tuned && ablate run multi30k/atlas
    python benchmarks/atlas.py               # experiments/multi30k/atlas_fr.yaml, by its table

A part has its defaults, and the companion that it requires where the baseline does not have that (a
residual scheme with its own norm requires ``norm: none``). Every row of `atlas_tuned`, whose parts
are optimizers and schedules, has the learning rate of the same grid that is best on the dev set.
Parts that need an option, and those that do not fit the baseline, are named at the end of a file.
Of tokenizers, those of subwords have rows. `multi30k/atlas_fr` asks again, in another language, of
every row that `multi30k/atlas` has decided, and of ten that it has not.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from atlas_page import DECIDED, column, lines_of

from ablate import config
from ablate.errors import SpecError
from ablate.registry import slots
from ablate.runner.check import check
from ablate.store import write_whole
from ablate.wording import counted

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
PRESET = "presets/laptop_500"
SEEDS = (201, 202, 203, 204, 205)
RATES = (5e-4, 1.5e-3, 5e-3, 1.5e-2)
_OF_MODEL = (
    *("position", "attention", "scaling", "mask", "norm", "residual", "feed_forward"),
    *("sharing", "embedding", "initialisation"),
)
PATHS = {slot: f"model.{slot}" for slot in _OF_MODEL} | {
    slot: f"training.{slot}" for slot in ("objective", "optimizer", "schedule")
}
TUNE = {"tune": {"training.schedule.lr": list(RATES)}}
TUNED = ("optimizer", "schedule")
"""Slots whose parts are compared at the best learning rate of each."""
N_UNDECIDED = 10  # rows that are asked again though the first answer is none

BASELINE_OPTIONS = {"schedule": ("warmup",)}
"""Options with the baseline's value: the default warm-up is longer than its training."""

EXTRA_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "schedule_free_adamw": {"training.schedule": {"name": "constant", "warmup": 100}},
    "minimum_risk": {
        "training.objective": {
            "name": "minimum_risk",
            "n_samples": 2,
            "alpha": 1.0,
            "likelihood": 0.1,
        }
    },
}
"""Changes of parts that fit the baseline, but do not learn without them, as risk alone does not."""

SEGMENTATIONS: Mapping[str, Mapping[str, Any]] = {
    "tokenizer bpe": {"tokenizer": "bpe"},
    "tokenizer bpe, dropout": {"tokenizer": {"name": "bpe", "dropout": 0.1}},
    "tokenizer unigram": {"tokenizer": "unigram"},
    "tokenizer unigram, sampling": {"tokenizer": {"name": "unigram", "alpha": 0.2}},
}
"""Tokenizers in pairs: training text segmented once, and anew in every epoch."""

SEARCHES: Mapping[str, Mapping[str, Any]] = {
    "decoding greedy": {"decoding": "greedy"},
    "decoding sample": {"decoding": "sample"},
    "decoding sample, top_p": {"decoding": {"name": "sample", "top_p": 0.9}},
    "decoding minimum_bayes_risk": {"decoding": "minimum_bayes_risk"},
    "decoding beam, coverage": {"decoding": {"name": "beam", "size": 4, "coverage": 0.2}},
    "decoding beam, power": {"decoding": {"name": "beam", "size": 4, "penalty_form": "power"}},
}
"""Searches, and the forms of a beam's score; models are the baseline's."""

COMPANIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {"model.norm": "none"},
    {"model.norm": "layer"},
    {"model.residual": "pre"},
)
"""Choices that a part may require beside it; the first with which it fits is taken."""


@dataclass(frozen=True)
class Atlas:
    """The rows of some slots.

    Attributes:
        rows: their changes of the baseline, by name.
        left_out: the reasons why parts have no row, by name.
    """

    rows: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str]


def main() -> int:
    """Write all files."""
    ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    model = [slot for slot in PATHS if slot not in TUNED]
    parts = atlas(model)
    whole = Atlas({**parts.rows, **SEGMENTATIONS, **SEARCHES}, parts.left_out)
    write("atlas", "What is each part worth?", whole, {})
    question = "What are optimizers and schedules worth, each at its best learning rate?"
    write("atlas_tuned", question, atlas(TUNED, TUNE), TUNE)
    lines = lines_of("multi30k/atlas")
    if lines:
        text = in_french({row: each.verdict for row, each in column(lines).items()})
        write_whole(EXPERIMENTS / "multi30k" / "atlas_fr.yaml", text)
    return 0


def in_french(verdicts: Mapping[str, str]) -> str:
    """Return the experiment of the rows that are decided, and of ten others, evenly spaced."""
    others = [row for row, verdict in verdicts.items() if verdict not in DECIDED]
    step = max(1, len(others) / N_UNDECIDED)
    asked = {others[int(i * step)] for i in range(min(N_UNDECIDED, len(others)))}
    left_out = "".join(f"  {row}: null\n" for row in others if row not in asked)
    return (
        "# Written by `python benchmarks/atlas.py`: the rows of atlas.yaml that its table decides, "
        f"and {len(asked)} of the others.\n"
        "question: Is each part worth the same in French?\n"
        "extends: atlas.yaml\n"
        "corpus: {tgt: fr}\n" + (f"variants:\n{left_out}" if left_out else "")
    )


def atlas(slot_names: Iterable[str], more: Mapping[str, Any] = MappingProxyType({})) -> Atlas:
    """Return the rows of all parts of some slots, in an experiment with ``more`` in it."""
    rows: dict[str, Mapping[str, Any]] = {}
    left_out: dict[str, str] = {}
    baseline = config.load(EXPERIMENTS / f"{PRESET}.yaml").rows[0].spec.model_dump(mode="json")
    for slot in slot_names:
        section, key = PATHS[slot].split(".")
        for part in sorted(slots()[slot]):
            name = f"{slot} {part}"
            if baseline[section][key]["name"] == part:
                continue
            changes, reason = fitting(PATHS[slot], chosen(slot, part, baseline[section][key]), more)
            if changes is None:
                left_out[name] = reason
            else:
                rows[name] = changes
    return Atlas(rows, left_out)


def chosen(slot: str, part: str, own: Mapping[str, Any]) -> str | dict[str, Any]:
    """Return the choice of a part, in some slots with options of the baseline's choice.

    Args:
        slot: of the part.
        part: its name.
        own: the baseline's choice.
    """
    shared = set(BASELINE_OPTIONS.get(slot, ())) & set(slots()[slot][part].options.model_fields)
    return {"name": part, **{option: own[option] for option in sorted(shared)}} if shared else part


def fitting(
    path: str, choice: str | dict[str, Any], more: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the changes by which a part fits the baseline, or None and the reason."""
    first = ""
    for companion in COMPANIONS:
        changes = {path: choice, **companion, **EXTRA_CHANGES.get(str(choice), {})}
        reason = refusal(changes, more)
        if reason is None:
            return changes, ""
        first = first or reason
    return None, first


def refusal(changes: Mapping[str, Any], more: Mapping[str, Any]) -> str | None:
    """Return why an experiment with such a row cannot be run; None if it can."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.yaml"
        content = {"extends": f"ablate:{PRESET}", "variants": {"row": dict(changes)}, **more}
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        try:
            check(config.load(file))
        except SpecError as error:
            return str(error).splitlines()[0].partition(": ")[2]
    return None


def write(name: str, question: str, content: Atlas, more: Mapping[str, Any]) -> None:
    """Write an experiment; its end names the parts that are left out."""
    spec = {
        "question": question,
        "extends": f"{PRESET}.yaml",
        "seeds": list(SEEDS),
        **more,
        "variants": {row: dict(changes) for row, changes in content.rows.items()},
    }
    left_out = "".join(f"#   {part}: {reason}\n" for part, reason in content.left_out.items())
    write_whole(
        EXPERIMENTS / f"{name}.yaml",
        "# Written by `python benchmarks/atlas.py`: a row for each part of its slots; the end "
        "names those left out.\n"
        + yaml.safe_dump(spec, sort_keys=False, default_flow_style=None, width=110)
        + (f"# Left out:\n{left_out}" if left_out else ""),
    )
    n_rows, n_left_out = len(content.rows), len(content.left_out)
    without = counted(n_left_out, "part")
    sys.stdout.write(f"{name}: {counted(n_rows, 'row')}, {without} left out\n")


if __name__ == "__main__":
    sys.exit(main())
