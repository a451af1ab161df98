"""Batches: every pair once, the same for all, hardly any padding."""

from __future__ import annotations

import itertools
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ablate.config.experiment import BatchBy
from ablate.data.batches import (
    Batches,
    Encoded,
    _strips,
    bounds,
    bucket_bounds,
    padding,
    sorting,
)
from ablate.data.sentences import Ragged, Rows
from ablate.data.tokenizer import BOS, EOS, PAD
from tests.fake_cuda import CudaMachine


def random_split(n: int = 500, longest: int = 40, seed: int = 0) -> Encoded:
    draw = np.random.default_rng(seed)

    def side() -> Ragged:
        lengths = draw.integers(1, longest, n, endpoint=True)
        return Ragged.of([[*draw.integers(4, 99, length - 1).tolist(), EOS] for length in lengths])

    return Encoded(side(), side())


@pytest.fixture(scope="module")
def split() -> Encoded:
    return random_split()


@pytest.fixture(scope="module", params=get_args(BatchBy))
def by(request: pytest.FixtureRequest) -> BatchBy:
    by: BatchBy = request.param
    return by


@pytest.fixture(scope="module")
def batches(split: Encoded, by: BatchBy) -> Batches:
    return Batches(split, batch_tokens=200, pad=PAD, by=by)


def test_every_row_comes_exactly_once_in_every_epoch(split: Encoded, batches: Batches) -> None:
    for epoch in range(3):
        rows = np.concatenate(batches.epoch(1, epoch))
        assert sorted(rows.tolist()) == list(range(len(split)))
    measured = torch.cat([batch.index for batch in batches.in_order()])
    assert sorted(measured.tolist()) == list(range(len(split)))


def test_no_batch_is_larger_than_allowed(split: Encoded, batches: Batches) -> None:
    for rows in batches.epoch(1, 0):
        assert len(rows) * split.tgt.lengths[rows].max() <= 200


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    split = Encoded(
        Ragged.of([[5, EOS]] * 3), Ragged.of([[5, EOS], [5, 5, 5, 5, 5, EOS], [5, EOS]])
    )
    actual = [rows.tolist() for rows in Batches(split, 4, PAD).epoch(0, 0)]
    assert sorted(map(sorted, actual)) == [[0, 2], [1]]


def test_every_epoch_has_the_same_number_of_batches(batches: Batches) -> None:
    assert {len(batches.epoch(seed, epoch)) for seed in range(4) for epoch in range(4)} == {
        batches.n_per_epoch
    }


def test_seed_and_epoch_alone_fix_the_order(split: Encoded, batches: Batches, by: BatchBy) -> None:
    again = Batches(split, batch_tokens=200, pad=PAD, by=by)
    orders = {}
    for seed, epoch in [(1, 0), (1, 1), (2, 0)]:
        orders[seed, epoch] = [rows.tolist() for rows in batches.epoch(seed, epoch)]
        assert orders[seed, epoch] == [rows.tolist() for rows in again.epoch(seed, epoch)]
    assert orders[1, 0] != orders[1, 1]
    assert orders[1, 0] != orders[2, 0]
    grouped = [sorted(map(sorted, order)) for order in orders.values()]
    assert grouped[0] != grouped[1], "pairs of one length always share a batch"


def test_batches_by_source_follow_one_another_in_its_length(split: Encoded) -> None:
    """As fairseq's LanguagePairDataset orders pairs: by their targets, then by their sources."""
    batches = Batches(split, batch_tokens=200, pad=PAD, by="source")
    pairs = [(int(n), int(m)) for n, m in zip(split.src.lengths, split.tgt.lengths, strict=True)]
    in_order = [pairs[row] for batch in batches.in_order() for row in batch.index.tolist()]
    assert in_order == sorted(pairs)
    of_epoch = sorted(sorted(pairs[row] for row in rows) for rows in batches.epoch(3, 1))
    of_order = [[pairs[row] for row in batch.index.tolist()] for batch in batches.in_order()]
    assert of_epoch == sorted(of_order)


