"""Which path a call would take, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pycollective import _core, checks
from pycollective.comm.backend import HostBackend
from pycollective.comm.explanation import Explanation
from pycollective.comm.group import Group
from pycollective.comm.host.cores import ranges, usable_cores
from pycollective.comm.planner import DEFAULT_TOPOLOGY, NCCL, ScheduleKey, choose, default_text, schedule_for
from pycollective.schedule.collectives import CALLS, program_of


def explain(backend: HostBackend, gpu: str, collective: str, nbytes: int, topology: Any) -> Explanation:
    """See Communicator.explain. `gpu`: path of arrays in GPU memory, if known."""
    checks.choice(collective, "collective", [row.name for row in CALLS.values() if not row.is_message])
    nbytes = checks.integer(nbytes, "nbytes", 0)
    if isinstance(topology, str) and topology == NCCL:
        return _explain_nccl(backend.group, collective, nbytes)
    return replace(backend.explain(collective, nbytes, topology), gpu=gpu)


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
    from pycollective.schedule.language import registry

    instance, small = choose(collective, topology, nbytes, default)
    row = registry.info(instance)
    plain = f"staged through shared memory within a host, over {link} between hosts"
    why = _why_staged(collective, nbytes, _core.ALWAYS_STAGED_BETWEEN_HOSTS, "agreeing on placements")
    window = plain if why else f"in place within a host, over {link} between hosts"
    chosen = "it is the default between hosts" if topology is None and not default_text() else "it was requested"
    limit = f"; messages of at most {row.small} bytes take its small variant" if row.small else ""
    return Explanation(
        collective, nbytes, registry.label(instance), "small" if small else "large", row.order, window, plain,
        f"{why + '; ' if why else ''}the ranks are on {group.nodes.count} hosts; topology {row.name}: {chosen}{limit}",
        waiting=_waiting(own_cores), links=_links(group, names, instance, collective, nbytes, small),
    )  # fmt: skip


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


def explain_on_host(group: Group, own_cores: bool, collective: str, nbytes: int, topology: Any) -> Explanation:
    """Explain a call of ranks that share memory. `own_cores`: as of a HostTeam."""
    from pycollective.schedule.language import registry

    instance, small = choose(collective, topology, nbytes)
    row = registry.info(instance)
    memory = "memory of this process" if group.threads else "shared memory of this host"
    staged = f"staged through scratch in {memory}"
    why = _why_staged(collective, nbytes, _core.ALWAYS_STAGED, "a second wait")
    window = staged if why else f"zero-copy in {memory}"
    why = why or "peers access window arrays directly, and others only through scratch"
    chosen = "it was requested"
    if topology is None:
        by_setting = default_text() not in ("", NCCL) and instance != registry.get(DEFAULT_TOPOLOGY)
        chosen = "PYCOLLECTIVE_TOPOLOGY names it" if by_setting else "it is the default within a host"
    limit = f"; messages of at most {row.small} bytes take its small variant" if row.small else ""
    return Explanation(
        collective, nbytes, registry.label(instance), "small" if small else "large", row.order, window, staged,
        f"{why}; topology {row.name}: {chosen}{limit}", waiting=_waiting(own_cores),
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


def _explain_nccl(group: Group, collective: str, nbytes: int) -> Explanation:
    """Explain which collectives of GPU arrays NCCL executes."""
    from pycollective.comm.cuda.nccl.library import describe, why_not

    problem = why_not()
    if problem is None and group.threads and group.size > 1:
        problem = "the ranks are threads of one process"
    path = "through NCCL's own collectives" if problem is None else f"not possible: {problem}"
    return Explanation(
        collective, nbytes, NCCL, "any", NCCL, path, path, f"it was requested; {describe()}; CPU arrays are refused"
    )
