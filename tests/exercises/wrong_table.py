"""Every known wrong answer against every check of its exercise: which check notices what.

    python -m tests.exercises.wrong_table        # Markdown, a table per exercise; a few seconds

Exercise 8 seeds its bugs in another way and has a table of its own (tests/exercises/ex08_bugs.py).
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import check
from speclab.report import table

WRONG = Path(__file__).parent / "wrong"


def outcomes(how: str = "all") -> list[dict]:
    """One entry for every check and wrong answer: file, check, case, outcome, message. In a process of its own.

    how: all, or "first": each wrong answer only up to the first check that fails.
    """
    chosen = [exercise.test_file for exercise in check.exercises() if (WRONG / f"{exercise.stem}.py").exists()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "outcomes"
        report.touch()
        words = ["--wrong", how, "--outcomes", str(report), "--confcutdir", str(check.CHECKS), "--tb=no"]
        words += ["-p", "no:cacheprovider", "-c", str(check.ROOT / "pyproject.toml"), *map(str, chosen)]
        quiet = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        subprocess.run(
            [sys.executable, "-m", "pytest", *words],
            cwd=check.ROOT,
            env={**os.environ, **quiet},
            capture_output=True,
            check=False,
        )
        return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


def wrong_answers(stem: str) -> list[str]:
    """The names in tests/exercises/wrong/, in order."""
    scope: dict = {}
    exec((WRONG / f"{stem}.py").read_text(encoding="utf-8"), scope)
    return list(scope["WRONG"])


def main() -> int:
    found, missed = outcomes(), 0
    for exercise in check.exercises():
        if not (WRONG / f"{exercise.stem}.py").exists():
            continue
        mine = [line for line in found if line["file"] == exercise.test_file.name]
        checks = list(dict.fromkeys(line["check"] for line in mine))
        print(f"### Exercise {exercise.number}: {exercise.title}\n")
        for number, name in enumerate(checks, 1):
            print(f"{number}. {name.removeprefix('test_').replace('_', ' ')}")
        rows = []
        for name in wrong_answers(exercise.stem):
            cases = [line for line in mine if f"wrong: {name}" in line["case"]]
            red = {line["check"] for line in cases if line["outcome"] == "failed"}
            missed += not red
            rows.append([name, *("fails" if c in red else "" for c in checks)])
        headers = ["wrong answer", *map(str, range(1, len(checks) + 1))]
        print(f"\n{table(rows, headers, markdown=True)}\n")
    print(f"{missed} wrong answers pass every check")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
