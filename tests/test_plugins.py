"""Parts from outside: files and installed distributions, from the command line to the record."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate import api, config
from ablate.cli.app import app
from ablate.config import RunSpec, identity
from ablate.config.identity import plugins_of
from ablate.errors import StoreError
from ablate.record import SCHEMA
from ablate.registry import Plugin, PluginError, adopt, load_plugin, lookup, plugins, slots
from ablate.registry.plugins import load_installed
from ablate.runner.task import Task
from ablate.store import Store
from tests.made_up_runs import BASE
from tests.registrations import temporary_registrations

pytestmark = pytest.mark.commands

MINE = '''\
"""A position encoding from outside."""

from __future__ import annotations

import dataclasses

from pydantic import PositiveFloat
from torch import Tensor

from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position import Position
from ablate.registry import register


@dataclasses.dataclass
class Ramp:  # its annotations are looked up in the module, which must therefore be known
    slope: float


@register("ramp", formula="x_p = e_p + slope p", source="this test, 2026, sec. 1")
class Ramped(Position):
    """Add the position itself.

    Args:
        slope: of the ramp.
    """

    def __init__(self, dims: Dims, stack_info: StackInfo, *, slope: PositiveFloat = 0.01) -> None:
        super().__init__(dims, stack_info)
        self.ramp = Ramp(slope)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.ramp.slope * positions[:, None]
'''

THEIRS = '''\
from torch import Tensor

from ablate.parts.scaling import Scaling
from ablate.registry import register


@register("tenth", formula="s(q, k) = q . k / 10", source="this test, 2026, sec. 2")
class Tenth(Scaling):
    """A tenth of the dot product."""

    def query(self, q: Tensor) -> Tensor:
        return q / 10
'''

EXPERIMENT = f"{BASE}variants:\n  ramp: {{model.position: ramp}}\n"
TENTH = "  tenth: {model.scaling: tenth, model.position: ramp}\n"

BROKEN = {
    "missing": (None, r"mine\.py: cannot be read: No such file"),
    "syntax": ("x = 1\nif x\n", r"mine\.py:2: expected ':'"),
    "encoding": (b"x = 1\ny = '\xff'\nz = 2\n", r"mine\.py: cannot be read as Python"),
    "fails": ("def f():\n    return 1 / 0\n\n\nf()\n", r"mine\.py:2: ZeroDivisionError: division"),
    "exits": ("import sys\nsys.exit(3)\n", r"mine\.py:2: SystemExit: 3"),
    "nothing": ("x = 1\n", r"mine\.py: registers no part"),
    "taken": (MINE.replace('"ramp"', '"learned"'), r"mine\.py:20: position 'learned' is already L"),
    "elsewhere": (
        "from ablate.registry import register\n"
        "from ablate.parts.position import Learned\n"
        "register('again', source='this test, 2026')(Learned)\n",
        r"mine\.py: position 'again' is defined in the module ablate\.parts\.position\.",
    ),
    "no slot": (
        "from ablate.registry import register\n\n\n"
        "@register('loose', source='this test, 2026')\nclass Loose:\n    pass\n",
        r"mine\.py:4: Loose is of no slot",
    ),
    "incomplete": (
        "from ablate.parts.schedule import Schedule\nfrom ablate.registry import register\n\n\n"
        "@register('idle', source='this test, 2026')\nclass Idle(Schedule):\n    pass\n",
        r"mine\.py:5: the schedule Idle does not define rate$",
    ),
    "misspelt": (
        MINE.replace("def embed", "def forwrad"),
        r"mine\.py:20: .* overrides nothing .* it defines forwrad; .* has .*embed, .*values$",
    ),
    "misspelt beside another": (
        f"{MINE}\n    def rotat(self, x: Tensor, positions: Tensor) -> Tensor:\n        return x\n",
        r"mine\.py:20: the position Ramped defines 'rotat', .* did you mean 'rotate'\?$",
    ),
    "untyped option": (
        MINE.replace("slope: PositiveFloat =", "slope="),
        r"mine\.py:20: the option 'slope' of Ramped has no type, .*; write one, as in `slope: ",
    ),
    "list of options": (
        MINE.replace("PositiveFloat = 0.01", "list[float] | None = None"),
        r"mine\.py:20: the option 'slope' of Ramped has a type with a list, .* `slope: tuple\[",
    ),
    "default of another type": (
        MINE.replace("PositiveFloat = 0.01", "int = None"),
        r"mine\.py:20: the option 'slope' of Ramped has the default None, which its type does not",
    ),
    "default out of range": (
        MINE.replace("= 0.01", "= 0.0").replace("*, ", "*, first: int, "),
        r"mine\.py:20: the option 'slope' of Ramped has the default 0\.0, .*greater than 0\)",
    ),
    "option name": (
        MINE.replace("*, slope", "*, name: str = 'steep', slope"),
        r"mine\.py:20: an option of Ramped is called 'name', which is the key .*",
    ),
}

Ablate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    with temporary_registrations():
        yield


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(MINE, encoding="utf-8")
    return file


@pytest.fixture
def ablate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ablate:
    """Run a command line, in this process, in a folder with ``pe.yaml``."""
    (tmp_path / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return subprocess.CompletedProcess(
            list(words), ended.value.code, captured.out, captured.err
        )

    return run


def name_of(run: RunSpec) -> str:
    return identity(run, "content", "fp32")


def spec_of(position: str = "none", **model: Any) -> RunSpec:
    return RunSpec.model_validate({"model": {"position": position, **model}})


def test_a_file_brings_its_parts_and_leaves_no_trace(mine: Path) -> None:
    before = {slot: set(table) for slot, table in slots().items()}
    with temporary_registrations():
        plugin = load_plugin(mine)
        entry = lookup("position", "ramp")
        assert entry.origin == plugin
        assert entry.choose({"slope": 2.0}).options == {"slope": 2.0}
        assert plugins() == (plugin,)
        assert plugin.module in sys.modules
        assert plugin.sha256 == hashlib.sha256(mine.read_bytes()).hexdigest()
    assert {slot: set(table) for slot, table in slots().items()} == before
    assert plugins() == ()
    assert plugin.module not in sys.modules


def test_the_same_content_is_loaded_once_and_other_content_refused(
    mine: Path, tmp_path: Path
) -> None:
    plugin = load_plugin(mine)
    other = tmp_path / "other.py"
    other.write_text(MINE, encoding="utf-8")
    load_plugin(mine)
    load_plugin(other)
    assert plugins() == (plugin,)
    other.write_text(f"{MINE}\n# another\n", encoding="utf-8")
    message = r"other\.py:20: .* already Ramped of .*mine\.py; .* changed, start Python anew$"
    with pytest.raises(PluginError, match=message):
        load_plugin(other)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_plugin_ends_with_2_and_a_sentence(kind: str, ablate: Ablate) -> None:
    content, sentence = BROKEN[kind]
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        Path("mine.py").write_bytes(raw)
    before = {slot: dict(table) for slot, table in slots().items()}
    done = ablate("plan", "pe.yaml", "--plugin", "mine.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(sentence, done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert slots() == before
    assert plugins() == ()


def test_plan_names_the_contracts_that_a_plugin_breaks(ablate: Ablate) -> None:
    Path("mine.py").write_text(
        MINE.replace("positions[:, None]", "(positions / positions.max().clamp(min=1))[:, None]"),
        encoding="utf-8",
    )
    for _ in range(2):  # the second time from the cache
        done = ablate("plan", "pe.yaml", "--plugin", "mine.py")
        assert done.returncode == 0
        text = " ".join(done.stdout.split())
        assert "position ramp of mine.py breaks padding, token by token" in text
        assert "`ablate check mine.py` says more" in text
    (entry,) = Path("cache/contracts").iterdir()
    Path("mine.py").write_text(MINE, encoding="utf-8")
    with temporary_registrations():
        assert "breaks" not in ablate("plan", "pe.yaml", "--plugin", "mine.py").stdout
    assert entry in {*Path("cache/contracts").iterdir()}


def test_what_a_plugin_prints_while_it_is_loaded_is_no_result(ablate: Ablate) -> None:
    Path("mine.py").write_text(f"{MINE}\nprint('loaded')\n", encoding="utf-8")
    done = ablate("schema", "--plugin", "mine.py")
    assert "$defs" in json.loads(done.stdout)
    assert "loaded" in done.stderr.splitlines()


COMMANDS = """run pe.yaml|plan pe.yaml|report pe.yaml|compare pe.yaml pe.yaml|gate pe.yaml
    |inspect pe.yaml|corpora check pe.yaml|runs list --experiment pe.yaml|runs gc pe.yaml
    |runs archive pe.yaml --output pe.tar|parts|schema|translate abc|corpora
    |corpora fetch synthetic|corpora show synthetic"""


@pytest.mark.parametrize("command", COMMANDS.split("|"))
def test_every_command_that_reads_an_experiment_or_lists_parts_takes_plugins(
    command: str, ablate: Ablate
) -> None:
    done = ablate(*command.split(), "--plugin", "nonesuch.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nonesuch.py: cannot be read")


READING = """plan theirs.yaml|run theirs.yaml|report theirs.yaml|compare theirs.yaml pe.yaml
    |gate theirs.yaml|runs gc theirs.yaml|runs list --experiment theirs.yaml
    |runs archive theirs.yaml --output theirs.tar|plan heir.yaml|parts --plugin mine.py"""


@pytest.mark.parametrize("command", READING.split("|"))
def test_no_plugin_is_run_where_that_is_forbidden(command: str, ablate: Ablate) -> None:
    """In no command that reads an experiment; the next call may run it again."""
    Path("mine.py").write_text(f"{MINE}\nopen('was_run', 'w').close()\n", encoding="utf-8")
    Path("theirs.yaml").write_text("plugins: mine.py\nvariants: {}\n", encoding="utf-8")
    Path("heir.yaml").write_text("extends: theirs.yaml\n", encoding="utf-8")
    done = ablate("--no-plugins", *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine.py: is a program, and --no-plugins" in done.stderr
    assert not Path("was_run").exists()
    with temporary_registrations():
        load_plugin("mine.py")
    assert Path("was_run").exists()


def test_a_part_without_a_docstring_has_not_that_of_its_contract(mine: Path) -> None:
    start = MINE.index('    """Add the position')
    bare = MINE[:start] + MINE[MINE.index("    def __init__") :]
    mine.write_text(bare, encoding="utf-8")
    load_plugin(mine)
    assert lookup("position", "ramp").doc == ""
    assert lookup("position", "rotary").doc.startswith("Rotate ")


