"""Scale on paper: its costs at points worked out by hand, what it draws, and that its page is what it makes."""

import numpy as np
import pytest

from speclab.extensions.batch import scale
from speclab.system.files import ROOT


def test_costs_by_hand():
    """What the record has, what its ceilings allow beyond; weights and experts read once; the published steps."""
    gpu, sheet, *pages = scale.machines().values()
    assert (gpu.target[1], gpu.target[9]) == pytest.approx((0.005320384, 0.00567408))
    assert gpu.target[4096] == pytest.approx(4096 * 16132415488 / 809130.7e9, rel=1e-6)
    assert gpu.verify(2, 0, 0) - gpu.target[2] == pytest.approx((16025042944 - 15989252096) / 4381046e6)
    assert (gpu.draft[0], gpu.outside) == (0, pytest.approx(0.00076, abs=5e-5))
    routed = 1551e9 / (1 - 6 / 384)
    assert sheet.target[1] == pytest.approx((1.6e12 - routed + routed / 2 * 6 / 384) / 64e12)
    assert sheet.target[4096] == pytest.approx((1.6e12 - routed / 2) / 64e12), "all experts"
    merged, before = ([page.target[n] for n in (1, 256, 1023, 1024, 2048)] for page in pages)
    assert merged == pytest.approx([1 / 101.3, 1 / 29.4, before[2], 3.44 / 54.6, 3.44 / 34.3])
    assert before == pytest.approx([1 / 101.3, 1 / 29.4, merged[2], 3.44 / 30.7, 3.44 / 14.2])


def test_what_is_drawn_has_the_published_means_of_each_depth():
    accepted = scale.recorded()["accepted"]
    assert scale.drawn(4000, 10).mean((0, 1)) == pytest.approx(accepted, abs=0.01)
    survival = np.cumprod(accepted)
    assert 1 + survival.sum() == pytest.approx(3.44, abs=0.01)
    assert survival[0] > 0.7 > 0.1 > survival[-1]


def test_the_page_is_what_is_simulated():
    """One row of it: what is taken comes out again, and nobody drafts better than who knows the text."""
    found = scale.simulated(scale.machines()["graphs 4096"], 16)
    assert found["plain"].of_user == pytest.approx(71.8)
    assert found["oracle"] == max(found.values())
    page = scale.show(scale.page({"graphs 4096": {16: found}}), markdown=True)
    row = next(line for line in page.splitlines() if "71.8" in line)
    assert "SIMULATION" in row
    assert " ".join(row.split()) in " ".join((ROOT / "results" / "batch-scale.md").read_text().split())
