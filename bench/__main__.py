"""``python -m bench``."""

from .cli import app

app(prog_name=f"python -m {__package__}")
