"""``ablate check``: broken contracts of plugins are reported in sentences; and ``ablate init``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ablate import api
from ablate.cli.app import app
from ablate.errors import SpecError
from ablate.parts.dims import Dims
from ablate.parts.objective import Objective
from ablate.parts.schedule import Schedule
from ablate.registry import build, choose, load_plugin, lookup, slots
from ablate.report import FORMATS
from tests.registrations import temporary_registrations
from tests.report.test_new_format import FORMAT

pytestmark = pytest.mark.commands

HEAD = """\
import torch
from torch import nn
from ablate.parts.dims import Dims
from ablate.parts.norm import Norm
from ablate.parts.objective import Objective
from ablate.parts.position import Position
from ablate.registry import register

"""
POSITION = '@register("mine", source="this test, 2026")\nclass Mine(Position):\n    """Mine."""\n'
NORM = POSITION.replace("Position", "Norm")
METRIC = (
    "from ablate.parts.metric import Metric, UnavailableError\n"
    + POSITION.replace("Position", "Metric")
    + "    def score(self, sources, hypotheses, references):\n"
)
OPTIMIZER = (
    "from collections import deque\n"
    "from ablate.parts.optimizer.contract import TorchOptimizer\n"
    "class Remembering(torch.optim.SGD):\n"
    "    def step(self, closure=None):\n"
    "        for group in self.param_groups:\n"
    "            for p in group['params']:\n"
    "                self.state[p].setdefault('past', deque()).append(p.grad.norm())\n"
    "        super().step(closure)\n"
    + POSITION.replace("Position", "TorchOptimizer")
    + "    torch_class = Remembering\n    arguments = {'momentum': 0.5}"
)
FORGETTING = """\
from ablate.parts.optimizer import Optimizer
from ablate.parts.optimizer.contract import Decay
class Momentum(torch.optim.SGD):
    def step(self, closure=None):
        memory = self.__dict__.setdefault("memory", {})
        for group in self.param_groups:
            for p in group["params"]:
                memory[p] = self.beta * memory.get(p, 0.0) + p.grad
                p.data -= group["lr"] * memory[p]
def make_with(groups, beta):
    optimizer = Momentum([group.to_torch() for group in groups])
    optimizer.beta = beta
    return optimizer
@register("mine", source="this test, 2026")
class Mine(Optimizer):
    \"\"\"Mine.

    Args:
        beta: of the momentum.
    \"\"\"

    def __init__(self, *, beta: Decay = 0.0) -> None:
        self.beta = beta
    def make(self, groups):
        return make_with(groups, self.beta)"""
OBJECTIVE = """\
@register("mine", source="this test, 2026")
class Mine(Objective):
    \"\"\"Mine.

    Args:
        z: weight.
    \"\"\"

    def __init__(self, pad: int, *, z: float = 0.0) -> None:
        super().__init__(pad)
        self.z = z
    def loss(self, logits, targets):
        loss = nn.functional.cross_entropy(
            logits, targets, ignore_index=self.pad, reduction="sum"
        )
        return """
SCHEDULE = """\
from ablate.parts.schedule import Schedule
@register("mine", source="this test, 2026")
class Mine(Schedule):
    \"\"\"Mine.

    Args:
        slope: of the line.
    \"\"\"

    def __init__(self, dims: Dims, n_steps: int, *, slope: int = 1) -> None:
        super().__init__(dims, n_steps)
        self.slope = slope
    def rate(self, step, dev=()):
        return """
EMBED = "    def embed(self, x, positions):\n        return "
FORWARD = "    def forward(self, x):\n        return "
NO_SUPER = "    def __init__(self, {}):\n        self.table = nn.Parameter(torch.zeros(16, 32))\n"
OPTION = """\
    def __init__(self, dims: Dims, *, gain: float = 1.0) -> None:
        super().__init__(dims)
