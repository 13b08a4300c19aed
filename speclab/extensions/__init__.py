"""Extensions: what can be done with the lab beyond its ground floor, one folder each.

An extension can be deleted: no room below names it or imports it, and no extension imports another one. What it adds is
found by speclab/system/extensions.py. A folder holds

    __init__.py      which makes it a package that can be found; its first line says what its command does
    register.py      where it brings drafts, rules or names of models: it adds them to the lab's tables
    model_family.py  where it brings a family of models: FAMILY
    __main__.py      the extension's own command, `python -m speclab.extensions.NAME`, with its own flags
    recipe.py        where it brings a kind of draft that is trained: RECIPES for `python -m training.heads`
    tests/           its tests; its mutants stand in tests/mutants.txt

`python -m speclab.extensions` lists the commands. `python -m tools.extensions` deletes each folder in a copy of the
project and checks that the rest still works; `make lint` runs it.
"""
