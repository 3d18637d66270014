"""Generates pycollective/comm/nonblocking.py, the nonblocking form of each collective, from the blocking forms.

Editors, type checkers and readers see real signatures. `--check`: fail if the file is out of date.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

COMM = Path(__file__).resolve().parent.parent / "pycollective" / "comm"
SOURCE, TARGET = COMM / "collectives.py", COMM / "nonblocking.py"
HEADER = '''"""Nonblocking forms of a communicator's calls: generated from collectives.py by tools/nonblocking.py."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

'''
CLASS = '''
@nonblocking(Collectives)
class Nonblocking(Collectives):
    """What a communicator starts and does not wait for."""
'''


def generated() -> str:
    """The text of nonblocking.py."""
    source = SOURCE.read_text()
    module = ast.parse(source)
    blocking = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "Collectives")
    methods = [n for n in blocking.body if isinstance(n, ast.FunctionDef) and _is_collective(n)]
    names = {method.name for method in methods}
    forms = [_form(n) for n in blocking.body if isinstance(n, ast.FunctionDef) and n.name in names]
    ends = ["\n" if ast.get_docstring(form) is None else "\n\n" for form in forms]  # overloads: as in the source
    body = CLASS + "\n" + "".join(_indented(form) + end for form, end in zip(forms, ends, strict=True))
    return _formatted(HEADER + _imports(module) + "\n" + body)


def _is_collective(method: ast.FunctionDef) -> bool:
    """Whether it is a signature with documentation only: the core makes the call."""
    return ast.get_docstring(method) is not None and len(method.body) == 1


def _form(method: ast.FunctionDef) -> ast.FunctionDef:
    """The nonblocking form of a method, or of one of its overloads."""
    name = method.name
    method.name = f"i{name}"
    assert method.returns is not None
    method.returns = ast.Subscript(ast.Name("Handle", ast.Load()), method.returns, ast.Load())
    if ast.get_docstring(method) is None:  # an overload
        return method
    when = "after an exchange of counts" if any(a.arg.endswith("counts") for a in method.args.args) else "at once"
    text = f"Nonblocking `{name}`: same arguments; a Handle {when}, for what it returns."
    method.body[0] = ast.Expr(ast.Constant(text))
    return method


def _indented(node: ast.AST) -> str:
    return "\n".join("    " + line if line else "" for line in ast.unparse(ast.fix_missing_locations(node)).split("\n"))


def _imports(module: ast.Module) -> str:
    """The imports of the blocking forms; ruff removes unused ones."""
    lines = []
    for node in module.body:
        if isinstance(node, ast.If):
            lines.append("from pycollective.comm.collectives import Collectives")
        if isinstance(node, ast.ClassDef):
            break
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.If)) and ast.unparse(node) != HEADER.splitlines()[-2]:
            lines.append(ast.unparse(node))
    lines = [line.replace("import described", "import nonblocking") for line in lines]
    return "\n".join(lines)


def _formatted(text: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select", "F,I"], ["format", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET), "-"],
            input=text, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(done.stdout + done.stderr)
        text = done.stdout
    return text


def main() -> None:
    text = generated()
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text)
    elif TARGET.read_text() != text:
        sys.exit(f"{TARGET.name} is not what tools/nonblocking.py makes of {SOURCE.name}: run it")


if __name__ == "__main__":
    main()
