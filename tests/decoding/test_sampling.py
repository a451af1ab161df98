"""Sampling against the probabilities of a model, and the choice among samples by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding import Hypothesis, Search, pad_sources, translate
from ablate.decoding.sampling import MinimumBayesRisk, Sampler, _keys, _splitmix64
from ablate.registry import build, choose
from tests.decoding.models import Markov, V, log_likelihood

CPU = torch.device("cpu")
SOURCE = [4, 5, EOS]
N = 3000


def search(name: str = "sample", **options: Any) -> Any:
    return build(Search, choose(Search, name, **options))


def first_tokens(**options: Any) -> Counter[int]:
    """Return how often each token is the first of so many samples."""
    sampler = search("minimum_bayes_risk", n_samples=N, max_extra=0, **options)
    state = sampler.initial_state(torch.tensor([SOURCE]), torch.tensor([3]))
    log_p, tokens = expected(**options)
    shape = 1, N, -1
    state.advance(log_p.expand(shape), tokens.expand(shape), torch.tensor([1]))
    return Counter(state.tokens[0, :, 1].tolist())


def expected(top_k: int | None = None, **_: Any) -> tuple[Tensor, Tensor]:
    """Return the candidates for the first token, likeliest first, as a search gets them."""
    log_p = Markov().table[SOURCE[0], BOS].log_softmax(dim=-1)
    log_p[[PAD, BOS]] = -torch.inf
    top = log_p.topk(top_k or V)
    return top.values, top.indices


def allowed(temperature: float, top_k: int, top_p: float) -> dict[int, float]:
    """Return the probability of every token that may be drawn."""
    log_p = Markov().table[SOURCE[0], BOS].log_softmax(dim=-1)
    weights = {t: float((log_p[t] / temperature).exp()) for t in range(V) if t not in (PAD, BOS)}
    likeliest = sorted(weights, key=lambda t: -weights[t])[:top_k]
    total, mass, nucleus = sum(weights[t] for t in likeliest), 0.0, []
    for t in likeliest:
        if mass < top_p:
            nucleus.append(t)
        mass += weights[t] / total
    total = sum(weights[t] for t in nucleus)
    return {t: weights[t] / total for t in nucleus}


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, V, 1.0), (0.5, V, 1.0), (2.0, V, 1.0), (1.0, 2, 1.0), (1.0, V, 0.7), (2.0, 3, 0.8)],
)
def test_tokens_are_drawn_with_their_probabilities(
    temperature: float, top_k: int, top_p: float
) -> None:
    actual = first_tokens(temperature=temperature, top_k=top_k, top_p=top_p)
    probabilities = allowed(temperature, top_k, top_p)
    assert set(actual) <= set(probabilities)
    for token, p in probabilities.items():
        assert actual[token] / N == pytest.approx(p, abs=4 * (p * (1 - p) / N) ** 0.5 + 1e-9), token


def test_one_candidate_is_greedy_search() -> None:
    model, sources = Markov(), [SOURCE, [5, EOS], [3, 4, 5, EOS]]
    greedy = translate(model, search("greedy"), sources, 60, CPU)
    assert translate(model, search(top_k=1), sources, 60, CPU) == greedy
    assert translate(model, search(top_p=1e-9), sources, 60, CPU) == greedy


@pytest.mark.parametrize("max_extra", [0, 20])
def test_all_tokens_are_drawn_from_as_so_many_sorted_candidates(max_extra: int) -> None:
    model, src = Markov(), pad_sources([SOURCE, [5, EOS], [3, 4, 5, EOS]])
    for seed in range(20):
        options = {"n_samples": 3, "seed": seed, "max_extra": max_extra}
        whole = search("minimum_bayes_risk", **options)
        some = search("minimum_bayes_risk", top_k=V, **options)
        assert (whole.n_candidates, some.n_candidates) == (None, V)
        assert whole.search(model, src) == some.search(model, src)
        n_tokens = torch.tensor([4, 2, 7])
        assert whole.search(model, src, n_tokens) == some.search(model, src, n_tokens)


def test_samples_depend_on_seed_source_number_and_token() -> None:
    model = Markov()
    sources = [[4, 5, EOS], [4, 4, EOS], [4, 5, 5, EOS]]
    actual = {
        seed: [
            h[0].tokens for h in translate(model, search(seed=seed, max_extra=20), sources, 60, CPU)
        ]
        for seed in range(20)
    }
    for column in range(3):
        assert len({tuple(tokens[column]) for tokens in actual.values()}) > 3
    assert len({_keys(torch.tensor([s]), 1).item() for s in ([4, 5, 2], [5, 4, 2], [4, 5, 3])}) == 3
    same = _keys(torch.tensor([[4, 5, EOS, PAD, PAD], [4, 4, 4, 4, EOS]]), 1)
    assert same[0] == _keys(torch.tensor([[4, 5, EOS]]), 1)[0]


@pytest.mark.parametrize("name", ["sample", "minimum_bayes_risk"])
def test_a_seed_has_at_most_63_bits(name: str) -> None:
    largest = search(name, seed=2**63 - 1, max_extra=2)
    assert translate(Markov(), largest, [SOURCE], 60, CPU)[0]
    with pytest.raises(ValidationError, match=f"less than {2**63}"):
        search(name, seed=2**63)


def split_mix(state: int) -> int:
    """Return the output of SplitMix64 after ``state``, by Vigna's C code (splitmix64.c, 2015)."""
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def test_bits_are_mixed_as_published() -> None:
    """From the state 1234567, as in Rosetta Code, "Pseudo-random numbers/Splitmix64"."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = [1234567 + n * 0x9E3779B97F4A7C15 for n in range(3)]
    assert [split_mix(state) for state in states] == published
    x = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 1234567, *range(1000, 1100)])
    assert [n % 2**64 for n in _splitmix64(x).tolist()] == [split_mix(n) for n in x.tolist()]


def test_random_numbers_follow_the_plain_formula() -> None:
    (source,) = sources = [[4, 5, 7]]
    sampler = search("minimum_bayes_risk", n_samples=3, seed=11)
    state = sampler.initial_state(torch.tensor(sources), torch.tensor([9]))
    step, ids = 2, [4, 9]
    key = split_mix(sum(split_mix(id_ + (n << 32)) for n, id_ in enumerate(source, 1)) + 11)
    actual = state._uniform(torch.tensor(ids).expand(1, 3, 2), torch.tensor([step]))
    for sample, of_sample in enumerate(actual[0].tolist()):
        stream = split_mix(key + split_mix(step + (sample << 32)))
        expected = [((split_mix(stream + id_) >> 11) + 0.5) / 2**53 for id_ in ids]
        assert of_sample == expected


def test_random_numbers_are_uniform_and_not_correlated() -> None:
    sampler = search("minimum_bayes_risk", n_samples=200)
    state = sampler.initial_state(torch.arange(4, 24).reshape(10, 2), torch.full((10,), 9))
    tokens = torch.arange(50).expand(10, 200, 50)
    one, other = (state._uniform(tokens, torch.tensor([n])) for n in (1, 2))
    assert 0 < one.min() < 1e-4
    assert 1 - 1e-4 < one.max() < 1
    n = one.numel()
    assert one.mean().item() == pytest.approx(0.5, abs=5 * (1 / 12 / n) ** 0.5)
    for left, right in ((one, other), (one[1:], one[:-1]), (one[:, 1:], one[:, :-1]),
                        (one[..., 1:], one[..., :-1])):  # fmt: skip
        assert abs(((left - 0.5) * (right - 0.5)).mean().item() * 12) < 5 / left.numel() ** 0.5


def f1(one: list[int], other: list[int]) -> float:
    values = []
    for n in range(1, 5):
        grams = [[tuple(x[i : i + n]) for i in range(len(x) - n + 1)] for x in (one, other)]
        if not grams[0] + grams[1]:
            continue
        matches = sum(min(grams[0].count(g), grams[1].count(g)) for g in set(grams[0]))
        values.append(2 * matches / (len(grams[0]) + len(grams[1])))
    return sum(values) / len(values) if values else 1.0


def test_the_least_risk_by_hand() -> None:
    texts = [[3, 4, 5], [3, 4, 4, 5], [5, 5, 5, 5, 5], [], [3, 4, 5, 5], []]
    sampler = search("minimum_bayes_risk")
    assert isinstance(sampler, MinimumBayesRisk)
    samples = [Hypothesis(tokens, -float(i), -float(i)) for i, tokens in enumerate(texts)]
    (best,) = sampler.rank(samples)
    risks = [sum(f1(tokens, other) for other in texts) / len(texts) for tokens in texts]
    assert best.score == pytest.approx(max(risks))
    assert best.tokens == texts[risks.index(max(risks))]
    assert best.log_p == -float(risks.index(max(risks)))


def test_empty_samples_agree_with_each_other_alone() -> None:
    sampler = search("minimum_bayes_risk")
    assert isinstance(sampler, MinimumBayesRisk)
    samples = [Hypothesis(tokens, -1.0, -1.0) for tokens in ([], [4], [])]
    (best,) = sampler.rank(samples)
    assert best.tokens == [], "two empty samples must agree more than a sample that is alone"
    assert best.score == pytest.approx(2 / 3)


def test_the_choice_is_among_the_samples_of_the_sentence() -> None:
    model, sampler = Markov(), search("minimum_bayes_risk", n_samples=8, max_extra=6)
    assert isinstance(sampler, Sampler)
    with torch.inference_mode():
        (actual,) = sampler.search(model, pad_sources([SOURCE]))
    assert len(actual) == 1
    assert actual[0].log_p == pytest.approx(
        log_likelihood(model, SOURCE, actual[0].tokens), rel=1e-5
    )
    assert 1 / 8 <= actual[0].score <= 1
