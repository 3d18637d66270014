"""What all labs share: their options, progress on the screen, figures, conclusions, and ranks as processes.

    args = lab.start("Gradient descent on a linear model.")     # --ranks, --quick, --data, --out
    data = lab.dataset(args)                                    # train_x, train_y, test_x, test_y
    for step in lab.track(range(1000), "full batch"): ...       # a progress bar
    figure, axes = lab.subplots(1, 2)                           # in the style of all figures of the project
    lab.legend(axes[0])                                         # beside the curves
    lab.save(figure, "loss", args)                              # OUT/loss.svg
    lab.conclude(args, "lab1", "SGD needs {ratio:.0f} times fewer samples.", ratio=ratio)

Ranks are threads, `pycollective.local_world(args.ranks).run(function)`, if the arithmetic is NumPy's; otherwise
processes: `lab.launch(args.ranks, "script.py")`.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from data import NAMES, load

HERE = Path(__file__).resolve().parent
Item = TypeVar("Item")


def start(
    description: str,
    ranks: int = 4,
    data: str = "digits",
    *,
    quick_ranks: int | None = None,
    fewest: int = 1,
    torch: bool = False,
) -> argparse.Namespace:
    """Read the options of a lab, and limit NumPy to one thread per rank.

    Args:
        description: shown by --help.
        ranks, data: the defaults of --ranks and --data.
        quick_ranks: the default of --ranks with --quick; None: that of `ranks`.
        fewest: the number of ranks that it needs.
        torch: whether it needs torch.

    Returns:
        ranks: int; quick: bool, a shorter run with coarser results; data: one of data.NAMES; folder: Path of the data's
        files, or None for the usual places; png: bool; out: Path of an existing folder for figures. In a notebook,
        which has no command line, the options are read from the environment variable COURSE_ARGS.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, metavar="N", help=f"number of ranks (default: {ranks})")
    parser.add_argument("--quick", action="store_true", help="a shorter run with coarser results")
    parser.add_argument(
        "--data", default=data, metavar="NAME[:FOLDER]", help=f"{', '.join(NAMES)}, and the folder of its files"
    )
    parser.add_argument("--png", action="store_true", help="figures as PNG instead of SVG")
    parser.add_argument("--out", type=Path, default=Path("course-out"), metavar="FOLDER", help="for the figures")
    words = shlex.split(os.environ.get("COURSE_ARGS", "")) if in_notebook() else sys.argv[1:]
    warnings.filterwarnings("ignore", "IProgress not found")  # of torch in a notebook: a progress bar that nobody needs
    args = parser.parse_args(words)
    if args.ranks is None:
        args.ranks = quick_ranks if args.quick and quick_ranks else ranks
    args.data, _, folder = args.data.partition(":")
    args.folder = Path(folder).expanduser() if folder else None
    if args.data not in NAMES:
        parser.error(f"--data: {args.data!r} is not one of {', '.join(NAMES)}")
    if args.ranks < fewest:
        parser.error(f"--ranks: {args.ranks} is less than {fewest}")
    needed = {
        "matplotlib": "matplotlib",
        "sklearn": "scikit-learn" if args.data == "digits" else "",
        "torch": "torch" if torch else "",
    }
    missing = " ".join(package for module, package in needed.items() if package and find_spec(module) is None)
    if missing:
        parser.exit(2, f"this lab needs {missing}: pip install {missing}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    _limit_threads()
    return args


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    return "ipykernel" in sys.modules


def dataset(args: argparse.Namespace) -> Any:
    """The data of --data: train_x, test_x float32 [n, height, width, channels] in 0..1; train_y, test_y int64 [n]."""
    return load(args.data, args.folder)


def track(items: Iterable[Item], title: str, total: float | None = None) -> Iterator[Item]:
    """The items, with a progress bar on the screen (standard error).

    Args:
        total: the number of items, if they have no len.
    """
    from rich.console import Console
    from rich.progress import track as bar

    console = Console(stderr=True, force_jupyter=False)  # its widgets need a package more
    yield from bar(items, f"{title:24}", total=total, console=console)


def subplots(rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes, as `matplotlib.pyplot.subplots`; without a screen unless in a notebook.

    The options are those of `matplotlib.pyplot.subplots`; by default an axis is 4 by 3 inches.
    """
    import matplotlib

    if not in_notebook():
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from pycollective.schedule.drawing.style import STYLE

    plt.rcParams.update(STYLE)
    options.setdefault("figsize", (4 * columns, 3 * rows))
    return plt.subplots(rows, columns, layout="constrained", **options)


def legend(axis: Any, **options: Any) -> None:
    """The legend of one axis, below it, so that it covers no curve. The options are those of `Axes.legend`."""
    axis.legend(**{"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 2} | options)


def save(figure: Any, name: str, args: argparse.Namespace) -> None:
    """Write a figure to OUT/name.svg, or .png with --png, and print the path."""
    import matplotlib

    path = Path(args.out, f"{name}.{'png' if args.png else 'svg'}")
    with matplotlib.rc_context({"svg.hashsalt": name}):  # the same figure gives the same bytes
        figure.savefig(path, dpi=120, metadata=None if args.png else {"Date": None})
    print(f"figure: {path}", flush=True)


def conclude(args: argparse.Namespace, name: str, sentence: str, **measured: Any) -> None:
    """Print what the lab found, and write it to OUT/name.json, which the runner and the tests read.

    Args:
        name: of the lab: its file without .py.
        sentence: with the measurements in braces, as for str.format: "SGD reaches {sgd:.1%}".
        measured: numbers, texts, or lists and dicts of them.
    """
    text = sentence.format(**measured)
    content = {"conclusion": text, "quick": args.quick, "data": args.data, "ranks": args.ranks, "measured": measured}
    Path(args.out, f"{name}.json").write_text(json.dumps(content, indent=1, default=float) + "\n")
    print(f"conclusion: {text}", flush=True)


def launch(
    ranks: int, script: str | Path, *words: object, timeout: float = 300, env: Mapping[str, str] | None = None
) -> str:
    """Run a script of this folder on `ranks` processes by `pycollective run`, and return their standard output.

    Args:
        script: file name, relative to this folder, or an absolute path.
        words: its arguments.
        timeout: seconds until all ranks are ended.
        env: further environment variables.

    Raises:
        RuntimeError: a rank failed, or the time is over; shows the last lines of standard error.
    """
    command = [sys.executable, "-m", "pycollective", "run", "-np", str(ranks), str(HERE / script), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
    # In another folder: with -m, Python would import the source tree of the repository instead of the package.
    process = subprocess.Popen(
        command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    except BaseException as error:
        process.terminate()  # the launcher ends its ranks
        output, errors = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        raise RuntimeError(f"{script} on {ranks} ranks: not done after {timeout} s\n{errors[-2000:]}") from None
    if process.returncode:
        raise RuntimeError(f"{script} on {ranks} ranks: exit code {process.returncode}\n{errors[-2000:]}")
    return output


def _limit_threads() -> None:
    """One thread per rank for matrix products: the ranks already share the cores."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return  # the runner and the launchers set OMP_NUM_THREADS
    import numpy  # noqa: F401  its library is limited only after it has been loaded

    threadpool_limits(1)