@pytest.mark.full
def test_a_plugin_is_listed_and_part_of_the_schema(mine: Path, ablate: Ablate) -> None:
    without = ablate("plan", "pe.yaml")
    assert without.returncode == 2
    assert "no position is called 'ramp'" in without.stderr
    listed = ablate("parts", "position", "ramp", "--json", "--plugin", "mine.py")
    [part] = json.loads(listed.stdout)
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert part["origin"] == {"name": "mine.py", "sha256": digest}
    Path("example.yaml").write_text(part["example"], encoding="utf-8")
    with temporary_registrations():
        [row] = config.load(Path("example.yaml")).rows
        assert row.spec.model.position.name == "ramp"
    assert part["cost"]["params_added"] == 0
    assert part["options"][0]["meaning"] == "of the ramp."
    assert "from mine.py" in ablate("parts", "position").stdout
    assert "slope" in ablate("schema").stdout


def test_the_content_counts_for_the_runs_that_use_it_and_for_no_other(
    mine: Path, tmp_path: Path
) -> None:
    others = [spec_of("learned"), RunSpec.model_validate({})]
    before = [name_of(run) for run in others]
    names = {}
    for content in (MINE, f"{MINE}# more\n"):
        mine.write_text(content, encoding="utf-8")
        with temporary_registrations():
            load_plugin(mine)
            used = [spec_of("ramp"), spec_of("learned", decoder={"position": "ramp"})]
            names[content] = [name_of(run) for run in used]
            assert [list(plugins_of(run)) for run in used] == [
                ["model.position"],
                ["model.decoder.position"],
            ]
            assert [name_of(run) for run in others] == before
    one, other = names.values()
    assert not set(one) & set(other)
    moved = tmp_path / "elsewhere.py"
    moved.write_text(MINE, encoding="utf-8")
    load_plugin(moved)
    assert name_of(spec_of("ramp")) == one[0]


