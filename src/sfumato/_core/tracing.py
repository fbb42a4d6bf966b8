"""Whether code is being recorded, so that values can't be looked at."""

from __future__ import annotations

import torch


def is_watched() -> bool:
    """Whether operations are recorded or transformed: no value is there to be looked at.

    torch.compile, torch.export, TorchScript tracing, torch.func, and dispatch modes such as make_fx
    or FlopCounterMode. PyTorch has no public question for the last two.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )
