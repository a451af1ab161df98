"""The commands as functions; each returns what its command prints."""

from ablate.api.archive import Restored, archive, restore
from ablate.api.check import check
from ablate.api.compare import compare
from ablate.api.completion import RunOptions
from ablate.api.corpora import (
    CorpusListing,
    CorpusStatistics,
    check_corpus,
    corpora,
    fetch_corpus,
    show_corpus,
)
from ablate.api.doctor import doctor
from ablate.api.documents import schema
from ablate.api.gate import Blessed, Gated, bless, gate
from ablate.api.init import init
from ablate.api.inspect import Inspection, inspect
from ablate.api.parts import PartListing, parts
from ablate.api.plan import plan
from ablate.api.report import Outcome, report
from ablate.api.run import run
from ablate.api.runs import StoredRun, collect_garbage, remove, runs, show_run
from ablate.api.status import status
from ablate.api.study import Experiment, Study
from ablate.api.translate import LoadedRun, Translation, Translator, decoded, load_run, translate
from ablate.config import contexts_of
from ablate.contracts import Finding
from ablate.data.faults import Fault
from ablate.doctor import CheckResult, Diagnosis
from ablate.measuring.attention import AttentionMap
from ablate.report.comparison import Compared, MatchedRow
from ablate.report.plan import Plan, PlannedRow
from ablate.runner.sessions import RunningTask, Session

__all__ = [
    "AttentionMap",
    "Blessed",
    "CheckResult",
    "Compared",
    "CorpusListing",
    "CorpusStatistics",
    "Diagnosis",
    "Experiment",
    "Fault",
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
    "check_corpus",
    "collect_garbage",
    "compare",
    "contexts_of",
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
