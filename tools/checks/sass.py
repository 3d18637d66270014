"""Check the machine code of the GPU kernels and report their resource usage.

    python tools/checks/sass.py [FILE...] [--arch sm_90] [--quiet]

FILE is anything that `cuobjdump` reads: a cubin, an object, a shared library; by default the installed
`pycollective._cuda`. Every kernel of every architecture in it is checked against the rules of `problems`; the table has
registers, stack and local-memory instructions. Exit status 1 if a rule is violated.

`cuobjdump` and `nvdisasm` are taken from the PATH or from the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

AHEAD = 8
"""16-byte loads in flight in the longest unrolled loop; a kernel with fewer was not compiled as intended."""
STACK = 64
"""Maximum stack in bytes of executors whose operator costs more than memory access; sums have none."""
BLOCK_ENDS = ("BRA", "BRX", "JMP", "EXIT", "RET", "CALL", "BAR", "BSYNC", "WARPSYNC")
"""Mnemonics that end a run of instructions or wait for other threads."""

_FUNCTION = re.compile(r"^\s*Function (?:: )?([^\s:]+)")
_ARCH = re.compile(r"^\s*(?:arch = |code for )(sm_\w+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_NOISE = re.compile(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|pc::cuda::|pc::|^void |\((?!anonymous)[^()]*\)$")
_NEAR = re.compile(r"STRONG\.(SM|GPU|CTA|CLUSTER)")
_FLAG = re.compile(r"(LDG|STG)\.E\.64\.STRONG\.(SYS|GPU)$")
_GLOBAL = re.compile(r"^(LD|LDG|ST|STG|ATOM|ATOMG|RED|REDG)(\.|$)")


@dataclass
class Kernel:
    """One kernel for one architecture: its mnemonics in order, with its resources."""

    arch: str
    name: str
    code: list[str] = field(default_factory=list)
    registers: int = 0
    stack: int = 0

    def count(self, pattern: str) -> int:
        """How many mnemonics match all of `pattern`, a regular expression."""
        return sum(1 for word in self.code if re.fullmatch(pattern, word))

    @property
    def local(self) -> int:
        """Number of instructions that access local memory: spills, and arrays that do not fit in registers."""
        return self.count(r"(LDL|STL)(\..*)?")


def tool(name: str) -> str:
    """The path of `cuobjdump` or `nvdisasm`; SystemExit names the package to install."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(place) for place in (spec.submodule_search_locations or () if spec else ())]
    folders = [str(folder) for package in packages for folder in sorted(package.glob("*/bin"), reverse=True)]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if found is None:
        raise SystemExit(f"{name} was found neither on the PATH nor here: pip install nvidia-cuda-{name}")
    return found


def _cuobjdump(file: Path, *options: str) -> Iterator[str]:
    """Its output, line by line; SystemExit if it fails."""
    env = {**os.environ, "NVDISASM_PATH": str(Path(tool("nvdisasm")).parent)}
    with subprocess.Popen([tool("cuobjdump"), *options, str(file)], stdout=subprocess.PIPE, text=True, env=env) as run:
        assert run.stdout is not None
        yield from run.stdout
    if run.returncode:
        raise SystemExit(f"cuobjdump could not read {file}")


def kernels(file: Path, arch: str | None = None) -> list[Kernel]:
    """Every kernel of pycollective in `file`, or those for `arch`."""
    only = ["-arch", arch] if arch else []
    found: dict[tuple[str, str], Kernel] = {}
    now, current = "", None
    for line in _cuobjdump(file, *only, "-sass"):
        if match := _ARCH.match(line):
            now = match[1]
        elif match := _FUNCTION.match(line):
            current = found.setdefault((now, match[1]), Kernel(now, match[1]))
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.code.append(match[1])
    now, current = "", None
    for line in _cuobjdump(file, *only, "-res-usage"):
        if match := _ARCH.match(line):
            now = match[1]
        elif match := _FUNCTION.match(line):
            # A bare cubin does not repeat its architecture.
            named = [kernel for (arch, name), kernel in found.items() if name == match[1] and now in (arch, "")]
            current = named[0] if named else None
        elif current is not None and (match := _RESOURCES.search(line)):
            current.registers, current.stack = (int(number) for number in match.groups())
    return list(found.values())


# -- The rules ---------------------------------------------------------------------------------------------


def problems(kernel: Kernel) -> Iterator[str]:
    """The rules that a kernel violates, each in a sentence; nothing for kernels that are not ours."""
    if "run_schedule" in kernel.name:
        yield from _memory(kernel)
        yield from _flags(kernel)
        yield from _data_path(kernel)
    elif "run_low_latency" in kernel.name:
        yield from _memory(kernel)
        yield from _packets(kernel)


def _memory(kernel: Kernel) -> Iterator[str]:
    if stale := kernel.count(r"LDG?\..*CONSTANT.*"):
        yield f"{stale} loads take the path that is not coherent (.CONSTANT): a const __restrict__ on window memory?"
    near = [word for word in kernel.code if _GLOBAL.match(word) and _NEAR.search(word) and not _FLAG.match(word)]
    if near:
        yield f"{near[0]} and {len(near) - 1} others are not of system scope: a peer may be another GPU or the host"


