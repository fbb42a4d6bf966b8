"""Which layer of a network gives its logits: the one that another number of classes replaces."""

from __future__ import annotations

from torch import nn


def final_layers(network: nn.Module) -> list[str]:
    """Names of the modules whose outputs are the logits, usually one.

    These are the last convolution or linear layer in the order of the modules, and those just
    before it with the same shape of weights: LR-ASPP adds up two, a distilled transformer has two.

    Example:
        >>> from sfumato.models import resnet
        >>> final_layers(resnet(8, num_classes=10, width=4))
        ['head.linear']

    Raises:
        ValueError: the network has neither a linear nor a convolutional layer.
    """
    layers = [
        (name, part)
        for name, part in network.named_modules()
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd)
    ]
    if not layers:
        raise ValueError(
            f"{type(network).__name__} has no linear or convolutional layer, so nothing in it can "
            "be told to give the logits"
        )
    last = layers[-1][1]
    found: list[str] = []
    for name, part in reversed(layers):
        if type(part) is not type(last) or not _alike(part, last):
            break
        found.insert(0, name)
    return found


def final_parameters(network: nn.Module) -> set[str]:
    """Names of the parameters of `final_layers`.

    Example:
        >>> from sfumato.models import resnet
        >>> sorted(final_parameters(resnet(8, num_classes=10, width=4)))
        ['head.linear.bias', 'head.linear.weight']
    """
    return {
        f"{layer}.{name}" if layer else name
        for layer in final_layers(network)
        for name, _ in network.get_submodule(layer).named_parameters()
    }


def _alike(part: nn.Module, last: nn.Module) -> bool:
    """Whether both give as many outputs: linear ones of as many inputs, others of equal kernels."""
    ours, theirs = (each.get_parameter("weight").shape for each in (part, last))
    if isinstance(last, nn.Linear):
        return ours == theirs
    return (ours[0], ours[2:]) == (theirs[0], theirs[2:])