def make_task(run: RunSpec, tmp_path: Path) -> Task:
    return Task(
        action="train",
        key="k",
        experiment="pe",
        variant="v",
        spec=run.model_dump(mode="json"),
        device="cpu",
        precision="fp32",
        results=tmp_path,
        probe="p",
    )


def test_a_task_carries_the_plugins_of_its_run_alone(mine: Path, tmp_path: Path) -> None:
    assert make_task(spec_of("learned"), tmp_path).plugins == ()
    plugin = load_plugin(mine)
    assert make_task(spec_of("learned"), tmp_path).plugins == ()
    task = make_task(spec_of("ramp"), tmp_path)
    assert task.plugins == (plugin,)
    assert Task.from_line(task.to_line()) == task
    assert task.record("done")["plugins"] == [{"name": str(mine), "sha256": plugin.sha256}]


def test_a_part_of_no_plugin_names_no_run() -> None:
    """As one that is defined in a cell of a notebook, of which workers know nothing."""
    exec(THEIRS, {"__name__": "a_notebook"})
    message = r"scaling 'tenth' .* module a_notebook, which is no plugin: .*, my_scaling\.py, and"
    with pytest.raises(PluginError, match=message):
        name_of(spec_of(scaling="tenth"))
    assert name_of(spec_of("learned"))


