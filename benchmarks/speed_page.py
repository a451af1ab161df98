"""Write docs/speed.md: the results of the other benchmarks.

Run it:  python benchmarks/speed_page.py [--output docs/speed.md]

Every number comes from a file in results/benchmarks; where a file is missing, the page has the
command that measures it. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from peers.race import ONE_AT_A_TIME, OURS
from records import RESULTS, ROOT, say

from ablate.store import write_whole

Json = dict[str, Any]
MakeLines = Callable[[Json], Iterator[str]]

FORMER_NAMES = {"split": "data_parallel", "laptop": "laptop_500"}
"""Names that an engine and a preset have now, by those that they had before 1.0."""

INTRODUCTION = """\
# Speed

Written by `python benchmarks/speed_page.py` from what the scripts in `benchmarks/` have measured.
The JSON files hold every round, the machine, the versions, the commit and the command. Times of one
machine mean little on another, so what is compared are ratios of things that took turns. In races
ours runs in the environment that our runner gives to a run (on a CPU: memory that is freed stays
with the process), the others as they come; their options are in the docstrings of the scripts.
A contender's process is started for its turn and ended after it, so that it has the machine alone.
Training is raced in three ways: on the very same batches, which are ours, so that models and loops
alone are compared; with each program making its own batches of the same pairs, which is what its
users get (JoeyNMT, for one, does not sort by length); and, as `ablate run` makes them where there
are as many runs as cores, as so many runs of one thread at a time, beside one run with all cores.

What makes a step fast, whatever the parts:

- logits are made a piece at a time, and never for padding; batches hold pairs of one length, so
  that next to nothing is padding; dropout decides four numbers with one random word;
- on a CPU that multiplies in bf16 `precision: auto` uses it, makes so few logits at a time that
  they stay in the cache with their loss, keeps the kernels that oneDNN makes for the shapes of a
  whole epoch, and fills short rows of attention up to a vector;
- on a CPU each process has one thread, and as many runs go on as there are cores. Cores that are
  left do pieces of large batches (`--engine data_parallel`), in processes that share the weights;
  the sum of the gradients is the same to the last digit, however many cores there were;
- a run does not begin with seconds of imports: its process is forked from one that has everything
  imported and nothing computed, and what was imported is not searched for garbage;
- on a GPU a step is two CUDA graphs (`--engine cuda_graph`; two more are `eager` and `compile`):
  forward and backward, captured once for each shape of a batch, and the update (of `adam` and
  `adamw`). What each weight and each gradient needs, such as a cast, is done to all at once. A part
  declares what keeps it from being captured: its run is trained eagerly, and the table says so. The
  tokens of a beam search are captured likewise, two at a time;
- once in every run one step of its engine is compared with the same step of the eager one. Where
  they differ, or a capture fails, the run is repeated eagerly in a fresh process, and the table
  says why; it is the run that `--engine eager` makes, and has its hash;
- on a GPU the loss over the vocabulary reads and writes 32 bytes for each logit in bf16, where
  PyTorch's function takes 48, and sums of products in bf16 are kept in single precision;
