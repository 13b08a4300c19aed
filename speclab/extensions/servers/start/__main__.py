"""Starts two servers, with the lab's pair or with your files: one speculates and one does not, until Ctrl-C.

python -m speclab.extensions.servers.start llama --program llama-server     # llama.cpp's, from your PATH
python -m speclab.extensions.servers.start llama --models TARGET DRAFT --slots 8      # GGUF files, or folders
python -m speclab.extensions.servers.start vllm --models smollm2 ngram      # after `make vllm`; ngram: a lookup
python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001 --raw
"""

import argparse
import shlex
import sys
import tempfile
import time
from pathlib import Path

from speclab.cli import parsing
from speclab.extensions.servers.start import programs, starting
from speclab.models.loading import LAB_PAIR
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.terminal import say

PROGRAMS = {"llama": programs.LlamaServer, "vllm": programs.Vllm}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Start both, say where they are, and end them with Ctrl-C.  -> exit code"""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.start")
    parser.add_argument("engine", choices=PROGRAMS)
    parser.add_argument("--program", default="", help="llama-server, or the Python that has vLLM (.venv-vllm's)")
    parser.add_argument("--models", nargs=2, metavar="PATH", help="target, draft or ngram (else the lab's)")
    parser.add_argument("-k", "--draft-length", type=parsing.at_least(1, 64), default=4, metavar="K", help="default: 4")
    parser.add_argument("--slots", type=parsing.at_least(1, 64), default=1, help="requests at a time of llama-server")
    parser.add_argument("--port", type=parsing.at_least(1024, 65534), default=8000, help="and the next one for plain")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        servers = commands(args, Path(folder))
        with starting.started(servers, args.port) as (url, plain):
            words = f"--url {url} --plain-url {plain}"
            words += "" if args.models else " --raw"  # the lab's pair has no chat template
            lines = [f"{shlex.join(one)} --port {args.port + place}" for place, one in enumerate(servers)]
            say("\n".join([*lines, f"ask them: python -m speclab.extensions.servers {words}"]))
            while True:
                time.sleep(3600)


def commands(args: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return what starts the server that speculates, and the one that does not, but for their ports."""
    program = PROGRAMS[args.engine](args.program, args.slots)
    if missing := program.missing():
        raise EnvironmentProblem(missing)
    models = args.models or [str(LAB_PAIR / name) for name in ("target", "draft")]
    target, draft = (program.readable(model, folder) for model in models)
    return program.both(target, programs.read(draft), args.draft_length)


if __name__ == "__main__":
    sys.exit(main())
