"""The few operations under losses, metrics and layers, each in one pass over memory where it can.

| module | operation | its C |
|---|---|---|
| `softmax` | numbers of each softmax that losses are functions of, differentiable | softmax.inc |
| `plain_softmax` | the same by PyTorch's own operations: its definition | |
| `distribution` | what metrics read off probabilities | distribution.inc |
| `histogram` | confidences into cells | histogram.inc |
| `smoothing` | the spatial smoothing layer | smoothing.inc |

Installing the package compiles `kernels.c` where there is a C compiler (`hatch_build.py`), once for
each level of vector instructions; `library` loads it. Where there is none, or the environment says
SFUMATO_NATIVE=0, the same results come from PyTorch's own operations, with more passes.
"""
