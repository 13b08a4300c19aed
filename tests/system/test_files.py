"""Files: through links, only onto regular files, whole or not at all."""

import os
import socket
from pathlib import Path

import pytest

from speclab.system import files
from speclab.system.errors import EnvironmentProblem

LONG = "a" * 300


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_stays_and_its_file_is_written(tmp_path):
    (tmp_path / "old.json").write_text("x")
    for real in (tmp_path / "old.json", tmp_path / "new.json"):
        link = tmp_path / f"to-{real.name}"
        link.symlink_to(real.name)
        assert files.write_whole(link, "new") == link
        assert link.is_symlink()
        assert not real.is_symlink()
        assert real.read_text() == "new"


def test_only_regular_files_are_written(tmp_path):
    """A folder, a FIFO, a socket, a device: refused, and still what they were."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "fifo", tmp_path / "folder", tmp_path / "socket", Path(os.devnull)):
            before = path.stat().st_mode
            for refuse in (lambda p=path: files.write_whole(p, "x"), lambda p=path: files.check_writable(p, "--json")):
                with pytest.raises(EnvironmentProblem, match="cannot write"):
                    refuse()
            assert path.stat().st_mode == before
    assert names(tmp_path) == ["fifo", "folder", "socket"]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, stop):
    target = tmp_path / "file.json"
    target.write_text("old")

    def write_a_part(path, data):
        with open(path, "wb") as file:
            file.write(data[:1])
        raise stop

    monkeypatch.setattr(Path, "write_bytes", write_a_part)
    with pytest.raises(KeyboardInterrupt if isinstance(stop, KeyboardInterrupt) else EnvironmentProblem):
        files.write_whole(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file.json"]


def test_writers_of_one_name_do_not_tear_each_other(tmp_path, monkeypatch):
    parts, right = [], Path.replace
    monkeypatch.setattr(Path, "replace", lambda part, target: parts.append(part) or right(part, target))
    for text in "ab":
        files.write_whole(tmp_path / "x.json", text)
    assert len(set(parts)) == 2, "each has a temporary file of its own"


def test_what_cannot_be_written_is_found_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / LONG, tmp_path / "a\0b", tmp_path / "file" / "x", tmp_path):
        with pytest.raises(EnvironmentProblem, match="--json"):
            files.check_writable(path, "--json")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentProblem, match="read-only"):
        files.check_writable(tmp_path / "file", "--json")


def test_what_was_written_is_said_at_the_end(tmp_path, capsys, monkeypatch):
    files.write_all([lambda: files.write_whole(tmp_path / "a", "x"), lambda: print("shown")], "; as before")
    out, err = capsys.readouterr()
    assert (out, err) == ("shown\n", f"wrote {files.shown(tmp_path / 'a')}; as before\n")
    files.write_all([lambda: None])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(os.path, "relpath", lambda path: int("another drive"))  # raises ValueError
    assert files.shown(tmp_path) == str(tmp_path)
