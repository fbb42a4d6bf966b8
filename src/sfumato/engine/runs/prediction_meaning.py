"""One probability a row beside the predicted class: of class 1, or of the class that is predicted?

`label,predicted,probability` is written both ways, and only the values tell which.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sfumato.engine.runs.prediction_columns import as_number
from sfumato.engine.runs.prediction_formats import Columns
from sfumato.engine.runs.prediction_labels import exact_number, spelled
from sfumato.engine.runs.prediction_names import Roles
from sfumato.engine.runs.prediction_rows import PredictionFileError

_ROUNDING = 1e-6


class Meaning:
    """What one probability a row stands for, the same in all parts of a file.

    Args:
        where: the file, for messages.
        classes: names of two classes, where they are told.
    """

    def __init__(self, where: str, classes: list[str] | None) -> None:
        self.where, self.classes = where, classes or []
        self.is_confidence: bool | None = None

    def settle(self, roles: Roles, columns: Columns) -> Roles:
        """Roles with probabilities as the confidence of the predicted class, where they are that.

        They are those of class 1 where this fits the predicted classes of the first part.

        Raises:
            PredictionFileError: they are neither, or another part speaks against the first.
        """
        if roles.beside is None:
            return roles
        name = roles.scores[0]
        is_confidence = self._is_confidence(columns[name], columns[roles.beside])
        self.is_confidence = is_confidence if self.is_confidence is None else self.is_confidence
        if is_confidence is None or is_confidence is not self.is_confidence:
            raise PredictionFileError(
                f"{self.where}: {name!r} fits {roles.beside!r} neither as the probability of class "
                f"1 nor as that of the predicted class; leave {roles.beside!r} out, or call it "
                "'confidence' if it is that"
            )
        if not is_confidence:
            return roles
        return replace(roles, scores=[], kind=None, confidence=roles.confidence or name)

    def _is_confidence(self, column: np.ndarray, predicted: np.ndarray) -> bool | None:
        """False where probabilities of class 1 fit, None where those of no class do."""
        codes, names = spelled(predicted)
        numbers = np.array([self._number(name) for name in names], dtype=np.float64)[codes]
        values = np.array([as_number(value) for value in column.tolist()], dtype=np.float64)
        known = ~np.isnan(values) & ~np.isnan(numbers)
        values, numbers = values[known], numbers[known]
        if not np.isin(numbers, (0, 1)).all():
            return True
        fits = np.where(numbers == 1, values >= 0.5 - _ROUNDING, values <= 0.5 + _ROUNDING)
        if fits.all():
            return False
        return True if (values >= 0.5 - _ROUNDING).all() else None

    def _number(self, name: str) -> float:
        """Of a class; NaN where there is no name, 2 for a name that is no number."""
        if name in self.classes:
            return float(self.classes.index(name))
        if name in ("", "nan", "None"):
            return float("nan")
        number = exact_number(name)
        return 2.0 if number is None else float(number)
