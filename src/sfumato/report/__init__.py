"""Figures and a web page from results on disk; never imports torch models."""

from sfumato._core.exports import public_names as _public_names
from sfumato.report.columns import COLUMNS as COLUMNS, Column as Column
from sfumato.report.export import to_csv as to_csv, to_latex as to_latex, to_markdown as to_markdown
from sfumato.report.findings import Findings as Findings, compare_methods as compare_methods
from sfumato.report.page import write_report as write_report
from sfumato.report.read import (
    StudyResults as StudyResults,
    read_studies as read_studies,
    read_study as read_study,
)
from sfumato.report.recommendation import Recommendation as Recommendation, recommend as recommend
from sfumato.report.statistics import Difference as Difference, Estimate as Estimate

__all__ = _public_names(globals())
