"""What a rank gets from the first one, and in which order the ranks go."""

from __future__ import annotations

import pytest
from torch import Tensor

from ablate.training import ranks as ranks_module
from ablate.training.ranks import ALONE, Ranks


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the first of several ranks has sent, whose place the broadcast takes."""
    values: list[float] = []

    class Group:
        @staticmethod
        def broadcast(value: Tensor, src: int) -> None:
            assert src == 0, "only the first rank computes"
            if values:
                value.fill_(values.pop(0))
            else:
                values.append(value.item())

    monkeypatch.setattr(ranks_module, "distributed", Group)
    return values


def test_the_first_rank_computes_and_the_others_get_its_number(sent: list[float]) -> None:
    """In double precision."""
    assert Ranks(0, 2).from_first(lambda: 0.1) == 0.1
    assert sent == [0.1]

    def not_here() -> float:
        raise AssertionError("only the first rank computes")

    assert Ranks(1, 2).from_first(not_here) == 0.1
    assert ALONE.from_first(lambda: 0.2) == 0.2
    assert not sent, "a rank alone sends nothing"


def test_the_first_rank_goes_first(sent: list[float]) -> None:
    """It sends something after its turn, for which the others wait before theirs."""
    with Ranks(0, 2).first_rank_first():
        assert not sent
    assert len(sent) == 1
    with Ranks(1, 2).first_rank_first():
        assert not sent
    with ALONE.first_rank_first():
        pass
    assert not sent
