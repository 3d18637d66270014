"""The nonblocking forms of a communicator's calls."""

from __future__ import annotations

from pycollective.comm.collectives import Collectives
from pycollective.comm.described import nonblocking


class Nonblocking(Collectives):
    """What a communicator starts and does not wait for; type checkers take each signature from the blocking form."""

    iallreduce = nonblocking(Collectives.allreduce)
    ireduce = nonblocking(Collectives.reduce)
    ireduce_scatter = nonblocking(Collectives.reduce_scatter)
    iscan = nonblocking(Collectives.scan)
    iexscan = nonblocking(Collectives.exscan)
    imix = nonblocking(Collectives.mix)
    ibroadcast = nonblocking(Collectives.broadcast)
    iallgather = nonblocking(Collectives.allgather)
    iallgatherv = nonblocking(Collectives.allgatherv)
    igather = nonblocking(Collectives.gather)
    iscatter = nonblocking(Collectives.scatter)
    ialltoall = nonblocking(Collectives.alltoall)
    ialltoallv = nonblocking(Collectives.alltoallv)
    ibarrier = nonblocking(Collectives.barrier)
    isend = nonblocking(Collectives.send)
    irecv = nonblocking(Collectives.recv)
