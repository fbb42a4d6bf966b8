"""Speed and memory of the streaming metrics.

    python benchmarks/metrics.py

1. Accuracy, NLL, ECE, AECE, over- and underconfidence together, streamed in batches of 1,000 over
   200,000 x 100 probabilities, against torchmetrics' ECE alone on the same stream. torchmetrics
   checks shapes and labels; ours checks by default that every row is a distribution, too.
2. 10^8 binary pixels as logits [N, 2, H, W]: time and peak memory.
3. Bootstrap intervals of all metrics, 1,000 resamples.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import torch
from harness import median_ms, median_ratio, print_table, spread_ms, time_interleaved, write_results
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassCalibrationError

from sfumato.metrics import (
    Accuracy,
    CalibrationError,
    NegativeLogLikelihood,
    Overconfidence,
    StreamingEvaluation,
    Underconfidence,
    evaluate_predictions,
)

BATCH, SAMPLES, CLASSES = 1_000, 200_000, 100
BASE = "torchmetrics ECE alone"


def stream(metric: Any, batches: list[tuple[Tensor, Tensor]]) -> Any:
    for probs, target in batches:
        metric.update(probs, target)
    return metric.compute()


def collection(*, validate: bool) -> MetricCollection:
    return MetricCollection(
        {
            "accuracy": Accuracy(validate=validate),
            "nll": NegativeLogLikelihood(validate=validate),
            "ece": CalibrationError(validate=validate),
            "aece": CalibrationError(binning="mass", validate=validate),
            "overconfidence": Overconfidence(validate=validate),
            "underconfidence": Underconfidence(validate=validate),
        }
    )


def time_streams(repeats: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(SAMPLES, CLASSES, generator=generator)
    target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    batches = list(zip(logits.softmax(1).split(BATCH), target.split(BATCH), strict=True))
    calls = {
        BASE: lambda: stream(MulticlassCalibrationError(CLASSES, n_bins=15), batches),
        "torchmetrics ECE alone, nothing checked": lambda: stream(
            MulticlassCalibrationError(CLASSES, n_bins=15, validate_args=False), batches
        ),
        "StreamingEvaluation (all ten numbers)": lambda: stream(StreamingEvaluation(), batches),
        "StreamingEvaluation, rows not checked": lambda: stream(
            StreamingEvaluation(validate=False), batches
        ),
        "MetricCollection of six": lambda: stream(collection(validate=True), batches),
        "MetricCollection of six, rows not checked": lambda: stream(
            collection(validate=False), batches
        ),
    }
    seconds = time_interleaved(calls, repeats=repeats, warmup=1)
    return [
        {
            "case": name,
            "median_ms": median_ms(seconds[name]),
            "minimum_ms": 1e3 * min(seconds[name]),
            "iqr_ms": spread_ms(seconds[name]),
            "ratio": median_ratio(seconds[name], seconds[BASE]),
            "ratio_of_minima": min(seconds[name]) / min(seconds[BASE]),
        }
        for name in calls
    ]


def stream_pixels(total: int) -> list[dict[str, Any]]:
    """One batch of logits with new labels again and again: only the metric could grow."""
    images, side = 4, 500
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(images, 2, side, side, generator=generator)
    metric = StreamingEvaluation(from_logits=True)
    rows, seen, began = [], 0, time.perf_counter()
    while seen < total:
        target = torch.randint(2, (images, side, side), generator=generator)
        metric.update(logits, target)
        seen += target.numel()
        if seen in (10**6, 10**7, 10**8):
            rows.append(
                {
                    "pixels": seen,
                    "seconds": time.perf_counter() - began,
                    "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                    "state_mb": sum(s.nbytes for s in metric.metric_state.values()) / 2**20,
                    "ece": float(metric.compute()["ece"]),
                }
            )
    return rows


def time_intervals() -> list[dict[str, Any]]:
    rows = []
    for samples, classes in ((10_000, 10), (10_000, 100), (10_000, 1000), (50_000, 100)):
        generator = torch.Generator().manual_seed(0)
        logits = 2 * torch.randn(samples, classes, generator=generator)
        target = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            evaluate_predictions(logits=logits, target=target, resamples=1000, generator=generator)
            seconds.append(time.perf_counter() - began)
        rows.append(
            {"samples": samples, "classes": classes, "resamples": 1000, "seconds": min(seconds)}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pixels", type=int, default=10**8)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # Memory first: the peak of the process would hide it behind the 160 MB of the other stream.
    parts = {
        "pixels": stream_pixels(arguments.pixels),
        "streams": time_streams(arguments.repeats),
        "intervals": time_intervals(),
    }
    for rows in parts.values():
        print_table(rows)
        print()
    tagged = [{"part": part, **row} for part, rows in parts.items() for row in rows]
    print(write_results("metrics", tagged))


if __name__ == "__main__":
    main()
