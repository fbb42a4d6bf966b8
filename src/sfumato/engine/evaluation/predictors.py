"""How a run's network predicts: once, or as the mean over dropout masks or over networks."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from sfumato.engine.evaluation.measured import Measured
from sfumato.engine.evaluation.stochastic import LogProbabilities, SampleCurve
from sfumato.predictions import DeepEnsemble, MCDropout


@dataclass
class Predictors:
    """What predicts, and what gives the smaller ensembles from the same passes.

    Attributes:
        network: as the run trained it, maybe in the wrapper that Fabric puts around it.
        config: the run's sections.
        curve: the smaller ensembles, once something has been asked for them.
    """

    network: nn.Module
    config: Measured
    curve: SampleCurve | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        samples = self.config.predict.mc_dropout
        self.averaging: MCDropout | DeepEnsemble | None = None
        if isinstance(self.plain, DeepEnsemble):
            self.averaging = self.plain
        elif samples is not None:
            self.averaging = MCDropout(self.plain, samples)
        self.usual = self.network if self.averaging is None else LogProbabilities(self.averaging)

    @property
    def plain(self) -> nn.Module:
        """The network without the wrapper that Fabric puts around it."""
        inner = getattr(self.network, "module", self.network)
        return inner if isinstance(inner, nn.Module) else self.network

    @property
    def sizes(self) -> list[int]:
        """Of the ensembles that are measured."""
        if isinstance(self.averaging, DeepEnsemble):
            return list(range(1, len(self.averaging.models) + 1))
        return self.config.evaluate.ensemble_sizes

    def with_curve(self) -> nn.Module:
        """The usual predictor; where its passes also give the smaller ensembles, both."""
        averaging = self.averaging
        if averaging is None or not self.sizes:
            return self.usual
        if isinstance(averaging, MCDropout) and max(self.sizes) > averaging.samples:
            return self.usual
        self.curve = SampleCurve(averaging, self.sizes)
        return self.curve

    def new_curve(self) -> SampleCurve:
        """All ensembles that are measured, for passes of their own."""
        averaging = self.averaging
        if not isinstance(averaging, DeepEnsemble):
            samples = max(*self.sizes, self.config.predict.mc_dropout or 1)
            averaging = MCDropout(self.plain, samples)
        self.curve = SampleCurve(averaging, self.sizes)
        return self.curve
