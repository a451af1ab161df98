"""Tables and figures of an experiment."""

from ablate.report.formats import FORMATS as FORMATS
from ablate.report.formats import TableFormat as TableFormat
from ablate.report.formats import format_class as format_class
from ablate.report.formats import format_of as format_of
from ablate.report.formats import render as render
from ablate.report.formats import write_tables as write_tables
from ablate.report.layout import tabulate as tabulate
from ablate.report.results import Details as Details
from ablate.report.results import Texts as Texts
from ablate.report.table import Table as Table
