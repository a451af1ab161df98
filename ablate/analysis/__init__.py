"""Statistics over the records of an experiment."""

from ablate.analysis.rounds import Rounds as Rounds
from ablate.analysis.statistics import LEVEL as LEVEL
from ablate.analysis.statistics import Estimate as Estimate
from ablate.analysis.statistics import Interval as Interval
from ablate.analysis.statistics import pooled_sd as pooled_sd
from ablate.analysis.statistics import smallest_detectable as smallest_detectable
from ablate.analysis.summary import STATUSES as STATUSES
from ablate.analysis.summary import Record as Record
from ablate.analysis.summary import Records as Records
from ablate.analysis.summary import Summary as Summary
from ablate.analysis.summary import evaluated_sets as evaluated_sets
from ablate.analysis.summary import is_measured_once as is_measured_once
from ablate.analysis.summary import summarise as summarise