- on a GPU runs of small models go on side by side, on streams of one process (`--jobs N`; by
  default as many as a row's probe advises), at most 16 of them and no more than fit into four
  fifths of the GPU's memory by what their probes reserved, with the numbers they have alone;
- text is encoded once, some thousand sentences at a time, and kept in the user's cache; decoding
  keeps keys and values, and drops sentences that are done.

Everything below was measured on CPUs; what was measured on a GPU is in
[benchmarks/gpu](../benchmarks/gpu/README.md#what-was-measured). The scripts of three sections,
`launches.py`, `scaling.py` and `padded_seeds.py`, had done their work and were removed:
`git log --diff-filter=D -- benchmarks/scaling.py` finds the commit that did it.
"""

ALIVE = """\
The processes of all contenders were alive at once here. What those that wait hold of the memory
can slow those that ask for theirs anew at every step, which ours does not, so that ratios may be
too high."""

SPLIT_SINCE = "2026-11-23"
THREADS = """\
`ours` had all threads in one process here (`--engine eager`): `data_parallel` came later."""

HALF_IS_BELOW = """\
Half of its time would be less than the floor: it takes less arithmetic, or cheaper, as that of
lower precision is on processors that multiply in it."""
HALF_IS_ABOVE = """\
Half of its time would be above the floor: the operations below that are no products would have to
cost next to nothing, and products of its sizes as little as large ones do."""

PRESETS = {"": "Transformer-Tiny", "_d256": "3 + 3 layers of width 256"}
WAYS = {"": "", "_own": ", each on its own batches", "_runs": ", several runs at a time"}
MACHINES = {"": "", "_avx2": ", on a CPU without bf16"}
"""Parts of a record's file name, and their words on the page."""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "speed.md")
    output = parser.parse_args().output
    sections = [
        INTRODUCTION,
        *training(),
        *decoding(),
        *profiles(),
        section("What a step consists of", "launches", "", launches),
        section("Kernels and memory that stay", "memory_and_kernels", "", environments),
        section("What parts cost", "parts_cost", "", parts),
        section("How cost grows", "scaling", "", growth),
        section("Seeds in one model", "padded_seeds", "", seeds),
        section("Reading a large text", "large_corpus", "", texts),
    ]
    write_whole(output, "\n".join(sections))
    say(str(output))


def training() -> Iterator[str]:
    """Yield a section for every race in training."""
    flags = {"": "", "_own": " --own-batches", "_runs": " --side-by-side"}
    for machine, way, preset in product(MACHINES, WAYS, PRESETS):
        title = f"Training, {PRESETS[preset]}{WAYS[way]}{MACHINES[machine]}"
        kind = f"{preset}{way}{machine}"
        yield section(title, "training_speed", _preset_flag(preset) + flags[way], tokens, kind)


def decoding() -> Iterator[str]:
    """Yield a section for every race in decoding."""
    for machine, description in MACHINES.items():
        yield section(f"Decoding, 5 beams{description}", "decoding_speed", "", race, machine)


def profiles() -> Iterator[str]:
    """Yield a section for every profile of a step."""
    for preset, machine in (("", ""), ("_d256", "_avx2")):
        title = f"Where a step's time goes, {PRESETS[preset]}{MACHINES[machine]}"
        yield section(title, "step_profile", _preset_flag(preset), profile, f"{preset}{machine}")


def _preset_flag(kind: str) -> str:
    return f" --preset {kind[1:]}" if kind else ""


def section(title: str, script: str, flags: str, make_lines: MakeLines, kind: str = "") -> str:
    """Return a section of the page.

    Args:
        title: of the section.
        script: that measures it.
        flags: to measure it with.
        make_lines: yields the lines from the record.
        kind: the part of the record's name after the script's.
    """
    file = RESULTS / f"{script}{kind}.json"
    lines = [f"## {title}", ""]
    if not file.exists():
        output = f" --output results/benchmarks/{file.name}" if kind else ""
        command = f"python benchmarks/{script}.py{flags}{output}"
        lines.append(f"Not measured yet: `{command}` does it.")
        return "\n".join(lines) + "\n"
    record = json.loads(file.read_text(encoding="utf-8"))
    machine = record["hardware"]
    lines += [
        f"`{record['command']}`, {record['date'][:10]}, {_machine(machine)}, torch "
        f"{record['versions']['torch']} ([{file.name}](../{file.relative_to(ROOT).as_posix()})).",
        "",
        *make_lines(record),
    ]
    return "\n".join(lines) + "\n"


def _machine(hardware: Json) -> str:
    """Return the CPU, with the widest instructions that it has for numbers."""
    return f"{hardware['device_name']} ({hardware['cpu_kind'].rpartition(', ')[2]})"


def tokens(record: Json) -> Iterator[str]:
    """Yield the results of a race in training."""
    yield from race(record)
    if record["date"] < SPLIT_SINCE:
        yield ""
        yield THREADS


def race(record: Json) -> Iterator[str]:
    """Yield a table of contenders, and what is to be known of their race."""
    entries = {entry["name"]: entry for entry in record["contenders"]}
    yield "| | what | ours is so many times as fast (lowest to highest round) |"
    yield "|---|---|---:|"
    for name, entry in entries.items():
        of_ours = entry["ours_over_it"]
        ratio = _failure(entry) if of_ours is None else "1" if name == OURS else _spread(of_ours)
        yield f"| {name} | {entry['what']} | {ratio} |"
    if record.get("processes") != ONE_AT_A_TIME:
        yield ""
        yield ALIVE
    own = entries.get("ours_fp32")
    if own is not None and own["rounds"]:
        ratios = [
            f"{statistics.median(_ratios(own, entry)):.2f} times as fast as {name}"
            for name, entry in entries.items()
            if name.endswith("_fp32") and entry is not own and entry["rounds"]
        ]
        yield ""
        yield f"`{OURS}` is bf16 here. In fp32 ours is {', '.join(ratios)}."
    if record["settings"].get("side_by_side"):
        yield ""
        yield from experiments(entries, record["settings"]["threads"])
    if record["settings"].get("own_batches"):
        limit = record["settings"]["spec"]["training"]["batch_tokens"]
        yield ""
        yield f"Each makes batches of {limit:,} tokens in its own way, of the same pairs. So many"
        yield "target tokens are in a step, and so much of the target is padding:"
        yield "; ".join(_filled(name, entry) for name, entry in entries.items()) + "."
    facts = [e for e in entries.values() if "equal_to_ours" in e]
    if facts:
        yield ""
        yield (
            "The work was the same: "
            + "; ".join(
                f"{e['name']} wrote {e['n_tokens']:,} tokens, BLEU {e['bleu']:.2f}, "
                f"{e['equal_to_ours']:.0%} of its translations are ours"
                for e in facts
            )
            + "."
        )


def experiments(entries: Mapping[str, Json], n_runs: int) -> Iterator[str]:
    """Yield how contenders compare with ours where several runs of ours go on at the same time."""
    several = f"_x{n_runs}"
    own = entries[f"{OURS}{several}"]
    yield f"With {several} it is {n_runs} runs at the same time with one thread each, their tokens"
    yield "added up: that is how `ablate run` makes what an experiment consists of. In this way"
    yield "ours is so many times as fast (lowest to highest round) as"
    yield ""
    for name, entry in entries.items():
        ratios = [] if name.startswith(OURS) else _ratios(own, entry)
        if ratios:
            ends = {"lowest": min(ratios), "highest": max(ratios)}
            yield f"- {name}: {_spread({'median': statistics.median(ratios), **ends})}"


def _failure(entry: Json) -> str:
    """Return why a contender cannot be compared, as a cell of a table."""
    if entry["rounds"]:
        return f"no round beside {OURS}"
    reason = (entry["error"] or "no round").splitlines()[-1]
    return f"not measured: {reason}".replace("|", "\\|")


def _filled(name: str, entry: Json) -> str:
    if not entry["rounds"]:
        return f"{name} was not measured"
    return f"{name} {entry['target_tokens_per_step']:,.0f}, {entry['target_padding_share']:.1%}"


def _ratios(own: Json, other: Json) -> list[float]:
    pairs = zip(own["rounds"], other["rounds"], strict=False)
    rates = "target_tokens_per_second"
    return [ours[rates] / theirs[rates] for ours, theirs in pairs]


def profile(record: Json) -> Iterator[str]:
    """Yield a step's time beside its floor, and its ten largest operations."""
    seconds, floor = record["seconds_per_step"], record["floor_seconds"]
    settings, times = record["settings"], record["times_the_floor"]
    workers = next(f"{name}: {settings[name]}" for name in ("cores", "threads") if name in settings)
    yield f"`{_name_now(record, 'engine')}`, {record['precision']}, {workers},"
    yield f"{record['target_tokens_per_step']:,.0f} target tokens per step. At the rate of large"
    yield f"matrix products its arithmetic would take {floor['arithmetic'] / seconds:.0%} of its"
    yield f"time, at the speed of a large copy its bytes {floor['memory'] / seconds:.0%}: a step"
    yield f"takes {times:.2f} times the floor."
    yield HALF_IS_BELOW if times < 2 else HALF_IS_ABOVE
    yield ""
    yield "| share | operation | calls per step |"
    yield "|---:|---|---:|"
    for operation in record["top"]:
        calls = operation["calls_per_step"]
        yield f"| {operation['share']:.1%} | `{operation['name']}` | {calls:,.0f} |"


def launches(record: Json) -> Iterator[str]:
    """Yield the operations of a step, and how many Python starts."""
    yield "Operations of a step that compute something, and how many of them, and of graphs, Python"
    yield "starts. Counted on a CPU; a GPU has fewer for dropout and, in bf16, for the softmax."
    yield ""
    yield "| model | precision | engine | operations | started by Python |"
    yield "|---|---|---|---:|---:|"
    for count in record["counts"]:
        model = PRESETS.get(f"_{count['preset']}", PRESETS[""])
        yield (
            f"| {model} | {count['precision']} | `{count['engine']}` "
            f"| {count['operations']:,} | {count['started']:,} |"
        )


def environments(record: Json) -> Iterator[str]:
    """Yield how fast a step is in each environment, beside neither setting."""
    settings, rounds = record["settings"], record["rounds"]
    yield f"The baseline of experiments/multi30k/atlas.yaml on one core, {settings['turns']} turns,"
    yield f"when each of {settings['batches']} batches comes for the second time."
    yield "`kernels`: oneDNN keeps those of a whole epoch, by itself the last 1,024; `huge pages`:"
    yield "glibc asks for them. A run has both."
    yield ""
    yield "| environment | so many times as fast as with neither (lowest to highest turn) | MiB |"
    yield "|---|---:|---:|"
    for name, turns in rounds.items():
        pairs = zip(rounds["neither"], turns, strict=True)
        ratios = [a["seconds_per_step"] / b["seconds_per_step"] for a, b in pairs]
        ends = {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
        mib = statistics.median(turn["mib"] for turn in turns)
        yield f"| {name} | {_spread(ends)} | {mib:,.0f} |"


def parts(record: Json) -> Iterator[str]:
    """Yield what each part costs beside the preset's own."""
    yield f"Beside the parts of `{_name_now(record, 'preset')}`, as ratios; speeds are medians of"
    yield (
        f"{record['rounds']} rounds, with the middle half of them; memory is the peak of training."
    )
    yield ""
    yield "| slot | part | training | decoding | memory |"
    yield "|---|---|---:|---:|---:|"
    for part in record["parts"]:
        speeds = " | ".join(_middle(part[measure]) for measure in ("training", "decoding"))
        yield f"| {part['slot']} | {part['name']} | {speeds} | {part['memory']:.2f} |"


def growth(record: Json) -> Iterator[str]:
    """Yield with which power time and memory grow."""
    small = ", ".join(f"{name} {size:,}" for name, size in record["small"].items())
    yield f"One size grows, the others stay: {small}."
    yield "The power is that of the last two sizes; 1 is proportional."
    yield ""
    yield "| what grows | from | to | measured | from | to | power |"
    yield "|---|---:|---:|---|---:|---:|---:|"
    for axis, growth_of in record["axes"].items():
        sizes, points = growth_of["sizes"], growth_of["points"]
        for key, exponent in growth_of["exponents"].items():
            first, last = points[0][key], points[-1][key]
            yield (
                f"| {axis} | {sizes[0]:,} | {sizes[-1]:,} | {key.replace('_', ' ')} "
                f"| {first:.3g} | {last:.3g} | {exponent:.2f} |"
            )
    yield ""
    yield "![time and memory against size](../results/benchmarks/scaling.png)"


def seeds(record: Json) -> Iterator[str]:
    """Yield why seeds have models of their own."""
    times = ", ".join(f"{n} seeds {each:.2f}" for n, each in record["times_the_tokens"].items())
    yield "Runs share a GPU on streams of their own, not as replicas of one batched model: seeds"
    yield "have data orders of their own, so at every step their batches have other rows and"
    yield "lengths. Padded to the largest of them they would be so many times the tokens (an epoch"
    yield f"of {record['experiment']['name']}, {record['experiment']['batch_tokens']:,} a batch):"
    yield f"{times}. Nor could a replica's dropout be drawn as it is drawn alone."


def texts(record: Json) -> Iterator[str]:
    """Yield the cost of preparing texts of several sizes, beside the tokenizers library alone."""
    yield "What a run needs before its first batch, with a joint BPE of 8,000: once for each text"
    yield "on a machine (empty cache), and for every run after that (full cache). An empty cache in"
    yield "times of what the tokenizers library alone needs to learn from the same words and to"
    yield "encode the same lines; a full cache in seconds, and MiB of the process. Measured once."
    yield ""
    yield "| pairs | empty: time | processor time | peak memory | full: time | peak memory |"
    yield "|---|---|---|---|---|---|"
    for n_pairs, measured in record["pairs"].items():
        alone, cold, warm = measured.values()
        ratios = " | ".join(
            f"{cold[key] / alone[key]:.2f}" for key in ("seconds", "cpu_seconds", "peak_mib")
        )
        yield f"| {int(n_pairs):,} | {ratios} | {warm['seconds']:.1f} | {warm['peak_mib']:,.0f} |"


def _name_now(record: Json, key: str) -> str:
    name: str = record[key]
    return FORMER_NAMES.get(name, name) if record["versions"]["ablate"] == "0.1.0" else name


def _spread(ratio: Json) -> str:
    return f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"


def _middle(ratio: Json) -> str:
    return f"{ratio['median']:.2f} ({ratio['lower']:.2f} to {ratio['upper']:.2f})"


if __name__ == "__main__":
    main()