def _flags(kernel: Kernel) -> Iterator[str]:
    """An acquire is a strong load and then an invalidation of L1; a release, a fence and then a strong store.

    Of system scope, or of the GPU's for ranks that share one.
    """
    for scope in ("SYS", "GPU"):
        loads = [i for i, word in enumerate(kernel.code) if word == f"LDG.E.64.STRONG.{scope}"]
        stores = [i for i, word in enumerate(kernel.code) if word == f"STG.E.64.STRONG.{scope}"]
        if scope == "SYS" and not (loads and stores):
            yield f"{len(loads)} loads and {len(stores)} stores of flags: each kernel must have some of system scope"
        relaxed = sum(not _reaches(kernel.code[i + 1 :], "CCTL.IVALL") for i in loads)
        if relaxed:
            yield f"{relaxed} of {len(loads)} loads of flags are not an acquire: no CCTL.IVALL follows"
        fences = (f"MEMBAR.ALL.{scope}", f"MEMBAR.SC.{scope}")
        unordered = sum(not _reaches(kernel.code[:i][::-1], *fences) for i in stores)
        if unordered:
            yield f"{unordered} of {len(stores)} stores of flags are not a release: no MEMBAR.{scope} precedes"


def _reaches(code: Iterable[str], *wanted: str) -> bool:
    """Whether one of `wanted` comes before the straight run of instructions ends or another flag is accessed."""
    for word in code:
        if word in wanted:
            return True
        if word.split(".")[0] in BLOCK_ENDS or _FLAG.match(word):
            return False
    return False


def _data_path(kernel: Kernel) -> Iterator[str]:
    for verb, pattern in (("loads", r"LDG?\.E\.128"), ("stores", r"STG?\.E\.128")):
        if (wide := kernel.count(pattern)) < AHEAD:
            yield f"{wide} {verb} of 16 bytes, at least {AHEAD} are unrolled in the source: the data path is narrow"
    if kernel.stack > (0 if "Sum" in kernel.name else STACK):
        yield f"{kernel.stack} bytes of stack: the vectors in flight do not fit in registers"


def _packets(kernel: Kernel) -> Iterator[str]:
    for verb, pattern in (("loads", r"LDG?\.E\.128\.STRONG\.SYS"), ("stores", r"STG?\.E\.128\.STRONG\.SYS")):
        if not kernel.count(pattern):
            yield f"no {verb} of 16-byte packets of system scope: data and flag would not travel in one word"


# -- The report --------------------------------------------------------------------------------------------


def readable(names: list[str]) -> list[str]:
    """Names demangled and shortened, if c++filt is available."""
    if not names or not shutil.which("c++filt"):
        return names
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return [_NOISE.sub("", line) for line in text.splitlines()]


def report(found: list[Kernel]) -> None:
    """The table: registers, bytes of stack, local-memory instructions, 16-byte loads and stores."""
    print(f"{'arch':8}{'regs':>5}{'stack':>6}{'local':>6}{'ld16':>6}{'st16':>6}  kernel")
    for kernel, name in zip(found, readable([k.name for k in found]), strict=True):
        wide = f"{kernel.count(r'LDG?[.]E[.]128.*'):6}{kernel.count(r'STG?[.]E[.]128.*'):6}"
        print(f"{kernel.arch:8}{kernel.registers:5}{kernel.stack:6}{kernel.local:6}{wide}  {name}")


def summary(found: list[Kernel]) -> list[str]:
    """A line per architecture: number of kernels, maximum number of registers, and kernels that spill."""
    lines = []
    for arch in sorted({kernel.arch for kernel in found}, key=lambda name: (len(name), name)):
        here = [kernel for kernel in found if kernel.arch == arch]
        spilling = [kernel for kernel in here if kernel.local]
        spills = "; ".join(
            f"{name}: {kernel.stack} bytes of stack, {kernel.local} local-memory instructions"
            for kernel, name in zip(spilling, readable([k.name for k in spilling]), strict=True)
        )
        most = max(kernel.registers for kernel in here)
        lines.append(f"{arch}: {len(here)} kernels, at most {most} registers; {spills or 'none spills'}")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Exit status 1 if a kernel breaks a rule, or if there is none."""
    parser = argparse.ArgumentParser(description="Check the machine code of the GPU kernels.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--arch", help="only this architecture, like sm_90")
    parser.add_argument("--quiet", action="store_true", help="a line per architecture instead of the table")
    options = parser.parse_args(arguments)
    files = options.files
    if not files:
        spec = importlib.util.find_spec("pycollective._cuda")  # without loading it
        if spec is None or spec.origin is None:
            raise SystemExit("pycollective._cuda is not installed here: name a file")
        files = [Path(spec.origin)]
    found = [kernel for file in files for kernel in kernels(file, options.arch)]
    if not options.quiet:
        report(found)
    print(*summary(found), sep="\n")
    wrong = [(kernel, problem) for kernel in found for problem in problems(kernel)]
    for (kernel, problem), name in zip(wrong, readable([kernel.name for kernel, _ in wrong]), strict=True):
        print(f"{kernel.arch} {name}: {problem}")
    ours = sum("run_schedule" in kernel.name for kernel in found)
    print(f"{len(found)} kernels, {ours} of them executors, {len(wrong)} problems")
    return int(bool(wrong) or ours == 0)


if __name__ == "__main__":
    sys.exit(main())
