"""The devices and processes that a run asks for."""

from __future__ import annotations

import os

import torch

from sfumato.engine.config.sections import TrainConfig
from sfumato.engine.fabric import Fabric


def build_fabric(train: TrainConfig) -> Fabric:
    """Fabric as a `train` section describes it; nothing is started yet.

    Raises:
        ValueError: a GPU is asked for, and there is none.
    """
    _check_accelerator(train.accelerator)
    return Fabric(
        accelerator=train.accelerator,
        devices=train.devices,
        strategy=_strategy(train),
        precision=train.precision,
        num_nodes=train.num_nodes,
    )


def _check_accelerator(name: str) -> None:
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not found.get(name, True) or (name == "gpu" and not any(found.values())):
        raise ValueError(
            f"accelerator: {name} is not available, PyTorch finds no such device here. Say cpu, or "
            "auto, which takes what there is"
        )


def _strategy(train: TrainConfig) -> str:
    """Plain DDP starts its processes itself, instead of giving the whole command once more.

    Under torchrun and srun the processes are there already.
    """
    several = isinstance(train.devices, int) and train.devices > 1 and train.num_nodes == 1
    started = "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ
    if several and not started and train.strategy in ("auto", "ddp"):
        return "ddp_spawn"
    return train.strategy
