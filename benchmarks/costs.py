"""What does each method cost beside cross entropy: training, predicting, memory?

Run: python benchmarks/costs.py [--rounds 3]
The methods of costs.yaml, with the network and the batches of studies/cifar10.yaml, on scenes of
the same size, in float32 with one thread. Times are taken in turn, and compared within a round;
memory is what a training step keeps for the way back.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from harness import median_ms, median_ratio, print_table, write_results
from torch import Tensor

from sfumato.engine import RunConfig
from sfumato.engine.config.run_config import training_content
from sfumato.engine.evaluation.context import passes_per_image
from sfumato.engine.fabric import Fabric
from sfumato.engine.runs.directory import RunDirectory
from sfumato.engine.tasks import classify
from sfumato.engine.timing import seconds_per_pass
from sfumato.engine.training.steps import load_splits
from sfumato.study.config import load_study, plan

STUDY = Path(__file__).with_name("costs.yaml")
STEPS = 6


class Rehearsed:
    """A method with its data, ready to be timed."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.data = load_splits(config.data)
        self.fabric = Fabric(accelerator="cpu", devices=1, precision=config.train.precision)

    def seconds(self) -> tuple[float, float]:
        """Of training on an image, and of predicting one."""
        with tempfile.TemporaryDirectory() as nowhere:
            run = RunDirectory(Path(nowhere) / "run")
            run.begin(self.config.model_dump(mode="json"), training_content(self.config))
            setup = classify.set_up(self.fabric, self.config, run, self.data)
            trainer = classify.build_trainer(setup, self.data)
            train = trainer.seconds_per_epoch(STEPS) / len(self.data.train)
            each = seconds_per_pass(setup, trainer.model, self.data.test)
        return train, each * passes_per_image(self.config.predict)


def measured(configs: Mapping[str, RunConfig], rounds: int) -> list[dict[str, Any]]:
    methods = {name: Rehearsed(config) for name, config in configs.items()}
    training: dict[str, list[float]] = {name: [] for name in methods}
    predicting: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, method in methods.items():
            train, predict = method.seconds()
            training[name].append(train)
            predicting[name].append(predict)
    return [
        {
            "method": name,
            "ms to train on an image": median_ms(training[name]),
            "ms to predict an image": median_ms(predicting[name]),
            "training": median_ratio(training[name], training["cross entropy"]),
            "predicting": median_ratio(predicting[name], predicting["cross entropy"]),
            "MB": kept_megabytes(method),
        }
        for name, method in methods.items()
    ]


def kept_megabytes(method: Rehearsed) -> float:
    """Of the tensors that one training step keeps for the way back, each counted once."""
    kept: dict[int, int] = {}
    steps: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def use(tensor: Tensor) -> Tensor:
        if kept:  # the way back begins
            steps.append(sum(kept.values()))
            kept.clear()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, use):
        method.seconds()
    return max(steps) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    configs = {run.method: run.config for run in plan(load_study(STUDY))}
    rows = measured(configs, arguments.rounds)
    print_table(rows)
    print(f"written to {write_results('costs', rows).name}")


if __name__ == "__main__":
    main()
