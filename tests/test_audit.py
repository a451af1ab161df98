"""The audit of the notebooks, line by line: each line of docs/audit.md is one test that names it.

The notebooks are held against the presets ``notebook_0`` to ``notebook_3``; the lines of notebook 4
stand in ``test_audit_notebook_4.py``. Where a part has the test already, the line calls it.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ablate import api, measuring
from ablate.data.batches import Batch
from ablate.data.tokenizer import Tokenizer
from ablate.parts.attention import Attention
from ablate.parts.dims import Dims, Dropout
from ablate.parts.embedding import Vocabulary
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Group, Optimizer
from ablate.parts.scaling import Scaling
from ablate.parts.schedule import Schedule
from ablate.registry import build, choose
from tests import test_audit_notebook_4
from tests.data.texts import corpus_text
from tests.parts import test_feed_forward as feed_forwards
from tests.parts import test_norm as norms
from tests.parts import test_position_absolute as positions
from tests.presets import JOINT, PAD, ROOT, built, preset, shallow, table_of
from tests.test_audit_notebook_4 import SRC, TGT


def truth(length: int, width: int = 512) -> Tensor:
    """Return the paper's sinusoids in double precision, retyped from its formula."""
    angles = [[p / 10_000 ** (2 * k / width) for k in range(width // 2)] for p in range(length)]
    rows = [[f(a) for a in row for f in (math.sin, math.cos)] for row in angles]
    return torch.tensor(rows, dtype=torch.float64)


def modules_of(model: nn.Module, kind: type[nn.Module]) -> list[nn.Module]:
    """Return all modules of one kind."""
    return [module for module in model.modules() if isinstance(module, kind)]


def assert_rounded(table: Tensor, exact: Tensor) -> None:
    """Assert that a single-precision table is the exact one, rounded once."""
    torch.testing.assert_close(table, exact.float(), atol=6e-8, rtol=0)


def test_every_line_of_the_audit_is_a_test() -> None:
    page = (ROOT.parent / "docs" / "audit.md").read_text(encoding="utf-8")
    lines = [f"s{line}_{i}" for line, i in re.findall(r"^\| S(\d)\.(\d+) \|", page, re.MULTILINE)]
    assert len(lines) == 36
    names = [*globals(), *vars(test_audit_notebook_4)]
    tests = [name.split("_")[1:3] for name in names if name.startswith("test_s")]
    assert sorted("_".join(line) for line in tests) == sorted(lines)


# Notebook 0


def test_s0_1_embeddings_are_scaled_by_the_root_of_the_width() -> None:
    embedding = shallow("notebook_0").embedding
    ids = torch.arange(JOINT.n_src)[None]
    assert torch.equal(embedding.src(ids)[0], embedding.tgt_table.weight * math.sqrt(512))
    assert embedding.src(ids).std().item() == pytest.approx(1.0, abs=0.01)
    as_in_torch = built("notebook_0", n_layers=1, embedding={"init_std": 1.0}).embedding
    assert as_in_torch.src(ids).std().item() == pytest.approx(22.6, abs=0.1)


def test_s0_2_sines_and_cosines_alternate() -> None:
    table = table_of("notebook_0")
    assert table.shape == (256, 512)
    assert_rounded(table, truth(256))


def test_s0_3_the_table_is_no_parameter_moves_along_and_survives_saving() -> None:
    model, other = shallow("notebook_0"), built("notebook_0", n_layers=1)
    assert not list(model.encoder.position.parameters())
    other.load_state_dict(model.state_dict())
    assert torch.equal(*(next(m.encoder.position.buffers()) for m in (model, other)))
    (moved,) = other.to("meta").encoder.position.buffers()
    assert moved.is_meta


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("shift", [1, 7, 50])
def test_s0_4_a_shift_is_one_linear_map_for_all_positions(shift: int) -> None:
    model = built("notebook_0", n_layers=1)
    table = model.encoder.position.embed(torch.zeros(1, 200, 512), torch.arange(200))[0]
    angles = [shift / 10_000 ** (2 * k / 512) for k in range(256)]
    turns = [
        torch.tensor([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) for a in angles
    ]
    moved = table[:-shift] @ torch.block_diag(*turns).T
    torch.testing.assert_close(table[shift:], moved, atol=1e-12, rtol=0)


def test_s0_5_shorter_sequences_take_the_beginning_and_longer_ones_are_refused() -> None:
    model = shallow("notebook_0")
    x = torch.zeros(1, 7, 512)
    assert torch.equal(
        model.encoder.position.embed(x, torch.arange(7))[0], table_of("notebook_0")[:7]
    )
    with pytest.raises(ValueError, match=r"257 tokens is longer than model\.dims\.max_len \(256\)"):
        model.encode(torch.ones(1, 257, dtype=torch.long))


def test_s0_6_dropout_acts_on_the_sum_of_embedding_and_position() -> None:
    model = built("notebook_0", n_layers=1)
    inputs: list[Tensor] = []
    model.encoder.layers[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    ids = torch.arange(4, 204)[None]
    whole = model.embedding.src(ids) + table_of("notebook_0")[:200]
    model.encode(ids)
    model.train().encode(ids)
    in_evaluation, in_training = inputs
    assert torch.equal(in_evaluation, whole)
    is_kept = in_training != 0
    assert 1 - is_kept.float().mean().item() == pytest.approx(0.1, abs=0.01)
    torch.testing.assert_close(in_training[is_kept], whole[is_kept] / 0.9, rtol=2e-5, atol=0)


def test_s0_7_a_logit_depends_on_the_targets_before_it_alone() -> None:
    model = shallow("notebook_0")
    before = model(SRC, TGT)
    for t in range(1, TGT.size(1)):
        later = TGT.clone()
        later[:, t:] += 10
        after = model(SRC, later)
        assert torch.equal(before[:, :t], after[:, :t])
        assert not torch.equal(before[:, t], after[:, t])


def test_s0_8_six_layers_on_either_side_each_sublayer_with_its_norm() -> None:
    with torch.device("meta"):
        model = built("notebook_0")
    assert (len(model.encoder.blocks), len(model.decoder.blocks)) == (6, 6)
    assert len(modules_of(model, nn.LayerNorm)) == 6 * 2 + 6 * 3
    assert preset("notebook_0").model.residual.name == "post"


# Notebook 1


def test_s1_1_notebook_1_is_notebook_0_once_its_five_mistakes_are_corrected() -> None:
    """The corrections: a root of a number, an assignment, a logarithm, a minus, no gradient."""
    one, zero = shallow("notebook_1"), shallow("notebook_0")
    ids = torch.arange(4, 104)[None]
    ends = [m.encoder.position.embed(m.embedding.src(ids), torch.arange(100)) for m in (one, zero)]
    assert torch.equal(*ends)
    rates = torch.exp(-torch.arange(0, 512, 2, dtype=torch.float64) * math.log(10_000) / 512)
    angles = torch.arange(256)[:, None] * rates
    corrected = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    assert_rounded(table_of("notebook_1"), corrected)


def test_s1_2_six_pieces_are_six_vectors_and_any_length_will_do() -> None:
    tokenizers = build(Tokenizer, choose(Tokenizer, "bpe", vocab_size=120)).train(corpus_text())
    sentence = next(
        ids for ids in tokenizers.encode_src(list(corpus_text().train.src)) if len(ids) == 6
    )
    model = shallow("notebook_1")
    assert model.embedding.src(torch.tensor([sentence]))[0].shape == (6, 512)
    for length in (1, 2, 100, 256):
        states = model.encode(torch.full((1, length), 5)).states
        assert states.shape == (1, length, 512)


def test_s1_3_frequencies_fall_from_one() -> None:
    """True by construction: no option can lose the minus, and every exponent falls."""
    sines = table_of("notebook_1")[1, 0::2].double().asin()
    assert sines[0].item() == pytest.approx(1.0, abs=1e-6)
    assert sines[-1].item() == pytest.approx(1.0366e-4, rel=1e-4)
    assert bool((sines[1:] < sines[:-1]).all())
    for exponent in ("paper", "literal_2i", "t2t"):
        first = positions.sinusoidal(exponent=exponent)[1, 0::2].double().asin()
        assert bool((first[1:] < first[:-1]).all())


# Notebook 2


def test_s2_1_all_108_numbers_of_the_book_are_printed() -> None:
    printed = [f"{value:.8e}" for row in (2, 10) for value in table_of("notebook_2")[row].tolist()]
    two, ten = printed[:512], printed[512:]
    book = (positions.HEAD_2, positions.TAIL_2, positions.HEAD_10, positions.TAIL_10)
    assert sum(map(len, book)) == 108
    assert (two[:28], two[-28:], ten[:24], ten[-28:]) == book


@pytest.mark.parametrize(
    ("name", "cosine"),
    [("notebook_2", 0.8600013), ("vaswani_base", 0.7225201), ("t2t_v1", 0.7235945)],
)
def test_s2_2_the_cosine_of_positions_2_and_10_tells_three_formulas_apart(
    name: str, cosine: float
) -> None:
    table = table_of(name)
    actual = torch.cosine_similarity(table[2], table[10], dim=0).item()
    assert round(actual, 7) == cosine


@pytest.mark.parametrize("name", ["notebook_0", "notebook_2", "t2t_v1"])
def test_s2_3_a_sinusoid_has_one_length_and_knows_distances_alone(name: str) -> None:
    table = table_of(name).double()
    torch.testing.assert_close(table.square().sum(-1), torch.full((256,), 256.0).double())
    for p, q in ((1, 9), (50, 58), (240, 248)):
        assert (table[p] @ table[q] - table[2] @ table[10]).abs() < 1e-4


def test_s2_4_eight_heads_of_64_make_512() -> None:
    dims = preset("notebook_2").model.dims
    assert (dims.n_heads, dims.d_k, dims.d_v) == (8, 64, 64)
    attention = shallow("notebook_2").encoder.blocks[0].attention
    assert {tuple(w.weight.shape) for w in (attention.q, attention.out)} == {(512, 512)}
    scaling = build(Scaling, preset("notebook_2").model.scaling, dims)
    q, k = torch.randn(2, 1, 8, 5, 64)
    scores = scaling.scores(scaling.query(q) @ scaling.key(k).mT)
    torch.testing.assert_close(scores, q @ k.mT / 8.0)


def test_s2_5_a_feed_forward_is_two_convolutions_of_width_one() -> None:
    feed_forwards.test_relu_equals_two_convolutions_of_width_one(torch.randn(2, 5, 32).double())
    layer = shallow("notebook_2").encoder.blocks[0].feed_forward
    shapes = [tuple(w.shape) for w in layer.parameters()]
    assert shapes == [(2048, 512), (2048,), (512, 2048), (512,)]


def test_s2_6_the_variance_of_layer_norm_is_of_squares_and_biased() -> None:
    """The book's formula lacks the square: the mean of deviations is 0, whatever they are."""
    x = torch.randn(3, 4, norms.D).double() + 0.7
    norms.test_layer_norm_by_hand(1e-5, x)
    assert (x - x.mean(-1, keepdim=True)).mean(-1).abs().max() < 1e-12


def test_s2_7_what_leaves_a_sublayer_has_mean_0_and_variance_1() -> None:
    model = built("notebook_2", n_layers=2)
    left: list[Tensor] = []
    for norm in modules_of(model, nn.LayerNorm):
        norm.register_forward_hook(lambda _module, _given, output: left.append(output))
    model(SRC, TGT)
    assert len(left) == 2 * 2 + 2 * 3
    for y in left:
        assert y.mean(-1).abs().max() < 1e-5
        torch.testing.assert_close(
            y.var(-1, correction=0), torch.ones(y.shape[:-1]), atol=1e-3, rtol=0
        )


def test_s2_8_cross_attention_sees_every_source_token_but_padding() -> None:
    model = shallow("notebook_2")
    cross = model.decoder.blocks[0].cross_attention
    assert cross is not None
    inputs: dict[str, Tensor] = {}
    for name in ("q", "k", "v"):
        layer = getattr(cross, name)
        layer.register_forward_hook(lambda _m, x, _y, name=name: inputs.update({name: x[0]}))
    memory = model.encode(SRC)
    memory.states.retain_grad()
    model.hidden(TGT, memory)[:, 0].square().sum().backward()
    assert inputs["k"] is inputs["v"] is memory.states
    assert inputs["q"].shape == (2, 8, 512)
    assert memory.states.grad is not None
    reached = memory.states.grad.abs().sum(-1) > 0
    assert torch.equal(reached, SRC != PAD)


def test_s2_9_the_rate_rises_to_the_end_of_the_warm_up_and_falls_by_the_root() -> None:
    run = preset("notebook_2")
    rate = build(Schedule, run.training.schedule, run.model.dims, 100_000).rate
    assert rate(4000) == pytest.approx((512 * 4000) ** -0.5) == pytest.approx(6.98771243e-04)
    for step in (1, 100, 3999):
        assert rate(step) == pytest.approx(rate(4000) * step / 4000)
    for step in (4001, 16_000, 100_000):
        assert rate(step) == pytest.approx((512 * step) ** -0.5)
    weights = Group([nn.Parameter(torch.ones(2))], is_matrix=False)
    adam = build(Optimizer, run.training.optimizer).make([weights])
    assert isinstance(adam, torch.optim.Adam)
    assert [adam.defaults[key] for key in ("betas", "eps")] == [(0.9, 0.98), 1e-9]


def test_s2_10_label_smoothing_changes_the_training_loss_and_not_the_measured_one() -> None:
    model = shallow("notebook_2")
    batch = Batch(SRC, TGT[:, :-1], TGT[:, 1:], n_tokens=13, index=torch.arange(2))
    outputs = model(batch.src, batch.tgt_in).flatten(0, 1)
    names = ("cross_entropy", preset("notebook_2").training.objective.name)
    plain, smoothed = (
        build(Objective, choose(Objective, name), PAD).loss(outputs, batch.tgt_out.flatten())
        for name in names
    )
    assert names[1] == "label_smoothing"
    assert (smoothed - plain).abs() > 0.1
    measured = measuring.likelihood(model, [batch], "fp32")
    assert measured.nll * batch.n_tokens == pytest.approx(plain.item(), rel=1e-5)


def test_s2_11_published_results_are_printed_with_their_source(tmp_path: Path) -> None:
    """`ablate plan` is the card: its rows hold the numbers, its last remarks source and terms."""
    plan = api.plan(ROOT / "vaswani_table2.yaml", device="cpu", results=tmp_path)
    assert [row.published["bleu"] for row in plan.rows] == [27.3, 28.4]
    remarks = "\n".join(plan.remarks()[-2:])
    times = ("100,000 steps", "12 hours", "300,000", "3.5 days", "8 P100")
    for number in ("38.1", "41.0", "41.8", *times, "4.5 million", "36 million"):
        assert number in remarks
    assert "arXiv:1706.03762, table 2" in remarks


def test_s2_12_halves_are_the_same_model_with_its_dimensions_in_another_order() -> None:
    """So trained BLEU can differ by the luck of the draw alone; the logits are equal exactly."""
    sizes = {
        "n_layers": 2,
        "dims": {"d_model": 32, "n_heads": 4, "max_len": 16},
        "feed_forward": "relu",
    }
    ours = built("vaswani_base", TEN_JOINT, **sizes).double()
    theirs = built("vaswani_base", TEN_JOINT, **sizes, position={"layout": "halves"}).double()
    order = torch.cat((torch.arange(0, 32, 2), torch.arange(1, 32, 2)))
    theirs.load_state_dict({n: _reordered(n, w, order) for n, w in ours.state_dict().items()})
    torch.testing.assert_close(theirs(SRC, TGT), ours(SRC, TGT), atol=1e-6, rtol=0)


TEN_JOINT = Vocabulary(n_src=10, n_tgt=10, is_joint=True)


def _reordered(name: str, weight: Tensor, order: Tensor) -> Tensor:
    """Reorder the dimensions of the residual stream in one weight of the model."""
    if name.endswith((".q.weight", ".k.weight", ".v.weight", ".up.weight", "table.weight")):
        return weight[:, order]
    writes = (".out.weight", ".down.weight", ".down.bias", ".norm.weight", ".norm.bias")
    return weight[order] if name.endswith(writes) else weight


# Notebook 3


def test_s3_1_powers_and_exponentials_give_one_table() -> None:
    """Cannot differ here: the table is made in double precision and rounded once.

    In single precision the two forms drift apart by up to 5e-4 over 5,000 positions.
    """

    def tables(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pairs = torch.arange(0, 512, 2, dtype=dtype)
        rates = torch.exp(pairs * (-math.log(10_000.0) / 512)), torch.pow(10_000, -pairs / 512)
        angles = [torch.arange(5000, dtype=dtype)[:, None] * rate for rate in rates]
        one, other = (torch.stack((a.sin(), a.cos()), dim=-1).flatten(-2) for a in angles)
        return one, other

    exact = tables(torch.float64)
    assert (exact[0] - exact[1]).abs().max() <= 1e-12
    single = tables(torch.float32)
    assert 1e-4 < (single[0] - single[1]).abs().max() < 1e-3
    for form in exact:
        assert_rounded(table_of("notebook_3"), form[:256])


def test_s3_2_sequence_first_is_batch_first_turned() -> None:
    model = shallow("notebook_3")
    x = torch.randn(3, 100, 512)
    sequence_first = truth(100).float()[:, None] + x.transpose(0, 1)  # (T, 1, D) + (T, B, D)
    batch_first = model.encoder.position.embed(x, torch.arange(100))
    torch.testing.assert_close(sequence_first.transpose(0, 1), batch_first, atol=1e-6, rtol=0)


def test_s3_3_a_sequence_may_be_shorter_than_the_table() -> None:
    x = torch.randn(2, 7, 512)
    actual = shallow("notebook_3").encoder.position.embed(x, torch.arange(7))
    assert torch.equal(actual, x + table_of("notebook_3")[:7])


def test_s3_4_attention_is_made_from_d_model_and_n_heads() -> None:
    dims = Dims.model_validate({"d_model": 512, "n_heads": 8, "max_len": 100})
    scaling = build(Scaling, choose(Scaling, "sqrt_dk"), dims)
    attention = build(Attention, choose(Attention, "full"), dims, scaling, Dropout())
    assert attention.queries(torch.randn(1, 3, 512)).shape == (1, 8, 3, 64)
