"""The atlas has every registered part, and says what it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ablate import config
from ablate.registry import slots

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SLOTS = {
    "atlas": (
        *("position", "attention", "scaling", "mask", "norm", "residual", "feed_forward"),
        *("sharing", "embedding", "initialisation", "objective"),
    ),
    "atlas_tuned": ("optimizer", "schedule"),
}


def part_of(spec: config.RunSpec, slot: str) -> str:
    section = spec.model if slot in config.ModelSpec.model_fields else spec.training
    return getattr(section, slot).name


@pytest.mark.parametrize("name", SLOTS)
def test_every_part_has_a_row_or_a_reason(name: str) -> None:
    text = (EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    specs = {row.name: row.spec for row in config.load(EXPERIMENTS / f"{name}.yaml").rows}
    baseline = yaml.safe_load((EXPERIMENTS / "presets" / "laptop.yaml").read_text(encoding="utf-8"))
    settings = {**baseline["model"], **baseline["training"], "mask": "causal", "sharing": "none"}
    for slot in SLOTS[name]:
        setting = settings[slot]
        own = setting if isinstance(setting, str) else setting["name"]
        rows = {row for row in content["variants"] if row.startswith(f"{slot} ")}
        assert rows == {f"{slot} {part_of(specs[row], slot)}" for row in rows}
        left_out = {line.split(":")[0][4:] for line in text.splitlines() if line.startswith("#   ")}
        known = {f"{slot} {part}" for part in slots()[slot] if part != own}
        assert rows | {each for each in left_out if each.startswith(f"{slot} ")} == known, (
            "write it anew: python benchmarks/atlas.py"
        )


def test_no_warm_up_of_a_row_is_longer_than_its_training() -> None:
    for row in config.load(EXPERIMENTS / "atlas_tuned.yaml").rows:
        training = row.spec.training
        assert training.schedule.options["warmup"] < training.steps, row.name
