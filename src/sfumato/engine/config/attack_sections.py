"""The sections of `evaluate` about attacks and about noise of single frequencies."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from sfumato.engine.config.sections import Strict


def _unset(value: Any) -> bool:
    return value is None


class AttackConfig(Strict):
    """A gradient attack on the whole predictor: with MC dropout on the mean over its masks.

    `epsilon` is the radius of the ball, in units of images in [0, 1]. `steps` (10 where not said),
    `step_size` (2.5 epsilon / steps) and `random_start` (true) belong to `pgd`.
    """

    name: Literal["fgsm", "pgd"]
    epsilon: float = Field(gt=0, allow_inf_nan=False)
    norm: Literal["linf", "l2"] = "linf"
    steps: int | None = Field(None, ge=1, exclude_if=_unset)
    step_size: float | None = Field(None, gt=0, allow_inf_nan=False, exclude_if=_unset)
    random_start: bool | None = Field(None, exclude_if=_unset)

    @model_validator(mode="after")
    def _options_of_its_own(self) -> AttackConfig:
        said = {"steps", "step_size", "random_start"} & self.options.keys()
        if self.name == "fgsm" and said:
            found = ", ".join(sorted(said))
            raise ValueError(f"fgsm is one step of size epsilon; {found} is for name: pgd")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """What its function is called with."""
        return self.model_dump(exclude={"name"})

    def describe(self) -> str:
        """One line that two attacks share only where they are the same."""
        said = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.name} ({said})"


class FrequencyConfig(Strict):
    """What happens where images change in one band of spatial frequencies only.

    Frequencies are in units of pi radians per pixel: 0 is the mean, 1 changes from pixel to pixel.
    `frequencies` are the middles of the bands, each `width` wide. `noise` is the standard deviation
    of Gaussian noise before the band is cut out of it, or null for none; `equal_energy` scales what
    is left back to it. `attack` is made within each band too.
    """

    frequencies: list[float] = Field([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    width: float = Field(0.1, gt=0, le=1)
    noise: float | None = Field(0.1, gt=0, allow_inf_nan=False)
    equal_energy: bool = False
    attack: AttackConfig | None = None

    @model_validator(mode="after")
    def _possible(self) -> FrequencyConfig:
        found = self.frequencies
        if not found or any(not 0 <= each <= 1 for each in found) or len(set(found)) < len(found):
            raise ValueError(
                "frequencies must be different numbers from 0 to 1, in units of pi radians per "
                f"pixel, got {found}"
            )
        if self.noise is None and self.attack is None:
            raise ValueError("nothing to do in the bands: give noise (such as 0.1) or an attack")
        if self.equal_energy and self.noise is None:
            raise ValueError("equal_energy scales noise: give noise, or leave it out")
        return self


def check_titles(titles: Any, what: str) -> None:
    """Raise unless each is a text without dots, which part keys in `metrics.json`."""
    for title in titles:
        if not isinstance(title, str) or not title.strip() or "." in title:
            raise ValueError(f"a title of {what} must be a text without dots, got {title!r}")
