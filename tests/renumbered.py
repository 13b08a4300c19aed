"""The lab's draft under other ids: another tokenizer, the same words and weights."""

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from speclab.models import loading


def save_renumbered(folder: Path) -> str:
    """Write it into an empty folder.  -> the folder's name"""
    shutil.copytree(loading.LAB_DRAFT, folder, dirs_exist_ok=True)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    special = {entry["id"] for entry in content["added_tokens"]}
    usual = sorted(i for i in content["model"]["vocab"].values() if i not in special)
    new_id = dict(zip(usual, usual[::-1], strict=True)) | {i: i for i in special}
    content["model"]["vocab"] = {word: new_id[i] for word, i in content["model"]["vocab"].items()}
    (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    model = loading.load_model(loading.LAB_DRAFT, torch.device("cpu"), torch.float32, "draft")
    order = torch.arange(model.config.vocab_size)
    for old, new in new_id.items():
        order[new] = old
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        rows: Tensor = table[order].clone()
        head = model.get_output_embeddings().weight
        if head is not table:
            head.copy_(head[order].clone())
        table.copy_(rows)
    model.save_pretrained(folder)
    return str(folder)
