"""Searches whose tokens are written by captures, against those whose are not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from ablate.cuda_graphs import GraphCapturer
from ablate.decoding import Hypothesis, Search, decode_loop, pad_sources, translate
from ablate.decoding.beam import Beam
from ablate.errors import EngineError
from ablate.model import Decodable, Ensemble
from ablate.registry import build, choose, slots
from tests import tape
from tests.decoding.models import small
from tests.decoding.test_contract import sources
from tests.fake_cuda import CudaMachine
from tests.tiny import PARTS, VOCABULARY, mixed, mixtures, scrambled, tiny

CPU = torch.device("cpu")
SEARCHES = sorted(slots()["decoding"])


@pytest.fixture(params=["work", "tape"])
def _captures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captures as they are on a CPU, and such that Python does not run again."""
    if request.param == "tape":
        monkeypatch.setattr(GraphCapturer, "capture", tape.capture)
    monkeypatch.setattr(decode_loop, "_INITIAL_CAPACITY", 6)  # doubled now and then
    monkeypatch.setattr(decode_loop, "_RECAPTURE_BELOW", 0.5)  # sentences leave early


def search(name: str, **options: Any) -> Search:
    return build(Search, choose(Search, name, **options))


def both(
    model: Decodable, search: Search, sentences: list[list[int]], batch_tokens: int = 10_000
) -> list[list[list[Hypothesis]]]:
    """Return the hypotheses without captures, and with them."""
    return [
        translate(model, search, sentences, batch_tokens, CPU, capturer)
        for capturer in (None, GraphCapturer(CPU))
    ]


def assert_same(expected: list[list[Hypothesis]], actual: list[list[Hypothesis]]) -> None:
    for a, b in zip(expected, actual, strict=True):
        assert [h.tokens for h in a] == [h.tokens for h in b]
        for score in ("score", "log_p"):
            known = [getattr(h, score) for h in b]
            assert [getattr(h, score) for h in a] == pytest.approx(known, rel=1e-5, abs=1e-4)


@pytest.mark.usefixtures("_captures")
@pytest.mark.parametrize("batch_tokens", [10_000, 40])
@pytest.mark.parametrize("name", SEARCHES)
def test_hypotheses_are_the_same(name: str, batch_tokens: int) -> None:
    model, sentences = small(vocabulary=VOCABULARY), sources(20)
    expected, actual = both(model, search(name, max_extra=9), sentences, batch_tokens)
    assert len({len(hypotheses[0].tokens) for hypotheses in expected}) > 3
    assert_same(expected, actual)


@pytest.mark.usefixtures("_captures")
@pytest.mark.parametrize(
    "options",
    [{"size": 1}, {"size": 4, "n_best": 4}, {"length_penalty": "none"}, {"coverage": 0.5}],
)
def test_every_beam_is_the_same(options: dict[str, Any]) -> None:
    assert_same(*both(small(), search("beam", **options), sources(n_ids=6)))


@pytest.mark.usefixtures("_captures")
def test_an_ensemble_is_the_same() -> None:
    ensemble = Ensemble([scrambled(tiny()), scrambled(tiny(n_layers=1))])
    expected, actual = both(ensemble, Beam(size=3, max_extra=9), sources(12))
    assert len({len(hypotheses[0].tokens) for hypotheses in expected}) > 2
    assert_same(expected, actual)


@pytest.mark.full
@pytest.mark.parametrize("parts", mixtures(PARTS), ids=str)
def test_no_part_comes_out_differently(
    parts: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphCapturer, "capture", tape.capture)
    sentences = [[i % (VOCABULARY.n_src - 4) + 4 for i in ids] for ids in sources(8, longest=6)]
    for model in mixed(parts):
        assert_same(*both(model, search("beam", size=3, max_extra=6), sentences))


@pytest.mark.usefixtures("_captures")
@pytest.mark.parametrize("name", SEARCHES)
def test_lengths_can_be_forced(name: str) -> None:
    model, sentences = small(), sources(6, n_ids=6)
    lengths = torch.tensor([1, 5, 3, 14, 8, 2])
    with torch.inference_mode():
        expected, actual = (
            search(name).search(model, pad_sources(sentences), lengths, capturer)
            for capturer in (None, GraphCapturer(CPU))
        )
    assert [{len(h.tokens) + 1 for h in of} for of in actual] == [{n} for n in lengths.tolist()]
    assert_same(expected, actual)


