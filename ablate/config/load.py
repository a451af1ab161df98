"""From a file to an experiment, or to the list of all its mistakes; from an experiment to runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field, NonNegativeInt, ValidationError, field_validator

from ablate.config.files import HEADER, whole
from ablate.config.merge import LEAF, MergeSchema
from ablate.config.messages import MistakesError, validated
from ablate.config.negligible import Negligible
from ablate.config.published import Measures, Published
from ablate.config.rows import BASELINE, names_asked_for, rows, told, told_at
from ablate.config.runs import Experiment, Run, locate
from ablate.config.source import Mistake, Node, UnreadableError
from ablate.errors import SpecError
from ablate.registry import Frozen, suggest


class Header(Frozen):
    """What an experiment says of itself, beside its rows."""

    question: str = ""
    seeds: tuple[NonNegativeInt, ...] = Field(default=(1, 2, 3), min_length=1)
    negligible: Negligible = Negligible()
    published: Published | None = None

    @field_validator("seeds", mode="before")
    @classmethod
    def _a_list(cls, given: object) -> object:
        if isinstance(given, int):
            raise ValueError("needs a list of seeds, as in [1, 2, 3]")
        return given

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
        if twice is not None:
            raise ValueError(f"the seed {twice} is there twice; drop one")
        return seeds


def load(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment and check all its rows.

    Args:
        path: the file.
        overrides: ``PATH=VALUE`` each, laid over the baseline; rows still change what they say.

    Raises:
        SpecError: with every mistake of the file, its parents and the overrides.
    """
    path = Path(path)
    wrong: list[Mistake] = []
    try:
        tree = whole(path, overrides, wrong)
    except UnreadableError as error:
        raise MistakesError([*wrong, error.mistake]) from None
    header = _header(tree, wrong)
    made, origins = rows(tree, wrong)
    wrong += _of_no_row(tree, [row.name for row in made], names_asked_for(tree) if wrong else [])
    if wrong or header is None:
        raise MistakesError(wrong)
    seeded = [
        replace(row, spec=row.spec.model_copy(update={"seed": header.seeds[0]})) for row in made
    ]
    return Experiment(
        name=_name(path),
        question=header.question or None,
        path=path,
        rows=tuple(seeded),
        seeds=header.seeds,
        origins=origins,
        negligible=header.negligible,
        published=header.published,
    )


def expand(
    experiment: Experiment, seeds: Sequence[int] | None = None, only: Sequence[str] | None = None
) -> tuple[Run, ...]:
    """Return the runs of an experiment, row by row, and for each row seed by seed.

    Args:
        experiment: what `load` returned.
        seeds: instead of the experiment's own.
        only: names of the rows that are wanted.

    Raises:
        SpecError: if there is no row of such a name, or the seeds are no seeds.
    """
    chosen = experiment.seeds
    if seeds is not None:
        try:
            chosen = Header(seeds=tuple(seeds)).seeds
        except ValidationError as error:
            raise SpecError(
                "seeds must be distinct whole numbers from 0 on, at least one"
            ) from error
    names = [row.name for row in experiment.rows]
    for name in only or ():
        if name not in names:
            known = ", ".join(names)
            raise SpecError(f"no row is called {name!r};{suggest(name, names)} known: {known}")
    return tuple(
        Run(experiment.name, row.name, row.spec.model_copy(update={"seed": seed}))
        for row in experiment.rows
        if only is None or row.name in only
        for seed in chosen
    )


def mistakes(experiment: Experiment, refusals: Iterable[tuple[str, str, str]]) -> MistakesError:
    """Return an error that tells refusals of a later check where the experiment causes them.

    What the baseline is refused too is told once. What a row is refused although it does not say
    it is told where the row begins.

    Args:
        experiment: what `load` returned.
        refusals: row, dotted path, and reason of each.
    """
    refused = list(refusals)
    of_baseline = {(path, reason) for row, path, reason in refused if row == BASELINE}
    found = []
    for row, path, reason in refused:
        origin = experiment.origins[row]
        node, is_there = locate(origin.tree, path.split("."))
        mistake = Mistake(node.mark, node.path if is_there else path, reason)
        if row == BASELINE:
            found.append(mistake)
        elif (path, reason) not in of_baseline:
            caused = told(mistake, row, origin.layer, origin.at)
            found.append(caused if is_there else told_at(mistake, row, origin.at))
    return MistakesError(found)


def _header(tree: Node, wrong: list[Mistake]) -> Header | None:
    said = replace(tree, value={key: node for key, node in tree.items() if key in HEADER})
    header, mistakes_in_it = validated(Header, said, _SCHEMA)
    wrong += mistakes_in_it
    return header


_SCHEMA = MergeSchema(
    below={
        "negligible": MergeSchema(below=dict.fromkeys(Negligible.model_fields, LEAF)),
        "published": MergeSchema(
            below={
                **dict.fromkeys(Published.model_fields, LEAF),
                "rows": MergeSchema(
                    others=MergeSchema(below=dict.fromkeys(Measures.model_fields, LEAF))
                ),
            },
            is_demanding=True,
        ),
    }
)


def _of_no_row(tree: Node, names: list[str], unmade: list[str]) -> list[Mistake]:
    """Return what is published of rows that there are not.

    Args:
        tree: everything the experiment says.
        names: of its rows.
        unmade: of rows that it asks for, some of which may be missing for other mistakes.
    """
    of_rows, depth = tree.descend(["published", "rows"])
    known = ", ".join(names)
    return [
        Mistake(
            node.key, node.path, f"no row is called {name!r};{suggest(name, names)} known: {known}"
        )
        for name, node in (of_rows.items() if depth == 2 else ())
        if name not in (BASELINE, *names, *unmade)
    ]


def _name(path: Path) -> str:
    folder = path.resolve().parent.name
    return path.stem if folder in ("", "experiments") else f"{folder}/{path.stem}"
