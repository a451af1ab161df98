"""The assembled Transformer: properties that hold for every part in the registry."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.model import Transformer, assemble
from ablate.parts.dims import Dropout
from ablate.parts.embedding import Vocabulary
from ablate.registry import RefusedError, lookup
from tests.tiny import (
    MODEL_SLOTS,
    PAD,
    PARTS,
    VOCABULARY,
    accepted,
    alternatives,
    choices,
    companion,
    fitted,
    ids,
    scrambled,
    spec,
    tiny,
)

OPTIONS = [(s, n, o) for s, n in PARTS for o in lookup(s, n).options.model_fields]


@pytest.fixture(scope="module", params=PARTS, ids=lambda part: f"{part[0]}={part[1]}")
def model(request: pytest.FixtureRequest) -> Transformer:
    """The tiny model with each registered part in turn, in double precision; not to be changed."""
    slot, name = request.param
    return scrambled(fitted(slot, name).double())


def test_logits_have_a_row_per_target_token(model: Transformer) -> None:
    assert model(ids(2, 7), ids(2, 5)).shape == (2, 5, VOCABULARY.n_tgt)


def test_a_logit_does_not_depend_on_later_targets(model: Transformer) -> None:
    src, tgt = ids(2, 7), ids(2, 5)
    changed = tgt.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % VOCABULARY.n_tgt
    before, after = model(src, tgt), model(src, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_padding_is_invisible(model: Transformer) -> None:
    src, tgt = ids(2, 7), ids(2, 5)
    padded_src = torch.cat((src, torch.full((2, 3), PAD)), dim=1)
    padded_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), dim=1)
    torch.testing.assert_close(model(padded_src, padded_tgt)[:, :5], model(src, tgt))


def test_every_logit_depends_on_every_source_token(model: Transformer) -> None:
    src, tgt = ids(2, 7), ids(2, 5)
    before = model(src, tgt)[:, 0]
    for s in range(src.size(1)):
        changed = src.clone()
        changed[:, s] = (changed[:, s] - 3) % (VOCABULARY.n_src - 4) + 4
        assert not torch.allclose(model(changed, tgt)[:, 0], before)


def test_token_by_token_equals_all_at_once(model: Transformer) -> None:
    src, tgt = ids(3, 7), ids(3, 6)
    src[1, 4:] = PAD
    state = model.begin(model.encode(src))
    steps = [model.step(tgt[:, t], state) for t in range(tgt.size(1))]
    torch.testing.assert_close(torch.stack(steps, dim=1), model(src, tgt))


def test_beams_can_be_reordered_and_sentences_removed(model: Transformer) -> None:
    src, n_beams = ids(3, 7), 2
    state = model.begin(model.encode(src))
    first, second, third = ids(6, 3, seed=2).unbind(dim=1)
    first = first[::n_beams].repeat_interleave(n_beams)
    model.step(first[::n_beams], state)
    state.widen(n_beams)
    swap = torch.tensor([1, 0, 3, 2, 5, 4])
    state.select(swap)
    model.step(second, state)
    keep = torch.tensor([5, 4, 0, 1])  # the second sentence is removed
    state.select(keep, torch.tensor([2, 0]))
    logits = model.step(third[keep], state)
    histories = torch.stack((first[swap], second, third), dim=1)[keep]
    expected = model(src.repeat_interleave(n_beams, dim=0)[keep], histories)[:, -1]
    torch.testing.assert_close(logits, expected)


def test_gradients_reach_every_parameter(model: Transformer, request: Any) -> None:
    """With initial weights or others: zeros stop gradients, and routers may select few experts."""
    slot, name = request.node.callspec.params["model"]
    models = [copy.deepcopy(model), fitted(slot, name).double()]
    for one in models:
        one(ids(24, 12), ids(24, 11)).square().sum().backward()
    twins = dict(models[1].named_parameters())
    for name, parameter in models[0].named_parameters():
        gradients = [parameter.grad, twins[name].grad]
        assert all(gradient is not None for gradient in gradients), name
        if not name.endswith("attention.k.bias"):  # adds the same to all scores of a query
            assert any(g is not None and g.abs().max() > 1e-9 for g in gradients), name


def test_meta_and_real_model_are_alike(model: Transformer, request: Any) -> None:
    slot, name = request.node.callspec.params["model"]
    with torch.device("meta"):
        meta = assemble(spec(**choices(slot, name)), VOCABULARY, PAD)
    assert {n: p.shape for n, p in meta.named_parameters()} == {
        n: p.shape for n, p in model.named_parameters()
    }


def test_saved_and_loaded_weights_give_the_same_logits(model: Transformer, request: Any) -> None:
    slot, name = request.node.callspec.params["model"]
    other = fitted(slot, name).double()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(ids(2, 7), ids(2, 5)), model(ids(2, 7), ids(2, 5)))


@pytest.mark.parametrize(("slot", "name", "option"), OPTIONS)
def test_every_option_changes_the_model(slot: str, name: str, option: str) -> None:
    portraits = {}
    for value in (None, *alternatives(lookup(slot, name), option)):
        if model := accepted(**_choice(slot, name, option, value)):
            portraits[str(value)] = _Portrait(model)
    assert len(portraits) > 1, "no other value to try"
    for one, other in combinations(portraits, 2):
        assert _differ(portraits[one], portraits[other]), (one, other)


def test_parts_of_one_slot_differ() -> None:
    for slot in MODEL_SLOTS:
        portraits = {name: _Portrait(fitted(slot, name)) for s, name in PARTS if s == slot}
        for one, other in combinations(portraits, 2):
            assert _differ(portraits[one], portraits[other]), (one, other)


@pytest.mark.parametrize("name", list(Dropout.model_fields))
def test_every_dropout_acts_in_training_and_only_there(name: str) -> None:
    none = dict.fromkeys(Dropout.model_fields, 0.0)
    dropping = tiny(dropout=none | {name: 0.5})
    plain = tiny(dropout=none)
    src, tgt = ids(2, 7), ids(2, 5)
    assert torch.equal(dropping(src, tgt), plain(src, tgt))
    torch.manual_seed(1)
    assert not torch.allclose(dropping.train()(src, tgt), plain(src, tgt))
    assert torch.equal(plain.train()(src, tgt), plain.eval()(src, tgt))


def test_word_dropout_drops_whole_tokens() -> None:
    stack = tiny(dropout={"word": 0.5}).encoder.train()
    torch.manual_seed(0)
    dropped = stack.word_dropout(torch.ones(4, 50, 8))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_word_dropout_leaves_positions(side: str) -> None:
    """A dropped word leaves exactly the position at the input of the embedding's dropout."""
    model = tiny(dropout={"word": 0.5}, position="learned").train()
    stack = getattr(model, side)
    inputs: list[Tensor] = []
    stack.dropout.register_forward_pre_hook(lambda _, args: inputs.extend(args))
    src, tgt = ids(4, 7), ids(4, 5)
    torch.manual_seed(0)
    model(src, tgt)
    words = model.embedding.src(src) if side == "encoder" else model.embedding.tgt(tgt)
    word = inputs[0] - stack.position.table[: words.size(1)]
    kept = word.abs().amax(dim=-1) > 1e-6
    assert 0 < kept.sum() < kept.numel()
    torch.testing.assert_close(word, 2 * words * kept[:, :, None])