def test_a_bucket_bounds_both_sides_and_is_filled_at_random(split: Encoded) -> None:
    batches = Batches(split, batch_tokens=200, pad=PAD, by="bucket")
    longest = np.maximum(split.src.lengths, split.tgt.lengths)
    bounds_of = {8, 12, 16, 20, 24, 32, 40}
    held: list[set[tuple[int, ...]]] = [set(), set()]
    for epoch, of_epoch in enumerate(held):
        for rows in batches.epoch(1, epoch):
            bound = min(b for b in bounds_of if b >= longest[rows].max())
            assert len(rows) * bound <= 200
            of_epoch.add(tuple(sorted(rows.tolist())))
    assert len(held[0] & held[1]) < len(held[0]) / 4
    lengths = np.array([1, 8, 9, 56, 57, 80, 81, 1000])
    assert bucket_bounds(lengths).tolist() == [8, 8, 12, 56, 80, 80, 114, 1309]


def test_a_batch_holds_its_rows_with_bos_in_front_and_eos_at_the_end(
    split: Encoded, batches: Batches
) -> None:
    for rows in batches.epoch(1, 0):
        batch = batches.make(rows)
        assert batch.index.tolist() == rows.tolist()
        assert batch.n_tokens == batches.count_tokens(rows) == int((batch.tgt_out != PAD).sum())
        assert {x.dtype for x in (batch.src, batch.tgt_in, batch.tgt_out)} == {torch.int64}
        for i, row in enumerate(rows):
            src, tgt = split.src[row].tolist(), split.tgt[row].tolist()
            assert batch.src[i].tolist() == src + [PAD] * (batch.src.shape[1] - len(src))
            fill = [PAD] * (batch.tgt_out.shape[1] - len(tgt))
            assert batch.tgt_out[i].tolist() == tgt + fill
            assert batch.tgt_in[i].tolist() == [BOS, *tgt[:-1], *fill]


def test_the_order_of_measuring_is_not_random(batches: Batches) -> None:
    one, other = ([batch.index.tolist() for batch in batches.in_order()] for _ in range(2))
    assert one == other
    assert len(one) == batches.n_per_epoch


def test_a_batch_moves_with_everything_the_model_reads(batches: Batches) -> None:
    batch = batches.make(batches.epoch(0, 0)[0])
    same = batch.to("cpu")
    for name in ("src", "tgt_in", "tgt_out", "index"):
        assert torch.equal(getattr(same, name), getattr(batch, name)), name
    moved = batch.to("meta")
    assert {x.device.type for x in (moved.src, moved.tgt_in, moved.tgt_out)} == {"meta"}
    assert moved.n_tokens == batch.n_tokens
    assert moved.index.device.type == "cpu"


def test_ragged_keeps_sentences() -> None:
    sentences = [[7, 8, EOS], [EOS], [9, EOS]]
    ragged = Ragged.of(sentences)
    assert [ids.tolist() for ids in ragged] == sentences
    assert ragged[-1].tolist() == [9, EOS]
    assert ragged[-3].tolist() == [7, 8, EOS]
    with pytest.raises(IndexError):
        ragged[-4]
    assert [ids.tolist() for ids in ragged.take(np.array([2, 0]))] == [[9, EOS], [7, 8, EOS]]
    assert [ids.tolist() for ids in ragged.cut(2)] == [[7, EOS], [EOS], [9, EOS]]
    assert [ids.tolist() for ids in ragged] == sentences, "cutting changed the original"
    different = Ragged.of([[1, 2, 3], [4, 5, 6], [7]])
    assert [ids.tolist() for ids in different.cut(2)] == [[1, 3], [4, 6], [7]]
    assert list(Ragged.of([])) == []
    with pytest.raises(IndexError):
        ragged[3]


