"""A pytest plugin: puts the mutant that $MUTANT names into the lab, before any test is collected.

    MUTANT=accept.draws_the_correction_from_p python -m pytest -p tests.mutants.plugin tests/test_gallery.py

Many modules import functions of lower rooms by name, and some bind them as defaults of arguments. They see the wrong
function because they are imported after it was put in its place: each file of mutants imports the rooms that it
changes and those below them, nothing above. Where two modules of one file's rooms share a function by name, a mutant
replaces it in both.
"""

import importlib
import os

_file, _, _name = os.environ["MUTANT"].partition(".")
_mutants = importlib.import_module(f"tests.mutants.{_file}")
if _name:
    getattr(_mutants, _name).apply()
