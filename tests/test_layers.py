"""A package imports only from the layers below its own, and the docs show it so."""

from __future__ import annotations

import pytest

from tests.layers import (
    FILES,
    LAYER_OF,
    PICTURE,
    forbidden,
    package_of,
    picture,
    table,
    written,
)


def test_files_import_only_from_lower_layers() -> None:
    for file in FILES:
        assert package_of(file) in LAYER_OF, "a new package needs its place in tests/layers.py"
        assert forbidden(package_of(file), file.read_text(encoding="utf-8")) == [], file


@pytest.mark.parametrize(
    "source",
    [
        "from ablate.store import Store",
        "import ablate.store",
        "from ablate import store",
        "def late():\n    from ablate.store import Store",
        "from ablate.cellar import wine",
    ],
)
def test_an_import_from_a_higher_layer_is_seen(source: str) -> None:
    assert forbidden("data", source) != []


def test_an_import_from_a_lower_layer_or_the_same_package_is_allowed() -> None:
    assert forbidden("data", "from ablate.data import corpus\nimport ablate.errors") == []


def test_table_and_picture_in_the_docs_are_of_these_imports() -> None:
    assert written() == table(), "run python -m tests.layers"
    assert PICTURE.read_text(encoding="utf-8") == picture(), "run python -m tests.layers"
