"""Where two classifiers look: trains them on scenes, draws maps, prints localisation numbers.

python docs/figures/activation_maps.py WORK_FOLDER docs/figures/activation-maps.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from sfumato.analysis import grad_cam_plus_plus, localisation_scores, plot_activation_maps
from sfumato.data import load_data
from sfumato.engine import RunConfig, load_network, parse, run

RECIPE = {
    "data": {"name": "scenes", "size": 32, "train": 2000, "validation": 100, "test": 500},
    "model": {"name": "resnet", "depth": 8, "width": 16},
    "augment": {"name": "basic", "crop": 2},
    "train": {"epochs": 15, "batch_size": 50, "learning_rate": 0.03, "weight_decay": 0.0001},
    "evaluate": {"resamples": 0},
}
LOSSES = {
    "hard label": {"name": "cross_entropy"},
    "label smoothing": {"name": "cross_entropy", "smoothing": 0.1},
}
SHOWN = 5


def main(work: Path, picture: Path) -> None:
    torch.set_num_threads(1)
    test = load_data(RECIPE["data"]).test
    found = {}
    for title, loss in LOSSES.items():
        done = run(parse(RunConfig, {**RECIPE, "loss": loss}), work, show=False)
        network = load_network(done)
        maps = grad_cam_plus_plus(network.network, network.standardise(test.images), test.labels)
        scores = localisation_scores(maps.maps, test.boxes)
        print(f"{title}: accuracy {done.metrics()['test']['accuracy']:.3f}")
        print(f"    IoU {scores.iou:.3f}, pointing {scores.pointing:.3f}")
        shown = grad_cam_plus_plus(
            network.network, network.standardise(test.images[:SHOWN]), test.labels[:SHOWN]
        )
        found[title] = shown
    figure = plot_activation_maps(
        test.images[:SHOWN],
        found,
        target=test.labels[:SHOWN],
        classes=test.classes,
        boxes=test.boxes[:SHOWN],
    )
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
