"""The assembled Transformer: properties that hold for every part in the registry."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.config.experiment import StackSpec
from ablate.contracts.models import Behaviour, differ
from ablate.model import Ensemble, Memory, Transformer
from ablate.parts.attention import Attention
from ablate.parts.initialisation import Initialisation
from ablate.parts.residual import Residual
from ablate.registry import Part, RefusedError, build, lookup
from tests.test_gradients import derivatives, output
from tests.tiny import MODEL_SLOTS, PAD, PARTS, RATES, fitted, ids, scrambled, tiny


@pytest.mark.full
def test_parts_of_one_slot_differ() -> None:
    for slot in MODEL_SLOTS:
        behaviours = {name: Behaviour(fitted(slot, name)) for s, name in PARTS if s == slot}
        for one, other in combinations(behaviours, 2):
            assert differ(behaviours[one], behaviours[other]), (one, other)


@pytest.mark.parametrize("name", RATES)
def test_every_dropout_acts_in_training_and_only_there(name: str) -> None:
    none = dict.fromkeys(RATES, 0.0)
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
    words = torch.zeros(4, 50, dtype=torch.long)
    dropped = stack.word_dropout(words, lambda ids: torch.ones(*ids.shape, 8))
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
    is_kept = word.abs().amax(dim=-1) > 1e-6
    assert 0 < is_kept.sum() < is_kept.numel()
    torch.testing.assert_close(word, 2 * words * is_kept[:, :, None])


def test_layer_dropout_leaves_the_stream_as_it_is() -> None:
    """If all three layers are dropped, the output is the embeddings."""
    model = scrambled(
        tiny(n_layers=3, dropout={"layer": 0.8, "embedding": 0.0}, residual="post")
    ).train()
    src = ids(2, 7)
    bare = model.encoder.position.embed(model.embedding.src(src), torch.arange(7))
    torch.manual_seed(0)
    outcomes = [torch.equal(model.encode(src).states, bare) for _ in range(60)]
    assert 0.3 < sum(outcomes) / 60 < 0.7  # 0.8 ** 3 = 0.51


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_residual_that_cannot_go_without_a_layer_refuses_to_drop_one(side: str) -> None:
    """Only in the stack whose layers are dropped."""
    drops = {side: {"dropout": {"layer": 0.2}}}
    tiny(**drops)
    tiny(residual="dlcl")
    with pytest.raises(RefusedError, match=r"dlcl weights .*; set dropout\.layer \(0\.2\) to 0"):
        tiny(residual="dlcl", **drops)
    other = {"encoder": "decoder", "decoder": "encoder"}[side]
    tiny(**drops, **{other: {"residual": "dlcl"}})


@pytest.mark.parametrize(
    "slot", ["position", "mask", "attention", "scaling", "norm", "feed_forward"]
)
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_encoder_and_decoder_may_differ(slot: str, side: str) -> None:
    other = [name for s, name in PARTS if s == slot][-1]
    one_sided = tiny(**{side: {slot: other}, **({slot: "none"} if slot == "position" else {})})
    stacks = {"encoder": one_sided.encoder, "decoder": one_sided.decoder}
    kinds = {s: {*map(type, stack.modules()), type(stack.mask)} for s, stack in stacks.items()}
    cls = lookup(slot, other).cls
    assert cls in kinds[side]
    assert cls not in kinds["decoder" if side == "encoder" else "encoder"]


def test_a_decoder_may_attend_to_the_source_by_another_part() -> None:
    own = {"attention": "multi_query", "cross_attention": "per_head_shared"}
    models = {False: tiny(attention="multi_query"), True: tiny(decoder=own)}
    for has_own, model in models.items():
        for layer in model.decoder.blocks:
            assert type(layer.attention) is lookup("attention", "multi_query").cls
            other = "per_head_shared" if has_own else "multi_query"
            assert type(layer.cross_attention) is lookup("attention", other).cls


def test_an_all_padding_source_gives_numbers() -> None:
    src = ids(2, 7)
    src[1] = PAD
    assert bool(tiny()(src, ids(2, 5)).isfinite().all())


def test_without_positions_the_encoder_is_equivariant_to_permutations() -> None:
    model, order = tiny(position="none").double(), torch.tensor([3, 1, 0, 2, 4])
    src = ids(2, 5)
    torch.testing.assert_close(
        model.encode(src[:, order]).states, model.encode(src).states[:, order]
    )
    torch.testing.assert_close(model(src[:, order], ids(2, 4)), model(src, ids(2, 4)))


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_bf16_agrees_with_fp32(slot: str, name: str, device: str) -> None:
    model, src, tgt = scrambled(fitted(slot, name)), ids(2, 7), ids(2, 5)
    expected = model(src, tgt)
    with torch.autocast(device, torch.bfloat16):
        logits = model.to(device)(src.to(device), tgt.to(device))
    error = (logits.float().cpu() - expected).norm() / expected.norm()
    assert error < 0.1, error


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm_first", [False, True])
def test_equals_torch_nn_transformer(norm_first: bool) -> None:
    residual = {"name": "pre" if norm_first else "post", "final_norm": True}
    ours = scrambled(tiny(residual=residual, position="none").double())
    options: dict[str, Any] = {"batch_first": True, "norm_first": norm_first}
    theirs = nn.Transformer(32, 4, 2, 2, dim_feedforward=48, dropout=0.0, **options).double()
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


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_part_is_built_at_the_path_of_its_choice(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which a refusal names it."""
    paths: dict[str, set[str]] = {}

    def note(contract: type[Part], *arguments: Any, at: str) -> Any:
        if side in at:
            paths.setdefault(contract.slot, set()).add(at)
        return build(contract, *arguments, at=at)

    monkeypatch.setattr("ablate.model.assembly.build", note)
    tiny()
    expected = {
        slot: {f"model.{side}.{slot}"} for slot in MODEL_SLOTS if slot in StackSpec.model_fields
    }
    if side == "decoder":
        expected["attention"].add("model.decoder.cross_attention")
    assert paths == expected