def likely_lengths(n: int, spread: float, seed: int = 0) -> tuple[Rows, Rows]:
    """Return lengths of sources and targets that follow one another more or less closely."""
    draw = np.random.default_rng(seed)
    src = draw.poisson(13.0, n) + 2
    tgt = np.maximum(2, np.rint(src + draw.normal(0.0, spread, n)))
    return src, tgt.astype(np.int64)


def shares(src: Rows, tgt: Rows, batch_tokens: int) -> tuple[float, float]:
    """Return the share of padding in plain order, and in the order that is taken."""
    plain = padding(src, tgt, np.lexsort((src, tgt)), batch_tokens)
    return plain, padding(src, tgt, np.lexsort(sorting(src, tgt, batch_tokens)), batch_tokens)


def test_pairs_are_put_in_strips_where_they_must() -> None:
    src, tgt = likely_lengths(29_000, spread=2.5)
    plain, actual = shares(src, tgt, 4096)
    assert plain > 0.06
    assert actual < 0.05
    random = np.random.default_rng(0)
    assert padding(src, tgt, random.permutation(len(src)), 4096) > 0.3


def test_pairs_are_sorted_plainly_where_that_will_do() -> None:
    src, tgt = likely_lengths(29_000, spread=0.3)
    assert all(map(np.array_equal, sorting(src, tgt, 4096), (src, tgt)))


def test_the_best_is_taken_where_nothing_is_good() -> None:
    src, tgt = likely_lengths(400, spread=4.0)
    plain, actual = shares(src, tgt, 1024)
    assert 0.05 < actual < plain


@pytest.mark.parametrize("seed", range(5))
def test_the_narrowest_strips_that_will_do_are_taken(seed: int) -> None:
    """Source and target differ in spread, so that the sides cannot be taken for one another."""
    draw = np.random.default_rng(seed)
    tgt = draw.poisson(13.0, 3_000) + 2
    src = np.maximum(2, np.rint(0.4 * tgt + draw.normal(0.0, 2.0, len(tgt)))).astype(np.int64)

    def share(keys: tuple[Rows, ...]) -> float:
        order = np.lexsort(keys)
        batches = [order[a:b] for a, b in pairwise(bounds(tgt[order], 1024))]
        n_ids = sum(len(x) * int(src[x].max() + tgt[x].max()) for x in batches)
        return 1 - int(src.sum() + tgt.sum()) / n_ids

    orders = [(src, tgt), *(_strips(src, tgt, n * 1024) for n in (1, 2, 3, 4))]
    shares = list(map(share, orders))
    good = next((i for i, x in enumerate(shares) if x <= 0.05), int(np.argmin(shares)))
    assert all(map(np.array_equal, sorting(src, tgt, 1024), orders[good]))


def test_padding_is_what_batches_have(split: Encoded) -> None:
    in_order = list(Batches(split, batch_tokens=200, pad=PAD).in_order())
    n_positions = sum(batch.src.numel() + batch.tgt_out.numel() for batch in in_order)
    n_tokens = int(split.src.lengths.sum() + split.tgt.lengths.sum())
    order = np.concatenate([batch.index.numpy() for batch in in_order])
    actual = padding(split.src.lengths, split.tgt.lengths, order, 200)
    assert actual == pytest.approx(1 - n_tokens / n_positions)


def test_nothing_has_no_padding() -> None:
    none = np.zeros(0, dtype=np.int64)
    assert padding(none, none, none, 10) == 0.0
    assert len(sorting(none, none, 10)) == 2


def test_a_batch_is_made_on_the_host_and_moved_at_once(split: Encoded) -> None:
    with CudaMachine() as machine:
        batches = Batches(split, 200, PAD, machine.device)
        rows = batches.epoch(1, 0)[0]
        n_launches, n_waits = machine.n_launches, machine.n_waits
        batch = batches.make(rows)
        assert (machine.n_launches, machine.n_waits) == (n_launches, n_waits)
        sides = (batch.src, batch.tgt_in, batch.tgt_out)
        assert len({x.untyped_storage().data_ptr() for x in sides}) == 1


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 30))
def test_a_batch_is_as_large_as_it_may_be(
    lengths: list[tuple[int, int]], batch_tokens: int
) -> None:
    src, tgt = (np.array(side) for side in zip(*lengths, strict=True))
    order = np.lexsort((src, tgt))
    ends = bounds(tgt[order], batch_tokens)
    assert (ends[0], ends[-1]) == (0, len(tgt))
    for start, end in itertools.pairwise(ends):
        assert end == start + 1 or (end - start) * tgt[order[start:end]].max() <= batch_tokens
        if end < len(tgt):
            with_next = (end + 1 - start) * tgt[order[start : end + 1]].max()
            assert with_next > batch_tokens, "the next pair would have had room"


