"""The commands as functions; each returns what its command prints."""

from ablate.api.archiving import Restored, archive, restore
from ablate.api.checking import Finding, check
from ablate.api.comparing import compare
from ablate.api.corpus import CorpusListing, CorpusStatistics, corpora, fetch_corpus, show_corpus
from ablate.api.examining import CheckResult, Diagnosis, doctor
from ablate.api.gating import Blessed, Gated, bless, gate
from ablate.api.inspecting import Inspection, inspect
from ablate.api.listing import PartListing, parts
from ablate.api.loading import LoadedRun, load_run
from ablate.api.options import RunOptions
from ablate.api.planned import Plan, PlannedRow
from ablate.api.planning import plan
from ablate.api.running import Outcome, report, run
from ablate.api.showing import show_run
from ablate.api.starting import init
from ablate.api.stored import (
    RunningTask,
    Session,
    StoredRun,
    collect_garbage,
    remove,
    runs,
    status,
)
from ablate.api.study import Experiment, Study
from ablate.api.translating import Translation, Translator, decoded, translate
from ablate.config import schema
from ablate.measuring.attention import AttentionMap
from ablate.report.compared import Compared, MatchedRow

__all__ = [
    "AttentionMap",
    "Blessed",
    "CheckResult",
    "Compared",
    "CorpusListing",
    "CorpusStatistics",
    "Diagnosis",
    "Experiment",
    "Finding",
    "Gated",
    "Inspection",
    "LoadedRun",
    "MatchedRow",
    "Outcome",
    "PartListing",
    "Plan",
    "PlannedRow",
    "Restored",
    "RunOptions",
    "RunningTask",
    "Session",
    "StoredRun",
    "Study",
    "Translation",
    "Translator",
    "archive",
    "bless",
    "check",
    "collect_garbage",
    "compare",
    "corpora",
    "decoded",
    "doctor",
    "fetch_corpus",
    "gate",
    "init",
    "inspect",
    "load_run",
    "parts",
    "plan",
    "remove",
    "report",
    "restore",
    "run",
    "runs",
    "schema",
    "show_corpus",
    "show_run",
    "status",
    "translate",
]
