"""What ordinary training scripts print, and what is read out of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_proxy.launcher.output.progress import EVERY_S, Readout
from singularity_proxy.protocol import decode
from singularity_proxy.protocol.messages import Reading, to_json


@pytest.mark.parametrize(
    ("line", "reading"),
    [
        (b"step 120/900 loss 0.3125", Reading(120, 900, 0.3125)),
        (b"Epoch 3 | step: 40 | loss: 1.5e-2 | lr: 3e-4", Reading(40, None, 0.015)),
        (b"{'loss': 2.31, 'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.1}", Reading(None, None, 2.31)),
        (b"global_step=77 train_loss=0.5", Reading(77, None, 0.5)),
        (b"iter 900: loss 4.2913, time 27.54ms, mfu 12.1%", Reading(900, None, 4.2913)),
        (b" 12%|#2        | 120/1000 [00:10<01:20, 11.00it/s, loss=0.7]", Reading(120, 1000, 0.7)),
        (b" 1/9 [00:01<00:08]\r 2/9 [00:02<00:07]", Reading(2, 9, None)),
        (b"loss: nan", None),
        (b"step 1.5 of the plan", None),
        (b"lossless compression 3, stepmother 4", None),
        (b"[rank0] hello", None),
        (b"", None),
    ],
)
def test_reads_what_scripts_print(line: bytes, reading: Reading | None) -> None:
    readout = Readout()
    readout.see(line)
    assert readout.due(0.0) == reading


def test_hands_out_what_is_new_and_not_too_often() -> None:
    readout = Readout()
    readout.see(b"step 1/10 loss 3.0")
    assert readout.due(100.0) == Reading(1, 10, 3.0)
    readout.see(b"step 2 loss 2.0")
    assert readout.due(100.0 + EVERY_S / 2) is None
    assert readout.due(100.0 + EVERY_S) == Reading(2, 10, 2.0)
    assert readout.due(100.0 + 3 * EVERY_S) is None


def test_a_line_of_megabytes_costs_little() -> None:
    readout = Readout()
    readout.see(b"loss " * 1_000_000 + b"step 5 loss 1.0")
    assert readout.due(0.0) == Reading(5, None, 1.0)


NUMBERS = st.from_regex(r"[0-9]{1,30}(\.[0-9]{1,5})?(e[0-9]{1,4})?", fullmatch=True) | st.just("9" * 4000)


@given(st.sampled_from(["step {}/{} loss {}", "{}/{} [00:10<, loss={}", "global_step={} of {} 'loss': {}"]), st.data())
def test_whatever_is_printed_is_a_message_that_others_read(form: str, data: st.DataObject) -> None:
    """A message that is refused ends what it is about: 400 digits after `step` were accepted here and nowhere else."""
    readout = Readout()
    readout.see(form.format(*(data.draw(NUMBERS) for _ in range(3))).encode())
    reading = readout.due(0.0)
    if reading is not None:
        assert decode.message(Reading, to_json(reading)) == reading
