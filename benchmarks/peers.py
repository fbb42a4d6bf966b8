"""Functions that a peer has too: value and time, ours and theirs, one run, one thread.

    python benchmarks/peers.py --rounds 7

`python3 -m pip install 'sfumato[peers]'` installs the peers; one that is missing is left out, and
said so. Time is what the thread itself used, so that other processes matter less. The ratio is the
median of the rounds: ours / theirs. docs/others.md is written from it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from analysis import trained_network
from harness import median_ms, median_ratio, print_table, time_interleaved, write_results

from sfumato.analysis import hessian_max_spectrum
from sfumato.labels import cross_entropy_loss
from sfumato.metrics import (
    CalibrationError,
    aurc,
    calibration_error,
    mean_set_size,
    smooth_calibration_error,
)
from sfumato.predictions import (
    ConformalPredictor,
    IsotonicScaler,
    StructuredMatrixScaler,
    TemperatureScaler,
)


class Row(NamedTuple):
    """A function of ours beside a peer's; both calls return the value that is compared."""

    what: str
    peer: str
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def sample(count: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of an overconfident model in single precision, and labels."""
    generator = torch.Generator().manual_seed(count + classes)
    true = 2 * torch.randn(count, classes, generator=generator)
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    return 1.7 * true, labels


def of_torchmetrics() -> Iterator[Row]:
    from torchmetrics.classification import MulticlassCalibrationError

    for count in (10_000, 1_000_000):
        logits, labels = sample(count, 10)
        batches = [*zip(logits.softmax(1).split(1000), labels.split(1000), strict=True)]

        def stream(metric: Any, batches: Any = batches) -> float:
            for probs, target in batches:
                metric.update(probs, target)
            return float(metric.compute())

        yield Row(
            f"streaming ECE, {count:,} x 10",
            "torchmetrics",
            lambda stream=stream: stream(CalibrationError(num_bins=15)),
            lambda stream=stream: stream(MulticlassCalibrationError(10, n_bins=15)),
        )


def of_netcal() -> Iterator[Row]:
    from netcal.metrics import ECE
    from netcal.scaling import TemperatureScaling

    logits, labels = sample(10_000, 10)
    probs = logits.softmax(1)
    array, target = probs.double().numpy(), labels.numpy()  # of single precision it fits nothing
    yield Row(
        "ECE, 10,000 x 10",
        "netcal",
        lambda: float(calibration_error(probs, labels)),
        lambda: float(ECE(15).measure(array, target)),
    )
    theirs = TemperatureScaling(detection=False)
    yield Row(
        "temperature, 10,000 x 10",
        "netcal",
        lambda: TemperatureScaler().fit(logits=logits, target=labels).temperature,
        lambda: 1 / float(theirs.fit(array, target).weights[0]),
    )


def of_probmetrics() -> Iterator[Row]:
    from probmetrics.calibrators import get_calibrator
    from probmetrics.calibrators.logistic import SMSCalibrator

    for kind, count, classes in (
        ("temperature", 10_000, 10),
        ("matrix", 5000, 10),
        ("matrix", 5000, 100),
    ):
        logits, labels = sample(count, classes)
        probs, target = logits.softmax(1).numpy(), labels.numpy()

        def likelihood(found: Any, target: Any = target) -> float:
            return float(-np.log(np.asarray(found)[np.arange(len(target)), target]).mean())

        def ours(kind: str = kind, x: Any = probs, y: Any = target, of: Any = likelihood) -> float:
            scaler = TemperatureScaler() if kind == "temperature" else StructuredMatrixScaler()
            return of(scaler.fit(probs=x, target=y).predict_proba(probs=x))

        def theirs(
            kind: str = kind, x: Any = probs, y: Any = target, of: Any = likelihood
        ) -> float:
            made = get_calibrator("temp-scaling") if kind == "temperature" else SMSCalibrator()
            return of(made.fit(x, y).predict_proba(x))

        yield Row(f"{kind} scaling (NLL), {count:,} x {classes}", "probmetrics", ours, theirs)


def of_scikit_learn() -> Iterator[Row]:
    from sklearn.isotonic import IsotonicRegression

    logits, labels = sample(10_000, 2)
    first, target = logits.softmax(1)[:, 1].double(), (labels == 1).double()
    yield Row(
        "isotonic (fit), 10,000 x 2",
        "scikit-learn",
        lambda: float(
            IsotonicScaler()
            .fit(logits=logits, target=labels)
            .predict_proba(logits=logits)[:, 1]
            .mean()
        ),
        lambda: float(IsotonicRegression().fit(first, target).predict(first).mean()),
    )


def of_mapie() -> Iterator[Row]:
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        classes_, n_features_in_ = np.arange(100), 100

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def predict_proba(self, features: Any) -> Any:
            return features

        def predict(self, features: Any) -> Any:
            return features.argmax(1)

    logits, labels = sample(20_000, 100)
    probs, target = logits.double().softmax(1).numpy(), labels.numpy()
    for method, score in (("thr", "lac"), ("aps", "aps"), ("raps", "raps")):

        def ours(method: Any = method) -> float:
            found = ConformalPredictor(method).fit(probs[:10_000], target[:10_000])
            return float(mean_set_size(found.predict(probs[10_000:])))

        def theirs(score: str = score) -> float:
            found = SplitConformalClassifier(Given(), conformity_score=score, random_state=0)
            found.conformalize(probs[:10_000], target[:10_000])
            options = None if score == "lac" else {"include_last_label": "randomized"}
            return float(found.predict_set(probs[10_000:], options)[1][..., 0].sum(1).mean())

        yield Row(f"{method} sets (mean size), 20,000 x 100", "MAPIE", ours, theirs)


def of_timm() -> Iterator[Row]:
    from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy

    for count, classes in ((128, 10), (4096, 1000)):
        logits, labels = sample(count, classes)
        soft = (logits + torch.randn_like(logits)).softmax(1)
        smooth, theirs = LabelSmoothingCrossEntropy(0.1), SoftTargetCrossEntropy()

        def step(loss: Any, target: Any, logits: Any = logits) -> float:
            given = logits.clone().requires_grad_()
            value = loss(given, target)
            value.backward()
            return float(value.detach())

        size = f"({count}, {classes})"
        yield Row(
            f"label smoothing, {size}",
            "timm",
            lambda step=step, y=labels: step(partial(cross_entropy_loss, smoothing=0.1), y),
            lambda step=step, y=labels, of=smooth: step(of, y),
        )
        yield Row(
            f"soft targets, {size}",
            "timm",
            lambda step=step, y=soft: step(cross_entropy_loss, y),
            lambda step=step, y=soft, of=theirs: step(of, y),
        )


def of_torch_uncertainty() -> Iterator[Row]:
    from torch_uncertainty.metrics import AURC, AdaptiveCalibrationError

    logits, labels = sample(10_000, 10)
    probs = logits.softmax(1)

    def value(metric: Any) -> float:
        metric.update(probs, labels)
        return float(metric.compute())

    yield Row(
        "adaptive ECE, 10,000 x 10",
        "torch-uncertainty",
        lambda: float(calibration_error(probs, labels, binning="mass")),
        lambda: value(AdaptiveCalibrationError("multiclass", num_bins=15, num_classes=10)),
    )
    yield Row(
        "AURC, 10,000 x 10",
        "torch-uncertainty",
        lambda: float(aurc(probs, labels)),
        lambda: value(AURC()),
    )


def of_relplot() -> Iterator[Row]:
    from relplot import smECE

    logits, labels = sample(10_000, 10)
    probs = logits.softmax(1)
    sure, chosen = probs.max(1)
    right = (chosen == labels).double().numpy()
    yield Row(
        "smooth ECE, 10,000 x 10",
        "relplot",
        lambda: float(smooth_calibration_error(probs, labels)),
        lambda: float(smECE(sure.double().numpy(), right)),
    )


def of_pyhessian() -> Iterator[Row]:
    from pyhessian import hessian

    model, batch = trained_network(64, 20)

    def ours() -> float:
        found = hessian_max_spectrum(model, [batch], weight_decay=0.0, mode="eval")
        return float(found.eigenvalues)

    def theirs() -> float:
        found = hessian(model, torch.nn.CrossEntropyLoss(), data=batch, cuda=False)
        value = found.eigenvalues(maxIter=1000, tol=1e-3, top_n=1)[0][0]
        model.zero_grad()
        return float(value)

    yield Row("top Hessian eigenvalue", "PyHessian", ours, theirs)


PEERS: dict[str, Callable[[], Iterator[Row]]] = {
    "torchmetrics": of_torchmetrics,
    "netcal": of_netcal,
    "probmetrics": of_probmetrics,
    "scikit-learn": of_scikit_learn,
    "MAPIE": of_mapie,
    "timm": of_timm,
    "torch-uncertainty": of_torch_uncertainty,
    "relplot": of_relplot,
    "PyHessian": of_pyhessian,
}


def measured(row: Row, rounds: int) -> dict[str, Any]:
    calls = {"ours": row.ours, "theirs": row.theirs}
    values = {name: call() for name, call in calls.items()}
    seconds = time_interleaved(calls, repeats=rounds, warmup=0, clock=time.thread_time)
    return {
        "what": row.what,
        "peer": row.peer,
        "our value": float(values["ours"]),
        "their value": float(values["theirs"]),
        "our ms": median_ms(seconds["ours"]),
        "ours / theirs": median_ratio(seconds["ours"], seconds["theirs"]),
    }


def main() -> None:
    """Time every row of the chosen peers, print the table, write `results/peers.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", choices=list(PEERS))
    parser.add_argument("--no-file", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in arguments.only or PEERS:
        try:
            for row in PEERS[name]():
                rows.append(measured(row, arguments.rounds))
                print({key: rows[-1][key] for key in ("what", "ours / theirs")}, flush=True)
        except ImportError as missing:
            print(f"{name} is left out: {missing}")
    print_table(rows)
    if not arguments.no_file:
        write_results("peers", rows)


if __name__ == "__main__":
    main()
