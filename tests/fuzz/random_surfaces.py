"""The public functions and methods, by surface, each with a valid world for a block of calls."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import pycollective
from fuzz.random_inputs import INTEGERS, STRINGS, Inputs

TOPOLOGY = """
from pycollective.schedule import topology

@topology("bad")
class Bad:
    def allreduce(self, p):
        return {}["x"]
"""

Target = tuple[str, Callable[..., Any]]


def methods(prefix: str, subject: Any, skipped: tuple[str, ...] = ()) -> list[Target]:
    names = [name for name in dir(type(subject)) if not name.startswith("_") and name not in skipped]
    found = [
        (f"{prefix}.{name}", getattr(subject, name)) for name in names if callable(getattr(type(subject), name, None))
    ]
    return [pair for pair in found if has_signature(pair[1])]


def has_signature(function: Any) -> bool:
    try:
        return bool(inspect.signature(function)) or True
    except (TypeError, ValueError):
        return False


@contextmanager
def communicators(pick: Inputs) -> Iterator[list[Target]]:
    """A communicator of one rank; a call may poison it, so each block has its own."""
    comm = pycollective.init()
    handle = comm.iallreduce(np.ones(4))
    freed = comm.dup()
    freed.free()
    pick.special |= {
        "dest": lambda: pick.one((0, 1, -1)), "source": lambda: pick.one((0, 1, -1)),
        "function": lambda: pick.one((lambda c: c.rank, lambda a, b=0: a, print, None)),
        "device": lambda: pick.one((None, None, "cuda", -1)), "size": lambda: pick.one((0, 1, 2, -1, 0.5, "2")),
    }  # fmt: skip
    functions = "op local_world topology allreduce broadcast init is_initialized world rank size"
    yield [
        *methods("comm", comm, ("free",)), *methods("handle", handle), *methods("freed", freed),
        *[(f"pycollective.{name}", getattr(pycollective, name)) for name in functions.split()],
        ("local_world(1).run", pycollective.local_world(1).run),
    ]  # fmt: skip
    pycollective.shutdown()


@contextmanager
def schedules(pick: Inputs) -> Iterator[list[Target]]:
    from pycollective import schedule
    from pycollective.schedule import drawing

    compiled = schedule.compile("ring", "allreduce", 3)
    program = schedule.Program("allreduce", 3)
    small = (0, 1, 2, 3, 3, 4, -1, 0.5, "3", None, True)
    placements = (*schedule.Placement, schedule.Placement.STAGED, None, "STAGED")
    pick.special |= {
        "size": lambda: pick.one(small), "schedule": lambda: pick.one((compiled, compiled, None)),
        "topology": lambda: pick.one(("ring", "direct", "tree", "wheel(hub=1)", "wheel(hub=", "wheel(hub=[])", "nope")),
        "collective": lambda: pick.one((*schedule.COLLECTIVES, "allreduce", "nope")), "rank": lambda: pick.one(small),
        "placement": lambda: pick.one(placements), "placements": lambda: pick.one(([], placements, placements[:1], 3)),
        "sizes": lambda: pick.one(((), (1, 2), [0], [3], 3, "ab", [0.5])), "root": lambda: pick.one(small),
        "roots": lambda: pick.one((None, (), [0], [5], [-1], 3)),
        "order": lambda: pick.one((None, "rank", "chunk", "x")),
        "collectives": lambda: pick.one((None, ["allreduce"], ["nope"], "allreduce", 3)), "limit": lambda: 100_000,
        "nbytes": lambda: pick.one((1, 1024, 1 << 20, 0, -1, 0.5)), "tile": lambda: pick.one((None, 1024, 0, -1, 0.5)),
        "network": lambda: pick.one((None, schedule.Network(), 3)), "program": lambda: pick.one((None, program, 3)),
        "where": lambda: pick.one(("x.py", "x.py:y", "/", ".", "\0.py", "x" * 5000)),
        "name": lambda: pick.one(("ring", "x", "a b")),
    }  # fmt: skip
    kinds = (schedule.Network, schedule.Program, schedule.Collective)
    functions = [n for n in schedule.__all__ if isinstance(getattr(schedule, n), types.FunctionType)]
    yield [
        *[(f"schedule.{n}", getattr(schedule, n)) for n in functions],
        *[(f"schedule.{k.__name__}", k) for k in kinds], *methods("program", program, ("record",)),
        ("draw", drawing.draw), ("figure", drawing.figure), ("schedule.table", compiled.table),
        ("collective.busbw_factor", schedule.COLLECTIVES["allreduce"].busbw_factor),
        ("collective.required_chunks", schedule.COLLECTIVES["alltoall"].required_chunks),
        ("program[]", lambda rank, chunk: program[rank, chunk]),
        ("program[] =", lambda rank, chunk, value: program.__setitem__((rank, chunk), value)),
        ("topology(class)", lambda name: schedule.topology("odd")(name)),
    ]  # fmt: skip


@contextmanager
def optimizers(pick: Inputs) -> Iterator[list[Target]]:
    from pycollective import optim
    from pycollective.optim import schedules as rates

    comm = pycollective.init()
    params = {"a": np.ones(3, np.float32), "b": np.ones((2, 2))}
    good = {name: np.ones_like(p) for name, p in params.items()}
    sgd = optim.DistributedSGD(params, 0.1, 0.9)
    other = optim.DistributedOptimizer({name: p.copy() for name, p in params.items()}, optim.lamb, lr=0.1)
    optim.save_checkpoint("sound", sgd, epoch=3)
    numbers = (0.1, 0, 1, 0.9, -1.0, float("nan"), float("inf"), "x", None)
    wholes = (1, 5, 10, 0, -1, 0.5, "3", 1 << 40)
    broken = {**sgd.state_dict(), pick.one(("lr", "velocity", "nesterov", "momentum")): pick.anything()}
    pick.special |= {
        **dict.fromkeys(("lr", "momentum", "weight_decay", "start", "end", "power", "decay", "growth", "factor"),
                        lambda: pick.one(numbers)),
        **dict.fromkeys(("n", "seed", "epoch", "steps", "batch", "base", "step", "rows", "ranks", "limit"),
                        lambda: pick.one(wholes)),
        **dict.fromkeys(("params", "grads", "local", "averaged"), lambda: pick.one(
            (good, good, params, list(good.values()), {"a": 3}, [], {}, [params["a"]] * 2, {"a": pick.array()},
            [pick.tensor()]))),
        "comm": lambda: pick.one((None, comm, comm, 3)), "topology": lambda: pick.one((None, "ring", "nope", 3)),
        "rule": lambda: pick.one((optim.lars, optim.novograd, lambda p, g, state: p, len, None)),
        "overrides": lambda: pick.one((None, {}, {"a": {"lr": 1.0}}, {"z": {}}, {"a": 3}, {"a": {"odd": 1}}, [1])),
        "milestones": lambda: pick.one(([5, 10], [], [0.5], ["x"], 3, None)), "then": lambda: pick.one((None, abs, 3)),
        "path": lambda: pick.one(("sound", "new", "none/x", ".", "", "\0", 3)),
        "optimizer": lambda: pick.one((sgd, other, None, 3)),
        "state": lambda: pick.one((sgd.state_dict(), other.state_dict(), broken, {}, {"lr": 1}, None)),
        "p": pick.array, "g": pick.array, "value": lambda: pick.one((3, {}, lambda: 3)),
        "betas": lambda: pick.one(((0.9, 0.99), (0.9,), 3, (1, 2), ("x", "y"))),
    }  # fmt: skip
    functions: list[Target] = [(f"optim.{n}", f) for n in optim.__all__ if callable(f := getattr(optim, n))]
    functions = [pair for pair in functions if pair[1] not in (optim.lars, optim.larc, optim.lamb, optim.novograd)]
    made = [("cosine", rates.cosine(10)), ("decay_steps", rates.decay_steps([3])), ("polynomial", rates.polynomial(5)),
            ("warm_up", rates.warm_up(5))]  # fmt: skip
    names = "linear_scaling sqrt_scaling constant warm_up decay_steps polynomial cosine GrowingBatch"
    yield [
        *functions, *[(f"schedules.{n}", getattr(rates, n)) for n in names.split()], *made,
        *methods("sgd", sgd), *methods("optimizer", other), *methods("growing", rates.GrowingBatch(8, [10], limit=64)),
        *[(f"DistributedOptimizer({f.__name__})", typical(optim, f, params)) for f in (optim.lars, optim.lamb)],
    ]  # fmt: skip
    pycollective.shutdown()


def typical(optim: Any, rule: Any, params: Any) -> Callable[..., Any]:
    def made(lr: Any, betas: Any, weight_decay: Any) -> Any:
        return optim.DistributedOptimizer(params, rule, lr=lr, betas=betas, weight_decay=weight_decay)

    return made


@contextmanager
def hvd(pick: Inputs) -> Iterator[list[Target]]:
    import pycollective.torch as module

    module.init()
    skipped = {"init", "shutdown"}
    names = [n for n in dir(module) if not n.startswith("_") and n not in skipped and callable(getattr(module, n))]
    yield [(f"hvd.{n}", getattr(module, n)) for n in names if has_signature(getattr(module, n))]
    module.shutdown()


@contextmanager
def c10d(pick: Inputs) -> Iterator[list[Target]]:
    import torch.distributed as dist

    import pycollective.torch.distributed  # noqa: F401  # registers the backend

    dist.init_process_group("pycollective", store=dist.HashStore(), rank=0, world_size=1)
    names = """
        all_reduce broadcast reduce all_gather all_gather_into_tensor gather scatter reduce_scatter
        reduce_scatter_tensor all_to_all all_to_all_single barrier send isend irecv broadcast_object_list
        all_gather_object
    """
    pick.special |= dict.fromkeys(("src", "dst", "group_src", "group_dst", "tag"), lambda: pick.one((0, 0, *INTEGERS)))
    yield [(f"dist.{n}", getattr(dist, n)) for n in names.split()]
    dist.destroy_process_group()


@contextmanager
def cli(pick: Inputs) -> Iterator[list[Target]]:
    """The commands, in this process. `run` starts no process: its program does not exist."""
    from typer.testing import CliRunner

    from pycollective.cli.main import app

    Path("broken.py").write_text("1 / 0")
    Path("mine.py").write_text(TOPOLOGY)
    scripts = ("mine.py", "mine.py:bad", "mine.py:nope", "broken.py", "none.py")
    words = (*STRINGS, *scripts, "all", ".", "-", "--", "[red]", "\udcff")
    numbers = ("1", "2", "3", "0", "-1", "4", "1e9", "nan", "99999999999999999999", "1-3", "3-1", "2,4", "x", "", "²")
    sizes = ("1K", "4:1M:x4", "1:1G:+1", "1:0", "x", "1K:2K:x1", "1:4:x²", "9" * 400, "8B", "-1K", "1.5K", "4,8", "")
    rates = ("5us", "1GB/s", "inf", "0s", "9" * 400 + "s", "9" * 400 + "GB/s", "0B/s", "-1us", "nan", "")
    files = ("x.png", "x.json", "none/x.svg", "-", ".", "", "x.nope", "\0.png")
    names = ("allreduce", "broadcast", "reduce", "alltoall", "nope", "", "allreduce,nope", "é")
    options = {
        "verify": {"--ranks": numbers[:3] + numbers, "--collective": names, "--topology": words, "--json": files,
                   "--plot": files},
        "draw": {"--out": files, "--json": files, "--topology": words, "--graph": (), "--ranks": numbers,
                 "--collective": names, "--root": numbers, "--small": ()},
        "simulate": {"--collective": names, "--ranks": numbers, "--sizes": sizes, "--latency": rates,
                     "--bandwidth": rates, "--reduce": rates, "--node": numbers, "--root": numbers, "--tile": sizes,
                     "--json": files, "--csv": files, "--node-latency": rates, "--plot": files, "--shared-port": (),
                     "--topology": words, "--fit": (*words, *files)},
        "explain": {"--ranks": ("0", "x", "-1"), "--sizes": sizes, "--collective": names, "--topology": words},
        "topologies": {"--json": files}, "demo": {"--epochs": ("x", ""), "--example": ("none.py", ".", "\0")},
        "bench": {"--sizes": sizes[4:8], "--ranks": ("0", "x", "-1"), "--dtype": ("nope", "")},
        "run": {"-np": numbers, "--grace": ("nan", "-1", "x")}, "nope": {}, "doctor": {"--odd": ()},
    }  # fmt: skip

    def arguments() -> list[str]:
        command = pick.one(options if pick.chance(0.3) else ("verify", "draw", "simulate"))
        typed = [command] if pick.chance(0.95) else []
        for name, values in options[command].items():
            if pick.chance(0.3):
                typed += [name, *([pick.one(values)] if values and pick.chance(0.95) else [])]
        if command in ("verify", "draw", "simulate"):
            typed += [pick.one(words if pick.chance(0.4) else words[6:10]) for _ in range(pick.one((1, 1, 1, 1, 0, 2)))]
            if "--ranks" not in typed:  # the default takes a second
                typed += ["--ranks", "2"]
            if command == "simulate" and "--sizes" not in typed:
                typed += ["--sizes", "1K"]
        if command == "explain" and "--ranks" not in typed:  # else it would start processes
            typed += ["--ranks", "0"]
        if (command in ("bench", "demo") and len(typed) < 3) or (command == "doctor" and len(typed) < 2):
            typed += ["--nope"]
        return [*typed, pick.one(STRINGS)] if pick.chance(0.05) else typed

    def pycollective(arguments: Any) -> None:
        typed = [word for word in arguments if isinstance(word, str)] if isinstance(arguments, list) else ["-h"]
        typed = [word for word in typed if not {"\0", "\ud800"} & set(word)]  # which no program can be given
        ended = CliRunner().invoke(app, typed)
        output = ended.output
        assert ended.exception is None or isinstance(ended.exception, SystemExit), f"{ended.exc_info}"
        codes = (0, 1, 2, 127) if typed[:1] == ["run"] else (0, 1, 2)  # 127: no such program, as in a shell
        assert ended.exit_code in codes, f"exit code {ended.exit_code}"
        assert "Traceback" not in output, output
        assert ended.exit_code == 0 or output.strip(), "no output"

    pick.special["arguments"] = arguments
    yield [("pycollective", pycollective)]


SURFACES: dict[str, Callable[[Inputs], Any]] = {
    f.__name__: f for f in (communicators, schedules, optimizers, hvd, c10d, cli)
}  # fmt: skip
