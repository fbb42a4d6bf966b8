"""From results on disk to figures and a web page; never imports torch models."""

from sfumato.report.page import write_report
from sfumato.report.read import StudyResults, read_study
from sfumato.report.summary import COLUMNS, summarise

__all__ = ["COLUMNS", "StudyResults", "read_study", "summarise", "write_report"]
