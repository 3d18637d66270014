"""Without MXNet Python would find this folder, which is on the path."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

_mxnet = importlib.util.find_spec("mxnet")
if _mxnet is not None and _mxnet.origin is None:
    modules: dict[str, Any] = sys.modules
    modules["mxnet"] = None
