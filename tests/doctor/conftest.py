"""What the tests of the checks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.doctor.results import Target


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target("auto", tmp_path / "results", "cpu")
