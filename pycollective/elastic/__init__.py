"""Elastic jobs: a driver that replaces lost workers, and follows hosts that come and go."""

from __future__ import annotations

from pycollective.elastic.discovery import Discovery, DiscoveryError, FixedHosts, ScriptDiscovery
from pycollective.elastic.driver import Driver
from pycollective.elastic.limits import Limits
from pycollective.elastic.task import Task
from pycollective.elastic.workers import WorkerHandle, Workers

__all__ = [
    "Discovery",
    "DiscoveryError",
    "Driver",
    "FixedHosts",
    "WorkerHandle",
    "Limits",
    "ScriptDiscovery",
    "Task",
    "Workers",
]
