"""The README is a view of the committed records, and its paths and commands exist."""

import contextlib
import functools
import importlib
import io
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import experts, roofline, same_text
from benchmarks.peers import page as peers_page
from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.present import report, tables
from speclab.records import files
from speclab.records.files import ComparisonRun, Head
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import ROOT
from speclab.theory import attribution
from speclab.theory.attribution import FURTHEST  # before the tests' own bound: see tests/conftest.py
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import tiny
from tools import blocks, readme

PAGES = readme.PAGES
GENERATED = [page for page in PAGES if "<!-- begin" in page.read_text("utf-8")]
BENCHMARKS = {  # by the last word of a record's name
    "peers": (peers_page.PeersRun, peers_page.page),
    "roofline": (roofline.RooflineRun, roofline.page),
    "text": (same_text.SameTextRun, same_text.page),
    "experts": (experts.ExpertsRun, experts.page),
}
# Records of programs that only the history has: what all records have is checked, and their pages stay as they are. Of
# others, which no test reads, only the page is kept.
OF_THE_PAST = {"cpu-2-cores-drawn"}
OF_THE_PAST |= {path.stem for path in (ROOT / "results").glob("cpu-2-cores-*wrong-servers.json")}
RECORDS = sorted((ROOT / "results").glob("cpu-2-cores*.json"))
WITH_A_PAGE = [path for path in RECORDS if path.with_suffix(".md").exists() and path.stem not in OF_THE_PAST]


@pytest.fixture(autouse=True)
def rough_speeds_are_called_rough(monkeypatch):
    """The fixture of all tests calls none rough."""
    monkeypatch.setattr(attribution, "FURTHEST", FURTHEST)


def read(path: Path) -> tuple[Head, Callable[[Any, str], str]]:
    """A committed record, and what makes its page."""
    last = path.stem.rpartition("-")[2]
    if last in BENCHMARKS:
        record, blocks = BENCHMARKS[last]
        return files.read(path, record), lambda run, name: tables.show(blocks(run), markdown=True)
    of_batches = last == "batch" and pytest.importorskip("speclab.extensions.batch.shown")
    return files.read(path, ComparisonRun), (of_batches or report).page


def head(path: Path) -> Head:
    """The part of a record that all records have."""
    return files.read(path, Head)


