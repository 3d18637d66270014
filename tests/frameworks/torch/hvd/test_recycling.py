"""Memory of results is reused when their tensors are freed, and never before."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from pycollective.hvd import result_memory  # noqa: E402
from pycollective.torch.hvd import tensors  # noqa: E402

pytestmark = pytest.mark.torch


def test_contiguous_whatever_the_given_tensor() -> None:
    x = torch.arange(24.0)
    shapes = [(), (3,), (300, 70), (1 << 17,), (0, 5)]
    types = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    for like in [
        *(torch.zeros(shape, dtype=dtype) for shape in shapes for dtype in types),
        x.reshape(4, 6).t(),
        x[::2],
        x[:1].expand(6),
        x.reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        x.as_strided((1, 4, 1), (7, 1, 3)),
        torch._neg_view(x),
        torch.nn.Parameter(x.clone()),
    ]:
        made = tensors.empty_like(like)
        assert (made.shape, made.dtype) == (like.shape, like.dtype)
        assert made.is_contiguous() and not made.is_neg() and not made.requires_grad
        assert made.untyped_storage().nbytes() == like.numel() * like.element_size()
        assert made.data_ptr() % 64 == 0 or made.numel() < 1000
        assert torch.equal(made.copy_(like), like)


def test_reused_only_when_unreferenced() -> None:
    like = torch.empty(1 << 18)
    made = tensors.empty_like(like)
    address, view = made.data_ptr(), made[5:]
    view.fill_(1.0)
    del made
    other = tensors.empty_like(like)
    assert other.data_ptr() != address
    other.fill_(2.0)
    assert (view == 1).all()
    del view
    assert tensors.empty_like(like).data_ptr() == address


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_memory, "MOST_KEPT", result_memory._bytes_kept + (1 << 20))
    held = [tensors.empty_like(torch.empty(1 << 18)) for _ in range(5)]
    del held
    assert result_memory._bytes_kept <= result_memory.MOST_KEPT