def test_most_tokens_are_written_by_replays(machine: CudaMachine) -> None:
    model, src = small(max_len=256), pad_sources([[5, 4, 5, 2]] * 3)
    lengths = torch.full((3,), 128)
    capturer = GraphCapturer(machine.device)
    with torch.inference_mode():
        search("greedy").search(model, src, lengths, capturer)
    assert capturer.n_captures == 2  # room for 64 and 128 tokens
    assert 2 * machine.n_replays == 128 - 2 - 2 * 2  # the first, the last, and what warms up


def test_sentences_that_end_one_by_one_take_few_captures(machine: CudaMachine) -> None:
    """Half of the tokens and more are written by replays, not by what prepares them."""
    model, src = small(max_len=64), pad_sources([[5, 4, 5, 2]] * 16)
    lengths = torch.arange(16, 48, 2)
    capturer = GraphCapturer(machine.device)
    with torch.inference_mode():
        search("greedy").search(model, src, lengths, capturer)
    assert capturer.n_captures <= 3
    assert 2 * machine.n_replays > 0.75 * int(lengths.max())


def test_test_sets_and_batches_share_a_capturer(machine: CudaMachine) -> None:
    """On a device that is not the current one; the pool outlives the captures of each batch."""
    model, sentences = small(), sources(8, n_ids=6, longest=6)
    greedy = search("greedy", max_extra=6)
    expected = translate(model, greedy, sentences, 12, machine.device)
    capturer = GraphCapturer(machine.device)
    for _ in range(2):
        assert_same(expected, translate(model, greedy, sentences, 12, machine.device, capturer))
    assert machine.n_captures > 3
    assert machine.n_dealt == [0, 1], "one stream, of the device"


@pytest.mark.usefixtures("machine")
def test_no_deterministic_detour_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[bool] = []
    penalty = Beam.penalty

    def observe(self: Beam, length: torch.Tensor) -> torch.Tensor:
        modes.append(torch.are_deterministic_algorithms_enabled())
        return penalty(self, length)

    monkeypatch.setattr(Beam, "penalty", observe)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        translate(small(), search("beam", max_extra=3), [[4, 2]], 10, CPU)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert modes
    assert not any(modes)


def curious(self: Beam, length: torch.Tensor) -> torch.Tensor:
    assert float(length.sum()) > 0
    return (((5 + length.double()) / 6) ** self.alpha).float()


def test_what_cannot_be_captured_ends_the_process(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Beam, "penalty", curious)
    capturer = GraphCapturer(machine.device)
    with pytest.raises(EngineError, match=r"^decoding could not be captured as a CUDA"):
        translate(small(), search("beam"), sources(9, n_ids=6), 10_000, machine.device, capturer)


def test_a_search_that_declares_so_is_not_captured(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Beam, "penalty", curious)
    monkeypatch.setattr(Beam, "capture_blocker", "asks for numbers")
    model, sentences = small(), sources(5, n_ids=6, longest=5)
    capturer = GraphCapturer(machine.device)
    translate(model, search("beam"), sentences, 10_000, machine.device, capturer)
    assert capturer.n_captures == 0


def test_a_search_that_counts_on_the_host_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sentences = small(), sources(20, n_ids=6)
    search_state = type(search("greedy").initial_state(torch.tensor([[2]]), torch.tensor([3])))
    advance = search_state.advance

    def counting(self: Any, *args: Any) -> None:
        self.n = getattr(self, "n", 1) + 1
        advance(self, *args)

    monkeypatch.setattr(search_state, "advance", counting)
    expected = (
        "_GreedyState.n changes from token to token and is no tensor; .* declare a capture_blocker"
    )
    with pytest.raises(EngineError, match=expected):
        translate(model, search("greedy"), sentences, 10_000, CPU, GraphCapturer(CPU))


@pytest.mark.parametrize("name", SEARCHES)
def test_our_searches_declare_no_blocker(name: str) -> None:
    assert search(name).capture_blocker == ""


@pytest.mark.gpu
@pytest.mark.parametrize("name", SEARCHES)
def test_on_a_gpu_too(name: str) -> None:
    model, sentences, gpu = scrambled(tiny()).cuda(), sources(), torch.device("cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, actual = (
            translate(model, search(name, max_extra=9), sentences, 10_000, gpu, capturer)
            for capturer in (None, GraphCapturer(gpu))
        )
    assert_same(expected, actual)
