"""The catalogue of parts: in a terminal, in a pipe, and as a page of documentation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.api.costs import N_PAIRS, N_TOKENS, STATED
from ablate.api.parts import OptionListing, PartListing
from ablate.config import BASELINE
from ablate.report.values import format_value, number, signed
from ablate.wording import and_list

_SCOPE = (
    "of a training step, forward and backward, per target token; of matrix products alone, on a "
    f"batch of {N_PAIRS} pairs of {N_TOKENS} + {N_TOKENS} tokens"
)
_WORTH = (
    "ΔBLEU is BLEU on the first test set less the baseline's, in the table of {tables}: the mean "
    "over seeds, and the 95% interval that holds together with those of all rows."
)


def overview(console: Console, listed: Sequence[PartListing]) -> None:
    """Print a table for every slot; of one slot alone, every option too."""
    slots = [list(parts) for _, parts in groupby(listed, key=lambda part: part.slot)]
    for parts in slots:
        console.print(_heading(parts[0]))
        console.print(_stacked(parts) if console.is_terminal else _flat(parts))
        if len(slots) == 1 and any(part.options for part in parts):
            console.print(Text("\noptions", style="bold"))
            console.print(_options(parts, is_stacked=console.is_terminal))
        console.print()
    console.print(Text(f"* marks a slot's default. {_legend(listed)}".rstrip(), style="dim"))


def details(console: Console, part: PartListing) -> None:
    """Print one part in detail."""
    console.print(_heading(part, f": {part.name}"))
    worth = f"ΔBLEU {_worth(part)}; {_legend_of_worth([part])}" if part.measured else ""
    lines = [part.formula, part.source, _origin(part), _cost(part) if part.cost else "", worth]
    for line in filter(None, lines):
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    console.print(Padding(Text(f"\n{part.text}\n"), (0, 0, 0, 2)))
    for option in part.options:
        is_in_text = f"\n    {option.name}: " in part.text
        line = f"{option.name}: {_values(option)}{'' if is_in_text else f'; {option.meaning}'}"
        console.print(Padding(Text(line), (0, 0, 0, 2)))
    if part.example:
        console.print(Text("\n  the smallest experiment that has it:\n", style="dim"))
        console.print(Padding(Text(part.example.rstrip()), (0, 0, 0, 4)))


def markdown(listed: Sequence[PartListing]) -> str:
    """Return the catalogue as a page of documentation."""
    written = f"Written by `{command(listed)}`; edit the parts, not this page."
    lines = ["# Parts", "", written, "", rf"\* marks a slot's default. {_legend(listed)}", ""]
    cells: dict[str, Callable[[PartListing], str]] = {
        "part": lambda p: f"[{p.name}](#{p.slot}-{p.name})" + (r"\*" if p.is_default else ""),
        "formula": lambda part: _code(part.formula),
        "parameters": lambda part: _added(part)[0],
        "MFLOPs": lambda part: _added(part)[1],
        "with": lambda part: _code(_companion(part)),
        "ΔBLEU": lambda part: _cell(_worth(part)),
        "source": lambda part: _cell(part.source),
    }
    for slot, of_slot in groupby(listed, key=lambda part: part.slot):
        parts = list(of_slot)
        where = f" Chosen at `{parts[0].path}`." if parts[0].path else ""
        lines += [f"## {slot}", "", f"{parts[0].slot_summary}{where}", ""]
        filled = {head: cell for head, cell in cells.items() if any(map(cell, parts))}
        lines.append(_row(filled))
        lines.append(_row("--:" if head in ("parameters", "MFLOPs") else "---" for head in filled))
        lines += [_row(cell(part) for cell in filled.values()) for part in parts]
        for part in parts:
            lines += ["", f"### {slot}: {part.name}", "", part.prose]
            if part.options:
                lines += ["", _row(("option", "may be", "default", "meaning")), _row(["---"] * 4)]
            for o in part.options:
                lines.append(_row((_code(o.name), *map(_cell, (o.type, _default(o), o.meaning)))))
        lines.append("")
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def command(listed: Sequence[PartListing]) -> str:
    """Return the command that writes this project's page."""
    measured = "".join(f" --measured {name}" for name in _experiments(listed))
    return f"ablate parts --format markdown{measured} > docs/parts.md"


def _heading(part: PartListing, name: str = "") -> Text:
    where = f"  {part.path}" if part.path and part.path != part.slot else ""
    what = part.slot_summary
    if name:
        what = "the default" if part.is_default else ""
    return Text.assemble((f"{part.slot}{name}", "bold"), (where, "dim"), f"  {what}".rstrip())


