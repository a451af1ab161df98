"""Tables and figures of an experiment."""

from ablate.report import formats as formats  # each format enters `FORMATS`
from ablate.report.layout import tabulate as tabulate
from ablate.report.render import FORMATS as FORMATS
from ablate.report.render import TableFormat as TableFormat
from ablate.report.render import format_class as format_class
from ablate.report.render import format_of as format_of
from ablate.report.render import render as render
from ablate.report.render import write_tables as write_tables
from ablate.report.results import Details as Details
from ablate.report.results import Texts as Texts
from ablate.report.table import Table as Table