"""
BROKEN = {
    "wrong shape": (
        POSITION + EMBED + "x[:, :1]",
        "logits: Mine.embed (mine.py:12) must return a tensor of shape (2, 7, 32), as its first "
        "argument has; it returned shape (2, 1, 32)",
    ),
    "wrong shape of a bias": (
        POSITION + "    def bias(self, q, at, keys, layer):\n        return torch.zeros(3, 3)",
        "must return None, or a tensor that broadcasts to (B, H, T, S), here (2, 4, 7, 7); it "
        "returned shape (3, 3)",
    ),
    "None for a tensor": (NORM + FORWARD + "None", "as its first argument has; it returned None"),
    "no super, with a parameter": (
        POSITION + NO_SUPER.format("dims, stack_info") + EMBED + "x + self.table[positions]",
        "mine.py:13, in Mine.__init__: the constructor of Mine must begin with "
        "super().__init__(dims, stack_info)",
    ),
    "no super": (
        NORM + "    def __init__(self, dims):\n        pass\n" + FORWARD + "x",
        "the constructor of Mine must begin with super().__init__(dims)",
    ),
    "no super, no module": (
        NORM.replace("Norm", "Objective")
        + "    def __init__(self, pad):\n        pass\n"
        + "    def loss(self, logits, targets):\n        return logits[targets != self.pad].sum()",
        "mine.py:15, in Mine.loss: Mine has no attribute 'pad'; the constructor must set it, or, "
        "if the contract's does, begin with super().__init__(pad)",
    ),
    "wrong constructor": (
        POSITION + "    def __init__(self, dims):\n        pass\n" + EMBED + "x",
        "does not take what the program gives, 2 arguments by position (too many positional "
        "arguments); it begins with those of the contract, (self, dims, stack_info), and has its "
        "options after a *",
    ),
    "failing code": (NORM + FORWARD + "x @ x", "mine.py:13, in Mine.forward: RuntimeError: "),
    "wrong arguments": (
        NORM + FORWARD.replace("x)", "x, y)") + "x + y",
        "Mine.forward (mine.py:12) does not take what the program gives: missing a required "
        "argument: 'y'",
    ),
    "an end of the program": (
        NORM + FORWARD + "exit(0)",
        "mine.py:13, in Mine.forward: SystemExit: 0",
    ),
    "mixed tokens": (
        NORM + FORWARD + "x - x.mean(dim=1, keepdim=True)",
        "causality: logits of earlier target tokens change with later ones",
    ),
    "mixed tokens, with a value of an option": (
        NORM
        + OPTION.replace("float = 1.0", "float | None = None")
        + "        self.gain = gain\n"
        + FORWARD
        + "x if self.gain is None else x - self.gain * x.mean(dim=1, keepdim=True)",
        "causality: with gain: 0.25, logits of earlier target tokens change with later ones|"
        "padding: with gain: 0.25, padding after a sentence changes the logits of its tokens",
    ),
    "unused parameter": (
        NORM + OPTION + "        self.unused = nn.Parameter(torch.ones(3))\n" + FORWARD + "x * 2",
        "gradients: no gradient reaches encoder.layers.0.residual.norms.0.unused",
    ),
    "dead option that must be given": (
        NORM + OPTION.replace(" = 1.0", "") + FORWARD + "x * 2",
        "the option 'gain' changes nothing: the models with {'gain': 0.25} and {'gain': 0.75} are",
    ),
    "dead and undocumented option": (
        NORM + OPTION + FORWARD + "x * 2",
        "'gain' has no line under Args:|the option 'gain' changes nothing",
    ),
    "state in a call": (
        POSITION + "    n = 0\n" + EMBED + "x + self.count(x)\n"
        "    def count(self, x):\n        self.n += x.size(1)\n        return 0.01 * self.n",
        "BROKEN, ",
    ),
    "drawn and not saved": (
        POSITION + "    def __init__(self, dims, stack_info):\n"
        "        super().__init__(dims, stack_info)\n"
        "        self.table = torch.randn(16, 32)\n" + EMBED + "x + self.table[positions]",
        "BROKEN, state dict: a new model with the saved weights gives other logits",
    ),
    "mean for a sum": (
        NORM.replace("Norm", "Objective")
        + "    def loss(self, logits, targets):\n        kept = targets != self.pad\n"
        "        return logits[kept].square().mean()",
        "the loss of several tokens is not the sum of the losses of each; return a sum",
    ),
    "a state that no checkpoint keeps": (
        OPTIMIZER,
        "its state dict cannot be read from a checkpoint, so that an interrupted run cannot go on; "
        "keep only tensors",
    ),
    "a state that no checkpoint keeps, with a value of an option": (
        FORGETTING,
        "with beta: 0.25, an optimizer that is saved and loaded takes other steps",
    ),
    "dead option of an optimizer": (
        FORGETTING.replace("make_with(groups, self.beta)", "make_with(groups, 0.0)"),
        "the option 'beta' changes nothing: the steps are the same with every value",
    ),
    "padding that costs, with a value of an option": (
        OBJECTIVE + "loss + self.z * logits.logsumexp(-1).sum()",
        "with z: 0.25, the loss changes when padding is left out",
    ),
    "dead option of an objective": (
        OBJECTIVE + "loss",
        "the option 'z' changes nothing: the losses are the same with every value",
    ),
    "negative rate, with a value of an option": (
        SCHEDULE + "1.0 - self.slope * step / self.n_steps",
        "with slope: 2, the rate of step|, not 0 or more",
    ),
    "dead option of a schedule": (
        SCHEDULE + "1.0 / step",
        "the option 'slope' changes nothing: the rates are the same with every value",
    ),
    "other text at every call": (
        "import random\nfrom ablate.data.corpus import Bitext, Corpus, CorpusText\n"
        + POSITION.replace("Position", "Corpus")
        + "    def fingerprint(self):\n        return 'mine'\n"
        "    def load(self):\n"
        "        pairs = Bitext.of((str(random.random()), 'a') for _ in range(9))\n"
        "        return CorpusText('mine', 'en', 'de', pairs, pairs, {'test': pairs})",
        "the text is another at every call, with the same fingerprint",
    ),
    "a test that no file can be named after": (
        "from ablate.data.corpus import Bitext, Corpus, CorpusText\n"
        + POSITION.replace("Position", "Corpus")
        + "    def fingerprint(self):\n        return 'mine'\n"
        "    def load(self):\n"
        "        pairs = Bitext.of([('a', 'b')])\n"
        "        return CorpusText('mine', 'en', 'de', pairs, pairs, {'news/2014': pairs})",
        "mine: the name of a test has neither . nor /; rename 'news/2014'",
    ),
    "no special tokens": (
        "from tokenizers import models, pre_tokenizers, trainers\n"
        "from ablate.data.tokenizer import LimitedTokenizer\n"
        + POSITION.replace("Position", "LimitedTokenizer")
        + "    def fit(self, lines, is_tokenised):\n"
        "        hf = self.untrained(models.BPE(), pre_tokenizers.Metaspace())\n"
        "        hf.train_from_iterator(lines, trainers.BpeTrainer())\n        return hf",
        "round trip: the ids 0 to 3 are not those of padding, begin, end and unknown",
    ),
    "sources in place of references": (
        METRIC + "        return float(sum(map(str.__eq__, sources, hypotheses)))",
        "the references score no higher than other sentences; for an error rate return",
    ),
    "a score for each sentence": (
        METRIC + "        return [1.0 for _ in sources]",
        "the score is [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, [...] and not a number",
    ),
    "no words to divide by": (
        METRIC + "        return sum(1 / len(x.split()) for x in hypotheses)",
        "in <genexpr>: ZeroDivisionError: division by zero",
    ),
    "failing metric": (
        METRIC + "        return float(sources[0])",
        "mine.py:14, in Mine.score: ValueError: could not convert string to float",
    ),
}


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with temporary_registrations():
        yield


def ablate(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    return done.exit_code, done.stdout, done.stderr


def checked(code: str) -> tuple[int, str]:
    """Check a plugin of this code; return the exit status and what is printed."""
    Path("mine.py").write_text(f"{HEAD}{code}\n", encoding="utf-8")
    return ablate("check", "mine.py")[:2]


EXPLAINED = {
    *("None for a tensor", "no super", "no super, with a parameter", "no super, no module"),
    *("wrong constructor", "failing code", "wrong arguments", "an end of the program"),
}
"""What raises an error in any case, of which a sentence is made."""


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.full] * (k in EXPLAINED)) for k in BROKEN]
)
def test_a_broken_contract_is_reported_in_a_sentence(kind: str) -> None:
    code, reason = BROKEN[kind]
    status, out = checked(code)
    assert status == 1, out
    assert [part for part in reason.split("|") if part not in out] == []
    assert "Traceback" not in out


@pytest.mark.parametrize(
    "kind",
    [
        "wrong shape",
        *(pytest.param(kind, marks=pytest.mark.full) for kind in ("no super", "failing code")),
    ],
)
def test_a_plan_says_the_same_at_the_line_of_the_experiment(kind: str) -> None:
    code, reason = BROKEN[kind]
    Path("mine.py").write_text(f"{HEAD}{code}\n", encoding="utf-8")
    slot = "position" if "(Position)" in code else "norm"
    head = "plugins: mine.py\ncorpus: synthetic\nvariants:\n"
    Path("x.yaml").write_text(f"{head}  mine: {{model.{slot}: mine}}\n", encoding="utf-8")
    status, out, err = ablate("plan", "x.yaml", "--device", "cpu")
    assert (status, out) == (2, "")
    assert err.startswith("x.yaml:4:")
    assert f"{slot} 'mine': " in err
    for number in ("(2, 7, 32)", "logits: "):
        reason = reason.replace(number, "")
    assert reason.split(",")[0].split("(")[0] in err
    assert len(err.splitlines()) == 3


def test_a_metric_without_its_package_breaks_no_contract() -> None:
    status, out = checked(f"{METRIC}        raise UnavailableError('needs a package')")
    assert status == 0, out


def test_kept_contracts_are_listed_and_a_missing_plugin_is_refused() -> None:
    status, out = checked(f"{NORM}{FORWARD}2 * x")
    assert status == 0
    assert out.startswith("norm mine: 11 of 11 contracts kept\n  kept: typed options, logits")
    Path("org.py").write_text(FORMAT, encoding="utf-8")
    status, _, err = ablate("check", "org.py")
    FORMATS.pop("org", None)
    assert (status, err.rstrip()) == (2, "org.py: registers no part, so no contract is tested")
    status, _, err = ablate("check", "nonesuch.py")
    assert (status, err[:11]) == (2, "nonesuch.py")


def test_an_option_that_must_be_given_is_tried_with_two_values() -> None:
    """That the model without it has one of them is no sign that it does nothing."""
    code = NORM.replace(
        "Mine.", "Mine.\n\n    Args:\n        dims: unused.\n        gain: a factor.\n    "
    )
    init = OPTION.replace(" = 1.0", "") + "        self.gain = gain\n"
    status, out = checked(f"{code}{init}{FORWARD}self.gain * x")
    assert status == 0, out


TOP_K = """\
from ablate.parts.attention.projections import MultiHeadAttention
@register("mine", source="this test, 2026")
class Mine(MultiHeadAttention):
    \"""Keep the largest scores.

    Args:
        n_keys: how many.
        bias: whether the projections have one.
    \"""
    def __init__(self, dims, scaling, dropout, *, n_keys: int | None = None, bias: bool = True):
        super().__init__(dims, scaling, dropout, bias=bias)
        self.n_keys = n_keys
    def normalise(self, scores, mask):
        n_keys = min(self.n_keys or scores.size(-1), scores.size(-1))
        least = scores.topk(n_keys, dim=-1).values[..., -1:]
        return super().normalise(scores.masked_fill(scores < least, -torch.inf), mask)
"""


