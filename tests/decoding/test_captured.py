"""Searches whose tokens are written by recordings, against those whose are not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding import Hypothesis, Search, decode_loop, padded, translate
from ablate.decoding.beam import Beam
from ablate.model import Transformer
from ablate.registry import build, choose, slots
from tests import tape
from tests.decoding.models import small
from tests.decoding.test_contract import sources
from tests.tiny import PARTS, VOCABULARY, fitted, scrambled, tiny

CPU = torch.device("cpu")
SEARCHES = sorted(slots()["decoding"])


@pytest.fixture(params=["work", "tape"])
def _recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings as they are on a CPU, and such that Python has no part in."""
    if request.param == "tape":
        monkeypatch.setattr(GraphCapturer, "record", tape.record)
    monkeypatch.setattr(decode_loop, "_ROOM", 6)  # so that it is doubled now and then


def search(name: str, **options: Any) -> Search:
    return build(Search, choose(Search, name, **options))


def both(
    model: Transformer, looked: Search, given: list[list[int]], batch_tokens: int = 10_000
) -> list[list[list[Hypothesis]]]:
    """Return what is found as it is, and with recordings; nothing may go wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return [
            translate(model, looked, given, batch_tokens, CPU, engine)
            for engine in ("eager", "cuda_graph")
        ]


def assert_same(expected: list[list[Hypothesis]], found: list[list[Hypothesis]]) -> None:
    for a, b in zip(expected, found, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        for score in ("score", "log_p"):
            known = [getattr(h, score) for h in b]
            assert [getattr(h, score) for h in a] == pytest.approx(known, rel=1e-5, abs=1e-4)


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("batch_tokens", [10_000, 40])
@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_found_is_the_same(name: str, batch_tokens: int) -> None:
    model, given = scrambled(tiny()), sources()
    expected, found = both(model, search(name, max_extra=9), given, batch_tokens)
    assert len({len(hypotheses[0].tokens) for hypotheses in expected}) > 3
    assert_same(expected, found)


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize(
    "options", [{"size": 1}, {"size": 4, "n_best": 4}, {"length_penalty": "none"}]
)
def test_every_beam_is_the_same(options: dict[str, Any]) -> None:
    assert_same(*both(small(), search("beam", **options), sources(n_ids=6)))


@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_no_part_comes_out_differently(
    slot: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphCapturer, "record", tape.record)
    given = [[i % (VOCABULARY.n_src - 4) + 4 for i in ids] for ids in sources(8, longest=6)]
    assert_same(*both(fitted(slot, name), search("beam", size=3, max_extra=6), given))


@pytest.mark.usefixtures("_recorder")
@pytest.mark.parametrize("name", SEARCHES)
def test_lengths_can_be_forced(name: str) -> None:
    model, given = small(), sources(6, n_ids=6)
    lengths = torch.tensor([1, 5, 3, 14, 8, 2])
    with torch.inference_mode():
        expected, found = (
            search(name).search(model, padded(given), lengths, capturer)
            for capturer in (None, GraphCapturer(CPU))
        )
    assert [{len(h.tokens) + 1 for h in of} for of in found] == [{n} for n in lengths.tolist()]
    assert_same(expected, found)


def test_most_tokens_are_written_by_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    n_recorded, n_replayed = 0, 0

    def record(capturer: GraphCapturer, work: Any) -> Any:
        nonlocal n_recorded
        n_recorded += 1
        replay = tape.record(capturer, work)

        def counted() -> Any:
            nonlocal n_replayed
            n_replayed += 1
            return replay()

        return counted

    monkeypatch.setattr(GraphCapturer, "record", record)
    model, src = scrambled(tiny(dims={"max_len": 256})), padded([[5, 6, 7, 2]] * 3)
    lengths = torch.full((3,), 128)
    with torch.inference_mode():
        search("beam").search(model, src, lengths, GraphCapturer(CPU))
    assert n_recorded == 3  # room for 32, 64 and 128 tokens
    assert 2 * n_replayed == 128 - 2 - 2 * n_recorded  # the first, the last, and what warms up


def test_what_cannot_be_recorded_is_done_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def curious(self: Beam, length: torch.Tensor) -> torch.Tensor:
        assert float(length.sum()) > 0
        return penalty(self, length)

    model, given, penalty = small(), sources(20, n_ids=6), Beam.penalty
    expected = translate(model, search("beam"), given, 10_000, CPU)
    monkeypatch.setattr(GraphCapturer, "record", tape.record)
    monkeypatch.setattr(Beam, "penalty", curious)
    with pytest.warns(UserWarning, match="could not be recorded: operation not permitted: to ask"):
        found = translate(model, search("beam"), given, 10_000, CPU, "cuda_graph")
    assert_same(expected, found)


def test_a_search_that_counts_on_the_host_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = small(), sources(20, n_ids=6)
    expected = translate(model, search("greedy"), given, 10_000, CPU)
    search_state = type(search("greedy").start(torch.tensor([3])))
    advance = search_state.advance

    def counting(self: Any, *args: Any) -> None:
        self.n = getattr(self, "n", 1) + 1
        advance(self, *args)

    monkeypatch.setattr(GraphCapturer, "record", tape.record)
    monkeypatch.setattr(search_state, "advance", counting)
    with pytest.warns(UserWarning, match="_Path.n changes and is no tensor"):
        found = translate(model, search("greedy"), given, 10_000, CPU, "cuda_graph")
    assert_same(expected, found)


@pytest.mark.gpu
@pytest.mark.parametrize("name", SEARCHES)
def test_on_a_gpu_too(name: str) -> None:
    model, given = scrambled(tiny()).cuda(), sources()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, found = (
            translate(model, search(name, max_extra=9), given, 10_000, torch.device("cuda"), engine)
            for engine in ("eager", "cuda_graph")
        )
    assert_same(expected, found)
