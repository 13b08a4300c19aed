"""Bad inputs of the command: one line each, with the exit code and what to do."""

import pytest

from speclab.extensions.servers.tests.simulated import Simulated

GOOD = "vllm:generation_tokens_total 30\n"
FILES = {
    "good.txt": GOOD,
    "less.txt": GOOD.replace("30", "3"),
    "cut.txt": GOOD[:-3],
    "no-page.txt": "hello\n",
    "empty-texts.txt": "no heads here\n",
    "bytes.txt": b"\xff\xfe",
}
NOBODY = "http://127.0.0.1:1"
ROWS = [
    ("", 2, "give --url"),
    ("--url nowhere", 2, "no address of a server"),
    (f"--url {NOBODY}", 3, "start it, or check the address"),
    ("--url {other}/wrong", 3, "give the address of an OpenAI-compatible server"),
    ("--url {plain}", 3, "start it with a draft"),
    ("--url {fake} --plain-url {fake}", 3, "give it as --url"),
    ("--url {fake} --plain-url {another}", 3, "compare one model with itself"),
    ("--plain-url {fake}", 3, "give it with --url"),
    ("--url {locked}", 3, "SPECLAB_API_KEY"),
    ("--url {off}", 3, "--disable-log-stats"),
    ("--url {bare}", 3, "add --raw"),
    ("--url {fake} --texts {folder}/none.txt", 3, "give another file"),
    ("--url {fake} --texts {folder}/empty-texts.txt", 3, "begin each with a line"),
    ("--url {fake} --texts {folder}/bytes.txt", 3, "no UTF-8 text"),
    ("--url {fake} --max-new-tokens 3", 2, "give 16 or more"),
    ("--before {folder}/good.txt", 2, "--before and --after"),
    ("--before {folder}/good.txt --after {folder}/less.txt", 3, "went back"),
    ("--before {folder}/good.txt --after {folder}/cut.txt", 3, "take it whole"),
    ("--before {folder}/good.txt --after {folder}/no-page.txt", 3, "no counters of vLLM"),
    ("--before {folder}/good.txt --after {folder}/good.txt", 3, "take them from the server that speculates"),
    ("--before {folder}/none --after {folder}/none", 3, "give another file"),
    ("--acceptance 35 -k 4", 2, "from 0 to 1"),
    ("--acceptance 0.35 -k 0", 2, "give 1 or more"),
    ("--acceptance 0.35 -k 4 --plain-ms nan", 2, "above 0"),
    ("--url {fake} --load 0", 2, "numbers from 1 to"),
    ("--url {fake} --load 1,many", 2, "numbers from 1 to"),
    ("--url {fake} --load 999999", 2, "numbers from 1 to"),
    ("--acceptance 0.35 -k 4 --load 1", 2, "give --url and --load"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Servers and files."""
    folder = tmp_path_factory.mktemp("places")
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with (
        Simulated(rates=(0.5, 0.5)) as fake,
        Simulated() as plain,
        Simulated(model="org/another") as another,
        Simulated("other") as other,
        Simulated() as locked,
        Simulated() as off,
        Simulated() as bare,
    ):
        locked.pages["/v1/models"] = (401, b'{"error": {"message": "Unauthorized"}}')
        off.pages["/metrics"] = (200, b"python_gc_objects 3\n")
        bare.answer = (400, b'{"error": {"message": "you must provide a chat template."}}')  # as vLLM says it
        names = {
            "bare": bare,
            "fake": fake,
            "plain": plain,
            "another": another,
            "other": other,
            "locked": locked,
            "off": off,
        }
        yield {"folder": folder, **{name: server.url for name, server in names.items()}}


@pytest.mark.parametrize(("words", "code", "says"), ROWS)
def test_a_bad_input_is_one_line(words, code, says, places, command):
    found, _, err = command(*words.format(**places).split())
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (found, len(error)) == (code, 1), err
    assert says in error[0]


def test_a_key_is_never_shown(places, command, monkeypatch):
    monkeypatch.setenv("SPECLAB_API_KEY", "very secret\tkey")
    code, out, err = command("--url", places["fake"])
    assert code == 2
    assert "very secret" not in out + err
    monkeypatch.setenv("SPECLAB_API_KEY", "sesame")
    _, out, err = command("--url", places["locked"])
    assert "sesame" not in out + err