def _stacked(parts: Sequence[PartListing]) -> Table:
    """Return a narrow table: the descriptions of a part are one below the other."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.add_column("  part", no_wrap=True)
    has_costs = any(part.cost for part in parts)
    for header in ("parameters", "MFLOPs") if has_costs else ():
        grid.add_column(header, justify="right", no_wrap=True)
    grid.add_column("what it is", ratio=1)
    for part in parts:
        lines = [
            Text(part.formula or part.summary),
            *([Text(_brief(part.options), style="cyan")] if part.options else []),
            *([Text(f"with {_companion(part)}")] if _companion(part) else []),
            *([Text(f"ΔBLEU {_worth(part)}")] if part.measured else []),
            Text(part.source, style="dim"),
            *([Text(_origin(part), style="dim")] if part.origin else []),
        ]
        costs = [Text(cell) for cell in _added(part)] if has_costs else []
        name = Text.assemble("  ", part.name, ("*" if part.is_default else "", "bold"))
        grid.add_row(name, *costs, Text("\n").join(lines))
    return grid


def _flat(parts: Sequence[PartListing]) -> Table:
    """Return a table with one line for every part, of any length."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    headers = ["part", "parameters", "MFLOPs", "with", "ΔBLEU"]
    headers += ["what it is", "options", "source", "from"]
    rows = []
    for part in parts:
        measured = (*_added(part), _companion(part), _worth(part))
        about = (part.formula or part.summary, _brief(part.options), part.source, _origin(part))
        rows.append([f"{part.name}{'*' if part.is_default else ''}", *measured, *about])
    columns = [n for n in range(len(headers)) if any(row[n] for row in rows)]
    for n in columns:
        grid.add_column(headers[n], justify="right" if n in (1, 2) else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(row[n]) for n in columns))
    return grid


def _options(parts: Sequence[PartListing], *, is_stacked: bool) -> Table:
    """Return a table of all options; stacked, the meaning is below the values."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in ("  part", "option", "may be") + (() if is_stacked else ("meaning",)):
        grid.add_column(header, no_wrap=not (is_stacked and header == "may be"))
    for part in parts:
        for n, option in enumerate(part.options):
            cells = [Text("" if n and is_stacked else f"  {part.name}"), Text(option.name)]
            meaning = option.meaning.replace("`", "")
            about = [Text(_values(option)), Text(meaning, style="dim")]
            grid.add_row(*cells, *([Text("\n").join(about)] if is_stacked else about))
    return grid


def _legend(listed: Sequence[PartListing]) -> str:
    if not any(part.cost for part in listed):
        return _legend_of_worth(listed)
    of_base = next((p.cost for p in listed if p.is_default and p.cost), None)
    flops = f", {of_base.flops_per_target_token / 1e6:,.1f} MFLOPs" if of_base else ""
    size = f": {of_base.params:,} parameters{flops}" if of_base else ""
    return (
        "Parameters and MFLOPs are what a part adds, counted on the assembled model, to "
        f"{STATED}{size}; MFLOPs {_SCOPE}. {_legend_of_worth(listed)}"
    ).rstrip()


def _legend_of_worth(listed: Sequence[PartListing]) -> str:
    names = _experiments(listed)
    return _WORTH.format(tables=and_list(names)) if names else ""


def _experiments(listed: Sequence[PartListing]) -> list[str]:
    """Return the names of the experiments that have measured parts."""
    return list(dict.fromkeys(part.measured.experiment for part in listed if part.measured))


def _cost(part: PartListing) -> str:
    assert part.cost
    beside = f", with {_companion(part)}" if part.cost.companion else ""
    params, flops = _added(part)
    return (
        f"{params} parameters, {flops} MFLOPs, which makes {part.cost.params:,} and "
        f"{part.cost.flops_per_target_token / 1e6:,.1f}, in {STATED}{beside}; MFLOPs {_SCOPE}"
    )


def _added(part: PartListing) -> tuple[str, str]:
    if part.cost is None:
        return "", ""
    params, flops = part.cost.params_added, part.cost.flops_per_target_token_added / 1e6
    digits = 0 if abs(flops) >= 100 else 1 if abs(flops) >= 10 else 2
    return f"{params:+,}" if params else "0", f"{flops:+,.{digits}f}" if flops else "0"


def _worth(part: PartListing) -> str:
    """Return the difference in BLEU with its interval."""
    measured = part.measured
    if measured is None or measured.mean is None:
        return ""
    if measured.difference is None:
        is_baseline = measured.row == BASELINE
        return f"{number(measured.mean, 1)}, the {'baseline' if is_baseline else 'mean'}"
    beside = "".join(f", with {path}: {format_value(v)}" for path, v in measured.beside.items())
    difference = signed(measured.difference, 1)
    if measured.low is None or measured.high is None:
        return f"{difference}{beside}"
    return f"{difference} [{signed(measured.low, 1)}, {signed(measured.high, 1)}]{beside}"


def _companion(part: PartListing) -> str:
    beside = part.cost.companion if part.cost else {}
    return ", ".join(f"{path}: {name}" for path, name in beside.items())


def _origin(part: PartListing) -> str:
    return f"from {part.origin['name']}" if part.origin else ""


def _brief(options: Iterable[OptionListing]) -> str:
    return ", ".join(f"{o.name}={'...' if o.is_required else _value(o.default)}" for o in options)


def _values(option: OptionListing) -> str:
    return f"{option.type}; {'' if option.is_required else 'default '}{_default(option)}"


def _default(option: OptionListing) -> str:
    return "must be given" if option.is_required else _value(option.default)


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