@pytest.mark.parametrize("page", GENERATED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_generated_blocks_are_fresh(page):
    text = page.read_text("utf-8")
    assert readme.filled(text) == text, "run: python -m tools.readme"


def test_a_stale_number_is_written_again():
    """One speedup of every block of the README is changed."""
    text = readme.README.read_text("utf-8")
    stale, n_changed = re.subn(r"(<!-- begin [^>]*-->.*?\d\.)\d\dx", r"\g<1>??x", text, flags=re.DOTALL)
    assert n_changed == text.count("<!-- begin")
    assert readme.filled(stale) == text


def test_a_part_of_a_page_of_results_is_found_by_its_headings(tmp_path, monkeypatch):
    """A heading that is not there is a Problem, not an empty block; a long table stays on its own page."""
    (tmp_path / "results").mkdir()
    long_table = "| 1 |\n" * readme.LONG
    page = f"# Title\n\nhead\n\n## A\n\none\n\n### B\n\ntwo\n\n## C\n\n| 1 |\n\n{long_table}\nthree\n"
    (tmp_path / "results" / "x.md").write_text(page)
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    whole = "head\n\n**A**\n\none\n\n**B**\n\ntwo\n\n**C**\n\n| 1 |\n\nthree"
    assert readme.results_block("results/x.md") == whole
    assert readme.results_block("results/x.md # A") == "one"
    assert readme.results_block("results/x.md # A # B") == "two"
    assert readme.results_block("results/x.md # C : tables") == f"| 1 |\n\n{long_table}".strip()
    assert readme.results_block("results/x.md # A : tables") == ""
    for name in ("results/x.md # D", "results/y.md"):
        with pytest.raises(EnvironmentProblem, match="cannot be made"):
            readme.filled(f"<!-- begin {name} -->\n<!-- end {name} -->")


def _anchors(page) -> set[str]:
    """What a link to a heading of the page ends with, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_state(page, anchor: str) -> bool:
    """Is this the address of a state of the page with dials? An unknown name would be passed over in silence."""
    names = re.search(r"const DEFAULTS = \{(.*?)\};", page.read_text("utf-8"), re.DOTALL)[1]
    return all(re.search(rf"\b{word.partition('=')[0]}:", names) for word in filter(None, anchor.split("&")))


def test_every_linked_file_and_heading_exists():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
            if "://" not in link:
                path, _, anchor = link.partition("#")
                there = page.parent / path if path else page
                assert there.exists(), f"{page.name} links to {link}"
                if there.suffix == ".html":
                    assert _is_state(there, anchor), f"{page.name} links to {link}"
                else:
                    assert not anchor or anchor in _anchors(there), f"{page.name} links to {link}"


def _typed(text: str) -> list[list[str]]:
    """The words of every command that a page names, in a block or inside a line."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"`((?:python|make) [^`]+)`", text)
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.fixture(scope="module")
def help_of():
    """Script or module, and a subcommand of a package -> the text of its --help."""

    @functools.cache
    def asked(name: str, *words: str) -> str:
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{name}.__main__")
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as end:
            module.main([*words, "--help"])
        assert end.value.code == 0
        return out.getvalue()

    return asked


def test_every_command_of_the_readme_has_its_script_and_flags(help_of):
    """Nothing is run: that a command does what the page says is for its own tests."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    found = _typed(readme.README.read_text("utf-8"))
    assert len(found) > 15
    for words in found:
        if words[0] == "make":
            assert words[1] in targets, words
        elif words[0] == "python":
            name, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1].removesuffix(".py"), words[2:])
            flags = [word for word in rest if word.startswith("-")]
            sub = [word for word in rest[:1] if word.isidentifier()]
            assert [flag for flag in flags if not re.search(rf"{flag}\b", help_of(name, *sub))] == [], words


def test_every_help_fits_on_one_screen(help_of):
    commands = [f"{extensions.PACKAGE}.{name}" for name in extensions.names("__main__")]
    for name in ["baseline_autoregressive", "optimized_speculative", "compare", "check", *commands]:
        assert len(help_of(name).splitlines()) <= 40, name


def test_every_path_in_contributing_exists():
    paths = re.findall(r"`([\w./]+/[\w./]*|\w+\.(?:py|md))`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_source_file_that_a_page_names_exists():
    folders = {"docs": "**/*.md", "exercises": "*.py", "tests/mutants": "*.*"}
    pages = [page for folder, pattern in folders.items() for page in (ROOT / folder).glob(pattern)]
    path = re.compile(r"\b(?:speclab|tests|tools|training)/[\w./]+\.py\b")
    named = {(page.name, found) for page in pages for found in path.findall(page.read_text("utf-8"))}
    assert len(named) > 20
    assert sorted((page, found) for page, found in named if not (ROOT / found).exists()) == []


def test_the_draft_of_contributing_drafts(monkeypatch):
    """It is a lookup, it proposes, and the text is the target's own."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)[1]
    namespace: dict = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), namespace)
    target, prompt = CachedModel(tiny("llama")), torch.tensor([[5, 3, 5]])
    monkeypatch.setattr(registry, "_KINDS", dict(registry.kinds()))
    registry.add_lookup("repeat", namespace["RepeatDrafter"], "the last token again and again")
    setup = SimpleNamespace(target=target, sampling=GREEDY)
    drafter = registry.make("repeat", setup)
    registry.check_prompts(target, [drafter], [Prompt("code", "", prompt)], 24)
    assert drafter.describe("repeat", "eager") is None
    assert drafter.lengths([3]) == [3]
    law = drafter.law(target, [5, 3, 5], [5, 5, 2], GREEDY, 2)
    assert [list(row) for row in law.accept_probs(None, [5, 5, 2])] == [[1.0, 1.0], [1.0, 0.0], [0.0]]
    rounds = list(speculative_rounds(target, drafter, prompt, 3, 24))
    assert tokens_of(rounds) == plain_text(target, prompt, 24)
    assert max(round_.n_drafted for round_ in rounds) == 3


def test_every_result_has_its_line_in_their_index():
    index = (ROOT / "results" / "README.md").read_text("utf-8")
    own = {"README.md", *(path.name for path in (ROOT / "results").glob("local*.md"))}  # what a reader's runs write
    pages = {path.name for path in (ROOT / "results").glob("*.md")} - own
    assert set(re.findall(r"^\| \[[^]]+\]\(([^)#]+)", index, re.MULTILINE)) == pages


def test_committed_records_are_valid_and_clean():
    """Made from committed code, with every required field, and no path or host in them."""
    assert {blocks.DEFAULT_RUN, blocks.FULL_RUN} <= set(RECORDS)
    assert {path.stem for path in RECORDS} >= OF_THE_PAST
    for path in RECORDS:
        run = head(path) if path.stem in OF_THE_PAST else read(path)[0]
        assert run.versions["commit"]
        assert run.versions["uncommitted_changes"] is False
        assert not run.interrupted
        assert not re.search(r"/(home|root|tmp|Users|work)\b", path.read_text())


@pytest.mark.parametrize("path", WITH_A_PAGE, ids=lambda p: p.stem)
def test_committed_tables_are_views_of_their_records(path):
    """A page whose code changed after the run must be written again."""
    run, page = read(path)
    assert path.with_suffix(".md").read_text("utf-8") == page(run, path.stem)


def test_what_was_not_kept_is_quoted_from_its_records():
    """Every number with a point stands on the linked page, and the commit is the record's: there its program is."""
    section = (
        (ROOT / "docs" / "which-method.md").read_text("utf-8").split("\n## Tried, and not kept\n")[1].split("\n## ")[0]
    )
    methods = section.split("\n- ")[1:]
    assert len(methods) > 3
    for method in methods:
        name, commit = re.search(r"\(\.\./results/([\w-]+)\.md[\w#-]*\), made\s+at\s+commit\s+(\w+)\)", method).groups()
        page = (ROOT / "results" / f"{name}.md").read_text("utf-8")
        assert f"commit {commit};" in page
        numbers = re.findall(r"\d+\.\d+", method)
        assert numbers
        assert [number for number in numbers if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", page)] == []


def test_pins_lie_within_the_ranges():
    import tomllib

    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ranges = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    ranges = {r.name: r.specifier for r in map(Requirement, ranges)}
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert set(pins) == set(ranges)
    for name, version in pins.items():
        assert version in ranges[name], f"{name} {version} is outside {ranges[name]}"


def test_every_speedup_of_the_readme_stands_in_a_generated_block():
    text = re.sub(r"<!-- begin .*?<!-- end", "", readme.README.read_text("utf-8"), flags=re.DOTALL)
    assert re.findall(r"\d\.\d\dx", text) == []