def test_an_option_that_limits_the_keys_changes_the_model_with_every_value() -> None:
    status, out = checked(TOP_K)
    assert status == 0, out


SLOTS = sorted(
    file.stem
    for file in Path(api.__file__).parents[1].joinpath("templates").glob("*.py")
    if not file.stem.startswith("_")
)


@pytest.mark.full
@pytest.mark.parametrize("slot", SLOTS)
def test_the_part_to_start_from_keeps_every_contract(slot: str) -> None:
    status, out, _ = ablate("init", "--part", slot)
    assert (status, out) == (0, f"my_{slot}.py\n")
    status, out, _ = ablate("check", f"my_{slot}.py")
    assert status == 0, out
    assert out.startswith(f"{slot} my_{slot}: ")
    assert "BROKEN" not in out


def test_a_part_may_have_a_name_of_its_own_and_replaces_no_file() -> None:
    assert ablate("init", "tilted", "--part", "norm")[:2] == (0, "tilted.py\n")
    text = Path("tilted.py").read_text(encoding="utf-8")
    assert '@register("tilted", formula=' in text
    assert "class Tilted(Norm):" in text
    for words, reason in [
        (("tilted", "--part", "norm"), "exists already"),
        (("2x", "--part", "norm"), "cannot be the name of a part"),
        (("true", "--part", "norm"), "'true' cannot be the name of a part"),
        (("rms", "--part", "norm"), "there is a norm 'rms' already; choose another name"),
        (("",), "'' does not end in the name of a file; write it as in mine"),
        (("studies/",), "'studies/' does not end in the name of a file"),
        (("--part", "nrom"), "did you mean 'norm'"),
        ((), "needs the name of an experiment, --from STUDY, or --part SLOT"),
    ]:
        status, _, err = ablate("init", *words)
        assert status == 2
        assert reason in err
    assert [file.name for file in Path().iterdir()] == ["tilted.py"]


