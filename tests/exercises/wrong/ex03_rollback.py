"""Plausible wrong answers to exercise 3: name -> (hole, source). Each must fail a check (tests/exercises/)."""


def _keep(what: str) -> str:
    return f"def tokens_to_keep(n_cached, n_committed):\n    return {what}\n"


def _crop(body: str) -> str:
    return f"""
def crop(layers, n):
    if not 0 <= n <= layers[0][0].shape[2]:
        raise ValueError("out of range")
    {body}
"""


WRONG = {
    "the last committed token is kept": ("tokens_to_keep", _keep("min(n_cached, n_committed)")),
    "the rejected drafts stay": ("tokens_to_keep", _keep("n_cached")),
    "one token less than is there": ("tokens_to_keep", _keep("n_cached - 1")),
    "the draft's cache is as long as the target's": ("tokens_to_keep", _keep("n_committed - 1")),
    "the draft is fed the last token alone": (
        "catch_up",
        "def catch_up(committed, n_cached):\n    return committed[-1:]",
    ),
    "the draft is fed the whole text": ("catch_up", "def catch_up(committed, n_cached):\n    return list(committed)"),
    "always two tokens": ("catch_up", "def catch_up(committed, n_cached):\n    return committed[-2:]"),
    "over-cropping goes unnoticed": (
        "crop",
        "def crop(layers, n):\n    return [(k[:, :, :n].clone(), v[:, :, :n].clone()) for k, v in layers]",
    ),
    "two owners of one memory": ("crop", _crop("return [(k[:, :, :n], v[:, :, :n]) for k, v in layers]")),
    "contiguous() is taken for a copy": (
        "crop",
        _crop("return [(k[:, :, :n].contiguous(), v[:, :, :n].contiguous()) for k, v in layers]"),
    ),
    "rejected positions are set to zero": (
        "crop",
        _crop(
            "length = layers[0][0].shape[2]\n"
            "    kept = (torch.arange(length) < n).to(layers[0][0].dtype)[None, None, :, None]\n"
            "    return [(k * kept, v * kept) for k, v in layers]"
        ).replace("def crop(layers, n):", "def crop(layers, n):\n    import torch"),
    ),
    "the last positions are kept": (
        "crop",
        _crop("return [(k[:, :, k.shape[2] - n :].clone(), v[:, :, v.shape[2] - n :].clone()) for k, v in layers]"),
    ),
    "every layer gets the first one's keys and values": (
        "crop",
        _crop("return [tuple(x[:, :, :n].clone() for x in layers[0]) for _ in layers]"),
    ),
    "the given cache is cropped in place": (
        "crop",
        _crop("layers[:] = [(k[:, :, :n].clone(), v[:, :, :n].clone()) for k, v in layers]\n    return layers"),
    ),
}