def refuses(*_: Any, **__: Any) -> None:
    raise ValueError("not today")


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(
    ("slot", "name", "key", "fault"),
    [
        ("residual", "pre", "modify_sublayers", refuses),
        ("residual", "pre", "layer_dropout_blocker", "needs them all"),
        ("position", "rotary", "hides_keys_from_heads", "it hides keys"),
    ],
)
def test_parts_that_refuse_each_other_are_named_by_their_side(
    side: str, slot: str, name: str, key: str, fault: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup(slot, name).cls, key, fault)
    monkeypatch.setattr(Attention, "counts_keys", True)
    with pytest.raises(RefusedError) as error:
        tiny(dropout={"layer": 0.1}, **{side: {slot: name}})
    assert error.value.path == f"model.{side}.{slot}"


@pytest.mark.parametrize("dropout", [0.0, 0.3], ids=["without_dropout", "with_dropout"])
@pytest.mark.parametrize(
    "changes",
    [
        {"feed_forward": {"name": "mixture_of_experts", "d_ff": 16}, "residual": "pre"},
        {"residual": "realformer", "attention": "value_residual", "position": "learned"},
        {"position": "shaw", "sharing": "cycle", "n_layers": 4, "embedding": "separate"},
    ],
    ids=str,
)
def test_a_small_step_changes_the_output_as_the_gradient_says(
    changes: dict[str, Any], dropout: float
) -> None:
    """Of all weights together, through both stacks, with the losses that parts add."""
    smooth = {"feed_forward": {"name": "gelu", "d_ff": 16}} | changes
    model = scrambled(tiny(dropout=dict.fromkeys(RATES, dropout), **smooth).double()).train()
    by_autograd, by_differences = derivatives(lambda: output(model), model.parameters())
    assert by_autograd == pytest.approx(by_differences, rel=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_layer_is_asked_for_by_its_number(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 0, also where several layers are one block of weights."""
    model = tiny(n_layers=4, sharing="cycle")
    stack = getattr(model, side)
    numbers: dict[str, list[int]] = {"position": [], "mask": [], "context": []}
    for kind in ("position", "mask"):
        part = getattr(stack, kind)

        def at_layer(number: int, kind: str = kind, part: Any = part) -> Any:
            numbers[kind].append(number)
            return part

        monkeypatch.setattr(part, "at_layer", at_layer)
    for block in stack.blocks:
        block.register_forward_pre_hook(lambda _, args: numbers["context"].append(args[1][0].layer))
    model(ids(2, 7), ids(2, 5))
    assert numbers == {kind: [0, 1, 2, 3] for kind in numbers}


def test_a_calibration_changes_only_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what other parts count nor the modules' modes, and it takes no gradient."""
    model = tiny(residual="admin", feed_forward="loss_free_experts").train()
    begun: list[bool] = []

    def calibrations(model: Transformer) -> list[object]:
        blocks = [*model.encoder.blocks, *model.decoder.blocks]
        return [block.residual.calibration for block in blocks]

    def note(self: Transformer, tgt: Tensor, memory: Memory) -> Tensor:
        begun.extend(calibration is not None for calibration in calibrations(self))
        return hidden(self, tgt, memory)

    hidden = Transformer.hidden
    monkeypatch.setattr(Transformer, "hidden", note)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    buffers = {name: x.clone() for name, x in model.named_buffers()}
    model.calibrate(ids(2, 7), ids(2, 5))
    assert begun == [True] * 4, "every layer of both stacks takes part in one pass"
    changed = {name for name, x in model.state_dict().items() if not torch.equal(x, before[name])}
    assert changed
    assert all("residual" in name for name in changed), changed
    torch.testing.assert_close(dict(model.named_buffers()), buffers, rtol=0, atol=0)
    assert calibrations(model) == [None] * 4
    assert all(weight.grad is None for weight in model.parameters())
    plain = tiny(decoder={"residual": "admin"})
    begun.clear()
    plain.calibrate(ids(2, 7), ids(2, 5))
    assert begun == [False, False, True, True], "only a stack whose scheme needs it is calibrated"
    begun.clear()
    tiny().calibrate(ids(2, 7), ids(2, 5))
    assert not begun, "a model that needs none makes no pass"


def test_a_calibration_makes_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a whole batch would be larger than all that a step makes."""
    model = tiny(residual="admin").train()
    monkeypatch.setattr(model.embedding, "logits", refuses)
    model.calibrate(ids(2, 7), ids(2, 5))


def test_every_layer_is_rescaled_by_its_residual_after_it_is_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rescaled: list[tuple[list[nn.Module], nn.Module]] = []
    drawn: list[bool] = []
    initialise = Initialisation.initialise

    def rescale(_: Residual, attentions: list[nn.Module], feed_forward: nn.Module) -> None:
        rescaled.append((attentions, feed_forward))

    def note(self: Initialisation, model: Any) -> None:
        drawn.append(not rescaled)
        initialise(self, model)

    monkeypatch.setattr(lookup("residual", "pre").cls, "rescale", rescale)
    monkeypatch.setattr(Initialisation, "initialise", note)
    model = tiny(residual="pre")
    layers = [*model.encoder.blocks, *model.decoder.blocks]
    assert drawn == [True], "weights are drawn once, before that"
    assert rescaled == [(layer.attentions, layer.feed_forward) for layer in layers]


def test_all_feed_forwards_are_told_of_an_update() -> None:
    model = tiny(feed_forward="loss_free_experts").train()
    model(ids(2, 7), ids(2, 5))
    offsets = [x for name, x in model.named_buffers() if name.endswith("offset")]
    assert len(offsets) == 4
    assert not any(offset.any() for offset in offsets)
    model.after_update()
    assert all(offset.any() for offset in offsets), "in both stacks"


def test_cross_attention_is_shown_as_the_mean_of_the_last_layers_heads() -> None:
    model, shown, own = tiny(n_layers=3), list[Tensor](), list[Tensor]()
    last = model.decoder.blocks[2].cross_attention
    assert last is not None
    handle = model.register_cross_attention_hook(shown.append)
    last.dropout.register_forward_pre_hook(lambda _, args: own.append(args[0]))
    state = model.start(ids(2, 7), 5)
    model.feed(torch.tensor([1, 1]), state)
    torch.testing.assert_close(shown[0], own[0].mean(dim=1))
    assert shown[0].shape == (2, 1, 7)
    torch.testing.assert_close(shown[0].sum(dim=-1), torch.ones(2, 1))
    handle.remove()
    model.feed(torch.tensor([5, 6]), state)
    assert len(shown) == 1, "until it is removed"


def test_a_shallow_copy_of_a_state_shares_its_tensors_and_goes_on_by_itself() -> None:
    model = tiny()
    state, tokens = model.start(ids(2, 7), 5), torch.tensor([1, 1])
    model.feed(tokens, state)
    other = state.shallow_copy()
    assert other.mask is state.mask
    expected = model.feed(tokens, other)
    assert (state.length, other.length) == (1, 2)
    torch.testing.assert_close(model.feed(tokens, state), expected)


def test_a_sequence_of_max_len_is_whole_and_one_more_token_is_refused() -> None:
    model = tiny()
    assert model(ids(1, 16), ids(1, 16)).shape == (1, 16, 50)
    for n_src, n_tgt in ((17, 5), (5, 17)):
        with pytest.raises(ValueError, match=r"17 tokens is longer than model.dims.max_len \(16\)"):
            model(ids(1, n_src), ids(1, n_tgt))
    state = model.start(ids(1, 16), 16)
    for token in ids(1, 16)[0]:
        model.feed(token[None], state)
    with pytest.raises(ValueError, match=r"the target has reached max_len \(16 tokens\)"):
        model.feed(torch.tensor([4]), state)


def test_an_ensemble_is_as_wide_as_all_and_as_long_as_the_shortest() -> None:
    """And makes as many logits at a time as fit for the largest vocabulary table, of each."""
    dims = {"d_model": 24, "n_heads": 4, "max_len": 8}
    members = [tiny(), tiny(dims=dims, n_layers=3)]
    ensemble = Ensemble(members)
    assert ensemble.max_len == 8
    assert [member.cache_width for member in members] == [32 * 2, 24 * 3]
    assert ensemble.cache_width == 32 * 2 + 24 * 3
    for member, n_rows in zip(members, (7, 10), strict=True):
        member.embedding.rows_at_once = lambda *_, n_rows=n_rows: n_rows  # type: ignore[method-assign]
    at_once = ensemble.output.rows_at_once(torch.device("cpu"))
    assert at_once == 7 // 2
    members[0].embedding.rows_at_once = lambda *_: 1  # type: ignore[method-assign]
    assert ensemble.output.rows_at_once(torch.device("cpu")) == 1, "one at least"


def test_losses_that_parts_add_are_received_from_both_stacks() -> None:
    model = tiny(feed_forward="mixture_of_experts").train()
    losses: list[Tensor] = []
    model(ids(2, 7), ids(2, 5), losses)
    assert len(losses) == 4, "one of each layer of both stacks"
    received = list(losses)
    model(ids(2, 7), ids(2, 5))
    assert losses == received, "where no list is given, none is added to"


def test_no_layer_is_dropped_and_none_drawn_for_without_need() -> None:
    model = tiny(dropout={"layer": 0.9}).eval()
    plain = tiny().eval()
    src, tgt = ids(2, 7), ids(2, 5)
    for _ in range(4):
        assert torch.equal(model(src, tgt), plain(src, tgt)), "evaluation needs all layers"
    before = torch.get_rng_state()
    tiny().train()
    torch.set_rng_state(before)
    plain.train()(src, tgt)
    assert torch.equal(torch.get_rng_state(), before), "without dropout nothing is drawn"