@pytest.mark.parametrize("words", [("my study",), ("my study", "--from", "pe")])
def test_the_commands_in_a_new_experiment_can_be_pasted(words: tuple[str, ...]) -> None:
    assert ablate("init", *words)[:2] == (0, "my study.yaml\n")
    first = Path("my study.yaml").read_text(encoding="utf-8").partition("\n")[0]
    assert shlex.split(first)[-3:] == ["ablate", "run", "my study.yaml"]


def test_templates_are_not_registered() -> None:
    assert not [name for table in slots().values() for name in table if name.startswith("my_")]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_the_objective_to_start_from_has_a_gradient_at_every_probability(gamma: float) -> None:
    load_plugin(api.init(part="objective"))
    objective = build(Objective, choose(Objective, "my_objective", gamma=gamma), 0)
    focal = build(Objective, choose(Objective, "focal", gamma=gamma), 0)
    logits = torch.tensor([[0.0, 200.0], [1.0, 0.0], [-200.0, 0.0]], requires_grad=True)
    targets = torch.ones(3, dtype=torch.long)
    values = [each.loss(logits, targets) for each in (objective, focal)]
    gradients = [torch.autograd.grad(value, logits)[0] for value in values]
    torch.testing.assert_close(*values)
    torch.testing.assert_close(*gradients)
    assert bool(gradients[0].isfinite().all())


def test_the_schedule_to_start_from_computes_its_formula() -> None:
    load_plugin(api.init(part="schedule"))
    dims = Dims.model_validate({"d_model": 8, "n_heads": 1, "max_len": 8})
    choice = choose(Schedule, "my_schedule", lr=0.5, power=2.0)
    rates = build(Schedule, choice, dims, 10)
    formula = lookup("schedule", "my_schedule").formula
    assert formula is not None
    python = formula.replace("lr ", "lr * ").replace("^", "**")
    for step in (1, 2, 10):
        known = {"lr": 0.5, "power": 2.0, "n_steps": 10, "step": step}
        assert rates.rate(step) == pytest.approx(eval(python, known))


def test_slots_without_a_part_to_start_from_are_named() -> None:
    with pytest.raises(SpecError, match="known: attention, corpus, embedding"):
        api.init(part="tokenizer")