def test_a_run_without_its_plugins_says_where_to_get_them(tmp_path: Path) -> None:
    spec = spec_of("learned").model_dump(mode="json")
    spec["model"]["position"] = {"name": "ramp"}
    plugins = [{"name": name, "sha256": "0" * 64} for name in ("my own.py", "theirs-parts 1.2")]
    run = {"schema": SCHEMA, "hash": "a" * 16, "status": "done", "error": None}
    Store(tmp_path).save({**run, "spec": spec, "plugins": plugins})
    hint = r"; give --plugin 'my own\.py' and install theirs-parts 1\.2, with which it was trained$"
    with pytest.raises(StoreError, match=hint):
        api.load_run("a" * 16, results=tmp_path)


def test_a_worker_runs_what_the_run_was_named_after(mine: Path, tmp_path: Path) -> None:
    with temporary_registrations():
        load_plugin(mine)
        run = spec_of("ramp")
        line, name = make_task(run, tmp_path).to_line(), name_of(run)
    mine.write_text("the file is being edited", encoding="utf-8")
    for plugin in Task.from_line(line).plugins or ():
        adopt(plugin)
    assert name_of(RunSpec.model_validate(json.loads(line)["spec"])) == name


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package whose part lies in a module of its own."""
    site = tmp_path / "site"
    package = site / "theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("import theirs.scalings\n", encoding="utf-8")
    (package / "scalings.py").write_text(THEIRS, encoding="utf-8")
    info = site / "theirs_parts-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: theirs-parts\nVersion: 1.2\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[ablate.parts]\ntheirs = theirs.parts\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(site)
    return package


def test_an_installed_distribution_brings_its_parts(distribution: Path) -> None:
    """Its code and its version count."""
    metadata = distribution.parent / "theirs_parts-1.2.dist-info" / "METADATA"
    names = []
    for code, version in (("", "1.2"), ("# a change beside the part\n", "1.2"), ("", "1.3")):
        (distribution / "__init__.py").write_text(code, encoding="utf-8")
        metadata.write_text(f"Name: theirs-parts\nVersion: {version}\n", encoding="utf-8")
        with temporary_registrations():
            load_installed()
            load_installed()  # a plugin that looks up a part while it is imported does that
            origin = lookup("scaling", "tenth").origin
            assert origin is not None
            assert origin.name == f"theirs-parts {version}"
            assert plugins() == (origin,)
            tenth = spec_of(scaling="tenth")
            assert make_task(tenth, distribution).plugins == (origin,)
            names.append(name_of(tenth))
        assert "theirs.parts" not in sys.modules
    assert len(set(names)) == 3


def test_the_command_in_a_caution_checks_the_part_that_it_names(
    distribution: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("ablate.api.check")
    monkeypatch.setattr(module, "_broken", lambda _: "padding")
    file, spec = tmp_path / "my own.py", tmp_path / "pe.yaml"
    file.write_text(MINE, encoding="utf-8")
    spec.write_text(EXPERIMENT + TENTH, encoding="utf-8")
    load_plugin(file)
    load_installed()
    of_file, installed = module.cautions(config.load(spec).rows)
    assert of_file.endswith(f"`ablate check {shlex.quote(str(file))}` says more")
    assert "tenth of theirs-parts 1.2 breaks padding" in installed
    assert installed.endswith("`ablate check` says more")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("import os\n1 / 0\n", r"theirs-parts 1\.2: .*parts\.py:2: ZeroDivisionError"),
        (
            MINE.replace('"ramp"', '"none"'),
            r"theirs-parts 1\.2: .*parts\.py:20: position 'none' is already NoPosition$",
        ),
    ],
)
def test_a_broken_distribution_is_named_with_the_line(
    content: str, sentence: str, distribution: Path
) -> None:
    (distribution / "parts.py").write_text(content, encoding="utf-8")
    before = {slot: dict(table) for slot, table in slots().items()}
    with pytest.raises(PluginError, match=sentence):
        load_installed()
    assert slots() == before
    assert plugins() == ()
    points = distribution.parent / "theirs_parts-1.2.dist-info" / "entry_points.txt"
    points.write_text("[ablate.parts]\nlost = nonesuch.parts\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r"theirs-parts 1\.2, entry point 'lost': .*'nonesuch'"):
        load_installed()


def test_a_worker_notices_that_what_is_installed_has_changed() -> None:
    with pytest.raises(PluginError, match=r"theirs-parts 1\.2 has changed"):
        adopt(Plugin("theirs-parts 1.2", "0" * 64, "theirs"))


@pytest.mark.e2e
def test_a_run_with_parts_from_outside_from_start_to_translation(
    mine: Path, distribution: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers train with a file and with what is installed, and the record names both."""
    entries = [str(distribution.parent), *(str(Path(entry).absolute()) for entry in sys.path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(entries))
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def ablate(command: str, *words: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "ablate.cli", command, "--plugin", "mine.py", *words)
        return subprocess.run(
            words, cwd=tmp_path, input="the dog\n", capture_output=True, text=True
        )

    (tmp_path / "pe.yaml").write_text(EXPERIMENT + TENTH, encoding="utf-8")
    done = ablate("run", "pe.yaml", "--only", "tenth", "--seeds", "1", "--no-probe")
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "results" / "runs").glob("*/record.json")
    record = json.loads(file.read_text(encoding="utf-8"))
    of_file, installed = sorted(record["plugins"], key=lambda plugin: plugin["name"])
    digest = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert of_file == {"name": "mine.py", "sha256": digest}
    assert installed["name"] == "theirs-parts 1.2"
    assert record["params"]["by_part"]["encoder.position"]["part"] == "ramp"
    assert record["params"]["by_part"]["encoder.attention.scaling"]["part"] == "tenth"
    done = ablate("translate", record["hash"])
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
    mine.write_text(MINE.replace("* positions", "- positions"), encoding="utf-8")
    done = ablate("translate", record["hash"])
    assert f"was trained with mine.py {digest[:12]}, and that has changed" in done.stderr
