"""Statistics over the records of an experiment."""

from ablate.analysis.comparison import Comparison as Comparison
from ablate.analysis.comparison import Difference as Difference
from ablate.analysis.measures import Comparisons as Comparisons
from ablate.analysis.measures import Sentences as Sentences
from ablate.analysis.measures import comparisons as comparisons
from ablate.analysis.speeds import Rounds as Rounds
from ablate.analysis.speeds import Speed as Speed
from ablate.analysis.statistics import LEVEL as LEVEL
from ablate.analysis.statistics import Estimate as Estimate
from ablate.analysis.statistics import Interval as Interval
from ablate.analysis.summary import STATUSES as STATUSES
from ablate.analysis.summary import TRAIN_FLOPS as TRAIN_FLOPS
from ablate.analysis.summary import Record as Record
from ablate.analysis.summary import Records as Records
from ablate.analysis.summary import Summary as Summary
from ablate.analysis.summary import evaluated_sets as evaluated_sets
from ablate.analysis.summary import is_measured_once as is_measured_once
from ablate.analysis.summary import summarise as summarise
from ablate.analysis.verdict import Verdict as Verdict
from ablate.analysis.verdict import direction as direction
from ablate.analysis.verdict import higher_is_better as higher_is_better
from ablate.analysis.verdict import verdict as verdict
