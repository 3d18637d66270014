"""`python -m pycollective.horovod SCRIPT [ARGUMENT...]`: run an unchanged Horovod script.

-m MODULE instead of SCRIPT runs a module, like Python's own -m.
-np 4 and other options of horovodrun before SCRIPT start ranks, see horovodrun.py; --help lists them.
install, uninstall: make `import horovod` find this package in every program of this environment, see
    installation.py.
"""

from __future__ import annotations

import sys

from pycollective.horovod import script

USAGE = "usage: python -m pycollective.horovod [OPTIONS] SCRIPT [ARGUMENT...], or -m MODULE; install; uninstall; --help"


def main() -> None:
    words = sys.argv[1:]
    if words in (["install"], ["uninstall"]):
        _install_or_not(words[0])
    elif words and words[0].startswith("-") and words[0] != "-m":
        from pycollective.horovod.horovodrun import app

        app(prog_name="python -m pycollective.horovod")
    else:
        try:
            script.check(words)
        except ValueError as error:
            sys.exit(f"{USAGE}\n{error}")
        script.run(words)


def _install_or_not(word: str) -> None:
    from pycollective.horovod import installation

    try:
        if word == "install":
            file = installation.install()
            print(f"`import horovod` finds pycollective in this environment now: {file}; undo it with `uninstall`")
        else:
            removed = installation.uninstall()
            print("\n".join(f"removed {file}" for file in removed) or "it was not installed")
    except (OSError, RuntimeError) as error:
        sys.exit(f"python -m pycollective.horovod {word}: {error}")


if __name__ == "__main__":
    main()
