# %% [markdown]
# # A tour of pycollective
#
# In an *allreduce* every rank has an array, and in the end every rank has the sum of all of them. There are many ways
# to do this; the pattern of data movement is called a *topology*. In pycollective it is a dozen lines of Python.
# In this tour we write one, look at it, prove it correct, break it, run it, simulate it on a large network, and
# benchmark it.
#
# The tour takes less than half a minute. It needs `pip install '.[plot]'`, in the clone.

# %%
import time

import matplotlib.pyplot as plt
import numpy as np

import pycollective as pc
from pycollective.schedule import Network, Placement, Program, compile, simulate, topology, verify_topology

# %% [markdown]
# ## Write it
#
# Our idea: split the ranks into two teams. Each team adds up its own arrays, the two teams exchange their sums, and
# each team distributes the total to its members. The buffer is divided into as many chunks as there are ranks, and
# each chunk has another leader, so that all ranks have work.
#
# `p[r, c]` is chunk `c` of rank `r`. There are no messages, locks or waits in this program: it reads as if one
# processor did everything, and the compiler finds out what can happen at the same time.


# %%
@topology("two_teams", order="fixed", replace=True)  # replace: this cell may be run again
class TwoTeams:
    """Add up within two teams, exchange the sums, and distribute the total."""

    def allreduce(self, p: Program) -> None:
        half = (p.size + 1) // 2
        teams = [team for team in (p.ranks[:half], p.ranks[half:]) if team]
        for c in p.chunks(p.size):
            leaders = {team[c % len(team)]: team for team in teams}
            for leader, team in leaders.items():
                p[leader, c] = p.sum(p[q, c] for q in team)
            p[leaders, c] = p.sum((p[q, c] for q in leaders), at=c)
            for leader, team in leaders.items():
                p[team, c] = p[leader, c]


# %% [markdown]
# ## See it
#
# Compiled for four ranks, the program becomes a schedule: the steps of each rank, and what each step waits for. A
# notebook shows it as a picture. Time goes from left to right, each rank has a lane, each dot is a step, and each chunk
# has a colour. Steps 1 and 2 add up within the teams (ranks 0 and 1, ranks 2 and 3), step 3 across them, and then the
# totals are distributed. `Placement.WINDOW` stands for arrays that all ranks can access; for others the same program
# is compiled again, with copies to shared memory.

# %%
compile(TwoTeams, "allreduce", 4, placement=Placement.WINDOW)

# %% [markdown]
# ## Verify it
#
# `verify_topology` does not try a few inputs: it proves, for 1 to 17 ranks and every placement of the arrays in
# memory, that each result contains every contribution exactly once, that no two steps race, and that nothing can
# deadlock. It also proves `order="fixed"`: every element is added up in the same order, so the same input gives
# bitwise identical results.

# %%
reports = list(verify_topology(TwoTeams))
print(f"{len(reports)} schedules are proved, with {sum(report.steps for report in reports)} steps in all")

# %% [markdown]
# ## Break it
#
# Now a mistake that is easy to make. This version lets the leaders exchange their sums one after the other. What does
# the second leader read? What the first one has *already overwritten*.


# %%
@topology("hasty_teams", order="fixed", replace=True)
class HastyTeams:
    """Two teams whose leaders do not wait for each other."""

    def allreduce(self, p: Program) -> None:
        half = (p.size + 1) // 2
        teams = [team for team in (p.ranks[:half], p.ranks[half:]) if team]
        for c in p.chunks(p.size):
            leaders = {team[c % len(team)]: team for team in teams}
            for leader, team in leaders.items():
                p[leader, c] = p.sum(p[q, c] for q in team)
            for leader in leaders:
                p[leader, c] = p.sum(p[q, c] for q in leaders)
            for leader, team in leaders.items():
                p[team, c] = p[leader, c]


try:
    list(verify_topology(HastyTeams, [4]))
except pc.VerificationError as error:
    print(error)

# %% [markdown]
# The error names the rank, the chunk, what is wrong with the result, the step that caused it, and, in brackets at
# the end, the line of our program. The second leader adds a sum that already contains its own, so its team is counted
# twice.
#
# A wrong topology cannot be run by accident either: a call with one raises this error before anything is
# sent.

