"""One recorded run of a model: which tensor operation read which, and what each module returned.

The model is run, not parsed: every model that accepts the example input can be recorded, whatever
Python its `forward` holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from sfumato._core.evaluation_mode import evaluating

_MULTIPLIES = ("conv", "mm", "linear")
_PASSES_ON = (nn.Identity, nn.Dropout, nn.Dropout2d)  # return what they are given


@dataclass(frozen=True)
class Step:
    """One operation on tensors that depend on the input.

    Args:
        op: its name, such as `convolution` or `mean`.
        parents: numbers of the steps whose results it reads.
        shape: shape of its (first) result.
        learned: whether it multiplies by a weight of the model.
        stride: of a convolution; 1 for everything else.
    """

    op: str
    parents: tuple[int, ...]
    shape: tuple[int, ...]
    learned: bool = False
    stride: int = 1


@dataclass(frozen=True)
class Trace:
    """A recorded run.

    Args:
        steps: operations in the order in which they ran; step 0 is the input.
        returned: for each module, by name, the steps that its calls returned.
        outputs: steps that the model returned.
    """

    steps: list[Step] = field(default_factory=list)
    returned: dict[str, list[int]] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=list)


class _Recorder(TorchDispatchMode):
    def __init__(self, trace: Trace, image: Tensor, weights: list[nn.Parameter]) -> None:
        super().__init__()
        self.trace = trace
        self.step_of: Any = WeakTensorKeyDictionary({image: 0})
        self.weights: Any = WeakTensorKeyDictionary(dict.fromkeys(weights, True))
        trace.steps.append(Step("input", (), tuple(image.shape)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        read = _tensors((args, kwargs))
        made = _tensors(result)
        parents = {self.step_of[t] for t in read if t in self.step_of}
        weighted = any(t in self.weights for t in read)
        if parents and made:
            name = func.overloadpacket.__name__
            learned = weighted and any(part in name for part in _MULTIPLIES)
            stride = max(args[3]) if name == "convolution" else 1
            step = Step(name, tuple(sorted(parents)), tuple(made[0].shape), learned, stride)
            self.trace.steps.append(step)
            for tensor in made:
                self.step_of[tensor] = len(self.trace.steps) - 1
        elif weighted:  # a transposed or recomputed weight is still a weight
            for tensor in made:
                self.weights[tensor] = True
        return result

    def note_return(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output in self.step_of:
                self.trace.returned.setdefault(name, []).append(self.step_of[output])

        return hook


def record(model: nn.Module, example_input: Tensor) -> Trace:
    """Run `model` once on the first image of `example_input` and record what it does.

    The run is in evaluation mode and without gradients; the model is left as it was.
    """
    trace = Trace()
    image = example_input.detach()[:1].clone()
    weights = [w for w in model.parameters() if w.dim() > 1]
    recorder = _Recorder(trace, image, weights)
    handles = [
        module.register_forward_hook(recorder.note_return(name))
        for name, module in model.named_modules()
        if not isinstance(module, _PASSES_ON)
    ]
    try:
        with evaluating(model), recorder:
            output = model(image)
    finally:
        for handle in handles:
            handle.remove()
    returned = [recorder.step_of[t] for t in _tensors(output) if t in recorder.step_of]
    trace.outputs.extend(returned or [len(trace.steps) - 1])  # an object of the model's own type
    return trace


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
