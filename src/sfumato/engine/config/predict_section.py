"""The section of a run that says how its network predicts."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from sfumato.engine.config.sections import Strict, is_unused


class TemporalConfig(Strict):
    """Temporal smoothing over past frames, with weights exp(-decay k)."""

    length: int = Field(5, ge=0)
    decay: float = Field(0.8, ge=0)


class CopiesConfig(Strict):
    """Test-time augmentation: the mean over changed copies of an image; see `AveragedCopies`."""

    flip: bool = True
    crop: int = Field(0, ge=0)
    blur: list[float] = Field([])
    weights: Literal["equal", "likelihood"] = "equal"

    @model_validator(mode="after")
    def _possible(self) -> CopiesConfig:
        if not (self.flip or self.crop or self.blur):
            raise ValueError("nothing to average: ask for flip, a crop or blur")
        if any(not 0 < sigma < math.inf for sigma in self.blur):
            raise ValueError(f"blur must hold widths in pixels above 0, got {self.blur}")
        return self


class PredictConfig(Strict):
    """How a trained network predicts: once, or as the mean over dropout masks, or over time.

    With both, each frame is the mean over `mc_dropout` masks (1 in the paper) and then smoothed.
    `ensemble` averages over networks: "seeds" over those of all seeds of the study, which a run
    holds as the list of them; or over the networks of given run directories.
    `feature_clipping` clamps the features before the last layer, by as much as suits the validation
    set; `tta` averages over copies of the image.
    """

    mc_dropout: int | None = Field(None, ge=1)
    ensemble: Literal["seeds"] | list[int] | list[str] | None = Field(None, exclude_if=is_unused)
    temporal: TemporalConfig | None = Field(None, exclude_if=is_unused)
    feature_clipping: bool = Field(False, exclude_if=is_unused)
    tta: CopiesConfig | None = Field(None, exclude_if=is_unused)

    @field_validator("ensemble", mode="before")
    @classmethod
    def _different_members(cls, members: Any) -> Any:
        """In one message, where the types alone would give one for each form."""
        if members is None or members == "seeds":
            return members
        kinds = {type(each) for each in members} if isinstance(members, list) else set()
        if kinds not in ({int}, {str}) or len(members) < 2 or len(set(members)) < len(members):
            raise ValueError(
                "an ensemble is over seeds (the word, for all of the study) or over a list of two "
                f"or more different seeds, or run directories, got {members!r}"
            )
        return members
