"""Every source of samples behind one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sfumato._core.data_root import placed
from sfumato._core.spec import Spec, resolve
from sfumato.data import scenes
from sfumato.data.annotations import load_annotated
from sfumato.data.arrays import load_npz
from sfumato.data.camvid import load_camvid
from sfumato.data.cub import load_cub
from sfumato.data.dataset import DataSplits
from sfumato.data.folders import load_folder
from sfumato.data.huggingface_sets import load_huggingface
from sfumato.data.openimages import load_openimages
from sfumato.data.text.folders import load_text_folder
from sfumato.data.text.newsgroups import load_newsgroups
from sfumato.data.text.table import load_table
from sfumato.data.tiny_imagenet import load_tiny_imagenet
from sfumato.data.torchvision_sets import load_torchvision
from sfumato.data.voc import load_voc_segmentation

# Their labels are maps, for the task `segment`.
SEGMENTATION_SOURCES: dict[str, Callable[..., DataSplits]] = {
    "camvid": load_camvid,
    "scene_streams": scenes.load_streams,
    "voc_segmentation": load_voc_segmentation,
}
# Their samples are sequences of tokens.
TEXT_SOURCES: dict[str, Callable[..., DataSplits]] = {
    "newsgroups": load_newsgroups,
    "text_folder": load_text_folder,
    "table": load_table,
}
SOURCES: dict[str, Callable[..., DataSplits]] = {
    "scenes": scenes.load,
    "npz": load_npz,
    "folder": load_folder,
    "annotated": load_annotated,
    "openimages": load_openimages,
    "tiny_imagenet": load_tiny_imagenet,
    "cub": load_cub,
    "huggingface": load_huggingface,
    "cifar10": partial(load_torchvision, "cifar10"),
    "cifar100": partial(load_torchvision, "cifar100"),
    "fashion_mnist": partial(load_torchvision, "fashion_mnist"),
    "kmnist": partial(load_torchvision, "kmnist"),
    "mnist": partial(load_torchvision, "mnist"),
    "stl10": partial(load_torchvision, "stl10"),
    "svhn": partial(load_torchvision, "svhn"),
    **TEXT_SOURCES,
    **SEGMENTATION_SOURCES,
}


def load_data(spec: Spec) -> DataSplits:
    """Train, validation and test sets of any source.

    Args:
        spec: the name of a source, or a mapping with `name` and the parameters of its loader:
            `{"name": "npz", "train": "train.npz", "test": "test.npz", "validation": 0.1}`.
            Relative paths are inside of SFUMATO_DATA where that variable is set.

    Raises:
        ValueError, TypeError: unknown source or parameter, or a wrong value.
        FileNotFoundError: the data is not where the spec says.

    Example:
        >>> data = load_data({"name": "scenes", "train": 20, "validation": 5, "test": 10})
        >>> data.train.images.shape, data.classes[:2]
        (torch.Size([20, 3, 32, 32]), ('disc', 'ring'))
    """
    source = resolve(spec, SOURCES, "data")
    splits: DataSplits = source.build(**placed(source))
    return splits
