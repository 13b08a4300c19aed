"""Starts two servers, with the lab's pair or with your files: one speculates and one does not, until Ctrl-C.

python -m speclab.extensions.servers.start llama --program llama-server     # llama.cpp's, from your PATH
python -m speclab.extensions.servers.start llama --models TARGET.gguf DRAFT.gguf --slots 8
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
from speclab.extensions.servers.start import starting
from speclab.models.loading import LAB_PAIR
from speclab.system.errors import reports_problems
from speclab.system.terminal import say


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Start both, say where they are, and end them with Ctrl-C.  -> exit code"""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.start")
    parser.add_argument("engine", choices=("llama", "vllm"))
    parser.add_argument("--program", help="llama-server, or the Python that has vLLM (default: .venv-vllm/bin/python)")
    parser.add_argument("--models", nargs=2, type=Path, metavar="PATH", help="target, draft or ngram (else the lab's)")
    parser.add_argument("-k", "--draft-length", type=parsing.at_least(1, 64), default=4, metavar="K", help="default: 4")
    parser.add_argument("--slots", type=parsing.at_least(1, 64), default=1, help="requests at a time of llama-server")
    parser.add_argument("--port", type=parsing.at_least(1024, 65534), default=8000, help="and the next one for plain")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        servers = commands(args, Path(folder))
        with starting.started(servers[0], args.port), starting.started(servers[1], args.port + 1):
            urls = f"--url http://127.0.0.1:{args.port} --plain-url http://127.0.0.1:{args.port + 1}"
            urls += "" if args.models else " --raw"  # the lab's pair has no chat template
            say("\n".join([*map(shlex.join, servers), f"ask them: python -m speclab.extensions.servers {urls}"]))
            while True:
                time.sleep(3600)


def commands(args: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return what starts the server that speculates, and the one that does not."""
    k, ports = args.draft_length, [["--port", str(args.port + place)] for place in (0, 1)]
    target, drafter = args.models or (LAB_PAIR / "target", LAB_PAIR / "draft")
    if args.engine == "vllm":
        plain, draft = starting.vllm(args.program, target, drafter, k)
    else:
        if not args.models:
            from speclab.extensions.servers.start import lab_gguf  # here: it imports the models' library, which is slow

            target, drafter = (lab_gguf.write(one, folder / f"{one.name}.gguf") for one in (target, drafter))
        plain, draft = starting.llama(args.program or "llama-server", target, args.slots), starting.drafted(drafter, k)
    return [[*plain, *draft, *ports[0]], [*plain, *ports[1]]]


if __name__ == "__main__":
    sys.exit(main())