# %% [markdown]
# ## Run it
#
# `pc.local_world(4)` makes four ranks as threads of this process, convenient in notebooks. Every rank calls the
# same function; rank *r* contributes *r*, so each element of the sum is 0 + 1 + 2 + 3 = 6.


# %%
def add_up(comm):
    x = np.full(8, comm.rank, np.float32)
    return comm.allreduce(x, topology=TwoTeams)


pc.local_world(4).run(add_up)

# %% [markdown]
# `explain` shows which path a call would take, and why. Programs of several processes, started by `pycollective run` or
# `mpirun`, call `pc.init()` to get their communicator; everything else stays the same.

# %%
pc.local_world(4).run(lambda comm: comm.explain("allreduce", 1 << 20, topology=TwoTeams))[0]

# %% [markdown]
# ## Simulate it
#
# How would it perform on another network? The simulator follows every message of the same program. Here are
# 64 ranks, a message of 1 MiB, 2 µs from rank to rank, and ports of 25 GB/s.

# %%
network = Network(latency=2e-6, bandwidth=25e9, reduction=20e9)  # s, bytes/s, bytes/s
simulate(TwoTeams, "allreduce", 64, 1 << 20, network)

# %% [markdown]
# `busbw` is the rate at which data moves, to be compared with the 25 GB/s of a port: most of the time is spent
# waiting. The last row shows why: with 32 ranks in a team, a chain of 65 steps has to be executed one after the other.
# Is that good or bad? The next picture compares it with topologies of the package, for 4 to 128 ranks.

# %%
STYLES = {"two_teams": "o-", "ring": "^--", "tree": "s--", "halving_doubling": "d--"}
ranks = [4, 8, 16, 32, 64, 128]

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for name, style in STYLES.items():
    seconds = [simulate(name, "allreduce", n, 1 << 20, network).seconds for n in ranks]
    axes.plot(ranks, [1e6 * s for s in seconds], style, label=name)
axes.set_xscale("log", base=2)
axes.set_xticks(ranks, map(str, ranks))
axes.set(xlabel="ranks", ylabel="time in µs", title="allreduce of 1 MiB, simulated", ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# Two teams beat the ring, which passes every chunk through all ranks one after the other. But a team still grows with
# the number of ranks. `halving_doubling` splits the ranks in two again and again, which pays off on large networks:
# could `TwoTeams` do that?

# %% [markdown]
# ## Benchmark it
#
# Finally the real measurement, on this machine: the same arrays with each topology, in turns, so that all of them see
# the same disturbances. `comm.empty` makes arrays in memory that all ranks share.


# %%
def race(comm, topologies, nbytes, rounds=15, calls=20):
    """The median time of a call in µs, by topology."""
    x = comm.empty(nbytes // 4, np.float32)
    x[:] = 0
    times = {name: [] for name in topologies}
    for _ in range(rounds):
        for name in topologies:
            comm.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                comm.allreduce(x, out=x, topology=name)
            times[name].append((time.perf_counter() - begin) / calls)
    return {name: 1e6 * np.median(some) for name, some in times.items()}


NAMES = ["two_teams", "direct", "ring"]

print("       size" + "".join(f"{name:>14}" for name in NAMES))
for nbytes in (1 << 12, 1 << 16, 1 << 20):
    measured = pc.local_world(4).run(lambda comm, nbytes=nbytes: race(comm, NAMES, nbytes))[0]
    print(f"{nbytes >> 10:>7} KiB" + "".join(f"{measured[name]:>11.1f} µs" for name in NAMES))

# %% [markdown]
# Within one machine `direct` is hard to beat: memory access is fast, and each further step makes ranks wait for each
# other once more. It is the default, also because it adds in rank order. The numbers depend on the machine and its
# load.
#
# Threads of one notebook are not representative. For reliable figures, save the class in a file and benchmark
# processes, also against Open MPI and Gloo:
#
# ```sh
# pycollective bench --topology two_teams.py:two_teams --topology direct --ranks 4
# ```

# %% [markdown]
# ## Where to go from here
#
# - [Add a topology](../docs/add-a-topology.md): the same with files and the command line, and the whole language.
# - [Topologies](../docs/topologies.md): those of the package, with their pictures.
# - [Simulate](../docs/simulate.md): nodes, shared ports, and a fit to measured times.
# - [Communicator](../docs/communicator.md): all collectives, and what they do.
