"""The committed pictures are the records' own, and the command writes them."""

from speclab.system.files import ROOT
from tools import plots


def test_every_committed_picture_is_made_from_a_record_and_shown_by_a_page(tmp_path):
    """By its name; drawing all of them takes too long for a test, and fonts differ between machines."""
    made = set()
    for path in sorted((ROOT / "results").glob("cpu-*.json")):
        steps = plots.pictures(path, tmp_path)
        for step in steps:
            folder, name = step.args[-2:]
            assert folder == tmp_path
            made.add(name)
        if not steps:
            made.add(path.stem)  # a benchmark draws its own picture, where it has one, under its record's name
    made |= {path.stem for path in (ROOT / "results").glob("cpu-*.md")}  # whose record only the history has
    committed = {path.stem for path in (ROOT / "plots").glob("cpu-*.png")}
    assert committed == made & plots.shown()
    drawn = {path.stem for path in (ROOT / "plots").iterdir()}
    of_git = {name for name in drawn | plots.shown() if not name.startswith("local")}  # git ignores runs in this folder
    assert drawn & of_git == plots.shown() & of_git


def test_one_record_is_drawn_and_a_benchmarks_has_no_picture(tmp_path):
    record = ROOT / "results" / "cpu-2-cores-c-smollm2.json"
    names = [f"{step.args[-1]}.png" for step in plots.pictures(record, tmp_path)]
    assert plots.main([str(record), "--out", str(tmp_path)]) == 0
    assert names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert plots.pictures(ROOT / "results" / "cpu-2-cores-c-peers.json", tmp_path) == []
