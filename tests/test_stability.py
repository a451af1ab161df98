"""What docs/stability.md promises has not changed since its snapshot was written."""

from __future__ import annotations

import pytest

from tests.stability import FOLDER, SNAPSHOTS


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_others_rely_on_is_as_it_was(name: str) -> None:
    known = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    actual = list(SNAPSHOTS[name]())
    assert len(set(known)) == len(known) > 50
    lost = [line for line in known if line not in set(actual)]
    assert not lost, "it is gone or means something else, and others rely on it: docs/stability.md"
    new = [line for line in actual if line not in set(known)]
    assert not new, "it is new, and to be kept from now on: python -m tests.stability"
