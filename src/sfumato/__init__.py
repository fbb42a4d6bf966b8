"""Sfumato: smoothing that makes neural classifiers say what they know.

Smoothing happens in four places, one folder each: `sfumato.labels`, `sfumato.inputs`,
`sfumato.features`, `sfumato.predictions`. Importing one of them costs torch and nothing else.
"""

__version__ = "0.1.0"