def test_head_dropout_drops_whole_heads_of_a_sentence() -> None:
    attention = tiny(dropout={"head": 0.5}).encoder.blocks[0].attention.train()
    torch.manual_seed(0)
    dropped = attention.head_dropout(torch.ones(8, 4, 5, 3))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped, dropped[..., :1, :1].expand_as(dropped))


def test_layer_dropout_leaves_the_stream_as_it_is() -> None:
    """If all three layers are dropped, the output is the embeddings."""
    model = scrambled(tiny(dropout={"layer": 0.8, "embedding": 0.0}, residual="post")).train()
    src = ids(2, 7)
    bare = model.encoder.position.embed(model.embedding.src(src), torch.arange(7))
    torch.manual_seed(0)
    outcomes = [torch.equal(model.encode(src).states, bare) for _ in range(60)]
    assert 0.3 < sum(outcomes) / 60 < 0.7  # 0.8 ** 3 = 0.51


@pytest.mark.parametrize("slot", ["position", "attention", "scaling", "norm", "feed_forward"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_encoder_and_decoder_may_differ(slot: str, side: str) -> None:
    other = [name for s, name in PARTS if s == slot][-1]
    one_sided = tiny(**{side: {slot: other}, **({slot: "none"} if slot == "position" else {})})
    kinds = {s: {type(m) for m in getattr(one_sided, s).modules()} for s in ("encoder", "decoder")}
    cls = lookup(slot, other).cls
    assert cls in kinds[side]
    assert cls not in kinds["decoder" if side == "encoder" else "encoder"]


def test_an_all_padding_source_gives_numbers() -> None:
    src = ids(2, 7)
    src[1] = PAD
    assert bool(tiny()(src, ids(2, 5)).isfinite().all())


@pytest.mark.parametrize(("n_src", "n_tgt"), [(17, 5), (5, 17)])
def test_a_sequence_past_max_len_is_refused(n_src: int, n_tgt: int) -> None:
    with pytest.raises(ValueError, match=r"17 tokens is longer than model.dims.max_len \(16\)"):
        tiny()(ids(1, n_src), ids(1, n_tgt))


def test_without_positions_the_encoder_is_equivariant_to_permutations() -> None:
    model, order = tiny(position="none").double(), torch.tensor([3, 1, 0, 2, 4])
    src = ids(2, 5)
    torch.testing.assert_close(
        model.encode(src[:, order]).states, model.encode(src).states[:, order]
    )
    torch.testing.assert_close(model(src[:, order], ids(2, 4)), model(src, ids(2, 4)))


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_bf16_agrees_with_fp32(model: Transformer, device: str) -> None:
    src, tgt = ids(2, 7), ids(2, 5)
    single = copy.deepcopy(model).float()
    expected = single(src, tgt)
    inputs = [x.to(device) for x in (src, tgt)]
    with torch.autocast(device, torch.bfloat16):
        logits = single.to(device)(*inputs)
    error = (logits.float().cpu() - expected).norm() / expected.norm()
    assert error < 0.1, error


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_torch_nn_transformer(norm_first: bool) -> None:
    ours = scrambled(
        tiny(
            residual={"name": "pre" if norm_first else "post", "final_norm": True}, position="none"
        ).double()
    )
    dims: dict[str, Any] = {
        "d_model": 32,
        "nhead": 4,
        "dim_feedforward": 48,
        "dropout": 0.0,
        "batch_first": True,
    }
    theirs = nn.Transformer(
        num_encoder_layers=3, num_decoder_layers=3, norm_first=norm_first, **dims
    ).double()
    theirs.load_state_dict(_as_torch_names(ours.state_dict()))
    theirs.eval()
    src, tgt = ids(2, 7), ids(2, 5)
    src[1, 4:] = PAD
    expected = theirs.decoder(
        ours.embedding.tgt(tgt),
        theirs.encoder(ours.embedding.src(src), src_key_padding_mask=src == PAD),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
        memory_key_padding_mask=src == PAD,
    )
    torch.testing.assert_close(ours.hidden(tgt, ours.encode(src)), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_default_size_has_the_parameters_of_torch_nn_transformer() -> None:
    with torch.device("meta"):
        ours = assemble(
            spec(dims={"d_model": 512, "n_heads": 8, "max_len": 64}, n_layers=6,
                 feed_forward={"name": "relu", "d_ff": 2048},
                 residual={"name": "post", "final_norm": True}),
            VOCABULARY, PAD,
        )  # fmt: skip
        theirs = nn.Transformer()
    assert _count(ours.encoder) + _count(ours.decoder) == _count(theirs) == 44_140_544


def _as_torch_names(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Map the names to those of torch.nn.Transformer; q, k and v become one matrix."""
    renamed: dict[str, Tensor] = {}
    packed: dict[str, list[Tensor]] = {}
    renames = {
        "cross_attention": "multihead_attn", "attention": "self_attn",
        "feed_forward.up": "linear1", "feed_forward.down": "linear2", "closing.norm": "norm",
    }  # fmt: skip
    for name, weight in weights.items():
        if name.startswith("embedding"):
            continue
        path, kind = name.rsplit(".", 1)
        for ours, theirs in renames.items():
            path = path.replace(f".{ours}", f".{theirs}")
        for i in range(3):
            path = path.replace(f"residual.norms.{i}.norm", f"norm{i + 1}")
        stem, last = path.rsplit(".", 1)
        if last in "qkv":
            packed.setdefault(f"{stem}.in_proj_{kind}", []).append(weight)
        else:
            renamed[f"{path.replace('.out', '.out_proj')}.{kind}"] = weight
    return renamed | {name: torch.cat(three) for name, three in packed.items()}


def _choice(slot: str, name: str, option: str, value: Any) -> dict[str, Any]:
    """Return the changes for one option of a part, or, with None, for its defaults."""
    choice = {"name": name} if value is None else {"name": name, option: value}
    return {"n_layers": 4} | companion(slot, name) | {slot: choice}


class _Portrait:
    """A model's initial weights, its output, and its output in training, computed when read."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self.start = {name: weight.clone() for name, weight in model.named_parameters()}

    @functools.cached_property
    def output(self) -> Tensor:
        return self._output(is_training=False)

    @functools.cached_property
    def trained_output(self) -> Tensor:
        return self._output(is_training=True)

    def _output(self, *, is_training: bool) -> Tensor:
        """Return logits, padding included, and losses, with fixed weights and random numbers."""
        model = scrambled(copy.deepcopy(self._model).double()).train(is_training)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.3 if is_training else 0.0
        src, tgt = ids(3, 14), ids(3, 13)
        src[1, 9:] = tgt[1, 7:] = PAD
        torch.manual_seed(5)
        losses: list[Tensor] = []
        logits = model(src, tgt, losses)
        return torch.cat((logits.flatten(), *(loss.reshape(1) for loss in losses)))


def _differ(left: _Portrait, right: _Portrait) -> bool:
    """Return whether two models differ in initial weights, output, or output in training."""
    return (
        _starts_differ(left.start, right.start)
        or _outputs_differ(left.output, right.output)
        or _outputs_differ(left.trained_output, right.trained_output)
    )


def _outputs_differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or not torch.allclose(one, other, atol=1e-9, rtol=0)


def _starts_differ(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Compare the initial weights: their shapes, and the distribution of each."""
    if {n: w.shape for n, w in left.items()} != {n: w.shape for n, w in right.items()}:
        return True
    return any(not _are_alike(w, right[name]) for name, w in left.items())


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Compare distributions by mean absolute values, and by tails if there are many weights."""
    is_alike = torch.isclose(one.abs().mean(), other.abs().mean(), rtol=0.1)
    is_many = one.numel() > 200
    one_tail, other_tail = _tails(one, other)
    return bool(is_alike and (not is_many or torch.isclose(one_tail, other_tail, rtol=0.3)))


def _tails(*drawn: Tensor) -> list[Tensor]:
    return [w.abs().max() / w.abs().mean().clamp_min(1e-30) for w in drawn]


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_separate_vocabularies_need_separate_tables() -> None:
    two = Vocabulary(n_src=40, n_tgt=60, is_joint=False)
    model = tiny(two, embedding="separate")
    assert model(ids(2, 7) % 40, ids(2, 5)).shape == (2, 5, 60)
    with pytest.raises(RefusedError, match="tied needs one vocabulary"):
        tiny(two, embedding="tied")
