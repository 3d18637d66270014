"""Which path a call would take, and why: as text and in notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycollective import _core, notebook
from pycollective.comm.group import Group
from pycollective.comm.host.cores import ranges, usable_cores
from pycollective.comm.planner import DEFAULT_TOPOLOGY, NCCL, ScheduleKey, choose, default_text, measured, schedule_for
from pycollective.comm.tuning import Choice
from pycollective.schedule.collectives import CALLS, COLLECTIVES, program_of


@dataclass(frozen=True)
class Explanation:
    """How a call would be executed.

    Attributes:
        collective, nbytes: the call.
        topology: label of the topology, or "nccl".
        variant: "small" or "large".
        order: the order in which elements are reduced: "rank", "fixed" or "chunk"; empty if none are.
        window: path of arrays from `comm.empty`.
        shared: path of arrays from `shared_arrays`, if this process has any.
        plain: path of other arrays.
        reason: why.
        gpu: path of arrays in GPU memory; empty before the first call on one.
        waiting: whether every rank has a core of its own, and so how it waits for peers.
        links: the bytes that cross from each host to each other one; empty on one host.
    """

    collective: str
    nbytes: int
    topology: str
    variant: str
    order: str
    window: str
    plain: str
    reason: str
    gpu: str = ""
    waiting: str = ""
    links: str = ""
    shared: str = ""

    def _repr_html_(self) -> str:
        rows = [
            ("topology", f"{self.topology} ({self.variant} messages)"),
            *([("order of reduction", self.order)] if self.order else []),
            ("arrays from comm.empty", self.window),
            ("other arrays", self.plain),
            ("because", self.reason),
            *self._more(),
        ]
        return notebook.table(rows, caption=f"{self.collective} of {self.nbytes} bytes")

    def __str__(self) -> str:
        lines = [
            f"{self.collective} of {self.nbytes} bytes: topology {self.topology} ({self.variant} messages"
            + (f", order of reduction: {self.order})" if self.order else ")"),
            f"arrays from comm.empty: {self.window}",
            f"other arrays: {self.plain}",
            f"because {self.reason}",
            *map(": ".join, self._more()),
        ]
        return "\n  ".join(lines)

    def _more(self) -> list[tuple[str, str]]:
        rows = [
            ("arrays from shared_arrays", self.shared),
            ("between hosts", self.links),
            ("arrays on the GPU", self.gpu),
            ("cores", self.waiting),
        ]
        return [(what, text) for what, text in rows if text]


def explain_on_host(group: Group, own_cores: bool, collective: str, nbytes: int, topology: Any) -> Explanation:
    """Explain a call of ranks that share memory. `own_cores`: as of a HostTeam."""
    from pycollective.schedule.language import registry

    tuned, faster = _tuned(group, collective, nbytes, topology)
    instance, small = choose(collective, tuned, nbytes)
    memory = "memory of this process" if group.threads else "shared memory of this host"
    chosen = "it was requested"
    if topology is None:
        by_setting = default_text() not in ("", NCCL) and instance != registry.get(DEFAULT_TOPOLOGY)
        chosen = "PYCOLLECTIVE_TOPOLOGY names it" if by_setting else faster or "it is the default within a host"
    staged = _why_staged(collective, nbytes, _core.ALWAYS_STAGED, "a second wait")
    plain = f"staged through scratch in {memory}"
    return _explanation(
        collective, nbytes, instance, small, chosen, own_cores,
        window=plain if staged else f"zero-copy in {memory}", plain=plain,
        reason=staged or "peers access window arrays directly, and others only through scratch",
    )  # fmt: skip


def explain_between_hosts(
    group: Group,
    own_cores: bool,
    names: Sequence[str],
    link: str,
    default: str,
    collective: str,
    nbytes: int,
    topology: Any,
) -> Explanation:
    """Explain a call of ranks on several hosts.

    Args:
        own_cores: whether each rank of this one has a core of its own.
        names: each rank's host. link: the one between hosts. default: the topology of calls that name none.
    """
    tuned, faster = _tuned(group, collective, nbytes, topology)
    instance, small = choose(collective, tuned, nbytes, default)
    by_default = topology is None and not default_text()
    chosen = faster or ("it is the default between hosts" if by_default else "it was requested")
    staged = _why_staged(collective, nbytes, _core.ALWAYS_STAGED_BETWEEN_HOSTS, "agreeing on placements")
    plain = f"staged through shared memory within a host, over {link} between hosts"
    return _explanation(
        collective, nbytes, instance, small, chosen, own_cores,
        window=plain if staged else f"in place within a host, over {link} between hosts", plain=plain,
        reason=f"{staged}{'; ' if staged else ''}the ranks are on {group.nodes.count} hosts",
        links=_links(group, names, instance, collective, nbytes, small),
    )  # fmt: skip


def _tuned(group: Group, collective: str, nbytes: int, topology: Any) -> tuple[Any, str]:
    """What stands for the topology of a call, and why if it was measured."""
    row = measured(collective, nbytes, group.tuned) if topology is None else None
    if row is None:
        return topology, ""
    tiles = f" with tiles of {row.tile} bytes" if row.tile else ""
    why = f"{row.speedup:.2f} times as fast{tiles} as the default, as PYCOLLECTIVE_TUNING has measured"
    return Choice(row.topology, row.small, row.tile), why


def _explanation(
    collective: str,
    nbytes: int,
    topology: Any,
    small: bool,
    chosen: str,
    own_cores: bool,
    *,
    window: str,
    plain: str,
    reason: str,
    links: str = "",
) -> Explanation:
    """`chosen`: why this topology, an instance, was chosen."""
    from pycollective.schedule.language import registry

    row = registry.info(topology)
    variant = "small" if small else "large"
    by_rule = small == (nbytes <= row.small) and registry.has_small(topology, program_of(collective))
    limit = f"; {'at most' if small else 'more than'} {row.small} bytes take its {variant} variant" if by_rule else ""
    order = row.order if COLLECTIVES[program_of(collective)].reduces else ""
    return Explanation(
        collective, nbytes, registry.label(topology), variant, order, window, plain,
        f"{reason}; topology {row.name}: {chosen}{limit}", waiting=_waiting(own_cores), links=links,
    )  # fmt: skip


def _why_staged(collective: str, nbytes: int, most: int, saves: str) -> str:
    """Why window arrays are staged, as others are; empty if they are not."""
    if nbytes <= most:
        return f"up to {most} bytes an extra copy costs less than {saves}"
    return "" if CALLS[collective].windows else f"{collective} is always staged"


def _waiting(own_cores: bool) -> str:
    if own_cores:
        policy = "every rank has one of its own, and spins before it yields"
    else:
        policy = "not every rank has one of its own: no rank spins, they yield"
    return f"this rank may use {ranges(usable_cores())}; {policy}"


def _links(group: Group, names: Sequence[str], topology: Any, collective: str, nbytes: int, small: bool) -> str:
    from pycollective.schedule.compiler.schedule import Placement, traffic

    program, hosts = program_of(collective), group.nodes.of
    root = 0 if CALLS[program].rooted else None
    schedule = schedule_for(ScheduleKey(topology, program, group.size, root, Placement.STAGED, small, hosts))
    name_of = {host: names[hosts.index(host)] for host in hosts}
    crossing = [
        f"{int(part * nbytes)} bytes from {name_of[sender]} to {name_of[receiver]}"
        for (sender, receiver), part in traffic(schedule).items()
    ]
    return "; ".join(crossing) + (f" (if rank {root} is the root)" if root is not None else "")


def explain_nccl(group: Group, collective: str, nbytes: int) -> Explanation:
    """Explain which collectives of GPU arrays NCCL executes."""
    from pycollective.comm.cuda.nccl.library import describe, why_not

    problem = why_not()
    if problem is None and group.threads and group.size > 1:
        problem = "the ranks are threads of one process"
    path = "through NCCL's own collectives" if problem is None else f"not possible: {problem}"
    return Explanation(
        collective, nbytes, NCCL, "any", NCCL, path, path, f"it was requested; {describe()}; CPU arrays are refused"
    )
