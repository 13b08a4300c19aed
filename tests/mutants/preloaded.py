"""What is loaded once, before a process is forked for each mutant: packages that the lab and its tests use.

Nothing of the lab, which has to be imported after a mutant has been put in.
"""

import importlib

from _pytest.config import default_plugins

MODELS = ("llama", "qwen2", "qwen3", "mixtral", "gemma", "gemma3", "gpt2", "gpt_neox", "mistral", "opt")
ENCODED = ("bart", "bert", "t5")
RECURRENT = ("lfm2", "mamba")
OTHERS = """hypothesis _hypothesis_pytestplugin pytest_socket pytest_timeout torch scipy.stats tabulate pydantic.main
    transformers.models.auto.modeling_auto transformers.generation.utils transformers.tokenization_utils_tokenizers
    matplotlib.pyplot matplotlib.backends.backend_agg"""

for name in MODELS + ENCODED + RECURRENT:
    importlib.import_module(f"transformers.models.{name}.modeling_{name}")
for name in OTHERS.split():
    importlib.import_module(name)
for name in default_plugins:
    importlib.import_module(f"_pytest.{name}")
