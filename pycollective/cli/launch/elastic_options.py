"""The options of elastic jobs, for `pycollective run`, horovodrun and `horovod.run`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from pycollective.elastic import Discovery, Limits


NAMES = {
    "host_discovery_script": ("--host-discovery-script",),
    "slots": ("--slots-per-host", "--slots"),
    "min_num_proc": ("--min-np", "--min-num-proc"),
    "max_num_proc": ("--max-np", "--max-num-proc"),
    "reset_limit": ("--reset-limit",),
    "cooldown_range": ("--blacklist-cooldown-range",),
    "elastic_timeout": ("--elastic-timeout",),
}
"""Field -> names on the command line."""


def _option(field: str, text: str, **more: Any) -> Any:
    return typer.Option(*NAMES[field], help=f"elastic: {text}", **more)


@dataclass(frozen=True)
class ElasticOptions:
    """Horovod's; true if they make a job elastic. None: not given."""

    host_discovery_script: Annotated[
        str | None, _option("host_discovery_script", "a program that writes lines HOST:SLOTS")
    ] = None
    slots: Annotated[int | None, _option("slots", "slots of hosts without a number", min=1)] = None
    min_num_proc: Annotated[
        int | None, _option("min_num_proc", "fewest ranks to continue with", min=1, show_default="-np")
    ] = None
    max_num_proc: Annotated[
        int | None, _option("max_num_proc", "most ranks", min=1, show_default="as many as slots")
    ] = None
    reset_limit: Annotated[int | None, _option("reset_limit", "how often the set of ranks may change", min=0)] = None
    cooldown_range: Annotated[
        tuple[float, float] | None, _option("cooldown_range", "seconds without ranks for hosts that fail")
    ] = None
    elastic_timeout: Annotated[
        float | None, _option("elastic_timeout", "seconds to wait for hosts", min=0, show_default="600")
    ] = None

    def __bool__(self) -> bool:
        return self.host_discovery_script is not None or self.min_num_proc is not None

    def words(self) -> list[str]:
        """Those that are given, as words of a command line."""
        found = []
        for name, options in NAMES.items():
            value = getattr(self, name)
            if value is not None:
                found += [options[0], *map(str, value if isinstance(value, tuple) else [value])]
        return found

    def check(self, hosts_listed: bool, name_of: Callable[[str], str] | None = None) -> None:
        """
        Args:
            hosts_listed: whether there is a list of hosts as well.
            name_of: how an error calls the option of a field; None: as on the command line.

        Raises:
            ValueError: options of elastic jobs, but this is none; a default of slots without a script, or hosts twice.
        """
        name = name_of or (lambda field: NAMES[field][0])
        only = ("max_num_proc", "reset_limit", "cooldown_range", "elastic_timeout")
        useless = [each for each in only if getattr(self, each) is not None]
        script = name("host_discovery_script")
        if useless and not self:
            raise ValueError(f"{name(useless[0])} is for elastic jobs: it needs {script} or {name('min_num_proc')}")
        if self.slots is not None and self.host_discovery_script is None:
            raise ValueError(f"{name('slots')} needs {script}")
        if self.host_discovery_script is not None and hosts_listed:
            hosts = "-H and --hostfile" if name_of is None else f"{name_of('hosts')} and {name_of('hostfile')}"
            raise ValueError(f"{script} replaces {hosts}")

    def discovery(self, listed: Sequence[tuple[str, int]], size: int) -> Discovery:
        """The hosts of an elastic job: of the script, or else those listed, or else this one.

        Args:
            size: ranks to begin with.
        """
        from pycollective.elastic import FixedHosts, ScriptDiscovery

        if self.host_discovery_script is not None:
            return ScriptDiscovery(self.host_discovery_script, self.slots)
        return FixedHosts(dict(listed) or {"localhost": self.max_num_proc or size})

    def limits(self, size: int) -> Limits:
        """Limits of a job that begins with `size` ranks.

        Raises:
            ValueError: see Limits.
        """
        from pycollective.elastic import Limits

        return Limits(
            size, self.min_num_proc, self.max_num_proc, self.reset_limit, self.cooldown_range, self.elastic_timeout
        )


def takes_elastic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command of typer whose parameter `elastic`, of type ElasticOptions, stands for all of these options."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(ElasticOptions, include_extras=True)

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:
        chosen = ElasticOptions(**{name: given.pop(name) for name in NAMES})
        return command(**given, elastic=chosen)

    parameters = []
    for each in signature.parameters.values():
        if each.name == "elastic":
            parameters += [each.replace(name=name, annotation=options[name], default=None) for name in NAMES]
        else:
            parameters.append(each.replace(annotation=hints[each.name]))
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options
