"""Names of models, texts and engines that a command line knows before anything is loaded. Nothing heavy is imported."""

from speclab.system.paths import DATA

MODELS = DATA / "models"
LAB_PAIR = MODELS / "lab-pair"
LAB_TARGET, LAB_DRAFT = str(LAB_PAIR / "target"), str(LAB_PAIR / "draft")
PROMPTS = DATA / "prompts"
LAB_TEXTS = tuple(sorted(path.stem for path in PROMPTS.glob("*.jsonl")))
ENGINES = ("auto", "fast", "compiled", "eager")
