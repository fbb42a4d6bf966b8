"""From results on disk to figures and a web page; never imports torch models."""

from sfumato.report.columns import COLUMNS, Column
from sfumato.report.export import to_csv, to_latex, to_markdown
from sfumato.report.findings import Findings, compare_methods
from sfumato.report.merge import read_studies
from sfumato.report.page import write_report
from sfumato.report.read import StudyResults, read_study
from sfumato.report.recommendation import Recommendation, recommend
from sfumato.report.statistics import Difference, Estimate
from sfumato.report.summary import summarise

__all__ = [
    "COLUMNS",
    "Column",
    "Difference",
    "Estimate",
    "Findings",
    "Recommendation",
    "StudyResults",
    "analyse",
    "compare_methods",
    "read_studies",
    "read_study",
    "recommend",
    "summarise",
    "to_csv",
    "to_latex",
    "to_markdown",
    "write_report",
]

analyse = compare_methods  # its name in version 0.1
