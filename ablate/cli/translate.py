"""``ablate translate``; cheap to import, like every command."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.options import RESULTS, Plugins, Results, load_plugins
from ablate.cli.output import echo, echo_data


@guarded
def translate(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="experiment:row:seed, the first characters of a run's hash, or its folder; of "
            "several, an ensemble: their probabilities are averaged.",
        ),
    ],
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="N translations of every line, each as [b]line ||| translation ||| score[/b]; "
            "lines count from 0.",
        ),
    ] = 1,
    training_text: Annotated[
        bool,
        typer.Option(
            "--training-text",
            help="Translate the sources that the run was trained on, not standard input: what "
            "[b]training.teacher[/b] takes.",
        ),
    ] = False,
    device: Annotated[str, typer.Option(metavar="cpu|cuda:0", help="The device.")] = "cpu",
    results: Results = RESULTS,
    plugins: Plugins = None,
) -> None:
    """Translate standard input to standard output, line by line, with a trained run.

    Examples:
      echo "the red dog sleeps" | ablate translate pe:none:1

      ablate translate pe:none:1 pe:none:2 pe:none:3 < test.en
    """
    from ablate import api

    load_plugins(plugins)
    translator = api.Translator(run, device=device, results=results, n_best=n_best)
    lines: Iterable[str] = (
        translator.training_sources()
        if training_text
        else api.decoded(sys.stdin.buffer, "standard input")
    )
    is_prompt = sys.stdin.isatty() and not training_text
    translations = translator.translate(
        lines, is_prompt=is_prompt, warn=lambda text: echo(text, err=True)
    )
    for number, best in enumerate(translations):
        for each in best:
            echo_data(
                each.text if n_best == 1 else f"{number} ||| {each.text} ||| {each.score:.4f}"
            )
