"""``python -m bench``."""

from .cli import app

if __name__ == "__main__":
    app(prog_name=f"python -m {__package__}")
