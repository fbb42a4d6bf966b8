"""The few operations under losses, metrics and layers, each in one pass over memory where it can.

| where | operation | its C |
|---|---|---|
| `softmax.softmax_summary` | numbers of each softmax that losses are made of | softmax.inc |
| `softmax.PlainSoftmax` | the same by PyTorch's own operations: its definition | |
| `softmax_triton` | the two passes of `softmax_summary` on a GPU, in Triton | |
| `library.read_distribution` | what metrics read off probabilities | distribution.inc |
| `library.deposit` | confidences into cells | histogram.inc |
| `library.smooth_map` | the spatial smoothing layer | smoothing.inc |

Installing the package compiles `kernels.c` where there is a C compiler (`hatch_build.py`), once for
each level of vector instructions; `library` loads it. Where there is none, or the environment says
SFUMATO_NATIVE=0, the same results come from PyTorch's own operations, with more passes.
"""
