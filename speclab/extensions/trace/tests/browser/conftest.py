"""A browser for the pages: one headless Chromium, or a skip that says what is missing.

Needs playwright (`pip install "playwright>=1.50,<2"`) and a Chromium: one on the PATH, or playwright's own.
"""

import os
import shutil
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

FLAGS = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu"]
FLAGS += ["--no-first-run"]


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium, or a skip that says what is missing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    with playwright.sync_playwright() as started:
        own = started.chromium.executable_path
        if found is None and not Path(own).exists():
            pytest.skip(f"no browser: none of {', '.join(names)} is on the PATH, and playwright has none of its own")
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        chromium = started.chromium.launch(executable_path=found or own, args=[*FLAGS, *sandbox])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a page's text as a file.  -> the page, with `.problems` and `.requests` of everything that happened on it"""
    contexts = []

    def call(text: str, viewport: dict, **look):
        path = tmp_path / "page.html"
        path.write_text(text, "utf-8")
        contexts.append(browser.new_context(viewport=viewport, **look))
        page = contexts[-1].new_page()
        page.problems, page.requests = [], []
        page.on("console", lambda message: page.problems.append(message.text))
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield call
    for context in contexts:
        context.close()
