"""Every experiment and preset that we ship is read, checked and assembled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ablate import spec
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.runner.check import blueprint, check
from ablate.spec import ModelSpec

ROOT = Path(__file__).parents[1] / "experiments"
FILES = sorted(ROOT.rglob("*.yaml"))
STUDIES = [path for path in FILES if path.parent.name != "presets" and path.stem != "corpus"]
TEN = Vocabulary(n_src=10, n_tgt=10, is_joint=False)


def preset(name: str) -> ModelSpec:
    return spec.load(ROOT / "presets" / f"{name}.yaml").rows[0].spec.model


def count(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_valid(path: Path) -> None:
    check(spec.load(path))


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_study_asks_something_and_has_rows_and_seeds(path: Path) -> None:
    experiment = spec.load(path)
    assert experiment.question
    assert experiment.question.endswith("?")
    assert len(experiment.rows) >= 4
    assert len(experiment.seeds) >= 3


def test_the_studies_stand_twice() -> None:
    laptop = {path.stem for path in ROOT.glob("*.yaml")}
    multi30k = {path.stem for path in (ROOT / "multi30k").glob("*.yaml")} - {"corpus"}
    assert {"pe", "norm", "heads", "scaling"} <= laptop == multi30k


def test_tiny_small_base_and_big_have_their_sizes() -> None:
    for name, vocabulary, n in [
        ("tiny", 9_712, 2_568_192),
        ("small", 9_712, 36_515_840),
        ("base", 37_000, 63_045_632),
        ("big", 37_000, 214_171_648),
    ]:
        with torch.device("meta"):
            model = assemble(preset(name), Vocabulary(vocabulary, vocabulary, is_joint=True), 0)
        assert count(model) == n, name


def demo(name: str) -> Transformer:
    torch.manual_seed(0)
    return assemble(preset(name), TEN, pad=0).eval()


def test_notebook_4_has_its_parameters_and_its_shape() -> None:
    model = demo("notebook_4")
    encoder = count(model.encoder) + 10 * 256
    decoder = count(model.decoder) + 10 * 256 + 10 * 256 + 10
    assert (encoder, decoder, count(model)) == (3_599_360, 4_016_650, 7_616_010)
    src = torch.tensor([[1, 5, 6, 4, 3, 9, 5, 2, 0], [1, 8, 7, 3, 4, 5, 6, 7, 2]])
    tgt = torch.tensor([[1, 7, 4, 3, 5, 9, 2, 0], [1, 5, 6, 2, 4, 7, 6, 2]])
    assert model(src, tgt[:, :-1]).shape == (2, 7, 10)


def test_notebook_4_with_full_projections() -> None:
    full = preset("notebook_4").model_dump() | {"attention": {"name": "full", "bias": False}}
    with torch.device("meta"):
        assert count(assemble(ModelSpec.model_validate(full), TEN, 0)) == 11_099_658


def test_the_notebooks_share_one_table_of_sinusoids_but_for_the_second() -> None:
    tables = {
        name: dict(blueprint_of(name).encoder.position.named_buffers())["table"]
        for name in ("base", "notebook_0", "notebook_1", "notebook_2", "notebook_3")
    }
    same = {name for name, table in tables.items() if torch.equal(table, tables["base"])}
    assert same == {"base", "notebook_0", "notebook_1", "notebook_3"}


def blueprint_of(name: str) -> Transformer:
    """Assemble a preset for real, of the smallest depth: the table is what is asked for."""
    small = preset(name).model_dump() | {"n_layers": 1, "embedding": "separate"}
    return assemble(ModelSpec.model_validate(small), TEN, 0)


def test_a_blueprint_costs_no_memory() -> None:
    model = blueprint(spec.load(ROOT / "presets" / "big.yaml").rows[0].spec)
    assert all(p.is_meta for p in model.parameters())
