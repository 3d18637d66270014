"""Memory of results is used again when their tensors are gone, and never before."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
from pycollective.torch import recycling  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_as_torch_makes_them(dtype: Any) -> None:
    for shape in [(), (3,), (300, 70), (1 << 17,), (0, 5)]:
        like = torch.zeros(shape, dtype=dtype)
        made = recycling.empty_like(like)
        assert (made.shape, made.dtype, made.is_contiguous()) == (like.shape, dtype, True)
        assert made.untyped_storage().nbytes() == like.numel() * like.element_size()
        assert made.data_ptr() % 64 == 0 or made.numel() < 1000
        assert torch.equal(made.copy_(like), like)


def test_used_again_only_when_nothing_sees_it() -> None:
    like = torch.empty(1 << 18)
    made = recycling.empty_like(like)
    address, view = made.data_ptr(), made[5:]
    view.fill_(1.0)
    del made
    other = recycling.empty_like(like)
    assert other.data_ptr() != address
    other.fill_(2.0)
    assert (view == 1).all()
    del view
    assert recycling.empty_like(like).data_ptr() == address


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "MOST_KEPT", recycling._bytes_kept + (1 << 20))
    held = [recycling.empty_like(torch.empty(1 << 18)) for _ in range(5)]
    del held
    assert recycling._bytes_kept <= recycling.MOST_KEPT
