"""Sources of samples: scenes (built in), arrays, folders, texts, torchvision sets."""

from sfumato._core.exports import public_names as _public_names
from sfumato.data import scenes as scenes
from sfumato.data.annotations import (
    Annotations as Annotations,
    load_annotated as load_annotated,
    read_coco as read_coco,
    read_openimages as read_openimages,
    read_voc as read_voc,
)
from sfumato.data.dataset import (
    ArrayDataset as ArrayDataset,
    DataSplits as DataSplits,
    channel_statistics as channel_statistics,
    median_frequency_weights as median_frequency_weights,
)
from sfumato.data.detection import (
    DetectionDataset as DetectionDataset,
    DetectionLoader as DetectionLoader,
    DetectionSplits as DetectionSplits,
    Objects as Objects,
)
from sfumato.data.load import (
    DETECTION_SOURCES as DETECTION_SOURCES,
    SOURCES as SOURCES,
    load_data as load_data,
    load_detection_data as load_detection_data,
)
from sfumato.data.loader import TensorLoader as TensorLoader
from sfumato.data.sources.arrays import load_npz as load_npz, read_npz as read_npz
from sfumato.data.sources.camvid import load_camvid as load_camvid
from sfumato.data.sources.coco import (
    load_coco as load_coco,
    read_coco_detection as read_coco_detection,
)
from sfumato.data.sources.folders import load_folder as load_folder
from sfumato.data.sources.objects import (
    context_only as context_only,
    single_objects as single_objects,
    with_context as with_context,
)
from sfumato.data.sources.tiny_imagenet import load_tiny_imagenet as load_tiny_imagenet
from sfumato.data.sources.torchvision_sets import load_torchvision as load_torchvision
from sfumato.data.sources.voc import load_voc_segmentation as load_voc_segmentation
from sfumato.data.splits import divide as divide
from sfumato.data.text.documents import load_text_folder as load_text_folder
from sfumato.data.text.newsgroups import load_newsgroups as load_newsgroups
from sfumato.data.text.table import load_table as load_table
from sfumato.data.text.vocabulary import Vocabulary as Vocabulary

__all__ = ["scenes", *_public_names(globals())]
