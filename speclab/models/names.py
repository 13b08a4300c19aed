"""Names of models, texts and engines that a command line knows before anything is loaded. Nothing heavy is imported."""

from pathlib import Path

from speclab.system.paths import DATA

MODELS = DATA / "models"
LAB_PAIR = MODELS / "lab-pair"
LAB_TARGET, LAB_DRAFT = str(LAB_PAIR / "target"), str(LAB_PAIR / "draft")
PROMPTS = DATA / "prompts"
LAB_TEXTS = tuple(sorted(path.stem for path in PROMPTS.glob("*.jsonl")))
ENGINES = ("auto", "c", "graphs", "eager")
WITH_OTHER_TOKENIZERS: list[str] = []  # kinds of drafts whose model may have another one; extensions add theirs


def exists(name: str) -> bool:
    """Tell whether there is such a file or folder. A name that no file can have is none."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False
