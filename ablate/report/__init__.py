"""Tables and figures of an experiment."""

from ablate.report.cells import Table as Table
from ablate.report.details import Details as Details
from ablate.report.details import Texts as Texts
from ablate.report.layout import table as table
from ablate.report.render import format_class as format_class
from ablate.report.render import format_of as format_of
from ablate.report.render import render as render
from ablate.report.render import write_tables as write_tables
from ablate.report.table_format import FORMATS as FORMATS
from ablate.report.table_format import TableFormat as TableFormat
