"""Every data source behind one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import get_args

from sfumato._core.spec import Spec, params_in_data_root, resolve
from sfumato.data import scenes
from sfumato.data.annotations import load_annotated
from sfumato.data.dataset import DataSplits
from sfumato.data.detection import DetectionSplits
from sfumato.data.scenes.sets import load_objects
from sfumato.data.sources.arrays import load_npz
from sfumato.data.sources.camvid import load_camvid
from sfumato.data.sources.coco import load_coco
from sfumato.data.sources.cub import load_cub
from sfumato.data.sources.folders import load_folder
from sfumato.data.sources.huggingface import load_huggingface
from sfumato.data.sources.noise import load_noise
from sfumato.data.sources.openimages import load_openimages
from sfumato.data.sources.tiny_imagenet import load_tiny_imagenet
from sfumato.data.sources.torchvision_sets import TorchvisionName, load_torchvision
from sfumato.data.sources.voc import load_voc_segmentation
from sfumato.data.text.documents import load_text_folder
from sfumato.data.text.newsgroups import load_newsgroups
from sfumato.data.text.table import load_table

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
    "noise": load_noise,
    "npz": load_npz,
    "folder": load_folder,
    "annotated": load_annotated,
    "openimages": load_openimages,
    "tiny_imagenet": load_tiny_imagenet,
    "cub": load_cub,
    "huggingface": load_huggingface,
    **{name: partial(load_torchvision, name) for name in get_args(TorchvisionName)},
    **TEXT_SOURCES,
    **SEGMENTATION_SOURCES,
}


def load_data(spec: Spec) -> DataSplits:
    """Train, validation and test sets of any source.

    Args:
        spec: the name of a source, or a mapping with `name` and the parameters of its loader:
            `{"name": "npz", "train": "train.npz", "test": "test.npz", "validation": 0.1}`.
            Relative paths are inside of SFUMATO_DATA where that variable is set.

    Example:
        >>> data = load_data({"name": "scenes", "train": 20, "validation": 5, "test": 10})
        >>> data.train.images.shape, data.classes[:2]
        (torch.Size([20, 3, 32, 32]), ('disc', 'ring'))
    """
    source = resolve(spec, SOURCES, "data")
    return source.build(**params_in_data_root(source))


DETECTION_SOURCES: dict[str, Callable[..., DetectionSplits]] = {
    "scene_objects": load_objects,
    "coco": load_coco,
}


def load_detection_data(spec: Spec) -> DetectionSplits:
    """Train, validation and test sets of a detection source, as `load_data` for labels.

    Example:
        >>> spec = {"name": "scene_objects", "train": 8, "validation": 4, "test": 4, "size": 32}
        >>> len(load_detection_data(spec).train)
        8
    """
    source = resolve(spec, DETECTION_SOURCES, "detection data")
    return source.build(**params_in_data_root(source))
