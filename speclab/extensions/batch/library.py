"""The library's own batches: `model.generate` over several prompts at once, padded on the left.

All texts of its batch start together and end together; the library has no assisted decoding of more than one text.
"""

import torch

from speclab.core.clock import old_objects_frozen
from speclab.lab.decodings import library_generate
from speclab.lab.run_config import RunConfig
from speclab.records.facts import Facts
from speclab.system.terminal import progress


@old_objects_frozen()
def batched(config: RunConfig, batches: list[int]) -> list[Facts]:
    """The tokens of all texts and the seconds of every batch, the prompts' own pass included; greedy."""
    entries = []
    with progress(len(batches), "size", "the library's batches") as bar:
        for n_texts in batches:
            prompts = [config.prompts[i % len(config.prompts)].ids[0] for i in range(n_texts)]
            longest = max(map(len, prompts))
            ids = torch.stack([torch.nn.functional.pad(one, (longest - len(one), 0)) for one in prompts])
            mask = torch.stack([torch.arange(longest) >= longest - len(one) for one in prompts]).long()
            ids, mask = ids.to(config.setup.device), mask.to(config.setup.device)
            model, n_new = config.setup.target.model, config.max_new_tokens
            library_generate(model, ids, n_new, attention_mask=mask)  # a warm-up
            seconds, tokens = library_generate(model, ids, n_new, attention_mask=mask)
            entries.append({"n_texts": n_texts, "n_tokens": n_texts * len(tokens), "seconds": seconds})
            bar.update()
    return entries