def test_batches_bounds_hold_in_any_order() -> None:
    """Where lengths do not rise, the longest so far counts."""
    assert bounds(np.array([4, 1, 1, 1, 5]), 8) == [0, 2, 4, 5]
    assert bounds(np.array([9, 1, 9]), 8) == [0, 1, 2, 3]


@given(LENGTHS, st.integers(1, 60))
def test_strips_are_as_narrow_as_their_tokens_allow(
    lengths: list[tuple[int, int]], n_tokens: int
) -> None:
    src, tgt = (np.array(side) for side in zip(*lengths, strict=True))
    by_tgt, by_src, strips = _strips(src, tgt, n_tokens)
    assert by_tgt.tolist() == tgt.tolist()
    assert by_src.tolist() == [-s if strip % 2 else s for s, strip in zip(src, strips, strict=True)]
    assert set(strips) == set(range(strips.max() + 1))
    for strip in range(strips.max() + 1):
        of_strip = tgt[strips == strip]
        assert strip == 0 or of_strip.min() > tgt[strips == strip - 1].max()
        if strip < strips.max():
            assert of_strip.sum() >= n_tokens
        assert of_strip[of_strip < of_strip.max()].sum() < n_tokens, "a narrower one would do"


def test_strips_hold_whole_batches() -> None:
    src, tgt = likely_lengths(29_000, spread=2.5)
    _, _, strips = sorting(src, tgt, 4096)
    n_batches = np.bincount(strips, tgt)[:-1] / 4096
    assert n_batches.min() >= 1


def test_pairs_of_plain_order_are_measured_from_the_shortest_target_on() -> None:
    rows = np.random.default_rng(0).permutation(2_000)
    lengths = 2 + np.sort(rows % 20)[rows]
    alike = Encoded(*(Ragged.of([[5] * int(n) for n in lengths]) for _ in range(2)))
    measured = torch.cat([batch.index for batch in Batches(alike, 512, PAD).in_order()])
    assert (np.diff(lengths[measured]) >= 0).all()
    sources = Ragged.of([[5] * int(n) for n in lengths[::-1]])
    batches = Batches(Encoded(sources, alike.tgt), 10**6, PAD)
    (batch,) = batches.in_order()
    keys = [(int(lengths[row]), int(sources.lengths[row])) for row in batch.index]
    assert keys == sorted(keys)


def test_taking_rows_keeps_source_and_target_together(split: Encoded) -> None:
    rows = np.array([7, 3, 3, 499])
    taken = split.take(rows)
    for i, row in enumerate(rows):
        assert taken.src[i].tolist() == split.src[row].tolist()
        assert taken.tgt[i].tolist() == split.tgt[row].tolist()


def test_the_mean_of_tokens_is_over_the_batches_of_an_epoch(batches: Batches) -> None:
    counts = [batch.n_tokens for batch in batches.in_order()]
    assert batches.mean_tokens == pytest.approx(np.mean(counts))


def test_the_order_of_an_epoch_never_changes(split: Encoded) -> None:
    """Runs that are stored took their steps in it, and are repeated bit for bit."""
    batches = Batches(split, batch_tokens=200, pad=PAD)
    assert [rows[:2].tolist() for rows in batches.epoch(1, 2)[:4]] == [
        [163, 360],
        [339, 46],
        [315, 111],
        [65, 177],
    ]
