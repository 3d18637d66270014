"""The tour: as a script, without Jupyter, and the notebook generated from it."""

from __future__ import annotations

import re

import pytest

import notebooks
from launch import launch


def test_the_tour_runs_as_a_script():
    pytest.importorskip("matplotlib")
    written = launch(1, notebooks.TOUR, launcher="alone", env={"MPLBACKEND": "Agg"}).check()[0]
    assert re.search(r"^\d+ schedules are proved", written, re.M)
    assert re.search(r"the contributions of ranks 2, 3 twice.*\[.*tour\.py:\d+\]$", written, re.M)
    assert len(re.findall(r"^ +\d+ KiB( +\d+\.\d µs){3}$", written, re.M)) == 3


def test_the_notebook_is_what_the_script_generates():
    """Apart from its outputs. `make notebook` regenerates it."""
    pytest.importorskip("jupytext")
    nbformat = pytest.importorskip("nbformat")
    file = notebooks.TOUR.with_suffix(".ipynb")
    committed, generated = nbformat.read(file, as_version=4), notebooks.generate(notebooks.TOUR)
    texts, expected = ([(cell.cell_type, cell.source) for cell in made.cells] for made in (committed, generated))
    assert texts == expected
    assert file.stat().st_size <= notebooks.MOST_BYTES
    outputs = [output for cell in committed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)
