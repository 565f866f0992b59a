"""`python -m pipeline` is `tokcube`, for a checkout whose packages are not installed."""

from pipeline.cli import app

if __name__ == "__main__":
    app(prog_name="tokcube")
