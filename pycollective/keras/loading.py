"""Loading saved models so that their optimizers are distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pycollective.keras.compression import Compression
from pycollective.keras.optimizer import home_of
from pycollective.keras.options import OptimizerOptions


class Loader:
    """Loads models with one package of Keras: Keras 3 or tf_keras."""

    def __init__(self, keras: Any) -> None:
        self._keras = keras

    def load_model(
        self,
        filepath: Any,
        custom_optimizers: Sequence[type] | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        compression: Any = Compression.none,
        legacy_opts: bool = False,
        *,
        backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False,
    ) -> Any:
        """Load a saved model, whose optimizer, with its state, becomes a DistributedOptimizer.

        Args:
            filepath: of a model saved by `model.save`, distributed or not.
            custom_optimizers: classes of optimizers that Keras does not have.
            custom_objects: name -> class or function, for `keras.models.load_model`.
            compression, backward_passes_per_step, average_aggregated_gradients: as they were given to
                DistributedOptimizer, whose other arguments have their defaults.
            legacy_opts: accepted for Horovod's scripts, and ignored: the file has the optimizer's class.

        Raises:
            ValueError: the optimizer in the file adds up the gradients of another number of steps: the file does not
                tell whether their sum or their average was used.
        """
        known = {kind.__name__: kind for kind in custom_optimizers or ()}
        options = OptimizerOptions(
            compression=compression,
            backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
        )
        model = self._keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
        if getattr(model, "optimizer", None) is not None:
            home_of(model.optimizer).convert(model.optimizer, options)
        return model
