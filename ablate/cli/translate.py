"""``ablate translate``."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.completion import run_names
from ablate.cli.guard import guarded
from ablate.cli.output import echo, echo_data


@guarded
def translate(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=run_names,
            help=f"{options.TrainedRun} Of several runs the probabilities are averaged.",
        ),
    ],
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Print the N best translations of every line, as [b]line ||| translation ||| "
            "score[/b]. Lines are counted from 0.",
        ),
    ] = 1,
    training_text: Annotated[
        bool,
        typer.Option(
            "--training-text",
            help="Translate the source side of the training set, not standard input, for "
            "[b]training.teacher[/b].",
        ),
    ] = False,
    device: options.ModelDevice = "cpu",
    results: options.Results = options.RESULTS,
    plugins: options.Plugins = None,
) -> None:
    """Translate standard input to standard output, line by line, with a trained run.

    Examples:
      echo "the red dog sleeps" | ablate translate pe:none:1

      ablate translate pe:none:1 pe:none:2 pe:none:3 < test.en
    """
    from ablate import api

    translator = api.Translator(run, device=device, results=results, n_best=n_best)
    lines: Iterable[str] = api.decoded(sys.stdin.buffer, "standard input")
    if training_text:
        lines = translator.training_sources()
    is_prompt = sys.stdin.isatty() and not training_text
    translations = translator.translate(
        lines, is_prompt=is_prompt, warn=lambda text: echo(text, err=True)
    )
    for number, best in enumerate(translations):
        for each in best:
            scored = f"{number} ||| {each.text} ||| {each.score:.4f}"
            echo_data(each.text if n_best == 1 else scored)
