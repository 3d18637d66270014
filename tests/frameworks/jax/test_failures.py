"""Bad input and lost ranks: an error on every rank instead of a hang."""

from __future__ import annotations

import pytest

from launch import find_mpirun, launch, needs

needs("jax")


def test_bad_input_is_refused_when_traced() -> None:
    launch(1, _refused, launcher="alone", timeout=60, check=True)


def _refused() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest

    import pycollective.jax as pj

    pj.init()
    x = jnp.ones(3)
    for wrong, error, text in (
        (lambda: pj.allreduce(np.zeros(3, jax.dtypes.float0), "sum"), TypeError, "float0"),
        (lambda: pj.grouped_allreduce({"a": "text"}), TypeError, r"\['a'\]"),
        (lambda: pj.allreduce(jnp.ones(3, jnp.complex64), "max"), TypeError, "complex64"),
        (lambda: pj.allreduce(jax.random.key(0), "sum"), TypeError, "key"),
        (lambda: pj.allreduce(jnp.ones(3, jnp.int4), "sum"), TypeError, "int4"),
        (lambda: pj.allreduce(x, "mean"), ValueError, "op must be"),
        (lambda: pj.allreduce(x, None), TypeError, "op must be"),
        (lambda: pj.allreduce(x, "sum", comm=3), TypeError, "comm must be"),
        (lambda: pj.bcast(x, 1), ValueError, "root must be"),
        (lambda: pj.bcast(x, True), TypeError, "root must be"),
        (lambda: pj.reduce(x, "sum", None), TypeError, "root must be"),
        (lambda: jax.jit(lambda root: pj.bcast(x, root))(0), TypeError, "root must be"),
        (lambda: pj.alltoall(x), ValueError, r"shape \(nproc, ...\)"),
        (lambda: pj.scan(x, "avg"), ValueError, "avg"),
        (lambda: pj.send(x, 0), ValueError, "another rank"),
        (lambda: jax.grad(lambda x: pj.allreduce(x, "max").sum())(x), NotImplementedError, "derivative"),
    ):
        with pytest.raises(error, match=text):
            jax.block_until_ready(jax.jit(wrong)() if error is not TypeError else wrong())


DIFFERENCES = {
    "shape": ("MismatchError", "count=3", "count=4"),
    "dtype": ("MismatchError", "float32", "int32"),
    "collective": ("MismatchError", "allreduce", "allgather"),
    "blocks": ("MismatchError", "(2, 3)", "(3, 2)"),
    "order": ("MismatchError", "(2, 3)", "(3, 2)"),
    "tag": ("MismatchError", "tag 1", "tag 2"),
    "tree": ("MismatchError", "['b']"),
    "gradient": ("MismatchError", "['a']", "(3,)", "(4,)"),
    "freed": ("freed",),
}


def test_ranks_that_differ() -> None:
    for output in launch(2, _differ, *DIFFERENCES, timeout=60, check=True):
        lines = output.splitlines()
        assert len(lines) == len(DIFFERENCES)
        for line, (case, texts) in zip(lines, DIFFERENCES.items(), strict=True):
            assert line.startswith(f"{case} JaxRuntimeError") and all(text in line for text in texts), line


def _differ(*cases: str) -> None:
    import jax
    import jax.numpy as jnp

    import pycollective
    import pycollective.jax as pj

    pj.init()
    rank = pj.rank()
    comms = {case: pycollective.init().dup() for case in cases}
    blocks = [jnp.ones(shape) for shape in ((2, 3), (3, 2))][:: 1 - 2 * rank]
    calls = {
        "shape": lambda x, comm: pj.allreduce(jnp.ones(3 + rank), "sum", comm=comm),
        "dtype": lambda x, comm: pj.allreduce(jnp.ones(3, jnp.int32 if rank else jnp.float32), "sum", comm=comm),
        "collective": lambda x, comm: pj.allgather(x, comm=comm) if rank else pj.allreduce(x, "sum", comm=comm),
        "blocks": lambda x, comm: pj.allgather(blocks[0], comm=comm),
        "order": lambda x, comm: [pj.allreduce(each, "sum", comm=comm) for each in blocks],
        "tag": lambda x, comm: (
            pj.recv(x, 0, tag=2, comm=comm) if rank else pj.sendrecv(x, x, 1, 1, sendtag=1, comm=comm)
        ),
        "tree": lambda x, _: pj.grouped_allreduce({"a": x} if rank else {"a": x, "b": x}),
        "gradient": lambda x, _: pj.grouped_allreduce({"a": jnp.ones(3 + rank)}),
        "freed": lambda x, comm: pj.allreduce(x, "sum", comm=comm),
    }
    for case in cases:
        compiled = jax.jit(lambda x, case=case: calls[case](x, comms[case]))
        if case == "freed":
            jax.block_until_ready(compiled(jnp.ones(3)))
            comms[case].free()
        try:
            jax.block_until_ready(compiled(jnp.ones(3)))
            print(case, "no error")
        except Exception as error:
            kind = "JaxRuntimeError" if isinstance(error, jax.errors.JaxRuntimeError) else type(error).__name__
            print(case, kind, str(error).replace("\n", " "))


@pytest.mark.parametrize(
    ("launcher", "kind"), [("pycollective", "loop"), ("pycollective", "gradients"), ("mpirun", "loop")]
)
def test_a_killed_rank_ends_all(launcher: str, kind: str) -> None:
    if launcher == "mpirun" and find_mpirun() is None:
        pytest.skip("needs mpirun")
    result = launch(2, _killed, kind, launcher=launcher, timeout=40, grace=20)
    assert result.returncode != 0
    if launcher == "pycollective":  # mpirun kills the survivor at once
        assert "rank 1" in result[0] and "Error" in result[0], result.report()


def _killed(kind: str) -> None:
    import os
    import signal

    import jax
    import jax.numpy as jnp

    import pycollective.jax as pj

    pj.init()

    def body(i: int, x: jax.Array) -> jax.Array:
        if pj.rank() == 1:
            jax.debug.callback(lambda i: os.kill(os.getpid(), signal.SIGKILL) if i == 500 else None, i)
        return pj.allreduce(x, "avg") if kind == "loop" else pj.grouped_allreduce([x])[0]

    try:
        jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, 10**7, body, x))(jnp.ones(8)))
    except Exception as error:
        print(type(error).__name__, error, flush=True)
        raise


def test_the_way_through_python() -> None:
    """Where XLA refuses the handlers, calls go through Python callbacks, with a warning."""
    for output in launch(2, _through_python, timeout=60, check=True):
        assert output == "warned True results [1. 3. 2.] [3. 3.]\n"


def _through_python() -> None:
    import warnings
    from unittest import mock

    import jax
    import jax.numpy as jnp

    import pycollective.jax as pj
    from pycollective.jax import handlers

    jax.ffi.register_ffi_target = mock.Mock(side_effect=ValueError("another version"))
    pj.init()
    rank = pj.rank()

    @jax.jit
    def calls(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        pj.barrier()
        total = pj.allreduce(x, "sum")
        other = pj.sendrecv(x, x, 1 - rank, 1 - rank)
        return pj.scatter(pj.gather(jnp.stack([other + x, total, 2 * x / x]), 0), 0), pj.grouped_allreduce(total)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        scattered, total = calls(jnp.full(2, rank + 1.0))
    warned = any("refuses the handlers" in str(one.message) for one in seen)
    assert handlers.problem() and scattered.shape == (3, 2)
    print("warned", warned, "results", scattered[:, 0] - jnp.array([2.0, 0.0, 0.0]), total)
