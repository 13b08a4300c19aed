"""Writes one of this lab's models as a GGUF file, which llama.cpp reads, with the package `gguf`.

    python -m speclab.extensions.servers.start.lab_gguf models/lab-pair/target target.gguf

Weights are written in float32. Only models of the Llama family with a byte-level BPE that splits texts as GPT-2's does
can be written, which the lab's and everything padded from it are; llama.cpp's own convert_hf_to_gguf.py knows the
others.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import sys

import torch

from speclab.cli import parsing
from speclab.models import loading
from speclab.models.outside import written_gguf
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import check_writable


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Write one file.  -> exit code"""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.start.lab_gguf")
    parser.add_argument("model", type=parsing.some_name, metavar="MODEL", help="a model's folder, or its name")
    parser.add_argument("file", type=parsing.some_path, metavar="FILE", help="the GGUF file that is written")
    args = parser.parse_args(argv)
    if lacking := written_gguf.missing():
        raise EnvironmentProblem(lacking)
    check_writable(args.file, "FILE")
    model = loading.load_model(args.model, torch.device("cpu"), torch.float32)
    written_gguf.write_model(model, loading.load_tokenizer(args.model), args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
