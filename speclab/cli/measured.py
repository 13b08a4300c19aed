"""The commands that measure share this: a look at other work before, and what is shown and written afterwards."""

from collections.abc import Sequence

from speclab.cli.output import Output, Step, View
from speclab.lab.run_config import RunConfig
from speclab.present.pictures import library
from speclab.records.runs import Head
from speclab.system.files import do_all
from speclab.system.terminal import note, say


def look_at_cores(config: RunConfig) -> None:
    """Say where other work uses the machine, before the head of the run."""
    config.look_at_cores()


def show(output: Output, record: Head, texts: Sequence[View], page: View, pictures: Sequence[Step] = ()) -> int:
    """Print the texts, write the record and its page, and draw the pictures where that can be done.

    The log of the run is deleted when nothing has failed.  -> exit code, 0 where nothing failed
    """
    if pictures and not library.is_here():
        note(library.MISSING)
        pictures = ()
    old = "; files of an earlier run are replaced, --name NAME keeps them" * output.result(".json").exists()
    code = do_all([*map(_said, texts), *output.writes(record, page), *pictures], old)
    if output.log and not code:
        output.log.discard()
    return code


def _said(text: View) -> Step:
    """Return the step that makes a text and prints it."""
    return lambda: say(text())
