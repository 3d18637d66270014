"""Update rules for large batches: each computes a parameter's next value from the parameter and its gradient.

A rule is a function `rule(p, g, state, **options)`. It is written in terms of operators, `norm` and `_ratio`, so the
same code works with NumPy, torch and any library that follows the array API standard. `apply` passes it arrays of
float32, or of float64 if the parameter is, and rounds its result to the parameter's type: norms and states never have
16 bits. `state` is the parameter's own dict, empty before its first step, for numbers and for arrays that are shaped
like p or have no dimensions; a rule replaces its entries and modifies no array. A layer, in the papers' terminology,
is one parameter here.

`DistributedOptimizer` applies a rule to arrays, `pycollective.torch.optimizers` to parameters of torch; both also
accept your own rules.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pycollective import checks
from pycollective.optim.arrays import namespace

Rule = Callable[..., Any]


def lars(
    p: Any,
    g: Any,
    state: dict[str, Any],
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.001,
    adapt: bool = True,
) -> Any:
    """LARS: momentum SGD in which each layer's rate is proportional to its weights' norm over its gradient's.

        rate = lr * trust_coefficient * |p| / (|g| + weight_decay * |p|)
        v = momentum * v + rate * (g + weight_decay * p)
        p = p - v

    If |p| or the denominator is zero, and without `adapt`, rate is lr. The papers on LARS exclude biases and the
    parameters of norms from adaptation and decay. Source: You, Gitman and Ginsburg, "Large Batch Training of
    Convolutional Networks", 2017, algorithm 1 with the trust coefficient of its equation 6,
    https://arxiv.org/abs/1708.03888

    Args:
        p, g, state: a parameter, its gradient, and its state between steps; see Rule.
    """
    rate: Any = lr
    if adapt:
        size = norm(p)
        rate = lr * _ratio(trust_coefficient * size, norm(g) + weight_decay * size)
    state["velocity"] = momentum * state.get("velocity", 0.0) + rate * (g + weight_decay * p)
    return p - state["velocity"]


def larc(
    p: Any,
    g: Any,
    state: dict[str, Any],
    *,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust_coefficient: float = 0.02,
    clip: bool = True,
    eps: float = 1e-8,
    adapt: bool = True,
) -> Any:
    """LARC: momentum SGD with LARS's rate of a layer, limited to lr.

        local = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)
        rate = min(local, lr)                 clip=False: local * lr
        v = momentum * v + rate / lr * (g + weight_decay * p)
        p = p - lr * v

    If |p| is zero, and without `adapt`, rate is lr. Source: the class LARC of NVIDIA Apex around torch.optim.SGD,
    https://github.com/NVIDIA/apex/blob/master/apex/parallel/LARC.py, which also omits the decay of a parameter whose
    gradient is exactly zero; here it decays.

    Args:
        p, g, state: a parameter, its gradient, and its state between steps; see Rule.
    """
    factor: Any = 1.0  # rate / lr
    if adapt:
        size = norm(p)
        denominator = norm(g) + weight_decay * size + eps
        factor = _ratio(trust_coefficient * size, lr * denominator if clip else denominator)
        if clip:
            xp = namespace(factor)
            factor = xp.where(factor < 1, factor, xp.ones_like(factor))
    state["velocity"] = momentum * state.get("velocity", 0.0) + factor * (g + weight_decay * p)
    return p - lr * state["velocity"]


def lamb(
    p: Any,
    g: Any,
    state: dict[str, Any],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    adapt: bool = True,
) -> Any:
    """LAMB: Adam's step with decoupled decay, scaled to the norm of the layer's weights.

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g ** 2
        u = m / (1 - beta1 ** t) / (sqrt(v / (1 - beta2 ** t)) + eps) + weight_decay * p      at step t = 1, 2, ...
        p = p - lr * |p| / |u| * u

    If |p| or |u| is zero, and without `adapt`, the ratio is 1: that is AdamW. Source: You et al., "Large Batch
    Optimization for Deep Learning: Training BERT in 76 minutes", 2020, algorithm 2 with phi(x) = x,
    https://arxiv.org/abs/1904.00962

    Args:
        p, g, state: a parameter, its gradient, and its state between steps; see Rule.
        betas: beta1 and beta2.
    """
    beta1, beta2 = betas
    t = state["step"] = state.get("step", 0) + 1
    m = state["first_moment"] = beta1 * state.get("first_moment", 0.0) + (1 - beta1) * g
    v = state["second_moment"] = beta2 * state.get("second_moment", 0.0) + (1 - beta2) * (g * g)
    root = namespace(v).sqrt(v / (1 - beta2**t))
    u = m / (1 - beta1**t) / (root + eps) + weight_decay * p
    return p - (lr * _ratio(norm(p), norm(u)) if adapt else lr) * u


def novograd(
    p: Any,
    g: Any,
    state: dict[str, Any],
    *,
    lr: float,
    betas: tuple[float, float] = (0.95, 0.98),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> Any:
    """NovoGrad: momentum on gradients divided by a running norm of the layer's gradients; half of Adam's memory.

        v = beta2 * v + (1 - beta2) * |g| ** 2                    a number; at the first step v = |g| ** 2
        m = beta1 * m + g / (sqrt(v) + eps) + weight_decay * p
        p = p - lr * m

    Source: Ginsburg et al., "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
    Networks", 2019, algorithm 1, https://arxiv.org/abs/1905.11286

    Args:
        p, g, state: a parameter, its gradient, and its state between steps; see Rule.
        betas: beta1 and beta2.
    """
    beta1, beta2 = betas
    xp = namespace(g)
    square = xp.sum(g * g)
    v = beta2 * state["second_moment"] + (1 - beta2) * square if state else square
    m = beta1 * state.get("first_moment", 0.0) + g / (xp.sqrt(v) + eps) + weight_decay * p
    state["first_moment"], state["second_moment"] = m, v
    return p - lr * m


def norm(x: Any) -> Any:
    """The Euclidean norm of all elements, a number of x's library, of x's dtype; it stays on x's device."""
    xp = namespace(x)
    return xp.sqrt(xp.sum(x * x))


