"""`python -m training.heads mtp`, from the first text to the head that is written, with a tiny target."""

import torch

from speclab.extensions.mtp.head_weights import read_mtp_head
from speclab.extensions.mtp.recipe import fresh_mtp, mtp_loss, named, write_mtp
from tests.training.test_heads import target  # noqa: F401 - a fixture
from training import heads
from training.heads import head_to_train, rounded
from training.recipes import likely


def words(folder, *more: str) -> list[str]:
    return ["mtp", "--target", "x", "--minutes", "0.0001", "--out", str(folder), *more]


def weights_of(head) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in head.named_parameters()}


def test_a_head_is_written_and_goes_on(target, tmp_path, monkeypatch):  # noqa: F811
    before = {name: weight.clone() for name, weight in target.state_dict().items()}
    assert heads.main(words(tmp_path / "one")) == 0
    # What learned further is the better one, and is written.
    scores = ({"by_position": [], "tokens_per_round": {heads.K: n}} for n in (1.0, 2.0))
    monkeypatch.setattr(heads, "score", lambda *_, **__: next(scores))
    assert heads.main(words(tmp_path / "two", "--init", str(tmp_path / "one"))) == 0
    first, second = (read_mtp_head(str(tmp_path / name), target, "mtp") for name in ("one", "two"))
    layer, other = (named(head.model.layers[0]) for head in (first, second))
    assert layer.keys() == other.keys()
    assert any(not torch.equal(layer[name], other[name]) for name in layer)
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())


def test_what_is_written_is_what_was_learned(target, tmp_path):  # noqa: F811
    target.requires_grad_(False)
    args = heads.parse(words(tmp_path))
    head = fresh_mtp(target, None, args)
    write_mtp(tmp_path / "out", rounded(head).to(torch.bfloat16), "x", [])
    read = named(read_mtp_head(str(tmp_path / "out"), target, "mtp").model.layers[0])
    for name, weight in named(head.model.layers[0]).items():
        assert torch.equal(read[name], weight.to(torch.bfloat16).to(read[name].dtype))


def test_its_own_layer_learns_and_nothing_of_the_target(target, tmp_path):  # noqa: F811
    target.requires_grad_(False)
    head, _ = head_to_train(target, None, heads.parse(words(tmp_path)))
    before = weights_of(head)
    tokens, starts = torch.randint(0, 300, (2, 20)), torch.tensor([[0, 3, 9], [1, 2, 11]])

    def read(rows):
        out = target(input_ids=rows, output_hidden_states=True)
        last = target.model.layers[-1]
        found = []
        hook = last.register_forward_hook(lambda m, a, o: found.append(o if isinstance(o, torch.Tensor) else o[0]))
        target(input_ids=rows)
        hook.remove()
        return found[0], likely(out.logits)

    stepper = torch.optim.SGD([weight for weight in head.parameters() if weight.requires_grad], lr=0.1)
    with torch.enable_grad():
        mtp_loss(head, read, tokens, starts).backward()
    stepper.step()
    changed = {name for name, weight in head.named_parameters() if not torch.equal(weight, before[name])}
    assert changed == {name for name in before if name.startswith("model.layers.")}
