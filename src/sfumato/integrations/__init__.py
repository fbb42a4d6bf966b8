"""Sfumato inside other libraries: Lightning, Hugging Face's `Trainer`, scikit-learn.

Names load when they are first used, and with them the library that they are for.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from sfumato._core.exports import on_first_use as _on_first_use

if _TYPE_CHECKING:
    from sfumato.integrations.lightning import EvaluationCallback as EvaluationCallback
    from sfumato.integrations.sklearn import (
        CalibratedClassifier as CalibratedClassifier,
        ConformalClassifier as ConformalClassifier,
        RiskControlledClassifier as RiskControlledClassifier,
        ScoreCalibrator as ScoreCalibrator,
    )
    from sfumato.integrations.transformers import (
        end_epoch_callback as end_epoch_callback,
        trainer_loss as trainer_loss,
        trainer_metrics as trainer_metrics,
        trainer_scores as trainer_scores,
    )

_HOMES = {
    "CalibratedClassifier": "sklearn",
    "ConformalClassifier": "sklearn",
    "EvaluationCallback": "lightning",
    "RiskControlledClassifier": "sklearn",
    "ScoreCalibrator": "sklearn",
    "end_epoch_callback": "transformers",
    "trainer_loss": "transformers",
    "trainer_metrics": "transformers",
    "trainer_scores": "transformers",
}
__all__ = sorted(_HOMES)
__getattr__, __dir__ = _on_first_use(__name__, _HOMES, globals())
