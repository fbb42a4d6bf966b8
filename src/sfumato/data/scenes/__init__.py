"""The built-in world: rendered scenes of ten classes, with everything known about them."""

from sfumato.data.scenes.objects import generate_objects, load_objects
from sfumato.data.scenes.picture import preview
from sfumato.data.scenes.sets import generate, load
from sfumato.data.scenes.silhouettes import CLASSES
from sfumato.data.scenes.stream_sets import load_streams
from sfumato.data.scenes.textures import CONTEXTS
from sfumato.data.scenes.video import SceneStream, stream

__all__ = [
    "CLASSES",
    "CONTEXTS",
    "SceneStream",
    "generate",
    "generate_objects",
    "load",
    "load_objects",
    "load_streams",
    "preview",
    "stream",
]
