"""Loading saved models so that their optimizers are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pycollective.keras.compression import Compression
from pycollective.keras.optimizer import convert
from pycollective.keras.options import Options


def load_with(
    keras: Any,
    filepath: Any,
    custom_optimizers: Sequence[type] | None,
    custom_objects: Mapping[str, Any] | None,
    compression: Any = Compression.none,
) -> Any:
    """load_model of a package of Keras: Keras 3 or tf_keras."""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    options = Options(compression=compression)
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        convert(model.optimizer, options)
    return model
