"""The sabotages of the gate change what they say they change."""

from __future__ import annotations

import sabotage
from records import ROOT


def test_every_sabotage_finds_its_line_once() -> None:
    """A line that has moved would be noticed only when the whole gate is run."""
    package = ROOT / "ablate"
    counts = {
        s.name: (package / s.file).read_text(encoding="utf-8").count(s.old)
        for s in sabotage.SABOTAGES
    }
    assert counts.pop("nothing") > 1
    assert counts
    assert set(counts.values()) == {1}