def _ratio(numerator: Any, denominator: Any) -> Any:
    """numerator / denominator of non-negative numbers; 1 if either is zero."""
    xp = namespace(denominator)
    one = xp.ones_like(denominator)
    usable = (numerator > 0) & (denominator > 0)
    return xp.where(usable, numerator / xp.where(usable, denominator, one), one)


def apply(rule: Rule, p: Any, g: Any, state: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Overwrite p, of any shape and floating-point type, with the rule's result for p and g."""
    p[...] = namespace(p).asarray(rule(widened(p), widened(g), state, **options), dtype=p.dtype)


def widened(x: Any) -> Any:
    """x, or a copy of it in float32 if its elements are shorter."""
    xp = namespace(x)
    return xp.asarray(x, dtype=xp.float64 if x.dtype == xp.float64 else xp.float32)


def complete(rule: Rule, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a rule: those given, and its defaults. A library's numbers become Python's.

    Raises:
        TypeError: an option that the rule does not have, or a missing one without a default.
        ValueError: a negative number, or betas that are not two numbers from 0 to below 1.
    """
    try:
        known = defaults(rule)
    except (TypeError, ValueError):  # not callable, or without a signature
        checks.refuse_type("rule", "a function rule(p, g, state, **options) written in Python", rule)
    if odd := options.keys() - known.keys():
        raise TypeError(f"{rule.__name__} has no option {', '.join(sorted(odd))}, but {', '.join(known)}")
    values = {**known, **options}
    for name, value in values.items():
        if value is inspect.Parameter.empty:
            raise TypeError(f"{rule.__name__} needs {name}")
        if hasattr(value, "item"):  # otherwise a float64 of NumPy would widen arrays of float32
            with contextlib.suppress(Exception):  # e.g. of several elements, which is rejected below
                value = values[name] = value.item()
        if name == "betas":
            _check_betas(value)
        elif isinstance(known[name], bool):
            checks.flag(value, name)
        elif isinstance(known[name], (int, float)) or isinstance(value, (int, float)) or name == "lr":
            checks.number(value, name, 0, finite=False)
    return values


def _check_betas(betas: Any) -> None:
    given = checks.items(betas, "betas", "two numbers")
    if len(given) != 2:
        checks.refuse_value("betas", "two numbers", betas)
    for i, beta in enumerate(given):
        checks.number(beta, f"betas[{i}]", 0, below=1)


@functools.cache
def defaults(rule: Rule) -> Mapping[str, Any]:
    """A rule's options, i.e. its keyword-only parameters, with their defaults; inspect.Parameter.empty: none."""
    parameters = inspect.signature(rule).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
