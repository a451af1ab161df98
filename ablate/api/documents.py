"""What commands print with ``--json``, as JSON Schema: ``ablate schema --of COMMAND``."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, NotRequired, Union, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ablate.api.archive import Restored
from ablate.api.corpora import CorpusListing, CorpusStatistics
from ablate.api.parts import PartListing
from ablate.api.runs import StoredRun
from ablate.config import Negligible
from ablate.config.json_schema import schema as schema_of_experiments
from ablate.contracts.check import Finding
from ablate.doctor.results import CheckResult
from ablate.errors import SpecError
from ablate.gate.check import CheckVerdict
from ablate.printable import SCHEMA
from ablate.record import Record
from ablate.report.comparison import MatchedRow, Outcome, TranslationDifferences
from ablate.report.content import ContextsContent, TableContent
from ablate.report.plan import Plan
from ablate.runner.sessions import Session
from ablate.wording import no_such


class Mistake(TypedDict):
    """What is wrong, where, and what was probably meant; null is unknown."""

    file: str | None
    line: int | None
    column: int | None
    path: str | None
    message: str
    suggestion: str | None


def _object(name: str, base: type | None = None, **more: Any) -> Any:
    """Return the type of an object with the fields of a dataclass, if any, and more keys."""
    make: Any = TypedDict  # whose keys mypy wants to see
    known = {} if base is None else get_type_hints(base)
    of_base = {} if base is None else {each.name: known[each.name] for each in fields(base)}
    return make(name, of_base | more)


def _list(item: Any) -> Any:
    return list[item]


def _by_name(item: Any) -> Any:
    return dict[str, item]


def _event(name: str, keys: dict[str, Any], **more: Any) -> Any:
    return _object(name, schema=Literal[SCHEMA], event=Literal[name], time=str, **keys, **more)


def _require_defaults(content: dict[str, Any]) -> None:
    """Require the keys of an object that have a default, which are printed as all others are."""
    properties = content.get("properties", {})
    printed = [key for key, value in properties.items() if value.pop("default", ...) is not ...]
    if printed:
        content["required"] = [*content.get("required", ()), *printed]


_Removed = _object("Removed", runs=list[StoredRun], is_removed=bool)
_TASK = {"action": Literal["train", "probe"], "experiment": str, "row": str, "seed": int}
_TASK |= {"run": str}
_STEP = dict.fromkeys(("step", "n_steps"), NotRequired[int])
_STEP |= dict.fromkeys(("tokens_per_second", "seconds_left"), NotRequired[float])
_STEP |= dict.fromkeys(("loss", "dev_nll"), NotRequired[float | None])
_EVENTS: Any = (
    _event("tasks", {}, text=str, n_tasks=int, n_at_once=int),
    _event("started", _TASK, device=str),
    _event("progress", _TASK, phase=str, **_STEP),
    _event("stalled", _TASK, phase=str, seconds=float, seconds_left=float, log=str),
    _event("ended", _TASK, text=str, is_good=bool, seconds=float, n_ended=int, n_tasks=int),
    _event("remark", {}, text=str),
)
_TOTALS = {"n_missing": int, "weight_mib": float}
_TIMES = {"seconds_left": float | None, "device_seconds": float | None}
_PLAN: Any = _object("Plan", Plan, **_TOTALS, **_TIMES)
_BLESSED: Any = _object(
    "Blessed",
    path=str,
    **dict.fromkeys(("blessed", "moved", "loosened", "weakened", "refused", "remarks"), list[str]),
)
DOCUMENTS = {
    "run": TableContent,
    "report": TableContent,
    "plan": _PLAN,
    "compare": _object(
        "Compared",
        labels=tuple[str, str],
        rows=_list(_object("MatchedRow", MatchedRow, verdicts=dict[str, Outcome | None])),
        unmatched=tuple[list[str], list[str]],
        provenance=dict[str, tuple[str, str]],
        negligible=Negligible,
        scored_apart=dict[str, tuple[str, str]],
        sentences=TranslationDifferences,
        conclusion=str | None,
    ),
    "gate": _object(
        "Gated",
        experiment=str,
        passed=bool,
        verdicts=_list(_object("CheckVerdict", CheckVerdict, passed=bool)),
        remarks=list[str],
    ),
    "gate --bless": _BLESSED,
    "check": _object("Checked", findings=_list(_object("Finding", Finding, is_kept=bool))),
    "corpora": list[CorpusListing],
    "corpora check": _object("CorpusStatistics", CorpusStatistics),
    "corpora show": _object("CorpusStatistics", CorpusStatistics),
    "doctor": _object("Diagnosis", is_fit=bool, checks=list[CheckResult]),
    "init": _object("Written", path=str),
    "inspect": _object(
        "Inspection", source=str, translation=str, files=list[str], remarks=list[str]
    ),
    "parts": list[PartListing],
    "runs list": list[StoredRun],
    "runs gc": _Removed,
    "runs remove": _Removed,
    "runs archive": _object("Archived", output=str, runs=list[StoredRun]),
    "runs restore": _object("Restored", archives=list[Restored]),
    "runs show": Record,
    "status": list[Session],
    "contexts run": ContextsContent,
    "contexts report": ContextsContent,
    "contexts plan": _object("Plans", contexts=_by_name(_PLAN)),
    "contexts gate --bless": _object("BlessedContexts", contexts=_by_name(_BLESSED)),
    "errors": _object("Refusal", errors=list[Mistake]),
    "detached": _object("Detached", detached=str),
    "events": Union[_EVENTS],  # noqa: UP007 - of a tuple
}
"""The type of what each command prints, and of what all have in common."""


def schema(of: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an experiment, or of what a command prints.

    ``of`` is a command, as in ``runs list``, and ``contexts run`` of one that was given an
    experiment with contexts; ``errors``, which any prints that refuses;
    ``detached``, which one with ``--detach`` prints; or ``events``, the lines of ``--progress
    json``. Keys may be added to objects; when one goes or means something else, the number of
    their key ``schema`` grows.

    Raises:
        SpecError: if no document has this name.
    """
    if of is None:
        return schema_of_experiments()
    if of not in DOCUMENTS:
        raise SpecError(no_such("document", of, sorted(DOCUMENTS)))
    content = TypeAdapter(DOCUMENTS[of]).json_schema(mode="serialization")
    for each in (content, *content.get("$defs", {}).values()):
        _require_defaults(each)
    if "properties" in content and of != "runs show":
        content["properties"] = {"schema": {"const": SCHEMA}, **content["properties"]}
        content["required"] = ["schema", *content["required"]]
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **content, "title": f"ablate {of}"}
