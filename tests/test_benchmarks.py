"""What benchmarks count, and what they refuse before they measure."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import contexts
import decoding_speed
import parts_cost
import pytest
import scale
import step_profile
import torch
import training_speed
from peers import race
from peers.race import Contender, Entry, _combined
from torch import Tensor, nn

from ablate import api, measuring
from ablate.data.corpus import Bitext
from ablate.decoding import Search
from ablate.registry import build
from ablate.runner import devices
from ablate.runner.devices import Device


class NoCounter(nullcontext[None]):
    """Counts no FLOPs; the real counter imports for seconds."""

    def get_total_flops(self) -> int:
        return 0


def test_saved_memory_is_counted_once_and_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A square saves its argument twice, a sigmoid its result, a product a view of its weight."""
    model = nn.Linear(4, 4, bias=False)

    def step(batch: list[Tensor]) -> None:
        y = model(batch[0]).sigmoid()
        (y * y).sum().backward()

    engine: Any = SimpleNamespace(model=model, step=step)
    batches: list[Any] = [torch.ones(3, 4, requires_grad=True) for _ in range(5)]
    monkeypatch.setattr(step_profile, "FlopCounterMode", lambda display: NoCounter())
    _, n_saved = step_profile.work(engine, batches)
    assert n_saved == 2 * 3 * 4 * 4, "the input and the sigmoid, in single precision"


def test_the_share_of_preparing_is_that_of_the_longest_run_side_by_side() -> None:
    rounds = [
        {"seconds": 4.0, "n_tokens": 10, "n_places": 20, "preparing_seconds": 3.0},
        {"seconds": 5.0, "n_tokens": 20, "n_places": 20, "preparing_seconds": 3.5},
    ]
    entry = Entry(Contender("ours", "", "ours", n_runs=2), rounds=[_combined(rounds)])
    training_speed.measure(entry, n_steps=3)
    assert entry.facts["preparing_share"] == 0.7
    assert entry.rounds[0]["target_tokens_per_second"] == 6.0
    assert entry.facts["target_padding_share"] == 0.25


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_gpu_is_measured_as_runs_use_it(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def probe(*_: object) -> dict[str, float]:
        calls.append("probe")
        return {"train_target_tokens_per_second": 1.0, "train_peak_mib": 1.0}

    monkeypatch.setattr(devices, "find", lambda _: [Device(device)])
    monkeypatch.setattr(devices, "resolve", lambda *_: "fp32")
    monkeypatch.setattr(devices, "compute_deterministically", lambda: calls.append("set up"))
    monkeypatch.setattr(measuring, "probe", probe)
    monkeypatch.setattr(parts_cost, "prepare", lambda _: None)
    parts_cost.peak(Namespace(device=device, preset="laptop", one="[]"))
    assert calls == (["set up", "probe"] if device == "cuda" else ["probe"])


@pytest.mark.parametrize("corpus", ["multi30k", "synthetic"])
def test_the_race_in_decoding_has_a_beam_without_length_penalty(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "prepare", lambda _: None)
    run, _ = race.prepared(Namespace(corpus=corpus, preset="tiny"), *decoding_speed.CHANGES)
    search: Any = build(Search, run.decoding)
    assert (search.n_beams, search.alpha) == (5, 0.0)


def test_translations_of_a_race_are_scored_by_the_first_sentences() -> None:
    tokenizers = SimpleNamespace(decode_tgt=lambda ids: " ".join(map(str, ids)))
    text = SimpleNamespace(tgt="de", is_tokenised=False)
    corpus: Any = SimpleNamespace(tokenizers=tokenizers, text=text)
    entry = Entry(Contender("ours", "", "ours"))
    entry.rounds = [{"seconds": 2.0, "hypotheses": [[1, 2, 3, 4], [5, 6, 7, 8, 9]]}]
    test = Bitext(("a", "b", "c"), ("1 2 3 4", "5 6 7 8 9", "0"))
    decoding_speed.judge([entry], corpus, test)
    assert entry.rounds == [{"seconds": 2.0, "sentences_per_second": 1.0}]
    assert entry.facts["bleu"] == pytest.approx(100)
    assert (entry.facts["n_tokens"], entry.facts["equal_to_ours"]) == (11, 1.0)


def test_rates_over_contexts_come_with_their_monte_carlo_error() -> None:
    line = contexts.simulated(contexts.Line(2, 0.5, unequal=True), n=2, seed=1)
    assert line.here is None
    assert line.error == pytest.approx((0.95 * 0.05 / 2) ** 0.5)


def test_commands_on_a_small_store_train_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_missing = []

    def measure(_: object, name: str, words: list[str], __: str) -> None:
        if name.endswith(": run, all done"):
            results = words[words.index("--results") + 1]
            n_missing.append(api.plan(words[1], device="cpu", results=results).n_missing)

    monkeypatch.setattr(scale, "_measure", measure)
    monkeypatch.setattr(scale, "Process", Thread)
    monkeypatch.setattr(scale, "N_ROWS", 3)
    scale._measure_store({}, tmp_path, n_runs=6)
    assert n_missing == [0]
